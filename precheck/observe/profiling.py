"""Pauses what tells of calls of functions, and torch.compile's hook, while a dispatch mode handles an op. The former is also paused while
a boundary is recorded. There are hundreds of calls inside, none of them the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from precheck.torch_internals import OpOverload, modes_on, set_eval_frame, tracer, written_out
from precheck.torch_support.tensor_classes import Mode

__tracebackhide__ = True  # pytest leaves out this module's frames, which lie between the user's line and torch's error
Dispatch = TypeVar("Dispatch", bound=Callable[..., Any])
class Listener(Protocol):
    """What tells of calls of functions, and can be paused."""

    def pause(self) -> bool:
        """Whether it told before and tells no more."""

    def resume(self) -> None:
        """Called after a pause."""


_told: list[Listener] = []  # the innermost last


def begun(listener: Listener) -> None:
    """Registers what is paused while a mode handles an op."""
    _told.append(listener)


def ended() -> None:
    _told.pop()


def _paused() -> Listener | None:
    return _told[-1] if _told and _told[-1].pause() else None


def _resumed(listener: Listener | None) -> None:
    if listener is not None and _told and _told[-1] is listener:
        listener.resume()


class Unheard:
    """A block in which no calls of functions are told."""

    __slots__ = ("paused",)

    def __enter__(self) -> None:
        self.paused = _paused()

    def __exit__(self, *raised: object) -> None:
        _resumed(self.paused)


class UncompiledMode(Mode):
    """A dispatch mode that torch.compile does not compile, and whose own calls of functions are not told.
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
        paused = _paused()
        if hook is None and paused is None:
            return dispatch(self, func, types, args, kwargs)
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            if hook is not None:
                set_eval_frame(hook)
            _resumed(paused)

    return plain  # type: ignore[return-value]
