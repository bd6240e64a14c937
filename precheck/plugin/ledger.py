"""What the checks of a session came to, in plain data: it travels from xdist's workers on their test reports."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from precheck.plugin.naming import first_call, shown
from precheck.plugin.settings import Settings
from precheck.report.terminal import drift_table


@dataclasses.dataclass(slots=True)
class Check:
    """One call of check_precision: a verdict with its entry for the table, or a golden refreshed."""

    nodeid: str
    golden: str
    refreshed: str = ""
    changes: list[str] = dataclasses.field(default_factory=list)
    rules: list[str] = dataclasses.field(default_factory=list)
    allowed: list[str] = dataclasses.field(default_factory=list)
    entry: dict[str, Any] | None = None
    report: dict[str, Any] | None = None


CHECKS = pytest.StashKey[list[Check]]()


@dataclasses.dataclass(slots=True)
class Ledger:
    """A session's checks, the goldens its tests stand for, and what keeps it from being a whole run."""

    settings: Settings
    root: Path
    checks: list[Check] = dataclasses.field(default_factory=list)
    failed: set[str] = dataclasses.field(default_factory=set)
    passed: set[str] = dataclasses.field(default_factory=set)
    expected: dict[str, str] = dataclasses.field(default_factory=dict)  # golden of each collected test: its node id
    partial: list[str] = dataclasses.field(default_factory=list)  # why nothing can be said of goldens that were not used
    unused: list[Path] = dataclasses.field(default_factory=list)
    trouble: list[str] = dataclasses.field(default_factory=list)  # what makes the session fail though its tests pass

    def find_unused(self, files: Iterable[Path]) -> None:
        """Of `files`, those that no test stands for; and of a test that passed, the second and later ones it did not ask for."""
        used = {check.golden for check in self.checks}
        for path in files:
            owner = self.expected.get(str(path)) or self.expected.get(str(first_call(path)))
            if str(path) not in used and (owner is None or (owner in self.passed and str(path) not in self.expected)):
                self.unused.append(path)

    def close(self) -> None:
        """Deletes or complains about unused goldens, and writes the reports asked for."""
        if self.settings.prune:
            self._prune()
        elif self.unused and self.settings.unused == "fail":
            self.trouble.append(f"{len(self.unused)} golden(s) that no test uses (golden_unused = fail)")
        for path in self.settings.json:
            self._write(path)

    def _prune(self) -> None:
        reasons = [*self.partial, *([f"{len(self.failed)} test(s) failed"] if self.failed else [])]
        if reasons:
            self.unused.clear()
            self.trouble.append(f"--golden-prune deleted nothing: {reasons[0]}")
            return
        for path in self.unused:
            try:
                path.unlink()
            except OSError as error:
                self.trouble.append(f"{shown(path, self.root)} cannot be deleted: {error.strerror}")

    def _write(self, path: Path) -> None:
        from importlib.metadata import version

        from precheck import __version__

        tests = [{"nodeid": check.nodeid, **(check.report or {})} for check in self.checks if check.report]
        text = json.dumps({"schema": 1, "precheck": __version__, "torch": version("torch"), "tests": tests}, indent=1)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf8")
            temporary.replace(path)
        except OSError as error:
            self.trouble.append(f"--drift-report=json:{path} cannot be written: {error.strerror}")

    def lines(self, *, table: bool) -> list[str]:
        """The section at the end of a session."""
        return [*self._counts(), *(self._table() if table else []), *self._allowed(), *self._refreshed(), *self._unused(), *self.trouble]

    @property
    def quiet(self) -> bool:
        """Nothing that a reader who wants silence must know."""
        touched = any(check.refreshed not in ("", "unchanged", "kept") for check in self.checks)
        return not (touched or self.failed or self.trouble or (self.unused and self.settings.unused != "ignore"))

    def _counts(self) -> list[str]:
        lines = []
        verdicts = [check for check in self.checks if check.entry]
        for precision in dict.fromkeys(check.entry["precision"] for check in verdicts if check.entry):
            own = [check for check in verdicts if check.entry and check.entry["precision"] == precision]
            failed = sum(check.nodeid in self.failed for check in own)
            lines.append(f"{len(own)} check(s) under {precision}: {len(own) - failed} passed, {failed} failed")
        return lines

    def _table(self) -> list[str]:
        return drift_table([(check.nodeid, check.entry) for check in self.checks if check.entry], self.settings.top)

    def _allowed(self) -> list[str]:
        return [f"allowed: {allowed} in {check.nodeid}" for check in self.checks for allowed in check.allowed]

    def _refreshed(self) -> list[str]:
        done = [check for check in self.checks if check.refreshed]
        if not done:
            return []
        counts = Counter(check.refreshed for check in done)
        lines = ["goldens: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))]
        for check in done:
            if check.refreshed in ("written", "changed"):
                lines.append(f"  {check.refreshed}  {shown(Path(check.golden), self.root)}")
                lines += [f"      {change}" for change in check.changes[:3]]
                lines += [f"      and {len(check.changes) - 3} more"] if len(check.changes) > 3 else []
        return lines

    def _unused(self) -> list[str]:
        if not self.unused or (self.settings.unused == "ignore" and not self.settings.prune):
            return []
        names = [f"  {shown(path, self.root)}" for path in self.unused]
        if self.settings.prune:
            return [f"goldens deleted, since no test uses them: {len(names)}", *names]
        return [f"goldens that no test uses: {len(names)} (delete them with pytest --golden-prune)", *names]
