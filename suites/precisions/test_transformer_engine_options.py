"""Transformer Engine's recipes as precisions: each option of theirs is followed, changes no number, or is refused.

The classes have the fields and defaults of transformer_engine.common.recipe, which needs a GPU to be installed.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pytest
import torch
from torch import nn

from precheck.formats import E4M3FN, E5M2, scaled
from precheck.precisions import PrecisionError, resolve
from precheck.recipes import RECIPES
from precheck.recipes.products import RecipeProducts
from precheck.recipes.recipe import PLAIN, Recipe


class Format(enum.Enum):
    E4M3 = (448, 448)
    E5M2 = (57344, 57344)
    HYBRID = (448, 57344)


@dataclasses.dataclass
class Common:
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None


@dataclasses.dataclass
class DelayedScaling(Common):
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None
    reduce_amax: bool = True


@dataclasses.dataclass
class Float8CurrentScaling(Common):
    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID


@dataclasses.dataclass
class MXFP8BlockScaling(Common):
    margin: int = 0
    fp8_format: Format = Format.E4M3


@dataclasses.dataclass
class Float8BlockScaling(Common):
    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1


@dataclasses.dataclass
class NVFP4BlockScaling(Common):
    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    row_scaled_activation: bool = False
    nvfp4_4over6: str = "none"
    nvfp4_4over6_e4m3_use_256: str = "all"
    fp8_format: Format = Format.E4M3


def recipe(given: Any) -> Recipe:
    found = resolve(given).gemm
    assert isinstance(found, Recipe)
    return found


@pytest.mark.parametrize("kind", [DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, Float8BlockScaling, NVFP4BlockScaling])
def test_defaults_are_the_recipe_of_that_name(kind: Any) -> None:
    assert recipe(kind()) == RECIPES[kind.__name__]
    high = recipe(kind(backward_override="high_precision")) if kind is not DelayedScaling else RECIPES["Int8WeightOnlyConfig"]
    assert high.input_gradient == high.weight_gradient == PLAIN


def test_formats_of_gradients() -> None:
    assert resolve(DelayedScaling(fp8_format=Format.E4M3)).name == "DelayedScaling-E4M3"
    assert recipe(Float8CurrentScaling(fp8_format=Format.E4M3)) == RECIPES["Float8CurrentScaling-E4M3"]
    for kind in (MXFP8BlockScaling, Float8BlockScaling):
        mixed = recipe(kind(fp8_format=Format.HYBRID))
        assert [how and how.element for how in (*mixed.forward, *mixed.weight_gradient)] == [E4M3FN, E4M3FN, E5M2, E4M3FN]


def test_scales() -> None:
    assert {how.scale for how in recipe(Float8CurrentScaling(use_power_2_scales=True)).quantisers} == {"power of two"}
    assert {how.scale for how in recipe(Float8BlockScaling(use_f32_scales=True)).quantisers} == {"float32"}
    turned = recipe(Float8BlockScaling(x_block_scaling_dim=2, w_block_scaling_dim=1))
    assert [how and how.across for how in (*turned.forward, *turned.weight_gradient)] == [128, 1, 1, 128]


def test_techniques_of_four_bits_can_be_left_out() -> None:
    plain = recipe(NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True)).quantisers
    assert not any(how.hadamard or how.stochastic or how.across != 1 for how in plain)
    assert [how.hadamard for how in recipe(NVFP4BlockScaling(disable_2d_quantization=True)).quantisers] == [0, 0, 0, 0, 16, 16]


def test_history_and_margin_of_delayed_scales() -> None:
    assert recipe(DelayedScaling(amax_history_len=16)).history == 16
    assert recipe(DelayedScaling(amax_history_len=16, amax_compute_algo="most_recent")).history == 1
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 16, bias=False), torch.randn(8, 32)
    with torch.no_grad(), RecipeProducts(recipe(DelayedScaling(margin=1, amax_history_len=1))) as products:
        layer(x)
        made = layer(2 * x)  # a margin of 1 has room for twice the greatest magnitude
    by = scaled.multipliers(2 * x.abs().amax().reshape(1, 1), E4M3FN)
    weight = scaled.multipliers(2 * layer.weight.detach().abs().amax().reshape(1, 1), E4M3FN)
    given, held = (scaled.dequantised(*scaled.quantised(each, E4M3FN, by=scale)) for each, scale in ((2 * x, by), (layer.weight.detach(), weight)))
    torch.testing.assert_close(made, given @ held.t(), rtol=1e-5, atol=1e-5)
    assert all(not told.lost for told in products.histories.told)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (DelayedScaling(amax_compute_algo=max), "amax_compute_algo=<built-in function max> of DelayedScaling: no recipe here follows this option"),
        (DelayedScaling(fp8_dpa=True), "fp8_dpa=True of DelayedScaling"),
        (MXFP8BlockScaling(margin=2), "margin=2 of MXFP8BlockScaling"),
        (Float8CurrentScaling(fp8_format=Format.E5M2), "fp8_format=<Format.E5M2"),
        (Float8BlockScaling(backward_override="dequantized"), "backward_override='dequantized' of Float8BlockScaling"),
        (NVFP4BlockScaling(nvfp4_4over6="weights"), "nvfp4_4over6='weights' of NVFP4BlockScaling"),
    ],
)  # fmt: skip
def test_an_option_that_no_recipe_follows_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(PrecisionError, match=said):
        resolve(given)
