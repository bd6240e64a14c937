"""Gradients of one value, followed beside the same gradients added up wide."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.shadow.training.gradients import SAMPLE, grid

LOW = torch.bfloat16


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))




@pytest.mark.parametrize("shape", [(5,), (3, 4), (64, 70), (4096, 3), (3, 5000), (2, 40, 50, 60), (), (0, 4)])
def test_a_grid_shows_the_same_elements_however_they_lie(shape: tuple[int, ...]) -> None:
    tensor = normal(*shape)
    back = list(reversed(range(tensor.dim())))
    turned = tensor.permute(back).contiguous().permute(back)
    assert torch.equal(grid(tensor), grid(turned))
    assert min(tensor.numel(), SAMPLE // 8) <= grid(tensor).numel() <= SAMPLE


def grown(terms: int) -> torch.Tensor:
    """A weight of which each use has a gradient of one third, or near it."""
    weight = nn.Parameter(torch.ones(32).to(LOW))
    total = torch.zeros(())
    for each in range(terms):
        total = total + (weight.float() * (1 / 3 + 0.01 * normal(32, seed=each))).sum()
    total.backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(("terms", "found"), [(8, 0), (64, 0), (400, 1), (800, 1)])
def test_a_sum_is_told_where_its_terms_are_lost(terms: int, found: int) -> None:
    """From 64 on a third is half a spacing or less of the sum, and is rounded up or away."""
    with precheck.watch() as report:
        gradient = grown(terms)
    exact = terms / 3
    off = float((gradient.float() - exact).norm() / (exact * 32**0.5))
    told = [finding for finding in report.findings if finding.rule in ("accumulated-drift", "absorption")]
    assert len(told) == found, (off, report.summary())
    assert (off > 0.03) == bool(found)


def test_micro_batches_are_terms_of_what_the_parameter_holds() -> None:
    """Gradients of 200 backward passes, which autograd adds to `.grad` where it lies."""
    weight = nn.Parameter(torch.ones(32).to(LOW))
    with precheck.watch() as report:
        for each in range(400):
            (weight.float() * (1 / 3 + 0.01 * normal(32, seed=each))).sum().backward()
    assert {finding.rule for finding in report.errors} & {"accumulated-drift", "absorption"}, report.summary()


def test_a_gradient_that_is_cleared_begins_anew() -> None:
    weight = nn.Parameter(torch.ones(32).to(LOW))
    with precheck.watch() as report:
        for each in range(400):
            (weight.float() * (1 / 3 + 0.01 * normal(32, seed=each))).sum().backward()
            assert weight.grad is not None
            if each % 8 == 7:
                weight.grad.zero_()
    assert not report.errors, report.summary()


@pytest.mark.parametrize("last", [2.0, 0.1])
def test_gradients_that_cancel_are_judged_beside_the_sums_on_the_way(last: float) -> None:
    """One gradient near seventy and 120 of about -0.6, as those of a likelihood near its best: what is left has roundings of seventy."""
    weight = nn.Parameter(torch.tensor(1.3))
    down = 0.5 + 0.2 * torch.rand(120, generator=torch.Generator().manual_seed(1))
    with precheck.watch(precision="32-true") as report:
        rate, total = 1.0 * weight, torch.zeros(())
        for each in down:
            total = total - each * rate
        (total + rate * (down.sum() + last)).backward()
    assert weight.grad is not None
    assert abs(float(weight.grad.double() - (down.sum() + last).double() + down.double().sum())) > 8 * 2**-24 * last  # the limit of one that grows
    assert not report.findings, report.summary()
