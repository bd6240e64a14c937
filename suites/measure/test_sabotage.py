"""A check that cannot fail is a defect: results that low precision alone spoils, in any way, are caught."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report

Spoil = Callable[[torch.Tensor], torch.Tensor]


class Spoiled(nn.Module):
    """Right in float32, and spoiled where it computes in bfloat16."""

    def __init__(self, spoil: Spoil, *, plain: Spoil = lambda h: h * 1) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.spoil, self.plain = spoil, plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        return (self.spoil if hidden.dtype is torch.bfloat16 else self.plain)(hidden)


def one_wrong(h: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(h.numel()).view_as(h) == 7, h + 2, h)


SPOILS: dict[str, Spoil] = {
    "zeroed": lambda h: h * 0,
    "negated": lambda h: -h,
    "scaled by a fiftieth": lambda h: h * 1.02,
    "shuffled rows": lambda h: h.flip(0),
    "shuffled columns": lambda h: h.roll(1, -1),
    "constant": lambda h: torch.ones_like(h),
    "shifted": lambda h: h + 0.05,
    "noisy": lambda h: h * (1 + 0.05 * torch.linspace(-1, 1, 32).to(h.dtype)),
    "one row stale": lambda h: torch.cat([h[:1], h[:-1]]),
    "one element in 2048 wrong": one_wrong,
    "a row of NaN": lambda h: torch.cat([h[:-1], h[-1:] * math.nan]),
    "rounded to three bits": lambda h: h.to(torch.float8_e5m2).to(h.dtype),
}


def measured(model: nn.Module, *, loss: bool = True) -> Report:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    return precheck.measure(model, x, precision="bf16-true", loss=(lambda out: out.float().square().mean()) if loss else None)


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("name", SPOILS)
def test_spoiled_results_are_caught(name: str, loss: bool) -> None:
    torch.manual_seed(0)
    assert measured(Spoiled(SPOILS[name]), loss=loss).errors


def test_and_the_same_model_unspoiled_is_not() -> None:
    torch.manual_seed(0)
    report = measured(Spoiled(lambda h: h * 1))
    assert not report.findings, report.summary()


@pytest.mark.parametrize("name", ["shuffled rows", "zeroed"])
def test_a_result_that_comes_from_elsewhere_is_compared_all_the_same(name: str) -> None:
    torch.manual_seed(0)
    assert measured(Spoiled(SPOILS[name], plain=lambda h: h), loss=False).errors


def test_a_result_of_another_shape_is_no_result() -> None:
    torch.manual_seed(0)
    assert measured(Spoiled(lambda h: h[:32]), loss=False).errors


def test_a_model_that_gives_something_else_every_time_is_not_called_healthy() -> None:
    torch.manual_seed(0)
    count = itertools.count(1)
    assert measured(Spoiled(lambda h: h * next(count), plain=lambda h: h * next(count))).findings


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_gradients_that_are_broken_in_float32_are_said_to_be_and_blamed_on_no_scale(precision: str) -> None:
    torch.manual_seed(0)
    model = Spoiled(lambda h: (h * 0).sqrt(), plain=lambda h: (h * 0).sqrt())
    report = precheck.measure(model, torch.randn(8, 32), precision=precision, loss=lambda out: out.float().square().mean())
    assert report.errors == [], report.summary()
    assert any(finding.rule == "nan" and "in float32 too" in finding.message for finding in report.findings), report.summary()


def test_a_model_that_is_broken_in_float32_is_not_called_healthy() -> None:
    torch.manual_seed(0)
    assert measured(Spoiled(lambda h: h * math.nan, plain=lambda h: h * math.nan)).findings
