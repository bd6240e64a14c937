"""Finds where `other` loses accuracy: the module that increases the error of its inputs most, and the line in it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from precheck.formats import ONE_ROUNDING
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import relative, roundoff
from precheck.pairs.intermediates import Intermediates, Made
from precheck.pairs.module_dataflow import Passage, Passages
from precheck.pairs.place import Place
from precheck.pairs.sides import Side

JUMP = 3.0
"""Factor by which a module multiplies the error of its inputs from which it is named as the one that loses accuracy."""


def first_loss(comparison: Comparison) -> Place | None:
    """The first module of `other` that multiplies the error of its inputs by more than `JUMP`, or else the one with the largest factor. None if
    unknown."""
    other, modules = comparison.other, comparison.matching.modules
    if other.compiled:
        return None
    with contextlib.suppress(*REFUSALS):
        low, exact = _passages(other, None), _passages(other, comparison.dtype)
        module = _first(low, {each.key: each for each in exact}, ONE_ROUNDING * roundoff(comparison.precision))
        if module is None:
            return None
        source, op = _line(comparison, module)
        return Place(module, modules.get(module), source, op)
    return None


def _passages(side: Side, dtype: torch.dtype | None) -> list[Passage]:
    follower = Passages(side.job.model)
    with follower.followed() as found:
        if dtype is None:
            side.once_low()
        else:
            side.once(dtype, following=True)
    return found


def _first(low: Sequence[Passage], exact: dict[tuple[str, str, int, int], Passage], one: float) -> str | None:
    """The module by jumps of the relative error. `one` is the relative error of a single rounding."""
    jumps, given = [], dict[tuple[str, int], float]()
    made = 0.0  # the largest error of any module's result so far
    for each in low:
        there = exact.get(each.key)
        if each.kind == "back" or there is None or there.tensor.shape != each.tensor.shape:
            continue
        error = relative(each.tensor, there.tensor)
        read = each.kind in ("lent", "in")
        before = made if read else given.get((each.module, each.call), 0.0)
        jumps.append((error / max(before, one), each.maker if read else each.module))
        if read:
            given[each.module, each.call] = max(error, given.get((each.module, each.call), 0.0))
        made = max(made, error)
    if not jumps:
        return None
    return next((module for jump, module in jumps if jump > JUMP), max(jumps)[1])


def _line(comparison: Comparison, module: str) -> tuple[str, str]:
    """The line and op that increase the error of their inputs most, if both runs have the same ops."""
    model = comparison.other.job.model
    own = any(True for _ in model.get_submodule(module).children())
    low, exact = (Intermediates(model, {module}, own=own) for _ in range(2))
    with low.followed():
        comparison.other.once_low()
    with exact.followed():
        comparison.other.once(comparison.dtype, following=True)
    made = _same(low.made, exact.made)
    one, errors, best = ONE_ROUNDING * roundoff(comparison.precision), [0.0] * len(made), (0.0, "", "")
    for number, (here, there) in enumerate(made):
        if here.tensor is None or there.tensor is None or here.tensor.shape != there.tensor.shape:
            continue
        errors[number] = relative(here.tensor, there.tensor)
        before = max([one, *(errors[each] for each in here.reads if each < number)])
        best = max(best, (errors[number] / before, here.line, here.op))
    if best[0] > JUMP:
        return best[1], best[2]
    return (low.made[-1].line, "") if low.made else ("", "")


def _same(low: Sequence[Made], exact: Sequence[Made]) -> list[tuple[Made, Made]]:
    """Pairs the ops of both runs in order. Where the counts differ, casts are left out, which only the low-precision run has."""
    if len(low) == len(exact):
        return list(zip(low, exact, strict=True))
    plain = [[each for each in made if not each.op.endswith("_to_copy")] for made in (low, exact)]
    return [] if len(plain[0]) != len(plain[1]) else [(a, b) for a, b in zip(*plain, strict=True)]
