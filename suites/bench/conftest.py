"""Where the GPU suites run: full size and timed on a CUDA device, small and once on a CPU, where they are tests of the same code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scale import ON_CUDA


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
