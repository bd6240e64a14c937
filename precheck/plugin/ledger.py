"""What the checks of a session came to, in plain data: it travels from xdist's workers on their test reports."""

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
    """A call of check_precision, or a block of watch_precision: a verdict with its entry, or a golden refreshed, or why there is neither."""

    nodeid: str
    golden: str
    precision: str
    failed: bool = False
    refreshed: str = ""
    changes: list[str] = dataclasses.field(default_factory=list)
    rules: list[str] = dataclasses.field(default_factory=list)
    allowed: list[str] = dataclasses.field(default_factory=list)
    tolerated: dict[str, str] = dataclasses.field(default_factory=dict)  # rules that are no failure here, and why
    entry: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    error: str = ""
    line: int = 0  # of the test
    alone: str = ""  # the node id where no golden was needed and there is none
    excused: list[str] = dataclasses.field(default_factory=list)  # known failures as which it failed
    known: dict[str, Any] | None = None  # what their file is to be kept by
    warnings: list[str] = dataclasses.field(default_factory=list)
    not_needed: dict[str, str] = dataclasses.field(default_factory=dict)  # rules of allow= that nothing needed, and the reasons given
    watched: bool = False  # a block of watch_precision, which has no golden: `golden` is only a name for it
    seconds: float = 0.0  # until its verdict
    parts: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds of what it did, by what that is
    does_not_run: bool = False  # under this precision, while it does in float32; `error` says where it stops

    @property
    def passed(self) -> bool:
        return not (self.failed or self.error or self.excused or self.refreshed)


CHECKS = pytest.StashKey[list[Check]]()
KNOWN: pytest.StashKey[KnownFailures | None] = pytest.StashKey()


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ruling:
    """What known failures make of a check: those that excuse it, or why they do not; and the data that their file is kept by."""

    excused: tuple[str, ...] = ()
    worse: str = ""
    told: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Ledger:
    """A session's checks, the goldens its tests stand for, and what keeps it from being a whole run."""

    settings: Settings
    root: Path
    checks: list[Check] = dataclasses.field(default_factory=list)
    failed: set[str] = dataclasses.field(default_factory=set)
    passed: set[str] = dataclasses.field(default_factory=set)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # tests that did not run: how their goldens' paths begin
    collected: bool = False
    expected: dict[str, str] = dataclasses.field(default_factory=dict)  # golden of each collected test: its node id
    watched: dict[str, str] = dataclasses.field(default_factory=dict)  # the same of tests that watch, which have no goldens
    ignored: list[str] = dataclasses.field(default_factory=list)  # folders of goldens whose tests pytest was told not to collect
    partial: list[str] = dataclasses.field(default_factory=list)  # why nothing can be said of goldens that were not used
    unused: list[Path] = dataclasses.field(default_factory=list)
    known: list[str] = dataclasses.field(default_factory=list)  # what is said of known failures
    trouble: list[str] = dataclasses.field(default_factory=list)  # what makes the session fail though its tests pass

    def collection(self) -> dict[str, Any]:
        """What a worker knows and its controller does not."""
        return {"expected": self.expected, "watched": self.watched, "ignored": self.ignored, "partial": self.partial}

    def take_over(self, found: dict[str, Any]) -> None:
        """From a worker's `collection`."""
        self.collected = True
        self.expected |= found["expected"]
        self.watched |= found["watched"]
        self.ignored += found["ignored"]
        self.partial += found["partial"]

    def hear(self, told: dict[str, Any], *, passed: bool, skipped: bool) -> None:
        """From the report of a test that checks or watches; `told` is what the plugin wrote on it."""
        self.checks += [Check(**check) for check in told["checks"]]
        if passed:
            self.passed.add(told["nodeid"])
        elif skipped and not told["restricted"]:
            self.skipped[told["nodeid"]] = told["family"]

    def find_unused(self, files: Iterable[Path], folders: Iterable[Path]) -> None:
        """Of `files` below `folders`, those that no test stands for; and of a test that passed, later ones it did not ask for."""
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
        """Deletes or complains about unused goldens."""
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
                read(path)  # so that nothing else that has the suffix is taken for a golden
                path.unlink()
                self.unused.append(path)
            except GoldenError:
                self.trouble.append(f"--golden-prune left {shown(path, self.root)} alone: it is no golden that can be read")
            except OSError as error:
                self.trouble.append(f"--golden-prune could not delete {shown(path, self.root)}: {error.strerror}")

    @property
    def touched(self) -> bool:
        """Whether there is anything to tell of."""
        return bool(self.checks or self.known or self.unused or self.trouble)

    @property
    def quiet(self) -> bool:
        """Nothing that a reader who wants silence must know."""
        touched = any(check.failed or check.error or check.refreshed in ("written", "changed") for check in self.checks)
        return not (touched or self.known or self.failed or self.trouble or (self.unused and self.settings.unused != "ignore"))
