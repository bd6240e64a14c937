"""`survey`: the signal to quantisation noise of each product is that of the product itself, carried out by hand; names, outliers and errors."""

from __future__ import annotations

import json
import math

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.formats import E2M1, mx
from precheck.recipes import RECIPES
from precheck.recipes.products import RecipeProducts


def network(outlier: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8))
    with torch.no_grad():
        made[0].weight[17] = outlier
    return made


def decibels(made: torch.Tensor, exact: torch.Tensor) -> float:
    return float(20 * torch.log10(exact.norm() / (made - exact).norm()))


def test_each_products_decibels_are_those_of_the_product_by_hand() -> None:
    layer, x, upstream = nn.Linear(64, 32, bias=False), normal(16, 64), normal(16, 32, seed=1)
    model = nn.Sequential(nn.Linear(64, 64), layer)
    given = model[0](x)
    found = precheck.survey(model, x, ["mxfp4"], loss=lambda out: (out * upstream).sum())
    rows = {(row["layer"], row["product"]): row["mxfp4"] for row in found.rows()}

    def cast(matrix: torch.Tensor) -> torch.Tensor:
        return mx.dequantised(*mx.quantised(matrix.detach(), E2M1, mode="rceil"))

    weight = layer.weight.detach()
    expected = {
        "forward": decibels(cast(given) @ cast(weight).t(), given.detach() @ weight.t()),
        "input gradient": decibels(cast(upstream) @ cast(weight.t()).t(), upstream @ weight),
        "weight gradient": decibels(cast(upstream.t()) @ cast(given.t()).t(), upstream.t() @ given.detach()),
    }
    for product, value in expected.items():
        assert rows["1", product] == pytest.approx(value, abs=0.02)


def test_the_share_of_each_operand_that_is_rounded_to_zero_is_counted_over_its_calls() -> None:
    layer, first, second = nn.Linear(64, 32, bias=False), normal(16, 64), normal(16, 64, seed=1) ** 5
    found = precheck.survey(lambda x: layer(x) + layer(second), first, ["mxfp4", "mxfp8"], loss=lambda out: out.square().sum())
    (row,) = (row for row in found.rows() if row["product"] == "forward")

    def zeros(matrix: torch.Tensor) -> float:
        elements, _ = mx.quantised(matrix, E2M1, mode="rceil")
        return float((elements == 0).float().mean())

    assert row["flushed"]["mxfp4"]["input"] == pytest.approx((zeros(first) + zeros(second)) / 2, abs=1e-4)
    assert row["flushed"]["mxfp4"]["weight"] == pytest.approx(zeros(layer.weight.detach()), abs=1e-4)
    assert row["flushed"]["MXFP8BlockScaling"]["weight"] < 0.01 < row["flushed"]["mxfp4"]["weight"] < row["flushed"]["mxfp4"]["input"]


def test_finer_recipes_leave_more_and_those_of_inference_leave_gradients_alone() -> None:
    found = precheck.survey(network(), normal(64, 64), ["mxfp8", "mxfp6-e2m3", "mxfp4", "int8-dynamic"], loss=lambda out: out.square().mean())
    assert found.precisions == ("MXFP8BlockScaling", "mxfp6-e2m3", "mxfp4", "Int8DynamicActivationInt8WeightConfig")
    assert {place.layer for place in found.places} == {"1", "3"}
    for place in found.places:
        assert place.decibels("MXFP8BlockScaling") > place.decibels("mxfp4") + 8
        assert (place.decibels("Int8DynamicActivationInt8WeightConfig") == math.inf) == (place.product != "forward")
    assert all(row["Int8DynamicActivationInt8WeightConfig"] is None for row in found.rows() if row["product"] != "forward")
    assert json.loads(found.to_json()) == found.rows()


def test_an_outlier_channel_is_named_and_costs_the_coarse_recipe_its_layer() -> None:
    found = precheck.survey(network(100.0), normal(64, 64), ["Int8DynamicActivationInt8WeightConfig", "MXFP8BlockScaling"])
    first = next(place for place in found.places if place.layer == "1")
    assert first.channel == 17
    assert first.excess > 30
    assert "channel 17" in str(found)
    plain = precheck.survey(network(), normal(64, 64), ["MXFP8BlockScaling"])
    assert all(place.channel is None for place in plain.places)
    assert [line.split()[0] for line in str(plain).splitlines()] == ["layer", "1", "3", "median", "MXFP8BlockScaling:"]


def test_the_coarsest_layers_come_worst_first() -> None:
    found = precheck.survey(network(), normal(64, 64), ["mxfp4"], loss=lambda out: out.square().mean())
    worst = min(found.places, key=lambda place: place.decibels("mxfp4"))
    listed = found.coarsest("mxfp4", 100.0)
    assert listed[0] == worst.layer
    assert set(listed) == {"1", "3"}
    assert found.coarsest("mxfp4", worst.decibels("mxfp4")) == []


def test_the_run_and_the_model_stay_as_they_were() -> None:
    model, x = network(), normal(8, 64)
    before, state = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    precheck.survey(model, x, ["nvfp4"], loss=lambda out: out.sum())
    assert torch.equal(before, model(x))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_recipe_is_carried_out_as_under_its_precision() -> None:
    model, x = nn.Sequential(nn.Linear(64, 32, bias=False)), normal(16, 64)
    found = precheck.survey(model, x, ["fp8-block"])
    with torch.no_grad(), RecipeProducts(RECIPES["Float8BlockScaling"]):
        made = model(x)
    exact = x @ model[0].weight.detach().t()
    assert found.places[0].decibels("Float8BlockScaling") == pytest.approx(decibels(made, exact), abs=0.02)


def test_frameworks_objects_are_surveyed_under_the_names_of_their_recipes() -> None:
    config = pytest.importorskip("torchao.quantization").Int4WeightOnlyConfig
    fine = precheck.survey(network(), normal(8, 64), [config(group_size=32), "mxfp8"])
    assert fine.precisions == ("Int4WeightOnlyConfig", "MXFP8BlockScaling")
    with pytest.raises(precheck.InputError, match="two different recipes are called Int4WeightOnlyConfig; survey one at a time"):
        precheck.survey(network(), normal(8, 64), [config(group_size=32), config(group_size=64)])


@pytest.mark.parametrize(
    ("precisions", "said"),
    [(["bf16"], "bf16 is no recipe of products; known are DelayedScaling"), ([], r"no precision was named; pass names of recipes, as in survey")],
)
def test_what_is_no_recipe_is_refused(precisions: list[str], said: str) -> None:
    with pytest.raises(precheck.InputError, match=said):
        precheck.survey(network(), normal(8, 64), precisions)


def delayed(rate: float) -> precheck.Survey:
    """Five steps of a small network under delayed scales, with a learning rate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    return precheck.survey(
        model, normal(32, 64), ["fp8-delayed", "mxfp4"], loss=lambda out: out.square().mean(), steps=5,
        optimizer=lambda each: torch.optim.SGD(each, lr=rate),
    )  # fmt: skip


def test_blocks_that_clip_are_counted_by_operand_and_step() -> None:
    grown = {row["layer"]: row["blocks"]["DelayedScaling"] for row in delayed(10.0).rows() if row["product"] == "forward"}
    still = {row["layer"]: row["blocks"]["DelayedScaling"] for row in delayed(0.0).rows() if row["product"] == "forward"}
    assert grown["0"]["weight"]["blocks"] == 1
    assert grown["0"]["weight"]["clipping"][:2] == [0.0, 1.0]  # the first scale is the tensor's own; the second is the first's
    assert 0 < grown["0"]["weight"]["clipped"][1] < 0.1
    assert all(found["clipping"] == [0.0] * 5 for layer in still.values() for found in layer.values())


def test_blocks_that_flush_are_those_of_the_cast_by_hand() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32, bias=False), normal(16, 64) ** 3
    (row,) = precheck.survey(layer, x, ["mxfp4"]).rows()
    found = row["blocks"]["mxfp4"]["input"]
    elements, _ = mx.quantised(x, E2M1, mode="rceil")
    zeros = (elements == 0).view(16, 2, 32)
    assert (found["blocks"], found["clipping"]) == (32, [0.0])
    assert found["flushing"] == [pytest.approx(float(zeros.any(-1).float().mean()), abs=1e-4)]
    assert found["flushed"] == [pytest.approx(float(zeros.float().mean()), abs=1e-4)]


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4", "fp8-current", "fp8-block", "rowwise", "int8-dynamic", "int8-weight-only"])
def test_scales_of_the_greatest_magnitude_clip_nothing(precision: str) -> None:
    found = precheck.survey(network(), 100 * normal(64, 64) ** 3, [precision], loss=lambda out: out.square().mean())
    assert all(max(shares["clipping"]) == 0 for *_, shares in found.blocks(found.precisions[0]))


def test_the_table_ends_with_the_operand_that_clips_or_flushes_most() -> None:
    assert "DelayedScaling: of 1 blocks of the weight of 0 (forward), 100% clip and 0% round something to zero" in str(delayed(3.0))


def test_a_measurement_has_the_blocks_of_each_of_its_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    report = precheck.measure(
        model, normal(32, 64), precision="mxfp4", loss=lambda out: out.square().mean(), optimizer=lambda each: torch.optim.SGD(each, lr=0.1), steps=3
    )
    rows = json.loads(report.to_json())["facts"]["layers"]
    operands = {(found["product"], found["operand"]) for row in rows for found in row["blocks"]}
    assert operands >= {("forward", "input"), ("weight gradient", "gradient")}
    assert all(len(found["flushing"]) == 3 for row in rows for found in row["blocks"])
