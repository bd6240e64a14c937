"""Known failures in a run: decides which checks they excuse, and updates their file at the end.

Every process reads the file at its start. Only one process writes it, under xdist the controller. It uses the data in the test reports, and keeps the
entries of tests that did not run. Imported only if there is such a file or the user asks for one.
"""

from __future__ import annotations

import dataclasses
import datetime
import os

import pytest

from precheck.findings import Report
from precheck.goldens.known import Check, Failures, KnownError, read, write
from precheck.judge import known_failures
from precheck.judge.known_failures import NEVER, Known, Observed
from precheck.plugin.naming import asked_for, golden_of_id, plain_id, shown
from precheck.plugin.results import Results, Ruling
from precheck.plugin.settings import KEY

_CI = ("CI", "BUILD_NUMBER")  # the variables by which pytest detects CI


class KnownFailures:
    """The known failures of a run."""

    def __init__(self, config: pytest.Config) -> None:
        settings = config.stash[KEY]
        self.path, self.writing = settings.known, settings.known_write
        self.name = shown(self.path, config.rootpath)
        self.failures = self._read()

    def _read(self) -> Failures:
        try:
            return read(self.path)
        except KnownError as error:
            raise pytest.UsageError(str(error)) from None

    def ruling(self, item: pytest.Item, number: int, precision: str, report: Report) -> Ruling:
        """The ruling on the `number`-th check of a test. `report` has the errors that no marker allows."""
        check = Check(plain_id(item), precision, number)
        known = self.failures.get(check, [])
        if not (known or (self.writing and report.errors)) or any(finding.rule in NEVER for finding in report.errors):
            return Ruling()
        from precheck.judge.beyond_limits import errors_and_places

        found, today = errors_and_places(report), datetime.date.today()
        worse = known_failures.expired(known, found, today) if self.writing else known_failures.worse(known, found, today)
        if report.errors and worse:
            return Ruling(worse=f"worse than known by {self.name}: " + "\n    ".join(worse))
        now = known_failures.recorded(known, found) if self.writing else known_failures.present(known, found)
        return Ruling(tuple(map(str, now)) if report.errors else (), told={"check": list(check), "seen": dataclasses.asdict(found)})

    def finish(self, config: pytest.Config, results: Results) -> None:
        """Ends the session: writes the failures that were recorded or mended, or reports what it would write."""
        told = [check.known for check in results.checks if check.known]
        try:
            before = self._read()
            after = {check: list(known) for check, known in before.items()}
            for each in told:
                check, seen = Check(*each["check"]), Observed.of(each["seen"])
                known = after.pop(check, [])
                left = (known_failures.recorded if self.writing else known_failures.tightened)(known, seen)
                after |= {check: left} if left else {}
            gone = self._gone(config, results, after)
            if self.writing:
                after = {check: known for check, known in after.items() if check not in gone}
            results.known += self._kept(before, after)
        except (KnownError, pytest.UsageError) as error:
            results.trouble.append(str(error))
            return
        if gone and not self.writing:
            results.known.append(f"known failures of checks that no longer exist: {len(gone)} (take them out with pytest --known-failures-write)")
            results.known += [f"  {check.test} under {check.precision}" for check in gone]

    def _kept(self, before: Failures, after: Failures) -> list[str]:
        changes = _changes(before, after)
        if not changes:
            return [f"{self.name}: no failure to record, and none that is mended"] if self.writing else []
        if not self.writing and (reason := self._refusal()):
            return [f"{self.name} can be tightened, {reason}; run pytest --known-failures-write, and commit the file:", *changes]
        write(self.path, after)
        return [f"{self.name} {'written' if after else 'deleted, since nothing is known any more'}; to be committed:", *changes]

    def _refusal(self) -> str:
        """Why a run without --known-failures-write does not write the file. "" if it may."""
        if any(os.environ.get(name) for name in _CI):
            return "which runs in CI leave to others"
        return "" if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK) else "and cannot be written here"

    def _gone(self, config: pytest.Config, results: Results, failures: Failures) -> list[Check]:
        """The checks that no longer exist: their test is gone from a folder of which all tests were collected, or a passed test makes fewer
        checks."""
        heard = {(check.golden, check.precision): check.nodeid for check in results.checks}
        gone = []
        folders = asked_for(config) if failures and not results.partial else []
        for check in failures:
            golden, first = golden_of_id(config, check.test, check.number), golden_of_id(config, check.test)
            owner = heard.get((str(first), check.precision))
            fewer = owner in results.passed and (str(golden), check.precision) not in heard
            ignored = any(golden.is_relative_to(folder) for folder in results.ignored)
            asked = any(golden.is_relative_to(folder) for folder in folders) and not ignored
            if fewer or (asked and str(first) not in results.expected | results.watched):
                gone.append(check)
        return gone


def _changes(before: Failures, after: Failures) -> list[str]:
    told = []
    for check in sorted({*before, *after}):
        old, new = before.get(check, []), after.get(check, [])
        where = f"in {check.test} under {check.precision}" + (f", check {check.number}" if check.number > 1 else "")
        rules = [known.rule for known in new]
        told += [f"  mended     {_named(known)} {where}" for known in old if known.rule not in rules]
        rules = [known.rule for known in old]
        told += [f"  recorded   {_named(known)} {where}" for known in new if known.rule not in rules]
        left = [known for known in new if known.rule in rules]
        if left and left != [known for known in old if known.rule in [each.rule for each in new]]:
            told.append(f"  tightened  {_named(left[0])} {where}")
    return told


def _named(known: Known) -> str:
    return f"{known.rule} at {known.place}"
