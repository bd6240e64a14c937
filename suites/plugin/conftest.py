"""Small projects that use precheck, for running pytest inside pytest."""

from __future__ import annotations

from pathlib import Path

import pytest
from projects import FAKED, PREAMBLE, Project

Recorded = dict[frozenset[tuple[str, bytes]], dict[str, bytes]]


@pytest.fixture(scope="session", autouse=True)
def all_imported(everything_imported: None) -> None:
    """For every test of this folder."""


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their relative path, without bytecode, which names the file that it was compiled from."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="session")
def recorded() -> Recorded:
    """What recording left behind, by the files that it was given: many tests begin with the same project."""
    return {}


@pytest.fixture
def project(pytester: pytest.Pytester, recorded: Recorded) -> Project:
    """project(code, ..., record=True): a test file of these pieces, with its goldens recorded. Returns the golden folder."""

    def made(*code: str, record: bool = True, name: str = "test_it") -> Path:
        pytester.makepyfile(**{name: PREAMBLE + "\n".join(code)})
        if record:
            given = frozenset(files(pytester.path).items())
            if given not in recorded:
                outcome = pytester.runpytest_inprocess("--golden-refresh=missing", "-q")
                assert outcome.ret == 0, outcome.stdout.str()
                recorded[given] = files(pytester.path)
            for place, content in recorded[given].items():
                path = pytester.path / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return pytester.path / "golden"

    return made


@pytest.fixture
def told(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose check_precision(r, {precision: [(severity, rule), ...]}) finds what it is told."""
    pytester.makeconftest(FAKED)
    return pytester
