"""A backward pass that the user writes works on gradients that carry the loss scale. Cutting them at a number, or adding one without it, is wrong."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report

LIMIT = 0.01


class CutBefore(torch.autograd.Function):
    """Half of the squared norm, with a gradient that is cut before the one that comes in is multiplied by."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square().sum() / 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.clamp(-LIMIT, LIMIT)


class CutAfter(CutBefore):
    """The same without a loss scale."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (gradient * x).clamp(-LIMIT, LIMIT)  # fault


class Pulled(torch.autograd.Function):
    """Returns its input, and pulls it towards zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient + 0.1 * x * gradient.abs().sum()


class Penalty(torch.autograd.Function):
    """The sum, with a pull towards zero on what it sums."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, gradient * 0.1 * x


class PenaltyUnscaled(Penalty):
    """The same without a loss scale."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x,) = ctx.saved_tensors
        return gradient, torch.square(0.3 * x) * x.sign()  # fault


class Cutting(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(24, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function.apply(self.inner(x).float())  # type: ignore[no-any-return, no-untyped-call]


class Penalised(Cutting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.inner(x).float()
        return self.function.apply(made.square().mean(), made)  # type: ignore[no-any-return, no-untyped-call]


def measured(model: nn.Module, precision: str = "16-mixed") -> Report:
    inputs = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))
    return precheck.measure(model, inputs, loss=lambda out: out, precision=precision)


def line(function: type) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(place for place, text in enumerate(lines) if text.rstrip().endswith("# fault"))


@pytest.mark.parametrize(("model", "fault", "said"), [
    (Cutting, CutAfter, "or compares it with one. The gradient is still multiplied by a loss scale of 65536"),
    (Penalised, PenaltyUnscaled, "that is not scaled, and it is added to one that is still multiplied by a loss scale of"),
])  # fmt: skip
def test_a_backward_pass_that_ignores_the_loss_scale_is_named(model: type[Cutting], fault: Any, said: str) -> None:
    torch.manual_seed(0)
    report = measured(model(fault))
    found = next(each for each in report.errors if "scaler-order" in (each.rule, each.cause_rule))
    assert found.source.endswith(f"test_scaled_gradients.py:{line(fault)}"), report.summary()
    assert said in report.summary()


@pytest.mark.parametrize(("model", "fault"), [(Cutting, CutAfter), (Penalised, PenaltyUnscaled)])
def test_without_a_loss_scale_it_is_right(model: type[Cutting], fault: Any) -> None:
    torch.manual_seed(0)
    assert not measured(model(fault), "bf16-mixed").errors


@pytest.mark.parametrize(("model", "right"), [(Cutting, CutBefore), (Cutting, Pulled), (Penalised, Penalty)])
def test_one_that_is_linear_in_the_gradient_passes(model: type[Cutting], right: Any) -> None:
    torch.manual_seed(0)
    net = model(right)
    loss = (lambda out: out.square().mean()) if right is Pulled else (lambda out: out)
    inputs = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))
    report = precheck.measure(net, inputs, loss=loss, precision="16-mixed")
    assert not report.errors, report.summary()
