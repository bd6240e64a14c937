"""Copies of weights made without autograd: a bug where the weight wants a gradient, and nothing where it is frozen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck


def adapted(layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A backward pass through float32 adapters beside a layer in bfloat16."""
    torch.manual_seed(0)
    x, down, up = torch.ones(4, 8, dtype=torch.bfloat16), nn.Parameter(torch.randn(8, 2) / 8), nn.Parameter(torch.zeros(2, 8))
    (layer(x) + (x.float() @ down @ up).bfloat16()).float().square().sum().backward()


@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "frozen"])
def test_a_cached_copy(wanted: bool) -> None:
    weight = nn.Parameter(torch.randn(8, 8), requires_grad=wanted)
    with precheck.watch() as report:
        with torch.no_grad():
            low = weight.to(torch.bfloat16)
        adapted(lambda x: x @ low)
    assert [finding.rule for finding in report.findings] == ["missing-gradient"] * wanted


def test_an_average_of_weights_in_float32_is_no_use_of_them() -> None:
    """The pooler's weights are read where gradients are needed and get none, since the loss leaves it out. Averages have their float32 copies."""
    layer, pooler = (nn.Linear(8, 8).to(torch.bfloat16) for _ in range(2))
    parameters = [*layer.parameters(), *pooler.parameters()]
    averages = [each.detach().float() for each in parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    with precheck.watch() as report:
        for _ in range(3):
            hidden = layer(torch.ones(4, 8, dtype=torch.bfloat16))
            pooler(hidden)
            hidden.float().square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for average, each in zip(averages, parameters, strict=True):
                    average.lerp_(each.float(), 0.1)
    assert [finding.rule for finding in report.errors] == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "inside"])
def test_a_model_frozen_and_converted(before: bool) -> None:
    """Wherever it was frozen, and though it is gone when the block ends."""
    held = [nn.Linear(8, 8)]
    held[0].requires_grad_(not before)
    with precheck.watch() as report:
        model = held.pop()
        model.weight.t()
        model.to(torch.bfloat16)
        model.requires_grad_(False)
        adapted(model)
        del model
    assert report.findings == []
