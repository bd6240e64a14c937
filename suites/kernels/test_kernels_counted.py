"""The class of a fault does not depend on the machine's speed."""

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
