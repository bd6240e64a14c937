"""The last of the later kernels: written and committed before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (5 * torch.tanh(q @ k.mT / (5 * math.sqrt(max(q.shape[-1], 1))))).softmax(-1) @ v


class _Capped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wrong: bool) -> torch.Tensor:
        scores = 5 * torch.tanh(q @ k.mT / (5 * math.sqrt(max(q.shape[-1], 1))))
        logs = scores.logsumexp(-1, keepdim=True)
        out = (scores - logs).exp() @ v
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.wrong = wrong
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, out, logs = ctx.saved_tensors
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
        bent = torch.tanh(q @ k.mT * scale / 5)
        weights = (5 * bent - logs).exp()
        dscores = weights * (gradient @ v.mT - (gradient * out).sum(-1, keepdim=True)) * scale
        right = dscores * (1 - bent.square())
        return (dscores if ctx.wrong else right) @ k, right.mT @ q, weights.mT @ gradient, None


@case("attention with capped scores: the cap's slope is missing in dq", "kernel-gradient", "Dao-AILab/flash-attention/pull/2544", capped,
      drawn((2, 3, 10, 8), (2, 3, 12, 8), (2, 3, 12, 8)))  # fmt: skip
def missing_slope(wrong: bool) -> Callable[..., Any]:
    return lambda q, k, v: _Capped.apply(q, k, v, wrong)


@case("product: the parts of a split sum kept in bfloat16", "kernel-rounding", "modular/modular/issues/7165", torch.matmul,
      drawn((9, 96), (96, 7), dtype=BF16))  # fmt: skip
def low_parts(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape[-1] == len(b))
    size = max(-(-len(b) // 6), 1)
    parts = [x.float() @ y.float() for x, y in zip(a.split(size, -1), b.split(size), strict=True)]
    total = parts[0].to(a.dtype) if wrong else parts[0]
    for part in parts[1:]:
        total = total + (part.to(a.dtype) if wrong else part)
    return total.to(a.dtype)


@case("gate of a delta rule: rounded on its way to a float32 buffer", "kernel-rounding", "sgl-project/sglang/pull/40362",
      lambda x: torch.sigmoid(x.float()), drawn((6, 20), dtype=BF16))  # fmt: skip
def rounded_gate(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    gate = F.logsigmoid(x.float()).exp()
    return (gate.to(x.dtype) if wrong else gate).float()


@case("variance: a kernel that was specialised for another width", "kernel-stale", "flagos-ai/FlagGems/pull/4118", lambda x: x.var(-1),
      drawn((5, 24)))  # fmt: skip
def specialised(wrong: bool) -> Callable[..., Any]:
    known: dict[int, int] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        columns = x.shape[-1]
        width = known.setdefault(columns.bit_length(), columns) if wrong else columns
        if not columns:
            return x.var(-1)
        off = x - x.sum(-1, keepdim=True) / width
        return off.square().sum(-1) / (width - 1) if width > 1 else off.sum(-1) / 0.0

    return kernel


@case("product: the workspace of a split sum is not cleared", "kernel-stale", "ROCm/composable_kernel/pull/2697", torch.matmul,
      drawn((9, 40), (40, 7)))  # fmt: skip
def uncleared(wrong: bool) -> Callable[..., Any]:
    held: dict[tuple[int, ...], torch.Tensor] = {}

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            need(a.shape[-1] == len(b))
            ctx.save_for_backward(a, b)
            shape = (len(a), b.shape[-1])
            space = held.setdefault(shape, torch.zeros(shape)) if wrong else torch.zeros(shape)
            for some, other in zip(a.split(16, -1), b.split(16), strict=True):
                space += some @ other
            return space.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            return gradient @ b.mT, a.mT @ gradient

    return Product.apply


def by_row(x: torch.Tensor) -> torch.Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).smallest_normal)
    return (x / scale).detach().round() * scale


@case("quantised rows: a row of zeros is divided by its scale", "kernel-contract", "pytorch/ao/pull/4762", by_row, drawn((6, 24)))
def zero_scale(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    most = x.abs().max(-1, keepdim=True).values
    scale = most / 127 if wrong else torch.maximum(most / 127, torch.full_like(most, torch.finfo(torch.float32).smallest_normal))
    return torch.round((x / scale).detach()) * scale
