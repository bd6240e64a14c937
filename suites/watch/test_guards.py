"""Guards: whether a spread is next to nothing is asked with a bound that the noise of float32 lies above and that of float64 below."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.findings import Finding

ROWS = torch.cat([torch.randn(1200, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.7]).expand(1200, 2)], 1)
NEW = ROWS[:50] + 0.05
Guard = Callable[[torch.Tensor], torch.Tensor]


def errors(guard: Guard, dtype: torch.dtype = torch.float32, rows: torch.Tensor = ROWS) -> list[Finding]:
    """Of columns that are standardised, two of which have been the same all the time, and saturate what comes next."""
    with precheck.watch(precision="32-true") as report:
        rows = rows.to(dtype)
        mean = rows.mean(0)
        spread = guard(((rows - mean) ** 2).mean(0).sqrt())
        kept = torch.tanh(((NEW.to(dtype) - mean) / spread).float())
    assert kept.isfinite().all()
    return report.errors


def written(bound: float) -> Guard:
    def guard(spread: torch.Tensor) -> torch.Tensor:
        spread[spread < bound] = 1.0
        return spread

    return guard


def chosen(bound: float) -> Guard:
    return lambda spread: torch.where(spread > bound, spread, 1.0)


@pytest.mark.parametrize("guard", [written(1e-12), chosen(1e-12)], ids=["written", "chosen"])
def test_noise_that_a_guard_lets_through(guard: Guard) -> None:
    first = errors(guard)[0]
    assert first.rule == "decision-flip"
    assert "test_guards.py:" in first.source
    assert ": this guard keeps out numbers up to 1e-12, but 2 of 5 numbers that pass it are rounding noise: one is " in first.message
    assert " here and 0 in the reference. aten.div.Tensor at " in first.message


@pytest.mark.parametrize("guard", [written(1e-5), chosen(1e-5)], ids=["written", "chosen"])
def test_a_guard_that_catches_it(guard: Guard) -> None:
    assert errors(guard) == []


def test_columns_in_float64() -> None:
    assert errors(written(1e-12), torch.float64) == []


def test_columns_that_vary() -> None:
    assert errors(written(1e-12), rows=ROWS + 0.3 * torch.randn(ROWS.shape, generator=torch.Generator().manual_seed(1))) == []
