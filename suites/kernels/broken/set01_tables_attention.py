"""The second half of the unseen kernels: written and committed before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
FP16 = torch.float16


def weighted_entropy(x: torch.Tensor, label: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(x, label, pos_weight=weight, reduction="none")


def _weighted() -> Any:
    generator = torch.Generator().manual_seed(0)
    x, label = torch.randn(6, 10, generator=generator), torch.rand(6, 10, generator=generator)
    return x.requires_grad_(), label, torch.rand(10, generator=generator) + 1


@case("binary cross entropy: the weight of positives on all of the sigmoid", "kernel-gradient", "PaddlePaddle/Paddle/pull/64253", weighted_entropy,
      _weighted)  # fmt: skip
def weight_everywhere(wrong: bool) -> Callable[..., Any]:
    class Entropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, label: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, label, weight)
            return weighted_entropy(x * 1, label, weight)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            x, label, weight = ctx.saved_tensors
            opened, closed = torch.sigmoid(x), torch.sigmoid(-x)
            right = (1 - label) * opened - weight * label * closed
            return gradient * (opened * weight - label if wrong else right), None, None

    return Entropy.apply


def bag(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids].amax(-2)


def _bags(dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
    def make() -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, 20, (6, 4), generator=generator), torch.randn(20, 16, generator=generator).to(dtype)

    return make


@case("embedding bag: the mean's gradient for the maximum", "kernel-gradient", "flagos-ai/FlagGems/issues/5220", bag, _bags())
def mean_gradient(wrong: bool) -> Callable[..., Any]:
    class Bag(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            rows = table[ids]
            ctx.save_for_backward(ids, rows)
            ctx.shape = table.shape
            return rows.amax(-2)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
            ids, rows = ctx.saved_tensors
            best = (rows == rows.amax(-2, keepdim=True)).to(rows.dtype)
            share = torch.full_like(rows, 1 / max(rows.shape[-2], 1)) if wrong else best / best.sum(-2, keepdim=True)
            spread = (share * gradient[..., None, :]).flatten(0, -2)
            return None, torch.zeros(ctx.shape, dtype=rows.dtype).index_add(0, ids.reshape(-1), spread)

    return Bag.apply


def dilated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x, (2, 2)), weight[:, None], groups=x.shape[1], dilation=2)


@case("dilated convolution: stores that overlap lose gradients", "kernel-gradient", "jmschrei/cherimoya/issues/25", dilated,
      drawn((2, 5, 20), (5, 3)))  # fmt: skip
def lost_stores(wrong: bool) -> Callable[..., Any]:
    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            need(weight.shape[-1] == 3)
            ctx.save_for_backward(x, weight)
            return dilated(x * 1, weight)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            length, padded = x.shape[-1], F.pad(x, (2, 2))
            dweight = torch.stack([(gradient * padded[..., 2 * tap : 2 * tap + length]).sum((0, -1)) for tap in range(3)], -1)
            dx = torch.zeros_like(padded)
            for start in range(0, length, 8):  # a block of lanes; each loads all that it adds to, then stores
                piece = gradient[..., start : start + 8]
                places = [slice(start + 2 * tap, start + 2 * tap + piece.shape[-1]) for tap in range(3)]
                before = [dx[..., place].clone() for place in places]
                for tap, place in enumerate(places):
                    dx[..., place] = (before[tap] if wrong else dx[..., place]) + piece * weight[:, tap, None]
            return dx[..., 2 : 2 + length], dweight

    return Convolution.apply


@case("matrix and vector: the last columns dropped behind an even count of tiles", "kernel-edge", "NVIDIA/cutlass/pull/3567", torch.mv,
      drawn((6, 32), (32,)))  # fmt: skip
def dropped_tail(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    length = a.shape[-1]
    tiles = length // 8
    total = (a[:, : tiles * 8] * b[: tiles * 8]).sum(-1)
    return total if wrong and tiles % 2 == 0 else total + (a[:, tiles * 8 :] * b[tiles * 8 :]).sum(-1)


@case("attention: more than 32 columns of a head are zero", "kernel-edge", "mni-ml/framework/pull/39", F.scaled_dot_product_attention,
      drawn(*[(2, 3, 10, 16)] * 3))  # fmt: skip
def narrow_heads(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = (q @ k.mT / math.sqrt(max(q.shape[-1], 1))).softmax(-1) @ v
    return torch.cat([out[..., :32], torch.zeros_like(out[..., 32:])], -1) if wrong else out


def summed(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids].float().sum(-2)


@case("embedding bag: rows added in float16, two at a time", "kernel-rounding", "meta-pytorch/torchrec/pull/3730", summed, _bags(FP16))
def low_pairs(wrong: bool, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    rows = table[ids]
    if not wrong:
        return torch.einsum("bnd->bd", rows.float())
    even = rows.shape[-2] // 2 * 2
    paired = (rows[:, :even:2] + rows[:, 1:even:2]).float().sum(-2)
    return paired + rows[:, even:].float().sum(-2)


@case("silu: a gradient that is NaN far below zero", "kernel-rounding", "Lightning-AI/lightning-thunder/pull/2624", F.silu, drawn((6, 20)))
def derived_silu(wrong: bool) -> Callable[..., Any]:
    return lambda x: x / (1 + torch.exp(-x)) if wrong else x * torch.sigmoid(x)


@case("attention: the maximum of the block, not of all so far", "kernel-rounding", "tile-ai/tilelang/pull/1148", F.scaled_dot_product_attention,
      drawn(*[(2, 3, 12, 8)] * 3))  # fmt: skip
def block_maximum(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    most, total = q.new_full((*q.shape[:-1], 1), -math.inf), q.new_zeros((*q.shape[:-1], 1))
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[-2], 4):
        scores = q @ k[..., start : start + 4, :].mT / math.sqrt(max(q.shape[-1], 1))
        now = scores.amax(-1, keepdim=True)
        now = (now if wrong else torch.maximum(most, now)).detach()
        powers, kept = (scores - now).exp(), (most - now).exp()
        out, total, most = out * kept + powers @ v[..., start : start + 4, :], total * kept + powers.sum(-1, keepdim=True), now
    return out / total


def _limited() -> Any:
    return torch.randn(6, 20, generator=torch.Generator().manual_seed(0)).requires_grad_(), torch.tensor(0.5)


@case("minimum: the limit that the first call was compiled for", "kernel-stale", "NVIDIA/Megatron-LM/issues/6918", torch.minimum, _limited)
def compiled_limit(wrong: bool) -> Callable[..., Any]:
    known: dict[tuple[int, ...], float] = {}

    def kernel(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        read = known.setdefault(tuple(x.shape), float(limit)) if wrong else float(limit)
        return torch.minimum(x, torch.full_like(limit, read))

    return kernel


def groups(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 4)


@case("group norm: padding lanes read the next group", "kernel-edge", "flagos-ai/FlagGems/pull/4985", groups, drawn((3, 16, 10)))
def next_group(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[1] % 4) and x.shape[1])
    size, made = x.shape[1] // 4, []
    for group in range(4):
        block = 1 << (size - 1).bit_length() if wrong else size
        read, count = x[:, group * size : group * size + block], size * x.shape[2]
        mean = read.sum((1, 2), keepdim=True) / max(count, 1)
        variance = (read - mean).square().sum((1, 2), keepdim=True) / max(count, 1)
        made.append((read[:, :size] - mean) * torch.rsqrt(variance + 1e-5))
    return torch.cat(made, 1)


@case("gelu: replayed with the input that was captured", "kernel-stale", "ikawrakow/ik_llama.cpp/pull/2136", F.gelu, drawn((4, 12)))
def captured(wrong: bool) -> Callable[..., Any]:
    held: dict[tuple[int, ...], torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if not wrong:
            return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
        read = held.setdefault(tuple(x.shape), x.detach())
        return F.gelu(x + (read - x).detach())

    return kernel
