"""Fills what a kernel allocates, so that reading it before writing shows, and puts guards behind it, so that writing beyond its end does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from precheck import ops
from precheck.kernels.memory import GUARD, poison, same
from precheck.observe.profiling import UncompiledMode
from precheck.torch_internals import once_an_op, schema

_EMPTY = ops.EMPTY - {"_efficientzerotensor"}
_MADE = ops.FACTORIES - {"_efficientzerotensor"}
_MOST = 2**22
"""Elements of all guarded tensors of one call. They are kept until it ends, so that others have no guard."""


class Allocated(UncompiledMode):
    """In the block, empty tensors are filled with "NaN" (or the largest integer, or True), or with "zero"; with "" they are left as they are. Tensors
    that a factory makes have a guard behind them in their memory, which holds NaN.

    A tensor keeps its sizes, strides and first address. Its memory alone is longer. A tensor that is resized may grow into the guard, so it has none
    from then on.
    """

    def __init__(self, fill: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill, self.left = fill, _MOST
        self.kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}  # by address: the memory, where its guard begins, the tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kind = _allocating(func)
        if kind is None:
            return func(*args, **(kwargs or {}))
        name, growing = kind.name, resized(kind, args, kwargs or {})
        sizes = [each.shape for each in growing]
        made = func(*args, **(kwargs or {}))
        for each, size in zip(growing, sizes, strict=True):
            if each.shape != size:
                self.kept.pop(each.untyped_storage().data_ptr(), None)
        if name in _MADE and type(made) is torch.Tensor and not made.is_meta:
            made = self._guarded(made, name in _EMPTY)
            if name in _EMPTY and self.fill:
                made.zero_() if self.fill == "zero" else made.fill_(poison(made.dtype))
        return made

    def _guarded(self, made: torch.Tensor, empty: bool) -> torch.Tensor:
        count = made.untyped_storage().nbytes() // max(made.element_size(), 1)
        if not made.numel() or made.layout is not torch.strided or made.is_quantized or made.storage_offset() or count > self.left:
            return made
        self.left -= count
        storage = torch.empty(count + GUARD, dtype=made.dtype, device=made.device)
        storage[count:] = poison(made.dtype)
        tensor = torch.as_strided(storage, made.shape, made.stride())
        if not empty:
            tensor.copy_(made)
        self.kept[storage.data_ptr()] = storage, count, tensor
        return tensor

    def beyond(self) -> str:
        """The tensor behind whose end something was written, in words, or ""."""
        for storage, count, tensor in self.kept.values():
            whole = tensor.untyped_storage().nbytes() == storage.untyped_storage().nbytes() and tensor.numel() <= count
            guard = storage[count:]
            if whole and guard.numel() == GUARD and not same(guard, torch.full_like(guard, poison(guard.dtype))):
                return f"a tensor of {tuple(tensor.shape)}"
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Allocating:
    """An op that may make or resize memory: its name, its arguments that take a result, and whether it resizes the first one."""

    name: str
    out: tuple[str, ...]
    first: bool


@once_an_op
def _allocating(func: Any) -> Allocating | None:
    """What an op may do to memory. None, as for most ops, if it neither makes an empty or constant tensor nor resizes one."""
    name = func.overloadpacket.__name__
    out, first = tuple(each.name for each in schema(func).arguments if each.is_out), name.rstrip("_") in ops.RESIZING
    return Allocating(name, out, first) if out or first or name in _MADE else None


def resized(kind: Allocating, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Tensors that an op may resize: the first one of `resize_` and `set_`, and those that take a result."""
    given = [kwargs.get(name) for name in kind.out]
    return [each for each in (*given, *(args[:1] if kind.first else ())) if isinstance(each, torch.Tensor)]
