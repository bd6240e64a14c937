"""torchao's configurations as precisions: what they say is what is carried out, and what torchao's own layers make; others are refused."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.formats import E4M3FN, mx
from precheck.precisions import PrecisionError, resolve
from precheck.recipes import RECIPES, quantising
from precheck.recipes.blocks import Blocks
from precheck.recipes.products import RecipeProducts
from precheck.recipes.recipe import Quantiser, Recipe

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


def integers(**options: Any) -> Any:
    return torchao.IntxWeightOnlyConfig(granularity=torchao.PerGroup(32), **options)


def blocks(mode: str) -> Any:
    emulated = pytest.importorskip("torchao.quantization.quantize_.common").KernelPreference.EMULATED
    return formats.MXDynamicActivationMXWeightConfig(scaling_mode=formats.ScaleCalculationMode[mode], kernel_preference=emulated)


ASYMMETRIC = torchao.MappingType.ASYMMETRIC


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        (lambda: integers(weight_dtype=torch.int3, mapping_type=ASYMMETRIC), torch.float32),
        (lambda: integers(weight_dtype=torch.int5), torch.float32),
        (lambda: torchao.Int8DynamicActivationInt8WeightConfig(act_mapping_type=ASYMMETRIC), torch.float32),
        *((lambda mode=mode: blocks(mode), torch.bfloat16) for mode in ("FLOOR", "EVEN")),
    ],
    ids=["int3", "int5", "zero points", "floor", "even"],
)
def test_torchaos_layer_makes_what_its_options_make_here_and_not_what_the_defaults_make(made: Any, dtype: torch.dtype) -> None:
    configuration = made()
    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(64, 32)).to(dtype)
    layer, x = copy.deepcopy(own[0]), (normal(16, 64) + 1).to(dtype)
    torchao.quantize_(own, configuration)
    with torch.no_grad():
        with RecipeProducts(recipe(configuration)):
            followed = layer(x)
        with RecipeProducts(RECIPES[type(configuration).__name__]):
            usual = layer(x)
        wanted = own(x)
    torch.testing.assert_close(followed, wanted, rtol=1e-6, atol=1e-6)
    assert (usual - wanted).norm() > 5e-3 * wanted.norm()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MXFP8TrainingOpConfig", {"scale_calculation_mode": "FLOOR"}), ("MXFP8TrainingOpConfig", {"wgrad_with_hp": True}),
        ("Float8TrainingOpConfig", {}), ("Float8TrainingOpConfig", {"float8_linear_recipe": "rowwise_with_gw_hp"}),
    ],
)  # fmt: skip
def test_three_products_of_torchaos_training_are_those_here(name: str, options: dict[str, Any]) -> None:
    config = pytest.importorskip("torchao.prototype.moe_training.config")
    if "scale_calculation_mode" in options:
        options = {"scale_calculation_mode": formats.ScaleCalculationMode[options["scale_calculation_mode"]]}
    if name.startswith("MX"):
        options = {"kernel_preference": pytest.importorskip("torchao.quantization.quantize_.common").KernelPreference.EMULATED} | options
    configuration = getattr(config, name)(**options)
    torch.manual_seed(0)
    own, upstream = nn.Sequential(nn.Linear(64, 32, bias=False)).bfloat16(), normal(64, 32, seed=2).bfloat16()
    layer, given = copy.deepcopy(own[0]), [normal(64, 64).bfloat16().requires_grad_() for _ in range(2)]
    torchao.quantize_(own, configuration)
    wanted = own(given[0])
    wanted.backward(upstream)
    with RecipeProducts(recipe(configuration)):
        made = layer(given[1])
        made.backward(upstream)
    for ours, theirs in ((made, wanted), (given[1].grad, given[0].grad), (layer.weight.grad, own[0].weight.grad)):
        torch.testing.assert_close(ours, theirs, rtol=2**-8, atol=0)


def test_options_of_float8_training_are_followed() -> None:
    float8 = pytest.importorskip("torchao.float8")
    powers = recipe(float8.Float8LinearConfig(round_scales_to_power_of_2=True))
    assert {how.scale for how in powers.quantisers} == {"power of two"}
    nearest = float8.Float8LinearConfig(cast_config_grad_output=float8.CastConfig(target_dtype=torch.float8_e4m3fn))
    assert {how.element for how in recipe(nearest).quantisers} == {E4M3FN}


@pytest.mark.parametrize("mode", ["floor", "even", "ceil", "rceil"])
def test_blocks_under_a_scale_that_is_rounded_down_clip(mode: Any) -> None:
    how, x = Quantiser(E4M3FN, "mx", 1, 32, mode=mode), normal(64, 64)
    counted = Blocks()
    counted.add(x, quantising.rounded(x, how), how, None)
    elements, biased = mx.quantised(x, E4M3FN, mode=mode)
    beyond = x.abs() > mx.dequantised(torch.full_like(elements, E4M3FN.max), biased) * (1 + E4M3FN.unit_roundoff)
    assert counted.clipped == int(beyond.sum())
    assert counted.clipping == int(beyond.view(-1, 32).any(1).sum())
    assert bool(counted.clipped) is (mode in ("floor", "even"))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: integers(mapping_type=torchao.MappingType.SYMMETRIC_NO_CLIPPING_ERR), "mapping_type=<MappingType.SYMMETRIC_NO_CLIPPING_ERR"),
        (lambda: integers(scale_dtype=torch.bfloat16), "scale_dtype=torch.bfloat16 of IntxWeightOnlyConfig: no recipe here follows this option"),
        (lambda: torchao.Int8DynamicActivationInt8WeightConfig(reduce_range=True), "reduce_range=True of Int8Dynamic"),
        (lambda: torchao.Float8DynamicActivationFloat8WeightConfig(activation_value_ub=3.0), "activation_value_ub=3.0 of Float8Dynamic"),
        (lambda: formats.NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=False), "use_dynamic_per_tensor_scale=False of NVFP4WeightOnly"),
    ],
)  # fmt: skip
def test_what_no_recipe_here_carries_out_is_refused_by_its_option(made: Any, said: str) -> None:
    with pytest.raises(PrecisionError, match=said):
        resolve(made())
