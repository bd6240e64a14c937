"""Whose rounding an error is; how often a walk back over a run is made, and what of it is kept for the next."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from graph import Graph, given
from scenario import finds, passes

from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import Attribution, Splits
from precheck.analysis.propagation.walks import FAILURES, Attempts
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.places.source import Function

LOW = torch.bfloat16


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def test_a_line_of_a_long_loop_is_asked_about_ever_more_rarely() -> None:
    """Each walk goes over all turns before, so all walks together are to cost no more than a few over the whole loop."""
    asked, walks = Attempts(), list[int]()
    for turn in range(10_000):
        if asked.due(("line",)):
            walks.append(turn)
            asked.failed(("line",))
    assert walks[:FAILURES] == list(range(FAILURES))
    assert sum(walks) < 3 * 10_000


def test_a_line_that_answers_is_asked_each_time() -> None:
    asked = Attempts()
    assert all(asked.due(("line",)) for _ in range(100))
    assert asked.due(("another",))


def test_what_an_error_is_made_of_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state = Graph(), given()
    states = [state := graph.op("add.Tensor", state, given("float32"), makes={"drift": 0.01 * turn}) for turn in range(1, 9)]
    splits, told, asked = Splits(), attribution._carried, list[object]()
    monkeypatch.setattr(attribution, "_carried", lambda *args: (asked.append(args[1]), told(*args))[1])
    shared = [Attribution(state, graph.observation.operations, splits).shares for state in states]
    first = len(asked)
    assert shared == [Attribution(state, graph.observation.operations).shares for state in states]
    assert len(asked) > 3 * first


def share_of_the_last(source: str) -> float:
    """Three kinds of op that round alike, which one line of the user calls. They are on this line of a library, `{}` their number."""
    graph, state, roundings = Graph(), given("float32"), 0
    for name in ("mul.Tensor", "sigmoid.default", "sqrt.default"):
        roundings += 1
        drift = 0.42 * 2.0**-8 * math.sqrt(roundings)
        state = graph.op(name, state, makes={"drift": drift}, source=source.format(roundings), caller="train.py:3")
    made = Attribution(state, graph.observation.operations)
    cause = made.cause()
    assert cause is not None
    return made.of_line(cause)


def test_the_lines_of_a_library_that_one_line_of_the_user_calls_count_apart() -> None:
    """Else a whole network would count as one line, since the user calls it in one."""
    assert share_of_the_last("layer.py:8") == pytest.approx(1, abs=0.01)
    assert share_of_the_last("layer.py:{}") == pytest.approx(1 / 3, abs=0.05)


def running(zeroed: float = 0.0) -> tuple[Graph, Value]:
    """A running sum that is stored low, and the differences of its ends: parts of one tensor, so that the op has read it twice."""
    graph, one_rounding = Graph(), 0.42 * 2.0**-8
    total = graph.op("cumsum.default", given("float32"), makes={"drift": one_rounding, "norm": 1000.0, "shape": (4000,)})
    ends = {"drift": 67 * one_rounding, "norm": 1000 * math.sqrt(2 * 300 / 4000) / 67, "shape": (300,), "zeroed": zeroed}
    return graph, graph.op("sub.Tensor", total, total, makes=ends)


def test_each_part_of_a_tensor_brings_an_error_to_a_difference() -> None:
    graph, made = running()
    shares = Attribution(made, graph.observation.operations).shares
    assert shares[graph.observation.operations[0]] == pytest.approx(1.0, abs=0.01)


def test_a_difference_makes_no_zeros_itself() -> None:
    """Where it is zero and should not be, its terms were rounded to the same number."""
    graph, made = running(zeroed=0.2)
    assert Attribution(made, graph.observation.operations).cause() is graph.observation.operations[0]
    product = graph.op("mul.Tensor", made, made, makes={"drift": 0.5, "zeroed": 0.4})
    assert attribution.own_error(graph.last, product) == pytest.approx(0.2)


@pytest.mark.parametrize(("low", "call", "found"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_a_helper_that_is_given_low_numbers_is_not_to_be_mended(low: bool, call: int, found: bool) -> None:
    """Of the same call only, and not one that has made them low itself."""
    graph = Graph()
    x = graph.op("log1p.default", given("bfloat16" if low else "float32"), makes={"drift": 0.0016}, call=1)
    graph.op("sub.Tensor", x, given(), makes={"drift": 0.04}, call=call)
    functions = {"model.py:1": Function("model.py:1", "symlog"), "model.py:2": Function("model.py:2", "between")}
    whose = Attribution(graph.last.outputs[0], graph.observation.operations)
    assert (whose.difference(graph.observation.operations[0], functions) is graph.last) is found


def neighbours_in_a_running_sum() -> torch.Tensor:
    total = uniform(400).cumsum(0).to(LOW)  # fault
    ends = torch.cat([torch.zeros(1, dtype=LOW), total])
    return ends[1:] - ends[:-1]


def differences_with_a_first_element() -> torch.Tensor:
    total = uniform(400).cumsum(0).to(LOW)  # fault
    return torch.diff(total, prepend=total[:1])


def remainder() -> torch.Tensor:
    angles = (1000 * uniform(1000)).to(LOW)  # fault
    return angles - 6.25 * torch.round(angles / 6.25)


@pytest.mark.parametrize("program", [neighbours_in_a_running_sum, differences_with_a_first_element, remainder])
def test_parts_of_one_number_lost_their_digits_where_it_was_stored(program: Callable[[], torch.Tensor]) -> None:
    """The subtraction adds no error: its terms are parts of one running sum, or one was made from the other by cutting."""
    finds(program, "amplified-rounding", says="a difference of nearly equal numbers")


def product_less_its_neighbour() -> torch.Tensor:
    product = 3 * uniform(2000).to(LOW)
    workspace = torch.cat([product, product + 0.001 * uniform(2000).to(LOW)])
    return workspace[:2000] - workspace[2000:]  # fault


def most_of_it_taken_off() -> torch.Tensor:
    x = (1000 * uniform(1000)).to(LOW)
    return x - 0.98 * x  # fault


@pytest.mark.parametrize("program", [product_less_its_neighbour, most_of_it_taken_off])
def test_two_numbers_that_nearly_agree_cancel_in_their_difference(program: Callable[[], torch.Tensor]) -> None:
    """A workspace of products holds several numbers, and 0.98 x is another number than x."""
    finds(program, "cancellation", says="a difference of nearly equal numbers")


def neighbours_in_float32() -> torch.Tensor:
    total = uniform(400).cumsum(0)
    return (total[1:] - total[:-1]).to(LOW)


def remainder_in_float32() -> torch.Tensor:
    angles = 1000 * uniform(1000)
    return (angles - 6.25 * torch.round(angles / 6.25)).to(LOW)


@pytest.mark.parametrize("program", [neighbours_in_float32, remainder_in_float32])
def test_stored_after_the_difference_nothing_is_lost(program: Callable[[], torch.Tensor]) -> None:
    passes(program)


def test_a_whole_that_was_joined_is_kin_to_what_is_made_of_it() -> None:
    graph = Graph()
    joined = graph.op("cat.default", *(graph.op("mul.Tensor", given("float32"), makes={"shape": (4,)}) for _ in range(2)), makes={"shape": (8,)})
    moved = graph.op("add.Tensor", joined, given("float32"), makes={"shape": (8,)})
    graph.op("sub.Tensor", moved, joined, makes={"shape": (8,)})
    assert causes.shares_operand(graph.last)


def test_parts_of_one_tensor_that_are_joined_are_parts_of_it_still() -> None:
    """`torch.diff` with what to put before it joins the first element of a running sum to others of it."""
    graph = Graph()
    running = graph.op("cumsum.default", given("float32"), makes={"shape": (8,)})
    ends = graph.op("index.Tensor", running, makes={"shape": (4,)})
    first = graph.op("clone.default", running, makes={"shape": (1,)})
    joined = graph.op("cat.default", first, ends, makes={"shape": (5,)})
    graph.op("sub.Tensor", joined, joined, makes={"shape": (4,)})
    assert causes.before_copies(joined) is running
    assert causes.shares_operand(graph.last)


SIZES = 1 + uniform(4000)


def angle_of_a_quotient() -> torch.Tensor:
    size = SIZES.to(LOW)
    length = (size.square() + (0.05 * size).square()).sqrt()
    cosine = size / length  # fault
    return torch.acos(cosine)


def angle_of_a_quotient_in_float32() -> torch.Tensor:
    size = SIZES.to(LOW).float()
    length = (size.square() + (0.05 * size).square()).sqrt()
    return torch.acos(size / length)


def test_a_rounding_that_has_cancelled_on_the_way_is_not_named() -> None:
    """Both terms of the quotient have the error of one cast, which cancels. What is left is lost where the quotient is stored."""
    finds(angle_of_a_quotient, "amplified-rounding", says="by aten.acos.default")
    passes(angle_of_a_quotient_in_float32)


@pytest.mark.parametrize(("bound", "rounds"), [(1.0, False), (0.9999, True)])
def test_a_cut_rounds_nothing_but_a_bound_that_the_format_does_not_hold(bound: float, rounds: bool) -> None:
    graph = Graph()
    stored = graph.op("mul.Tensor", given(), makes={"drift": 0.42 * 2.0**-8})
    cut = graph.op("clamp.default", stored, makes={"drift": 0.3 * 2.0**-8}, scalars=(-1.0, bound))
    shares = Attribution(cut, graph.observation.operations).shares
    assert (shares[graph.observation.operations[-1]] > 0.5) is rounds


@pytest.mark.parametrize(("name", "blamed"), [("grid_sampler_2d.default", 2), ("mul.Tensor", 1)])
def test_a_sampled_mean_has_no_more_error_of_its_elements_than_they_have(name: str, blamed: int) -> None:
    """The picture is off by more than the places are, but a mean of its elements is off by no more than that."""
    graph = Graph()
    picture = graph.op("exp.default", given("float32"), makes={"drift": 0.002})
    places = graph.op("sin.default", given("float32"), makes={"drift": 0.0015})
    sampled = graph.op(name, picture, places, makes={"drift": 0.02, "dtype": "float32"})
    made = Attribution(sampled, graph.observation.operations)
    assert max(made.shares, key=made.shares.__getitem__).number == blamed
