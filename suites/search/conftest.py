"""What pytest run inside pytest must not be the first to import."""

from __future__ import annotations

import pytest
import torch
from hazards import BareSoftmax

import precheck
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of
from precheck.strategies import tensors


@pytest.fixture(scope="session", autouse=True)
def everything_imported() -> None:
    """pytester forgets modules that a run inside it imports, and parts of torch, which loads some late, cannot be imported twice."""
    model = torch.nn.Linear(2, 2)
    record(job_of(model, torch.ones(1, 2), loss=lambda out: out.sum()))
    for name in ("bf16-mixed", "16-mixed", "16-true", "32-true"):
        precheck.measure(model, torch.ones(1, 2), precision=name, loss=lambda out: out.sum())
    precheck.search(BareSoftmax(), tensors((1, 4), magnitude=(1.0, 16.0)), precision="16-true", most=20)
