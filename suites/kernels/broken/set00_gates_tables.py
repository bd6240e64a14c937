"""More kernels, broken as real ones were: written before any of them was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16, FP16 = torch.bfloat16, torch.float16


def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


@case("silu: the last block of 16 not launched", "kernel-edge", "stew675/llama-cpp-rdna-boosts/issues/19", silu, drawn((4, 64)))
def floor_grid(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    flat, pieces = x.reshape(-1), []
    grid = len(flat) // 16 if wrong else -(-len(flat) // 16)
    for block in range(grid):
        tile = flat[16 * block : 16 * block + 16]
        pieces.append(tile * torch.sigmoid(tile))
    done = torch.cat(pieces) if pieces else flat[:0]
    return torch.cat([done, torch.zeros_like(flat[len(done) :])]).view(x.shape)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _first_row(rows: torch.Tensor) -> torch.Tensor:
    """What is left where every row is stored at the address of the first."""
    stored = torch.empty_like(rows)
    if len(rows):
        stored[0] = rows[-1]
    return stored


def _swiglu(wrong: str) -> Callable[..., Any]:
    class Swiglu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(gate, up)
            return (gate.float() * torch.sigmoid(gate.float()) * up.float()).to(gate.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            gate, up = (each.float() for each in ctx.saved_tensors)
            dtype, opened = ctx.saved_tensors[0].dtype, torch.sigmoid(gate)
            if wrong == "upstream":  # the product is stored over the gradient that came in
                dup = (gradient.float() * gate * opened).to(dtype)
                gradient.mul_((up * opened * (1 + gate * (1 - opened))).to(gradient.dtype))
                return gradient.to(dtype), dup
            dy = gradient.float()
            slope = opened * (1 + gate * (1 - opened))
            made = (dy * up * slope).to(dtype), (dy * gate * opened).to(dtype)
            return made if wrong != "rows" else tuple(_first_row(each) for each in made)

    return Swiglu.apply


@case("swiglu: stores into the incoming gradient", "kernel-mutation", "NVIDIA/apex/issues/1430", swiglu, drawn((6, 32), (6, 32)))
def upstream(wrong: bool) -> Callable[..., Any]:
    return _swiglu("upstream" if wrong else "")


@case("swiglu: each row of a gradient stored at the first", "kernel-gradient", "ByteDance-Seed/Triton-distributed/pull/185", swiglu,
      drawn((6, 32), (6, 32)))  # fmt: skip
def first_row(wrong: bool) -> Callable[..., Any]:
    return _swiglu("rows" if wrong else "")


def rope(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float()[..., :half], x.float()[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@case("rope: phases in bfloat16", "kernel-rounding", "EleutherAI/gpt-neox/issues/1003", rope, drawn((2, 10, 16)))
def low_phases(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    half, low = x.shape[-1] // 2, BF16 if wrong else torch.float32
    need(not (x.shape[-1] % 2))
    frequencies = 1 / 10000 ** (torch.arange(half) / max(half, 1))
    turned = (torch.arange(x.shape[-2]).to(low)[:, None] * frequencies.to(low)).float()
    a, b, cos, sin = x.float()[..., :half], x.float()[..., half:], turned.cos(), turned.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _half_turn(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[-1] % 2))
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rope_by_tables(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return x * cos + _half_turn(x) * sin


def _tables() -> Any:
    x, cos, sin = drawn((2, 10, 16), (10, 16), (10, 16))()
    return x.requires_grad_(), cos, sin


@case("rope: backward turns the gradient before its table", "kernel-gradient", "PaddlePaddle/Paddle/pull/74716", rope_by_tables, _tables)
def turned_first(wrong: bool) -> Callable[..., Any]:
    class Rope(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(cos, sin)
            return x * cos + _half_turn(x) * sin

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            cos, sin = ctx.saved_tensors
            back = _half_turn(gradient) * sin if wrong else _half_turn(gradient * sin)
            return gradient * cos - back, None, None

    return Rope.apply


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table)


def one_hot(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """An embedding whose gradient is a matrix product: torch's own on a CPU adds up in the table's format."""
    return (F.one_hot(ids, len(table)).float() @ table.float()).to(table.dtype)


def _ids(dtype: torch.dtype = torch.float32, count: int = 30) -> Callable[[], Any]:
    def make() -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 10, (count,), generator=generator), torch.randn(10, 8, generator=generator).to(dtype)

    return make


def _embedding(wrong: str) -> Callable[..., Any]:
    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(ids)
            ctx.shape, ctx.dtype = table.shape, table.dtype
            return table[ids]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
            (ids,) = ctx.saved_tensors
            total = (torch.empty if wrong == "empty" else torch.zeros)(ctx.shape, dtype=ctx.dtype if wrong == "low" else torch.float32)
            if wrong == "lost":
                total[ids] += gradient
            elif wrong == "low":
                for place, row in zip(ids.tolist(), gradient, strict=True):
                    total[place] += row
            else:
                total.index_add_(0, ids, gradient.float())
            return None, total.to(ctx.dtype)

    return Lookup.apply


@case("embedding: repeated indices overwrite one another", "kernel-gradient", "tenstorrent/tt-metal/issues/6232", embedding, _ids())
def lost_repeats(wrong: bool) -> Callable[..., Any]:
    return _embedding("lost" if wrong else "")


@case("embedding: gradient added up in float16", "kernel-accumulation", "tenstorrent/tt-metal/pull/53386", one_hot, _ids(torch.float16, 200))
def low_embedding(wrong: bool) -> Callable[..., Any]:
    return _embedding("low" if wrong else "")


@case("embedding: the gradient's memory is not cleared", "kernel-stale", "pytorch/FBGEMM/pull/5754", embedding, _ids())
def not_cleared(wrong: bool) -> Callable[..., Any]:
    return _embedding("empty" if wrong else "")


def convolution(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk's result, and the last inputs, which the next chunk begins with."""
    before = weight.shape[-1] - 1
    padded = F.pad(x, (before, 0))
    return F.conv1d(padded, weight[:, None], groups=x.shape[1]), padded[..., x.shape[-1] :]


@case("causal convolution: a chunk shorter than the filter", "kernel-edge", "fla-org/flash-linear-attention/issues/1140", convolution,
      drawn((2, 6, 20), (6, 4)))  # fmt: skip
def short_chunk(wrong: bool) -> Callable[..., Any]:
    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.save_for_backward(x, weight)
            result, last = convolution(x * 1, weight)
            return result, last.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor, dlast: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            width, length = weight.shape[-1], x.shape[-1]
            padded, dpadded = F.pad(x, (width - 1, 0)), F.pad(torch.zeros_like(x), (width - 1, 0))
            dweight = torch.stack([(gradient * padded[..., tap : tap + length]).sum((0, -1)) for tap in range(width)], -1)
            for tap in range(width):
                dpadded[..., tap : tap + length] += gradient * weight[:, tap, None]
            dx, first = dpadded[..., width - 1 :], max(length - (width - 1), 0)
            slot = 0 if wrong else first + width - 1 - length  # of the first input that the last ones hold
            dx[..., first:] += dlast[..., slot : slot + length - first]
            return dx, dweight

    return Convolution.apply


@case("causal convolution: dy's strides used for y", "kernel-stride", "fla-org/flash-linear-attention/issues/1138", F.tanhshrink, drawn((3, 5, 8)))
def wrong_pitch(wrong: bool) -> Callable[..., Any]:
    class Shrink(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.tanh(x))
            return x - torch.tanh(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (y,) = ctx.saved_tensors
            if wrong:  # the pitch of dy addresses y
                y = torch.as_strided(y.contiguous(), y.shape, gradient.stride())
            return gradient * y.square()

    return Shrink.apply


def strided_mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


@case("mean: columns read with a stride of 1", "kernel-stride", "unslothai/unsloth/pull/10713", strided_mean, drawn((6, 20)))
def unit_columns(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if wrong and x.numel():
        x = torch.as_strided(x, x.shape, (x.stride(0), 1))
    return x.sum(-1) / x.shape[-1]


@case("mean: divided by the width it was compiled for", "kernel-edge", "pytorch/xla/pull/1459", strided_mean, drawn((6, 20)))
def compiled_width(wrong: bool) -> Callable[..., Any]:
    return lambda x: x.sum(-1) / (20 if wrong else x.shape[-1])


@case("mean: added up in float16", "kernel-accumulation", "tensorflow/tensorflow/pull/124049", strided_mean, drawn((6, 64), dtype=FP16))
def low_mean(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[..., 0], dtype=FP16 if wrong else torch.float32) if x.shape[-1] else x.sum(-1).float()
    for column in x.unbind(-1):
        total = total + column.to(total.dtype)
    return (total / x.shape[-1]).to(x.dtype)


@case("sum: an order that is drawn anew", "kernel-nondeterminism", "tensorflow/tensorflow/issues/39751", lambda x: x.sum(-1), drawn((6, 100)))
def random_order(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(x.shape[-1]) if wrong else torch.arange(x.shape[-1])
    return sum((x[..., place] for place in order.tolist()), torch.zeros_like(x[..., :1].sum(-1)))
