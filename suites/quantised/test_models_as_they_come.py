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
from precheck.torch_support.dense_parts import address, cast, composed, parts, with_values

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


NARROW = ["MXDynamicActivationMXWeightConfig", "NVFP4WeightOnlyConfig"]


def narrow(configuration: str, **options: Any) -> nn.Module:
    """A model whose weights are torchao's blocks. They are made of bfloat16 weights alone."""
    formats = pytest.importorskip("torchao.prototype.mx_formats")
    given = {"kernel_preference": emulated()} if configuration.startswith("MX") else {}
    model = Small(**options).bfloat16()
    quantization.quantize_(model, getattr(formats, configuration)(**given))
    return model


def emulated() -> Any:
    return pytest.importorskip("torchao.quantization.quantize_.common").KernelPreference.EMULATED


@pytest.mark.parametrize("configuration", NARROW)
def test_weights_in_blocks_run_in_float32_beside(configuration: str) -> None:
    """Their `to(dtype)` leaves blocks as they are, and in some kinds the format of the results too. The reference is in float32 all the same."""
    model = narrow(configuration)
    assert cast(model.up.weight, torch.float32).dtype is torch.float32
    report = precheck.measure(model, normal(32, 64).bfloat16(), precision="bf16-true")
    report.raise_for_errors()
    assert 0 < max(row.relative for row in report.boundaries) < 0.1
    assert model.up.weight.dtype is torch.bfloat16
    assert precheck.measure(narrow(configuration, low_angles=True), normal(400, 64).bfloat16(), precision="bf16-true").errors


@pytest.mark.parametrize("recipe", ["MXFP8TrainingOpConfig", "Float8TrainingOpConfig"])
def test_weights_in_a_wrapper_are_trained_as_copies(recipe: str) -> None:
    training = pytest.importorskip("torchao.prototype.moe_training.config")

    def model(**options: Any) -> nn.Module:
        made = Small(**options).bfloat16()
        for linear in (made.up, made.down):
            linear.bias = None
        given = {"kernel_preference": emulated()} if recipe.startswith("MX") else {}
        quantization.quantize_(made, getattr(training, recipe)(**given), filter_fn=lambda module, _: isinstance(module, nn.Linear))
        return made

    def report(model: nn.Module) -> precheck.Report:
        return precheck.measure(
            model, normal(512, 64).bfloat16(), precision="bf16-true", loss=lambda out: out.float().square().mean(), steps=2,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        )  # fmt: skip

    mine = model()
    held = {name: (parameter, parameter._data, parameter._data.clone()) for name, parameter in mine.named_parameters() if composed(parameter)}
    assert list(held) == ["up.weight", "down.weight"]
    found = report(mine)
    found.raise_for_errors()
    assert {"up.weight", "down.weight"} <= {row.tensor for row in found.boundaries if row.kind == "parameter-gradient"}
    for name, (parameter, inner, before) in held.items():
        assert mine.get_parameter(name) is parameter
        assert parameter._data is inner
        assert torch.equal(inner, before)
    assert report(model(low_angles=True)).errors


def test_noise_on_a_quantised_weight_changes_its_scales_and_leaves_its_codes() -> None:
    weight = quantised("Int8WeightOnlyConfig").up.weight
    noisy = parts(with_values(weight, lambda values: values * 1.5))
    own = parts(weight)
    assert torch.equal(noisy["qdata"], own["qdata"])
    assert torch.equal(noisy["scale"], own["scale"] * 1.5)
    assert noisy["qdata"].data_ptr() != own["qdata"].data_ptr()
    assert address(weight) == own["qdata"].data_ptr()
    assert parts(cast(weight, torch.bfloat16))["qdata"].data_ptr() != own["qdata"].data_ptr()
