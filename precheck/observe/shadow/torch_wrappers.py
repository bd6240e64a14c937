"""Replaces functions and tensor methods of torch by wrappers while a block is watched."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from precheck.torch_internals import script_builtin

_lock = threading.Lock()
_watching: list[Any] = []  # the modes that watch now


class Wrapped:
    """A wrapper of a function that compares equal to it, for tables that have the function as a key."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.__wrapped__ = original
        self.__name__, self.__qualname__, self.__doc__ = original.__name__, original.__qualname__, original.__doc__
        self.__module__ = "torch"

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else types.MethodType(self, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self.__wrapped__ == other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> str:
        return self.__name__


Wrappers = Mapping[str, Callable[[Callable[..., Any]], Wrapped]]
"""By the name of each function, what makes its wrapper."""


def watching(mode: Any) -> bool:
    return mode in _watching


@contextlib.contextmanager
def installed(mode: Any, functions: Wrappers, methods: Wrappers, at_last: Callable[[], None]) -> Iterator[None]:
    """Inside, functions of `torch` and methods of `torch.Tensor` are wrapped. They stay wrapped, in all threads, until the last block ends, which
    calls `at_last`."""
    with _lock:
        _watching.append(mode)
        if len(_watching) == 1:
            for name, wrapper in functions.items():
                function = wrapper(getattr(torch, name))
                setattr(torch, name, function)
                script_builtin(function, function.__wrapped__)
            for name, wrapper in methods.items():
                setattr(torch.Tensor, name, wrapper(getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        with _lock:
            _watching.remove(mode)
            if not _watching:
                at_last()
                _restored(functions, methods)


def _restored(functions: Wrappers, methods: Wrappers) -> None:
    for name in functions:
        function = getattr(torch, name)
        if isinstance(function, Wrapped):  # else other code has wrapped it, and the wrapper stays inside that
            setattr(torch, name, function.__wrapped__)
            script_builtin(function, None)
    for name in methods:  # inherited from torch's own base class
        if isinstance(vars(torch.Tensor).get(name), Wrapped):
            delattr(torch.Tensor, name)
