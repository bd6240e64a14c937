"""The scoreboard: what each test of the zoo has seen of its bug or control, added up and printed when the session ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scoreboard import Scoreboard

BOARD = pytest.StashKey[Scoreboard]()
PROPERTY = "zoo"


class Collector:
    """Reads what tests noted off their reports, which is all that comes back from an xdist worker."""

    def __init__(self, board: Scoreboard) -> None:
        self.board = board

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, facts in report.user_properties if report.when == "call" else ():
            if name == PROPERTY and isinstance(facts, dict):
                self.board.add(facts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--zoo-rivals", action="store_true", help="run what a user has without precheck on the zoo's cases, too")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    rivals = collection_path.name == "test_rivals.py" and not config.getoption("zoo_rivals", False)
    return True if rivals else None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BOARD] = Scoreboard()
    config.pluginmanager.register(Collector(config.stash[BOARD]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[BOARD].lines()
    if lines:
        terminalreporter.section("the zoo")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def score(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Notes facts of a case: of a `Bug`, or of anything else with a `name` and a `mechanism`."""

    def note(case: Any, **facts: bool) -> None:
        record_property(PROPERTY, {"name": case.name, "mechanism": case.mechanism, "link": getattr(case, "link", ""), **facts})

    return note
