"""Python's profiling hook and torch.compile's step aside while a dispatch mode works on an op: there are hundreds of calls in there, and none of
them the user's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from precheck.torch_internals import set_eval_frame

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


def uncompiled(dispatch: Dispatch) -> Dispatch:
    """A mode's `__torch_dispatch__`, of which torch.compile compiles nothing."""

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
