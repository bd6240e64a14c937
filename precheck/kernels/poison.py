"""What a kernel allocates and does not write, made to show."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from precheck import ops
from precheck.observe.profiling import UncompiledMode

_EMPTY = ops.EMPTY - {"_efficientzerotensor"}


class _Filled(UncompiledMode):
    """Empty tensors hold NaN in the block, or the largest whole number; or zeros."""

    def __init__(self, zero: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.zero = zero

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and isinstance(made, torch.Tensor) and not made.is_meta:
            made.zero_() if self.zero else fill(made)
        return made


def fill(tensor: torch.Tensor) -> None:
    """With what shows wherever it goes."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(math.nan)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


@contextlib.contextmanager
def poisoned(what: str) -> Iterator[None]:
    """Tensors that are allocated empty in the block hold "NaN" or "zero" first; "" leaves them as they are."""
    with _Filled(what == "zero") if what else contextlib.nullcontext():
        yield
