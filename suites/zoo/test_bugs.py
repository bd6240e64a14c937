"""Bugs that shipped: each does harm, is found on the line at fault and called by its name; its mended twin is left in peace."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bugs import ALL, AT_FAULT
from bugs.bug import Bug, harm

import precheck
from precheck.findings import Finding, Report

HARM = 0.02
"""What a bug's result must be off its twin's, relative: bfloat16's own rounding is 0.4 % at most, those here reach 3 % or more."""
NAMED = functools.partial(pytest.mark.parametrize, "bug", ids=lambda bug: bug.name)
EVERY = NAMED(ALL)
FOUND = NAMED([bug for bug in ALL if not bug.expected_miss])
MISSED = NAMED([bug for bug in ALL if bug.expected_miss])
TOLD = {"overflow", "nan", "underflow", "vanished-constant", "integer-rounding", "amplified-rounding", "cancellation", "local-drift", "absorption",
        "accumulated-drift", "decision-flip", "missing-gradient", "gradient-underflow", "dtype-leak", "stale-cast", "unstable-reference",
        "scaler-order"}  # fmt: skip
"""The rules that watch() can tell from a block's ops and scalers alone."""
Score = Callable[..., None]


def ran(code: Any, raises: type[Exception] | None = None, precision: str = "") -> tuple[Report, Any]:
    """The report on a block and what it returned. It is to end by that exception if one is named."""
    ended, result, report = None, None, precheck.Report()
    try:
        with precheck.watch(precision=precision or None) as report:
            result = code()  # held to the end of the block: what a user keeps is alive
    except Exception as error:
        if raises is None or type(error) is not raises:
            raise
        ended = raises
    assert ended is raises, result
    return report, result


def watched(code: Any, raises: type[Exception] | None = None, precision: str = "") -> Report:
    return ran(code, raises, precision)[0]


@functools.cache
def done(bug: Bug) -> float:
    return harm(bug.name, bug.bug(), bug.fixed())


@functools.cache
def seen(bug: Bug) -> Report:
    return watched(bug.bug, bug.raises, bug.precision)


def harmless_here(bug: Bug) -> bool:
    return bug.kernel and done(bug) < HARM


def head(bug: Bug) -> list[Finding]:
    """The finding that a reader meets first, of an error the first error; or none."""
    if harmless_here(bug):
        pytest.skip("this build of torch carries the op out without harm")
    return list(seen(bug).findings[:1])


def first(bug: Bug) -> Finding:
    findings = head(bug)
    assert findings, f"{bug.name}: nothing found"
    return findings[0]


def line_of(finding: Finding) -> tuple[Path, int]:
    path, _, number = finding.source.rpartition(":")
    return Path(path).resolve(), int(number or 0)


def on_the_line(bug: Bug, finding: Finding) -> bool:
    path, lines = AT_FAULT[bug.name]
    found, line = line_of(finding)
    return found == path and line in lines


def test_every_rule_has_two_bugs() -> None:
    counted = Counter(bug.rule for bug in ALL if not bug.expected_miss)
    assert {rule for rule, count in counted.items() if count >= 2} >= TOLD
    assert set(counted) <= set(precheck.RULES)


def test_names_are_unique_and_each_has_a_line_at_fault() -> None:
    assert len({bug.name for bug in ALL}) == len(ALL)
    assert {bug.name for bug in ALL} <= set(AT_FAULT)
    assert all(lines for _, lines in AT_FAULT.values())


@FOUND
def test_the_first_finding_names_rule_and_line(bug: Bug, score: Score) -> None:
    """One test, since the run that it is about may take seconds and workers share nothing."""
    told = head(bug)
    score(bug, found=any(each.severity == bug.severity for each in told), rule=any(each.rule in bug.rules for each in told))
    score(bug, line=any(on_the_line(bug, each) for each in told))
    finding = first(bug)
    assert finding.rule in bug.rules or bug.wrong_line
    assert finding.severity == bug.severity
    assert bool(seen(bug).errors) is (bug.severity == "error")
    if bug.wrong_line:
        assert not on_the_line(bug, finding), "it is on the line today"
        assert len(bug.wrong_line) > 20
        return
    path, lines = AT_FAULT[bug.name]
    found, line = line_of(finding)
    assert found == path
    assert line in lines
    _says_where(bug, finding)


def _says_where(bug: Bug, finding: Finding) -> None:
    if bug.phase == "scaler":  # a call of Python's, and no op
        assert finding.phase == bug.phase
    else:
        assert finding.op in bug.op.split(" or ")
        assert (finding.phase, finding.module, finding.step) == (bug.phase, bug.module, bug.step)


@MISSED
def test_a_miss_is_still_a_miss(bug: Bug, score: Score) -> None:
    """What is found one day is to be told: then `expected_miss` goes."""
    report = seen(bug)
    score(bug, found=bool(report.errors), rule=False, line=False)
    assert not report.errors, f"found today: {report.summary()}"
    assert len(bug.expected_miss) > 20, "why it is missed"


@EVERY
def test_the_mended_twin_is_left_in_peace_and_the_bug_does_harm(bug: Bug, score: Score) -> None:
    """One test, since watching changes no bit: what the twin returns here is what the bug's result is off. An exception is asked for above."""
    report, twin = ran(bug.fixed, precision=bug.precision)
    score(bug, accused=bool(report.errors))
    assert bool(report.errors) is bool(bug.twin_accused), report.summary()
    if bug.harm != 0 and bug.raises is None and not harmless_here(bug):
        assert harm(bug.name, bug.bug(), twin) > (bug.harm or HARM)
