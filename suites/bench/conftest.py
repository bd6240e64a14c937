"""Where the GPU suites run: full size and timed on a CUDA device, small and once on a CPU, where they are tests of the same code."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from scale import ON_CUDA
from sized import SHAPES


@pytest.fixture
def gpu_benchmark(gpu_benchmark: Any, benchmark: Any) -> Any:
    """precheck's own; on a CPU as under --benchmark-disable, since nobody will read the times."""
    benchmark.disabled = benchmark.disabled or not ON_CUDA
    return gpu_benchmark


@pytest.fixture
def device(precision_device: torch.device) -> torch.device:
    return precision_device


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of no millions."""
    monkeypatch.setitem(SHAPES, 0, (16, 1))
    monkeypatch.setattr("sized.LENGTH", 32)
    monkeypatch.setattr("sized.VOCABULARY", 64)


@pytest.fixture
def size(request: pytest.FixtureRequest) -> int:
    """The millions of parameters that PRECHECK_BENCH names, for one who wants the figure; else none, since no test is decided by a clock."""
    if "PRECHECK_BENCH" not in os.environ:
        request.getfixturevalue("tiny")
    return int(os.environ.get("PRECHECK_BENCH", "0"))
