"""`refused`: finds out whether a model raises an exception only under a low precision, at which line, and what to change there."""

from __future__ import annotations

import dataclasses
import re

import torch

from precheck import interrupts
from precheck.analysis.facts import Fact
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.unrepresentable.exceptions import Misindexed, MixedFormats, Unstorable, about_an_index
from precheck.analysis.unrepresentable.nonfinite import Broken
from precheck.judge import watched_runs
from precheck.observe.job import Job
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.places.source import KINDS, shortened
from precheck.precisions import Precision
from precheck.rules.rule import Candidate

_PLAIN = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)
"""Exceptions whose message is clear without the name of the class. torch raises these."""

_LACKING = re.compile(r"\"\w+\" not implemented for '(Half|BFloat16|Float8_\w+)'")
"""torch's words for an op that a device does not have in a low format."""


def refused(job: Job, precision: Precision) -> str:
    """Returns line, message and cure of the exception that the job raises under a low precision. "" if it raises none, or one in float32 too.

    Makes four runs at most. All but the second end at the exception.
    """
    if not precision.is_low:
        return ""
    try:
        run(job, low(precision))
    except Exception as error:
        told, indexed = _line_and_message(error), about_an_index(type(error).__name__, str(error))
    else:
        return ""
    try:
        run(job, reference(torch.float32))
    except Exception:
        return ""
    if _LACKING.search(told):
        return f"{told}; cure: call .float() on what this line reads, or check on a device that has it (--precision-device)"
    return told + _cure(job, precision, (Misindexed, Broken) if indexed else (MixedFormats, Unstorable))


def _cure(job: Job, precision: Precision, kinds: tuple[type[Fact], ...]) -> str:
    """What the rule says that explains the exception. "" if none does. The second run is for a pass that the search for a loss scale makes, without
    the shadow, before the first step.

    `kinds`: the facts that explain it. torch's words on an index do not say that rounding, or an overflow, made it: these are told with the op.
    """
    for tried in (job, dataclasses.replace(job, loss=None, optimizer=None)):
        for each in _candidates(tried, precision):
            if isinstance(each.fact, kinds):
                cause = f"; by {each.rule}: {placed(each.operation)}: {each.message}" if isinstance(each.fact, (Misindexed, Broken)) else ""
                return f"{cause}; cure: {each.advice}"
    return ""


def _candidates(job: Job, precision: Precision) -> list[Candidate]:
    """What the rules on ops find in a run up to an exception."""
    where, judge = ModuleTracker(job.model), watched_runs.RunJudge()
    shadow = Shadow(where, judge=judge)
    try:
        with interrupts.held(), where.followed(), shadow.watched():
            run(job, dataclasses.replace(low(precision), shadow=shadow))
    except Exception as error:
        shadow.observation.raised = type(error).__name__
    return judge.candidates(shadow.finish())


def _line_and_message(error: Exception) -> str:
    """The text for an exception: "models.py:63 mat1 and mat2 must have the same dtype, but got Float and BFloat16"."""
    first = next(filter(None, map(str.strip, str(error).splitlines())), "")
    named = first if first and type(error) in _PLAIN else f"{type(error).__name__}: {first}".removesuffix(": ")
    return f"{_line(error)} {named}".strip()


def _line(error: Exception) -> str:
    """The innermost line of the user's own code, or else of an installed package."""
    lines = {"installed": "", "user": ""}
    each = error.__traceback__
    while each:
        kind = KINDS[each.tb_frame.f_code.co_filename]
        if kind in lines:
            lines[kind] = f"{each.tb_frame.f_code.co_filename}:{each.tb_lineno}"
        each = each.tb_next
    return shortened(lines["user"] or lines["installed"])
