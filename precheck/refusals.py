"""`refused`: finds out whether a model raises an exception only under a low precision, and at which line."""

from __future__ import annotations

import torch

from precheck.observe.job import Job
from precheck.observe.run import low, reference, run
from precheck.observe.shadow.places.source import Frames, shortened
from precheck.precisions import Precision

_PLAIN = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)
"""Exceptions whose message is clear without the name of the class. torch raises these."""


def refused(job: Job, precision: Precision) -> str:
    """Returns line and message of the exception that the job raises under a low precision. "" if it raises none, or one in float32 too.

    Makes two runs at most. The first one ends at the exception.
    """
    if not precision.is_low:
        return ""
    try:
        run(job, low(precision))
    except Exception as error:
        told = _line_and_message(error)
    else:
        return ""
    try:
        run(job, reference(torch.float32))
    except Exception:
        return ""
    return told


def _line_and_message(error: Exception) -> str:
    """The text for an exception: "models.py:63 mat1 and mat2 must have the same dtype, but got Float and BFloat16"."""
    first = next(filter(None, map(str.strip, str(error).splitlines())), "")
    named = first if first and type(error) in _PLAIN else f"{type(error).__name__}: {first}".removesuffix(": ")
    return f"{_line(error)} {named}".strip()


def _line(error: Exception) -> str:
    """The innermost line of the user's own code, or else of an installed package."""
    frames, lines = Frames(), {"installed": "", "user": ""}
    each = error.__traceback__
    while each:
        kind = frames.kind(each.tb_frame.f_code.co_filename)
        if kind in lines:
            lines[kind] = f"{each.tb_frame.f_code.co_filename}:{each.tb_lineno}"
        each = each.tb_next
    return shortened(lines["user"] or lines["installed"])
