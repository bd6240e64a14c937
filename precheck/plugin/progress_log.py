"""Writes a line about long work between pytest's own, at most one a minute, where the output is no terminal: in the log of CI."""

from __future__ import annotations

import sys
from collections.abc import Generator
from time import monotonic
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from precheck.observe.listeners import telling
from precheck.plugin.xdist import is_worker
from precheck.words import cut, one_line

EVERY = 60.0
"""Seconds between two lines. Some CI services end a job that has written nothing for ten minutes, and a line for each run would fill the log."""


def register(config: pytest.Config) -> None:
    """Registers the hooks, but not with -qq, nor in workers of xdist, whose output nobody sees."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if type(reporter) is TerminalReporter and capture is not None and not is_worker(config) and config.get_verbosity() > -2:
        config.pluginmanager.register(ProgressLog(reporter, capture), "precheck-progress-log")


class ProgressLog:
    """The hooks that count tests and write the line."""

    def __init__(self, reporter: TerminalReporter, capture: Any) -> None:
        self.reporter, self.capture = reporter, capture
        self.begun = self.last = monotonic()
        self.nodeid, self.tests, self.number = "", 0, 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = len(session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.nodeid = item.nodeid
        self.number += 1
        with telling(self.write):
            result = yield
        return result

    def write(self, words: str) -> None:
        """Writes the line, unless the last one is too young, or the test itself writes to the terminal (`capsys.disabled()`)."""
        now = monotonic()
        if not words or now - self.last < EVERY or not self.capture._global_capturing.is_started():
            return
        self.last = now
        after = f"after {(now - self.begun) / 60:.0f} min, test {self.number} of {self.tests}"
        redirected = sys.stdout, sys.stderr  # perhaps by the test itself, which pytest knows nothing of when it captures again
        with self.capture.global_and_fixture_disabled():
            if self.reporter._tw.width_of_current_line:
                self.reporter.currentfspath = None  # so that pytest names the file again
                self.reporter._tw.line()
            self.reporter.write_line(f"precheck: {after}: {one_line(words)} in {cut(one_line(self.nodeid))}")
            self.reporter.flush()
        sys.stdout, sys.stderr = redirected
