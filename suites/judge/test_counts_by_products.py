"""Counts made by a product in a low format: an error where they become integers, and measures where they stay what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck

LOW = torch.bfloat16


def places(numbered: bool) -> torch.Tensor:
    """The place of each of 800 tokens in the queue of its expert."""
    chosen = torch.nn.functional.one_hot(torch.arange(800) % 2, 2).to(LOW)
    before = torch.ones(800, 800, dtype=LOW).tril(-1) @ chosen
    place = (before * chosen).sum(-1)
    return place.long() if numbered else place / 800


class Lengths(torch.nn.Module):
    """Lengths of windows in a buffer, which the conversion to bfloat16 rounds to multiples of four."""

    def __init__(self, root: bool) -> None:
        super().__init__()
        self.root = root
        self.register_buffer("lengths", torch.arange(601.0, 1200.0, 9.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.lengths.sqrt() if self.root else self.lengths.cos())


@pytest.mark.parametrize(("root", "found"), [(True, []), (False, ["integer-rounding"])])
def test_lengths_of_which_a_root_is_taken_are_measures(root: bool, found: list[str]) -> None:
    report = precheck.measure(Lengths(root), torch.ones(4, 67), precision="bf16-true")
    assert [error.rule for error in report.errors] == found


def test_numbers_that_are_made_integers_are_counts() -> None:
    with precheck.watch() as report:
        kept = places(numbered=True)
    assert kept.dtype is torch.int64
    assert [error.rule for error in report.errors][:1] == ["integer-rounding"]
    assert "whole numbers up to" in report.errors[0].message


def test_numbers_that_stay_real_are_measures() -> None:
    with precheck.watch() as report:
        kept = places(numbered=False)
    assert kept.dtype is LOW
    assert "integer-rounding" not in {error.rule for error in report.errors}


def weights_by_age(days: torch.Tensor) -> torch.Tensor:
    """What is left after some hundred days, of which bfloat16 knows every second or fourth."""
    return (-days.to(LOW).float() / 365.25).exp()


def weights_by_count(counts: torch.Tensor) -> torch.Tensor:
    return counts.to(LOW).add(4).rsqrt()


def waves_of_days(days: torch.Tensor) -> torch.Tensor:
    return (days.to(LOW).float() / 3.5).sin()


@pytest.mark.parametrize(
    ("code", "found"), [(weights_by_age, []), (weights_by_count, []), (waves_of_days, ["integer-rounding"])], ids=["age", "count", "wave"]
)
def test_numbers_of_which_only_the_size_counts_are_measures(code: Callable[[torch.Tensor], torch.Tensor], found: list[str]) -> None:
    """Scaling keeps a rounding as it is, and an exponential that is right to a few roundings has not amplified it. A wave has."""
    with precheck.watch() as report:
        kept = code(torch.arange(40, 900, 7))
    assert len(kept) == 123
    assert [error.rule for error in report.errors][:1] == found
