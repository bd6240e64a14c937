"""Planted bugs: each does harm, fails and is named, with a golden and without one; its mended twin passes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from case import Case
from planted import BUGS

import precheck
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of
from precheck.precisions import resolve

RUNS = [(name, precision) for name, bug in BUGS.items() for precision in bug.precisions]
HARM = 3.0
"""Times the mended twin's own error: with less, a bug would be hard to call one. What is planted reaches 7 to 2000, or NaN."""


def result(it: Case, name: str) -> torch.Tensor:
    """The model's logits under a precision, without precheck."""
    precision = resolve(name)
    model, inputs = copy.deepcopy(it.model), it.inputs if isinstance(it.inputs, dict) else {"x": it.inputs}
    if not precision.autocasts:
        model = model.to(precision.param_dtype)
        inputs = {key: value.to(precision.param_dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    with torch.no_grad(), precision.autocast("cpu"):
        out = model(**inputs)
    logits: torch.Tensor = out if isinstance(out, torch.Tensor) else out.logits
    return logits.double()


def measured(it: Case, precision: str) -> precheck.Report:
    return precheck.measure(it.model, it.inputs, precision=precision, loss=it.loss)


def fault(report: precheck.Report, name: str, precision: str) -> None:
    """Asserts that the report's first error blames the planted module, and that the bug's own rule says where, in one line."""
    bug = BUGS[name]
    assert report.errors, report.summary()
    assert f"{report.errors[0].module}.".startswith(f"{bug.module}."), report.summary()
    found = next((finding for finding in report.errors if finding.rule == bug.rule), None)
    assert found is not None, report.summary()
    assert f"{found.module}.".startswith(f"{bug.module}."), report.summary()
    line = found.message.splitlines()[0]
    assert bug.message in line
    assert precision in line


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_a_planted_bug_does_harm(name: str, precision: str) -> None:
    """Or there would be nothing to find. NaN is harm."""
    make = BUGS[name].make
    exact = result(make(mended=True), "32-true")
    mended, spoiled = (float((result(make(mended=mended), precision) - exact).norm()) for mended in (True, False))
    assert mended < 0.05 * float(exact.norm())
    assert math.isnan(spoiled) or spoiled > HARM * mended


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_a_planted_bug_fails_and_is_named(name: str, precision: str) -> None:
    report = measured(BUGS[name].make(mended=False), precision)
    fault(report, name, precision)
    with pytest.raises(precheck.PrecisionFailure, match="cure: "):
        report.raise_for_errors()


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_its_mended_twin_passes(name: str, precision: str) -> None:
    report = measured(BUGS[name].make(mended=True), precision)
    assert report.errors == [], report.summary()


@pytest.mark.parametrize("name", list(BUGS))
def test_a_golden_of_the_mended_model_catches_it(name: str, tmp_path: Path) -> None:
    """As it happens: the golden was recorded when all was well."""
    bug, path = BUGS[name], tmp_path / "golden.safetensors"
    mended, spoiled = bug.make(mended=True), bug.make(mended=False)
    refresh(path, job_of(mended.model, mended.inputs, loss=mended.loss))

    def checked(it: Case) -> precheck.Report:
        arguments: dict[str, Any] = {"golden": path, "precision": bug.precisions[0], "loss": it.loss}
        return precheck.check(it.model, it.inputs, **arguments)

    assert checked(mended).errors == []
    fault(checked(spoiled), name, bug.precisions[0])
