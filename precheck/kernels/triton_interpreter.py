"""Handles Triton kernels on a CPU: they run in Triton's interpreter, and are judged only in formats that it computes correctly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch

from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.call_profiling import profiled
from precheck.kernels.trials import Trial

_INTERPRETER, _DRIVER = "triton.runtime.interpreter", "triton.runtime.driver"
NO_DEVICE = ("Triton compiles kernels for a GPU, and finds none here; set TRITON_INTERPRET=1 before triton is imported, and they run on a CPU, "
             "or pass tensors on a device")  # fmt: skip
RAW_BITS = ("the candidate launches a kernel of Triton's on {formats}, and Triton's interpreter computes on the raw bits of these; "
            "judge it in float32 here, or on a device")  # fmt: skip

STOPPED = ("Triton's interpreter stops in a kernel of the candidate's on the example ({error}), which may be a limit of the interpreter and no fault "
           "of the kernel; judge it on a device")  # fmt: skip


def unjudged(bench: Bench) -> str:
    """Why a candidate cannot be judged on this machine. "" if it launches no Triton kernel, or one that runs as on a device."""
    if "triton" not in sys.modules:
        return ""
    seen: set[torch.dtype] = set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__") == _INTERPRETER and frame.f_code.co_name == "__call__":
            seen.update(each.dtype for each in _tensors(dict(frame.f_locals)))  # not a dict from Python 3.13 on

    trial = Trial(given=True, fill="")
    made = bench.make(trial)
    with profiled(watch):
        outcome = running.run(bench.candidate, bench.example, made.values, made.numbers, bench.wishes_of(trial))
    if outcome.error is not None and _DRIVER in _modules(outcome.error.__traceback__):
        return NO_DEVICE
    if outcome.error is not None and type(outcome.error).__name__ == "InterpreterError":
        return STOPPED.format(error=str(outcome.error).splitlines()[0][:120] if str(outcome.error) else "no text")
    if torch.bfloat16 in seen and not _proven():
        return RAW_BITS.format(formats="bfloat16")
    return ""


def _tensors(value: Any, deep: int = 3) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a launch. A wrapper holds its tensor as `base`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)) and deep:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, deep - 1)
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield value.base


def _modules(trace: TracebackType | None) -> set[str]:
    found = set()
    while trace is not None:
        found.add(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return found


def _proven() -> bool:
    """Whether the installed interpreter adds, compares, multiplies and rounds bfloat16 as torch does. Tested once."""
    if not _answers:
        from precheck.kernels import triton_probe

        _answers.append(triton_probe.right())
    return _answers[0]


_answers: list[bool] = []

