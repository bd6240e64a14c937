"""Emulates tf32 and fp8 on a CPU: rounds the inputs of matrix products to the format, inside the block `gemm_inputs`.

tf32 hardware rounds the operands of a product to 11 bits and accumulates in float32 (NVIDIA A100 whitepaper). fp8-e4m3-mixed quantises the operands
of the 2-D products with one power-of-two scale for each tensor. It uses e4m3 forward and backward, as DeepSeek-V3 does (arXiv 2412.19437, section
3.3.2). Products of two activations (bmm) stay in the compute format under fp8. Recipes with scales of their own are run by `recipes.products`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck import ops
from precheck.formats import TF32, Format
from precheck.recipes import Recipe
from precheck.recipes.delays import Delayed
from precheck.recipes.products import RecipeProducts
from precheck.torch_support import float32
from precheck.torch_support.dense_parts import composed, with_values
from precheck.torch_support.tensor_classes import Mode

_open: list[Format | Recipe] = []
_carried_out: list[RecipeProducts] = []


def _products(fmt: Format | Recipe) -> dict[str, tuple[int, ...]]:
    """The matrix products whose operands are rounded to a format, and the positions of these operands."""
    return ops.TILED_PRODUCTS if fmt is TF32 else ops.DENSE_PRODUCTS


def active() -> bool:
    """Whether a block of `gemm_inputs` is open."""
    return bool(_open)


def roundoff(packet: str) -> float:
    """The unit roundoff to which open blocks round the operands of the op of that name ("addmm"). 0 where no open block rounds them."""
    return max((fmt.unit_roundoff for fmt in _open if packet in _products(fmt)), default=0.0)


def quantises(packet: str) -> bool:
    """Whether an open recipe runs the op of that name. Its error depends on the numbers, not only on the format."""
    return any(isinstance(fmt, Recipe) and packet in _products(fmt) for fmt in _open)


def delays() -> list[Delayed]:
    """What delayed scales cost the operands of the product that has just run. A second call returns nothing."""
    found = [told for mode in _carried_out for told in mode.histories.told]
    for mode in _carried_out:
        mode.histories.told.clear()
    return found


def rounded(tensor: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Returns `tensor` with every finite element rounded to nearest-even in `fmt`. dtype and shape stay the same."""
    if tensor.layout is not torch.strided or composed(tensor):
        return with_values(tensor, lambda values: rounded(values, fmt))
    if fmt is TF32:
        return _rounded_to_tf32(tensor)
    return _rounded_scaled(tensor, fmt)


def _rounded_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    dropped = 13  # float32 keeps 23 bits of mantissa, tf32 10
    even = (bits >> dropped) & 1
    kept = (bits + ((1 << (dropped - 1)) - 1) + even) & ~((1 << dropped) - 1)
    return torch.where(tensor.isfinite(), kept.view(torch.float32).view_as(tensor), tensor)


def _rounded_scaled(tensor: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Scales by the power of two that brings the largest magnitude just below the format's maximum, casts, and scales back."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    wide = tensor.float()
    finite = wide.isfinite()  # torch's cast to e4m3fn turns Inf into 448, so it must be kept from the cast
    amax = torch.where(finite, wide.abs(), torch.zeros_like(wide)).amax()
    exponent = torch.floor(torch.log2(fmt.max / amax.clamp_min(torch.finfo(torch.float32).tiny))).clamp(-126, 126)
    scale = torch.exp2(exponent)
    low = (wide * scale).clamp(-fmt.max, fmt.max).to(fmt.dtype).float() / scale
    return torch.where(finite, low, wide).to(tensor.dtype)


class GemmInputs(Mode):
    """Applies `change` to the operands of matrix products. `dense_only`: of 2-D products only. `low_only`: not of float32 products."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], *, dense_only: bool, low_only: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.change, self.low_only = change, low_only
        operands = ops.DENSE_PRODUCTS if dense_only else ops.TILED_PRODUCTS
        self.operands = {getattr(torch.ops.aten, name): places for name, places in operands.items()}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        places = self.operands.get(func.overloadpacket)
        if places and not (self.low_only and args[places[0]].dtype is torch.float32):
            args = tuple(
                self.change(arg) if place in places and isinstance(arg, torch.Tensor) else arg for place, arg in enumerate(args)
            )
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def gemm_inputs(fmt: Format | Recipe, device: str = "cpu", *, low_only: bool = False) -> Iterator[None]:
    """Inside the block the operands of matrix products are rounded to `fmt`, or quantised by a recipe. On CUDA, tf32 is the hardware's own.

    `low_only`: float32 products stay as they are. Under autocast such products are in float32 on purpose.
    """
    _open.append(fmt)
    try:
        with float32.products(tf32=True) if fmt is TF32 and device.startswith("cuda") else _emulated(fmt, low_only):
            yield
    finally:
        _open.remove(fmt)


@contextlib.contextmanager
def _emulated(fmt: Format | Recipe, low_only: bool) -> Iterator[None]:
    if isinstance(fmt, Recipe):
        mode = RecipeProducts(fmt, low_only=low_only)
        _carried_out.append(mode)
        try:
            with mode:
                yield
        finally:
            _carried_out.remove(mode)
        return
    with GemmInputs(lambda tensor: rounded(tensor, fmt), dense_only=fmt is not TF32, low_only=low_only):
        yield
