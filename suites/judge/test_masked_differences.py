"""Differences whose large results a mask leaves out: of those that are left, a rounding of the large ones may be all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenario import finds, passes

PLACES = torch.arange(40)
BEFORE = PLACES[:, None] > PLACES[None]
TIMES = torch.cat([torch.linspace(0, 10, 20), torch.linspace(500, 510, 20)]).bfloat16().float()  # of two days, as data have them


def between(times: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    return torch.where(among, times[:, None] - times[None], 0.0)


def spreads_by_sums() -> torch.Tensor:
    """Spreads of the numbers between two places, which sums over all of them before give; of no numbers they are garbage, and left out."""
    numbers = (8 + torch.sin(3.0 * PLACES[:-1])).bfloat16()
    sums, squares = (torch.cat([torch.zeros(1), each.cumsum(0)]).bfloat16() for each in (numbers.float(), numbers.float().square()))
    total, count = sums[:, None] - sums[None], (PLACES[:, None] - PLACES[None]).clamp_min(1)
    spread = (squares[:, None] - squares[None]) / count - (total / count).square()  # fault
    return torch.where(BEFORE, spread, 0.0)


def gaps_within_a_day() -> torch.Tensor:
    """The same times in bfloat16, of which those of the second day are spaced by two, whichever of them are left: the data are so."""
    return between(TIMES.bfloat16(), (PLACES[:, None] // 20) == (PLACES[None] // 20))


def steps_that_are_small() -> torch.Tensor:
    """What is left is small by choice, and right to a few roundings of what it was computed from."""
    steps = (5 + torch.sin(1.7 * PLACES)).bfloat16().float().sub(5).mul(1.001).bfloat16() - torch.where(PLACES % 9 == 0, 300.0, 0.0).bfloat16()
    return torch.where(steps.abs() < 4, steps, 0.0)


def errors_of_words() -> torch.Tensor:
    """Answers less their targets, which are far off where there is none."""
    answers = torch.sin(1.3 * PLACES).bfloat16().mul(0.9)
    targets = torch.where(PLACES < 30, torch.cos(PLACES), -100.0).bfloat16()
    return (answers - targets).masked_fill(PLACES >= 30, 0.0)


def test_what_a_mask_leaves_is_judged_by_itself() -> None:
    finding = finds(spreads_by_sums, "cancellation")
    assert finding.measured is not None
    assert finding.measured > 32


@pytest.mark.parametrize("program", [gaps_within_a_day, steps_that_are_small, errors_of_words])
def test_what_is_left_for_its_size_or_is_no_smaller_is_let_be(program: Callable[[], torch.Tensor]) -> None:
    passes(program)
