"""A loss scale that is searched for: the search is nobody's business, and what comes of it is judged as if the run had begun there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.measurement import Measurement, job_of
from precheck.precisions import resolve


def given(factor: float) -> dict[str, Any]:
    """A loss so large that float16's gradients leave the format under most of the scales that are tried."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    return {"model": model, "inputs": torch.randn(64, 16), "loss": lambda out: factor * out.float().square().sum()}


def measured(factor: float) -> tuple[precheck.Report, Measurement]:
    arguments = given(factor)
    job = job_of(arguments.pop("model"), arguments.pop("inputs"), **arguments)
    measurement = Measurement(job, resolve("16-mixed"), depth="ops")
    return measurement.report(), measurement


def test_the_runs_of_a_search_are_not_watched() -> None:
    plain, _ = measured(1e-6)
    searched, measurement = measured(1e2)
    assert measurement.low.skipped >= 4
    assert not searched.errors
    assert searched.facts["ops"] == plain.facts["ops"]  # of the run that counts alone


def test_what_is_recorded_is_of_the_run_under_the_scale_that_was_found() -> None:
    report, measurement = measured(1e2)
    assert measurement.low.scale == 2.0 ** (16 - measurement.low.skipped)
    gradients = [row for row in report.boundaries if row.kind == "parameter-gradient"]
    assert len(gradients) == 6
    assert all(row.r < 3 for row in gradients)


@pytest.mark.parametrize("factor", [1e-6, 1e2])
def test_the_model_is_given_back_as_it_was(factor: float) -> None:
    arguments = given(factor)
    before = {name: value.clone() for name, value in arguments["model"].state_dict().items()}
    precheck.measure(**arguments, precision="16-mixed")
    assert all(torch.equal(value, before[name]) for name, value in arguments["model"].state_dict().items())
