"""What is said of quantities under different scales, and of scalers: rule, severity and numbers, from events made by hand."""

from __future__ import annotations

import pytest
from graph import Graph

from precheck.findings import Finding
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.step_records import ScalingEvent
from precheck.rules.scaler_order.rule import AHEAD

KINDS = {
    "mixed": ("error", "is added to one that is not scaled:"), "compared": ("error", "times larger is compared with"),
    "applied": ("error", "gradients still scaled by 1024"), "rescaled": ("warning", "divided by another scale, 1:"),
    "read": ("warning", "Python reads a number that is scaled by 1024"), "half": ("error", "1024 parameters are float16"),
    "fresh": ("error", "load_state_dict"), "scheduled": ("error", "went on 1024 times"), "refused": ("error", "refuses (unscale_ was called)"),
}  # fmt: skip


def judged(*events: ScalingEvent) -> list[Finding]:
    graph = Graph()
    graph.observation.scaling = list(events)
    return graph.found()


def event(kind: str, factor: float = 1024.0, other: float = 1.0, number: int = 1) -> ScalingEvent:
    operation = Operation(number, "step", "scaler", "", f"train.py:{number}", 1)
    return ScalingEvent(kind, operation, factor, other, "unscale_ was called" if kind == "refused" else "")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_words(kind: str) -> None:
    severity, words = KINDS[kind]
    (finding,) = judged(event(kind))
    assert (finding.rule, finding.severity, finding.phase, finding.source) == ("scaler-order", severity, "scaler", "train.py:1")
    assert words in finding.message
    assert (finding.measured, finding.limit) == (1024.0, 1.0)


def test_a_scale_below_one_is_a_collapse() -> None:
    (finding,) = judged(event("collapsed", 0.5))
    assert (finding.rule, finding.severity, finding.measured, finding.limit) == ("scaler-collapse", "error", 0.5, 1.0)
    assert "fell to 0.5" in finding.message


@pytest.mark.parametrize(("factor", "told"), [(1 / 1024, "1/1024"), (0.25, "1/4"), (3.0, "3"), (2.0**16, "65536")])
def test_factors_are_told_as_people_say_them(factor: float, told: str) -> None:
    (finding,) = judged(event("compared", factor))
    assert f"scaled by {told} is compared" in finding.message


@pytest.mark.parametrize("times", range(1, 6))
def test_a_schedule_may_go_on_through_a_skip_or_two(times: int) -> None:
    found = judged(*(event("scheduled", float(each)) for each in range(1, times + 1)))
    assert len(found) == (times >= AHEAD)


def test_a_line_is_accused_once_and_lines_in_their_order() -> None:
    found = judged(event("compared", number=7), event("mixed", number=3), event("compared", number=7))
    assert [finding.source for finding in found] == ["train.py:3", "train.py:7"]
