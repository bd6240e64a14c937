"""A block that an exception ended: what it asked last, and what torch would not store."""

from __future__ import annotations

from typing import Any

import pytest
from graph import Graph, given

from precheck.observe.shadow.operations import Flips

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
    graph.op("masked_fill_.Scalar", given("float16"), **({"scalars": (-1e20,), "refused": "float16"} | facts))
    graph.last.outputs, graph.observation.raised = (), "RuntimeError"
    return graph


def test_a_number_that_torch_would_not_store_is_told() -> None:
    (finding,) = refusing().found()
    assert (finding.rule, finding.measured, finding.limit) == ("overflow", 1e20, 65504.0)
    assert "-1e+20 is beyond the largest float16, 65504, and torch raises" in finding.message


@pytest.mark.parametrize("facts", [{"scalars": (-65504.0,)}, {"scalars": (float("-inf"),)}, {"scalars": ()}, {"refused": "bfloat16"}])
def test_what_fits_was_refused_for_another_reason(facts: dict[str, Any]) -> None:
    assert refusing(**facts).rules() == []


def test_what_the_code_made_good_after_a_refusal_is_nobodys_fault() -> None:
    graph = refusing()
    graph.op("mul.Tensor", given("float16"), makes={"dtype": "float16"})
    assert graph.rules() == []
