"""A block that an exception ended: what it asked last, and what torch would not store."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, given

from precheck.observe.shadow.operations import Flips
from precheck.observe.shadow.remarks import Refused

TINIEST = 2.0**-24
ZERO: dict[str, Any] = {"dtype": "float16", "zeros": 1, "largest_zeroed": TINIEST / 4}


def asking(*, raised: str = "ValueError", changed: int = 1, name: str = "gt.Scalar", between: bool = False, **facts: Any) -> Graph:
    """A zero made at line 1, and a question about it."""
    graph = Graph()
    zero = graph.op("_to_copy.default", given("float32"), makes=ZERO)
    graph.op(name, zero, flips=Flips(changed, 1), **facts)
    graph.last.outputs = ()
    if between:
        graph.op("mul.Tensor", given("float16"), makes={"dtype": "float16"})
    graph.observation.raised = raised
    return graph


def test_a_comparison_that_came_out_otherwise_before_an_exception_is_told() -> None:
    (finding,) = asking().found()
    assert (finding.rule, finding.severity, finding.source) == ("underflow", "error", "model.py:1")
    assert finding.message.endswith("became zero here; aten.gt.Scalar at model.py:2 came out otherwise, and the block raised ValueError")


@pytest.mark.parametrize("facts", [{"raised": ""}, {"changed": 0}, {"between": True}])
def test_else_a_question_is_no_fault(facts: dict[str, Any]) -> None:
    assert asking(**facts).rules() == []


@pytest.mark.parametrize(("raised", "told"), [("ZeroDivisionError", True), ("KeyError", False)])
def test_a_number_that_python_read_counts_where_python_refuses_numbers(raised: str, told: bool) -> None:
    graph = asking(raised=raised, changed=0, name="_local_scalar_dense.default", reads=1)
    assert bool(graph.rules()) is told


def refusing(**facts: Any) -> Graph:
    graph = Graph()
    graph.op("masked_fill_.Scalar", given("float16"), **({"scalars": (-1e20,), "refused": Refused("float16")} | facts))
    graph.last.outputs, graph.observation.raised = (), "RuntimeError"
    return graph


def test_a_number_that_torch_would_not_store_is_told() -> None:
    (finding,) = refusing().found()
    assert (finding.rule, finding.measured, finding.limit) == ("overflow", 1e20, 65504.0)
    assert "-1e+20 is beyond the largest float16, 65504, and torch raises" in finding.message


@pytest.mark.parametrize("facts", [{"scalars": (-65504.0,)}, {"scalars": (float("-inf"),)}, {"scalars": ()}, {"refused": Refused("bfloat16")}])
def test_what_fits_was_refused_for_another_reason(facts: dict[str, Any]) -> None:
    assert refusing(**facts).rules() == []


def test_what_the_code_made_good_after_a_refusal_is_nobodys_fault() -> None:
    graph = refusing()
    graph.op("mul.Tensor", given("float16"), makes={"dtype": "float16"})
    assert graph.rules() == []


MIXED = Refused("bfloat16", ("float32", "bfloat16"))


def mixing(graph: Graph, wide: Any, refused: Refused = MIXED) -> list[tuple[str, int]]:
    graph.op("addmm.default", wide, given(), refused=refused)
    graph.last.outputs, graph.observation.raised = (), "RuntimeError"
    return graph.rules()


WIDE: dict[str, Any] = {"dtype": "float32", "roundoff": 2.0**-8}


def test_formats_that_torch_will_not_mix_are_traced_to_where_one_was_left() -> None:
    """Through what is wide already, to the promotion."""
    graph = Graph()
    promoted = graph.op("add.Tensor", given("float32"), given(), makes=WIDE)
    assert mixing(graph, graph.op("mul.Tensor", promoted, makes=WIDE)) == [("dtype-leak", 1)]
    (finding,) = graph.found()
    assert "torch refuses to combine float32 and bfloat16 at aten.addmm.default at model.py:3" in finding.message
    assert "made float32 at aten.add.Tensor at model.py:1, from low-precision numbers: cast one" in finding.message


def test_a_cast_is_where_it_was_left_too() -> None:
    graph = Graph()
    low = graph.op("mul.Tensor", given())
    graph.op("_to_copy.default", low)
    graph.last.outputs = (low,)
    assert mixing(graph, low) == [("dtype-leak", 2)]


def test_what_was_wide_from_the_start_is_told_where_they_met() -> None:
    assert mixing(Graph(), given("float32")) == [("dtype-leak", 1)]


@pytest.mark.parametrize("refused", [Refused("bfloat16"), Refused("bfloat16", ("bfloat16", "bfloat16")), Refused("", ("float32", "float64"))])
def test_other_refusals_are_let_pass(refused: Refused) -> None:
    assert mixing(Graph(), given("float32"), refused) == []
