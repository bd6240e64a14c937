"""The line of a lost update: where the user's own optimizer writes the weight, or the user's loop calls torch's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.judge.beyond_limits import errors_and_places


class Descent(torch.optim.Optimizer):
    """Gradient descent on the weights as they are stored; `master`: on a float32 copy."""

    def __init__(self, params: Any, *, master: bool = False) -> None:
        super().__init__(params, {"lr": 3e-2})
        self.master = master

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if self.master:
                    held = self.state[weight].setdefault("master", weight.float().clone())
                    held.sub_(weight.grad.float(), alpha=group["lr"])
                    weight.copy_(held)
                else:
                    weight.sub_(weight.grad, alpha=group["lr"])  # loses


def line() -> str:
    lines, start = inspect.getsourcelines(Descent)
    return f"test_lines.py:{start + next(number for number, text in enumerate(lines) if '# loses' in text)}"


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64))


def measured(*, master: bool) -> precheck.Report:
    return precheck.measure(
        layer(), torch.randn(32, 64), loss=lambda out: out.square().mean(), optimizer=lambda params: Descent(params, master=master), steps=4,
        precision="bf16-true",
    )  # fmt: skip


def test_measure_names_the_line_that_writes_the_weight() -> None:
    (found,) = measured(master=False).errors
    assert (found.rule, found.source.endswith(line())) == ("lost-update", True)


def test_a_master_is_silent() -> None:
    assert measured(master=True).errors == []


def test_watch_names_it_too() -> None:
    model = layer().bfloat16()
    optimizer = Descent(model.parameters())
    with precheck.watch() as report:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(32, 64).bfloat16()).square().mean().backward()
            optimizer.step()
    (found,) = report.errors
    assert (found.rule, found.source.endswith(line())) == ("lost-update", True)


def test_a_schedule_is_told_by_the_rate_that_its_steps_had() -> None:
    """As long as the steps, so that the rate which would arrive is one that the schedule has not had. And the report can be recorded as known."""
    model = layer().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-5)
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 2.0)
    with precheck.watch() as report:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(32, 64).bfloat16()).square().mean().backward()
            optimizer.step()
            rising.step()
    (found,) = report.errors
    row = next(each for each in report.updates if each["lost"])
    assert row["rate"] == pytest.approx(5e-5 * (13 / 4) ** 0.5, rel=1e-3)
    assert "lr 9e-05; an lr of" in found.message
    assert errors_and_places(report).beyond
