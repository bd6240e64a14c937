"""Fills the memory that a kernel allocates, so that reading it before writing shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from precheck import ops
from precheck.kernels.memory import poison
from precheck.observe.profiling import UncompiledMode

_EMPTY = ops.EMPTY - {"_efficientzerotensor"}


class _Filled(UncompiledMode):
    """In the block, empty tensors are filled with NaN (or the largest integer, or True), or with zeros."""

    def __init__(self, zero: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.zero = zero

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and isinstance(made, torch.Tensor) and not made.is_meta:
            made.zero_() if self.zero else made.fill_(poison(made.dtype))
        return made


@contextlib.contextmanager
def poisoned(what: str) -> Iterator[None]:
    """Fills tensors that are allocated empty in the block with "NaN" or "zero". With "" they are unchanged."""
    with _Filled(what == "zero") if what else contextlib.nullcontext():
        yield
