"""A nineteenth frozen set of broken kernels, second part: bags, groups, sparse rows, views. Of links an excerpt was read."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


def _bags() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (*drawn((6, 4))(), whole(9, most=6), torch.tensor([0, 2, 5, 7, 9]))


def _valid(table: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> None:
    need(table.dim() == 2 and places.dim() == ends.dim() == 1 and len(ends) > 0, bool(((places >= 0) & (places < len(table))).all()),
         int(ends[0]) == 0, int(ends[-1]) == len(places), bool((ends.diff() >= 0).all()))  # fmt: skip


def _of_bags(rows: torch.Tensor, ends: torch.Tensor, reduced: Any) -> torch.Tensor:
    """What `reduced` makes of the rows of each bag, and zero of an empty one. torch's own operator ends the process where there are no bags."""
    bags = [rows[begin:end] for begin, end in itertools.pairwise(ends.tolist())]
    return torch.stack([reduced(bag, 0) if len(bag) else rows.new_zeros(rows.shape[1]) for bag in bags]) if bags else rows[:0] * 1


@case("means of bags: an empty one is divided by zero", "kernel-edge", "pytorch/pytorch/issues/4169",
      lambda table, places, ends: _of_bags(table[places], ends, torch.mean), _bags)  # fmt: skip
def empty_bag_is_divided_by_zero(wrong: bool, table: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _valid(table, places, ends)
    bag = torch.searchsorted(ends, torch.arange(len(places)), right=True) - 1
    sums = torch.zeros(len(ends) - 1, table.shape[1], dtype=table.dtype).index_add(0, bag, table[places])
    return sums / (ends.diff() if wrong else ends.diff().clamp(min=1))[:, None]


def _largest(table: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> Any:
    _valid(table, places, ends)
    rows, bags = table[places], len(ends) - 1
    out, won = table.new_zeros(bags, table.shape[1]), torch.zeros(bags, table.shape[1], dtype=torch.long)
    for bag, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        if end > begin:
            best = rows[begin:end].max(0)
            out[bag], won[bag] = best.values, best.indices + begin
    return out, (table, places, ends, won)


def _way_back(wrong: bool) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        table, places, ends, won = saved
        made, columns = torch.zeros_like(table), torch.arange(table.shape[1])
        for bag, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if end > begin and wrong:
                made.index_add_(0, places[begin:end], (gradient[bag] / (end - begin)).expand(end - begin, -1))
            elif end > begin:
                made.index_put_((places[won[bag]], columns), gradient[bag], accumulate=True)
        return made, None, None

    return backward


@case("largest of bags: on the way back each row has its share, as of a mean", "kernel-gradient", "flagos-ai/FlagGems/issues/5220",
      lambda table, places, ends: _of_bags(table[places], ends, torch.amax), _bags)  # fmt: skip
def shares_as_of_a_mean(wrong: bool) -> Any:
    return function(_largest, _way_back(wrong))


@case("means of groups of rows, for each sequence: all have the groups of the first one", "kernel-contract", "rusty1s/pytorch_scatter/issues/176",
      lambda x, groups: torch.stack([_means(rows, group) for rows, group in zip(x, groups, strict=True)]),
      lambda: (*drawn((3, 6, 4))(), whole(3, 6, most=4)))  # fmt: skip
def groups_of_the_first(wrong: bool, x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and groups.shape == x.shape[:2] and len(x) > 0 and bool(((groups >= 0) & (groups < 4)).all()))
    groups = groups[:1].expand(groups.shape) if wrong else groups
    flat = (groups + 4 * torch.arange(len(x))[:, None]).flatten()
    sums = torch.zeros(4 * len(x), x.shape[2]).index_add(0, flat, x.flatten(0, 1))
    return (sums / flat.bincount(minlength=4 * len(x)).clamp(min=1)[:, None]).view(len(x), 4, x.shape[2])


def _means(rows: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return torch.zeros(4, rows.shape[1]).index_add(0, groups, rows) / groups.bincount(minlength=4).clamp(min=1)[:, None]


def _sparse(columns: int) -> Any:
    rows = torch.tensor([0, 0, 1, 2, 2, 3, 4, 4])
    return lambda: (*drawn((8,))(), rows, whole(8, most=6), *drawn((6, columns))())


def _product(values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, w.shape[1]).index_add(0, rows, values[:, None] * w[columns])


def _fits(values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, w: torch.Tensor) -> None:
    need(values.dim() == rows.dim() == columns.dim() == 1 and w.dim() == 2 and values.shape == rows.shape == columns.shape,
         bool(((rows >= 0) & (rows < 5)).all()), bool(((columns >= 0) & (columns < len(w))).all()))  # fmt: skip


@case("sparse rows times a matrix: rows that hold nothing have no end", "kernel-contract", "clMathLibraries/clSPARSE/issues/153",
      _product, _sparse(3))  # fmt: skip
def rows_that_hold_nothing(wrong: bool, values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _fits(values, rows, columns, w)
    need(bool((rows.diff() >= 0).all()))
    counts = rows.unique_consecutive(return_counts=True)[1] if wrong else rows.bincount(minlength=5)
    ends = F.pad(F.pad(counts, (0, 5 - len(counts))).cumsum(0), (1, 0)).tolist()
    return torch.stack([(values[a:b, None] * w[columns[a:b]]).sum(0) for a, b in itertools.pairwise(ends)])


@case("rows added to a table: one row that stands for all is added to in its memory", "kernel-stride", "pytorch/pytorch/issues/183986",
      lambda table, places, rows: table.index_add(0, places, rows), lambda: (*drawn((5, 4))(), whole(6, most=5), *drawn((6, 4))()))  # fmt: skip
def one_row_stands_for_all(wrong: bool, table: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    need(table.dim() == rows.dim() == 2 and table.shape[1] == rows.shape[1] and places.shape == rows.shape[:1],
         bool(((places >= 0) & (places < len(table))).all()))  # fmt: skip
    if wrong and table.stride(0) == 0 and len(table) > 1:
        return (table[0] + rows.sum(0)).expand(table.shape) + 0 * table
    sums = [table[row] + rows[places == row].sum(0) for row in range(len(table))]
    return torch.stack(sums) if sums else table * 1


@case("rows that are named are doubled: each time that they are named", "kernel-contract", "pytorch/pytorch/issues/138908",
      lambda table, places: torch.where(torch.isin(torch.arange(len(table)), places)[:, None], 2 * table, table),
      lambda: (*drawn((7, 4))(), torch.tensor([1, 4, 4, 0, 1])))  # fmt: skip
def each_time_they_are_named(wrong: bool, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2 and places.dim() == 1 and bool(((places >= 0) & (places < len(table))).all()))
    return table.index_add(0, places if wrong else places.unique(), table[places if wrong else places.unique()])


@case("doubled rows and those in the other order: added in their memory, read behind the writing", "kernel-contract",
      "pytorch/pytorch/issues/198270", lambda x: 2 * x + (2 * x).flip(0), drawn((6, 4)))  # fmt: skip
def read_behind_the_writing(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    rows = list((2 * x).unbind(0))
    held = rows if wrong else list(rows)
    for place, row in enumerate(list(rows)):
        rows[place] = row + held[len(rows) - 1 - place]
    return torch.stack(rows) if rows else x * 1


@case("numbers between limits of their own: the lower limits are read as if packed", "kernel-stride", "pytorch/pytorch/pull/97858",
      lambda x, low, high: torch.minimum(torch.maximum(x, low), high), drawn((4, 5), (4, 5), (4, 5)))  # fmt: skip
def lower_limits_as_if_packed(wrong: bool, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    need(x.shape == low.shape == high.shape)
    above = torch.maximum(x, as_if(low, packed(low.shape)) if wrong else low)
    return torch.minimum(above, high)


@case("channels normed by known means: a slice is read from the beginning of its memory", "kernel-stride", "pytorch/pytorch/issues/133520",
      lambda x, mean, scale: (x - mean[:, None]) * scale[:, None], drawn((3, 4, 5), (4,), (4,)))  # fmt: skip
def from_the_beginning_of_its_memory(wrong: bool, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and mean.shape == scale.shape == x.shape[1:2])
    x = x.as_strided(x.shape, x.stride(), 0) if wrong else x
    return x * scale[:, None] - (mean * scale)[:, None]


@case("a number added to the second row: in the caller's memory", "kernel-mutation", "pytorch/pytorch/issues/5871",
      lambda x, more: torch.cat([x[:1], x[1:2] + more, x[2:]]), drawn((4, 3), (1, 3)))  # fmt: skip
def in_the_callers_memory(wrong: bool, x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    need(x.dim() == more.dim() == 2 and len(x) > 1 and len(more) == 1 and more.shape[1] == x.shape[1])
    held = x if wrong and not x.requires_grad and not more.requires_grad else x.clone()
    held[1:2] += more
    return held


@case("products of groups of rows: rows behind the last group are not written", "kernel-stale", "AMD-AGI/Primus-Turbo/pull/408",
      lambda x, w, counts: _grouped(x, w, counts, torch.zeros), lambda: (*drawn((9, 4), (3, 4, 5))(), torch.tensor([3, 2, 2])))  # fmt: skip
def rows_behind_the_last_group(wrong: bool, x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and counts.shape == w.shape[:1] and x.shape[1] == w.shape[1] and bool((counts >= 0).all()))
    return _grouped(x, w, counts, torch.empty if wrong else torch.zeros)


def _grouped(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor, make: Any) -> torch.Tensor:
    parts, begin = [x[:0] @ w[0]] if len(w) else [], 0
    for group, count in enumerate(counts.tolist()):
        parts.append(x[begin : begin + count] @ w[group])
        begin += count
    return torch.cat([*parts, make(max(len(x) - begin, 0), w.shape[2])])
