"""Runs what torch.compile compiles in eager mode: no dispatch mode and no hook of a module sees compiled code.

torch.cond compiles its branches, and finds the weights that they use so. Without that their gradients would be missing: here Python takes the branch.
Torch's compiler takes seconds to import, so it is told so only if it is there, or as soon as the code asks for it. Flexible attention does: it
compiles itself when it is called.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from precheck.torch_support.shared_changes import Shared

_stance: Any = None
_compile: Any = None  # torch.compile, while another function is in its place
_condition = torch.cond.__globals__["cond_op"]  # what torch.cond compiles


def _begin() -> None:
    global _stance, _compile
    torch.cond.__globals__["cond_op"] = _branch
    if "torch._dynamo" in sys.modules:
        _stance = torch.compiler.set_stance("force_eager")
        _stance.__enter__()
    else:
        _compile, torch.compile = torch.compile, _first


def _end(_: None) -> None:
    global _stance, _compile
    torch.cond.__globals__["cond_op"] = _condition
    if torch.compile is _first:
        torch.compile = _compile
    if _stance is not None:
        _stance.__exit__(None, None, None)
    _stance = _compile = None


_eager = Shared(_begin, _end)
uncompiled = _eager.held
"""A block in which compiled code runs eagerly. As long as any thread is inside, it does so in all threads."""


def _branch(condition: Any, yes: Any, no: Any, operands: Any = ()) -> Any:
    if torch.compiler.is_exporting():
        return _condition(condition, yes, no, operands)
    return (yes if condition else no)(*operands)


@functools.wraps(torch.compile)
def _first(*args: Any, **kwargs: Any) -> Any:
    """`torch.compile`, called for the first time: it imports the compiler, which is told before it compiles anything."""
    import torch._dynamo

    with _eager.lock:
        if torch.compile is _first:
            torch.compile = _compile
            _begin()
    return torch.compile(*args, **kwargs)
