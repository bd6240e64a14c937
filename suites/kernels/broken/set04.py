"""A fourth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read.

Two twins were mended, which were accused rightly: a gradient was NaN by way of a branch that is not taken, and -inf was added to a NaN that the
mask hides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


def unit(x: torch.Tensor) -> torch.Tensor:
    return (x.float() / torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).clamp(min=1e-6)).to(x.dtype)


@case("l2 norm: squares leave the range of float16", "kernel-rounding", "lance-format/lance/pull/8533", unit, drawn((6, 24), dtype=torch.float16))
def low_squares(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    squares = (x * x).float() if wrong else x.float() * x.float()
    return (x.float() * torch.rsqrt(squares.sum(-1, keepdim=True).clamp(min=1e-12))).to(x.dtype)


@case("expm1: an exponential less one", "kernel-rounding", "ggml-org/ggml/pull/1515", torch.expm1, drawn((6, 20)))
def less_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if wrong:
        return torch.exp(x) - 1
    small = x.abs() < 0.5
    half = torch.tanh(torch.where(small, x, 0.0) / 2)
    return torch.where(small, 2 * half / (1 - half), torch.where(small, 0.0, x).exp() - 1)


@case("cumsum: the carry of the block before alone", "kernel-edge", "openfheorg/openfhe-numpy/issues/85", lambda x: x.cumsum(-1), drawn((5, 24)))
def short_carry(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    made: list[torch.Tensor] = []
    carry = torch.zeros_like(x[..., :1].sum(-1, keepdim=True))
    for block in x.split(16, -1):
        made.append(block.cumsum(-1) + carry)
        carry = block.sum(-1, keepdim=True) + (0 if wrong else carry)
    return torch.cat(made, -1)


@case("scaled sum: what is left behind the last vector of eight is not written", "kernel-edge", "amd/IRON/pull/198",
      lambda a, b: a + 0.5 * b, drawn((4, 16), (4, 16)))  # fmt: skip
def tail(wrong: bool) -> Callable[..., Any]:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            need(a.shape == b.shape)
            out = torch.empty(a.shape, dtype=a.dtype)
            flat, whole = out.view(-1), a.numel() // 8 * 8 if wrong else a.numel()
            flat[:whole] = a.reshape(-1)[:whole] + 0.5 * b.reshape(-1)[:whole]
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return gradient, 0.5 * gradient

    return Sum.apply


def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(x + bias)


@case("bias and silu: the bias' offset in its memory is left out", "kernel-stride", "torch-spyre/torch-spyre/pull/3018", biased,
      drawn((6, 20), (20,)))  # fmt: skip
def no_offset(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == bias.shape[-1])
    return F.silu(x + (torch.as_strided(bias, bias.shape, bias.stride(), 0) if wrong else bias))


def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1))
    return (scores.masked_fill(~seen[:, None], -1e9).softmax(-1) @ v.float()).to(q.dtype)


def _kept() -> tuple[torch.Tensor, ...]:
    seen = torch.ones(2, 12, dtype=torch.bool)
    seen[0, 9:], seen[1, 7:] = False, False
    return *drawn((2, 10, 8), (2, 12, 8), (2, 12, 8))(), seen


@case("attention: what the mask hides is taken out behind the softmax", "kernel-mask", "huggingface/pytorch-image-models/pull/2236", kept, _kept)
def late_mask(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqd,bkd->bqk", q.float(), k.float()) / math.sqrt(max(q.shape[-1], 1))
    hidden = ~seen[:, None].expand(scores.shape)
    if wrong:
        weights = scores.softmax(-1).masked_fill(hidden, 0)
    else:
        weights = torch.where(hidden, torch.full_like(scores, -1e9), scores).softmax(-1)
    return torch.einsum("bqk,bkd->bqd", weights, v.float()).to(q.dtype)


def causal(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), -math.inf).softmax(-1)


@case("causal softmax: the mask of the longest rows so far, its last part", "kernel-stale", "facebookresearch/xformers/pull/660", causal,
      drawn((3, 10, 10)))  # fmt: skip
def kept_mask(wrong: bool) -> Callable[..., Any]:
    longest: list[torch.Tensor] = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[-2:]
        size = max(rows, columns)
        if not longest or len(longest[0]) < size:
            longest[:] = [torch.ones(size, size, dtype=torch.bool).triu(1)]
        mask = longest[0][len(longest[0]) - rows :, :columns] if wrong else longest[0][:rows, :columns]
        return torch.softmax(x.masked_fill(mask, -math.inf), -1)

    return kernel


def chosen(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~seen, -1e4).log_softmax(-1)


def _chosen() -> tuple[torch.Tensor, ...]:
    return drawn((5, 20))()[0], torch.rand(5, 20, generator=torch.Generator().manual_seed(2)) < 0.7


@case("log softmax: what is hidden is filled in the caller's scores", "kernel-mutation", "NVIDIA-NeMo/Automodel/pull/3918", chosen, _chosen)
def filled_in(wrong: bool, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    if wrong:
        scores.detach().masked_fill_(~seen, -1e4)
    masked = torch.where(seen, scores, torch.full_like(scores, -1e4))
    return masked - masked.logsumexp(-1, keepdim=True)


def bounded(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, low, high)


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.save_for_backward(x, low, high)
        ctx.wrong = wrong
        return torch.minimum(torch.maximum(x, low), high)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, low, high = ctx.saved_tensors
        inside = (x <= low) & (x >= high) if ctx.wrong else (x >= low) & (x <= high)
        below, above = (x < low) & (low <= high), (x > high) | (low > high)
        zero = torch.zeros((), dtype=gradient.dtype)
        return torch.where(inside, gradient, zero), torch.where(below, gradient, zero), torch.where(above, gradient, zero), None


def _bounded() -> tuple[torch.Tensor, ...]:
    x, low, high = drawn((6, 20), (6, 20), (6, 20))()
    return x, -low.abs() - 0.1, high.abs() + 0.1


@case("clamp: the comparisons of its derivative are the other way round", "kernel-gradient", "tenstorrent/tt-metal/issues/48201", bounded, _bounded)
def turned_bounds(wrong: bool) -> Callable[..., Any]:
    return lambda x, low, high: _Bounded.apply(x, low, high, wrong)


@case("product: forty parts of a sum added in bfloat16", "kernel-accumulation", "flagos-ai/FlagGems/pull/5876", torch.matmul,
      drawn((9, 640), (640, 7), dtype=BF16))  # fmt: skip
def added_low(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape[-1] == len(b))
    total = torch.zeros(len(a), b.shape[-1], dtype=a.dtype if wrong else torch.float32)
    for some, other in zip(a.split(16, -1), b.split(16), strict=True):
        total = total + (some.float() @ other.float()).to(total.dtype)
    return total.to(a.dtype)


@case("huber loss: its linear part as of a delta of one", "kernel-contract", "xuannianz/EfficientDet/issues/93",
      lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.5), drawn((6, 20), (6, 20)))  # fmt: skip
def another_delta(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    away = (x - y).abs()
    return torch.where(away < 0.5, 0.5 * away.square(), away - 0.5 if wrong else 0.5 * (away - 0.25))
