"""Gradients of weights and biases: sums of errors that may go one way, of terms that are right to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.observe.job import Job
from precheck.precisions import PRECISIONS
from precheck.shared_runs.evidence import added_up, gathered


class Gated(nn.Module):
    """As in a conformer: a gate, a convolution and a batch norm, which takes a mean off all elements. Autograd takes that of the gradient off,
    rounded to bfloat16, and the gate's bias has the sum of what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.mix = nn.Conv1d(32, 64, 1), nn.Conv1d(32, 32, 7, padding=3, groups=32)
        self.batch_norm, self.back = nn.BatchNorm1d(32), nn.Conv1d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(functional.silu(self.batch_norm(self.mix(functional.glu(self.gate(x), 1)))))


def loss(output: torch.Tensor) -> torch.Tensor:
    targets = torch.randint(32, (6,), generator=torch.Generator().manual_seed(2))
    return functional.cross_entropy(output.float().mean(-1), targets)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_gate_before_a_batch_norm_is_healthy(seed: int) -> None:
    torch.manual_seed(seed)
    report = precheck.measure(Gated(), torch.randn(6, 32, 322), loss=loss, precision="bf16-true")
    assert report.errors == [], report.summary()


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


class WithItsOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Halved.apply(self.linear(x))  # type: ignore[no-any-return, no-untyped-call]


def test_whose_terms_they_are() -> None:
    model, precision = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), PRECISIONS["bf16-true"]
    job = Job(model, torch.randn(8, 4), lambda out: out.float().square().mean())
    assert added_up(job, gathered(job, precision, "ops"))["parameter-gradient:0.bias@1"] == ("gradient:0@1", "output:0@1")
    assert added_up(job, gathered(job, precision, "boundaries")) == {}  # what the sum's kernel makes of them, no op tells


def test_behind_a_backward_pass_of_the_user_s_own_nobody_knows() -> None:
    job = Job(WithItsOwn(), torch.randn(8, 4), lambda out: out.float().square().mean())
    assert added_up(job, gathered(job, PRECISIONS["bf16-true"], "ops")) == {}
