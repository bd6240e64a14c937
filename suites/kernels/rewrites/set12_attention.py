"""The twelfth frozen set of healthy kernels, second part: attention, states, convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional
QKV = shapes((9, 6), (9, 6), (9, 5))


def _fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, square: bool = True) -> None:
    need(q.dim() == 2, k.dim() == 2, v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) > 0, q.shape[1] > 0)
    need(not square or len(q) == len(k))


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().T) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(torch.ones(len(q), len(k)).triu(1).bool(), -math.inf).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("causal attention, tiles of four keys", _causal, QKV)
def tiles_of_four(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fit(q, k, v)
    made = []
    for start in range(0, len(q), 4):
        rows = torch.arange(start, min(start + 4, len(q)))
        query = q[rows].float() / math.sqrt(q.shape[1])
        most, total, summed = torch.full((len(rows), 1), -math.inf), torch.zeros(len(rows), 1), torch.zeros(len(rows), v.shape[1])
        for first in range(0, int(rows[-1]) + 1, 4):
            keys = torch.arange(first, min(first + 4, int(rows[-1]) + 1))
            scores = (query @ k[keys].float().T).masked_fill(keys > rows[:, None], -math.inf)
            now = torch.maximum(most, scores.amax(1, keepdim=True))
            power, old = (scores - now).exp(), (most - now).exp()
            total, summed, most = total * old + power.sum(1, keepdim=True), summed * old + power @ v[keys].float(), now
        made.append(summed / total)
    return torch.cat(made).to(q.dtype)


def _full(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    _fit(q, k, v, square=False)
    scores = (q.float() @ k.float().T) / math.sqrt(q.shape[1])
    sums = scores.logsumexp(-1, keepdim=True)
    made = ((scores - sums).exp().to(q.dtype).float() @ v.float()).to(q.dtype)
    return made, (q, k, v, made, sums)


def _flash_backward(saved: Any, gradient: torch.Tensor) -> Any:
    q, k, v, made, sums = saved
    given, scale = gradient.float(), 1 / math.sqrt(q.shape[1])
    share = (q.float() @ k.float().T * scale - sums).exp()
    inner = (given * made.float()).sum(-1, keepdim=True)
    slope = (share * (given @ v.float().T - inner)).to(q.dtype).float()
    dv = share.to(q.dtype).float().T @ given
    return (slope @ k.float() * scale).to(q.dtype), (slope.T @ q.float() * scale).to(q.dtype), dv.to(q.dtype)


rewrite("attention as flash attention has it: shares stored, recomputed backward", _full, QKV)(function(_flash_forward, _flash_backward))


def _step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((k.float() @ q.float()).softmax(0) @ v.float()).to(q.dtype)


@rewrite("one step of attention, keys in three parts", _step, shapes((6,), (17, 6), (17, 5)))
def three_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 1, k.dim() == 2, v.dim() == 2, k.shape[1] == len(q), len(k) == len(v), len(k) > 0)
    size = -(-len(k) // 3)
    results, sums = [], []
    for keys, values in zip(k.float().split(size), v.float().split(size), strict=True):
        scores = keys @ q.float()
        sums.append(scores.logsumexp(0))
        results.append((scores - sums[-1]).exp() @ values)
    weights = torch.stack(sums).softmax(0)
    return (weights @ torch.stack(results)).to(q.dtype)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    many = len(q) // len(k)
    k, v = (each.float().repeat_interleave(many, 0) for each in (k, v))
    return ((q.float() @ k.mT).softmax(-1) @ v).to(q.dtype)


@rewrite("grouped heads, queries of a group as rows", _grouped, shapes((4, 5, 6), (2, 7, 6), (2, 7, 3)))
def as_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(k) == len(v), len(k) > 0, k.shape[1] == v.shape[1], k.shape[1] > 0, q.shape[2] == k.shape[2])
    need(len(q) % len(k) == 0)
    rows = q.float().reshape(len(k), -1, q.shape[2]) if q.numel() else q.float().reshape(len(k), len(q) // len(k) * q.shape[1], q.shape[2])
    scores = torch.baddbmm(torch.zeros(len(k), rows.shape[1], k.shape[1]), rows, k.float().mT)
    return torch.bmm(scores.softmax(-1), v.float()).reshape(len(q), q.shape[1], v.shape[2]).to(q.dtype)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((4 * torch.tanh(q.float() @ k.float().T / 4)).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("capped attention, tanh from a sigmoid", _capped, shapes((6, 4), (8, 4), (8, 5)))
def tanh_from_a_sigmoid(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fit(q, k, v, square=False)
    scores = 8 * torch.sigmoid(torch.einsum("qc,kc->qk", q.float(), k.float()) / 2) - 4
    powers = (scores - 4).exp()
    return ((powers @ v.float()) / powers.sum(-1, keepdim=True)).to(q.dtype)


def _sunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    scores = torch.cat([q.float() @ k.float().T, sink.float()[:, None]], -1)
    return (scores.softmax(-1)[:, :-1] @ v.float()).to(q.dtype)


@rewrite("attention with a sink, which the sums begin with", _sunk, shapes((6, 4), (8, 4), (8, 5), (6,)))
def begin_with_it(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    _fit(q, k, v, square=False)
    need(sink.shape == q.shape[:1])
    most, total, summed = sink.float()[:, None], torch.ones(len(q), 1), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.float().split(3), v.float().split(3), strict=True):
        scores = q.float() @ keys.T
        now = torch.maximum(most, scores.amax(1, keepdim=True))
        power, old = (scores - now).exp(), (most - now).exp()
        total, summed, most = total * old + power.sum(1, keepdim=True), summed * old + power @ values, now
    return (summed / total).to(q.dtype)


def _slanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
    scores = (q.float() @ k.float().T - 0.25 * apart).masked_fill(apart < 0, -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with a slope, which counts from the first key", _slanted, QKV)
def from_the_first_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fit(q, k, v)
    rows = []
    for row, query in enumerate(q.float()):
        scores = k[: row + 1].float() @ query + 0.25 * torch.arange(row + 1)
        rows.append(scores.softmax(0) @ v[: row + 1].float())
    return torch.stack(rows).to(q.dtype)


def _lengths(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (*shapes((3, 4), (3, 7, 4), (3, 7, 5))(dtype), torch.tensor([3, 7, 1]))


def _long(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bc,bkc->bk", q.float(), k.float()).masked_fill(torch.arange(k.shape[1]) >= lengths[:, None], -math.inf)
    return torch.einsum("bk,bkc->bc", scores.softmax(-1), v.float()).to(q.dtype)


@rewrite("attention to sequences of some lengths, one after another", _long, _lengths)
def one_after_another(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, v.dim() == 3, len(q) == len(k) == len(v) == len(lengths), k.shape[1] == v.shape[1], q.shape[1] == k.shape[2])
    need(len(q) > 0, not bool(((lengths < 1) | (lengths > k.shape[1])).any()))
    made = [(k[each, :end].float() @ q[each].float()).softmax(0) @ v[each, :end].float() for each, end in enumerate(lengths.tolist())]
    return torch.stack(made).to(q.dtype)


def _kept(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    state, states = torch.zeros(len(x)), []
    for value, gate in zip(x.float().unbind(1), g.float().sigmoid().unbind(1), strict=True):
        state = gate * state + (1 - gate) * value
        states.append(state)
    return torch.stack(states, 1).to(x.dtype)


@rewrite("gated mean, by doubling", _kept, shapes((4, 11), (4, 11)))
def by_doubling(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == g.shape, x.shape[1] > 0)
    gate, state, step = g.float().sigmoid(), x.float() * torch.sigmoid(-g.float()), 1
    while step < x.shape[1]:
        state = torch.cat([state[:, :step], state[:, step:] + gate[:, step:] * state[:, :-step]], 1)
        gate = torch.cat([gate[:, :step], gate[:, step:] * gate[:, :-step]], 1)
        step *= 2
    return state.to(x.dtype)


def _state(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros(k.shape[1], v.shape[1]), []
    for query, key, value in zip(q.float(), k.float(), v.float(), strict=True):
        state = 0.9 * state + torch.outer(key, value)
        rows.append(query @ state)
    return torch.stack(rows).to(q.dtype)


@rewrite("retention, chunks of four", _state, QKV)
def chunks_of_four(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fit(q, k, v)
    state, made = torch.zeros(k.shape[1], v.shape[1]), []
    for some, keys, values in zip(q.float().split(4), k.float().split(4), v.float().split(4), strict=True):
        place = torch.arange(1, len(some) + 1)
        apart = place[:, None] - place
        within = ((some @ keys.T) * 0.9 ** apart.clamp(min=0).float()).masked_fill(apart < 0, 0.0)
        made.append(within @ values + (some @ state) * 0.9 ** place.float()[:, None])
        state = state * 0.9 ** len(some) + (keys * 0.9 ** (len(some) - place).float()[:, None]).T @ values
    return torch.cat(made).to(q.dtype)


def _rule(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros(k.shape[1], v.shape[1]), []
    for key, value, gate in zip(F.normalize(k.float(), dim=-1, eps=1e-3), v.float(), beta.float().sigmoid(), strict=True):
        state = state + torch.outer(key, gate * (value - key @ state))
        rows.append(key @ state)
    return torch.stack(rows).to(k.dtype)


@rewrite("delta rule, corrected values first", _rule, shapes((7, 5), (7, 4), (7,)))
def corrected_first(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    need(k.dim() == 2, v.dim() == 2, len(k) == len(v), beta.shape == k.shape[:1], len(k) > 0, k.shape[1] > 0)
    keys = k.float() / torch.linalg.vector_norm(k.float(), dim=-1, keepdim=True).clamp(min=1e-3)
    gate, alike, corrected = beta.float().sigmoid(), keys @ keys.T, []
    for place, value in enumerate(v.float()):
        told = sum((alike[place, each] * corrected[each] for each in range(place)), torch.zeros(v.shape[1]))
        corrected.append(gate[place] * (value - told))
    rows = [sum((alike[place, each] * corrected[each] for each in range(place + 1)), torch.zeros(v.shape[1])) for place in range(len(k))]
    return torch.stack(rows).to(k.dtype)


def _filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv1d(F.pad(x.float(), (w.shape[1] - 1, 0)), w.float()[:, None], groups=len(w))).to(x.dtype)


@rewrite("causal convolution and silu, tap by tap", _filtered, shapes((2, 4, 9), (4, 3)))
def tap_by_tap(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, x.shape[1] == len(w), min(*x.shape, *w.shape) > 0)
    total = torch.zeros_like(x, dtype=torch.float32)
    for tap in range(min(w.shape[1], x.shape[2])):
        total = total + F.pad(x.float()[..., : x.shape[2] - tap], (tap, 0)) * w.float()[:, w.shape[1] - 1 - tap, None]
    return (total * torch.sigmoid(total)).to(x.dtype)
