"""Small projects that use precheck, for running pytest inside pytest."""

from __future__ import annotations

from pathlib import Path

import hypothesis  # noqa: F401 -- its plugin imports it at the end of each run inside, slowly, unless it is there
import pytest
import torch
from projects import FAKED, PREAMBLE, Project

import precheck
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of


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


@pytest.fixture
def told(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose check_precision(r, {precision: [(severity, rule), ...]}) finds what it is told."""
    pytester.makeconftest(FAKED)
    return pytester
