"""Shortens the traceback of an exception that a model raised to the user's own frames."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

_PRECHECK = str(Path(__file__).parents[1]) + os.sep
_STANDARD = str(Path(os.__file__).parent) + os.sep


def users_frames(error: BaseException) -> TracebackType | None:
    """Returns a traceback with the frames of the user's code or of model libraries.

    A frame is not the user's if it belongs to precheck, torch or the standard library. Where none is the user's, the traceback is empty if a
    layer or a loss of torch raised the error, or if the model or the loss takes other arguments: pytest then shows the user's call and the
    message. Else it has all frames.
    """
    frames = []
    each = error.__traceback__
    while each:
        frames.append(each)
        each = each.tb_next
    torch = sys.modules.get("torch")
    foreign = (_PRECHECK, *([str(Path(torch.__file__).parent) + os.sep] if torch and torch.__file__ else []))
    kept = [frame for frame in frames if _is_users(frame.tb_frame.f_code.co_filename, foreign)]
    if not kept:
        refused = _called_by_precheck(frames[-1])  # by Python itself, since the arguments do not fit
        outside = refused or not frames[-1].tb_frame.f_code.co_filename.startswith(_PRECHECK)
        return None if outside and any(map(_called_by_precheck, frames)) else error.__traceback__
    chain = None
    for frame in reversed(kept):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain


def _called_by_precheck(frame: TracebackType) -> bool:
    """Whether this frame calls what the user gave: a model, or a loss."""
    from precheck.observe.containers import call, scored

    return frame.tb_frame.f_code in (call.__code__, scored.__code__)


def _is_users(file: str, foreign: tuple[str, ...]) -> bool:
    standard = file.startswith(_STANDARD) and "site-packages" not in file and "dist-packages" not in file
    return not (standard or file.startswith((*foreign, "<")))
