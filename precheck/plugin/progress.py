"""Shows the progress of long work: on a terminal in one line below pytest's current line, elsewhere, as in the log of CI, by a line now and then.

The line on a terminal does not go through pytest's writer, which counts columns. The cursor moves one line down and back by relative steps, which
also work on the last line of a screen. The line is removed before pytest writes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Generator, Iterator
from time import monotonic
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from precheck.observe.listeners import telling
from precheck.plugin.results import is_worker
from precheck.plugin.settings import KEY
from precheck.words import cut, one_line

EVERY = 60.0
"""Seconds between two lines of a log. Some CI services end a job that has written nothing for ten minutes, and a line for each run would fill it."""


def register(config: pytest.Config) -> None:
    """Registers the hooks: on a terminal only if it understands the control sequences, and not with -q, in CI, with -s or with live logs. In a log
    not with -qq, nor in workers of xdist, whose output nobody sees, nor if nothing was asked of precheck."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if type(reporter) is not TerminalReporter or capture is None or is_worker(config):
        return
    if not reporter.isatty:
        settings = config.stash[KEY]
        if config.get_verbosity() > -2 and (settings.named or settings.refresh):
            config.pluginmanager.register(ProgressLog(reporter, capture), "precheck-progress-log")
        return
    live = config.getini("log_cli") or config.getoption("log_cli_level") is not None
    if config.get_verbosity() >= 0 and config.getoption("capture") in ("fd", "sys") and not live and _obeys():
        config.pluginmanager.register(Progress(reporter, capture), "precheck-progress")


def _obeys() -> bool:
    """Whether the terminal understands control sequences, and it is not CI's."""
    unattended = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))  # as pytest detects CI
    return os.name == "posix" and not unattended and os.environ.get("TERM", "dumb") not in ("", "dumb")


class _Progress:
    """Hears of the work in each test, the `number`-th of so many `tests`."""

    def __init__(self, reporter: TerminalReporter, capture: Any) -> None:
        self.reporter, self.capture, self.nodeid, self.number, self.tests = reporter, capture, "", 0, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.nodeid, self.number = item.nodeid, self.number + 1
        with telling(self.show):
            return (yield)

    def show(self, words: str) -> None:
        """Shows what is done for the test that runs. "" if it has ended."""
        raise NotImplementedError

    @property
    def hidden(self) -> bool:
        """Whether the test itself writes to the terminal (`capsys.disabled()`)."""
        return not self.capture._global_capturing.is_started()

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Inside the block, nothing captures what is written."""
        redirected = sys.stdout, sys.stderr  # perhaps by the test itself, which pytest knows nothing of when it captures again
        with self.capture.global_and_fixture_disabled():
            yield
        sys.stdout, sys.stderr = redirected


class Progress(_Progress):
    """The hooks that show the line and remove it."""

    shown = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self.clear()

    def pytest_enter_pdb(self) -> None:
        self.clear()

    def pytest_keyboard_interrupt(self) -> None:
        self.clear()

    def show(self, words: str) -> None:
        if self.hidden:
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
        column, file = self.reporter._tw.width_of_current_line, self.reporter._tw._file
        back = f"\x1b[{column}C" if column else ""
        with self.written():
            columns = os.get_terminal_size(file.fileno()).columns  # only here, since under capture the file is not the terminal
            file.write(f"\n\r\x1b[K{fitting(text, columns - 1)}\x1b[1A\r{back}")
            file.flush()


class ProgressLog(_Progress):
    """The hooks that count tests and write a line into a log, at most one in `EVERY` seconds."""

    def __init__(self, reporter: TerminalReporter, capture: Any) -> None:
        super().__init__(reporter, capture)
        self.begun = self.last = monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = len(session.items)

    def show(self, words: str) -> None:
        now = monotonic()
        if not words or now - self.last < EVERY or self.hidden:
            return
        self.last = now
        after = f"after {(now - self.begun) / 60:.0f} min, test {self.number} of {self.tests}"
        with self.written():
            if self.reporter._tw.width_of_current_line:
                self.reporter.currentfspath = None  # so that pytest names the file again
                self.reporter._tw.line()
            self.reporter.write_line(f"precheck: {after}: {one_line(words)} in {cut(one_line(self.nodeid))}")
            self.reporter.flush()


def fitting(text: str, columns: int) -> str:
    """Cuts a text to a number of columns. Wide characters take two columns, combining characters none."""
    room = columns
    for place, sign in enumerate(text):
        room -= 0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if room < 0:
            return text[: max(0, place - 1)] + "…" if columns > 0 else ""
    return text
