"""Comparisons that a program branches on: one that ends in an exception, many answers of one line that chance decides, and whole numbers."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import precheck

HALF = torch.float16


def rules(report: precheck.Report) -> list[str]:
    return [finding.rule for finding in report.errors]


def integrate(clock: torch.dtype) -> torch.Tensor:
    """Steps of half a thousandth to the end, with the check that solvers make: time must go on."""
    time, step = torch.tensor(1.0, dtype=clock), torch.tensor(2.0**-11, dtype=clock) * 0.9
    position = torch.zeros(())
    for _ in range(4):
        if not time + step > time:
            raise RuntimeError("the step is too small")
        time, position = time + step, position + step.float()
    return position


def test_a_comparison_that_makes_the_block_raise_names_the_rounding_behind_it() -> None:
    with pytest.raises(RuntimeError, match="too small"), precheck.watch() as report:
        integrate(HALF)
    (error,) = report.errors
    assert error.rule == "absorption"
    assert error.op == "aten.add.Tensor"
    assert "aten.gt.Tensor" in error.message
    assert error.message.endswith("gives another answer than in the reference, and the code raised RuntimeError")
    with precheck.watch() as report:
        integrate(torch.float32)
    assert not report.errors, report.summary()


def test_an_exception_after_a_comparison_that_comes_out_alike_blames_no_rounding() -> None:
    def checked() -> None:
        if torch.linspace(-1, 0.5, 40).to(HALF).sum() < 0:
            raise ValueError("negative")

    with pytest.raises(ValueError, match="negative"), precheck.watch() as report:
        checked()
    assert not report.errors, report.summary()


def searched(*, far: float, steps: int) -> tuple[torch.Tensor, precheck.Report]:
    """A search that takes a step where the loss falls. The losses are `far` from zero, and are subtracted from each other."""
    inputs = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    targets = inputs @ torch.tensor([1.0, -1.0, 0.5])
    targets = targets + far * (torch.arange(200) % 2 * 2 - 1)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return (targets - inputs @ weight).square().sum()

    with precheck.watch(precision="32-true") as report:
        weight = torch.tensor([1.0, -1.0, 0.5])
        moves = torch.randn(steps, 3, generator=torch.Generator().manual_seed(1)) / 300
        for move in moves:
            if loss(weight + move) - loss(weight) < 0:
                weight = weight + move
    return weight, report


def test_a_line_of_comparisons_that_chance_decides_is_an_end_of_the_run() -> None:
    weight, report = searched(far=1e4, steps=40)
    assert weight.isfinite().all()
    assert set(rules(report)) <= {"cancellation", "amplified-rounding"}
    assert any("a difference of nearly equal numbers" in each.message for each in report.errors), report.summary()


@pytest.mark.parametrize(("far", "steps"), [(1.0, 40), (1e4, 8)])
def test_comparisons_that_mostly_come_out_alike_or_are_few_are_none(far: float, steps: int) -> None:
    weight, report = searched(far=far, steps=steps)
    assert weight.isfinite().all()
    assert not report.errors, report.summary()


def inside(spread: float) -> tuple[torch.Tensor, precheck.Report]:
    """Which points are at least a distance away from a circle's top, by a difference that is the square of that."""
    with precheck.watch(precision="32-true") as report:
        across = 1 + spread * torch.rand(200, generator=torch.Generator().manual_seed(0))
        found = torch.where(1 - across * (2 - across) > spread**2 / 4, 1.0, 0.0)
    return found, report


def test_a_mask_that_chance_decides_is_an_end_of_the_run() -> None:
    found, report = inside(1e-4)
    (error,) = report.errors
    assert (error.rule, error.op) == ("cancellation", "aten.rsub.Scalar"), report.summary()
    found, report = inside(0.1)
    assert 80 < found.sum() < 120
    assert not report.errors, report.summary()


def equal_lengths(size: float, whole: bool = True) -> precheck.Report:
    """How many ways there and back are equally long. All are, but sums in half round where they are large."""
    lengths = size * (200 + 400 * torch.rand(24, 9, generator=torch.Generator().manual_seed(0)))
    with precheck.watch() as report:
        equal = 0
        for way in (lengths.floor() if whole else lengths).half():
            there, back = (functools.reduce(torch.add, each) for each in (way, way.flip(0)))
            equal += bool(there == back)
    assert equal == 24 or size > 0.1
    return report


def test_comparisons_of_whole_numbers_have_one_right_answer() -> None:
    (error,) = equal_lengths(1).errors
    assert (error.rule, error.op) == ("decision-flip", "aten.add.Tensor"), error
    assert "its rounding changes whole numbers that aten." in error.message
    assert not equal_lengths(0.1).errors  # half has them
    assert not equal_lengths(1, whole=False).errors  # of two lengths that differ by a rounding, either may be the larger


def alarms(clock: torch.dtype, alarm: torch.dtype) -> precheck.Report:
    """How often an alarm rings that is set anew for the third turn from when it has rung, by a clock of turns that is past 2^24."""
    with precheck.watch(precision="32-true") as report:
        now, due, rung = torch.tensor(2.0**24 - 16, dtype=clock), torch.tensor(2.0**24 - 13, dtype=alarm), torch.zeros(())
        for _ in range(60):
            now = now + 1
            rung, due = torch.where(now >= due, rung + 1, rung), torch.where(now >= due, due + 3, due)
    return report


def test_the_cure_of_a_comparison_of_large_whole_numbers_names_both_of_its_sides() -> None:
    """As long as the clock stands still, nothing shows that the alarm will."""
    (error,) = alarms(torch.float32, torch.float32).errors
    assert re.search(r"^call \.double\(\) on what this line reads; keep what aten\.ge\.Tensor at .* compares it with in float64 too$", error.remedy)
    (error,) = alarms(torch.float64, torch.float32).errors
    assert error.remedy == "call .double() on what this line reads"
    assert not alarms(torch.float64, torch.float64).findings


def test_a_call_that_does_no_harm_hides_no_later_call_of_its_line_that_does() -> None:
    def variance(x: torch.Tensor) -> torch.Tensor:
        return (x * x).mean() - x.mean() * x.mean()

    x = 1 + 0.01 * torch.randn(256, generator=torch.Generator().manual_seed(0))
    with precheck.watch() as report:
        beside = 100 + variance(x.to(torch.bfloat16))  # its error is nothing beside the 100
        scaled = variance(x.to(torch.bfloat16)).rsqrt()
    assert beside.isfinite()
    (error,) = report.errors
    assert error.rule == "cancellation", report.summary()
    assert scaled.isnan() or scaled.isinf() or scaled > 0


def test_the_own_rounding_of_a_sum_whose_terms_cancel_counts_beside_its_terms() -> None:
    """The slope of a fit at its optimum: it is zero on paper, and a function gives what rounding leaves."""
    inputs = torch.randn(500, generator=torch.Generator().manual_seed(0))
    residual = 1000 * torch.randn(500, generator=torch.Generator().manual_seed(1))
    residual = residual - inputs * (residual.double() @ inputs.double() / (inputs.double() @ inputs.double())).float()

    def slope() -> torch.Tensor:
        return (inputs * residual).sum()

    with precheck.watch(precision="32-true") as report:
        weight = 0.5 - 1e-3 * slope()
    assert weight.isfinite()
    assert not report.errors, report.summary()
