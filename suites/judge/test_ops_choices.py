"""Choices made by chance, and gradients that never came."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, above, below, given

from precheck import formats
from precheck.analysis import choices
from precheck.observe.shadow.operations import Flips
from precheck.rules.decision_flip.rule import SHARE

U = formats.of_dtype("bfloat16").unit_roundoff
LEAST = int(choices.ROWS)
ROWS = int(LEAST / SHARE)  # of which `LEAST` are just the share that counts
TIED = Flips(LEAST, ROWS, LEAST)
BLURRED = Flips(LEAST, int(LEAST / choices.BLURRED), 0, choices.BLUR * U)


def judged(flips: Flips, name: str = "topk.default", scores: Any = None, **facts: Any) -> list[tuple[str, str]]:
    graph = Graph()
    graph.op(name, scores or given(), flips=flips, **facts)
    return [(finding.rule, finding.severity) for finding in graph.found()]


def test_distinct_scores_that_the_format_makes_equal_are_an_error() -> None:
    assert judged(TIED) == [("decision-flip", "error")]


@pytest.mark.parametrize("flips", [
    Flips(LEAST - 1, 8, LEAST - 1),
    Flips(LEAST, 8, LEAST - 1),
    Flips(LEAST, ROWS + 1, LEAST),
], ids=["rows", "ties", "share"])  # fmt: skip
def test_fewer_ties_than_each_limit_are_let_be(flips: Flips) -> None:
    assert judged(flips) == []


def test_ties_of_a_wide_format_are_its_own() -> None:
    assert judged(TIED, scores=given("float32", roundoff=U)) == []


def test_a_backward_pass_chooses_nothing() -> None:
    assert judged(TIED, phase="backward") == []


@pytest.mark.parametrize(("name", "accused"), [("topk.default", True), ("argmax.default", True), ("max.dim", True), ("searchsorted.Tensor", False)])
def test_rounding_that_hides_what_tells_scores_apart_is_a_warning(name: str, accused: bool) -> None:
    assert judged(BLURRED, name) == ([("decision-flip", "warning")] if accused else [])


@pytest.mark.parametrize("flips", [
    Flips(LEAST - 1, 8, 0, 1.0),
    Flips(LEAST, BLURRED.total + 1, 0, 1.0),
    Flips(LEAST, BLURRED.total, 0, below(choices.BLUR * U)),
], ids=["rows", "share", "blur"])  # fmt: skip
def test_less_blur_than_each_limit_is_let_be(flips: Flips) -> None:
    assert judged(flips) == []


@pytest.mark.parametrize(("parameter", "severity"), [(1, "error"), (0, "warning")])
def test_blur_is_blamed_on_the_cast_that_brought_it_in(parameter: int, severity: str) -> None:
    """The cast of a weight can be left out, and is an error."""
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 0.5 * U}, parameter=parameter)
    scores = graph.op("add.Tensor", cast, makes={"drift": 0.9 * U})
    graph.op("topk.default", scores, flips=Flips(40, 100, 0, above(choices.BLUR * U)), makes={"drift": 0.9 * U})
    (finding,) = graph.found()
    assert (finding.rule, finding.severity, finding.source) == ("decision-flip", severity, "model.py:1")
    assert "aten.topk.default" in finding.message
    assert finding.measured == pytest.approx(choices.BLUR, rel=1e-4)


def test_scores_that_infinity_spoilt_are_not_judged_again() -> None:
    graph = Graph()
    infinite = graph.op("exp.default", given("float16"), makes={"dtype": "float16", "nonfinite": 1, "beyond": 1e6})
    graph.op("topk.default", infinite, flips=TIED, makes={"dtype": "float16", "nonfinite": 1})
    assert graph.rules() == [("overflow", 1)]


@pytest.mark.parametrize(("swapped", "severity"), [(1.0, "error"), (1 / 8, "error"), (1 / 9, "note"), (0.02, "note")])
def test_of_many_that_a_row_chooses_the_last_may_be_any_of_its_equals(swapped: float, severity: str) -> None:
    assert judged(Flips(10, 100, 10, swapped=swapped)) == [("decision-flip", severity)]


def copied(came: set[int], *, recording: bool = True, parameter: int = 7, phase: str = "forward", used_as: int = 0, frozen: bool = False) -> Graph:
    """A low copy of a parameter, made without autograd, and used: as a tensor of its own, or as that parameter."""
    graph = Graph()
    graph.observation.wanting = {3} if frozen else {3, 7}
    graph.observation.parameters, graph.observation.came = {7: "head.weight"}, came
    copy = graph.op("_to_copy.default", given("float32"), parameter=parameter, recording=False)
    graph.op("mm.default", copy, recording=recording, phase=phase, parameter=used_as)
    return graph


def test_a_copy_made_without_autograd_and_used_with_it_leaves_its_parameter_without_a_gradient() -> None:
    (finding,) = copied({3}).found()
    assert (finding.rule, finding.severity, finding.source) == ("missing-gradient", "error", "model.py:1")
    assert "head.weight" in finding.message


@pytest.mark.parametrize("graph", [
    copied({3}, recording=False),
    copied({3, 7}),
    copied(set()),
    copied({3}, parameter=0),
    copied({3}, phase="backward"),
    copied({3}, used_as=7),
    copied({3}, frozen=True),
], ids=["used without autograd", "gradient came", "no gradients at all", "no parameter", "used backward", "converted", "frozen"])  # fmt: skip
def test_no_gradient_is_missed_where_none_is_wanted_or_it_came(graph: Graph) -> None:
    assert graph.rules() == []
