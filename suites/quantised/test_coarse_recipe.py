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
    model, x = blind(scale=200.0)
    report = precheck.measure(model, x, precision="int8-dynamic")
    assert not report.errors
    (warning,) = report.findings
    assert (warning.rule, warning.severity, warning.module) == ("coarse-recipe", "warning", "2")


def test_kept_in_float32_the_layer_is_not_accused() -> None:
    model, x = blind()
    precheck.in_float32(model, ["2"])
    report = precheck.measure(model, x, precision="int8-dynamic")
    assert not [each for each in report.errors if each.rule == "coarse-recipe"]


def uneven() -> tuple[nn.Module, torch.Tensor]:
    """Two features are a hundred times as large as the others, and have so much smaller weights: all matter alike."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), normal(128, 32)
    x[:, :2] *= 100
    with torch.no_grad():
        model[0].weight[:, :2] /= 100
    return model, x


@pytest.mark.parametrize("precision", ["mxfp6-e2m3", "nvfp4"])
def test_what_is_rounded_to_zero_in_every_step_is_an_error_although_less_than_half_is_noise(precision: str) -> None:
    model, x = uneven()
    report = precheck.measure(model, x, precision=precision, loss=lambda out: out.square().mean())
    (error,) = report.errors
    assert (error.rule, error.module, error.limit) == ("coarse-recipe", "0", 0.1)
    given, weight = x, model[0].weight.detach()
    lost = precheck.survey(model, x, [precision]).places[0].share_lost(report.precision)
    assert error.measured == pytest.approx(lost, rel=1e-6)
    assert 0.1 < lost < 0.6
    assert f"rounds elements to zero that make up {lost:.0%} of its result, in every step; input channel" in error.message
    whole = float((given @ weight.t()).square().sum())
    small = float((given[:, 2:] @ weight[:, 2:].t()).square().sum())
    assert lost < small / whole  # of the small features at most all


@pytest.mark.parametrize("precision", ["mxfp8", "fp8-current", "fp8-block"])
def test_a_recipe_with_range_enough_holds_uneven_features(precision: str) -> None:
    model, x = uneven()
    assert not precheck.measure(model, x, precision=precision, loss=lambda out: out.square().mean()).errors
