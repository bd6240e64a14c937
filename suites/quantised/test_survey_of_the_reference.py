"""Under a recipe the products of `measure`'s reference run are surveyed: this is no further run, changes nothing, and finds what a survey finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.measurement import job_of
from precheck.observe import training
from precheck.observe.recording import surveys
from precheck.observe.setting import Setting
from precheck.precisions import resolve
from precheck.recipes import RECIPES, quantising
from precheck.recipes.blocks import Blocks, ends
from precheck.recipes.survey import HARDLY, _missing, by_layer


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))


def arguments(steps: int) -> dict[str, Any]:
    return {"loss": lambda out: out.float().square().mean(), "steps": steps, "optimizer": lambda given: torch.optim.AdamW(given, lr=1e-3)}


@pytest.mark.parametrize("steps", [1, 3])
def test_a_measurement_under_a_recipe_makes_no_more_runs_than_under_bf16(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    made: list[int] = []
    given = training.Training.steps
    monkeypatch.setattr(training.Training, "steps", lambda self: (made.append(1), given(self))[1])
    counts = {}
    for precision in ("bf16-true", "mxfp8"):
        made.clear()
        report = precheck.measure(model(), normal(32, 64), precision=precision, **arguments(steps))
        counts[precision] = len(made)
    assert counts["mxfp8"] == counts["bf16-true"]
    assert {row["layer"] for row in report.facts["layers"]} == {"0", "3"}
    assert len(report.facts["layers"][0]["blocks"][0]["flushing"]) == steps


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8-delayed"])
def test_a_survey_beside_a_run_changes_none_of_its_records(name: str) -> None:
    job = job_of(model(), normal(32, 64), **arguments(2))
    recipe = resolve(name).gemm
    plain, without = surveys.run_beside(job, Setting(torch.float32), None)
    beside, mode = surveys.run_beside(job, Setting(torch.float32), recipe)
    assert without is None
    assert mode is not None
    assert plain.records.keys() == beside.records.keys()
    for key, record in plain.records.items():
        assert np.array_equal(record.sketch, beside.records[key].sketch), key
    alone = surveys.surveyed(job, [recipe])  # type: ignore[list-item]
    assert by_layer(surveys.found(job, mode), str(recipe)) == by_layer(alone, str(recipe))


@pytest.mark.parametrize(("least", "measured"), [(0.003, False), (0.5, True)])
def test_what_is_missing_is_measured_where_it_may_be_more_than_a_ten_thousandth(least: float, measured: bool) -> None:
    first, second = normal(64, 64), normal(8, 64, seed=1)
    made, exact = first * (first.abs() > least), (first @ second.t()).double()
    found = _missing((_Operand(first), _Operand(second)), (made, second), exact)  # type: ignore[arg-type]
    true = float((exact - made @ second.t()).square().sum())
    assert (found > HARDLY * float(exact.square().sum())) == measured
    assert true > 0
    assert found == pytest.approx(true, rel=1e-5) if measured else found > true


class _Operand:
    how = None

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = matrix


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if all(each.scale != "delayed" for each in recipe.quantisers)])
def test_blocks_are_counted_as_element_by_element(name: str) -> None:
    """Scales that are made of a block's greatest magnitude put nothing beyond the format: what is not looked at there is not to be found."""
    data = normal(48, 96, seed=3) ** 5 * (normal(48, 96, seed=4) > -1)
    for how in RECIPES[name].quantisers:
        counted, made = Blocks(), quantising.rounded(data, how, generator=torch.Generator().manual_seed(0))
        counted.add(data, made, how, None)
        rows, columns = (size if extent < 0 else extent for extent, size in zip((how.across, how.along), data.shape, strict=True))
        parts = [part for band in data.split(rows) for part in band.split(columns, 1)]
        assert (counted.blocks, counted.elements) == (len(parts), data.numel())
        assert counted.flushed == int(((made == 0) & (data != 0)).sum())
        if how.scale in ("float32", "power of two", "mx"):
            for part in parts:
                _, high = ends(-part.abs().amax()[None, None], part.abs().amax()[None, None], how)
                assert bool((part.abs() <= high).all())
