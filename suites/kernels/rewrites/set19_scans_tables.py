"""The nineteenth frozen set of healthy kernels, first part: scans, orders, tables, sparse rows. Committed before any was tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("sums so far, a product with a triangle for each block of eight", _wide(lambda x: x.cumsum(-1)), shapes((4, 21)))
def triangle_for_each_block(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and bool(x.isfinite().all()))
    blocks = F.pad(x.float(), (0, -x.shape[1] % 8)).unflatten(1, (-1, 8))
    inside = blocks @ torch.ones(8, 8).triu()
    before = F.pad(inside[..., -1].cumsum(1), (1, 0))[:, :-1]
    return (inside + before[..., None]).flatten(1)[:, : x.shape[1]].to(x.dtype)


@rewrite("logarithms of sums so far, by doubling", _wide(lambda x: x.logcumsumexp(-1)), shapes((4, 13)))
def logarithms_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    wide, step = x.float(), 1
    while step < wide.shape[1]:
        wide = torch.cat([wide[:, :step], torch.logaddexp(wide[:, step:], wide[:, :-step])], 1)
        step *= 2
    return wide.to(x.dtype)


@rewrite("smallest so far, by doubling", lambda x: x.cummin(-1).values, shapes((4, 11)))
def smallest_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    step = 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], torch.minimum(x[:, step:], x[:, :-step])], 1)
        step *= 2
    return x * 1


@rewrite("rows in order, each number counted that is smaller", lambda x: x.sort(dim=-1, stable=True).values, shapes((4, 9)))
def smaller_ones_counted(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and not bool(x.isnan().any()))
    places = torch.arange(x.shape[1])
    before = (x[:, None] < x[:, :, None]) | ((x[:, None] == x[:, :, None]) & (places < places[:, None]))
    return torch.zeros_like(x).scatter(1, before.sum(2), x)


@rewrite("three largest, one after the other", lambda x: x.topk(3).values, shapes((4, 9)))
def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 3 and not bool(x.isnan().any()))
    found, left = [], torch.ones_like(x, dtype=torch.bool)
    for _ in range(3):
        place = torch.where(left, x, -INF).argmax(1, keepdim=True)
        place = torch.where(left.gather(1, place), place, left.int().argmax(1, keepdim=True))
        found.append(x.gather(1, place))
        left = left.scatter(1, place, False)
    return torch.cat(found, 1)


@rewrite("the middle of each row, by a sort", lambda x: x.median(-1).values, shapes((5, 8)))
def middle_by_a_sort(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    made = x.sort(-1).values
    return torch.where(x.isnan().any(1), made[:, -1], made[:, (x.shape[1] - 1) // 2])


@rewrite("bags added up, as a product of counts and the table", _wide(lambda table, places: table[places].sum(1)),
         lambda dtype: (*shapes((6, 4))(dtype), whole(5, 3, most=6)))  # fmt: skip
def counts_and_the_table(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == places.dim() == 2 and bool(((places >= 0) & (places < len(table))).all()) and bool(table.isfinite().all()))
    counts = (places[..., None] == torch.arange(len(table))).sum(1)
    return (counts.float() @ table.float()).to(table.dtype)


@rewrite("rows of a table, the way back in the order of places", lambda table, places: table[places],
         lambda dtype: (*shapes((6, 4))(dtype), whole(9, most=6)))  # fmt: skip
def in_the_order_of_places(table: torch.Tensor, places: torch.Tensor) -> Any:
    def forward(table: torch.Tensor, places: torch.Tensor) -> Any:
        need(table.dim() == 2 and places.dim() == 1 and bool(((places >= 0) & (places < len(table))).all()))
        return table.index_select(0, places), (table, places)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        table, places = saved
        order = places.argsort(stable=True)
        ends = F.pad(places.bincount(minlength=len(table)).cumsum(0), (1, 0)).tolist()
        wide = gradient.float()[order]
        rows = [wide[a:b].sum(0) for a, b in itertools.pairwise(ends)]
        return torch.stack(rows).to(table.dtype) if rows else torch.zeros_like(table), None

    return function(forward, backward)(table, places)


@rewrite("rows added up by group, one group at a time", _wide(lambda x, groups: torch.zeros(4, x.shape[1]).index_add(0, groups, x)),
         lambda dtype: (*shapes((9, 5))(dtype), whole(9, most=4)))  # fmt: skip
def one_group_at_a_time(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and groups.shape == x.shape[:1] and bool(((groups >= 0) & (groups < 4)).all()))
    return torch.stack([x[groups == group].float().sum(0) for group in range(4)]).to(x.dtype)


@rewrite("largest of each group, one group at a time", lambda x, groups: torch.zeros(4, x.shape[1], dtype=x.dtype).index_reduce(
    0, groups, x, "amax", include_self=False), lambda dtype: (*shapes((9, 5))(dtype), whole(9, most=4)))  # fmt: skip
def largest_one_group_at_a_time(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and groups.shape == x.shape[:1] and bool(((groups >= 0) & (groups < 4)).all()))
    zero = x.new_zeros(x.shape[1])
    return torch.stack([x[groups == group].amax(0) if bool((groups == group).any()) else zero for group in range(4)])


@rewrite("sparse rows times a matrix, made dense", _wide(lambda v, r, c, w: torch.zeros(5, w.shape[1]).index_add(0, r, v[:, None] * w[c])),
         lambda dtype: (*shapes((8,))(dtype), whole(8, most=5), whole(8, most=6), *shapes((6, 3))(dtype)))  # fmt: skip
def made_dense(v: torch.Tensor, r: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 1 and v.shape == r.shape == c.shape and w.dim() == 2 and bool(w.isfinite().all()),
         bool(((r >= 0) & (r < 5) & (c >= 0) & (c < len(w))).all()))  # fmt: skip
    dense = torch.zeros(5 * len(w)).index_add(0, r * len(w) + c, v.float()).view(5, len(w))
    return (dense @ w.float()).to(v.dtype)


@rewrite("windows of five, three steps apart, by places", lambda x: x.unfold(1, 5, 3), shapes((4, 17)))
def windows_by_places(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 5)
    return x[:, torch.arange((x.shape[1] - 5) // 3 + 1)[:, None] * 3 + torch.arange(5)]


@rewrite("windows that overlap added up, tap after tap",
         lambda x: F.fold(x.mT[None].float(), (1, 2 * len(x) + 2), (1, 4), stride=(1, 2))[0, 0, 0].to(x.dtype),
         shapes((6, 4)))  # fmt: skip
def tap_after_tap(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 4 and len(x) > 0)
    total = torch.zeros(2 * len(x) + 2)
    for tap in range(4):
        total = total.index_add(0, 2 * torch.arange(len(x)) + tap, x[:, tap].float())
    return total.to(x.dtype)


@rewrite("a sum of steps of a rotation, by butterflies", lambda x: (x.float() @ _hadamard(8)).to(x.dtype), shapes((5, 8)))
def by_butterflies(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 8 and bool(x.isfinite().all()))
    wide, step = x.float(), 1
    while step < 8:
        parts = wide.unflatten(1, (-1, 2, step))
        wide = torch.stack([parts[:, :, 0] + parts[:, :, 1], parts[:, :, 0] - parts[:, :, 1]], 2).flatten(1)
        step *= 2
    return wide.to(x.dtype)


def _hadamard(size: int) -> torch.Tensor:
    made = torch.ones(1, 1)
    while len(made) < size:
        made = torch.cat([torch.cat([made, made], 1), torch.cat([made, -made], 1)])
    return made


@rewrite("running mean of a tenth, as weights of powers", _wide(lambda x: _running(x)), shapes((9, 4)))
def weights_of_powers(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and 0 < len(x) < 300 and bool(x.isfinite().all()))
    apart = torch.arange(len(x))[:, None] - torch.arange(len(x))
    weights = torch.where(apart >= 0, 0.1 * 0.9 ** apart.clamp(min=0), 0)
    return (weights @ x.float()).to(x.dtype)


def _running(x: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros_like(x[0]), []
    for row in x:
        state = 0.9 * state + 0.1 * row
        rows.append(state)
    return torch.stack(rows)
