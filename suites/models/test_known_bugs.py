"""The planted bugs as known failures: as known whatever noise they are judged by, worse where another bug joins them, mended with their twins."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
from case import Case
from planted import BUGS

import precheck
from precheck import measurement
from precheck.judge.beyond_limits import errors_and_places
from precheck.judge.known_failures import recorded, tightened, worse

TODAY = datetime.date(2026, 1, 1)
RUNS = [("rotary", "bf16-mixed"), ("norm", "bf16-mixed"), ("softmax", "16-true"), ("router", "16-mixed")]


def measured(it: Case, precision: str) -> precheck.Report:
    return precheck.measure(it.model, it.inputs, precision=precision, loss=it.loss)


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another day and machine: other noise."""
    drawn = measurement.noise_for

    def shifted(*args: Any, seed: int, **kwargs: Any) -> Any:
        return drawn(*args, seed=seed + 1000, **kwargs)

    monkeypatch.setattr(measurement, "noise_for", shifted)


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_a_bug_is_as_known_under_other_noise_and_forgotten_when_mended(name: str, precision: str, request: pytest.FixtureRequest) -> None:
    known = recorded([], errors_and_places(measured(BUGS[name].make(mended=False), precision)))
    assert known
    request.getfixturevalue("otherwise")
    assert worse(known, errors_and_places(measured(BUGS[name].make(mended=False), precision)), TODAY) == []
    assert tightened(known, errors_and_places(measured(BUGS[name].make(mended=True), precision))) == []


def offset(module: torch.nn.Module, given: Any, out: torch.Tensor) -> torch.Tensor:
    """Beside 256, bfloat16 has the even numbers alone."""
    return (out + 256) - 256


def test_another_bug_is_told_from_the_one_that_is_known() -> None:
    """Though the first error, its rule and its module are as they were."""
    it = BUGS["rotary"].make(mended=False)
    before = measured(it, "bf16-mixed")
    it.model.model.layers[1].mlp.register_forward_hook(offset)
    after = measured(it, "bf16-mixed")
    assert (after.errors[0].rule, after.errors[0].module) == (before.errors[0].rule, before.errors[0].module)
    told = worse(recorded([], errors_and_places(before)), errors_and_places(after), TODAY)
    assert any(line.startswith("forward model.layers.1.mlp is ") for line in told), told
