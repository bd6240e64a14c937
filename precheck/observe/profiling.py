"""Python's profiling hook and torch.compile's step aside while a dispatch mode works on an op: there are hundreds of calls in there, and none of
them the user's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from precheck.torch_internals import TorchDispatchMode, set_eval_frame

Dispatch = TypeVar("Dispatch", bound=Callable[..., Any])
_told: list[Any] = []  # the hook that may step aside, the innermost last


def begun(told: Any) -> None:
    """That hook tells nobody but us."""
    _told.append(told)


def ended() -> None:
    _told.pop()


def unprofiled(dispatch: Dispatch) -> Dispatch:
    """A mode's `__torch_dispatch__`, without that hook."""

    @functools.wraps(dispatch)
    def alone(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not _told or sys.getprofile() is not _told[-1]:
            return dispatch(self, func, types, args, kwargs)
        sys.setprofile(None)
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            if _told:
                sys.setprofile(_told[-1])

    return alone  # type: ignore[return-value]


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode of which torch.compile compiles nothing.

    torch's own way to this imports its compiler, which takes seconds, and costs several microseconds an op.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            cls.__torch_dispatch__ = _uncompiled(cls.__torch_dispatch__)  # type: ignore[method-assign]


def _uncompiled(dispatch: Dispatch) -> Dispatch:
    @functools.wraps(dispatch)
    def plain(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        hook = set_eval_frame(None)
        if hook is None:
            return dispatch(self, func, types, args, kwargs)
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            set_eval_frame(hook)

    return plain  # type: ignore[return-value]
