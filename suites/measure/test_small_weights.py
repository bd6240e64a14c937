"""Weights that float16 has as subnormal numbers keep fewer digits: that is its rounding. Those that it loses are an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck

CLASSES = torch.arange(64) % 10


class SmallHead(nn.Module):
    """Its head's weights are of that size, as where an initialisation keeps a new head near zero. Its scores are not."""

    def __init__(self, size: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.body, self.head, self.scale = nn.Linear(32, 64), nn.Linear(64, 10, bias=False), 0.1 / size
        with torch.no_grad():
            self.body.weight.normal_(std=0.1, generator=generator)
            self.body.bias.zero_()
            self.head.weight.normal_(std=size, generator=generator)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(functional.relu(self.body(values))).float() * self.scale
        return result


@pytest.mark.parametrize(("size", "rules"), [(3e-6, []), (1e-6, ["underflow"])])
def test_small_weights(size: float, rules: list[str]) -> None:
    """Gradients are off by 0.6% and by 1.8%. Weights of a normal size are off by 0.02%."""
    values = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
    report = precheck.measure(SmallHead(size), values, precision="16-mixed", loss=lambda scores: functional.cross_entropy(scores, CLASSES))
    assert [finding.rule for finding in report.errors] == rules
