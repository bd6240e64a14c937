"""Which module is named, where the code that calls a module has the fault, or a module's code that is not its forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
MEAN: dict[str, Any] = {"loss": lambda out: out.square().mean()}


class Part(nn.Module):
    """A branch. `fault`: what is wrong with its code."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.up, self.down = fault, nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor, time: float = 1.0) -> torch.Tensor:
        if self.fault == "writes to its input":
            x.mul_(0.5)
        return self.decode(self.encode(x.detach() if self.fault == "cuts its input off" else x) * time)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.up(x)
        return torch.tanh(made * 2 if self.fault == "doubles in a method" else made)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(x)  # type: ignore[no-any-return]


class Loops(nn.Module):
    """A part that is called three times. It holds a weight itself, as `model`'s part does. `fault`: what is wrong with its calls."""

    def __init__(self, fault: str = "", held: bool = False) -> None:
        super().__init__()
        self.fault, self.held, self.part, self.head = fault, held, Part(), nn.Linear(8, 3)
        self.steps: Any = nn.Parameter(torch.randn(3, 8)) if held else nn.Embedding(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(2 if self.fault == "too few calls" else 3):
            row = self.steps[step] if self.held else self.steps(torch.tensor(step))
            x = x + self.part(x + row, 0.5 if self.fault == "another number" and step else 0.5 + step)
            x = x.detach() if self.fault == "cut off between calls" and step == 1 else x
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["", "too few calls", "another number", "cut off between calls"])
def test_a_fault_in_the_calls_of_a_part(fault: str) -> None:
    torch.manual_seed(0)
    model, other = Loops(), Loops(fault, held=True)
    other.load_state_dict({name.replace("steps.weight", "steps"): value for name, value in model.state_dict().items()})
    report = precheck.compare(model, other, X, **MEAN)
    assert [each.module for each in report.errors[:1]] == ([""] if fault else [])


class Methods(nn.Module):
    """Three parts. Of the first the methods are called, of the last the forward pass, and of the second either."""

    def __init__(self, fault: str, called: bool) -> None:
        super().__init__()
        self.called, self.inside, self.one, self.two, self.three = called, nn.Linear(8, 8), Part(), Part(fault), Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        x = x + self.one.decode(self.one.encode(x))
        x = x + (self.two(x) if self.called else self.two.decode(self.two.encode(x)))
        return x + self.three(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", ["", "doubles in a method", "writes to its input", "cuts its input off"])
def test_a_fault_in_a_parts_own_code(fault: str) -> None:
    torch.manual_seed(0)
    model, other = (Methods(each, called="input" in fault) for each in ("", fault))
    other.load_state_dict(model.state_dict())
    report = precheck.compare(model, other, X, **MEAN)
    assert [each.module for each in report.errors[:1]] == (["two"] if fault else [])


@pytest.mark.parametrize("fault", ["", "the last rows are left out", "the last rows are cut off"])
def test_a_fault_in_a_loop_over_parts_of_a_batch(fault: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def whole(x: torch.Tensor) -> torch.Tensor:
        return net(x).square().sum()  # type: ignore[no-any-return]

    def parts(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for number, rows in enumerate(x.split(4)):
            out = net(rows[:1] if number and "left out" in fault else rows)
            total = total + (out.detach() if number and "cut off" in fault else out).square().sum()
        return total

    report = precheck.compare(whole, parts, X, loss=lambda out: out)
    assert [each.module for each in report.errors[:1]] == ([""] if fault else [])
