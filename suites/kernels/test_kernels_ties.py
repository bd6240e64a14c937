"""A tie of exact numbers has one right side. Where numbers have been rounded, either side is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import need
from sets import REWRITES_BY_NAME

import precheck
from precheck import formats
from precheck.kernels import contents, number_kinds
from precheck.kernels.noise import Rounded

QUARTERS = torch.arange(-12.0, 12) / 4
SINGLE = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))


def _differ(formula: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    """Whether noise runs give other results than the formula."""
    results = []
    for seed in range(1, 9):
        with Rounded(seed, 2.0**-24):
            results.append(formula(x))
    return any(not torch.equal(each, formula(x)) for each in results)


@pytest.mark.parametrize(("formula", "differs"), [
    (lambda x: (x / 0.5).round(), False),
    (lambda x: (x.abs() * 2 * x.sign()).floor(), False),
    (lambda x: x > 0.75, False),
    (lambda x: torch.exp2(x.round()), False),
    (lambda x: (x * 3 / 3 / 0.5).round(), True),  # three is no power of two
    (lambda x: (x.exp().log() * 2).floor(), True),
    (lambda x: x > 0, False),
    (lambda x: (x * -1.0) < 0, True),  # a zero with a sign may count as below zero
], ids=["a scale of one half", "sizes and signs", "a bound", "powers of two", "a scale of three", "functions", "zero", "signed zero"])  # fmt: skip
def test_noise_runs_settle_ties_of_exact_numbers_alone(formula: Callable[[torch.Tensor], torch.Tensor], differs: bool) -> None:
    assert _differ(formula, QUARTERS) == differs


def _codes(rounded: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: rounded(x / 0.25).clamp(-7, 7) * 0.25


def _dynamic(rounded: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def coded(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7
        return rounded(x / scale) * scale

    return coded


def _away(x: torch.Tensor) -> torch.Tensor:
    return (x.abs() + 0.5).floor().copysign(x)


def test_halves_that_are_rounded_away_from_zero_are_told() -> None:
    """A scale that is a power of two leaves ties what they are."""
    report = precheck.compare_kernels(_codes(_away), _codes(torch.round), SINGLE, trials=30)
    assert [finding.rule for finding in report.errors] == ["kernel-rounding"], report.summary()
    assert "half a step rounded away from 0 explain it" in report.errors[0].message


def test_a_scale_that_is_no_power_of_two_leaves_no_ties() -> None:
    """With a scale from the row's largest number, quotients are rounded, so that a tie is chance."""
    report = precheck.compare_kernels(_dynamic(_away), _dynamic(torch.round), SINGLE, trials=60)
    assert not report.errors, report.summary()


def test_a_scale_that_is_a_power_of_two_stays_one_and_ties_hold_eighths() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [float(contents.like(torch.tensor(0.5), (), generator, contents.Bounds())[0]) for _ in range(20)]
    assert set(drawn) == {0.25, 0.5}
    other = {float(contents.like(torch.tensor(0.3), (), generator, contents.Bounds())[0]) for _ in range(20)}
    assert len(other) == 20
    ties = number_kinds.FAMILIES["ties"](torch.randn(400, generator=generator).double(), generator, precheck.formats.of_dtype(torch.float32))
    assert bool((ties * 8 == (ties * 8).round()).all())
    assert 200 < int((ties * 2 == (ties * 2).round()).sum()) < 400


def test_a_row_whose_choice_is_lost_may_be_lost_as_a_whole() -> None:
    """The reference stores zeros where nothing was chosen. A softmax over a row with NaN, or with Inf less Inf, has none."""
    pair = REWRITES_BY_NAME["shares of the best two, the rest hidden"]
    report = precheck.compare_kernels(pair.candidate, pair.reference, pair.inputs(torch.float32), trials=130)
    assert not report.errors, report.summary()
    assert any("other results of the same numbers are lost in the reference too" in each.message for each in report.findings)


def test_an_infinity_of_the_other_sign_is_a_fault_and_at_a_pole_it_is_none() -> None:
    x = SINGLE
    report = precheck.compare_kernels(lambda x: -x.clamp(min=0).log(), lambda x: x.clamp(min=0).log(), x, trials=10)
    assert report.errors
    report = precheck.compare_kernels(lambda x: 1 / (x + 0.0), lambda x: 1 / x, x, trials=60, gradients=False)
    assert not [each for each in report.errors if "infinity" in each.message], report.summary()


def test_the_message_names_the_block_that_is_off() -> None:
    def last_rows(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:4] * 2, x[4:] * 3])

    report = precheck.compare_kernels(last_rows, lambda x: x * 2, SINGLE, trials=10)
    assert "18 of 54 elements off, all in [4:6, 0:9]" in report.errors[0].message


def test_numbers_beside_powers_of_two_are_those_powers_in_a_lower_format() -> None:
    values = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for wide, low in ((torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.float16, torch.bfloat16)):
        made = number_kinds.FAMILIES["beside powers"](values, torch.Generator().manual_seed(1), formats.of_dtype(wide)).to(wide)
        assert bool(((made < 0) == (values < 0)).all())
        assert bool((torch.frexp(made.to(low).float()).mantissa.abs() == 0.5).all())
        assert {True, False} == set((made.abs() < made.to(low).abs()).tolist())


def test_an_elimination_may_err_more_than_a_sum() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(255, 255, generator=generator), torch.randn(255, 2, generator=generator)
    exact = torch.linalg.solve(a.double(), b.double())
    spread = []
    for seed in range(1, 7):
        with Rounded(seed, 2.0**-24):
            spread.append(torch.linalg.solve(a, b))
    errors = [float((each.double() - exact).norm()) for each in spread]
    turned = torch.linalg.solve(a.flip(0), b.flip(0))  # another order of the equations
    assert float((turned.double() - exact).norm()) < 4 * max(errors)
    assert max(errors) < 1e-2 * float(exact.norm())


def _away(x: torch.Tensor) -> torch.Tensor:
    return (x.sign() * (x.abs() + 0.5).floor()).clamp(-128, 127).to(torch.int8)


def test_a_half_that_is_added_before_a_floor_leaves_a_tie_one_right_side() -> None:
    def up(x: torch.Tensor) -> torch.Tensor:
        need(bool(x.isfinite().all()))
        return (x + 0.5).floor().clamp(-128, 127).to(torch.int8)

    def by_sides(x: torch.Tensor) -> torch.Tensor:
        need(bool(x.isfinite().all()))
        return torch.where(x < 0, (x - 0.5).ceil(), (x + 0.5).floor()).clamp(-128, 127).to(torch.int8)

    x = torch.tensor([[-1.5, 2.5, 0.5, -0.5], [3.25, -2.5, 7.0, -4.5]])
    report = precheck.compare_kernels(up, _away, x, trials=120, gradients=False)
    assert [each.rule for each in report.errors] == ["kernel-rounding"]
    assert not precheck.compare_kernels(by_sides, _away, x, trials=120, gradients=False).errors


def test_a_quotient_near_a_tie_may_be_rounded_to_either_side() -> None:
    scale = 0.1

    def by_product(x: torch.Tensor) -> torch.Tensor:
        need(bool(x.isfinite().all()))
        return (x * (1 / scale) + 0.5).floor()

    report = precheck.compare_kernels(by_product, lambda x: (x / scale + 0.5).floor(), (SINGLE * 20).round() / 20, trials=120, gradients=False)
    assert not report.errors, report.summary()
