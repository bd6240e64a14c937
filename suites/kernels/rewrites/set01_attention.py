"""Healthy kernels that the judge had not seen, second part: attention, positions, gates. Written and committed before any of them was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional
HEADS = shapes(*[(2, 3, 12, 8)] * 3)


def _scale(q: torch.Tensor) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1))


@rewrite("attention in powers of two", F.scaled_dot_product_attention, HEADS)
def powers_of_two(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() * (_scale(q) * math.log2(math.e))) @ k.float().mT
    if not k.shape[-2]:
        return torch.zeros_like(q) @ v.new_zeros(q.shape[-1], v.shape[-1])
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (powers @ v.float() / powers.sum(-1, keepdim=True)).to(q.dtype)


@rewrite("attention over parts of the keys, merged", F.scaled_dot_product_attention, HEADS)
def merged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    wide, parts, logs = q.float() * _scale(q), [], []
    for keys, values in zip(k.float().split(5, -2), v.float().split(5, -2), strict=True):
        scores = wide @ keys.mT
        logs.append(scores.logsumexp(-1))
        parts.append((scores - logs[-1][..., None]).exp() @ values)
    if not k.shape[-2]:
        return torch.zeros_like(q) @ v.new_zeros(q.shape[-1], v.shape[-1])
    together = torch.stack(logs)
    weights = (together - together.logsumexp(0)).exp()
    return (torch.stack(parts) * weights[..., None]).sum(0).to(q.dtype)


class _Flash(torch.autograd.Function):
    """Keeps the result and the logarithm of each row's sum, and makes the scores again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q.float() @ k.float().mT * _scale(q)
        logs = scores.logsumexp(-1, keepdim=True)
        out = ((scores - logs).exp() @ v.float()).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, logs)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, out, logs = ctx.saved_tensors
        dy, scale = gradient.float(), _scale(q)
        weights = (q.float() @ k.float().mT * scale - logs).exp()
        delta = (dy * out.float()).sum(-1, keepdim=True)
        dscores = weights * (dy @ v.float().mT - delta) * scale
        return (dscores @ k.float()).to(q.dtype), (dscores.mT @ q.float()).to(k.dtype), (weights.mT @ dy).to(v.dtype)


rewrite("attention, derived from its result", F.scaled_dot_product_attention, HEADS)(_Flash.apply)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, groups = q.shape[1], k.shape[1]
    need(groups != 0 and not (heads % groups))
    return F.scaled_dot_product_attention(q, k.repeat_interleave(heads // groups, 1), v.repeat_interleave(heads // groups, 1))


@rewrite("grouped heads, without repeating keys", _grouped, shapes((3, 6, 10, 8), (3, 2, 10, 8), (3, 2, 10, 8)))
def by_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(k.shape[1] != 0 and not (q.shape[1] % k.shape[1]))
    wide = q.float().unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
    weights = (wide @ k.float()[:, :, None].mT * _scale(q)).softmax(-1)
    return (weights @ v.float()[:, :, None]).flatten(1, 2).to(q.dtype)


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(columns <= rows) & (columns > rows - 4))


@rewrite("sliding window, one band of keys for a few rows", _window, HEADS)
def banded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape[-2] == k.shape[-2])
    made = []
    for start in range(0, q.shape[-2], 4):
        some, first = q[..., start : start + 4, :].float(), max(start - 3, 0)
        keys, values = k[..., first : start + 4, :].float(), v[..., first : start + 4, :].float()
        rows, columns = torch.arange(start, start + some.shape[-2])[:, None], torch.arange(first, first + keys.shape[-2])
        scores = (some @ keys.mT * _scale(q)).masked_fill((columns > rows) | (columns <= rows - 4), -math.inf)
        made.append(scores.softmax(-1) @ values)
    return torch.cat(made, -2).to(q.dtype) if made else torch.zeros_like(q) @ v.new_zeros(q.shape[-1], v.shape[-1])


def _pairs(x: torch.Tensor) -> torch.Tensor:
    """Neighbours turned together, as in the paper."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    cos, sin = angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


@rewrite("rope of neighbours, as complex numbers", _pairs, shapes((2, 3, 9, 8)))
def complex_pairs(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[-1] % 2))
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(half) / max(half, 1))
    pairs = x.float().clone(memory_format=torch.contiguous_format).unflatten(-1, (half, 2))
    turned = torch.view_as_complex(pairs) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def _half_turn(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def _tables(dtype: torch.dtype) -> tuple[Any, ...]:
    (x,) = shapes((2, 3, 9, 8))(dtype)
    angles = torch.arange(9)[:, None] / 100 ** (torch.arange(4) / 4)
    return x.requires_grad_(), angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        need(not (x.shape[-1] % 2))
        ctx.save_for_backward(cos, sin)
        return (x.float() * cos + _half_turn(x.float()) * sin).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        dy = gradient.float()
        return (dy * cos - _half_turn(dy * sin)).to(gradient.dtype), None, None


rewrite("rope with tables, turned back", lambda x, cos, sin: (x.float() * cos + _half_turn(x.float()) * sin).to(x.dtype), _tables)(_Rope.apply)


@rewrite("gate: the two best, normalised", lambda x: F.normalize(x.softmax(-1).topk(2).values, p=1.0, dim=-1), shapes((8, 12)))
def gate(x: torch.Tensor) -> torch.Tensor:
    return x.float().topk(2).values.softmax(-1).to(x.dtype)
