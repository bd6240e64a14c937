"""Pairs each tensor that passes between the modules of `other` with the tensor of `model` that it should equal."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from precheck.pairs.floors import agree
from precheck.pairs.matching import Matching
from precheck.pairs.module_dataflow import Passage

Couple = tuple[torch.Tensor, torch.Tensor]
Calls = dict[tuple[str, str, int], list[Passage]]
"""The tensors at one place of a module, of all its calls."""
AXES = 6
"""Axes up to which all orders are tried, 720 of them."""
MOST = 1 << 22
"""Distances between rows that are worked out for one tensor, a second on one core."""


class Couples:
    """Pairs tensors by call and place, or all calls joined, where their sizes allow it.

    With `rows`, tensors of other shapes are paired too. If they hold the same numbers with their axes in another order, as between channels first and
    channels last, they are paired in `model`'s order. Others are paired as sets of rows: where one model has padding, drafts or heads that the other
    has not, each row of `model` that matters must be among those of `other`. A row matters unless its gradient is zero.

    With `moved`, rows may also be in another order where the sizes are equal, as where padding is on the other side.
    """

    def __init__(self, ours: Sequence[Passage], theirs: Sequence[Passage], matching: Matching, *, rows: bool = False, moved: bool = False) -> None:
        self.theirs, self.matching, self.rows, self.moved = theirs, matching, rows, moved
        self.known = {each.key: each for each in ours}
        self.calls = _by_place(ours), _by_place(theirs)
        self.counts = [Counter((each.kind, each.module) for each in found) for found in (ours, theirs)]
        self.results = [{each.module: each.place + 1 for each in found if each.kind == "out"} for found in (ours, theirs)]  # of the last call
        self.taken: dict[tuple[str, int], list[Passage]] = {}
        for each in theirs:
            if each.kind == "in":
                self.taken.setdefault((each.module, each.call), []).append(each)
        self.backward = any(each.kind == "back" for each in ours)

    def __call__(self, passage: Passage) -> Couple | None:
        """The tensor of `other` and that of `model`, or None if they cannot be compared. If they have other sizes, they differ."""
        wanted = self.matching.counterpart(passage.module, passage.tensor.shape)
        if wanted is None or passage.kind == "flags":  # which explain what reads them
            return None
        there = self.known.get((passage.kind, wanted, passage.call, passage.place))
        alike = self.alike(passage, wanted)
        if passage.kind == "lent" and not alike:
            return None
        if passage.kind == "whole":
            return self._whole(passage, wanted, there if alike else None)
        if self.placed(passage):
            assert there is not None
            moved = self._anywhere(passage, there) if self.moved else None
            return moved or self._in_usual_order(passage.tensor, there.tensor) or (passage.tensor, there.tensor)
        if self.rows and there is not None and (turned := reordered(passage.tensor, there.tensor)) is not None:
            return turned, there.tensor
        all_ = [calls.get((passage.kind, name, passage.place), []) for calls, name in zip(self.calls, (wanted, passage.module), strict=True)]
        axis = _common_axis(*all_) if self.rows and self.matching.holds(passage.module, wanted) else 0
        here = self._as_rows(passage, axis, [there], [passage]) if there is not None and axis else None
        if here is not None and agree(*here):
            return here  # whatever is wrong in later calls
        if axis and all_[0] and passage is not all_[1][-1] and not alike and _among([passage], all_[0], axis):
            return passage.tensor, passage.tensor  # rows that are left out show at the last call
        if there is not None and alike and passage.tensor.numel() != there.tensor.numel():  # as many calls and tensors, but this one has another size
            return self._as_rows(passage, axis, *all_) if axis else (passage.tensor, there.tensor)
        joined = _as_one(*all_)  # another number of calls, such as one for each row of a batch
        return self._as_rows(passage, axis, *all_) if joined is None and axis else joined

    def _in_usual_order(self, here: torch.Tensor, there: torch.Tensor) -> Couple | None:
        """Two tensors of one shape that are equal in the order of axes in which others of this run are: channels last where the picture is square and
        has as many channels."""
        if not self.rows or here.dim() < 3 or agree(here, there):
            return None
        turned = (here.permute(order) for order in self.orders if len(order) == here.dim())
        return next(((each, there) for each in turned if agree(each, there)), None)

    @functools.cached_property
    def orders(self) -> set[tuple[int, ...]]:
        """The orders of axes in which tensors of `other` are equal to those of `model` whose sizes show that their axes have another order."""
        found = set[tuple[int, ...]]()
        for each in self.theirs:
            wanted = self.matching.modules.get(each.module)
            there = None if wanted is None else self.known.get((each.kind, wanted, each.call, each.place))
            if there is None or there.tensor.shape == each.tensor.shape or sorted(there.tensor.shape) != sorted(each.tensor.shape):
                continue
            if not any(len(order) == each.tensor.dim() and agree(each.tensor.permute(order), there.tensor) for order in found):
                order = order_of_axes(each.tensor, there.tensor)
                found |= set() if order is None else {order}
        return found

    def _whole(self, passage: Passage, wanted: str, there: Passage | None) -> Couple | None:
        """Whole numbers, of one call or of all calls joined, where one model makes more calls. Zeros and ones may be a mask, whose meaning each model
        chooses: they are compared if they were equal in an earlier call."""
        ours, theirs = (calls.get(("whole", name, passage.place), []) for calls, name in zip(self.calls, (wanted, passage.module), strict=True))
        couple = _as_one(ours, theirs) if there is None else (passage.tensor, there.tensor)
        if there is not None and there.tensor.shape != passage.tensor.shape:
            couple = self._of_same_rows(passage, there)
        if couple is None or couple[0].shape != couple[1].shape or couple[0].is_floating_point() != couple[1].is_floating_point():
            return None
        before = {each.call: each.tensor for each in ours if each.call < passage.call}
        known = any(each.call in before and torch.equal(each.tensor, before[each.call]) for each in theirs)
        return couple if known or couple[0].is_floating_point() or max(int(each.max()) for each in couple) > 1 else None

    def _of_same_rows(self, passage: Passage, there: Passage) -> Couple | None:
        """Whole numbers of a call that has fewer rows than model's, with those that model's call has for the same rows."""
        read = next(iter(self.taken.get((passage.module, passage.call), [])), None)
        whole = None if read is None else self.known.get(("in", there.module, there.call, read.place))
        if read is None or whole is None or read.tensor.dim() < 2 or read.tensor.shape[1:] != whole.tensor.shape[1:]:
            return None
        pairs = ((passage, read), (there, whole))
        if passage.tensor.shape[1:] != there.tensor.shape[1:] or any(
            each.tensor.dim() == 0 or len(each.tensor) != len(row.tensor) for each, row in pairs
        ):
            return None
        here, known = (each.tensor.flatten(1) for each in (read, whole))
        if len(here) * len(known) > MOST:
            return None
        at = torch.cdist(here, known, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        return (passage.tensor, there.tensor[at]) if agree(here, known[at]) else None

    def _anywhere(self, passage: Passage, there: Passage) -> Couple | None:
        """The rows of model that matter with the nearest of `other`, if they are equal."""
        axis = _common_axis([there], [passage])
        if not axis or passage.kind == "back":
            return None
        wanted = _rows([there.tensor], axis)
        if there.gradient is not None:
            wanted = wanted[_rows([there.gradient], axis).count_nonzero(-1) > 0]
        found = _nearest(wanted, _rows([passage.tensor], axis))
        return (found, wanted) if len(wanted) and agree(found, wanted) else None

    def alike(self, passage: Passage, wanted: str) -> bool:
        """Whether both modules are called equally often with as many tensors. Of floats only those of floats count: a packed sequence comes with
        whole numbers that a padded one has not."""
        return all(self.counts[0][kind, wanted] == self.counts[1][kind, passage.module] for kind in ("in", "out", passage.kind))

    def placed(self, passage: Passage) -> bool:
        """Whether call and place say which tensor of `model` this one should equal: the sizes are equal, and so are those of the inputs."""
        wanted = self.matching.counterpart(passage.module, passage.tensor.shape)
        there = None if wanted is None else self.known.get((passage.kind, wanted, passage.call, passage.place))
        if wanted is None or there is None or there.tensor.shape != passage.tensor.shape:
            return False
        return self.alike(passage, wanted) or passage.kind != "out" or not self._asked_otherwise(passage, wanted)

    def _asked_otherwise(self, passage: Passage, wanted: str) -> bool:
        """Whether the call has inputs of other shapes than model's call of that number. Then the two calls do not match."""
        read = self.taken.get((passage.module, passage.call), [])
        couples = [(each, self.known.get(("in", wanted, each.call, each.place))) for each in read]
        return any(there is not None and there.tensor.shape != here.tensor.shape for here, there in couples)

    def given_less(self, module: str) -> bool:
        """Whether a module gets less than model's and returns nothing else, so that rows are missing which the code around it did not give it."""
        wanted, sizes = self.matching.modules.get(module), []
        for calls, name in zip(self.calls, (wanted, module), strict=True):
            read = [all_ for (kind, each, _), all_ in calls.items() if kind in ("in", "whole") and each == name]
            sizes.append(sum(each.tensor.numel() for all_ in read for each in all_))
        if not self.rows or sizes[1] >= sizes[0] or self.results[0].get(wanted or "") != self.results[1].get(module):
            return False
        for place in range(self.results[1].get(module, 0)):
            ours, theirs = (calls["out", name or "", place] for calls, name in zip(self.calls, (wanted, module), strict=True))
            if not any(_among(theirs, ours, axis) for axis in {_common_axis(ours, theirs), 0}):
                return False
        return True

    def leaves_out(self, passage: Passage) -> bool:
        """Whether the call has fewer rows than model's, all of which model's has too."""
        wanted = self.matching.counterpart(passage.module, passage.tensor.shape)
        there = None if wanted is None else self.known.get((passage.kind, wanted, passage.call, passage.place))
        axis = 0 if there is None else _common_axis([there], [passage])
        return there is not None and axis != 0 and passage.tensor.numel() < there.tensor.numel() and _among([passage], [there], axis)

    def _as_rows(self, passage: Passage, axis: int, ours: list[Passage], theirs: list[Passage]) -> Couple | None:
        """The rows of `model` that matter with the nearest of `other`. If the module itself changed the size, neither side may have new rows, and
        those of `other` with the nearest of `model` follow. None if no row matters."""
        there, here = _rows([each.tensor for each in ours], axis), _rows([each.tensor for each in theirs], axis)
        wanted = there
        if self.backward:
            gradients = [torch.zeros_like(each.tensor) if each.gradient is None else each.gradient for each in ours]
            wanted = there[_rows(gradients, axis).count_nonzero(-1) > 0]
        if passage.kind == "back" and int((here.count_nonzero(-1) > 0).sum()) > len(wanted):
            return None  # rows that `other` computes more than once have a part of the gradient each
        one, two = [_nearest(wanted, here)], [wanted]
        if passage.kind == "out" and self.alike(passage, ours[0].module) and not self._asked_otherwise(passage, ours[0].module):
            one, two = [*one, here], [*two, _nearest(here, there)]
        return (torch.cat(one), torch.cat(two)) if sum(map(len, one)) else None


def by_results(matching: Matching, ours: Sequence[Passage], theirs: Sequence[Passage], classes: Mapping[str, type]) -> dict[str, str]:
    """Other counterparts for modules of `other` where several modules of `model` hold the same weights, one around the other: a block, say, and the
    row of layers in it, to which the block adds its input. Weights do not tell which of them a module stands for. Most results of its class do."""
    linked = {name for link in matching.links for name in link.models}
    known = {each.key: each.tensor for each in ours if each.kind == "out"}
    around: dict[str, list[str]] = {}
    votes: dict[type, Counter[int]] = {}
    for each in theirs:
        wanted = matching.modules.get(each.module) if each.kind == "out" else None
        if not wanted:
            continue
        if each.module not in around:
            names, held = wanted.split("."), _held(linked, wanted)
            outer = (".".join(names[:depth]) for depth in range(len(names), 0, -1))
            around[each.module] = list(itertools.takewhile(lambda name, held=held: _held(linked, name) == held, outer))  # type: ignore[misc]
        for level, name in enumerate(around[each.module]):
            there = known.get(("out", name, each.call, each.place))
            turned = there is not None and there.shape != each.tensor.shape and reordered(each.tensor, there) is not None
            if turned or agree(each.tensor, there):
                votes.setdefault(classes[each.module], Counter())[level] += 1
    best = {kind: max(sorted(count), key=lambda level, count=count: count[level]) for kind, count in votes.items()}  # type: ignore[misc]
    levels = {name: best.get(classes[name], 0) for name in around}
    return {name: around[name][level] for name, level in levels.items() if 0 < level < len(around[name])}


def _held(names: Collection[str], module: str) -> frozenset[str]:
    return frozenset(name for name in names if name.startswith(f"{module}."))


def reordered(here: torch.Tensor, there: torch.Tensor) -> torch.Tensor | None:
    """The first tensor with its axes in another order, if it then holds the numbers of the second."""
    order = order_of_axes(here, there)
    return None if order is None else here.permute(order)


def order_of_axes(here: torch.Tensor, there: torch.Tensor) -> tuple[int, ...] | None:
    """The other order of axes in which the first tensor holds the numbers of the second."""
    if sorted(here.shape) != sorted(there.shape) or here.shape.numel() < 2 or here.dim() > AXES:
        return None
    orders = (order for order in itertools.permutations(range(here.dim())) if list(order) != sorted(order) and fits(here, there, order))
    return next((order for order in orders if agree(here.permute(order), there)), None)


def fits(here: torch.Tensor, there: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the first tensor has the sizes of the second with its axes in this order."""
    return len(order) == here.dim() == there.dim() and all(here.shape[axis] == size for axis, size in zip(order, there.shape, strict=True))


def _common_axis(ours: Sequence[Passage], theirs: Sequence[Passage]) -> int:
    """The last axis, counted from the end, that has the same size on both sides, or 0. Also 0 if that means more than `MOST` distances."""
    shapes = [each.tensor.shape for each in (*ours, *theirs)]
    axes = range(-1, -1 - min(map(len, shapes), default=0), -1)
    found = next((axis for axis in axes if len({shape[axis] for shape in shapes}) == 1 and shapes[0][axis] > 1), 0) if ours and theirs else 0
    counts = [sum(each.tensor.numel() for each in some) // shapes[0][found] for some in (ours, theirs)] if found else [0]
    return found if math.prod(counts) <= MOST else 0


def _among(theirs: Sequence[Passage], ours: Sequence[Passage], axis: int) -> bool:
    """Whether all vectors along an axis are among those of `model`, or with an axis of 0 all numbers: a density of each sample, say."""
    here, there = (
        _rows([each.tensor for each in some], axis) if axis else torch.cat([each.tensor.reshape(-1, 1) for each in some]) for some in (theirs, ours)
    )
    return len(here) * len(there) <= MOST and agree(here, _nearest(here, there))


def _rows(tensors: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """All vectors along an axis. Shape (vectors, size of the axis)."""
    return torch.cat([each.movedim(axis, -1).reshape(-1, each.shape[axis]) for each in tensors])


def _nearest(rows: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """For each of the rows the nearest `among` others."""
    if not len(rows):
        return rows
    return among[torch.cdist(rows, among, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)]


def _by_place(passages: Sequence[Passage]) -> Calls:
    found: Calls = {}
    for each in passages:
        found.setdefault((each.kind, each.module, each.place), []).append(each)
    return found


def _as_one(ours: list[Passage], theirs: list[Passage]) -> Couple | None:
    """The results of all calls of a module as one tensor, joined along the dimension that makes the lengths equal: `other`'s and `model`'s."""
    if not ours or not theirs or ours[0].tensor.dim() != theirs[0].tensor.dim():
        return None
    for dim in range(ours[0].tensor.dim()):
        with contextlib.suppress(RuntimeError):
            here, there = (torch.cat([each.tensor for each in some], dim) for some in (theirs, ours))
            if here.shape == there.shape:
                return here, there
    return None
