"""What is blamed for an amplified error: the rounding that makes it, and not what is off most before it is amplified."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import precheck


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def line_of_places() -> torch.Tensor:
    return torch.linspace(0, 1, 32)[:, None]


def bend(step: float) -> torch.Tensor:
    """The second derivative of a network, by differences."""
    torch.manual_seed(4611)
    x = line_of_places()
    network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return (network(x + step) - 2 * network(x) + network(x - step)) / step**2


def fitted(centred: bool) -> torch.Tensor:
    """Signals without what one quantity does to them, by normal equations. The signals are further off than the matrix is."""
    x = 9000 + 6 * normal(64, 1)
    signals = (x - 9000) / 2 + normal(64, 4, seed=1)
    design = torch.cat([torch.ones(64, 1), x - x.mean() if centred else x], 1)
    square = design.T @ design
    return signals - design @ torch.linalg.solve(square, design.T @ signals)


@pytest.mark.parametrize(("program", "bad", "good", "rule", "text"), [
    (bend, 1e-4, 0.1, "cancellation", "return (network(x + step)"),  # a module is no wider than its parameters, however wide the places are
    (fitted, False, True, "amplified-rounding", "square = design.T @ design"),
])  # fmt: skip
def test_what_makes_the_error_is_told(program: Any, bad: Any, good: Any, rule: str, text: str) -> None:
    with precheck.watch(precision="32-true") as report:
        kept = program(bad)
    with precheck.watch(precision="32-true") as mended:
        kept = program(good)
    (told,) = report.errors
    lines, first = inspect.getsourcelines(program)
    place = int(told.source.rpartition(":")[2]) - first
    assert 0 <= place < len(lines), report.summary()
    assert (told.rule, text in lines[place]) == (rule, True), report.summary()
    assert not mended.errors, kept
