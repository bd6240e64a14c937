"""Small projects that use precheck, for running pytest inside pytest."""

from __future__ import annotations

from pathlib import Path

import pytest
from projects import FAKED, PREAMBLE, Project


@pytest.fixture(scope="session", autouse=True)
def all_imported(everything_imported: None) -> None:
    """For every test of this folder."""


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
