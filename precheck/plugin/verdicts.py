"""Turns a report into the verdict on a test: applies markers and known failures, fails the test, and stores the check for the session."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from precheck.observe.listeners import Stopwatch, timed
from precheck.plugin import selftest
from precheck.plugin.markers import Expectations, expectations
from precheck.plugin.naming import command, golden_of, plain_id, shown
from precheck.plugin.results import CHECKS, KNOWN, Check, Ruling
from precheck.plugin.settings import KEY
from precheck.precisions import Precision
from precheck.words import one_line

if TYPE_CHECKING:
    from precheck.findings import Report
    from precheck.selftests.checks import Outcome


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verdict:
    """The verdict on one report. `left` is the report without the errors that markers allow or expect."""

    report: Report
    left: Report
    wishes: Expectations
    ruling: Ruling

    @property
    def failed(self) -> bool:
        return bool(self.left.errors) and not self.ruling.excused

    @property
    def allowed(self) -> dict[str, str]:
        """The rules that were found and that a marker or `allow` allows, with the reasons."""
        from precheck.report.facts import allowances

        marked = {finding.rule: self.wishes.allowed[finding.rule] for finding in self.report.errors if finding.rule in self.wishes.allowed}
        return {**marked, **allowances(self.report, "allowed")}

    @property
    def tolerated(self) -> dict[str, str]:
        """The rules that do not fail this test, and why."""
        known = dict.fromkeys((finding.rule for finding in self.report.errors if self.ruling.excused), "known to fail")
        return {**known, **dict.fromkeys(self.wishes.expected, "expected"), **self.wishes.allowed, **self.allowed}


class Verdicts:
    """The base class for the objects of checking fixtures. `name` is that of the fixture; `calls` counts its verdicts."""

    name = "check_precision"

    def __init__(self, item: pytest.Item, precision: Precision) -> None:
        self.item, self.precision, self.calls = item, precision, 0
        self.stopwatch = Stopwatch()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """The block is one check: its time counts from here."""
        self.stopwatch = Stopwatch()
        with timed(self.stopwatch):
            yield

    @property
    def number(self) -> int:
        """The number of the next check or watched block in the test, from 1."""
        return len(self.item.stash[CHECKS]) + 1

    @property
    def again(self) -> str:
        """The command that makes the checks of this test again, under this precision."""
        return command(self.item, f"--precision={self.precision.name}", self.precision.name)

    def verdict(self, report: Report) -> Verdict:
        wishes = expectations(self.item)
        let = wishes.expected | wishes.allowed.keys()
        left = dataclasses.replace(report, findings=[f for f in report.findings if not (f.severity == "error" and f.rule in let)])
        known = self.item.config.stash[KNOWN]
        return Verdict(report, left, wishes, known.ruling(self.item, self.number, self.precision.name, left) if known else Ruling())

    def keep(self, golden: Path, verdict: Verdict, **facts: Any) -> None:
        """Stores a check for the summary of the session and for junit."""
        from precheck.report.facts import UNCHANGED, allowances
        from precheck.report.terminal import entry

        settings, report, tolerated = self.item.config.stash[KEY], verdict.report, verdict.tolerated
        warnings = [finding for finding in report.findings if finding.severity == "warning" and finding.rule not in tolerated]
        shown = entry(report, settings.top, ops=settings.ops or verdict.failed)
        self.note(
            golden,
            failed=verdict.failed,
            rules=sorted({finding.rule for finding in report.findings}),
            allowed=[f"{rule} ({why})" for rule, why in verdict.allowed.items()],
            entry=shown,
            unchanged=report.facts.get(UNCHANGED, ""),
            report=json.loads(report.to_json()) if settings.files else None,
            tolerated=tolerated,
            warnings=[f"{finding.rule}: {finding.message}" for finding in warnings],
            not_needed=allowances(report, "not_needed"),
            excused=list(verdict.ruling.excused),
            known=verdict.ruling.told,
            **facts,
        )
        self.item.user_properties += _properties(report, shown["worst"], [finding.rule for finding in warnings])

    def judge(self, place: Path, report: Report, precision: Precision, tried: Callable[..., list[Outcome]]) -> None:
        """Stores a report without a golden, and ends the check as `end` does."""
        __tracebackhide__ = True
        number, verdict = self.number, self.verdict(report)
        self.keep(place, verdict, watched=True)
        self.end(number, verdict, precision, tried)

    def end(self, number: int, verdict: Verdict, precision: Precision, tried: Callable[..., list[Outcome]]) -> None:
        """Fails the test if errors are left. Under --precheck-selftest `tried` plants faults into what has passed."""
        __tracebackhide__ = True
        if verdict.failed:
            self.fail(verdict)
        if not verdict.ruling.excused and self.item.config.stash[KEY].selftest:
            selftest.store(self.item, self.name, number, precision, verdict.wishes, tried)

    def fail(self, verdict: Verdict) -> NoReturn:
        __tracebackhide__ = True
        text = [*filter(None, [verdict.ruling.worse]), verdict.left.summary(), f"to see this again: {self.again}"]
        pytest.fail("\n".join(text), pytrace=False)

    def misuse(self, message: str) -> NoReturn:
        """Fails with one line a test that calls the fixture with arguments that it does not take."""
        __tracebackhide__ = True
        self.note(golden_of(self.item, self.number), watched=True, error=message)
        pytest.fail(message, pytrace=False)

    def refuse(self, golden: Path, told: str, error: Exception, precision: Precision | None = None) -> NoReturn:
        """Fails with one line a test whose model does not run in this precision. With --full-trace pytest shows the traceback."""
        __tracebackhide__ = True
        message = one_line(f"does not run in {(precision or self.precision).name}: {told}")
        self.note(golden, error=message, does_not_run=True)
        self.item.user_properties += [("precheck_precision", self.precision.name), ("precheck_verdict", message)]
        if self.item.config.getoption("fulltrace", False):
            raise error
        raise pytest.fail.Exception(f"{message} (in float32 it runs; the traceback: pytest --full-trace)", pytrace=False) from None

    def note(self, golden: Path, **facts: Any) -> None:
        line = (self.item.location[1] or 0) + 1
        check = Check(
            nodeid=plain_id(self.item, self.precision.name), golden=str(golden), precision=self.precision.name, line=line, again=self.again,
            seconds=self.stopwatch.seconds, parts=self.stopwatch.parts, **facts,
        )  # fmt: skip
        self.item.stash[CHECKS].append(check)

    def shown(self, golden: Path) -> str:
        return shown(golden, self.item.config.rootpath)


def _properties(report: Report, worst: dict[str, Any] | None, warnings: list[str]) -> list[tuple[str, str]]:
    """The properties for junit. The worst tensor is one that no closer look explained. If it is beyond its limit, the reason is added."""
    told = [
        ("precheck_precision", report.precision),
        ("precheck_errors", ",".join(finding.rule for finding in report.errors)),
        ("precheck_warnings", ",".join(warnings)),
        ("precheck_worst_r", f"{worst['r']:.4g}" if worst else ""),
        ("precheck_worst_tensor", worst["tensor"] if worst else ""),
    ]
    return [*told, *([("precheck_worst_reason", worst["reason"])] if worst and worst["reason"] else [])]
