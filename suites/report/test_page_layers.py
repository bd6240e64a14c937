"""Under a recipe the page has a table of decibels by layer and product, in a browser; other checks have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, executable
from sessions import HOSTILE, check, of
from torch import nn
from views import shown, text, texts

import precheck
from precheck.report.recipe_table import by_recipe

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")
LAYERS = [
    {"layer": "head", "forward": 2.5, "input gradient": 9.0, "weight gradient": 21.0, "outlier": 17, "flushed": 0.125,
     "blocks": [{"product": "forward", "operand": "input", "blocks": 64, "clipping": [0.0, 0.25, 0.125], "flushing": [1.0, 1.0, 1.0],
                 "clipped": [0.0, 0.02, 0.01], "flushed": [0.1, 0.125, 0.11]}]},
    {"layer": "body.0", "forward": 28.04, "input gradient": None, "weight gradient": 33.0, "outlier": None, "flushed": 0.0},
]


def session(layers: list[dict[str, Any]]) -> Any:
    entry = check(precision="mxfp4")
    entry["report"]["facts"]["layers"] = layers
    return of(entry)


def test_a_row_for_each_layer_and_a_colour_for_each_class(browser: Browser, tmp_path: Path) -> None:
    opened = shown(browser, session(LAYERS), tmp_path)
    assert texts(opened, "#decibels thead th") == ["layer", "forward", "input gradient", "weight gradient", "rounded to zero", "outlier"]
    assert texts(opened, "#decibels tbody tr:nth-child(1) > *") == ["head", "2.5", "9.0", "21.0", "12.5%", "channel 17"]
    assert texts(opened, "#decibels tbody tr:nth-child(2) > *") == ["body.0", "28.0", "", "33.0", "", ""]
    assert [texts(opened, f"#decibels .heat.{kind}") for kind in ("over", "near")] == [["2.5"], ["9.0"]]
    assert browser.complaints == []


def test_blocks_that_clip_or_flush_are_told_by_operand_and_over_the_steps(browser: Browser, tmp_path: Path) -> None:
    opened = shown(browser, session(LAYERS), tmp_path)
    titles = ["layer", "product", "operand", "blocks", "blocks that clip", "blocks that flush", "elements clipped", "elements flushed"]
    assert texts(opened, "#blocks thead th") == titles
    clipping, clipped, flushed = ("0.0 to 25.0%, most in step 2", "0.0 to 2.0%, most in step 2", "10.0 to 12.5%, most in step 2")
    assert texts(opened, "#blocks tbody tr > *") == ["head", "forward", "input", "64", clipping, "100.0%", clipped, flushed]
    assert browser.complaints == []


def test_a_test_under_several_recipes_has_a_column_for_each(browser: Browser, tmp_path: Path) -> None:
    coarse = [LAYERS[0] | {"forward": 1.5}, LAYERS[1] | {"layer": "body.1", "forward": None, "weight gradient": None}]
    entries = [check(precision=each, name=f"t.py::test_it[{each}]") for each in ("mxfp4", "nvfp4", "mxfp8")]
    for entry, layers in zip(entries, (LAYERS, coarse, []), strict=True):
        entry["report"]["facts"]["layers"] = layers
    opened = shown(browser, of(*entries), tmp_path)
    assert texts(opened, "#recipes thead th") == ["layer", "mxfp4", "nvfp4"]
    assert texts(opened, "#recipes tbody tr > *") == ["head", "2.5", "1.5", "body.0", "28.0", "", "body.1", "", ""]
    assert browser.complaints == []


def test_other_tests_and_other_parameters_are_no_columns() -> None:
    run = (("mxfp4", 1), ("nvfp4", 1), ("nvfp4", 2), ("bf16-mixed", 1))
    entries = [check(precision=precision, name=f"t.py::test_it[{precision}-{size}]") for precision, size in run]
    for entry in entries[:3]:
        entry["report"]["facts"]["layers"] = LAYERS
    found = by_recipe(of(*entries)["tests"])
    assert found[0] == found[1] == {"recipes": ["mxfp4", "nvfp4"], "rows": [["head", 2.5, 2.5], ["body.0", 28.04, 28.04]]}
    assert found[2:] == [None, None]


def test_many_layers_are_a_click_away_and_names_are_no_markup(browser: Browser, tmp_path: Path) -> None:
    many = [LAYERS[1] | {"layer": f"{HOSTILE}{place}"} for place in range(60)]
    opened = shown(browser, session(many), tmp_path)
    assert len(texts(opened, "#decibels tbody tr")) == 24
    assert text(opened, "#decibels button") == "Show all 60 layers"
    opened.value("document.querySelector('#decibels button').click()")
    assert len(texts(opened, "#decibels tbody tr")) == 60
    assert browser.complaints == []


def test_checks_without_a_recipe_have_no_table(browser: Browser, tmp_path: Path) -> None:
    opened = shown(browser, of(check()), tmp_path)
    assert opened.value("document.querySelector('#layers').hidden") is True


def test_a_measurement_under_a_recipe_has_the_rows_and_others_have_none() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), torch.randn(16, 64)
    rows = precheck.measure(model, x, precision="mxfp4", loss=lambda out: out.square().mean()).facts["layers"]
    surveyed = precheck.survey(model, x, ["mxfp4"], loss=lambda out: out.square().mean()).rows()
    assert {row["layer"] for row in rows} == {"0", "2"}
    assert all(0.05 < row["flushed"] < 0.5 for row in rows)
    for each in surveyed:
        assert next(row for row in rows if row["layer"] == each["layer"])[each["product"]] == each["mxfp4"]
    assert "layers" not in precheck.measure(model, x, precision="bf16-mixed").facts
