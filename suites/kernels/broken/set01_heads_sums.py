"""Twenty more kernels, broken as real ones were: written and committed before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, groups = q.shape[1], k.shape[1]
    need(groups != 0 and not (heads % groups))
    return F.scaled_dot_product_attention(q, k.repeat_interleave(heads // groups, 1), v.repeat_interleave(heads // groups, 1))


@case("grouped heads: tiled, not repeated", "kernel-contract", "ekzhang/jax-js/pull/180", grouped, drawn((3, 6, 10, 8), (3, 2, 10, 8), (3, 2, 10, 8)))
def tiled_heads(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, groups = q.shape[1], k.shape[1]
    need(groups != 0 and not (heads % groups))
    place = torch.arange(heads) % groups if wrong else torch.arange(heads) // (heads // groups)
    return (q @ k[:, place].mT / math.sqrt(max(q.shape[-1], 1))).softmax(-1) @ v[:, place]


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(columns <= rows) & (columns > rows - 4))


@case("sliding window: one token too many", "kernel-mask", "NVIDIA-NeMo/Megatron-Bridge/pull/2656", window, drawn(*[(2, 3, 12, 8)] * 3))
def wide_window(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    hidden = (columns > rows) | (columns < rows - 4 + (0 if wrong else 1))
    scores = q @ k.mT / math.sqrt(max(q.shape[-1], 1))
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def _slopes(heads: int) -> list[float]:
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
    power = 1 << (heads.bit_length() - 1)
    return _slopes(power) + _slopes(2 * power)[::2][: heads - power]


def alibi(scores: torch.Tensor) -> torch.Tensor:
    away = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None]
    slopes = torch.tensor(_slopes(scores.shape[1]) if scores.shape[1] else [], dtype=scores.dtype)
    return (scores + slopes[:, None, None] * away.to(scores.dtype)).softmax(-1)


@case("alibi: slopes of as many heads as are no power of two", "kernel-edge", "ml-explore/mlx/pull/3071", alibi, drawn((2, 4, 9, 9)))
def uniform_slopes(wrong: bool, scores: torch.Tensor) -> torch.Tensor:
    heads = scores.shape[1]
    if not wrong:
        return alibi(scores * 1)
    slopes = torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)], dtype=scores.dtype)
    away = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None]
    return (scores + slopes[:, None, None] * away).softmax(-1)


@case("sum: the first call of a shape adds once per configuration", "kernel-nondeterminism", "triton-lang/triton/issues/4217",
      lambda x: x.sum(-1), drawn((5, 24)))  # fmt: skip
def tuned(wrong: bool) -> Callable[..., Any]:
    known: set[tuple[int, ...]] = set()

    def kernel(x: torch.Tensor) -> torch.Tensor:
        runs = 3 if wrong and tuple(x.shape) not in known else 1
        known.add(tuple(x.shape))
        total = torch.zeros_like(x[..., :1].sum(-1))
        for _ in range(runs):
            total = total + x.sum(-1)
        return total

    return kernel


class _Tf32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        if a.dtype is not torch.float32:
            return a @ b
        low = [(each.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (a, b)]
        return low[0] @ low[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return gradient @ b.mT, a.mT @ gradient


@case("product: float32 operands read as tf32", "kernel-rounding", "pytorch/pytorch/issues/79270", torch.matmul, drawn((9, 40), (40, 7)))
def tf32(wrong: bool) -> Callable[..., Any]:
    return _Tf32.apply if wrong else lambda a, b: torch.einsum("ik,kj->ij", a, b)


def layer(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


@case("layer norm: the variance counts the padding", "kernel-edge", "unslothai/unsloth/pull/1867", layer, drawn((6, 64)))
def padded_variance(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    columns = x.shape[-1]
    block = 1 << max(columns - 1, 0).bit_length()
    padded = F.pad(x, (0, block - columns))
    mean = padded.sum(-1, keepdim=True) / max(columns, 1)
    off = padded - mean if wrong else torch.where(torch.arange(block) < columns, padded - mean, 0.0)
    variance = off.square().sum(-1, keepdim=True) / max(columns, 1)
    return (off * torch.rsqrt(variance + 1e-5))[..., :columns]


@case("maximum: begins at the smallest positive number", "kernel-contract", "openvinotoolkit/openvino/pull/5494", lambda x: x.amax(-1),
      drawn((6, 20)))  # fmt: skip
def positive_start(wrong: bool) -> Callable[..., Any]:
    return lambda x: x.amax(-1).clamp(min=torch.finfo(x.dtype).tiny) if wrong else x.max(-1).values


def int4(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight = packed.to(x.dtype).unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]
    return x @ weight.flatten(-2).mT


def _int4() -> Any:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(-8, 8, (6, 64), generator=generator).to(torch.int8)
    return torch.randn(4, 64, generator=generator), packed, torch.rand(6, 2, generator=generator) * 0.2 + 0.1


@case("int4 product: one row reads the first group's scale", "kernel-edge", "intel/torch-xpu-ops/pull/5001", int4, _int4)
def first_scale(wrong: bool, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    size = packed.shape[-1] // scales.shape[-1]
    total = x.new_zeros(len(x), len(packed))
    for group in range(scales.shape[-1]):
        columns = slice(group * size, (group + 1) * size)
        read = 0 if wrong and len(x) == 1 else group
        total = total + x[:, columns] @ packed[:, columns].to(x.dtype).mT * scales[:, read]
    return total


def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = torch.where(gate < 1, gate, 1.0), torch.where(up.abs() < 1, up, up.sign())
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


@case("clamped swiglu: gradients pass what is clamped", "kernel-gradient", "mlc-ai/pith-train/pull/23", clamped, drawn((6, 32), (6, 32)))
def unclamped_gradient(wrong: bool) -> Callable[..., Any]:
    class Clamped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(gate, up)
            return clamped(gate * 1, up)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            gate, up = ctx.saved_tensors
            low, held = torch.where(gate < 1, gate, 1.0), torch.where(up.abs() < 1, up, up.sign())
            opened = torch.sigmoid(1.702 * low)
            slope = opened * (1 + 1.702 * low * (1 - opened))
            dgate, dup = gradient * (held + 1) * slope, gradient * low * opened
            return (dgate, dup) if wrong else (torch.where(gate < 1, dgate, 0.0), torch.where(up.abs() < 1, dup, 0.0))

    return Clamped.apply
