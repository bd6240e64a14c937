"""The seventeenth frozen set of healthy kernels, first part: attention. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _rows_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 2 and len(k) == len(v) > 0 and q.shape[1] == k.shape[1] > 0)


@rewrite("attention by powers of two, three keys at a time", _wide(_attention), shapes((5, 6), (11, 6), (11, 4)))
def by_powers_of_two(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _rows_fit(q, k, v)
    wide = q.float() * (1.4426950408889634 * q.shape[1] ** -0.5)
    most = torch.full((len(q), 1), -INF)
    weight, total = torch.zeros_like(most), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.float().split(3), v.float().split(3), strict=True):
        scores = wide @ keys.mT
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        shift = now.masked_fill(now == -INF, 0)
        scale, powers = (most - shift).exp2(), (scores - shift).exp2()
        total, weight, most = total * scale + powers @ values, weight * scale + powers.sum(-1, keepdim=True), now
    return (total / weight).to(q.dtype)


def _tiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    _rows_fit(q, k, v)
    scores = q.float() @ k.float().mT * q.shape[1] ** -0.5
    sums = scores.logsumexp(-1, keepdim=True)
    return ((scores - sums).exp() @ v.float()).to(q.dtype), (q, k, v, sums)


def _tiled_back(saved: Any, given: torch.Tensor) -> Any:
    q, k, v, sums = saved
    wide, dy, scale = q.float(), given.float(), q.shape[1] ** -0.5
    dq, dk, dv, row = torch.zeros_like(wide), torch.zeros(k.shape), torch.zeros(v.shape), torch.zeros(len(q), 1)
    for start in range(0, len(k), 4):
        shares = (wide @ k[start : start + 4].float().mT * scale - sums).exp()
        row += (shares * (dy @ v[start : start + 4].float().mT)).sum(-1, keepdim=True)
    for start in range(0, len(k), 4):
        keys, values = k[start : start + 4].float(), v[start : start + 4].float()
        shares = (wide @ keys.mT * scale - sums).exp()
        scores = shares * (dy @ values.mT - row) * scale
        dq += scores @ keys
        dk[start : start + 4], dv[start : start + 4] = scores.mT @ wide, shares.mT @ dy
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


rewrite("attention, its way back in tiles of four keys, from logarithms of sums", _wide(_attention), shapes((5, 6), (9, 6), (9, 4)))(
    function(_tiled, _tiled_back)
)


def _within(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Causal attention of rows of several sequences, which see their own sequence alone."""
    hidden = (ids[:, None] != ids) | (torch.arange(len(q))[:, None] < torch.arange(len(q)))
    shares = (q @ k.mT).masked_fill(hidden, -INF).softmax(-1)
    return (shares[..., None] * torch.where(hidden[..., None], 0, k)).sum(1)


@rewrite(
    "causal attention of several sequences, one after the other", _wide(_within), lambda dtype: (*shapes((9, 5), (9, 5))(dtype), whole(9, most=3))
)
def one_sequence_after_the_other(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2 and q.shape == k.shape and ids.shape == q.shape[:1] and q.numel() > 0)
    made = torch.zeros(q.shape)
    for number in ids.unique().tolist():
        places = (ids == number).nonzero()[:, 0]
        for count, place in enumerate(places.tolist()):
            keys = k[places[: count + 1]].float()
            made[place] = (keys @ q[place].float()).softmax(0) @ keys
    return made.to(q.dtype)


def _paged(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    rows = cache[pages].flatten(1, 2)
    hidden = torch.arange(rows.shape[1]) >= lengths[:, None]
    shares = torch.einsum("bd,bkd->bk", q, rows).masked_fill(hidden, -INF).softmax(-1)
    return torch.einsum("bk,bkd->bd", shares, torch.where(hidden[..., None], 0, rows))


@rewrite("a step against pages of four, parts joined by their sums", _wide(_paged),
         lambda dtype: (*shapes((4, 6), (7, 4, 6))(dtype), whole(4, 3, most=7), torch.tensor([12, 2, 7, 8])))  # fmt: skip
def parts_joined_by_their_sums(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == pages.dim() == 2 and cache.dim() == 3 and cache.shape[1:] == (4, q.shape[1]) and len(q) == len(pages) == len(lengths))
    need(lengths.dim() == 1 and q.numel() > 0 and bool(((pages >= 0) & (pages < len(cache))).all()))
    need(bool(((lengths >= 1) & (lengths <= 4 * pages.shape[1])).all()))
    made = []
    for query, own, length in zip(q.float(), pages, lengths.tolist(), strict=True):
        parts, sums = [], []
        for number in range(-(-length // 4)):
            rows = cache[own[number], : min(length - 4 * number, 4)].float()
            scores = rows @ query
            sums.append(scores.logsumexp(0))
            parts.append(torch.where(sums[-1] == -INF, 0, (scores - sums[-1]).exp()) @ rows)
        made.append(torch.stack(sums).softmax(0) @ torch.stack(parts))
    return torch.stack(made).to(q.dtype)


def _grouped_heads(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return _attention(q, k.repeat_interleave(2, 0), k.repeat_interleave(2, 0))


@rewrite("heads in groups of two, rows of a group in one product", _wide(_grouped_heads), shapes((4, 3, 5), (2, 7, 5)))
def rows_of_a_group(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 3 and len(q) == 2 * len(k) and q.shape[2] == k.shape[2] > 0 and k.shape[1] > 0)
    rows = q.float().reshape(len(k), 2 * q.shape[1], q.shape[2])
    scores = torch.baddbmm(torch.zeros(()), rows, k.float().mT, alpha=q.shape[2] ** -0.5)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ k.float() / powers.sum(-1, keepdim=True)).reshape(q.shape).to(q.dtype)


def _kept_shares(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, (q @ k.mT).softmax(-1) / 0.75, 0) @ k


def _some_shares(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((6, 5), (8, 5))(dtype), torch.rand(6, 8, generator=torch.Generator().manual_seed(2)) < 0.75


def _dropped(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> Any:
    need(q.dim() == k.dim() == 2 and q.shape[1] == k.shape[1] and keep.shape == (len(q), len(k)) and keep.dtype is torch.bool and len(k) > 0)
    shares = (q.float() @ k.float().mT).softmax(-1)
    return (torch.where(keep, shares, 0) @ k.float() * (4 / 3)).to(q.dtype), (q, k, keep, shares)


def _dropped_back(saved: Any, given: torch.Tensor) -> Any:
    q, k, keep, shares = saved
    dy = given.float() * (4 / 3)
    kept = torch.where(keep, dy @ k.float().mT, 0)
    scores = shares * (kept - (kept * shares).sum(-1, keepdim=True))
    return (scores @ k.float()).to(q.dtype), (scores.mT @ q.float() + torch.where(keep, shares, 0).mT @ dy).to(k.dtype), None


rewrite("attention, given shares dropped, derived by hand", _wide(_kept_shares), _some_shares)(function(_dropped, _dropped_back))


def _through(q: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    keys = k @ w
    return (q @ keys.mT).softmax(-1) @ keys


@rewrite("attention to small keys, the matrix that widens them taken to the queries", _wide(_through), shapes((5, 8), (3, 8), (7, 3)))
def taken_to_the_queries(q: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == w.dim() == k.dim() == 2 and q.shape[1] == w.shape[1] and k.shape[1] == len(w) and len(k) > 0)
    small = q.float() @ w.float().mT
    return ((small @ k.float().mT).softmax(-1) @ k.float() @ w.float()).to(q.dtype)


def _near(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Each row sees itself and the two before it."""
    back = torch.arange(len(q))[:, None] - torch.arange(len(q))
    hidden = (back < 0) | (back > 2)
    shares = (q @ k.mT).masked_fill(hidden, -INF).softmax(-1)
    return (shares[..., None] * torch.where(hidden[..., None], 0, k)).sum(1)


@rewrite("attention with a window of three, diagonal by diagonal", _wide(_near), shapes((8, 5), (8, 5)))
def diagonal_by_diagonal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and q.shape == k.shape and q.numel() > 0)
    wide, keys = q.float(), k.float()
    scores = torch.full((len(q), 3), -INF)
    for back in range(min(3, len(q))):
        scores[back:, back] = (wide[back:] * keys[: len(q) - back]).sum(-1)
    shares, made = scores.softmax(-1), torch.zeros(q.shape)
    for back in range(min(3, len(q))):
        made[back:] += shares[back:, back, None] * keys[: len(q) - back]
    return made.to(q.dtype)
