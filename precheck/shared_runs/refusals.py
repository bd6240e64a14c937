"""`refused`: finds out whether a model raises an exception only under a low precision, at which line, and what to change there."""

from __future__ import annotations

import dataclasses
import dis
import re

import torch

from precheck import interrupts
from precheck.analysis.facts import Fact
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.unrepresentable.exceptions import REFUSALS, Counted, Decided, Misindexed, MixedFormats, Unstorable, about_an_index, last_reads
from precheck.analysis.unrepresentable.nonfinite import Broken
from precheck.analysis.unrepresentable.zeros import Missed
from precheck.judge import watched_runs
from precheck.observe.job import Job
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.places.source import KINDS, shortened
from precheck.precisions import Precision
from precheck.rules.rule import Candidate

_PLAIN = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)
"""Exceptions whose message is clear without the name of the class. torch raises these."""

_CAUSES = (Misindexed, Counted, Decided, Missed, Broken)
"""What may be behind the words of an exception that does not say so: of torch's on an index, and of Python code that cannot use a number."""

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
        told, raised = _line_and_message(error), type(error).__name__
        indexed = about_an_index(raised, str(error))
        guarded = not indexed and (raised in REFUSALS or _by_a_statement(error))
    else:
        return ""
    try:
        run(job, reference(torch.float32))
    except Exception:
        return ""
    if _LACKING.search(told):
        return f"{told}; cure: call .float() on what this line reads, or check on a device that has it (--precision-device)"
    return told + _cure(job, precision, _CAUSES if indexed or guarded else (MixedFormats, Unstorable), guarded=guarded)


def _cure(job: Job, precision: Precision, kinds: tuple[type[Fact], ...], *, guarded: bool) -> str:
    """What the rule says that explains the exception. "" if none does. The second run is for a pass that the search for a loss scale makes, without
    the shadow, before the first step.

    `kinds`: the facts that explain it. Those of _CAUSES are told with the op.
    `guarded`: Python code raised it, so Inf explains it only if that code has read Inf.
    """
    for tried in (job, dataclasses.replace(job, loss=None, optimizer=None)):
        observation, candidates = _candidates(tried, precision)
        read = not guarded or any(value.nonfinite for operation in last_reads(observation) for value in operation.inputs)
        for each in candidates:
            if isinstance(each.fact, kinds) and (read or not isinstance(each.fact, Broken)):
                cause = f"; by {each.rule}: {placed(each.operation)}: {each.message}" if isinstance(each.fact, _CAUSES) else ""
                lists = _unregistered(job.model) if isinstance(each.fact, MixedFormats) and each.fact.widened is None else ""
                first = f"keep the modules in {lists} in a torch.nn.ModuleList, without which they are not converted; or " if lists else ""
                return f"{cause}; cure: {first}{each.advice}"
    return ""


def _unregistered(model: torch.nn.Module) -> str:
    """The first list of modules with weights that torch has not registered: a conversion of the model does not find them. "" if there is none."""
    registered = set(model.modules())
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            held = value if isinstance(value, (list, tuple)) else ()
            if any(isinstance(each, torch.nn.Module) and each not in registered and any(True for _ in each.parameters()) for each in held):
                return f"{name}.{attribute}".lstrip(".")
    return ""


def _candidates(job: Job, precision: Precision) -> tuple[Observation, list[Candidate]]:
    """A run up to an exception, and what the rules on ops find in it."""
    where, judge = ModuleTracker(job.model), watched_runs.RunJudge()
    shadow = Shadow(where, judge=judge)
    try:
        with interrupts.held(), where.followed(), shadow.watched():
            run(job, dataclasses.replace(low(precision), shadow=shadow))
    except Exception as error:
        shadow.observation.raised, shadow.observation.complaint = type(error).__name__, str(error)
    observation = shadow.finish()
    return observation, judge.candidates(observation)


def _by_a_statement(error: Exception) -> bool:
    """Whether a `raise` or an `assert` in Python code raised it, such as a guard against Inf, and no op of torch's."""
    each = error.__traceback__
    while each is not None and each.tb_next:
        each = each.tb_next
    return each is not None and each.tb_frame.f_code.co_code[each.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _line_and_message(error: Exception) -> str:
    """The text for an exception: "models.py:63 mat1 and mat2 must have the same dtype, but got Float and BFloat16"."""
    first = next(filter(None, map(str.strip, str(error).splitlines())), "").rstrip(":")
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
