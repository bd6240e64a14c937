"""Autocast blocks that are off. Those for CUDA hold for the CPU too inside `followed`. Inside `noticed` it is known that blocks are open.

Published code leaves autocast by `torch.autocast("cuda", enabled=False)`, in a `with` or as a decorator. On a CPU that does nothing. But a CPU stands
in for the GPU that will train, where such code computes in float32. So CPU autocast is off inside such a block, too.

Without a GPU torch turns every block for CUDA off, also one that was asked to be on. What was asked is known of blocks that are made inside
`followed` or `noticed`; of a decorator, which was made before, its text tells.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from precheck.torch_support.shared_changes import Shared

_DEPTH = 4  # frames between a decorated function's call and a block's beginning


class _Blocks(threading.local):
    """The open blocks of a thread. Of each: whether it is off for CUDA; whether CPU autocast was on before, if a block for CUDA has turned that off;
    and whether it has turned autocast off that was on (True), has turned it on (False), or neither (None)."""

    def __init__(self) -> None:
        self.open: list[tuple[bool, bool | None, bool | None]] = []


_blocks = _Blocks()
_off: weakref.WeakSet[Any] = weakref.WeakSet()

@contextlib.contextmanager
def followed() -> Iterator[None]:
    """Inside, CPU autocast is off where the program turns CUDA's off. Blocks may be nested."""
    with _patched.held(), _following.held():
        yield


def noticed() -> contextlib.AbstractContextManager[None]:
    """Inside, `inside` knows. Nothing else changes."""
    return _patched.held()


def inside() -> bool:
    """Whether this thread is in a block that turns CUDA's autocast off."""
    return bool(_blocks.open) and any(off for off, _, _ in _blocks.open)


def left() -> bool:
    """Whether this thread is in a block that has turned off an autocast that was on, and in none inside it that turns autocast on again. Its author
    asks for float32 here. A block that is off where autocast is not on, as with `enabled=use_amp`, asks for nothing."""
    return bool(_blocks.open) and next((turned for _, _, turned in reversed(_blocks.open) if turned is not None), False)


def _install() -> tuple[Any, ...]:
    import torch
    from torch.amp.autocast_mode import autocast

    methods: tuple[Any, ...] = autocast.__init__, autocast.__enter__, autocast.__exit__
    make, enter, leave = methods

    @functools.wraps(make)
    def made(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        make(self, device_type, dtype, enabled, cache_enabled)
        if device_type == "cuda" and not enabled:
            _off.add(self)

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        was_on = torch.is_autocast_enabled(self.device)
        result = enter(self)
        off = self.device == "cuda" and _is_off(self)
        before = torch.is_autocast_enabled("cpu") if off and _following.open else None
        turned = False if self._enabled else True if was_on or before else None
        _blocks.open.append((off, before, turned))
        if before is not None:
            torch.set_autocast_enabled("cpu", False)
        return result

    @functools.wraps(leave)
    def closed(self: Any, *raised: Any) -> Any:
        before = _blocks.open.pop()[1] if _blocks.open else None
        if before is not None:
            torch.set_autocast_enabled("cpu", before)
        return leave(self, *raised)

    autocast.__init__, autocast.__enter__, autocast.__exit__ = made, entered, closed  # type: ignore[method-assign]
    return methods


def _remove(methods: tuple[Any, ...]) -> None:
    from torch.amp.autocast_mode import autocast

    autocast.__init__, autocast.__enter__, autocast.__exit__ = methods  # type: ignore[method-assign]
    _blocks.open.clear()  # of a block whose beginning was interrupted


_patched = Shared(_install, _remove)
_following = Shared(lambda: None, lambda _: None)  # whether any block of `followed` is open


def _is_off(block: Any) -> bool:
    """Whether the program has asked for a block that is off."""
    import torch

    if block._enabled:
        return False
    return block in _off or torch.cuda.is_available() or _decorates()


def _decorates() -> bool:
    """Whether a decorator begins the block, and its text says that it is off."""
    frame: Any = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == "decorate_autocast":
            return _switched_off(frame.f_locals.get("func"))
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=1024)
def _switched_off(function: Any) -> bool:
    """Whether a decorator in a function's text has `enabled=False`, or False as its first argument."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndexError):
        return False
    calls = [each for each in getattr(tree.body[0], "decorator_list", ()) if isinstance(each, ast.Call)]
    values = [value for call in calls for value in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "enabled"))]
    return any(isinstance(value, ast.Constant) and value.value is False for value in values)
