"""Watches the Python calls that a candidate makes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch


@contextlib.contextmanager
def profiled(watch: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Calls `watch` for every call in the block, as a profiler."""
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)


def bodies(function: Any) -> dict[CodeType, FunctionType]:
    """The Python functions that run when this is called, by their code. All autograd functions share the code of `Function.apply`, so their `forward`
    is used."""
    owner = getattr(function, "__self__", None)
    inner = getattr(function, "__func__", function)
    found = [owner.forward] if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else [inner]
    if isinstance(function, torch.nn.Module) and not type(function).__module__.startswith("torch."):
        found.append(type(function).forward)
    return {each.__code__: each for each in found if isinstance(each, FunctionType)}


def runs(frame: Any, wanted: dict[CodeType, FunctionType]) -> bool:
    """Whether a call runs one of these functions.

    What a decorator or another function makes has the same code each time. Two of these are one function only if they hold the same values of the
    function that made them.
    """
    function = wanted.get(frame.f_code)
    if function is None:
        return False
    names, cells = frame.f_code.co_freevars, function.__closure__ or ()
    return all(frame.f_locals.get(name, cell) is _held(cell) for name, cell in zip(names, cells, strict=True))


def _held(cell: Any) -> Any:
    """What a cell holds, or the cell itself, if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
