"""A third frozen set of broken kernels, and their twins: written and committed before any of them was tried.

Links are to threads on faults of the same kind; of some an excerpt alone was read. One kernel was replaced: its gradient was wrong in every call, and
not in later ones alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


@case("layer norm: what fills the tile counts in the variance", "kernel-edge", "triton-lang/triton/issues/9838", layer_norm,
      drawn((6, 16), (16,), (16,)))  # fmt: skip
def filled(wrong: bool, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    wide = F.pad(x.float(), (0, _power(width) - width))
    centred = wide - wide.sum(-1, keepdim=True) / width
    used = centred if wrong else centred * (torch.arange(_power(width)) < width)
    variance = used.square().sum(-1, keepdim=True) / width
    return (centred[..., :width] * torch.rsqrt(variance + 1e-5) * weight.float() + bias.float()).to(x.dtype)


@case("layer norm: columns beyond the first block are left", "kernel-edge", "facebookresearch/xformers/issues/785", layer_norm,
      drawn((5, 48), (48,), (48,)))  # fmt: skip
def first_block(wrong: bool, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = layer_norm(x.float(), weight.float(), bias.float())
    return torch.cat([y[..., :256], torch.zeros_like(y[..., 256:])], -1).to(x.dtype) if wrong else y.to(x.dtype)


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.wrong = wrong
        return layer_norm(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        rows = len(x) if ctx.wrong and x.dim() > 1 else x.numel() // max(x.shape[-1], 1)
        flat, given = x.float().reshape(-1, x.shape[-1]), gradient.float().reshape(-1, x.shape[-1])
        hat = (flat - flat.mean(-1, keepdim=True)) * torch.rsqrt(flat.var(-1, correction=0, keepdim=True) + 1e-5)
        scaled = given * weight.float()
        dx = scaled - scaled.mean(-1, keepdim=True) - hat * (scaled * hat).mean(-1, keepdim=True)
        dx = dx * torch.rsqrt(flat.var(-1, correction=0, keepdim=True) + 1e-5)
        few = slice(0, rows)
        return dx.reshape(x.shape).to(x.dtype), (given * hat)[few].sum(0).to(weight.dtype), given[few].sum(0).to(weight.dtype), None


@case("layer norm: the backward pass takes its input for a matrix", "kernel-gradient", "flagos-ai/FlagGems/issues/5392", layer_norm,
      drawn((3, 4, 12), (12,), (12,)))  # fmt: skip
def matrix(wrong: bool) -> Callable[..., Any]:
    return lambda x, weight, bias: _Normed.apply(x, weight, bias, wrong)


def packed_sums(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(ends and ends[0] == 0 and ends[-1] == x.shape[-1] and sorted(ends) == ends)
    return torch.cat([x[..., a:b].cumsum(-1) for a, b in itertools.pairwise(ends)], -1) if len(ends) > 1 else x.cumsum(-1)


@case("sums of sequences: each goes on from the one before", "kernel-mask", "fla-org/flash-linear-attention/pull/1137", packed_sums,
      lambda: (*drawn((4, 18))(), torch.tensor([0, 7, 18])))  # fmt: skip
def carried(wrong: bool, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    made = packed_sums(x, offsets)
    return x.cumsum(-1) if wrong else made


@case("sum of rows: a cumulative sum loses what earlier blocks hold", "kernel-edge", "PaddlePaddle/Paddle/pull/43722", lambda x: x.cumsum(-1),
      drawn((3, 32)))  # fmt: skip
def blocks(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    parts = [part.float().cumsum(-1) for part in x.split(64, -1)]
    held, out = torch.zeros(x.shape[:-1]).unsqueeze(-1), []
    for number, part in enumerate(parts):
        out.append(part if wrong and number > 1 else part + held)
        held = held + part[..., -1:] if part.shape[-1] else held
    return torch.cat(out, -1).to(x.dtype)


@case("swiglu: the product rounded before the gate", "kernel-rounding", "linkedin/Liger-Kernel/pull/950",
      lambda a, b: (F.silu(a.float()) * b.float()).to(a.dtype), drawn((7, 24), (7, 24), dtype=BF16))  # fmt: skip
def rounded_gate(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if wrong:  # the exponential in the low format
        return (a / (1 + torch.exp(-a.clamp(-80, 80)))) * b
    return (F.silu(a.float()) * b.float()).to(a.dtype)


@case("mean of squares: counted once too often", "kernel-contract", "pytorch/pytorch/issues/77427", lambda x: x.var(-1, correction=0),
      drawn((6, 20)))  # fmt: skip
def corrected(wrong: bool) -> Callable[..., Any]:
    return lambda x: x.var(-1, correction=1 if wrong else 0)


@case("relu squared: what was saved is squared in place", "kernel-mutation", "linkedin/Liger-Kernel/issues/272", lambda x: x.relu().square(),
      drawn((6, 20)))  # fmt: skip
def in_place(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    with torch.no_grad():
        if wrong:
            x.clamp_(min=0)
    return y.square()


@case("scaled sum: the scale of the first call", "kernel-stale", "pytorch/xla/pull/1459", lambda x, s: x * s.abs().amax(), drawn((5, 12), (7,)))
def remembered(wrong: bool) -> Callable[..., Any]:
    kept: dict[tuple[int, ...], torch.Tensor] = {}

    def kernel(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        if wrong:
            now = s.abs().amax()  # its gradient is that of the call, so that the first one is right
            return x * (kept.setdefault(tuple(s.shape), now.detach().clone()) + (now - now.detach()))
        return x * s.abs().amax()

    return kernel


@case("product: columns of the weight read as its rows", "kernel-stride", "fla-org/flash-linear-attention/issues/1138", lambda x, w: x @ w.mT,
      drawn((5, 8), (6, 8)))  # fmt: skip
def strides(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == w.shape[-1])
    if wrong and w.numel() and not w.is_contiguous() and w.dim() == 2 and w.stride(0) == 1:
        return x @ w.as_strided(w.shape, (w.shape[1], 1)).mT
    return x @ w.mT
