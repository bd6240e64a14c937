"""`layers_to_keep` and `layers_in`: the layers that cost, found by runs that a test repeats by hand; and errors that say what to pass."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.precisions import resolve
from precheck.recipes.products import OWN
from precheck.shared_runs.smallest_set import needed, swept


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def network(outlier: int = 1) -> nn.Sequential:
    """Four blocks; in that of number `outlier` one channel is far greater than the others."""
    torch.manual_seed(0)
    made = nn.Sequential(*(Block() for _ in range(4)))
    with torch.no_grad():
        made[outlier].norm.weight[17] = 80.0
        made[outlier].up.weight[:, 17] /= 80.0
    return made


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def gradient(model: nn.Module, x: torch.Tensor, precision: str) -> torch.Tensor:
    """Of all parameters, as a training step under a precision has it."""
    copied, chosen = copy.deepcopy(model), resolve(precision)
    for own, given in zip(copied.parameters(), model.parameters(), strict=True):
        vars(own).update(vars(given))
    with chosen.step():
        with chosen.autocast():
            out = copied(x)
        loss(out.float()).backward()
    return torch.cat([parameter.grad.flatten().double() for parameter in copied.parameters()])


def off(model: nn.Module, x: torch.Tensor, precision: str) -> float:
    exact = gradient(model, x, "32-true")
    return float((gradient(model, x, precision) - exact).norm() / exact.norm())


def test_the_layer_with_the_outlier_is_kept_and_the_error_is_that_of_a_plain_step() -> None:
    model, x = network(), normal(64, 64)
    found = precheck.layers_to_keep(model, x, "mxfp4", loss=loss, gradient_error=0.2)
    assert found.layers == ("1.up",)
    assert found.minimal
    assert found.error <= 0.2 < found.without
    assert found.without == pytest.approx(off(model, x, "mxfp4"), rel=1e-3)
    assert max(found.alone, key=found.alone.__getitem__) == "1.up"
    assert "layers_in(model, " in found.code
    exec(found.code, {"model": model})
    assert off(model, x, "mxfp4") == pytest.approx(found.error, rel=1e-3)


def test_layers_may_follow_a_finer_recipe_instead_and_a_loss_may_be_what_counts() -> None:
    model, x = network(), normal(64, 64)
    found = precheck.layers_to_keep(model, x, "mxfp4", loss=loss, gradient_error=0.2, keep_in="mxfp8")
    assert found.layers == ("1.up",)
    assert found.code.endswith('layers_in(model, ["1.up"], "mxfp8")')
    assert found.least > precheck.layers_to_keep(model, x, "mxfp4", loss=loss, gradient_error=0.2).least
    by_loss = precheck.layers_to_keep(model, x, "mxfp4", loss=loss, loss_error=found.without)
    assert by_loss.what == "loss"
    assert by_loss.error <= found.without


def test_what_is_fine_already_needs_nothing() -> None:
    found = precheck.layers_to_keep(network(), normal(64, 64), "mxfp8", loss=loss, gradient_error=0.5)
    assert (found.layers, found.code, found.error) == ((), "", found.without)
    assert str(found).startswith("MXFP8BlockScaling: keep nothing. The gradient is then ")


def test_the_table_is_text_rows_and_json() -> None:
    found = precheck.layers_to_keep(network(), normal(64, 64), "mxfp4", loss=loss, gradient_error=0.2)
    rows = found.rows()
    assert len(rows) == 8
    assert [row["layer"] for row in rows if row["kept"]] == ["1.up"]
    assert json.loads(found.to_json())["layers"] == rows
    assert json.loads(found.to_json())["within"] == 0.2
    lines = str(found).splitlines()
    assert lines[1].split() == ["layer", "gradient", "error", "if", "it", "alone", "is", "quantised"]
    assert lines[2].split()[0] == "1.up"
    assert lines[2].endswith("kept")


def test_with_few_runs_the_answer_says_that_fewer_may_do() -> None:
    found = precheck.layers_to_keep(network(), normal(64, 64), "mxfp4", loss=loss, gradient_error=0.2, most=3)
    assert found.runs == 3
    assert not found.minimal
    assert found.alone == {}
    assert found.error <= 0.2
    assert "fewer may do: more trials" in str(found)


def test_the_model_comes_back_as_it_was() -> None:
    model, x = network(), normal(64, 64)
    precheck.layers_in(model, ["0.up"], "bf16")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    precheck.layers_to_keep(model, x, "mxfp4", loss=loss, gradient_error=0.3)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [name for name, parameter in model.named_parameters() if hasattr(parameter, OWN)] == ["0.up.weight"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_in_bfloat16_has_no_quantisation_noise_in_a_survey_or_a_measurement() -> None:
    model, x = network(), normal(64, 64)
    precheck.layers_in(model, ["1"], "bf16")
    rows = precheck.survey(model, x, ["mxfp4"], loss=loss).rows()
    assert all((row["mxfp4"] is None) == row["layer"].startswith("1.") for row in rows)
    report = precheck.measure(model, x, precision="mxfp4", loss=loss)
    assert not [finding for finding in report.findings if finding.rule == "coarse-recipe" and finding.module == "1.up"]
    before = precheck.measure(network(), x, precision="mxfp4", loss=loss)
    assert [finding for finding in before.findings if finding.rule == "coarse-recipe" and finding.module == "1.up"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, r"state one error: gradient_error=0\.1 .* or loss_error=0\.01"),
        ({"gradient_error": 0.1, "loss_error": 0.1}, "state one error"),
        ({"gradient_error": -1}, r"gradient_error=-1; pass a share of float32's, as in gradient_error=0\.05"),
        ({"loss_error": "small"}, r"loss_error='small'; pass a share"),
        ({"gradient_error": 0.1, "most": 1}, "most=1; pass how many runs may be made, a whole number from 2"),
        ({"gradient_error": 0.1, "loss": None}, "no loss was given; pass loss="),
        ({"gradient_error": 0.1, "keep_in": "16-true"}, 'layers cannot be kept in 16-true; pass "bf16", or one of DelayedScaling'),
        ({"gradient_error": 1e-9}, r"gradient_error=1e-09 cannot be reached: with all 8 layers in bf16 it is 0\.\d+%, and .* with none of them"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(precheck.InputError, match=said):
        precheck.layers_to_keep(network(), normal(8, 64), "mxfp4", **{"loss": loss, **arguments})


def test_what_is_no_recipe_and_a_model_without_layers_are_refused() -> None:
    with pytest.raises(precheck.InputError, match="bf16 is no recipe of products; known are DelayedScaling"):
        precheck.layers_to_keep(network(), normal(8, 64), "bf16", loss=loss, gradient_error=0.1)
    with pytest.raises(precheck.InputError, match="mxfp4 quantises no layer of this model"):
        precheck.layers_to_keep(nn.Sequential(nn.LayerNorm(64)), normal(8, 64), "mxfp4", loss=loss, gradient_error=0.1)
    with pytest.raises(precheck.InputError, match=r"1\.norm has no weight of two dimensions that a product could read"):
        precheck.layers_in(network(), ["1.norm"], "bf16")


@pytest.mark.parametrize("wanted", [{"c"}, {"a", "h"}, set("bdf"), set(), set("abcdefgh")])
def test_the_search_ends_with_what_is_needed(wanted: set[str]) -> None:
    tried = []

    def passes(names: Any) -> bool:
        tried.append(frozenset(names))
        return wanted <= set(names)

    assert set(needed([], list("abcdefgh"), passes)) == wanted
    assert set(swept(list("abcdefgh"), passes)) == wanted
