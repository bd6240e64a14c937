"""With --zoo-rivals: the same cases under what a user has without precheck. Of them only that health is finite is asserted; the scoreboard tells."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from bugs import ALL
from bugs.bug import Bug
from healthy import IDIOMS, MEASURED
from healthy.attention import masks_handed_out
from rivals import DEBUGGER, RIVALS, overflowing, results

Score = Callable[..., None]
BITS = {"cut-residual"}  # it cuts a bfloat16 number out of the bits of a float32 one: with every low dtype replaced, it is no program


def scored(score: Score, case: Any, kind: str, code: Callable[[], Any]) -> dict[str, bool | None]:
    low, wide = results(code)
    objections = {name: rival(low, wide) for name, rival in RIVALS.items()}
    score(case, **{f"{name}|{kind}": objection for name, objection in objections.items() if objection is not None})
    return objections


@pytest.mark.parametrize("bug", [bug for bug in ALL if bug.raises is None and bug.name not in BITS], ids=lambda bug: bug.name)
def test_on_a_bug_and_its_twin(bug: Bug, score: Score) -> None:
    scored(score, bug, "bug", bug.bug)
    assert not scored(score, bug, "twin", bug.fixed)["NaN or Inf in the result"]


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)
def test_on_a_control(idiom: Callable[[], Any], score: Score) -> None:
    verdicts = scored(score, SimpleNamespace(name=f"healthy {idiom.__name__}", mechanism="healthy"), "control", idiom)
    assert verdicts["NaN or Inf in the result"] is (idiom is masks_handed_out)  # a mask is -Inf, and healthy


@pytest.mark.parametrize("bug", [bug for bug in ALL if bug.measured is not None], ids=lambda bug: bug.name)
def test_the_debugger_on_a_bug_and_its_twin(bug: Bug, score: Score) -> None:
    pytest.importorskip("transformers")
    assert bug.measured is not None
    score(bug, **{f"{DEBUGGER}|bug": overflowing(bug.measured(False)), f"{DEBUGGER}|twin": overflowing(bug.measured(True))})


@pytest.mark.parametrize("healthy", MEASURED, ids=lambda healthy: healthy.__name__)
def test_the_debugger_on_a_control(healthy: Callable[[], dict[str, Any]], score: Score) -> None:
    pytest.importorskip("transformers")
    objects = overflowing(healthy())
    score(SimpleNamespace(name=f"measured {healthy.__name__}", mechanism="healthy"), **{f"{DEBUGGER}|control": objects})
    assert not objects
