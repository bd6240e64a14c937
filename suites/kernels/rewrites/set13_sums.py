"""The thirteenth frozen set of healthy kernels, first part: scans, orders, segments, bags."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


@rewrite("sums so far, up and down a tree", lambda x: x.float().cumsum(-1).to(x.dtype), shapes((4, 11)))
def up_and_down(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    levels, size = [x.float()], x.shape[1]
    while levels[-1].shape[1] > 1:
        last = F.pad(levels[-1], (0, levels[-1].shape[1] % 2))
        levels.append(last[:, ::2] + last[:, 1::2])
    before = torch.zeros(len(x), 1)
    for level in reversed(levels[:-1]):
        left = before[:, : (level.shape[1] + 1) // 2]
        right = left[:, : level.shape[1] // 2] + level[:, : level.shape[1] // 2 * 2 : 2]
        both = torch.stack([left, F.pad(right, (0, left.shape[1] - right.shape[1]))], -1)
        before = both.flatten(1)[:, : level.shape[1]]
    return (before[:, :size] + x.float()).to(x.dtype)


@rewrite("means so far, step by step", lambda x: (x.float().cumsum(-1) / torch.arange(1, x.shape[-1] + 1)).to(x.dtype), shapes((4, 9)))
def means_so_far(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    mean, made = torch.zeros(len(x)), []
    for count, column in enumerate(x.float().unbind(1), 1):
        mean = mean + (column - mean) / count
        made.append(mean)
    return torch.stack(made, 1).to(x.dtype)


@rewrite("largest so far and its place, step by step", lambda x: tuple(torch.cummax(x, -1)), shapes((4, 9)))
def largest_and_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    most, place = x[:, 0], torch.zeros(len(x), dtype=torch.long)
    values, places = [most], [place]
    for step, column in enumerate(x.unbind(1)[1:], 1):
        larger = (column >= most) | column.isnan()
        most, place = torch.where(larger, column, most), torch.where(larger, step, place)
        values.append(most)
        places.append(place)
    return torch.stack(values, 1), torch.stack(places, 1)


def _anew(x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(x.shape[1]), []
    for row, value in enumerate(x.float()):
        state = value if row == 0 or segments[row] != segments[row - 1] else state + value
        made.append(state)
    return torch.stack(made).to(x.dtype)


@rewrite("sums so far that begin anew, a segment at a time", _anew, lambda dtype: (*shapes((10, 3))(dtype), whole(10, most=4).sort().values))
def begin_anew(x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, segments.shape == x.shape[:1], len(x) > 0)
    lengths = segments.unique_consecutive(return_counts=True)[1].tolist()
    return torch.cat([part.cumsum(0) for part in x.float().split(lengths)]).to(x.dtype)


def _fading(x: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(x)), []
    for column in x.float().unbind(1):
        state = 0.875 * state + 0.125 * column
        made.append(state)
    return torch.stack(made, 1).to(x.dtype)


@rewrite("fading means, four columns at a time by a triangle of powers", _fading, shapes((3, 10)))
def triangle_of_powers(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    state, made = torch.zeros(len(x)), []
    for part in x.float().split(4, 1):
        step = torch.arange(part.shape[1])
        apart = step[:, None] - step
        powers = torch.where(apart >= 0, 0.875 ** apart.clamp(min=0).float(), 0.0)
        rows = 0.125 * part @ powers.T + state[:, None] * 0.875 ** (step + 1).float()
        made.append(rows)
        state = rows[:, -1]
    return torch.cat(made, 1).to(x.dtype)


def _second_order(x: torch.Tensor) -> torch.Tensor:
    one, two, made = torch.zeros(len(x)), torch.zeros(len(x)), []
    for column in x.float().unbind(1):
        one, two = column + 0.5 * one - 0.25 * two, one
        made.append(one)
    return torch.stack(made, 1).to(x.dtype)


@rewrite("recurrence of the second order, as a matrix and a state of two", _second_order, shapes((3, 9)))
def state_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    matrix, state, made = torch.tensor([[0.5, -0.25], [1.0, 0.0]]), torch.zeros(len(x), 2), []
    for column in x.float().unbind(1):
        state = state @ matrix.T + F.pad(column[:, None], (0, 1))
        made.append(state[:, 0])
    return torch.stack(made, 1).to(x.dtype)


@rewrite("sums of windows of four, by doubling", lambda x: x.float().unfold(-1, 4, 1).sum(-1).to(x.dtype), shapes((4, 12)))
def windows_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 4)
    pairs = x.float()[:, :-1] + x.float()[:, 1:]
    return (pairs[:, :-2] + pairs[:, 2:]).to(x.dtype)


@rewrite("the largest four, those of both halves first", lambda x: x.topk(4, -1).values, shapes((3, 13)))
def both_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 4)
    halves = [half.topk(min(4, half.shape[1]), -1).values for half in x.tensor_split(2, -1)]
    return torch.cat(halves, -1).topk(4, -1).values


@rewrite("a number that three tenths are below, between two of a sort", lambda x: x.float().quantile(0.3, -1).to(x.dtype), shapes((5, 9)))
def between_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    ordered, place = x.float().sort(-1).values, 0.3 * (x.shape[1] - 1)
    low = math.floor(place)
    made = torch.lerp(ordered[:, low], ordered[:, min(low + 1, x.shape[1] - 1)], place - low)
    return torch.where(x.isnan().any(-1), math.nan, made).to(x.dtype)


def _added(table: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return table.float().index_add(0, places, x.float()).to(table.dtype)


@rewrite("rows added to a table, one place after another", _added, lambda dtype: (*shapes((6, 4), (11, 4))(dtype), whole(11, most=6)))
def one_place_after_another(table: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, x.dim() == 2, table.shape[1] == x.shape[1], places.shape == x.shape[:1], len(table) > 0)
    need(not bool(((places < 0) | (places >= len(table))).any()))
    return torch.stack([row.float() + x[places == place].float().sum(0) for place, row in enumerate(table)]).to(table.dtype)


def _neighbours(x: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape).index_add(0, ends, x.float()[begins])
    count = torch.zeros(len(x)).index_add(0, ends, torch.ones(len(ends)))
    return (total / count.clamp(min=1)[:, None]).to(x.dtype)


@rewrite(
    "means of neighbours, edges in the order of their ends",
    _neighbours,
    lambda dtype: (*shapes((6, 4))(dtype), whole(13, most=6), whole(13, most=6, seed=4)),
)
def order_of_ends(x: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, begins.dim() == 1, begins.shape == ends.shape, len(x) > 0)
    need(not bool(((begins < 0) | (begins >= len(x)) | (ends < 0) | (ends >= len(x))).any()))
    order = ends.argsort()
    counts = torch.bincount(ends, minlength=len(x)).tolist()
    parts = x.float()[begins[order]].split(counts)
    return torch.stack([part.sum(0) / max(len(part), 1) for part in parts]).to(x.dtype)


def _bins(weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.zeros(7).index_add(0, places, weights.float()).to(weights.dtype)


@rewrite("weights in seven bins, chosen and summed", _bins, lambda dtype: (*shapes((20,))(dtype), whole(20, most=7)))
def chosen_and_summed(weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(weights.dim() == 1, weights.shape == places.shape, not bool(((places < 0) | (places >= 7)).any()))
    return torch.where(places == torch.arange(7)[:, None], weights.float(), 0.0).sum(1).to(weights.dtype)


def _counting(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    kept = places >= 0
    rows = torch.where(kept[..., None], table.float()[places.clamp(min=0)], 0.0)
    return (rows.sum(1) / kept.sum(1, keepdim=True).clamp(min=1)).to(table.dtype)


@rewrite("means of bags without their padding, a bag at a time", _counting, lambda dtype: (*shapes((7, 4))(dtype), whole(5, 4, most=7, least=-1)))
def a_bag_at_a_time(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, places.dim() == 2, len(table) > 0, len(places) > 0, not bool(((places < -1) | (places >= len(table))).any()))
    made = []
    for bag in places:
        kept = bag[bag >= 0]
        made.append(table[kept].float().sum(0) / max(len(kept), 1))
    return torch.stack(made).to(table.dtype)


@rewrite(
    "largest of a bag's rows, one after the other",
    lambda table, places: table[places].amax(1),
    lambda dtype: (*shapes((7, 4))(dtype), whole(5, 3, most=7)),
)
def largest_of_a_bag(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, places.dim() == 2, places.shape[1] > 0, not bool(((places < 0) | (places >= len(table))).any()))
    return functools.reduce(torch.maximum, (table[column] for column in places.unbind(1)))


def _spread(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(4).index_add(0, places, torch.ones(len(places))).clamp(min=1)[:, None]
    mean = torch.zeros(4, x.shape[1]).index_add(0, places, x.float()) / count
    return (torch.zeros(4, x.shape[1]).index_add(0, places, (x.float() - mean[places]).square()) / count).to(x.dtype)


@rewrite("variance of each of four segments, chosen rows", _spread, lambda dtype: (*shapes((14, 3))(dtype), whole(14, most=4)))
def variance_of_chosen_rows(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, places.shape == x.shape[:1], not bool(((places < 0) | (places >= 4)).any()))
    made = []
    for place in range(4):
        rows = x[places == place].float()
        made.append((rows - rows.sum(0) / max(len(rows), 1)).square().sum(0) / max(len(rows), 1))
    return torch.stack(made).to(x.dtype)


def _bag_forward(table: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> Any:
    need(table.dim() == 2, weights.dim() == 2, places.shape == weights.shape, not bool(((places < 0) | (places >= len(table))).any()))
    made = torch.zeros(len(places), table.shape[1])
    for weight, column in zip(weights.float().unbind(1), places.unbind(1), strict=True):
        made = torch.addcmul(made, weight[:, None], table[column].float())
    return made.to(table.dtype), (table, weights, places)


def _bag_backward(saved: Any, gradient: torch.Tensor) -> Any:
    table, weights, places = saved
    given = gradient.float()
    rows = (weights.float()[..., None] * given[:, None]).flatten(0, 1)
    made = torch.zeros(table.shape).index_add_(0, places.flatten(), rows)
    slopes = torch.einsum("bc,bkc->bk", given, table[places].float())
    return made.to(table.dtype), slopes.to(weights.dtype), None


rewrite("bags with a weight for each row, by addcmul and a product back",
        lambda table, weights, places: (weights.float()[..., None] * table.float()[places]).sum(1).to(table.dtype),
        lambda dtype: (*shapes((8, 5), (6, 3))(dtype), whole(6, 3, most=8)))(function(_bag_forward, _bag_backward))  # fmt: skip


@rewrite(
    "logarithms of sums from behind, a step at a time", lambda x: x.float().flip(-1).logcumsumexp(-1).flip(-1).to(x.dtype), shapes((4, 8))
)
def from_behind(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    made = [x.float()[:, -1]]
    for column in reversed(x.float().unbind(1)[:-1]):
        made.append(torch.logaddexp(made[-1], column))
    return torch.stack(made[::-1], 1).to(x.dtype)
