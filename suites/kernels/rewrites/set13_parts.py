"""The thirteenth frozen set of healthy kernels, last part: sums added as atomics do, gates, blocks that a table keeps, and recomputation."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


@rewrite("product in parts that are added in any order", lambda x, w: (x.float() @ w.float()).to(x.dtype), shapes((4, 23), (23, 5)))
def in_any_order(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w))
    parts = [one.float() @ two.float() for one, two in zip(x.split(3, 1), w.split(3), strict=True)]
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(len(parts))).tolist()
    made = torch.zeros(len(x), w.shape[1])
    for place in order:
        made = made + parts[place]
    return made.to(x.dtype)


def _kept_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Each query sees two blocks of two keys."""
    seen = torch.zeros(len(q), len(k) // 2).bool().scatter(1, table, torch.ones(table.shape).bool()).repeat_interleave(2, 1)
    return ((q.float() @ k.float().T).masked_fill(~seen, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention to blocks that a table keeps, gathered", _kept_blocks, lambda dtype: (
    *shapes((5, 4), (12, 4), (12, 3))(dtype), torch.tensor([[0, 4], [1, 5], [2, 3], [5, 0], [3, 1]])))  # fmt: skip
def blocks_gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 2, v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) % 2 == 0, len(table) == len(q))
    need(table.dim() == 2, table.shape[1] > 0, not bool(((table < 0) | (table >= len(k) // 2)).any()))
    made = []
    for query, blocks in zip(q.float(), table, strict=True):
        places = (blocks.unique()[:, None] * 2 + torch.arange(2)).flatten()
        made.append((k[places].float() @ query).softmax(0) @ v[places].float())
    return torch.stack(made).to(q.dtype) if made else q.new_zeros(0, v.shape[1]) + 0 * v.sum()


def _gated_forward(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == g.shape, w.dim() == 2, x.shape[1] == w.shape[1], x.shape[1] > 0)
    return (F.silu(g.float()) * x.float() @ w.float().T).to(x.dtype), (x, g, w)


def _gated_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, g, w = saved
    given, share = gradient.float(), torch.sigmoid(g.float())
    inner, opened = given @ w.float(), share * g.float()
    slope = inner * x.float() * (share + opened * torch.sigmoid(-g.float()))
    return (inner * opened).to(x.dtype), slope.to(x.dtype), (given.T @ (opened * x.float())).to(x.dtype)


rewrite("a gate and a product in one, opened again on the way back", lambda x, g, w: F.linear(x.float() * F.silu(g.float()), w.float()).to(x.dtype),
        shapes((5, 8), (5, 8), (3, 8)))(function(_gated_forward, _gated_backward))  # fmt: skip


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return (F.scaled_dot_product_attention(q.float(), k.float(), v.float()).movedim(0, 1).flatten(1) @ o.float()).to(q.dtype)


@rewrite("attention and the projection behind it, heads added one by one", _attended, shapes((2, 5, 4), (2, 6, 4), (2, 6, 3), (6, 7)))
def heads_added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == len(k) == len(v), k.shape[1] == v.shape[1], q.shape[2] == k.shape[2], min(k.shape) > 0)
    need(o.dim() == 2, len(o) == len(v) * v.shape[2], len(q) > 0)
    total = torch.zeros(q.shape[1], o.shape[1])
    for one, two, three, four in zip(q.float(), k.float(), v.float(), o.float().view(len(v), v.shape[2], o.shape[1]), strict=True):
        shares = (one @ two.T / math.sqrt(q.shape[2])).softmax(-1)
        total = total + shares @ (three @ four)
    return total.to(q.dtype)


def _flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == len(k) == len(v), k.shape[1] == v.shape[1], q.shape[2] == k.shape[2], min(k.shape) > 0)
    scores = q.float() @ k.float().mT
    sums = scores.logsumexp(-1, keepdim=True)
    made = ((scores - sums).exp() @ v.float()).to(q.dtype)
    return made, (q, k, v, made, sums)


def _flash_backward(saved: Any, gradient: torch.Tensor) -> Any:
    q, k, v, made, sums = saved
    given = gradient.float()
    inner, dq = (given * made.float()).sum(-1, keepdim=True), torch.zeros(q.shape)
    dk, dv = torch.zeros(k.shape), torch.zeros(v.shape)
    for first in range(0, k.shape[1], 3):
        part = slice(first, first + 3)
        keys, values = k[:, part].float(), v[:, part].float()
        share = (q.float() @ keys.mT - sums).exp()
        slope = share * (given @ values.mT - inner)
        dq = dq + slope @ keys
        dk[:, part], dv[:, part] = slope.mT @ q.float(), share.mT @ given
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("hqk,hkc->hqc", torch.einsum("hqc,hkc->hqk", q.float(), k.float()).softmax(-1), v.float()).to(q.dtype)


rewrite("attention in heads, three keys at a time back from its stored result", _heads, shapes((2, 5, 4), (2, 7, 4), (2, 7, 3)))(
    function(_flash_forward, _flash_backward)
)


def _turned_gates(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """One step of a minimal gated unit."""
    gate = torch.sigmoid(x.float() @ w.float() + h.float() @ u.float())
    return ((1 - gate) * h.float() + gate * torch.tanh(x.float() @ w.float())).to(x.dtype)


@rewrite("one step of a gated unit, both products in one", _turned_gates, shapes((3, 4), (3, 5), (4, 5), (5, 5)))
def both_products(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, h.dim() == 2, len(x) == len(h), w.shape == (x.shape[1], h.shape[1]), u.shape == (h.shape[1],) * 2)
    gate = torch.sigmoid(torch.cat([x, h], -1).float() @ torch.cat([w, u]).float())
    return torch.lerp(h.float(), torch.tanh(torch.einsum("bi,io->bo", x.float(), w.float())), gate).to(x.dtype)


@rewrite("channels weighed by a gate of their means, means by channel", lambda x, w: (
    x.float() * torch.sigmoid(x.float().mean(-1) @ w.float())[..., None]).to(x.dtype), shapes((2, 4, 9), (4, 4)))  # fmt: skip
def means_by_channel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == (x.shape[1],) * 2, min(x.shape) > 0)
    mean = torch.stack([channel.float().sum(-1) / x.shape[2] for channel in x.unbind(1)], 1)
    return torch.mul(x.float(), torch.sigmoid(mean @ w.float())[..., None]).to(x.dtype)


@rewrite("largest of all rows for each class, a class at a time", lambda x, y: torch.full((4, x.shape[1]), -8.0).to(x.dtype).index_reduce(
    0, y, x, "amax"), lambda dtype: (*shapes((11, 3))(dtype), whole(11, most=4)))  # fmt: skip
def a_class_at_a_time(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], not bool(((y < 0) | (y >= 4)).any()))
    floor = torch.full((1, x.shape[1]), -8.0).to(x.dtype)
    return torch.stack([torch.cat([floor, x[y == place]]).amax(0) for place in range(4)])


@rewrite("polynomial of degree three, powers first", lambda x: (((0.125 * x.float() - 0.5) * x.float() + 1) * x.float() - 2).to(x.dtype),
         shapes((5, 6)))  # fmt: skip
def powers_first(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    square = wide * wide
    return (0.125 * (square * wide) + (wide - 0.5 * square) - 2).to(x.dtype)


def _walked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.tanh(x.float() @ w.float()) @ w.float().T).to(x.dtype)


def _walk_forward(x: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w))
    return torch.tanh(torch.tanh(x.float() @ w.float()) @ w.float().T).to(x.dtype), (x, w)


def _walk_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w = saved
    inner = torch.tanh(x.float() @ w.float())
    outer = torch.tanh(inner @ w.float().T)
    back = gradient.float() * (1 - outer) * (1 + outer)
    deep = (back @ w.float()) * (1 - inner) * (1 + inner)
    return (deep @ w.float().T).to(x.dtype), (x.float().T @ deep + back.T @ inner).to(w.dtype)


rewrite("there and back through one weight, both layers computed again", _walked, shapes((4, 5), (5, 3)))(function(_walk_forward, _walk_backward))
