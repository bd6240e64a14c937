"""Steps that a loss scale makes go again: the reference, which takes each once, follows the decisions of the last try."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import precheck


def noisy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_masks_are_those_of_the_step_that_counts(size: float) -> None:
    model, x = noisy(), torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    target = size * x.sum(1, keepdim=True)
    report = precheck.measure(
        model, x, precision="16-mixed", loss=lambda out: 10 * (out.float() - target).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), steps=3,
    )  # fmt: skip
    assert report.scaler["skipped"] >= 1
    assert report.errors == []
