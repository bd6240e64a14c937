"""The tests of bugs can fail: with a rule's limit out of reach, or the rule gone, they do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import test_bugs
from bugs import ALL
from bugs.bug import Bug

from precheck.analysis.decisions import choices
from precheck.analysis.rounding import function_errors
from precheck.analysis.rounding import misroundings as rounding
from precheck.analysis.unrepresentable import zeros
from precheck.judge import watched_runs
from precheck.rules.absorption import rule as absorption
from precheck.rules.decision_flip import rule as decision_flip

NAMED = {bug.name: bug for bug in ALL}
BLUNTED: dict[str, dict[tuple[Any, str], float]] = {
    "kl-estimate": {(rounding, "ROUNDINGS"): math.inf, (function_errors, "ROUNDED"): math.inf},
    "mass-encoding": {(rounding, "DEAD"): math.inf, (rounding, "LOSES_FIVE_BITS"): math.inf},
    "gradient-sum": {(absorption, "ROUNDINGS"): math.inf, (absorption, "UPDATES"): math.inf, (absorption, "LOST_UPDATE"): -math.inf},
    "router": {(decision_flip, "TIED_ROWS"): math.inf, (choices, "BLURRED"): math.inf},
    "faint-loss": {(zeros, "LOST_TENSOR"): math.inf},
}
EACH = pytest.mark.parametrize("bug", [NAMED[name] for name in BLUNTED], ids=lambda bug: bug.name)


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    """What test_bugs has seen of a bug is forgotten before each of these tests and after it."""
    test_bugs.seen.cache_clear()
    yield
    test_bugs.seen.cache_clear()


def untold(bug: Bug, **facts: bool) -> None:
    """What a blunted rule sees has no place on the scoreboard."""


@EACH
def test_a_limit_out_of_reach_fails_the_test(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    test_bugs.test_the_first_finding_names_rule_and_line(bug, untold)
    test_bugs.seen.cache_clear()
    for (module, name), value in BLUNTED[bug.name].items():
        monkeypatch.setattr(module, name, value)
    with pytest.raises(AssertionError):
        test_bugs.test_the_first_finding_names_rule_and_line(bug, untold)


@EACH
def test_a_finding_on_another_line_fails_the_test(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_runs, "shortened", lambda line: f"{line.rpartition(':')[0]}:1")
    with pytest.raises(AssertionError):
        test_bugs.test_the_first_finding_names_rule_and_line(bug, untold)


def test_a_limit_of_zero_accuses_a_mended_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no bits allowed to be lost at all, the subtraction of a correct softmax is accused."""
    softmax = NAMED["hand-written-softmax"].fixed
    assert not test_bugs.watched(softmax).errors
    monkeypatch.setattr(rounding, "LOSES_FIVE_BITS", 0.0)
    monkeypatch.setattr(rounding, "ROUNDINGS", 0.0)
    assert test_bugs.watched(softmax).errors
