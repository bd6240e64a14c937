"""Shows the progress of long work in one line below pytest's current line, on terminals only.

The line does not go through pytest's writer, which counts columns. The cursor moves one line down and back by relative steps, which also work on the
last line of a screen. The line is removed before pytest writes.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from precheck.observe.listeners import telling
from precheck.plugin.xdist import is_worker
from precheck.words import one_line


def register(config: pytest.Config) -> None:
    """Registers the hooks, but only on a terminal that understands the control sequences, and not with -q, in CI, with -s or with live logs."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if type(reporter) is not TerminalReporter or capture is None or is_worker(config) or config.get_verbosity() < 0:
        return
    live = config.getini("log_cli") or config.getoption("log_cli_level") is not None
    if config.getoption("capture") not in ("fd", "sys") or live or not _obeys(reporter):
        return
    config.pluginmanager.register(Progress(reporter, capture), "precheck-progress")


def _obeys(reporter: TerminalReporter) -> bool:
    """Whether the output is a terminal that understands control sequences, and not CI."""
    unattended = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))  # as pytest detects CI
    return os.name == "posix" and bool(reporter.isatty) and not unattended and os.environ.get("TERM", "dumb") not in ("", "dumb")


class Progress:
    """The hooks that show the line and remove it."""

    def __init__(self, reporter: TerminalReporter, capture: Any) -> None:
        self.writer: Any = reporter._tw
        self.capture = capture
        self.nodeid, self.shown = "", False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.nodeid = item.nodeid
        with telling(self.show):
            result = yield
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self.clear()

    def pytest_enter_pdb(self) -> None:
        self.clear()

    def pytest_keyboard_interrupt(self) -> None:
        self.clear()

    def show(self, words: str) -> None:
        """Shows `words` for the test that runs. "" removes the line. Does nothing while the test writes to the terminal (`capsys.disabled()`)."""
        if not self.capture._global_capturing.is_started():
            return
        if not words:
            self.clear()
            return
        self._below(one_line(f"{words} in {self.nodeid}"))
        self.shown = True

    def clear(self) -> None:
        if self.shown:
            self._below("")
            self.shown = False

    def _below(self, text: str) -> None:
        column, file = self.writer.width_of_current_line, self.writer._file
        back = f"\x1b[{column}C" if column else ""
        redirected = sys.stdout, sys.stderr  # perhaps by the test itself, which pytest knows nothing of when it captures again
        with self.capture.global_and_fixture_disabled():
            columns = os.get_terminal_size(file.fileno()).columns  # only here, since under capture the file is not the terminal
            file.write(f"\n\r\x1b[K{fitting(text, columns - 1)}\x1b[1A\r{back}")
            file.flush()
        sys.stdout, sys.stderr = redirected


def fitting(text: str, columns: int) -> str:
    """Cuts a text to a number of columns. Wide characters take two columns, combining characters none."""
    room = columns
    for place, sign in enumerate(text):
        room -= 0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if room < 0:
            return text[: max(0, place - 1)] + "…" if columns > 0 else ""
    return text
