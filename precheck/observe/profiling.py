"""Turns off precheck's profile function and torch.compile's hook while a dispatch mode handles an op. The profile function is also off while
a boundary is recorded. There are hundreds of calls inside, none of them the user's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from precheck.tensor_classes import Mode
from precheck.torch_internals import OpOverload, modes_on, set_eval_frame, tracer, written_out

__tracebackhide__ = True  # pytest leaves out this module's frames, which lie between the user's line and torch's error
Dispatch = TypeVar("Dispatch", bound=Callable[..., Any])
_told: list[Any] = []  # profile functions that may be turned off, the innermost last


def begun(told: Any) -> None:
    """Registers a profile function that only precheck uses. None: the user's must stay on."""
    _told.append(told)


def ended() -> None:
    _told.pop()


class Unheard:
    """A block without that profile function."""

    __slots__ = ("told",)

    def __enter__(self) -> None:
        self.told = _told[-1] if _told and sys.getprofile() is _told[-1] else None
        if self.told is not None:
            sys.setprofile(None)

    def __exit__(self, *raised: object) -> None:
        if self.told is not None and _told:
            sys.setprofile(_told[-1])


class UncompiledMode(Mode):
    """A dispatch mode that torch.compile does not compile, and that precheck's profile function does not see.
    Torch's own way to do this imports its compiler, which takes seconds, and costs several microseconds for each op.
    It sees the ops that flexible attention is made of. Of torch.cond it sees the branch that is taken. Other higher-order operators run as a whole.
    """

    supports_higher_order_operators = True

    def unseen_within(self, func: Any) -> None:
        """Told of an operator of higher order whose ops the mode does not see."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            cls.__torch_dispatch__ = _uncompiled(cls.__torch_dispatch__)  # type: ignore[method-assign]


def _of_higher_order(mode: UncompiledMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator of higher order: as the ops it is made of, with the mode on again, or else as a whole."""
    parts = written_out(func)
    if parts is None:
        mode.unseen_within(func)
        return func(*args, **kwargs)
    Mode.__enter__(mode)
    try:
        return parts(*args, **kwargs)
    finally:
        Mode.__exit__(mode, None, None, None)


def _uncompiled(dispatch: Dispatch) -> Dispatch:
    """Wraps a mode's `__torch_dispatch__` to run without the two hooks. It sees other operators as `UncompiledMode` says, and no tracing."""

    @functools.wraps(dispatch)
    def plain(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if modes_on() and tracer() is not None:  # some of its example numbers are uninitialised memory (`torch.func.linearize`)
            return func(*args, **(kwargs or {}))
        hook = set_eval_frame(None)
        if not isinstance(func, OpOverload):
            try:
                return _of_higher_order(self, func, args, kwargs or {})
            finally:
                set_eval_frame(hook)
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
