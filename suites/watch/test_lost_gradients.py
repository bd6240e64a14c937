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
