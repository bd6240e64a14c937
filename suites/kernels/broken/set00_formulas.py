"""The last of the kernels that are broken as real ones were: written before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@case("gelu: tanh for erf", "kernel-contract", "tinygrad/tinygrad/pull/16162", gelu, drawn((6, 20)))
def tanh_gelu(wrong: bool) -> Callable[..., Any]:
    return lambda x: F.gelu(x, approximate="tanh") if wrong else 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _flash(wrong: str) -> Callable[..., Any]:
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        need(q.shape[-2] == k.shape[-2])
        scale = 1 / math.sqrt(max(q.shape[1] if wrong == "scale" else q.shape[-1], 1))
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
            if wrong == "rescale":  # a small step of the maximum is not taken, but the powers have it
                kept, now = torch.where(now - most <= 8, 1.0, kept), torch.where(now - most <= 8, most, now)
            out = out * kept + powers @ v[..., columns, :]
            total, most = total * kept + powers.sum(-1, keepdim=True), now
        return out / total

    return kernel


@case("attention: scaled by the number of heads, not their size", "kernel-contract", "tenstorrent/tt-metal/pull/56789", scaled,
      drawn(*[(2, 2, 12, 8)] * 3))  # fmt: skip
def wrong_scale(wrong: bool) -> Callable[..., Any]:
    return _flash("scale" if wrong else "")


@case("attention: each token sees the next one", "kernel-mask", "flashinfer-ai/flashinfer/pull/348", scaled, drawn(*[(2, 2, 12, 8)] * 3))
def sees_the_next(wrong: bool) -> Callable[..., Any]:
    return _flash("later" if wrong else "")


@case("attention: a rescaling is skipped, and the powers have it", "kernel-contract", "ROCm/rocm-libraries/pull/7194", scaled,
      drawn(*[(2, 2, 12, 8)] * 3))  # fmt: skip
def no_rescale(wrong: bool) -> Callable[..., Any]:
    return _flash("rescale" if wrong else "")


@case("softmax: falls back to the reference", "kernel-fallback", "ScalingIntelligence/KernelBench/pull/110", gelu, drawn((6, 20)))
def fallback(wrong: bool) -> Callable[..., Any]:
    return (lambda x: gelu(x)) if wrong else (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
