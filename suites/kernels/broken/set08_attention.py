"""The eighth frozen set of broken kernels, third part: attention.

Two references were mended, which had the same fault: both kept scores in float16, as the kernels did.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
HALF = torch.float16


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / math.sqrt(max(q.shape[-1], 1))).softmax(-1) @ v


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q.float(), k.float(), v.float()).to(q.dtype)


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    need(q.dim() == 2 and len(k) == len(v) and q.shape[1] == k.shape[1] and len(k))
    return 1 / math.sqrt(max(q.shape[1], 1))


def attending(backward: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., Any]:
    """Attention of one head, whose gradients are computed by `backward(q, k, v, result, sums, gradient, scale)`."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            ctx.scale = _sizes(q, k, v)
            scores = q.float() @ k.float().T * ctx.scale
            sums = scores.logsumexp(-1, keepdim=True)
            result = ((scores - sums).exp() @ v.float()).to(q.dtype)
            ctx.save_for_backward(q, k, v, result, sums)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return backward(*ctx.saved_tensors, gradient, ctx.scale)

    return Attention.apply


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sums: torch.Tensor, delta: torch.Tensor, gradient: torch.Tensor,
           scale: float) -> tuple[torch.Tensor, ...]:  # fmt: skip
    shares = (q @ k.T * scale - sums).exp()
    given = shares * (gradient @ v.T - delta) * scale
    return given @ k, given.T @ q, shares.T @ gradient


@case("attention's gradient in tiles: sums behind the last query are not cleared", "kernel-stale", "tile-ai/tilelang/pull/2461", attention,
      drawn((12, 6), (10, 6), (10, 7)))  # fmt: skip
def not_cleared(wrong: bool) -> Callable[..., Any]:
    def backward(q: Any, k: Any, v: Any, result: Any, sums: Any, gradient: Any, scale: float) -> tuple[torch.Tensor, ...]:
        whole = -(-len(q) // 8) * 8
        held = torch.empty(2, whole, 1) if wrong else torch.zeros(2, whole, 1)
        held[0, : len(q)], held[1, : len(q)] = sums, (result * gradient).sum(-1, keepdim=True)
        rows, given = (F.pad(each, (0, 0, 0, whole - len(q))) for each in (q, gradient))
        shares = (rows @ k.T * scale - held[0]).exp() * (torch.arange(whole) < len(q))[:, None]
        terms = shares * (given @ v.T - held[1]) * scale
        return (terms @ k)[: len(q)], terms.T @ rows, shares.T @ given

    return attending(backward)


@case("attention in float16: scaled behind the product", "kernel-rounding", "ultralytics/ultralytics/pull/24990", in_float32,
      drawn((9, 24), (11, 24), (11, 7), dtype=HALF))  # fmt: skip
def scaled_behind(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = _sizes(q, k, v)
    scores = (q.float() @ k.float().T).half().float() * scale if wrong else (q.float() * scale) @ k.float().T
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@case("attention's gradients of keys and values: queries added up in float16", "kernel-accumulation", "facebookresearch/xformers/pull/467",
      in_float32, drawn((40, 16), (12, 16), (12, 9), dtype=HALF))  # fmt: skip
def added_in_half(wrong: bool) -> Callable[..., Any]:
    def backward(q: Any, k: Any, v: Any, result: Any, sums: Any, gradient: Any, scale: float) -> tuple[torch.Tensor, ...]:
        kind = HALF if wrong else torch.float32
        dk, dv = torch.zeros(k.shape, dtype=kind), torch.zeros(v.shape, dtype=kind)
        delta, parts = (result.float() * gradient.float()).sum(-1, keepdim=True), [torch.zeros(0, q.shape[1])]
        for begin in range(0, len(q), 4):
            some = slice(begin, begin + 4)
            dq, one, two = _plain(q[some].float(), k.float(), v.float(), sums[some], delta[some], gradient[some].float(), scale)
            dk, dv = (dk + one).to(kind), (dv + two).to(kind)
            parts.append(dq)
        return torch.cat(parts).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    return attending(backward)


@case("attention's gradient: the incoming one is read by the strides of the result", "kernel-stride", "ROCm/aiter/pull/2808", attention,
      drawn((9, 6), (10, 6), (10, 7)))  # fmt: skip
def strides_of_result(wrong: bool) -> Callable[..., Any]:
    def backward(q: Any, k: Any, v: Any, result: Any, sums: Any, gradient: Any, scale: float) -> tuple[torch.Tensor, ...]:
        read = gradient.as_strided(result.shape, result.stride()) if wrong and gradient.stride(-1) else gradient
        return _plain(q, k, v, sums, (result * read).sum(-1, keepdim=True), gradient, scale)

    return attending(backward)


@case("attention's gradient: sums are read before they are written", "kernel-nondeterminism", "Dao-AILab/flash-attention/pull/2756", attention,
      drawn((10, 6), (9, 6), (9, 7)))  # fmt: skip
def read_before(wrong: bool) -> Callable[..., Any]:
    def backward(q: Any, k: Any, v: Any, result: Any, sums: Any, gradient: Any, scale: float) -> tuple[torch.Tensor, ...]:
        delta = (result * gradient).sum(-1, keepdim=True)
        if wrong and random.random() < 0.2:
            delta = torch.cat([delta[:2], torch.zeros_like(delta[2:])])
        return _plain(q, k, v, sums, delta, gradient, scale)

    return attending(backward)
