"""What the pages are looked at with."""

import sys
from pathlib import Path

import hypothesis  # noqa: F401 -- its plugin imports it at the end of each run inside, slowly, unless it is there
import pytest
import torch

import precheck

sys.path.append(str(Path(__file__).parents[1] / "report"))  # browser.py


@pytest.fixture(scope="session")
def everything_imported() -> None:
    """pytester forgets modules that a run inside it imports, and parts of torch, which loads some late, cannot be imported twice."""
    model = torch.nn.Linear(2, 2)
    for name in ("bf16-mixed", "16-mixed", "64"):
        precheck.measure(model, torch.ones(1, 2), precision=name, loss=lambda out: out.sum(), optimizer=lambda weights: torch.optim.AdamW(weights))
