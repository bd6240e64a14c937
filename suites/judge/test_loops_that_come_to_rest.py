"""Questions whether a loop has come to rest, which chance may answer."""

from __future__ import annotations

import pytest
import torch

import precheck

LOW = torch.bfloat16


def numbers(seed: int) -> torch.Tensor:
    return torch.rand(64, generator=torch.Generator().manual_seed(seed)) * 0.6 + 0.2


def rested(x: torch.Tensor) -> torch.Tensor:
    """The sum of a series for each element, which is held where it no longer moves. In bfloat16 it moves by roundings."""
    value, done = torch.full_like(x, torch.nan), torch.zeros_like(x, dtype=torch.bool)
    total, term = torch.zeros_like(x), torch.ones_like(x)
    for count in range(60):
        total, term = total + term, term * x
        new = torch.tanh(total * (1 - x))
        now = ((new - value).abs() < 1e-6) & ~done & (count >= 2)
        value, done = torch.where(done, value, new), done | now
    return value


def compared(x: torch.Tensor) -> torch.Tensor:
    """The same difference of neighbours in a series, but of two functions in one iteration, whose sign chooses."""
    found = torch.zeros_like(x)
    for count in range(1, 20):
        difference = torch.tanh(x * count / 20) - torch.tanh(x * count / 20 * (1 + 2.0**-9))
        found = found + torch.where(difference < -1e-4, 1.0, -1.0)
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whether_a_loop_has_come_to_rest_may_be_answered_by_chance(seed: int) -> None:
    x = numbers(seed)
    with precheck.watch() as report:
        low = rested(x.to(LOW)).float()
    assert not report.errors, report.summary()
    assert float((low - rested(x)).norm() / rested(x).norm()) < 4 * 2.0**-8


def test_a_choice_by_chance_in_a_loop_is_told() -> None:
    with precheck.watch() as report:
        compared(numbers(0).to(LOW))
    assert [finding.rule for finding in report.errors] == ["cancellation"], report.summary()
