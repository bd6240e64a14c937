"""torchao's configurations as precisions: what they say is what is carried out, and what torchao's own layers make; others are refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.precisions import PrecisionError, resolve
from precheck.recipes.products import RecipeProducts
from precheck.recipes.recipe import Recipe

torchao = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install -c constraints.txt -e '.[torchao]'")
formats = pytest.importorskip("torchao.prototype.mx_formats")
logging.disable(logging.WARNING)


def recipe(configuration: Any) -> Recipe:
    found = resolve(configuration).gemm
    assert isinstance(found, Recipe)
    return found


def test_float8_training_configurations_are_torchaos_recipes() -> None:
    config = pytest.importorskip("torchao.float8").Float8LinearConfig
    assert resolve(config()).name == "tensorwise"
    for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        assert resolve(config.from_recipe_name(name)).name == name


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: torchao.Float8WeightOnlyConfig(), [None, ("fp8-e4m3fn", 1, -1)]),
        (lambda: torchao.Float8DynamicActivationFloat8WeightConfig(), [("fp8-e4m3fn", -1, -1)] * 2),
        (lambda: torchao.Float8DynamicActivationFloat8WeightConfig(granularity=torchao.PerRow()), [("fp8-e4m3fn", 1, -1)] * 2),
        (lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32)), [None, ("int4", 1, 32)]),
        (lambda: torchao.Int8DynamicActivationIntxWeightConfig(), [("int8", 1, -1), ("int8", 1, 32)]),
        (lambda: formats.MXDynamicActivationMXWeightConfig(), [("fp8-e4m3fn", 1, 32)] * 2),
        (lambda: formats.NVFP4WeightOnlyConfig(), [None, ("fp4-e2m1", 1, 16)]),
        (lambda: formats.NVFP4DynamicActivationNVFP4WeightConfig(), [("fp4-e2m1", 1, 16)] * 2),
    ],
)  # fmt: skip
def test_a_configuration_of_inference_says_elements_and_scales(made: Any, said: list[Any]) -> None:
    configuration = made()
    forward = recipe(configuration).forward
    assert [each and (str(each.element), each.across, each.along) for each in forward] == said
    assert resolve(configuration).name == type(configuration).__name__


@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2])
def test_microscaling_layers_of_torchao_make_what_their_configuration_makes_here(element: torch.dtype) -> None:
    emulated = pytest.importorskip("torchao.quantization.quantize_.common").KernelPreference.EMULATED
    configuration = formats.MXDynamicActivationMXWeightConfig(activation_dtype=element, weight_dtype=element, kernel_preference=emulated)
    torch.manual_seed(0)
    layer = nn.Linear(64, 32).bfloat16()
    own, x = nn.Sequential(nn.Linear(64, 32).bfloat16()), normal(16, 64).bfloat16()
    own[0].load_state_dict(layer.state_dict())
    torchao.quantize_(own, configuration)
    with torch.no_grad(), RecipeProducts(recipe(configuration)):
        made = layer(x)
    torch.testing.assert_close(made, own(x), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2])
def test_a_layer_whose_inputs_are_in_eight_or_four_bits_is_rounding_and_a_wrong_product_is_not(element: torch.dtype) -> None:
    emulated = pytest.importorskip("torchao.quantization.quantize_.common").KernelPreference.EMULATED

    class Wrong(nn.Module):
        """Inputs of many tokens are off by an eighth: a kernel whose tile has the wrong scale."""

        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(x)
            return torch.where((x != 0).sum(-1, keepdim=True) > 1, made * 1.5, made)

    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).bfloat16()
    model, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).bfloat16(), normal(64, 64).bfloat16()
    model.load_state_dict(original.state_dict())
    configuration = formats.MXDynamicActivationMXWeightConfig(activation_dtype=element, weight_dtype=element, kernel_preference=emulated)
    torchao.quantize_(model, configuration)
    report = precheck.quantised(original, model, x)
    assert not report.findings
    assert [row["verdict"] for row in report.facts["quantised"]] == ["rounding", "rounding"]
    (error,) = precheck.quantised(original, nn.Sequential(model[0], model[1], Wrong(model[2])), x).errors
    assert error.module == "2"
    assert "the kernel, or the scales of its inputs, are wrong" in error.message


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int3), "torch.int3 is none of the formats here"),
        (lambda: formats.MXDynamicActivationMXWeightConfig(scaling_mode=formats.ScaleCalculationMode.FLOOR), "scaling_mode='floor' of MXDynamic"),
    ],
)  # fmt: skip
def test_what_no_recipe_here_carries_out_is_refused_by_its_option(made: Any, said: str) -> None:
    with pytest.raises(PrecisionError, match=said):
        resolve(made())
