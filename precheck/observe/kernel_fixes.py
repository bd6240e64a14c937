"""Replaces CPU kernels that have errors of their own. A CPU run stands for a run on a GPU, which does not have these errors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from precheck.observe.recording.module_hooks import LOW
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.places.source import Frames
from precheck.torch_internals import DispatchKey, DispatchKeySet, multiplies_float16, schema, without_keys
from precheck.torch_support.shared_changes import overrides

aten = torch.ops.aten

NARROW_ACCUMULATION = {aten.native_layer_norm_backward, aten.embedding_dense_backward}
"""CPU kernels that sum rows in the low format, while CUDA's accumulate in float32. Their error grows with the root of the number of rows (measured
1.6 to 28 u for layer norm's weight, 88 % for embeddings)."""

WINDOWS = {aten.convolution, aten.mkldnn_convolution}
"""oneDNN's bfloat16 convolution of a channels-last input is wrong by 100 % if the window covers all of the input, so that the output is one pixel
(torch 2.13, any CPU with AMX). A contiguous copy of the same input gives the right result."""

VOLUMES = {aten.convolution_backward}
"""oneDNN's gradient of the weight of a bfloat16 convolution over three dimensions has NaN for finite inputs of some shapes (torch 2.13: windows of
3 x 1 x 1 over 2 x 4 x 4). So gradients over three dimensions are computed in float32 and rounded once."""

CONVOLUTIONS = {aten.convolution, aten.convolution_backward}
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm}
"""In float16 these are computed in float32 and rounded once, unless the CPU has arithmetic in float16. Without it torch's kernels do the same, to
the order of sums, and take up to forty times as long (torch 2.13: 512 x 256 by 256 x 256 in 21 ms, and in 0.75 ms by way of float32)."""

DROPPING = {aten.bernoulli_, aten.div_, aten.mul, aten.mul_}
"""The ops of dropout on a CPU. The mask holds 1/(1 - p) in the low format: at p = 0.1 in bfloat16 all that is kept is 0.16 % too small, and no mean
over tokens makes this error smaller. CUDA's kernel multiplies by that factor in float32."""

_AT_ONCE = 1 << 19  # elements: 2 MB of float32, which fit in the cache
OF_ANY = NARROW_ACCUMULATION | WINDOWS | VOLUMES
SUBSTITUTED = OF_ANY | CONVOLUTIONS | PRODUCTS


def substitute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs an op of SUBSTITUTED, by the substitute for low formats on a CPU."""
    if args[0].dtype not in LOW or args[0].device.type != "cpu":
        return func(*args, **kwargs)
    packet = func.overloadpacket
    if packet in CONVOLUTIONS | PRODUCTS and func is packet.default and _float16_alone(args) and not multiplies_float16():
        return _by_way_of_float32(func, args, kwargs)
    if packet in PRODUCTS:
        return func(*args, **kwargs)
    if packet in WINDOWS:
        return func(args[0].contiguous(), *args[1:], **kwargs)
    if packet in VOLUMES:
        return _by_way_of_float32(func, args, kwargs) if args[0].dim() == 5 else func(*args, **kwargs)
    if packet is aten.native_layer_norm_backward:
        return _layer_norm_by_rows(func, *args)
    if args[2] > 2 * args[1].numel():
        return _rows_of_embedding(func, *args)
    return func(args[0].float(), *args[1:]).to(args[0].dtype)


class Dropout:
    """Runs the ops of DROPPING. A product with a mask of torch's dropout is computed in float32, and rounded once.

    It is dropout if one call draws the mask and divides it. Code that does this in two calls, such as a stochastic depth of its own, rounds the
    factor on a GPU too.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.drawn: Storages[int] = Storages()  # masks of zeros and ones, by the instruction that drew them
        self.masks: Storages[float] = Storages()  # masks that have been divided, and the share that they keep

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        packet, first = func.overloadpacket, args[0]
        if packet is aten.mul or packet is aten.mul_:
            mask = args[1] if self.masks else None
            kept = self.masks.get(mask) if isinstance(mask, torch.Tensor) and mask.dtype in LOW else None
            if kept is None or first.dtype is not mask.dtype:  # type: ignore[union-attr]
                return func(*args, **kwargs)
            product = (first.float() * (mask != 0) / kept).to(first.dtype)
            return product if packet is aten.mul else first.copy_(product)
        result = func(*args, **kwargs)
        if first.dtype in LOW and first.device.type == "cpu":
            if func is aten.bernoulli_.float:  # a mode is not told the default, one half
                self.drawn.put(first, self.frames.instruction(3))
            elif self.drawn and packet is aten.div_ and isinstance(args[1], float) and self.drawn.get(first) == self.frames.instruction(3):
                self.masks.put(first, args[1])
        return result


@contextlib.contextmanager
def substituted(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Inside, each such op of the process runs its substitute, also in backward passes. May be nested.
    The substitutes are registered under a dispatch key below autograd's, where these ops have no kernel. A dispatch mode would cost time for
    every op.

    Args:
        dtype: The format in which the run computes.
    """
    products = _of_float16.held() if dtype is torch.float16 and not multiplies_float16() else contextlib.nullcontext()
    with _of_any.held(), products:
        yield


_KEY = "ADInplaceOrView"


def _installed(packets: Iterable[Any]) -> Any:
    library = torch.library.Library("aten", "IMPL")
    for packet in packets:
        library.impl(schema(packet.default).name, _kernel(packet.default), _KEY)
    return library


def _kernel(op: Any) -> Callable[..., Any]:
    below = DispatchKeySet(getattr(DispatchKey, _KEY))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_keys(below):
            return substitute(op, args, kwargs)

    return kernel


_of_any, _of_float16 = overrides(lambda: _installed(OF_ANY)), overrides(lambda: _installed(SUBSTITUTED - OF_ANY))


def _float16_alone(args: Any) -> bool:
    """Whether all operands are ordinary tensors of float16. Torch has no product of some sparse ones, and says so."""
    return all(each.dtype is torch.float16 and each.layout is torch.strided for each in args if isinstance(each, torch.Tensor))


def _by_way_of_float32(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    def cast(value: Any, dtype: torch.dtype) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) else value

    dtype, made = args[0].dtype, func(*(cast(each, torch.float32) for each in args), **kwargs)
    return cast(made, dtype) if isinstance(made, torch.Tensor) else tuple(cast(each, dtype) for each in made)


def _layer_norm_by_rows(
    func: Any, gradient: torch.Tensor, values: torch.Tensor, shape: list[int], mean: torch.Tensor, scale: torch.Tensor,
    weight: torch.Tensor | None, bias: torch.Tensor | None, wanted: list[bool],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The kernel's own result, which is accurate along a row, and sums over rows in float32, computed on a few rows at a time and rounded once."""
    dtype, (low, *sums) = gradient.dtype, func(gradient, values, shape, mean, scale, weight, bias, [wanted[0], False, False])
    if not any(wanted[1:]):
        return low, *sums
    count = math.prod(values.shape[: values.dim() - len(shape)])
    gradient, values = gradient.reshape(count, *shape), values.reshape(count, *shape)
    mean, scale = (each.float().reshape(count, *[1] * len(shape)) for each in (mean, scale))
    weight, bias = (None if each is None else each.float() for each in (weight, bias))
    few = max(1, _AT_ONCE // max(1, math.prod(shape)))
    for start in range(0, max(1, count), few):
        rows = slice(start, start + few)
        _, *found = func(gradient[rows].float(), values[rows].float(), shape, mean[rows], scale[rows], weight, bias, [False, *wanted[1:]])
        sums = found if start == 0 else [None if total is None else total.add_(more) for total, more in zip(sums, found, strict=True)]
    return low, *(None if each is None else each.to(dtype) for each in sums)


def _rows_of_embedding(func: Any, gradient: torch.Tensor, indices: torch.Tensor, rows: int, padding: int, scaled: bool) -> torch.Tensor:
    """The gradient of an embedding in float32, only for the rows that a batch uses."""
    used, places = torch.unique(indices, return_inverse=True)
    result = gradient.new_zeros(rows, gradient.shape[-1])
    result[used] = func(gradient.float(), places, used.numel(), -1, scaled).to(gradient.dtype)
    if padding >= 0:
        result[padding] = 0
    return result
