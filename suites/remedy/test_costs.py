"""What a remedy costs, in measurements and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from faulty import Functional, Site, Stack, job, measured, squared
from torch import nn

import precheck
from precheck import remedies
from precheck.measurement import Measurement
from precheck.observe.run import run
from precheck.precisions import resolve
from precheck.remedies import searched
from precheck.shared_runs import remedy_trials
from precheck.shared_runs.remedy_trials import Screening


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The measurements that trials make."""
    made: list[Any] = []

    class Counted(Measurement):
        def report(self) -> precheck.Report:
            made.append(self.job)
            return super().report()

    monkeypatch.setattr(remedies, "Measurement", Counted)
    return made


def test_most_trials_are_no_measurement(whole: list[Any]) -> None:
    """Only what is given is measured: one of the 16 trials or so that finding two norms of four takes."""
    it = job(lambda: Stack([0, 3]))
    cure = searched(it, resolve("16-true"), measured(it, "16-true"))
    assert cure is not None
    assert cure.modules == ("blocks.0.norm", "blocks.3.norm")
    assert cure.runs > 8
    assert len(whole) == 1


def test_trials_of_a_fault_in_the_forward_pass_end_after_it(whole: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run went on and drew a mask in each step. That makes no trial doubtful, for which it would have to be a measurement."""
    it = job(
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), Site(lambda x: (x + 300) - 300), nn.Linear(16, 16), nn.ReLU()),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        steps=2,
    )
    report = measured(it, "bf16-mixed")
    settings = []
    monkeypatch.setattr(remedy_trials, "run", lambda job, setting: settings.append(setting) or run(job, setting))
    cure = searched(it, resolve("bf16-mixed"), report, most=12)
    assert cure is not None
    assert cure.modules == ("2",)
    assert len(whole) == 1
    assert len(settings) == cure.runs
    assert all(setting.early for setting in settings)


def test_updates_that_are_lost_take_one_trial(whole: list[Any]) -> None:
    """Each weight's is its own matter: no part of its module, and no other module, would do."""
    it = job(
        lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        steps=3,
    )
    cure = searched(it, resolve("bf16-true"), measured(it, "bf16-true"))
    assert cure is not None
    assert (cure.modules, cure.minimal, cure.runs, len(whole)) == (("1", "3"), True, 1, 1)


def test_what_one_low_run_lets_pass_and_a_measurement_does_not_is_measured_from_then_on(whole: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once something has passed: here every smaller set seems to."""
    it = job(lambda: nn.Sequential(nn.Linear(16, 16), Functional(squared)))
    report = measured(it, "16-true")
    monkeypatch.setattr(Screening, "report", lambda self: precheck.Report())
    cure = searched(it, resolve("16-true"), report)
    assert cure is not None
    assert (cure.modules, cure.functions, cure.minimal) == (("1",), ("mul", "div"), True)
    assert cure.report.errors == []
    assert len(whole) > 2


def test_out_of_time_it_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    it = job(lambda: Stack([0, 3]))
    report = measured(it, "16-true")
    monkeypatch.setattr(remedy_trials, "PATIENCE", 0.0)
    monkeypatch.setattr(remedy_trials, "LEAST", 0.0)
    assert searched(it, resolve("16-true"), report, most=12, patient=False) is None
    assert report.facts["remedy"] == "pytest -o remedy_trials=12 (found none in 0 trials)"


def test_what_to_type_for_a_longer_search_stands_where_no_line_has_a_cure() -> None:
    report = precheck.Report(facts={"remedy": "pytest -o remedy_trials=12 (found none in 0 trials)"})
    report.add([precheck.Finding("accumulated-drift", "error", "off")])
    assert report.summary().endswith("to search longer for modules to keep in float32: pytest -o remedy_trials=12 (found none in 0 trials)")
    report.findings = [precheck.Finding("accumulated-drift", "error", "off", source="model.py:7")]
    assert "remedy_trials" not in report.summary()


def test_out_of_trials_it_says_so() -> None:
    it = job(lambda: Stack([0, 1, 3]))
    report = measured(it, "16-true")
    assert searched(it, resolve("16-true"), report, most=1) is None
    assert report.facts["remedy"] == "pytest -o remedy_trials=2 (found none in 1 trial)"
