"""Models with weights of a tensor subclass are measured as they come: torchao's quantised ones, and its modules for training in float8.

The weights are the run's own copies, noise touches scales and no codes, and the user's weights are not touched.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck
from precheck.dense_parts import address, cast, composed, parts, with_values

quantization = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install -c constraints.txt -e '.[torchao]'")
CONFIGURATIONS = ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Int8DynamicActivationIntxWeightConfig", "IntxWeightOnlyConfig"]


class Small(nn.Module):
    """A residual block on quantised layers; `low_angles` computes positions in the format of the activations, which is a bug."""

    def __init__(self, *, low_angles: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm, self.low_angles = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64), low_angles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        angles = places.to(x.dtype) if self.low_angles else places.double()
        x = x + torch.sin(angles)[:, None].to(x.dtype)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def quantised(configuration: str, **options: Any) -> nn.Module:
    model = Small(**options)
    quantization.quantize_(model, getattr(quantization, configuration)())
    return model


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_quantised_model_passes_and_keeps_its_weights(configuration: str, precision: str) -> None:
    model = quantised(configuration)
    held = {name: parameter for name, parameter in model.named_parameters() if composed(parameter)}
    before = {name: {part: dense.clone() for part, dense in parts(parameter).items()} for name, parameter in held.items()}
    assert held
    report = precheck.measure(model, normal(32, 64), precision=precision)
    report.raise_for_errors()
    assert report.boundaries
    assert all(torch.equal(dense, before[name][part]) for name, parameter in held.items() for part, dense in parts(parameter).items())
    assert all(parameter is held[name] for name, parameter in model.named_parameters() if name in held)


@pytest.mark.parametrize("configuration", CONFIGURATIONS[:2])
def test_a_bug_beside_quantised_layers_is_found(configuration: str) -> None:
    report = precheck.measure(quantised(configuration, low_angles=True), normal(400, 64), precision="bf16-true")
    assert report.errors
    assert "by integer-rounding" in report.summary()


def test_a_model_that_refuses_float64_is_not_judged_under_float32() -> None:
    report = precheck.measure(quantised("Int8DynamicActivationInt8WeightConfig"), normal(8, 64), precision="32-true")
    told = "nothing was judged under 32-true: the model does not run in float64 (Unsupported input dtype: torch.float64; up.weight is of class"
    assert report.summary().startswith(told)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_training_modules_pass_and_their_gradients_are_judged(recipe: str) -> None:
    float8 = pytest.importorskip("torchao.float8")
    if recipe == "rowwise" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        pytest.skip("up to torch 2.11 a CPU multiplies float8 tensors with one scale each alone")
    model = float8.convert_to_float8_training(Small(), config=float8.Float8LinearConfig.from_recipe_name(recipe))
    report = precheck.measure(model, normal(64, 64), precision="bf16-mixed", loss=lambda out: out.float().square().mean())
    report.raise_for_errors()
    assert any(row.kind == "parameter-gradient" for row in report.boundaries)


def test_a_weight_that_has_no_other_format_is_refused_in_one_sentence() -> None:
    formats = pytest.importorskip("torchao.prototype.mx_formats")
    model = nn.Sequential(nn.Linear(64, 64, bias=False)).bfloat16()
    quantization.quantize_(model, formats.NVFP4WeightOnlyConfig())
    told = r"0\.weight is of class NVFP4Tensor, which may know one format alone: precheck\.quantised\(original, model, inputs\) judges"
    with pytest.raises(TypeError, match=told):
        precheck.measure(model, normal(8, 64).bfloat16(), precision="bf16-true")


def test_noise_on_a_quantised_weight_changes_its_scales_and_leaves_its_codes() -> None:
    weight = quantised("Int8WeightOnlyConfig").up.weight
    noisy = parts(with_values(weight, lambda values: values * 1.5))
    own = parts(weight)
    assert torch.equal(noisy["qdata"], own["qdata"])
    assert torch.equal(noisy["scale"], own["scale"] * 1.5)
    assert noisy["qdata"].data_ptr() != own["qdata"].data_ptr()
    assert address(weight) == own["qdata"].data_ptr()
    assert parts(cast(weight, torch.bfloat16))["qdata"].data_ptr() != own["qdata"].data_ptr()
