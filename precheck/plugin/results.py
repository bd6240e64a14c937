"""Collects the results of a session's checks as plain data. xdist's workers send them with their test reports to the controller, which writes the
summary, and at their end what they have collected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.plugin.naming import first_call, shown
from precheck.plugin.settings import Settings
from precheck.words import counted

if TYPE_CHECKING:
    from precheck.plugin.known import KnownFailures


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Check:
    """A call of a checking fixture or a block of watch_precision: its verdict with an entry, a refreshed golden, or an error."""

    nodeid: str
    golden: str
    precision: str
    failed: bool = False
    refreshed: str = ""
    changes: list[str] = dataclasses.field(default_factory=list)
    rules: list[str] = dataclasses.field(default_factory=list)
    allowed: list[str] = dataclasses.field(default_factory=list)
    tolerated: dict[str, str] = dataclasses.field(default_factory=dict)  # rules that do not fail this check, and why
    entry: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    error: str = ""
    line: int = 0  # the line of the test
    again: str = ""  # the command that makes this check again
    alone: str = ""  # the node id, if the check needs no golden and has none
    excused: list[str] = dataclasses.field(default_factory=list)  # the known failures that excuse it
    known: dict[str, Any] | None = None  # data for the file of known failures
    warnings: list[str] = dataclasses.field(default_factory=list)
    not_needed: dict[str, str] = dataclasses.field(default_factory=dict)  # rules of allow= that were not needed, and their reasons
    watched: bool = False  # it has no golden, and `golden` is only a name for it
    seconds: float = 0.0  # until its verdict
    parts: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds of each part of its work, by the part's name
    unchanged: str = ""  # the day on which it passed, if it was not judged again since nothing has changed
    does_not_run: bool = False  # it raises under this precision and not in float32; `error` says where

    @property
    def passed(self) -> bool:
        return not (self.failed or self.error or self.excused or self.refreshed)


CHECKS = pytest.StashKey[list[Check]]()
KNOWN: pytest.StashKey[KnownFailures | None] = pytest.StashKey()


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ruling:
    """The effect of known failures on a check: those that excuse it, or how it is worse, and data for their file."""

    excused: tuple[str, ...] = ()
    worse: str = ""
    told: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Results:
    """The checks of a session, the goldens that belong to its tests, and the reasons why it is not a complete run."""

    settings: Settings
    root: Path
    checks: list[Check] = dataclasses.field(default_factory=list)
    failed: set[str] = dataclasses.field(default_factory=set)
    passed: set[str] = dataclasses.field(default_factory=set)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # tests that did not run, with the beginning of their goldens' paths
    collected: bool = False
    expected: dict[str, str] = dataclasses.field(default_factory=dict)  # the node id of each collected test, by its golden
    watched: dict[str, str] = dataclasses.field(default_factory=dict)  # the same for tests without goldens
    ignored: list[str] = dataclasses.field(default_factory=list)  # folders of goldens whose tests pytest ignores
    partial: list[str] = dataclasses.field(default_factory=list)  # why the run is not complete, so that unused goldens are unknown
    unused: list[Path] = dataclasses.field(default_factory=list)
    known: list[str] = dataclasses.field(default_factory=list)  # lines on known failures
    trouble: list[str] = dataclasses.field(default_factory=list)  # why the session fails although its tests pass

    def collection(self) -> dict[str, Any]:
        """The data that a worker sends to its controller."""
        return {"expected": self.expected, "watched": self.watched, "ignored": self.ignored, "partial": self.partial}

    def take_over(self, found: dict[str, Any]) -> None:
        """Takes over the `collection` of a worker."""
        self.collected = True
        self.expected |= found["expected"]
        self.watched |= found["watched"]
        self.ignored += found["ignored"]
        self.partial += found["partial"]

    def add(self, told: dict[str, Any], *, passed: bool, skipped: bool) -> None:
        """Reads a test report. `told` is the data that the plugin put on it."""
        self.checks += [Check(**check) for check in told["checks"]]
        if passed:
            self.passed.add(told["nodeid"])
        elif skipped and not told["restricted"]:
            self.skipped[told["nodeid"]] = told["family"]

    def find_unused(self, files: Iterable[Path], folders: Iterable[Path]) -> None:
        """Finds unused goldens among `files` below `folders`: those of no test, and surplus ones of a passed test that makes fewer checks."""
        used = {check.golden for check in self.checks if not check.watched}
        kept = tuple(self.skipped.values())
        for path in files:
            if str(path) in used or str(path).startswith(kept) or not any(path.is_relative_to(folder) for folder in folders):
                continue
            if any(path.is_relative_to(folder) for folder in self.ignored):
                continue
            owner = self.expected.get(str(path)) or self.expected.get(str(first_call(path)))
            if owner is None or (owner in self.passed and str(path) not in self.expected):
                self.unused.append(path)

    def close(self) -> None:
        """Deletes unused goldens, or reports them as a failure, as the settings say."""
        if self.settings.prune:
            self._prune()
        elif self.unused and self.settings.unused == "fail":
            self.trouble.append(f"{counted(len(self.unused), 'golden')} that no test uses (golden_unused = fail)")

    def _prune(self) -> None:
        failed = [f"{counted(len(self.failed), 'test')} failed"] if self.failed else []
        reasons = [*self.partial, *failed, *(f"{nodeid} was skipped" for nodeid in self.skipped)]
        found, self.unused = self.unused, []
        if reasons:
            self.trouble.append(f"--golden-prune deleted nothing: {reasons[0]}")
            return
        if found:
            self._delete(found)

    def _delete(self, found: list[Path]) -> None:
        from precheck.goldens.file import GoldenError, read

        for path in found:
            try:
                read(path)  # deletes only files that are goldens
                path.unlink()
                self.unused.append(path)
            except GoldenError:
                self.trouble.append(f"--golden-prune did not delete {shown(path, self.root)}: it cannot be read as a golden")
            except OSError as error:
                self.trouble.append(f"--golden-prune could not delete {shown(path, self.root)}: {error.strerror}")

    @property
    def touched(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.checks or self.known or self.unused or self.trouble)

    @property
    def quiet(self) -> bool:
        """Whether nothing happened that must be reported under -q."""
        touched = any(check.failed or check.error or check.refreshed in ("written", "changed") for check in self.checks)
        return not (touched or self.known or self.failed or self.trouble or (self.unused and self.settings.unused != "ignore"))


def is_worker(config: Any) -> bool:
    return hasattr(config, "workerinput")


def hand_over(config: Any, results: Results) -> None:
    """Sends a worker's collection at the end of its session. Only the first worker does, since all collect the same tests."""
    if config.workerinput["workerid"] == "gw0":
        config.workeroutput["precheck"] = results.collection()


class Controller:
    """The hooks that xdist calls in the controller. Registered only if xdist is installed, since pluggy refuses unknown hooks."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self.results.partial.append(f"xdist worker {node.gateway.id} crashed")
        found = getattr(node, "workeroutput", {}).get("precheck")
        if found:
            self.results.take_over(found)
