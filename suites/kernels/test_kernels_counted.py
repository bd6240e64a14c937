"""The class of a fault does not depend on the machine's speed, and numbers that cancel are told from sums in a low format."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from cases import need

import precheck


def _rules(candidate: Any, reference: Any, inputs: Any, trials: int = 120, **named: Any) -> list[str]:
    return [each.rule for each in precheck.compare_kernels(candidate, reference, inputs, trials=trials, **named).errors]


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _in_bfloat16(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = torch.zeros(len(x), dtype=torch.bfloat16)
    for column in x.unbind(1):
        total = total + column
    return total


def test_on_a_slow_machine_the_class_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"seconds": 0.0}

    def later() -> float:
        now["seconds"] += 100.0
        return now["seconds"]

    for clock in ("process_time", "monotonic", "thread_time", "perf_counter"):
        monkeypatch.setattr(time, clock, later)
    x = _normal(3, 200).bfloat16()
    assert _rules(_in_bfloat16, lambda x: x.float().sum(1).bfloat16(), x, gradients=False) == ["kernel-accumulation"]


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x.var(1, correction=0)


@pytest.mark.parametrize("columns", [6, 24])
def test_numbers_that_cancel_are_no_sum_in_a_low_format(columns: int) -> None:
    def from_squares(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        return torch.linalg.vecdot(x, x) / x.shape[1] - x.mean(1).square()

    def from_differences(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        return (x - x.mean(1, keepdim=True)).square().mean(1)

    x = _normal(4, columns) + 30
    assert _rules(from_squares, _spread, x, gradients=False) == ["kernel-rounding"]
    assert not _rules(from_differences, _spread, x, gradients=False)
