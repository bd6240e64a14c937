"""The thirteenth frozen set of healthy kernels, fifth part: attention to pages, positions, states, experts."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _pages(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    table = torch.tensor([[4, 1, 0], [2, 5, 3]])
    return (*shapes((2, 4), (6, 3, 4), (6, 3, 5))(dtype), table, torch.tensor([8, 4]))


def _paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    keys, values = k.float()[table].flatten(1, 2), v.float()[table].flatten(1, 2)
    scores = torch.einsum("bc,bkc->bk", q.float(), keys).masked_fill(torch.arange(keys.shape[1]) >= lengths[:, None], -math.inf)
    values = torch.where((torch.arange(keys.shape[1]) < lengths[:, None])[..., None], values, 0.0)
    return torch.einsum("bk,bkc->bc", scores.softmax(-1), values).to(q.dtype)


def _paged_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> None:
    need(q.dim() == 2, k.dim() == 3, v.dim() == 3, k.shape[:2] == v.shape[:2], q.shape[1] == k.shape[2], table.dim() == 2, len(table) == len(q))
    need(lengths.shape == q.shape[:1], table.numel() > 0, k.numel() > 0, not bool(((table < 0) | (table >= len(k))).any()))
    need(not bool(((lengths < 1) | (lengths > table.shape[1] * k.shape[1])).any()))


@rewrite("one step of attention to pages, a page at a time", _paged, _pages)
def a_page_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _paged_fit(q, k, v, table, lengths)
    made, size = [], k.shape[1]
    for query, row, length in zip(q.float(), table.tolist(), lengths.tolist(), strict=True):
        most, total, summed = torch.tensor(-math.inf), torch.zeros(()), torch.zeros(v.shape[2])
        for place in range(-(-length // size)):
            end = min(size, length - place * size)
            scores = k[row[place], :end].float() @ query
            now = torch.maximum(most, scores.max())
            power, old = (scores - now).exp(), (most - now).exp()
            total, summed, most = total * old + power.sum(), summed * old + power @ v[row[place], :end].float(), now
        made.append(summed / total)
    return torch.stack(made).to(q.dtype)


@rewrite("one step of attention to pages, halves of the pages joined", _paged, _pages)
def halves_of_the_pages(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _paged_fit(q, k, v, table, lengths)
    made = []
    for query, row, length in zip(q.float(), table, lengths.tolist(), strict=True):
        keys, values = k[row].flatten(0, 1)[:length].float(), v[row].flatten(0, 1)[:length].float()
        sums, parts = [], []
        for key, value in zip(keys.tensor_split(2), values.tensor_split(2), strict=True):
            if len(key):
                scores = key @ query
                sums.append(scores.logsumexp(0))
                parts.append((scores - sums[-1]).exp() @ value)
        weights = torch.stack(sums).softmax(0)
        made.append(weights @ torch.stack(parts))
    return torch.stack(made).to(q.dtype)


@rewrite("new rows put into a cache, each slot asks for its row", lambda cache, x, slots: cache.index_copy(0, slots, x), lambda dtype: (
    *shapes((9, 4), (5, 4))(dtype), torch.tensor([7, 2, 0, 5, 4])))  # fmt: skip
def asks_for_its_row(cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == 2, x.dim() == 2, cache.shape[1] == x.shape[1], slots.shape == x.shape[:1])
    need(not bool(((slots < 0) | (slots >= len(cache))).any()))
    rows = list(cache.unbind(0))
    for place, slot in enumerate(slots.tolist()):
        rows[slot] = x[place]
    return torch.stack(rows) if rows else cache + 0


@rewrite("rope of the first half alone, as complex numbers", lambda x, a: torch.cat([
    x.float()[:, :4:2] * a.float().cos() - x.float()[:, 1:4:2] * a.float().sin(),
    x.float()[:, 1:4:2] * a.float().cos() + x.float()[:, :4:2] * a.float().sin(), x.float()[:, 4:]], -1).to(x.dtype),
    shapes((5, 8), (5, 2)))  # fmt: skip
def first_half_alone(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, a.shape == (len(x), 2), x.shape[1] >= 4)
    pairs = torch.view_as_complex(x[:, :4].float().contiguous().view(len(x), 2, 2))
    made = torch.view_as_real(pairs * torch.polar(torch.ones(a.shape), a.float()))
    return torch.cat([made[..., 0], made[..., 1], x[:, 4:].float()], -1).to(x.dtype)


def _two_ways(x: torch.Tensor) -> torch.Tensor:
    """Rows of pixels turned by their row in the first half, and by their column in the second."""
    high, wide, width = x.shape
    rates = 0.5 ** torch.arange(width // 4)
    row = (torch.arange(high)[:, None] * rates)[:, None].expand(high, wide, -1)
    column = (torch.arange(wide)[:, None] * rates).expand(high, wide, -1)
    angle = torch.cat([row, column], -1)
    one, two = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1).flatten(-2).to(x.dtype)


@rewrite("rope by rows and columns of a picture, rows and columns apart", _two_ways, shapes((3, 4, 8)))
def rows_and_columns_apart(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0, x.shape[2] % 4 == 0)
    halves = []
    for axis, half in enumerate(x.float().chunk(2, -1)):
        place = torch.arange(x.shape[axis]).float().view((-1, 1, 1) if axis == 0 else (1, -1, 1))
        angle = place * 0.5 ** torch.arange(x.shape[2] // 4).float()
        one, two = half[..., ::2], half[..., 1::2]
        halves.append(torch.stack([torch.cos(angle) * one - torch.sin(angle) * two, torch.sin(angle) * one + torch.cos(angle) * two], -1).flatten(-2))
    return torch.cat(halves, -1).to(x.dtype)


def _sloped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    slopes = 0.5 ** torch.arange(1, len(q) + 1)
    scores = q.float() @ k.float().mT + slopes[:, None, None] * torch.arange(k.shape[1])
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with slopes, positions as one more column", _sloped, shapes((2, 4, 5), (2, 6, 5), (2, 6, 3)))
def one_more_column(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == len(k) == len(v), k.shape[1] == v.shape[1], q.shape[2] == k.shape[2], k.shape[1] > 0)
    slopes = (0.5 ** torch.arange(1, len(q) + 1)).view(-1, 1, 1).expand(len(q), q.shape[1], 1)
    places = torch.arange(k.shape[1]).float().view(1, -1, 1).expand(len(k), k.shape[1], 1)
    scores = torch.cat([q.float(), slopes], -1) @ torch.cat([k.float(), places], -1).mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ v.float() / powers.sum(-1, keepdim=True)).to(q.dtype)


def _scanned(x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    state, rows, step = torch.zeros(x.shape[1], b.shape[1]), [], F.softplus(dt.float())
    for value, size, one, two in zip(x.float(), step, b.float(), c.float(), strict=True):
        state = state * torch.exp(-size) + torch.outer(size * value, one)
        rows.append(state @ two)
    return torch.stack(rows).to(x.dtype)


@rewrite("state space with one decay, chunks by sums of segments", _scanned, shapes((9, 3), (9,), (9, 4), (9, 4)))
def sums_of_segments(x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, dt.shape == x.shape[:1], b.dim() == 2, b.shape == c.shape, len(b) == len(x), len(x) > 0)
    step, state, made = F.softplus(dt.float()), torch.zeros(x.shape[1], b.shape[1]), []
    for value, size, one, two in zip(x.float().split(4), step.split(4), b.float().split(4), c.float().split(4), strict=True):
        count = len(size)
        later = torch.ones(count, count).tril(-1).bool()
        apart = torch.where(later, size[:, None].expand(count, count), 0.0).cumsum(0)
        decay = torch.where(torch.ones(count, count).tril().bool(), torch.exp(-apart), 0.0)
        since = torch.exp(-size.cumsum(0))
        inner = torch.where(torch.ones(count, count).tril().bool(), two @ one.T, 0.0) * decay * size
        made.append(inner @ value + since[:, None] * (two @ state.T))
        state = state * since[-1] + (value * (decay[-1] * size)[:, None]).T @ one
    return torch.cat(made).to(x.dtype)


def _updated(state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    step = F.softplus(dt.float())
    now = state.float() * torch.exp(-step)[:, None] + (step * x.float())[:, None] * b.float()
    return (now @ c.float()).to(x.dtype), now.to(state.dtype)


@rewrite("one step of a state space, its state and its result", _updated, shapes((5, 4), (5,), (5,), (4,), (4,)))
def state_and_result(state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(state.dim() == 2, x.shape == state.shape[:1], dt.shape == x.shape, b.shape == state.shape[1:], c.shape == b.shape)
    decay = torch.sigmoid(-dt.float())
    step = torch.logaddexp(dt.float(), torch.zeros(()))
    now = torch.addcmul(state.float() * decay[:, None], (x.float() * step)[:, None], b.float()[None])
    return torch.einsum("cn,n->c", now, c.float()).to(x.dtype), now.to(state.dtype)


def _weighed(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Each step's mean of the values so far, by powers of keys that fade."""
    most, total, summed, rows = torch.full(w.shape, -math.inf), torch.zeros(w.shape), torch.zeros(w.shape), []
    fade = F.softplus(w.float())
    for key, value in zip(k.float(), v.float(), strict=True):
        now = torch.maximum(most - fade, key)
        old, power = (most - fade - now).exp(), (key - now).exp()
        total, summed, most = total * old + power, summed * old + power * value, now
        rows.append(summed / total)
    return torch.stack(rows).to(k.dtype)


@rewrite("means by powers that fade, all earlier steps at once", _weighed, shapes((8, 4), (8, 4), (4,)))
def earlier_steps_at_once(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(k.dim() == 2, k.shape == v.shape, w.shape == k.shape[1:], len(k) > 0)
    rows = []
    for row in range(len(k)):
        apart = torch.arange(row, -1, -1)[:, None]
        shares = (k[: row + 1].float() - apart * F.softplus(w.float())).softmax(0)
        rows.append((shares * v[: row + 1].float()).sum(0))
    return torch.stack(rows).to(k.dtype)


def _limited(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each expert takes its first three tokens."""
    before = F.one_hot(chosen, len(w)).cumsum(0).gather(1, chosen[:, None]).squeeze(1)
    made = torch.einsum("tc,tcd->td", x.float(), w.float()[chosen])
    return torch.where((before <= 3)[:, None], made, 0.0).to(x.dtype)


@rewrite("experts with room for three tokens, sent and gathered", _limited, lambda dtype: (*shapes((10, 4), (3, 4, 5))(dtype), whole(10, most=3)))
def sent_and_gathered(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, x.shape[1] == w.shape[1], chosen.shape == x.shape[:1], not bool(((chosen < 0) | (chosen >= len(w))).any()))
    made = torch.zeros(len(x), w.shape[2])
    for expert, weight in enumerate(w.float()):
        sent = torch.nonzero(chosen == expert)[:3, 0]
        made = made.index_copy(0, sent, x.float()[sent] @ weight)
    return made.to(x.dtype)


def _joined(rows: torch.Tensor, shares: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return (rows.float()[order.view(shares.shape)] * shares.float()[..., None]).sum(1).to(rows.dtype)


def _join_forward(rows: torch.Tensor, shares: torch.Tensor, order: torch.Tensor) -> Any:
    need(rows.dim() == 2, shares.dim() == 2, order.shape == (shares.numel(),), not bool(((order < 0) | (order >= len(rows))).any()))
    token = torch.arange(shares.numel()) // max(shares.shape[1], 1)
    made = torch.zeros(len(shares), rows.shape[1]).index_add(0, token, rows.float()[order] * shares.float().flatten()[:, None])
    return made.to(rows.dtype), (rows, shares, order, token)


def _join_backward(saved: Any, gradient: torch.Tensor) -> Any:
    rows, shares, order, token = saved
    given = gradient.float()[token]
    back = torch.zeros(rows.shape).index_add(0, order, given * shares.float().flatten()[:, None])
    return back.to(rows.dtype), (given * rows.float()[order]).sum(-1).view(shares.shape).to(shares.dtype), None


rewrite("rows of experts joined by token, the way back by their order", _joined, lambda dtype: (
    *shapes((10, 4), (5, 2))(dtype), torch.tensor([3, 8, 0, 9, 5, 1, 7, 2, 6, 4])))(function(_join_forward, _join_backward))  # fmt: skip


def _apart(q: torch.Tensor, p: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    one, two = ((each.float() @ k.float().T).softmax(-1) for each in (q, p))
    return (one @ v.float() - 0.5 * (two @ v.float())).to(q.dtype)


@rewrite("attention less a second one, shares subtracted first", _apart, shapes((5, 4), (5, 4), (7, 4), (7, 3)))
def shares_subtracted(q: torch.Tensor, p: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == p.shape, k.dim() == 2, v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) > 0)
    one, two = (torch.cat([q, p]).float() @ k.float().T).softmax(-1).chunk(2)
    return ((one - 0.5 * two) @ v.float()).to(q.dtype)


@rewrite("attention to compressed rows, their projection taken in by the query", lambda q, c, w: (
    (q.float() @ (c.float() @ w.float()).T).softmax(-1) @ c.float()).to(q.dtype), shapes((4, 6), (7, 3), (3, 6)))  # fmt: skip
def taken_in(q: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, c.dim() == 2, w.shape == (c.shape[1], q.shape[1]), len(c) > 0)
    return ((q.float() @ w.float().T @ c.float().T).softmax(-1) @ c.float()).to(q.dtype)
