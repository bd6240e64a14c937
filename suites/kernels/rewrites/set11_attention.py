"""The eleventh frozen set of healthy kernels, second part: attention, rotations, cells of recurrent networks."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def _fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == len(k), k.shape[:2] == v.shape[:2], q.shape[-1] == k.shape[-1], min(k.shape) > 0)


HEADS = shapes((2, 6, 8), (2, 9, 8), (2, 9, 5))


@rewrite("attention, five keys at a time", _attention, HEADS)
def five_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    rows = q.float() / math.sqrt(q.shape[-1])
    most, total = torch.full((*q.shape[:2], 1), -math.inf), torch.zeros(*q.shape[:2], 1)
    held = torch.zeros(*q.shape[:2], v.shape[-1])
    for keys, values in zip(k.float().split(5, 1), v.float().split(5, 1), strict=True):
        scores = torch.einsum("bqc,bkc->bqk", rows, keys)
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        powers, old = torch.exp(scores - now), torch.exp(most - now)
        held = torch.baddbmm(held * old, powers, values)
        total, most = total * old + powers.sum(-1, keepdim=True), now
    return (held / total).to(q.dtype)


def _recomputed_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    _fits(q, k, v)
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    sums = scores.logsumexp(-1, keepdim=True)
    made = (scores - sums).exp() @ v.float()
    return made.to(q.dtype), (q, k, v, made, sums)


def _recomputed_backward(saved: Any, gradient: torch.Tensor) -> Any:
    q, k, v, made, sums = saved
    wide, scale = gradient.float(), 1 / math.sqrt(q.shape[-1])
    share = (q.float() @ k.float().mT * scale - sums).exp()
    slope = share * (wide @ v.float().mT - (wide * made).sum(-1, keepdim=True)) * scale
    return (slope @ k.float()).to(q.dtype), (slope.mT @ q.float()).to(k.dtype), (share.mT @ wide).to(v.dtype)


rewrite("attention, shares computed again on the way back", _attention, HEADS)(function(_recomputed_forward, _recomputed_backward))


@rewrite("attention, keys in three parts that are merged", _attention, HEADS)
def three_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    made, sums = [], []
    for keys, values in zip(k.float().tensor_split(3, 1), v.float().tensor_split(3, 1), strict=True):
        if keys.shape[1]:
            scores = q.float() @ keys.mT / math.sqrt(q.shape[-1])
            sums.append(scores.logsumexp(-1, keepdim=True))
            made.append((scores - sums[-1]).exp() @ values)
    share = torch.stack(sums).softmax(0)
    return (torch.stack(made) * share).sum(0).to(q.dtype)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _attention(q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0))


@rewrite("attention in groups, two heads of queries to one of keys", _grouped, shapes((4, 5, 8), (2, 7, 8), (2, 7, 6)))
def two_to_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == 2 * len(k), k.shape[:2] == v.shape[:2], q.shape[-1] == k.shape[-1], min(k.shape) > 0)
    rows = q.float().reshape(len(k), 2 * q.shape[1], -1)
    powers = torch.bmm(rows, k.float().mT).mul(1 / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.bmm(powers, v.float()).reshape(len(q), q.shape[1], -1).to(q.dtype)


def _slanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    apart = (torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])).abs()
    scores = q.float() @ k.float().mT - slope.float()[:, None, None] * apart
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with slopes, one row at a time", _slanted, shapes((2, 5, 4), (2, 5, 4), (2, 5, 4), (2,)))
def with_slopes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    need(slope.shape == q.shape[:1])
    made = [v[:, :0].float()]
    for row in range(q.shape[1]):
        apart = (torch.arange(k.shape[1]) - row).abs().float()
        scores = torch.einsum("bc,bkc->bk", q[:, row].float(), k.float()) - torch.outer(slope.float(), apart)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        made.append((powers[:, None] @ v.float()) / powers.sum(-1)[:, None, None])
    return torch.cat(made, 1).to(q.dtype)


def _with_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT
    all_ = torch.cat([scores, sink.float()[:, None, None].expand(*scores.shape[:2], 1)], -1)
    return (all_.softmax(-1)[..., :-1] @ v.float()).to(q.dtype)


@rewrite("attention with a sink, which is added to the sum", _with_sink, shapes((2, 5, 4), (2, 6, 4), (2, 6, 3), (2,)))
def added_to_the_sum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    need(sink.shape == q.shape[:1])
    scores, last = q.float() @ k.float().mT, sink.float()[:, None, None]
    most = torch.maximum(scores.amax(-1, keepdim=True), last).detach()
    powers = (scores - most).exp()
    return ((powers @ v.float()) / (powers.sum(-1, keepdim=True) + (last - most).exp())).to(q.dtype)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((4 * torch.tanh(q.float() @ k.float().mT / 4)).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with capped scores, which need no largest number", _capped, HEADS)
def no_largest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    powers = (4 * torch.tanh(0.25 * torch.einsum("bqc,bkc->bqk", q.float(), k.float())) - 4).exp()
    return (torch.bmm(powers, v.float()) / powers.sum(-1, keepdim=True)).to(q.dtype)


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    scores = (q.float() @ k.float().mT).masked_fill((apart < 0) | (apart > 2), -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention to the last three, gathered", _window, shapes((2, 8, 4), (2, 8, 4), (2, 8, 4)))
def last_three(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    need(q.shape[1] == k.shape[1])
    keys, values = (F.pad(each.float(), (0, 0, 2, 0)).unfold(1, 3, 1) for each in (k, v))
    scores = torch.einsum("bqc,bqcw->bqw", q.float(), keys)
    hidden = torch.arange(q.shape[1])[:, None] + torch.arange(3) < 2
    return torch.einsum("bqw,bqcw->bqc", scores.masked_fill(hidden, -math.inf).softmax(-1), values).to(q.dtype)


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    one, two = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    share = one @ two.mT
    return ((share @ v.float()) / (share.sum(-1, keepdim=True) + 1e-6)).to(q.dtype)


@rewrite("linear attention, keys and values first", _linear, HEADS)
def keys_and_values_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    one, two = (torch.where(each > 0, each + 1, each.clamp(max=0).exp()) for each in (q.float(), k.float()))
    state, total = torch.einsum("bkc,bkd->bcd", two, v.float()), two.sum(1)
    return (torch.einsum("bqc,bcd->bqd", one, state) / (torch.einsum("bqc,bc->bq", one, total)[..., None] + 1e-6)).to(q.dtype)


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
    return ((q.float() @ k.float().mT + table.float()[bucket].permute(2, 0, 1)).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with a bias for each bucket, gathered by head", _biased,
         lambda dtype: (*shapes((2, 5, 4), (2, 6, 4), (2, 6, 4), (7, 2))(dtype), whole(5, 6, most=7)))  # fmt: skip
def gathered_by_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    need(
        table.dim() == 2, table.shape[1] == len(q), bucket.shape == (q.shape[1], k.shape[1]), not bool(((bucket < 0) | (bucket >= len(table))).any())
    )
    bias = torch.stack([column.float().take(bucket) for column in table.unbind(1)])
    scores = torch.baddbmm(bias, q.float(), k.float().mT)
    return (torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v.float()).to(q.dtype)


def _halves(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    one, two = x.float().chunk(2, -1)
    cos, sin = angle.float().cos(), angle.float().sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


@rewrite("rope, as complex numbers", _halves, shapes((2, 5, 8), (5, 4)))
def as_complex(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, angle.dim() == 2, x.shape[-1] % 2 == 0, angle.shape == (x.shape[1], x.shape[2] // 2))
    turned = torch.complex(*x.float().chunk(2, -1)) * torch.complex(angle.float().cos(), angle.float().sin())
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def _pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.float()[..., ::2], x.float()[..., 1::2]
    return torch.stack([one * cos.float() - two * sin.float(), one * sin.float() + two * cos.float()], -1).flatten(-2).to(x.dtype)


def _pairs_forward(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    need(x.dim() == 3, cos.dim() == 2, cos.shape == sin.shape, x.shape[-1] % 2 == 0, cos.shape == (x.shape[1], x.shape[2] // 2))
    return _pairs(x, cos, sin), (x, cos, sin)


def _pairs_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, cos, sin = saved
    (one, two), (given, other) = (each.float().unflatten(-1, (x.shape[-1] // 2, 2)).unbind(-1) for each in (x, gradient))
    dcos, dsin = (one * given + two * other).sum(0), (one * other - two * given).sum(0)
    return _pairs(gradient, cos, -sin), dcos.to(cos.dtype), dsin.to(sin.dtype)


rewrite("rope of pairs, turned back on the way back", _pairs, shapes((2, 5, 8), (5, 4), (5, 4)))(function(_pairs_forward, _pairs_backward))


def _placed(x: torch.Tensor, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return _halves(x[None], table[places])[0]


@rewrite("rope at places, tables of cosines gathered", _placed, lambda dtype: (*shapes((6, 8), (9, 4))(dtype), whole(6, most=9)))
def tables_gathered(x: torch.Tensor, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, table.dim() == 2, places.shape == x.shape[:1], x.shape[1] == 2 * table.shape[1],
         not bool(((places < 0) | (places >= len(table))).any()))  # fmt: skip
    cos, sin = (each.index_select(0, places).repeat(1, 2) for each in (table.float().cos(), table.float().sin()))
    one, two = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


def _gru(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    given, kept = (x.float() @ w.float().T).chunk(3, -1), (h.float() @ u.float().T).chunk(3, -1)
    reset, update = (given[0] + kept[0]).sigmoid(), (given[1] + kept[1]).sigmoid()
    new = (given[2] + reset * kept[2]).tanh()
    return ((1 - update) * new + update * h.float()).to(x.dtype)


@rewrite("gru cell, one product for two gates", _gru, shapes((4, 5), (4, 3), (9, 5), (9, 3)))
def two_gates(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    size = h.shape[-1]
    need(x.dim() == 2, h.dim() == 2, w.dim() == 2, u.dim() == 2, len(x) == len(h), w.shape == (3 * size, x.shape[-1]), u.shape == (3 * size, size))
    both, gates = torch.cat([x, h], -1).float(), torch.cat([w[: 2 * size], u[: 2 * size]], -1).float()
    reset, update = (both @ gates.T).sigmoid().chunk(2, -1)
    new = torch.tanh(F.linear(x.float(), w[2 * size :].float()) + reset * F.linear(h.float(), u[2 * size :].float()))
    return torch.lerp(new, h.float(), update).to(x.dtype)


def _lstm(x: torch.Tensor, c: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, o, n = (x.float() + g.float()).chunk(4, -1)
    cell = f.sigmoid() * c.float() + i.sigmoid() * n.tanh()
    return (o.sigmoid() * cell.tanh()).to(x.dtype), cell.to(x.dtype)


@rewrite("lstm gates, three sigmoids at once", _lstm, shapes((4, 12), (4, 3), (4, 12)))
def three_sigmoids(x: torch.Tensor, c: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = c.shape[-1]
    need(x.dim() == 2, c.dim() == 2, x.shape == g.shape, x.shape == (len(c), 4 * size))
    summed = x.float() + g.float()
    i, f, o = summed[:, : 3 * size].sigmoid().unflatten(-1, (3, size)).unbind(1)
    cell = torch.addcmul(i * summed[:, 3 * size :].tanh(), f, c.float())
    return (o * cell.tanh()).to(x.dtype), cell.to(x.dtype)
