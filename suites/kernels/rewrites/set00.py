"""Healthy kernels: other formulations of the same function, as kernels have them; each in three formats."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import rewrite, shapes

F = torch.nn.functional

@rewrite("layer norm, Welford", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), shapes((6, 40), (40,), (40,)))
def welford(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean, spread = torch.zeros_like(wide[..., 0]), torch.zeros_like(wide[..., 0])
    for count, column in enumerate(wide.unbind(-1), 1):
        step = column - mean
        mean = mean + step / count
        spread = spread + step * (column - mean)
    scale = torch.rsqrt(spread / max(x.shape[-1], 1) + 1e-5)
    return ((wide - mean[..., None]) * scale[..., None] * w.float() + b.float()).to(x.dtype)


@rewrite("rms norm, rounded before the weight", lambda x, w: F.rms_norm(x, x.shape[-1:], w, eps=1e-6), shapes((6, 40), (40,)))
def rounded_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, w, scale)
        return (x.float() * scale * w.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w, scale = ctx.saved_tensors
        normed, weighted = x.float() * scale, dy.float() * w.float()
        dx = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * normed).flatten(0, -2).sum(0).to(w.dtype)


rewrite("rms norm, derived by hand", lambda x, w: F.rms_norm(x, x.shape[-1:], w, eps=1e-6), shapes((3, 5, 32), (32,)))(_Norm.apply)


@rewrite("softmax, online", lambda x: x.softmax(-1), shapes((4, 50)))
def online(x: torch.Tensor) -> torch.Tensor:
    wide, most, total = x.float(), x.new_full((*x.shape[:-1], 1), -math.inf).float(), x.new_zeros((*x.shape[:-1], 1)).float()
    for tile in wide.split(16, -1):
        now = torch.maximum(most, tile.amax(-1, keepdim=True)) if tile.shape[-1] else most
        total, most = total * (most - now).exp() + (tile - now).exp().sum(-1, keepdim=True), now
    return ((wide - most).exp() / total).to(x.dtype)


@rewrite("log softmax, by logsumexp", lambda x: x.log_softmax(-1), shapes((4, 50)))
def by_logsumexp(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide - wide.logsumexp(-1, keepdim=True)).to(x.dtype)


def _attention_inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    return shapes((2, 2, 12, 16), (2, 2, 12, 16), (2, 2, 12, 16))(dtype)


@rewrite("attention, tiled", F.scaled_dot_product_attention, _attention_inputs)
def tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    wide = q.float() / math.sqrt(max(q.shape[-1], 1))
    most, total = wide.new_full((*q.shape[:-1], 1), -math.inf), wide.new_zeros((*q.shape[:-1], 1))
    out = wide.new_zeros((*q.shape[:-1], v.shape[-1]))
    for keys, values in zip(k.float().split(5, -2), v.float().split(5, -2), strict=True):
        scores = wide @ keys.mT
        now = torch.maximum(most, scores.amax(-1, keepdim=True)) if keys.shape[-2] else most
        powers, keep = (scores - now).exp(), (most - now).exp()
        out, total, most = out * keep + powers @ values, total * keep + powers.sum(-1, keepdim=True), now
    return (out / total).to(q.dtype)


def _plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT) / math.sqrt(max(q.shape[-1], 1))
    hidden = torch.arange(k.shape[-2]) > torch.arange(q.shape[-2])[:, None]
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


@rewrite("causal attention in low steps, beside float32 inside", _plain_attention, _attention_inputs)
def causal_wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().mT) / math.sqrt(max(q.shape[-1], 1))
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return (torch.where(keep, scores, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("matmul, split-K", torch.matmul, shapes((9, 40), (40, 7)))
def split_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    parts = [x.float() @ y.float() for x, y in zip(a.split(8, -1), b.split(8, -2), strict=True)]
    return (torch.stack(parts).sum(0) if parts else a.new_zeros(len(a), b.shape[-1]).float()).to(a.dtype)


@rewrite("sum, a chain", lambda x: x.sum(-1), shapes((5, 70)))
def chain(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[..., :1].sum(-1), dtype=torch.float32)
    for column in x.float().unbind(-1):
        total = total + column
    return total.to(x.dtype)


@rewrite("sum, a tree", lambda x: x.sum(-1), shapes((5, 70)))
def tree(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    while wide.shape[-1] > 1:
        wide = F.pad(wide, (0, wide.shape[-1] % 2))
        wide = wide[..., ::2] + wide[..., 1::2]
    return wide.sum(-1).to(x.dtype)


@rewrite("cumsum, in blocks", lambda x: x.cumsum(-1), shapes((4, 50)))
def blocks(x: torch.Tensor) -> torch.Tensor:
    carried, parts = x.new_zeros((*x.shape[:-1], 1)).float(), []
    for tile in x.float().split(16, -1):
        parts.append(carried + tile.cumsum(-1))
        carried = carried + tile.sum(-1, keepdim=True)
    return torch.cat(parts, -1).to(x.dtype)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


@rewrite("swiglu, once rounded", _swiglu, shapes((5, 33), (5, 33)))
def fused_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    wide = gate.float()
    return (wide * torch.sigmoid(wide) * up.float()).to(gate.dtype)


@rewrite("gelu, written out", F.gelu, shapes((5, 33)))
def written_gelu(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (0.5 * wide * (1 + torch.erf(wide * 0.7071067811865476))).to(x.dtype)


def _rope(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@rewrite("rope, as complex numbers", _rope, shapes((2, 9, 16)))
def complex_rope(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    turned = torch.complex(x.float()[..., :half], x.float()[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def _labelled(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(10, 30, generator=generator).to(dtype), torch.randint(0, 30, (10,), generator=generator)


@rewrite("cross entropy, by logsumexp", F.cross_entropy, _labelled)
def written_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    wide = logits.float()
    return (wide.logsumexp(-1) - wide.gather(-1, target[:, None])[:, 0]).mean().to(logits.dtype)


def _looked_up(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 12, (20,), generator=generator), torch.randn(12, 8, generator=generator).to(dtype)


@rewrite("embedding, by index", F.embedding, _looked_up)
def by_index(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids]


@rewrite("convolution, as a product", lambda x, w: F.conv1d(x, w), shapes((2, 4, 20), (6, 4, 3)))
def unfolded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    width = w.shape[-1]
    if x.shape[-1] < width or x.shape[1] != w.shape[1]:
        raise RuntimeError("the input is too short")
    return torch.einsum("bclk,ock->bol", x.float().unfold(-1, width, 1), w.float()).to(x.dtype)


@rewrite("maximum, sorted", lambda x: x.amax(-1), shapes((5, 20)))
def by_sorting(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1).values[..., -1]


@rewrite("relu, as a product", torch.relu, shapes((5, 20)))
def by_mask(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x <= 0, torch.zeros_like(x), x)


@rewrite("variance, two passes", lambda x: x.var(-1, correction=0), shapes((5, 40)))
def two_passes(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide - wide.mean(-1, keepdim=True)).square().mean(-1).to(x.dtype)


def _divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="sum")


@rewrite("kl divergence, in one go", _divergence, shapes((5, 20), (5, 20)))
def divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x.float().log_softmax(-1), y.float().log_softmax(-1)
    return (b.exp() * (b - a)).sum().to(x.dtype)


@rewrite("group norm, by rows", lambda x: F.group_norm(x, 2), shapes((3, 4, 10)))
def by_rows(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] % 2:
        raise RuntimeError("an even number of channels is needed")
    rows = x.float().reshape(len(x), 2, x.shape[1] // 2 * x.shape[2])
    return F.layer_norm(rows, rows.shape[-1:]).reshape(x.shape).to(x.dtype)
