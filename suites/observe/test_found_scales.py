"""The loss scale that a run goes on under is the one that halving would find, and is found in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.measurement import job_of
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import low
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


def in_place(key: nn.Parameter, query: nn.Parameter) -> None:
    key.copy_(key + 0.25 * (query - key))


def by_data(key: nn.Parameter, query: nn.Parameter) -> None:
    key.data.mul_(0.75).add_(query.data, alpha=0.25)


def by_other_storage(key: nn.Parameter, query: nn.Parameter) -> None:
    key.data = key.data * 0.75 + query.data * 0.25


class Momentum(nn.Module):
    """A key encoder that each forward pass takes nearer to the query encoder."""

    def __init__(self, follow: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
        super().__init__()
        self.query, self.key, self.follow = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False).requires_grad_(False), follow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.follow(self.key.weight, self.query.weight)
        out: torch.Tensor = self.query(x) - self.key(x)
        return out


@pytest.mark.parametrize("follow", [in_place, by_data, by_other_storage])
def test_a_momentum_encoder_takes_one_step_however_many_passes_the_search_makes(follow: Callable[[nn.Parameter, nn.Parameter], None]) -> None:
    torch.manual_seed(0)
    job: dict[str, Any] = {"model": Momentum(follow), "inputs": torch.randn(16, 8), "loss": lambda out: 50 * out.float().square().sum()}
    trace = run(job_of(**job), low(resolve("16-mixed")))
    assert trace.skipped > 2
    report = precheck.measure(**job, optimizer=lambda params: torch.optim.SGD(params, lr=1e-5), steps=2, precision="16-mixed")
    assert report.errors == [], report.summary()
