"""Small projects that use precheck, for running pytest inside pytest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import precheck
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of

PREAMBLE = '''
import pytest
import torch

import precheck


def make(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def data():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def loss(out):
    return out.float().square().mean()


class Overflows(torch.nn.Module):
    """Healthy in bfloat16, out of range in float16."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.wide(x * 1e5) / 1e5


'''

HEALTHY = '''
def test_healthy(check_precision):
    check_precision(make(), data(), loss=loss)
'''

OVERFLOWS = '''
def test_overflows(check_precision):
    torch.manual_seed(0)
    check_precision(Overflows(), data())
'''

Project = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def everything_imported() -> None:
    """pytester forgets modules that a run inside it imports, and parts of torch, which loads some late, cannot be imported twice."""
    model = torch.nn.Linear(2, 2)
    record(job_of(model, torch.ones(1, 2), loss=lambda out: out.sum(), optimizer=lambda parameters: torch.optim.AdamW(parameters)))
    for name in ("bf16-mixed", "16-mixed", "fp8", "64"):
        precheck.measure(model, torch.ones(1, 2), precision=name, loss=lambda out: out.sum())


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """project(code, ..., record=True): a test file of these pieces, with its goldens recorded. Returns the golden folder."""

    def made(*code: str, record: bool = True, name: str = "test_it") -> Path:
        pytester.makepyfile(**{name: PREAMBLE + "\n".join(code)})
        if record:
            outcome = pytester.runpytest_inprocess("--golden-refresh=missing", "-q")
            assert outcome.ret == 0, outcome.stdout.str()
        return pytester.path / "golden"

    return made
