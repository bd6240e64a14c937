"""A recipe that is too coarse for a layer is an error of its own, beside recipes and layers for which it is not."""

from __future__ import annotations

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck


def blind(width: int = 64, scale: float = 1e4) -> tuple[nn.Module, torch.Tensor]:
    """Three layers, of which the second's input has a channel that is far greater than the others, and that it ignores."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8))
    with torch.no_grad():
        model[1].weight[17] = scale
        model[2].weight[:, 17] = 0
    return model, normal(32, width)


@pytest.mark.parametrize("precision", ["int8-dynamic", "8da4w"])
def test_a_layer_whose_outlier_drowns_the_rest_is_named_with_its_channel(precision: str) -> None:
    model, x = blind()
    report = precheck.measure(model, x, precision=precision)
    (error,) = report.errors
    assert error.rule == "coarse-recipe"
    assert error.module == "2"
    assert "the median of the other layers is" in error.message
    assert "input channel 17 is" in error.message
    assert error.limit == 3


@pytest.mark.parametrize("precision", ["fp8-current", "int8-weight-only", "bf16-mixed"])
def test_a_recipe_that_is_fine_enough_for_it_is_left_in_peace(precision: str) -> None:
    model, x = blind()
    assert not precheck.measure(model, x, precision=precision).findings


@pytest.mark.parametrize("precision", ["int8-dynamic", "8da4w", "mxfp4", "nvfp4"])
def test_without_the_outlier_every_recipe_is_left_in_peace(precision: str) -> None:
    model, x = blind(scale=1.0)
    report = precheck.measure(model, x, precision=precision, loss=lambda out: out.square().mean())
    assert not report.findings


def test_a_layer_far_behind_its_neighbours_is_a_warning() -> None:
    model, x = blind(scale=250.0)
    report = precheck.measure(model, x, precision="int8-dynamic")
    assert not report.errors
    (warning,) = report.findings
    assert (warning.rule, warning.severity, warning.module) == ("coarse-recipe", "warning", "2")


def test_kept_in_float32_the_layer_is_not_accused() -> None:
    model, x = blind()
    precheck.in_float32(model, ["2"])
    report = precheck.measure(model, x, precision="int8-dynamic")
    assert not [each for each in report.errors if each.rule == "coarse-recipe"]
