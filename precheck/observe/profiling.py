"""Python's profiling hook and torch.compile's step aside while a dispatch mode works on an op. The former also does while a boundary is recorded:
there are hundreds of calls in there, and none of them is the user's."""

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


class Unheard:
    """A block of which that hook is not told."""

    __slots__ = ("told",)

    def __enter__(self) -> None:
        self.told = _told[-1] if _told and sys.getprofile() is _told[-1] else None
        if self.told is not None:
            sys.setprofile(None)

    def __exit__(self, *raised: object) -> None:
        if self.told is not None and _told:
            sys.setprofile(_told[-1])


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode of which torch.compile compiles nothing, and nobody's profiling hook hears.

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
    """A mode's `__torch_dispatch__`, without either hook."""

    @functools.wraps(dispatch)
    def plain(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        hook = set_eval_frame(None)
        told = _told[-1] if _told and sys.getprofile() is _told[-1] else None
        if hook is None and told is None:
            return dispatch(self, func, types, args, kwargs)
        if told is not None:
            sys.setprofile(None)
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            if hook is not None:
                set_eval_frame(hook)
            if told is not None and _told:
                sys.setprofile(_told[-1])

    return plain  # type: ignore[return-value]
