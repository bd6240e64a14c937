"""Whole numbers that are a choice among equals: any of the choices is right, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck
from precheck.analysis.noise_floor.kernel_floor import CHOICES, combined, distance

X = torch.randn(8, 13, generator=torch.Generator().manual_seed(0))
PLACES = torch.arange(64)


def _least(x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2 or not x.shape[1] or x.shape[1] > 64:
        raise ValueError("columns are needed, 64 at most")
    return (x == x.amin(-1, keepdim=True)) | (x.isnan() & x.isnan().any(-1, keepdim=True))


def first(x: torch.Tensor) -> torch.Tensor:
    return torch.where(_least(x), PLACES[: x.shape[-1]], 99).amin(-1)


def last(x: torch.Tensor) -> torch.Tensor:
    return torch.where(_least(x), PLACES[: x.shape[-1]], -1).amax(-1)


def middle(x: torch.Tensor) -> torch.Tensor:
    same = _least(x)
    return ((same.cumsum(-1) * 2 >= same.sum(-1, keepdim=True)) & same).int().argmax(-1)


def added(x: torch.Tensor) -> torch.Tensor:
    return torch.where(_least(x), PLACES[: x.shape[-1]], 0).sum(-1)


def none_of_many(x: torch.Tensor) -> torch.Tensor:
    return first(x).masked_fill(_least(x).sum(-1) > 4, -1)


@pytest.mark.parametrize("choose", [first, last, middle])
def test_any_of_equal_numbers_may_be_chosen(choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = precheck.compare_kernels(choose, lambda x: x.argmin(-1), X, trials=60)
    assert not report.errors, report.summary()


@pytest.mark.parametrize("wrong", [added, none_of_many])
def test_what_is_no_place_of_equal_numbers_is_a_fault(wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = precheck.compare_kernels(wrong, lambda x: x.argmin(-1), X, trials=40)
    assert [finding.rule for finding in report.errors] == ["kernel-contract"], report.summary()


def test_a_choice_that_few_runs_could_have_missed_is_no_fault() -> None:
    exact, wrong = torch.tensor([2, 5]), torch.tensor([4, 5])
    seen = [torch.tensor([place, 5]) for place in (2, 3, 9)]
    assert distance(combined(exact, exact.dtype, seen), wrong).ratio == 0
    assert distance(combined(exact, exact.dtype, seen), wrong).choices
    often = [each for each in seen for _ in range(int(CHOICES))]
    assert distance(combined(exact, exact.dtype, often), wrong).first == (0,)
    assert distance(combined(exact, exact.dtype, often), torch.tensor([9, 5])).ratio == 0
    assert distance(combined(exact, exact.dtype, seen), torch.tensor([-1, 5])).first == (0,)


def test_flags_that_are_the_only_input_hide_nothing() -> None:
    flags = torch.randint(-1, 2, (4, 9), generator=torch.Generator().manual_seed(3))
    report = precheck.compare_kernels(lambda x: x.cumsum(-1).bool(), lambda x: x.bool().cumsum(-1) > 0, flags, trials=10)
    assert [finding.rule for finding in report.errors] == ["kernel-contract"], report.summary()


def _largest(whole: str) -> Any:
    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.amax(1)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            same = (x == x.amax(1, keepdim=True)).to(x.dtype)
            shares = {"each": same, "a share": same / same.sum(1, keepdim=True), "the last": same * (same.flip(1).cumsum(1).flip(1) == 1)}
            return gradient[:, None] * shares[whole]

    return Largest.apply


@pytest.mark.parametrize(("whole", "rules"), [("each", ["kernel-gradient"]), ("a share", []), ("the last", [])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_numbers_have_one_gradient_together_whichever_is_chosen(whole: str, rules: list[str], dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    report = precheck.compare_kernels(_largest(whole), lambda x: x.max(1).values, x, trials=30)
    assert [finding.rule for finding in report.errors] == rules, report.summary()
    assert not rules or "among equal numbers the gradients add up to" in report.summary()


@pytest.mark.parametrize("shown", [0.0, 1.0])
def test_where_the_sum_depends_on_a_choice_too_nothing_is_asked(shown: float) -> None:
    """Of a relu at zero both slopes are right."""
    report = precheck.compare_kernels(lambda x: torch.where((x > 0) | (x == 0) * (shown > 0), x, 0 * x), torch.relu, torch.randn(4, 6), trials=30)
    assert not report.errors, report.summary()
