"""What long work is doing, in one line that is rewritten: below the line that pytest is writing, on a terminal only.

The line is written past pytest's own writer, which counts columns, and moves nothing of what is there. It goes one line down, writes, and comes
back by relative steps, which hold on the last line of a screen too. It is taken away before pytest writes.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from precheck.observe.listeners import telling
from precheck.plugin.xdist import is_worker
from precheck.words import one_line


def register(config: pytest.Config) -> None:
    """Where someone looks on: a terminal that obeys, not -q, no CI, none of the terminal taken by captured output or live logs."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if type(reporter) is not TerminalReporter or capture is None or is_worker(config) or config.get_verbosity() < 0:
        return
    live = config.getini("log_cli") or config.getoption("log_cli_level") is not None
    if config.getoption("capture") not in ("fd", "sys") or live or not _obeys(reporter):
        return
    config.pluginmanager.register(Progress(reporter, capture), "precheck-progress")


def _obeys(reporter: TerminalReporter) -> bool:
    """Whether it is a terminal that understands where to go, with someone in front of it."""
    unattended = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))  # as pytest tells it
    return os.name == "posix" and bool(reporter.isatty) and not unattended and os.environ.get("TERM", "dumb") not in ("", "dumb")


class Progress:
    """Hooks that put the line up and take it away."""

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
        """Of the test that runs; "" takes the line away. Nothing while the test itself writes to the terminal (`capsys.disabled()`)."""
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
        with self.capture.global_and_fixture_disabled():
            columns = os.get_terminal_size(file.fileno()).columns  # while output is captured, its file number is not the terminal's
            file.write(f"\n\r\x1b[K{fitting(text, columns - 1)}\x1b[1A\r{back}")
            file.flush()


def fitting(text: str, columns: int) -> str:
    """As much of it as there are columns for; the end is left out. Wide characters take two, those that join others none."""
    room = columns
    for place, sign in enumerate(text):
        room -= 0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if room < 0:
            return text[: max(0, place - 1)] + "…" if columns > 0 else ""
    return text
