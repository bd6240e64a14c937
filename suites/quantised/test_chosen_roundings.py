"""Rounding that a program makes by a choice between the numbers below and above, or by a step for each number, as narrow floats have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from float8_by_hand import LOW, channels, normal

import precheck

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""To whole numbers."""


def drawn(like: torch.Tensor) -> torch.Tensor:
    return torch.rand(like.shape, generator=torch.Generator().manual_seed(5))


def to_the_nearer(x: torch.Tensor) -> torch.Tensor:
    lower = torch.floor(x)
    return torch.where(x - lower < 0.5, lower, lower + 1)


def by_chance(x: torch.Tensor) -> torch.Tensor:
    lower = torch.floor(x)
    return torch.where(drawn(x) < x - lower, lower + 1, lower)


def from_above(x: torch.Tensor) -> torch.Tensor:
    upper = torch.ceil(x)
    return torch.where(upper - x <= 0.5, upper, upper - 1)


def too_seldom_up(x: torch.Tensor) -> torch.Tensor:
    lower = torch.floor(x)
    return torch.where(x - lower < 0.75, lower, lower + 1)


def by_half_a_chance(x: torch.Tensor) -> torch.Tensor:
    lower = torch.floor(x)
    return torch.where(drawn(x) < (x - lower) / 2, lower + 1, lower)


def watched(rounding: Rounding) -> precheck.Report:
    with precheck.watch() as report:
        g = normal(64, 256)
        scale = g.abs().amax(1, keepdim=True) / 7
        (rounding(g / scale) * scale @ normal(256, 8, seed=2)).to(LOW)
    return report


def in_four_bits(rounding: Rounding) -> precheck.Report:
    """e2m1, whose numbers are 0.5 apart up to 2, then 1 and 2."""
    with precheck.watch() as report:
        blocks = channels().view(64, 2, 32)
        scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 6)))
        size = (blocks / scale).abs()
        step = torch.exp2(torch.floor(torch.log2(size.clamp(min=1.0))) - 1)
        codes = (rounding(size / step) * step).clamp(max=6) * blocks.sign()
        (normal(8, 64) @ (codes * scale).view(64, 64).t()).to(LOW)
    return report


@pytest.mark.parametrize("rounding", [torch.round, to_the_nearer, by_chance, from_above], ids=lambda each: each.__name__)
@pytest.mark.parametrize("quantised", [watched, in_four_bits], ids=lambda each: each.__name__)
def test_a_choice_that_is_right_on_average_is_left_in_peace(quantised: Callable[[Rounding], precheck.Report], rounding: Rounding) -> None:
    assert not quantised(rounding).findings


@pytest.mark.parametrize("rounding", [torch.floor, too_seldom_up, by_half_a_chance], ids=lambda each: each.__name__)
@pytest.mark.parametrize("quantised", [watched, in_four_bits], ids=lambda each: each.__name__)
def test_one_that_is_not_is_found(quantised: Callable[[Rounding], precheck.Report], rounding: Rounding) -> None:
    (error,) = quantised(rounding).errors
    assert error.rule == "biased-rounding"
    assert "rounding errors have a mean of 0." in error.message
    assert error.source.rpartition("/")[2].startswith("test_chosen_roundings.py")
