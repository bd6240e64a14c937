"""More kernels, broken as real ones were: written before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from broken_cases import case, drawn

F = torch.nn.functional
BF16, FP16 = torch.bfloat16, torch.float16


def silu(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


@case("silu: the last block of 16 not launched", "kernel-edge", "flagos-ai/FlagGems/pull/6251", silu, drawn((4, 64)))
def floor_grid(wrong: bool) -> Callable[..., Any]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        flat, pieces = x.reshape(-1), []
        grid = len(flat) // 16 if wrong else -(-len(flat) // 16)
        for block in range(grid):
            tile = flat[16 * block : 16 * block + 16]
            pieces.append(tile * torch.sigmoid(tile))
        done = torch.cat(pieces) if pieces else flat[:0]
        return torch.cat([done, torch.zeros_like(flat[len(done) :])]).view(x.shape)

    return kernel


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


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
            slope = opened * (1 + gate * (1 - opened)) if wrong != "slope" else opened * (1 - opened)
            return (dy * up * slope).to(dtype), (dy * gate * opened).to(dtype)

    return Swiglu.apply


@case("swiglu: stores into the incoming gradient", "kernel-mutation", "linkedin/Liger-Kernel/pull/272", swiglu, drawn((6, 32), (6, 32)))
def upstream(wrong: bool) -> Callable[..., Any]:
    return _swiglu("upstream" if wrong else "")


@case("swiglu: the derivative of the sigmoid alone", "kernel-gradient", "NVIDIA/TransformerEngine/issues/3216", swiglu, drawn((6, 32), (6, 32)))
def wrong_slope(wrong: bool) -> Callable[..., Any]:
    return _swiglu("slope" if wrong else "")


def rope(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float()[..., :half], x.float()[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _rope(wrong: str) -> Callable[..., Any]:
    tables: dict[str, torch.Tensor] = {}

    def angles(x: torch.Tensor) -> torch.Tensor:
        half, low = x.shape[-1] // 2, BF16 if wrong == "phases" else torch.float32
        frequencies = 1 / 10000 ** (torch.arange(half) / max(half, 1))
        return torch.arange(x.shape[-2]).to(low)[:, None] * frequencies.to(low)

    class Rope(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            turned = angles(x).float()
            if wrong == "table":
                if "angles" not in tables or tables["angles"].shape != turned.shape:
                    tables["angles"] = turned
            ctx.angles = turned
            return Rope.turn(x, turned, 1)

        @staticmethod
        def turn(x: torch.Tensor, turned: torch.Tensor, sign: int) -> torch.Tensor:
            half = x.shape[-1] // 2
            if x.shape[-1] % 2:
                raise ValueError(f"{x.shape[-1]} columns: an even number is needed")
            a, b, cos, sin = x.float()[..., :half], x.float()[..., half:], turned.cos(), sign * turned.sin()
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return Rope.turn(gradient, ctx.angles, 1 if wrong == "sign" else -1)

    return Rope.apply


@case("rope: backward turns the same way", "kernel-gradient", "huggingface/candle/pull/3612", rope, drawn((2, 10, 16)))
def same_way(wrong: bool) -> Callable[..., Any]:
    return _rope("sign" if wrong else "")


@case("rope: phases in bfloat16", "kernel-rounding", "EleutherAI/gpt-neox/issues/1003", rope, drawn((2, 10, 16)))
def low_phases(wrong: bool) -> Callable[..., Any]:
    return _rope("phases" if wrong else "")


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


@case("embedding: repeated indices overwrite one another", "kernel-gradient", "PaddlePaddle/Paddle/pull/17662", embedding, _ids())
def lost_repeats(wrong: bool) -> Callable[..., Any]:
    return _embedding("lost" if wrong else "")


@case("embedding: gradient added up in float16", "kernel-accumulation", "flagos-ai/FlagGems/issues/4295", one_hot, _ids(torch.float16, 200))
def low_embedding(wrong: bool) -> Callable[..., Any]:
    return _embedding("low" if wrong else "")


@case("embedding: the gradient's memory is not cleared", "kernel-stale", "flagos-ai/FlagGems/pull/1084", embedding, _ids())
def not_cleared(wrong: bool) -> Callable[..., Any]:
    return _embedding("empty" if wrong else "")


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x, (weight.shape[-1] - 1, 0)), weight[:, None], groups=x.shape[1])


@case("causal convolution: sequences shorter than the filter", "kernel-edge", "fla-org/flash-linear-attention/pull/1140", convolution,
      drawn((2, 6, 20), (6, 4)))  # fmt: skip
def short_sequences(wrong: bool) -> Callable[..., Any]:
    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        width, length = weight.shape[-1], x.shape[-1]
        padded = F.pad(x, (width - 1, 0))
        if wrong and length < width - 1:
            padded = F.pad(x, (width - 1 - length, length))
        return sum((padded[..., tap : tap + length] * weight[:, tap, None] for tap in range(width)), torch.zeros_like(x))

    return kernel


@case("causal convolution: dy's strides used for y", "kernel-stride", "fla-org/flash-linear-attention/pull/1139", F.tanhshrink, drawn((3, 5, 8)))
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


@case("mean: columns read with a stride of 1", "kernel-stride", "ByteDance-Seed/VeOmni/pull/958", strided_mean, drawn((6, 20)))
def unit_columns(wrong: bool) -> Callable[..., Any]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if wrong and x.numel():
            x = torch.as_strided(x, x.shape, (x.stride(0), 1))
        return x.sum(-1) / x.shape[-1]

    return kernel


@case("mean: divided by the width it was compiled for", "kernel-edge", "csarofeen/pytorch/pull/326", strided_mean, drawn((6, 20)))
def compiled_width(wrong: bool) -> Callable[..., Any]:
    return lambda x: x.sum(-1) / (20 if wrong else x.shape[-1])


@case("mean: added up in float16", "kernel-accumulation", "karpathy/llm.c/pull/476", strided_mean, drawn((6, 64), dtype=FP16))
def low_mean(wrong: bool) -> Callable[..., Any]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[..., 0], dtype=FP16 if wrong else torch.float32) if x.shape[-1] else x.sum(-1).float()
        for column in x.unbind(-1):
            total = total + column.to(total.dtype)
        return (total / x.shape[-1]).to(x.dtype)

    return kernel


@case("sum: an order that is drawn anew", "kernel-nondeterminism", "pytorch/pytorch/issues/31776", lambda x: x.sum(-1), drawn((6, 100)))
def random_order(wrong: bool) -> Callable[..., Any]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(x.shape[-1]) if wrong else torch.arange(x.shape[-1])
        return sum((x[..., place] for place in order.tolist()), torch.zeros_like(x[..., :1].sum(-1)))

    return kernel


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@case("gelu: tanh for erf", "kernel-contract", "pytorch/pytorch/issues/39853", gelu, drawn((6, 20)))
def tanh_gelu(wrong: bool) -> Callable[..., Any]:
    return lambda x: F.gelu(x, approximate="tanh") if wrong else 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _flash(wrong: str) -> Callable[..., Any]:
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(f"{q.shape[-2]} queries and {k.shape[-2]} keys: as many are needed")
        scale = 1 / q.shape[-1] if wrong == "scale" else 1 / math.sqrt(max(q.shape[-1], 1))
        rows, most = torch.arange(q.shape[-2])[:, None], q.new_full((*q.shape[:-1], 1), -math.inf)
        total, out = torch.zeros_like(most), q.new_zeros(*q.shape[:-1], v.shape[-1])
        for start in range(0, k.shape[-2], 4):
            columns = torch.arange(start, min(start + 4, k.shape[-2]))
            scores = q @ k[..., columns, :].mT * scale
            hidden = columns > rows + (1 if wrong == "later" else 0)
            scores = scores.masked_fill(hidden, -math.inf)
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            now = now.clamp(min=-1e30)
            powers, kept = (scores - now).exp(), (most - now).exp()
            out = (out if wrong == "rescale" else out * kept) + powers @ v[..., columns, :]
            total, most = total * kept + powers.sum(-1, keepdim=True), now
        return out / total

    return kernel


@case("attention: scaled by the head size, not its root", "kernel-contract", "NVIDIA/cutlass/issues/2336", scaled, drawn(*[(2, 2, 12, 8)] * 3))
def wrong_scale(wrong: bool) -> Callable[..., Any]:
    return _flash("scale" if wrong else "")


@case("attention: each token sees the next one", "kernel-mask", "NVIDIA/cutlass/issues/2336", scaled, drawn(*[(2, 2, 12, 8)] * 3))
def sees_the_next(wrong: bool) -> Callable[..., Any]:
    return _flash("later" if wrong else "")


@case("attention: the output is not rescaled with the maximum", "kernel-contract", "flashinfer-ai/flashinfer/pull/4401", scaled,
      drawn(*[(2, 2, 12, 8)] * 3))  # fmt: skip
def no_rescale(wrong: bool) -> Callable[..., Any]:
    return _flash("rescale" if wrong else "")


@case("softmax: falls back to the reference", "kernel-fallback", "meta-pytorch/BackendBench/issues/41", gelu, drawn((6, 20)))
def fallback(wrong: bool) -> Callable[..., Any]:
    return (lambda x: gelu(x)) if wrong else (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
