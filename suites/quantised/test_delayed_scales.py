"""Scales of earlier calls: what they cost data that grows or has had an outlier is told, and data that stays as it is has peace."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.analysis.quantisation.quantisers import CHANCE, chance_of_records
from precheck.findings import RULES
from precheck.precisions import resolve
from precheck.recipes import Recipe
from precheck.recipes.delays import fits


class Factored(nn.Module):
    """Two layers; between them each step's activations are multiplied by a number of that step's."""

    def __init__(self, by: Callable[[int], float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.by = nn.Linear(64, 64), nn.Linear(64, 64), by
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.second(torch.relu(self.first(x) * self.by(int(self.steps))))


def doubling(step: int) -> float:
    return 2.0**step


def outlier(step: int) -> float:
    return 1e6 if step == 2 else 1.0


def measured(by: Callable[[int], float], steps: int, precision: str | precheck.Precision = "fp8-delayed") -> list[precheck.Finding]:
    report = precheck.measure(
        Factored(by), normal(32, 64), precision=precision, steps=steps,
        loss=lambda out: out.square().mean(), optimizer=lambda params: torch.optim.SGD(params, lr=1e-6),
    )  # fmt: skip
    return [finding for finding in report.findings if finding.rule == "clipping"]


def test_data_that_grows_in_each_of_many_steps_is_an_error_at_the_line_of_the_product() -> None:
    found = measured(doubling, 12)
    assert {(each.severity, each.phase, each.module) for each in found} >= {("error", "forward", "second"), ("error", "backward", "first")}
    assert "the scale of this product's input was taken from earlier calls, and was too small in 11 of 11 calls" in found[0].message
    assert "At worst the input had grown by 2 times" in found[0].message
    assert "fp8-current" in RULES["clipping"].remedy
    named = Path(found[0].source.rpartition(":")[0]).name, int(found[0].source.rpartition(":")[2])
    assert named == (Path(__file__).name, inspect.getsourcelines(Factored.forward)[1] + 2)


def test_a_few_steps_of_growth_are_a_warning_since_the_scale_may_catch_up() -> None:
    assert {each.severity for each in measured(doubling, 4)} == {"warning"}


def test_an_outlier_leaves_a_scale_behind_under_which_later_steps_become_zero() -> None:
    found = measured(outlier, 14)
    forward = next(each for each in found if each.phase == "forward")
    assert forward.severity == "error"
    assert "too small in 1 and too large in 12 of 13 calls" in forward.message
    assert {each.severity for each in found if each is not forward} <= {"warning"}


@pytest.mark.parametrize("by", [doubling, outlier])
def test_a_scale_of_the_tensors_own_fits(by: Callable[[int], float]) -> None:
    assert not measured(by, 12, "fp8-current")


def varied(step: int) -> float:
    return 1 + 0.3 * (step * 37 % 11) / 11


@pytest.mark.parametrize("by", [lambda step: 1.0, varied, lambda step: 0.8**step], ids=["steady", "varied", "falling"])
def test_data_that_varies_or_falls_slowly_has_peace(by: Callable[[int], float]) -> None:
    assert not measured(by, 12)


UP_AND_DOWN = (1.0, 6.0, 1.0, 9.0, 2.0, 8.0, 1.0, 5.0, 3.0, 7.0, 1.0, 6.0, 2.0, 9.0, 1.0, 8.0)


def most_recent(precision: str = "fp8-delayed") -> precheck.Precision:
    """A recipe whose scales are made from the call before alone."""
    found = resolve(precision)
    assert isinstance(found.gemm, Recipe)
    return dataclasses.replace(found, gemm=dataclasses.replace(found.gemm, history=1))


def test_with_a_history_of_one_step_half_of_all_steps_may_have_greater_numbers() -> None:
    found = measured(lambda step: UP_AND_DOWN[step % 16], 16, most_recent())
    assert any("too small in 7 of 15 calls" in each.message for each in found)
    assert {each.severity for each in found} == {"warning"}
    assert chance_of_records(21, 21, history=1) < CHANCE < chance_of_records(15, 7)


def infinite_once(step: int) -> float:
    return float("inf") if step == 2 else 1.0


def test_an_overflow_leaves_the_scale_as_it_was() -> None:
    model, x = Factored(infinite_once), normal(32, 64)
    with precheck.watch(precision="fp8-delayed"), torch.no_grad():
        results = [model(x) for _ in range(3)]
    assert torch.equal(results[2], results[0])


def test_watch_tells_it_too() -> None:
    model, x = Factored(doubling), normal(32, 64)
    with precheck.watch(precision="fp8-delayed") as report:
        for _ in range(12):
            model(x).square().mean().backward()
            model.zero_grad()
    assert ("clipping", "error", "second") in {(each.rule, each.severity, each.module) for each in report.findings}


def test_records_of_data_in_any_order_have_the_chances_of_renyis_theorem() -> None:
    assert chance_of_records(1, 1) == pytest.approx(1 / 2)
    assert chance_of_records(2, 2) == pytest.approx(1 / 6)
    assert chance_of_records(5, 0) == pytest.approx(1)
    draws = torch.rand(20000, 9, generator=torch.Generator().manual_seed(0))
    records = (draws[:, 1:] > draws.cummax(1).values[:, :-1]).sum(1)
    assert chance_of_records(8, 3) == pytest.approx(float((records >= 3).float().mean()), abs=0.01)
    assert chance_of_records(9, 9) < CHANCE < chance_of_records(8, 8)
    assert chance_of_records(1000, 1000) < CHANCE
    assert sum(chance_of_records(1000, least) for least in range(1, 60)) == pytest.approx(sum(1 / call for call in range(2, 1002)))  # the mean


@pytest.mark.parametrize("history", [1, 4])
def test_with_a_short_history_many_records_are_no_likelier_than_is_said(history: int) -> None:
    draws = torch.rand(20000, 21, generator=torch.Generator().manual_seed(0))
    before = torch.stack([draws[:, max(0, place - history) : place].amax(1) for place in range(1, 21)], 1)
    records = (draws[:, 1:] > before).sum(1)
    for least in (12, 14, 16):
        assert float((records >= least).float().mean()) <= chance_of_records(20, least, history)


@pytest.mark.parametrize(
    ("now", "expected", "fit"),
    [(1.0, 1.0, True), (1.01, 1.0, False), (1.0, 15.0, True), (1.0, 17.0, False), (0.0, 1.0, True), (float("inf"), 1.0, True)],
)
def test_which_scales_are_looked_at(now: float, expected: float, fit: bool) -> None:
    assert fits(torch.tensor(now), torch.tensor(expected)) == fit
