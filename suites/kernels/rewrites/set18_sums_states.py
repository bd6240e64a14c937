"""The eighteenth frozen set of healthy kernels, second part: products, sums, states, tables. Committed before any was tried."""

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


@rewrite("product, three uneven parts of the sum, added in a tree", torch.matmul, shapes((5, 23), (23, 6)))
def three_uneven_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    a, b = len(w) // 4, len(w) // 2
    parts = [x[:, i:j].float() @ w[i:j].float() for i, j in ((0, a), (a, b), (b, len(w)))]
    return (parts[0] + parts[1] + parts[2]).to(x.dtype)


@rewrite("product, a row of the sum at a time", torch.matmul, shapes((5, 12), (12, 6)))
def row_of_the_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    total = torch.zeros(len(x), w.shape[1])
    for column, row in zip(x.float().unbind(1), w.float(), strict=True):
        total = torch.addcmul(total, column[:, None], row)
    return total.to(x.dtype)


@rewrite("sums of rows, neighbours first", _wide(lambda x: x.sum(-1)), shapes((5, 21)))
def neighbours_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    wide = x.float()
    while wide.shape[1] > 1:
        odd = wide[:, -1:] if wide.shape[1] % 2 else wide[:, :0]
        even = wide[:, : wide.shape[1] // 2 * 2]
        wide = torch.cat([even[:, ::2] + even[:, 1::2], odd], 1)
    return wide.sum(-1).to(x.dtype)


@rewrite("logarithm of a sum of powers, by pairs", _wide(lambda x: x.logsumexp(-1)), shapes((5, 11)))
def by_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    wide = x.float()
    while wide.shape[1] > 1:
        even = wide[:, : wide.shape[1] // 2 * 2]
        wide = torch.cat([torch.logaddexp(even[:, ::2], even[:, 1::2]), wide[:, wide.shape[1] // 2 * 2 :]], 1)
    return wide[:, 0].to(x.dtype)


@rewrite("sums so far, sums of blocks of five first", _wide(lambda x: x.cumsum(-1)), shapes((4, 17)))
def sums_of_blocks_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    parts, carry = [], torch.zeros(len(x), 1)
    for part in x.float().split(5, 1):
        parts.append(carry + part.cumsum(1))
        carry = carry + part.sum(1, keepdim=True)
    return torch.cat(parts, 1).to(x.dtype) if parts else x.cumsum(1)


def _selected(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """States that fade by a gate of their own and take in a share of each row."""
    state, rows = torch.zeros(x.shape[1]), []
    for row, gate, share in zip(x, a.sigmoid(), b, strict=True):
        state = gate * state + share * row
        rows.append(state)
    return torch.stack(rows) if rows else x * a * b


@rewrite("states that fade, pairs of a factor and a sum joined over doubling distances", _wide(_selected), shapes((9, 4), (9, 4), (9, 4)))
def doubling_distances(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == a.shape == b.shape)
    factor, total, step = a.float().sigmoid(), b.float() * x.float(), 1
    while step < len(x):
        total = torch.cat([total[:step], total[step:] + factor[step:] * total[:-step]])
        factor = torch.cat([factor[:step], factor[step:] * factor[:-step]])
        step *= 2
    return total.to(x.dtype)


def _delta(k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    k, b = k / 3, b.sigmoid()
    state, rows = torch.zeros(k.shape[1], v.shape[1]), []
    for key, value, share in zip(k, v, b, strict=True):
        state = state + key[:, None] * (share * (value - key @ state))
        rows.append(key @ state)
    return torch.stack(rows) if rows else v * b[:, None]


@rewrite("delta rule, its state turned and read before it is corrected", _wide(_delta), shapes((6, 4), (6, 3), (6,)))
def state_turned(k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2 and b.dim() == 1 and len(k) == len(v) == len(b))
    state, rows = torch.zeros(v.shape[1], k.shape[1]), []
    for key, value, share in zip(k.float() / 3, v.float(), b.float().sigmoid(), strict=True):
        held = state @ key
        change = share * (value - held)
        rows.append(held + change * (key * key).sum())
        state = state + change[:, None] * key
    return torch.stack(rows).to(k.dtype) if rows else v * b[:, None]


@rewrite("causal convolution of channels, windows against the filter", _wide(lambda x, w: F.conv1d(F.pad(x, (2, 0)), w[:, None], groups=len(w))),
         shapes((2, 4, 9), (4, 3)))  # fmt: skip
def windows_against_the_filter(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and w.shape == (x.shape[1], 3) and x.numel() > 0)
    windows = F.pad(x.float(), (2, 0)).unfold(2, 3, 1)
    return torch.einsum("bcnk,ck->bcn", windows, w.float()).to(x.dtype)


def _halves(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1)


@rewrite("rope of halves, each pair a small product", _wide(_halves), shapes((5, 8), (5, 4)))
def each_pair_a_product(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 2 == 0 and angles.shape == (len(x), x.shape[1] // 2))
    cos, sin = angles.float().cos(), angles.float().sin()
    turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    pairs = torch.stack(x.float().chunk(2, -1), -1)[..., None]
    return (turns @ pairs)[..., 0].mT.flatten(1).to(x.dtype)


def _experts(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each token's two experts, added."""
    return torch.einsum("nd,nkdf->nf", x, w[chosen])


@rewrite("two experts for each token, tokens in the order of experts, results added at their places", _wide(_experts),
         lambda dtype: (*shapes((6, 4), (3, 4, 5))(dtype), whole(6, 2, most=3)))  # fmt: skip
def in_the_order_of_experts(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and chosen.dim() == 2 and x.shape[1] == w.shape[1] and len(chosen) == len(x))
    need(bool(((chosen >= 0) & (chosen < len(w))).all()))
    order = chosen.flatten().argsort(stable=True)
    tokens, experts = order // max(chosen.shape[1], 1), chosen.flatten()[order]
    made, rows = torch.zeros(len(x), w.shape[2]), x.float()
    for expert in range(len(w)):
        own = tokens[experts == expert]
        made = made.index_add(0, own, rows[own] @ w[expert].float())
    return made.to(x.dtype)


@rewrite("means of bags, sums by their place and counts beside", _wide(lambda table, ids, bag: _means(table, ids, bag)),
         lambda dtype: (*shapes((7, 4))(dtype), whole(10, most=7), whole(10, most=4, seed=5)))  # fmt: skip
def counts_beside(table: torch.Tensor, ids: torch.Tensor, bag: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2 and ids.dim() == 1 and ids.shape == bag.shape and bool(((ids >= 0) & (ids < len(table))).all()))
    need(bool(((bag >= 0) & (bag < 4)).all()))
    order = bag.argsort(stable=True)
    sums = torch.zeros(4, table.shape[1]).index_add(0, bag[order], table.float()[ids[order]])
    return (sums / bag.bincount(minlength=4).clamp(min=1)[:, None]).to(table.dtype)


def _means(table: torch.Tensor, ids: torch.Tensor, bag: torch.Tensor) -> torch.Tensor:
    return torch.stack([table[ids[bag == each]].sum(0) / max(int((bag == each).sum()), 1) for each in range(4)])


def _shares(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    for each in range(4):
        inside = group == each
        if inside.any():
            made = torch.where(inside, x.masked_fill(~inside, -INF).softmax(0), made)
    return made


@rewrite("softmax of groups, largest and sums by place", _wide(_shares), lambda dtype: (*shapes((12,))(dtype), whole(12, most=4)))
def largest_by_place(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1 and group.shape == x.shape and bool(((group >= 0) & (group < 4)).all()))
    most = torch.full((4,), -INF).scatter_reduce(0, group, x.detach().float(), "amax")
    powers = (x.float() - most[group]).exp()
    return (powers / torch.zeros(4).index_add(0, group, powers)[group]).to(x.dtype)


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v.abs() + 0.01 * g * g
    return torch.stack([p * 0.999 - 0.01 * (m / 0.271) / ((v / 0.0297).sqrt() + 1e-6), m, v])


@rewrite("adamw, three columns at a time and corrections in the step", _wide(_adam), shapes((5, 7), (5, 7), (5, 7), (5, 7)))
def corrections_in_the_step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape == g.shape == m.shape == v.shape)
    parts, root = [], 0.0297**0.5
    for a, b, c, d in zip(*(each.float().split(3, 1) for each in (p, g, m, v)), strict=True):
        c, d = torch.lerp(c, b, 0.1), 0.99 * d.abs() + 0.01 * b * b
        parts.append(torch.stack([a - 0.001 * a - (0.01 * root / 0.271) * c / (d.sqrt() + root * 1e-6), c, d]))
    return torch.cat(parts, 2).to(p.dtype) if parts else torch.stack([p, m, v])


@rewrite("product of codes with a zero for each column, sums of rows beside", _wide(lambda x, q, z, s: x @ ((q - z) * s)),
         lambda dtype: (*shapes((4, 8))(dtype), whole(8, 5, most=16).to(dtype), whole(5, most=16).to(dtype), *shapes((5,))(dtype)))  # fmt: skip
def sums_of_rows_beside(x: torch.Tensor, q: torch.Tensor, z: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == q.dim() == 2 and x.shape[1] == len(q) and z.shape == s.shape == q.shape[1:])
    wide = x.float()
    return ((wide @ (q.float() - 8) - wide.sum(1, keepdim=True) * (z.float() - 8)) * s.float()).to(x.dtype)


@rewrite("means of windows of two by two, rows first", _wide(lambda x: F.avg_pool2d(x, 2)), shapes((2, 3, 6, 8)))
def rows_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and x.shape[2] > 1 and x.shape[3] > 1 and x.numel() > 0)
    wide = x.float()[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2]
    rows = wide[:, :, ::2] + wide[:, :, 1::2]
    return ((rows[..., ::2] + rows[..., 1::2]) / 4).to(x.dtype)


@rewrite("twice as many columns between their neighbours, as one small product", _wide(lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
         shapes((2, 3, 7)))  # fmt: skip
def as_one_small_product(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)
    wide = x.float()
    before, behind = torch.cat([wide[..., :1], wide[..., :-1]], 2), torch.cat([wide[..., 1:], wide[..., -1:]], 2)
    return torch.stack([0.25 * before + 0.75 * wide, 0.75 * wide + 0.25 * behind], 3).flatten(2).to(x.dtype)


def _lossy(x: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    return F.gelu(x.float() @ w.float()).to(x.dtype), (x, w)


def _lossy_back(saved: Any, given: torch.Tensor) -> Any:
    x, w = saved
    inner = x.float() @ w.float()
    slope = 0.5 * torch.erfc(-inner * 0.5**0.5) + inner * (-0.5 * inner.square()).exp() * 0.3989422804014327
    up = given.float() * slope
    return (up @ w.float().mT).to(x.dtype), (x.float().mT @ up).to(w.dtype)


rewrite("product and gelu in one, the product computed again on the way back", _wide(lambda x, w: F.gelu(x @ w)), shapes((5, 8), (8, 6)))(
    function(_lossy, _lossy_back)
)
