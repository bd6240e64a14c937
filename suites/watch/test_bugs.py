"""Bugs that shipped: each does harm, is found on the line at fault and called by its name; its mended twin is left in peace."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bugs import ALL, AT_FAULT
from bugs.bug import Bug, harm

import precheck
from precheck.findings import Finding, Report

HARM = 0.02
"""What a bug's result must be off its twin's, relative: bfloat16's own rounding is 0.4 % at most, those here reach 3 % or more."""
EVERY = pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
TOLD = {"overflow", "nan", "underflow", "vanished-constant", "integer-rounding", "amplified-rounding", "cancellation", "local-drift", "absorption",
        "accumulated-drift", "decision-flip", "missing-gradient", "gradient-underflow", "dtype-leak", "unstable-reference"}  # fmt: skip
"""The rules that watch() can tell from a block's ops alone."""


def watched(code: Any) -> Report:
    with precheck.watch() as report:
        result = code()  # held to the end of the block: what a user keeps is alive
    assert result is not None
    return report


@functools.cache
def done(bug: Bug) -> float:
    return harm(bug)


@functools.cache
def seen(bug: Bug) -> Report:
    return watched(bug.bug)


def first(bug: Bug) -> Finding:
    """The finding that a reader meets first: of an error the first error."""
    if bug.kernel and done(bug) < HARM:
        pytest.skip("this build of torch carries the op out without harm")
    report = seen(bug)
    assert report.findings, f"{bug.name}: nothing found"
    return report.findings[0]


def line_of(finding: Finding) -> tuple[Path, int]:
    path, _, number = finding.source.rpartition(":")
    return Path(path).resolve(), int(number)


def test_every_rule_has_two_bugs() -> None:
    counted = Counter(bug.rule for bug in ALL)
    assert {rule for rule, count in counted.items() if count >= 2} == TOLD
    assert set(counted) <= set(precheck.RULES)


def test_names_are_unique_and_each_has_a_line_at_fault() -> None:
    assert len({bug.name for bug in ALL}) == len(ALL)
    assert set(AT_FAULT) == {bug.name for bug in ALL}


@EVERY
def test_a_bug_does_harm(bug: Bug) -> None:
    if bug.kernel and done(bug) < HARM:
        pytest.skip("this build of torch carries the op out without harm")
    assert done(bug) > HARM


@EVERY
def test_the_first_finding_names_the_rule(bug: Bug) -> None:
    finding = first(bug)
    assert finding.rule in bug.rules
    assert finding.severity == bug.severity
    assert bool(seen(bug).errors) is (bug.severity == "error")


@EVERY
def test_the_first_finding_is_on_the_line_at_fault(bug: Bug) -> None:
    path, lines = AT_FAULT[bug.name]
    found, line = line_of(first(bug))
    assert found == path
    assert line in lines


@EVERY
def test_the_first_finding_says_op_phase_module_and_step(bug: Bug) -> None:
    finding = first(bug)
    assert (finding.op, finding.phase, finding.module, finding.step) == (bug.op, bug.phase, bug.module, bug.step)


@EVERY
def test_the_mended_twin_is_left_in_peace(bug: Bug) -> None:
    report = watched(bug.fixed)
    assert not report.errors, report.summary()
