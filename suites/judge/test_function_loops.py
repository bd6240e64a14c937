"""A loop of the user's that rounds its state in each turn: the result is wrong if later turns enlarge what is lost, and right if they forget it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import precheck

LOW = torch.bfloat16


def signal(turns: int) -> torch.Tensor:
    return torch.randn(16, turns, generator=torch.Generator().manual_seed(4))


def coefficients() -> tuple[float, float]:
    """Of a high pass far below the rate of the samples: its poles are near one."""
    turn = math.tan(math.pi * 0.004)
    below = 1 + math.sqrt(2) * turn + turn * turn
    return 2 * (turn * turn - 1) / below, (1 - math.sqrt(2) * turn + turn * turn) / below


def filtered(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    first, second = coefficients()
    one, two, out = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
    for each in x.unbind(-1):
        y = each + one
        one = (-2 * each - first * y + two).to(low).float()
        two = each - second * y
        out.append(y)
    return torch.stack(out, -1)


def averaged(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A mean that forgets: what a turn loses is smaller after each later one."""
    mean, out = torch.zeros_like(x[:, 0]), []
    for each in x.unbind(-1):
        mean = (0.7 * mean + 0.3 * each).to(low).float()
        out.append(mean)
    return torch.stack(out, -1)


def rounded_outside(x: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The filter with its state in float32, whose outputs are stored low."""
    return torch.stack([each.to(low) for each in filtered(x, torch.float32).unbind(-1)], -1).float()


def told(code: Callable[[torch.Tensor, torch.dtype], torch.Tensor], low: torch.dtype, turns: int = 96) -> list[str]:
    x = signal(turns)
    with precheck.watch() as report:
        kept = code(x, low) * 2
    del kept
    return [f"{error.rule}: {error.message}" for error in report.errors]


def test_a_filter_that_enlarges_what_each_turn_has_lost() -> None:
    (error,) = told(filtered, LOW)
    assert error.startswith("amplified-rounding: cast to bfloat16")
    assert "turns of a loop round to bfloat16 here" in error


@pytest.mark.parametrize("code", [averaged, rounded_outside])
def test_a_loop_that_forgets_what_each_turn_has_lost(code: Callable[[torch.Tensor, torch.dtype], torch.Tensor]) -> None:
    assert told(code, LOW) == []


def test_in_float32_the_filter_is_right() -> None:
    assert told(filtered, torch.float32) == []
