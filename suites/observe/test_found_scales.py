"""The loss scale that a run goes on under is the one that halving would find, and is found in fewer passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precheck.measurement import job_of
from precheck.observe.records import Trace
from precheck.observe.run import low, run
from precheck.precisions import resolve


class Counted(nn.Module):
    """A weight times what it is given, whose calls are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counted.append(1)
        return nn.functional.linear(x, self.weight)


counted: list[int] = []


def scaled(factor: float) -> tuple[Trace, int]:
    """A run whose weight has a gradient of `factor` in float16, so that it is finite below 65504 / `factor`; and how many passes it took."""
    counted.clear()
    job = job_of(Counted(), torch.full((1, 8), 1.0), loss=lambda out: (out.float() * factor).sum())
    trace = run(job, low(resolve("16-mixed")))
    return trace, len(counted)


@pytest.mark.parametrize("halvings", range(16))
def test_it_is_what_halving_finds(halvings: int) -> None:
    trace, passes = scaled(0.75 * 2.0**halvings)
    assert (trace.scale, trace.skipped, trace.collapsed) == (2.0 ** (16 - halvings), halvings, False)
    assert passes <= 1 + min(halvings + 2, 9)


def test_a_loss_that_is_not_finite_is_tried_once_more() -> None:
    """At a scale of 1: it is not finite there either, so it is under none."""
    trace, passes = scaled(float("inf"))
    assert (trace.scale, trace.skipped, trace.collapsed) == (1.0, 16, True)
    assert passes == 2


def test_a_gradient_that_no_scale_mends_takes_five_more_passes() -> None:
    """1, 2, 4, 8 and 16 halvings, where the loss is finite and its slope is not: of a root at zero."""
    counted.clear()
    job = job_of(Counted(), torch.full((1, 8), 0.0), loss=lambda out: out.float().sqrt().sum())
    trace = run(job, low(resolve("16-mixed")))
    assert (trace.skipped, trace.collapsed, len(counted)) == (16, True, 6)


class Asking(nn.Module):
    """A layer whose slope the model asks for itself, and which is then called for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x.detach().requires_grad_()
        [slope] = torch.autograd.grad(self.layer(given).sum(), given)
        return self.layer(x) + slope.sum()


def test_a_gradient_that_the_model_asks_for_does_not_have_the_scale_of_the_loss() -> None:
    """Four rows have a gradient of one each, of the sum that the model makes and of the loss."""
    job = job_of(Asking(), torch.ones(4, 8), loss=lambda out: out.float().sum())
    records = run(job, low(resolve("16-mixed"))).records
    assert [records[f"gradient:{call}@1"].norm for call in ("layer", "layer#2")] == [2.0, 2.0]
