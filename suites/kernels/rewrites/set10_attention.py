"""A tenth frozen set of healthy kernels: attention, norms, scans and segments. Written and committed before any was tried.

Two were mended, which were accused rightly: gates in sums of logarithms lost digits, and gradients of a carry were added up in the low format.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == 3 and q.shape == k.shape and v.shape[:2] == q.shape[:2] and v.dim() == 3 and q.shape[-1])


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().mT) / math.sqrt(max(q.shape[-1], 1))
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("causal attention, four queries and four keys at a time, tiles behind the mask left out", causal, shapes((2, 11, 8), (2, 11, 8), (2, 11, 6)))
def left_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    made, scale = [q.new_zeros(len(q), 0, v.shape[-1]).float()], 1 / math.sqrt(q.shape[-1])
    for start in range(0, q.shape[1], 4):
        rows = q[:, start : start + 4].float() * scale
        count = rows.shape[1]
        most, total, held = torch.full((len(q), count, 1), -math.inf), torch.zeros(len(q), count, 1), torch.zeros(len(q), count, v.shape[-1])
        for first in range(0, start + count, 4):
            some = rows @ k[:, first : first + 4].float().mT
            later = torch.arange(first, first + some.shape[-1]) > torch.arange(start, start + count)[:, None]
            some = some.masked_fill(later, -math.inf)
            now = torch.maximum(most, some.amax(-1, keepdim=True))
            powers, old = (some - now).exp(), (most - now).exp()
            total, held, most = total * old + powers.sum(-1, keepdim=True), held * old + powers @ v[:, first : first + 4].float(), now
        made.append(held / total)
    return torch.cat(made, 1).to(q.dtype)


class _Causal(torch.autograd.Function):
    """Causal attention that keeps the logarithms of its sums; the way back goes over the keys in tiles of five."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        _heads(q, k, v)
        scores = (q.float() @ k.float().mT) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        sums = scores.logsumexp(-1, keepdim=True)
        out = (scores - sums).exp() @ v.float()
        ctx.save_for_backward(q, k, v, sums, out)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, sums, out = ctx.saved_tensors
        scale, given = 1 / math.sqrt(q.shape[-1]), gradient.float()
        delta, places = (given * out).sum(-1, keepdim=True), torch.arange(q.shape[1])[:, None]
        dq, dk, dv = torch.zeros(q.shape), [torch.zeros(len(q), 0, k.shape[-1])], [torch.zeros(len(q), 0, v.shape[-1])]
        for first in range(0, q.shape[1], 5):
            keys, values = k[:, first : first + 5].float(), v[:, first : first + 5].float()
            later = torch.arange(first, first + keys.shape[1]) > places
            share = ((q.float() @ keys.mT) * scale - sums).exp().masked_fill(later, 0)
            back = (share * (given @ values.mT - delta) * scale).masked_fill(later, 0)
            dq += back @ keys
            dk.append(back.mT @ q.float())
            dv.append(share.mT @ given)
        return dq.to(q.dtype), torch.cat(dk, 1).to(k.dtype), torch.cat(dv, 1).to(v.dtype)


rewrite("causal attention, its way back in tiles of keys",
        lambda q, k, v: F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).to(q.dtype),
        shapes((2, 12, 8), (2, 12, 8), (2, 12, 8)))(_Causal.apply)  # fmt: skip


def one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention, place after place."""
    state, made = torch.zeros(len(q), k.shape[-1], v.shape[-1]), [torch.zeros(len(q), 0, v.shape[-1])]
    for place in range(q.shape[1]):
        state = state + k[:, place, :, None].float() * v[:, place, None].float()
        made.append(q[:, place, None].float() @ state)
    return torch.cat(made, 1).to(q.dtype)


@rewrite("linear attention, chunks of four with a state between them", one_by_one, shapes((2, 10, 5), (2, 10, 5), (2, 10, 6)))
def with_states(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    state, made = torch.zeros(len(q), k.shape[-1], v.shape[-1]), [torch.zeros(len(q), 0, v.shape[-1])]
    for start in range(0, q.shape[1], 4):
        queries, keys, values = (each[:, start : start + 4].float() for each in (q, k, v))
        made.append(queries @ state + (queries @ keys.mT).tril() @ values)
        state = state + keys.mT @ values
    return torch.cat(made, 1).to(q.dtype)


def _fading(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Linear attention whose state fades by a gate for each place."""
    state, made = torch.zeros(len(q), k.shape[-1], v.shape[-1]), [torch.zeros(len(q), 0, v.shape[-1])]
    for place in range(q.shape[1]):
        state = state * F.logsigmoid(g[:, place].float()).exp()[:, None, None] + k[:, place, :, None].float() * v[:, place, None].float()
        made.append(q[:, place, None].float() @ state)
    return torch.cat(made, 1).to(q.dtype)


@rewrite("gated linear attention, chunks of eight and gates summed up in logarithms", _fading, shapes((2, 11, 4), (2, 11, 4), (2, 11, 5), (2, 11)))
def in_logarithms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    need(g.shape == q.shape[:2])
    state, made = torch.zeros(len(q), k.shape[-1], v.shape[-1]), [torch.zeros(len(q), 0, v.shape[-1])]
    for start in range(0, q.shape[1], 8):
        queries, keys, values = (each[:, start : start + 8].float() for each in (q, k, v))
        logs = F.logsigmoid(g[:, start : start + 8].float())
        later = torch.ones(logs.shape[1], logs.shape[1], dtype=torch.bool).triu(1)
        steps = logs[:, :, None].expand(-1, -1, logs.shape[1]).masked_fill(~later.mT, 0)
        apart = steps.cumsum(1).masked_fill(later, -math.inf)  # no difference of sums, which loses digits behind a gate that is shut
        made.append(((queries @ keys.mT) * apart.exp()) @ values + (queries * logs.cumsum(1).exp()[..., None]) @ state)
        state = state * logs.sum(1).exp()[:, None, None] + (keys * apart[:, -1].exp()[..., None]).mT @ values
    return torch.cat(made, 1).to(q.dtype)


@rewrite("window of three keys, tiles outside of it left out",
         lambda q, k, v: ((q.float() @ k.float().mT).masked_fill(
             ~(torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril() & torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(-2)), -math.inf
         ).softmax(-1) @ v.float()).to(q.dtype), shapes((2, 9, 4), (2, 9, 4), (2, 9, 4)))  # fmt: skip
def outside_left_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    made = [torch.zeros(len(q), 0, v.shape[-1])]
    for place in range(q.shape[1]):
        first = max(place - 2, 0)
        share = (q[:, place, None].float() @ k[:, first : place + 1].float().mT).softmax(-1)
        made.append(share @ v[:, first : place + 1].float())
    return torch.cat(made, 1).to(q.dtype)


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    one, two = x.float().chunk(2, -1)
    c, s = angles.float().cos(), angles.float().sin()
    return torch.cat([one * c - two * s, two * c + one * s], -1).to(x.dtype)


@rewrite("halves turned in a copy, in place", _turn, shapes((6, 8), (6, 4)))
def in_a_copy(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and not (x.shape[1] % 2) and angles.shape == (len(x), x.shape[1] // 2))
    held, half = x.float().clone(), x.shape[1] // 2
    before, c, s = held[:, :half].clone(), angles.float().cos(), angles.float().sin()
    held[:, :half].mul_(c).sub_(held[:, half:].clone() * s)
    held[:, half:].mul_(c).add_(before * s)
    return held.to(x.dtype)


class _AddNorm(torch.autograd.Function):
    """A sum and its rms norm, both given back; the way back adds both gradients up in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        need(x.dim() == 2 and x.shape == r.shape and w.shape == x.shape[1:] and len(w))
        total = x.float() + r.float()
        scale = (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(total, scale, w)
        return (total * scale * w.float()).to(x.dtype), total.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total, scale, w = ctx.saved_tensors
        normed, given = total * scale, gradient.float() * w.float()
        back = scale * (given - normed * (given * normed).mean(-1, keepdim=True)) + other.float()
        return back.to(gradient.dtype), back.to(gradient.dtype), (gradient.float() * normed).sum(0).to(w.dtype)


def _add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.float() + r.float()
    return F.rms_norm(total, total.shape[-1:], w.float(), 1e-5).to(x.dtype), total.to(x.dtype)


rewrite("sum and rms norm, both gradients added up", _add_norm, shapes((5, 14), (5, 14), (14,)))(_AddNorm.apply)


@rewrite("layer norm, moments merged in a tree", lambda x, w, b: F.layer_norm(x.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype),
         shapes((4, 21), (21,), (21,)))  # fmt: skip
def in_a_tree(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == x.shape[1:] and b.shape == w.shape and len(w))
    parts = [(1, each, torch.zeros_like(each)) for each in x.float().unbind(-1)]
    while len(parts) > 1:
        merged = []
        for (n, mean, spread), (m, other, rest) in zip(parts[::2], parts[1::2], strict=False):
            apart = other - mean
            merged.append((n + m, mean + apart * (m / (n + m)), spread + rest + apart.square() * (n * m / (n + m))))
        parts = merged + parts[len(merged) * 2 :]
    count, mean, spread = parts[0]
    return ((x.float() - mean[:, None]) * (spread / count + 1e-5).rsqrt()[:, None] * w.float() + b.float()).to(x.dtype)


@rewrite("layer norm gated by silu, in two passes over tiles",
         lambda x, z, w: (F.layer_norm(x.float(), x.shape[-1:], w.float()) * F.silu(z.float())).to(x.dtype),
         shapes((4, 19), (4, 19), (19,)))  # fmt: skip
def gated(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == z.shape and w.shape == x.shape[1:] and len(w))
    mean = sum(tile.sum(-1, keepdim=True) for tile in x.float().split(8, -1)) / len(w)
    spread = sum((tile - mean).square().sum(-1, keepdim=True) for tile in x.float().split(8, -1)) / len(w)
    opened = z.float() / (1 + (-z.float()).exp()) if not z.requires_grad else F.silu(z.float())
    return ((x.float() - mean) * torch.rsqrt(spread + 1e-5) * w.float() * opened).to(x.dtype)


@rewrite("group norm, one group after the other", lambda x, w: F.group_norm(x.float(), 3, w.float(), None, 1e-4).to(x.dtype), shapes((2, 6, 7), (6,)))
def one_group(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and not (x.shape[1] % 3) and w.shape == x.shape[1:2] and x.numel())
    made = []
    for some in x.float().chunk(3, 1):
        middle = some - some.mean((1, 2), keepdim=True)
        made.append(middle / (middle.square().mean((1, 2), keepdim=True) + 1e-4).sqrt())
    return (torch.cat(made, 1) * w.float()[:, None]).to(x.dtype)


@rewrite(
    "sums from behind, turned over twice", lambda x: (x.float().sum(-1, keepdim=True) - x.float().cumsum(-1) + x.float()).to(x.dtype), shapes((4, 13))
)
def turned_over(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    return x.float().flip(-1).cumsum(-1).flip(-1).to(x.dtype)


@rewrite("largest so far, in blocks of five", lambda x: x.cummax(-1).values, shapes((3, 17)))
def so_far(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made, carry = [x[:, :0].float()], None
    for some in x.float().split(5, -1):
        here = some.cummax(-1).values
        here = here if carry is None else torch.maximum(here, carry)
        carry = here[:, -1:] if here.shape[-1] else carry
        made.append(here)
    return torch.cat(made, -1).to(x.dtype)


@rewrite("products so far, blocks with a carry", lambda x: x.float().cumprod(-1).to(x.dtype), shapes((3, 11)))
def with_a_carry(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made, carry = [x[:, :0].float()], torch.ones(len(x), 1)
    for some in x.float().split(4, -1):
        steps = [carry]
        for column in some.unbind(-1):
            steps.append(steps[-1] * column[:, None])
        made += steps[1:]
        carry = steps[-1]
    return torch.cat(made, -1).to(x.dtype)
