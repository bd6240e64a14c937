"""torchao's healthy layers, trainings and optimizers on a CPU: a watched block that quantises and calls them has nothing to say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from float8_by_hand import normal
from torch import nn

import precheck

torchao = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install -c constraints.txt -e '.[torchao]'")
float8, optim = pytest.importorskip("torchao.float8"), pytest.importorskip("torchao.optim")
logging.disable(logging.WARNING)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128, bias=False), nn.SiLU(), nn.Linear(128, 64)
    return nn.Sequential(*layers).to(dtype)


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "int8": lambda: torchao.Int8WeightOnlyConfig(),
    "int8, inputs too": lambda: torchao.Int8DynamicActivationInt8WeightConfig(),
    "int4 in groups": lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32)),
    "int2 in groups": lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int2, granularity=torchao.PerGroup(32)),
    "int4, inputs in int8": lambda: torchao.Int8DynamicActivationIntxWeightConfig(),
    "float8": lambda: torchao.Float8WeightOnlyConfig(),
}


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_layers_that_are_quantised_in_the_block(configuration: Callable[[], Any]) -> None:
    with precheck.watch() as report:
        model = network(torch.bfloat16)
        torchao.quantize_(model, configuration())
        model(normal(16, 128).bfloat16())
    assert not report.findings
    assert report.facts["quantisers"]


def trained(model: nn.Module, optimizer: Callable[..., Any]) -> precheck.Report:
    with precheck.watch() as report:
        steps = optimizer(model.parameters(), 1e-3)
        for _ in range(2):
            steps.zero_grad()
            model(normal(16, 128)).square().mean().backward()
            steps.step()
    return report


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_trainings_in_float8(recipe: str) -> None:
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    emulated = float8.Float8LinearConfig(**{**vars(config), "emulate": True})
    report = trained(float8.convert_to_float8_training(network(torch.float32), config=emulated), torch.optim.AdamW)
    assert not report.findings
    assert report.facts["quantisers"]


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_optimizers_whose_moments_are_quantised(name: str) -> None:
    assert not trained(network(torch.float32), getattr(optim, name)).findings
