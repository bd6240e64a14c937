"""Single values that matter: the numbers with which a reference compares its inputs, an exact zero, sizes of 1 that are not the first, no terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sets import BROKEN_BY_NAME

import precheck
from precheck.kernels import dimensions, examples, running, thresholds
from precheck.kernels.bench import Bench
from precheck.kernels.dependence import Dependence
from precheck.kernels.noise import Rounded
from precheck.kernels.trials import Trial

F = torch.nn.functional
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
TOLD = {
    "small numbers become zero, up to a half: a half itself stays": "it is on the other side where inputs[0] is 0.5, with which the reference",
    "numbers up to a limit are replaced: the limit itself stays": "it is on the other side where inputs[0] is 0.25, with which the reference",
    "rows by the sign of a number: those of a zero are zero": "with plain numbers it is right; here there are zeros alone",
    "step of lamb: weights that are all zero do not move": "with plain numbers it is right; here there are zeros alone",
    "shares of all that reach the third: of equal ones three alone": "with plain numbers it is right; here there are ties",
    "products of groups: on the way back a zero has no gradient": "its forward pass is right",
    "heads in groups, in another order: the stride is the size of a group": "depends on what is in memory that it allocates",
    "variance and mean of rows: of a row of nothing the mean is zero": "no NaN in 4 elements of no terms, where the reference gives NaN",
}
"""Kernels of the twenty-first set, and an older one, with words of their messages."""


def _bench(reference: Callable[..., Any], *inputs: torch.Tensor) -> Bench:
    example = examples.read(inputs, None, True)[0]
    return Bench(reference, reference, example, dimensions.of(example), running.Wishes())


@pytest.mark.parametrize("name", TOLD)
def test_what_is_wrong_at_single_values_is_told(name: str) -> None:
    case = BROKEN_BY_NAME[name]
    report = precheck.compare_kernels(case.kernel(True), case.reference, case.inputs(), trials=200)
    assert [each.rule for each in report.errors] == [case.rule], report.summary()
    assert TOLD[name] in report.errors[0].message or case.rule == "kernel-gradient", report.errors[0].message


@pytest.mark.parametrize(("reference", "numbers"), [
    (F.hardshrink, [0.5]),
    (lambda x: F.threshold(x.abs(), 0.25, -1.0), [0.25]),
    (lambda x: torch.where(x.T > 2, x.T, 0) + torch.where(x.T.double() == -1.5, 1, 0), [2.0, -1.5]),
    (lambda x: x.clamp(-1, 1).relu(), []),  # no jump
    (lambda x: torch.where(x.square() > 3, x, 0), []),  # no number of the input itself
], ids=["an op's own", "a given one", "of a view", "limits", "squares"])  # fmt: skip
def test_the_numbers_that_an_input_is_compared_with_are_found(reference: Callable[..., Any], numbers: list[float]) -> None:
    bench = _bench(reference, X)
    trial = Trial(seed=1)
    assert list(thresholds.compared(bench, trial, bench.make(trial))[0]) == numbers


def test_there_numbers_lie_on_them_and_beside_them_and_zeros_where_anything_is_compared_with_zero() -> None:
    bench = _bench(F.hardshrink, X)
    trial, alone = thresholds.trials(bench)
    sizes, upon = (bench.make(each).values[0].abs() for each in (trial, alone))
    for number in (0.5, float(torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)))):
        assert bool((sizes == number).any())
    assert bool(((sizes < 0.5) & (sizes > 0.4999)).any())
    assert bool((upon == 0.5).any())
    assert not bool(((upon - 0.5).abs() < 1e-4)[upon != 0.5].any())
    length = _bench(lambda x: torch.where(x.norm() > 0, x / x.norm(), x), X)
    assert [each.family for each in thresholds.trials(length)] == ["only zeros"]
    assert not bool(length.make(thresholds.trials(length)[0]).values[0].any())


def test_numbers_that_must_be_above_a_threshold_stay_there() -> None:
    above = X.abs().repeat(2, 2) + 1
    bench = _bench(F.hardshrink, above)
    assert all(bool((bench.make(trial).values[0] >= above.min()).all()) for trial in thresholds.trials(bench))


def _added_up(x: torch.Tensor) -> torch.Tensor:
    """Numbers added up in bins of a half. The last bin, from a half to one, has both of its ends."""
    at = torch.where(x == 1, 1, (((x + 1) * 2).floor() - 2).nan_to_num(-1.0)).clamp(-1, 2)
    return torch.stack([torch.where(at == each, x, 0).sum() for each in range(2)])


@pytest.mark.parametrize("ends", [False, True])
def test_a_sum_of_what_lies_on_a_threshold_is_judged_apart_from_what_lies_next_to_it(ends: bool) -> None:
    """Next to 1 a number may be rounded to it, with one more added, so that such sums may have it or not."""
    def binned(x: torch.Tensor) -> torch.Tensor:
        last = (x >= 0.5) & ((x <= 1) if ends else (x < 1))
        return torch.stack([torch.where((x >= 0) & (x < 0.5), x, 0).sum(), torch.where(last, x, 0).sum()])

    report = precheck.compare_kernels(binned, _added_up, (X.flatten(),), trials=120)
    assert bool(report.errors) != ends, report.summary()


def _lower(x: torch.Tensor) -> torch.Tensor:
    """Numbers whose floor is -1, added up row by row. The reference adds one first, in which what is small is lost."""
    return torch.where((x + 1).floor() == 0, x - 2, 0).sum(1)


@pytest.mark.parametrize(("candidate", "reference", "right"), [
    (lambda x: torch.where((x >= -1) & (x < 0), x - 2, 0).sum(1), _lower, True),
    (lambda x: torch.where((x >= -1) & (x < 1e-30), x - 2, 0).sum(1), _lower, False),  # it has zero on the other side
    (lambda x: torch.where(x.abs() < 1e-30, 1e-12, x.abs().sqrt()), lambda x: x.abs().sqrt(), False),  # steep, and no jump
])  # fmt: skip
def test_what_is_lost_beside_others_may_be_on_any_side_of_a_jump(candidate: Callable[..., Any], reference: Callable[..., Any], right: bool) -> None:
    report = precheck.compare_kernels(candidate, reference, (X,), trials=60, gradients=False)
    assert bool(report.errors) != right, report.summary()


def _noisy(formula: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for seed in range(1, 5):
        with Rounded(seed, 2.0**-24):
            found.append(formula(x))
    return found


@pytest.mark.parametrize("formula", [
    lambda x: x.topk(3, -1).values, lambda x: x.sort(0).values, lambda x: x.max(1).values, lambda x: x.kthvalue(2, 1, True).values,
])  # fmt: skip
def test_what_an_op_chooses_is_one_of_its_numbers_as_it_is(formula: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert all(torch.equal(each, formula(X)) for each in _noisy(formula, X))


@pytest.mark.parametrize("formula", [F.relu, torch.nan_to_num, lambda x: F.hardtanh(x, -3, 3), lambda x: F.threshold(x, 2, -1)])
def test_whole_numbers_that_are_cut_off_stay_whole(formula: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = (X * 3).round()
    assert all(torch.equal(each, formula(whole)) for each in _noisy(formula, whole))


def test_sums_of_whole_numbers_are_exact_and_those_of_others_are_not() -> None:
    whole = (X * 9).round()
    assert all(torch.equal(each, whole.sum(0)) for each in _noisy(lambda x: x.sum(0), whole))
    assert not all(torch.equal(each, X.sum(0)) for each in _noisy(lambda x: x.sum(0), X))


def test_what_depends_on_a_nan_is_seen_behind_a_limit_too() -> None:
    """None of three plain numbers is above 50, but others are that lie beside the number with which the reference compares."""
    bench = _bench(lambda x: torch.where(x > 50, x, x.detach() * 0), X)
    trial = Trial(seed=2, family="NaN", leaf=0)
    assert int(Dependence(bench, trial).of("output").sum()) == 1


@pytest.mark.parametrize(("candidate", "warned"), [
    (lambda x, scale: x * scale[:, :1], ["kernel-edge"]),
    (lambda x, scale: x * scale, []),
])  # fmt: skip
def test_a_size_of_one_that_is_not_the_first_may_be_larger_and_who_is_wrong_there_is_warned(candidate: Callable[..., Any], warned: list[str]) -> None:
    report = precheck.compare_kernels(candidate, lambda x, scale: x * scale, (X, X[:, :1].clone()), trials=130)
    assert not report.errors, report.summary()
    assert [each.rule for each in report.findings] == warned
    assert not warned or "dimension 1 of inputs[1] is 1 in the example, and 6 here, which the reference takes" in report.findings[0].message
