"""Steps that a loss scale makes go again: the reference, which takes each once, follows the decisions of the last try."""

from __future__ import annotations

from typing import Any

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


class OncePerGradient(torch.optim.SGD):
    """An optimizer that takes each gradient once, as private training does: between two steps the loop has to clear them by `zero_grad`."""

    taken = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.taken = False

    def step(self, closure: Any = None) -> None:
        if self.taken:
            raise ValueError("gradients have not been cleared since the last step")
        self.taken = True
        super().step()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_gradients_are_cleared_by_the_optimizer_too(precision: str) -> None:
    report = precheck.measure(
        noisy(), torch.randn(32, 8, generator=torch.Generator().manual_seed(1)), precision=precision,
        loss=lambda out: out.float().square().mean(), optimizer=lambda parameters: OncePerGradient(parameters, lr=0.1), steps=3,
    )  # fmt: skip
    assert report.errors == []


def test_a_benchmark_clears_them_so_too() -> None:
    found = precheck.benchmark(
        noisy(), torch.randn(32, 8), precisions=["bf16-mixed"], loss=lambda out: out.float().square().mean(), min_rounds=2, max_time=0.1,
        optimizer=lambda parameters: OncePerGradient(parameters, lr=0.1),
    )  # fmt: skip
    assert len(found.rows) == 1
