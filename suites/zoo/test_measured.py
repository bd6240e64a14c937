"""The bugs that are models fail under precheck.measure, at the precision that they shipped with; their twins and healthy models pass."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bugs import ALL
from bugs.bug import Bug
from healthy import MEASURED

import precheck

MODELS = [bug for bug in ALL if bug.measured is not None]
EVERY = pytest.mark.parametrize("bug", MODELS, ids=lambda bug: bug.name)
FOUND = pytest.mark.parametrize("bug", [bug for bug in MODELS if not bug.measure_misses], ids=lambda bug: bug.name)
MISSED = pytest.mark.parametrize("bug", [bug for bug in MODELS if bug.measure_misses], ids=lambda bug: bug.name)
Score = Callable[..., None]


def report(arguments: dict[str, Any]) -> precheck.Report:
    given = dict(arguments)
    return precheck.measure(given.pop("model"), given.pop("inputs"), **given)


def test_there_are_models_of_most_mechanisms() -> None:
    assert len(MODELS) >= 16
    assert len({bug.mechanism for bug in MODELS}) >= 8


@FOUND
def test_a_bug_fails(bug: Bug, score: Score) -> None:
    assert bug.measured is not None
    told = report(bug.measured(False))
    score(bug, measure_found=bool(told.errors))
    assert told.errors, told.summary()


@MISSED
def test_a_miss_is_still_a_miss(bug: Bug, score: Score) -> None:
    assert bug.measured is not None
    told = report(bug.measured(False))
    score(bug, measure_found=bool(told.errors))
    assert not told.errors, f"found today: {told.summary()}"
    assert len(bug.measure_misses) > 20, "why it is missed"


@EVERY
def test_its_twin_passes(bug: Bug, score: Score) -> None:
    assert bug.measured is not None
    told = report(bug.measured(True))
    score(bug, measure_accused=bool(told.errors))
    assert not told.errors, told.summary()


@pytest.mark.parametrize("healthy", MEASURED, ids=lambda healthy: healthy.__name__)
def test_a_healthy_model_passes(healthy: Callable[[], dict[str, Any]], score: Score) -> None:
    told = report(healthy())
    score(SimpleNamespace(name=f"measured {healthy.__name__}", mechanism="healthy"), measure_accused=bool(told.errors))
    assert not told.errors, told.summary()
