"""Forwards that take derivatives, map over examples, catch errors or were compiled: measured like any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report

PRECISIONS = ("bf16-mixed", "bf16-true", "16-mixed", "32-true")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(16, 16)


class OutputInside(Base):
    """A child with the name that the model's own result goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.a(x)) * 2


class Mapped(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.tanh(self.a(row)))(x) + torch.func.vmap(torch.func.grad(lambda row: self.b(row).sum()))(x)


class Derivative(Base):
    """A physics-informed net: the output's derivative by the input is part of the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        u = self.b(torch.tanh(self.a(x)))
        return u + torch.autograd.grad(u.sum(), x, create_graph=True)[0]


class Scripted(Base):
    def __init__(self) -> None:
        super().__init__()
        self.b = torch.jit.script(self.b)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class Recovering(Base):
    """A submodule raises, and its parent goes on without it."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = Broken()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.broken(x)  # type: ignore[no-any-return]
        except ArithmeticError:
            return self.b(self.a(x))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(self.inner(x).shape)


EXPECTED: dict[str, tuple[Callable[[], nn.Module], list[str], list[str]]] = {
    "vmap and functional gradients": (Mapped, ["output"], ["a.weight", "a.bias", "b.weight"]),
    "a derivative in the forward": (Derivative, ["a", "b", "output"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "a failure that is caught": (Recovering, ["broken.inner", "a", "b"], ["a.weight", "a.bias", "b.weight", "b.bias"]),
    "a child called output": (OutputInside, ["a", "output", "output[]"], ["a.weight", "a.bias", "output.weight", "output.bias"]),
}


def measured(model: nn.Module, precision: str, *, train: bool) -> Report:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    optimizer = (lambda params: torch.optim.SGD(params, lr=0.5)) if train and precision != "bf16-true" else None
    steps = 2 if optimizer else 1
    report = precheck.measure(
        model, x, precision=precision, loss=(lambda out: out.float().square().mean()) if train else None, optimizer=optimizer, steps=steps
    )
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    return report


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", EXPECTED)
def test_boundaries_are_where_modules_make_tensors(case: str, precision: str) -> None:
    build, outputs, gradients = EXPECTED[case]
    torch.manual_seed(0)
    report = measured(build(), precision, train=True)
    assert [row.tensor for row in report.boundaries if row.kind == "output"] == outputs
    assert [row.tensor for row in report.boundaries if row.kind == "parameter-gradient"] == gradients


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_scripted_part_has_no_boundaries_of_its_own(precision: str) -> None:
    """Its backward is torch's own affair: under float16 autocast TorchScript cannot differentiate a linear layer."""
    torch.manual_seed(0)
    report = measured(Scripted(), precision, train=False)
    assert [row.tensor for row in report.boundaries] == ["a", "output"]


class Additive(Base):
    """BERT's mask: the ones and zeros that it is given, less one, times -10000."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.a(x) @ self.b(x).transpose(1, 2) / 4 + (1.0 - mask)[:, None, :] * -1e4
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_mask_of_floats_is_as_exact_as_one_of_booleans(precision: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 8)
    mask[:, 5:] = 0
    report = precheck.measure(Additive(), (torch.randn(2, 8, 16), mask), loss=lambda out: out.square().mean(), precision=precision)
    assert report.findings == [], report.summary()
