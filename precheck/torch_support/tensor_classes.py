"""Lets a program make tensors of its own classes while one of precheck's dispatch modes is on.

For `Labelled(tensor)` torch runs an op and gives its result the class. Under a dispatch mode the result is a Python object of class
`torch.Tensor` already, and torch raises an exception. `as_subclass` and `torch.Tensor._make_subclass` take the modes off for this op, so that
neither fails. `Mode` does the same for the `__new__` that classes inherit from `torch.Tensor`. No mode needs to see the op: it makes a view, or
memory without numbers in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precheck.torch_internals import TorchDispatchMode, modes_on, without_modes
from precheck.torch_support.shared_changes import Shared


class Mode(TorchDispatchMode):
    """A dispatch mode under which `Labelled(tensor)` works as without it."""

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[no-untyped-call]
        _INHERITED.begun()
        return entered

    def __exit__(self, *raised: Any) -> None:
        _INHERITED.ended()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]


class _New:
    """Stands for `torch.Tensor.__new__`. Who asks `torch.Tensor` itself gets torch's own, since torch.compile keeps that in a table."""

    def __init__(self, new: Callable[..., Any]) -> None:
        self.new = new

    def __get__(self, tensor: Any, kind: type) -> Callable[..., Any]:
        return self.new if kind is torch.Tensor else self.apart

    def apart(self, kind: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        if not modes_on():
            return self.new(kind, *args, **kwargs)
        with without_modes():
            return self.new(kind, *args, **kwargs)


def _replaced() -> Any:
    before = vars(torch.Tensor).get("__new__")
    torch.Tensor.__new__ = _New(torch.Tensor.__new__)  # type: ignore[assignment, method-assign]
    return before


def _put_back(before: Any) -> None:
    if not isinstance(vars(torch.Tensor).get("__new__"), _New):
        return  # other code has wrapped it, and keeps it inside
    if before is None:
        del torch.Tensor.__new__
    else:
        torch.Tensor.__new__ = before  # type: ignore[method-assign]


_INHERITED = Shared(_replaced, _put_back)
