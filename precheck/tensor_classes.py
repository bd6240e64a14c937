"""Lets a program make tensors of its own classes while one of precheck's dispatch modes is on.

For `Labelled(tensor)` torch runs an op and gives its result the class. Under a dispatch mode the result is a Python object of class
`torch.Tensor` already, and torch raises an exception. `as_subclass` and `torch.Tensor._make_subclass` take the modes off for this op, so that
neither fails. `Mode` does the same for `torch.Tensor.__new__`. No mode needs to see the op: it makes a view, or memory without numbers in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precheck.shared_changes import Shared
from precheck.torch_internals import TorchDispatchMode, modes_on, without_modes

_NEW = "__new__"
_Before = tuple[Any, Any]  # what torch.Tensor has of its own under this name, and what stands there now


class Mode(TorchDispatchMode):
    """A dispatch mode under which `Labelled(tensor)` works as without it."""

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[no-untyped-call]
        _MADE_APART.begun()
        return entered

    def __exit__(self, *raised: Any) -> None:
        _MADE_APART.ended()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]


def _apart(new: Callable[..., Any]) -> Callable[..., Any]:
    def made(kind: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        if kind is torch.Tensor or not modes_on():
            return new(kind, *args, **kwargs)
        with without_modes():
            return new(kind, *args, **kwargs)

    return made


def _replaced() -> _Before:
    before, now = vars(torch.Tensor).get(_NEW), staticmethod(_apart(torch.Tensor.__new__))
    setattr(torch.Tensor, _NEW, now)
    return before, now


def _put_back(change: _Before) -> None:
    before, now = change
    if vars(torch.Tensor).get(_NEW) is not now:
        return  # other code has wrapped it, and keeps it inside
    if before is None:
        delattr(torch.Tensor, _NEW)
    else:
        setattr(torch.Tensor, _NEW, before)


_MADE_APART = Shared(_replaced, _put_back)
