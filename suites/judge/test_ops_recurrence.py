"""States that a loop stores low: each limit from just below and just above, and what is nobody's fault.

Scenarios in torch; records made by hand where a limit's edge is the point, and of healthy loops whose error real torch leaves within the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import finds, passes
from torch import nn

from precheck import formats
from precheck.analysis import ledger
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.rounding import misroundings as rounding
from precheck.analysis.rounding.function_limits import ADDED, MADE_BY_FUNCTION
from precheck.observe.shadow.operations import Operation, Value

RECURRENT = int(rounding.RECURRENT)
U = formats.of_dtype("bfloat16").unit_roundoff
OFF = 2 * ADDED * U
FOUND = [("accumulated-drift", 1)]


def loop(
    name: str = "add.Tensor", *, turns: int = RECURRENT, off: float = OFF, start: Value | None = None, end: dict[str, Any] | None = None, **facts: Any
) -> Graph:
    """A state that is added to on line 1, and kept: its error grows evenly, with each rounding, up to `off`."""
    graph, state = Graph(), start or given()
    for turn in range(turns + 1):
        made = {"drift": off * (turn + 1) / (turns + 1)} | ({"alive": True} | (end or {}) if turn == turns else {})
        state = graph.op(name, state, given("float32"), source="model.py:1", makes=made, **facts)
    return graph


TERMS = (0.01 * torch.rand(200, 64, generator=torch.Generator().manual_seed(5))).bfloat16()


def average() -> torch.Tensor:
    state = torch.ones(64).bfloat16()
    for term in TERMS:
        state = state * 0.99 + term  # fault
    return state


def average_that_nobody_takes() -> torch.Size:
    state = torch.ones(64).bfloat16()
    for term in TERMS:
        state = state * 0.99 + term
    return state.shape


def average_in_float32() -> torch.Tensor:
    state = torch.ones(64)
    for term in TERMS:
        state = state * 0.99 + term
    return state


def test_a_state_that_each_turn_rounds_is_told() -> None:
    finding = finds(average, "accumulated-drift", says="a loop carries this state on 200 times and stores it in bfloat16 each time: it is ")
    assert finding.op == "aten.add.Tensor"
    assert "stored in float32 it would be less than 0.01% off" in finding.message
    assert finding.measured is not None
    assert finding.measured > (finding.limit or 0.0) == ADDED
    passes(average_that_nobody_takes)
    passes(average_in_float32)


@pytest.mark.parametrize(("turns", "found"), [(RECURRENT, FOUND), (RECURRENT - 1, [])])
def test_it_comes_round_often(turns: int, found: list[tuple[str, int]]) -> None:
    assert loop(turns=turns).rules() == found


@pytest.mark.parametrize(("off", "found"), [(above(ADDED * U), FOUND), (below(ADDED * U), [])])
def test_it_is_off_by_more_than_a_few_roundings(off: float, found: list[tuple[str, int]]) -> None:
    assert loop(off=off).rules() == found


def average_of_two_terms() -> torch.Tensor:
    state = torch.ones(64).bfloat16()
    for term in TERMS:
        state = state * 0.98 + term + term.flip(0)  # fault
    return state


def test_turns_are_told_and_not_the_additions_of_a_turn() -> None:
    finds(average_of_two_terms, "accumulated-drift", says="carries this state on 200 times")


@pytest.mark.parametrize(("off", "found"), [(0.2, FOUND), (0.6, [])])
def test_roundings_in_one_direction_are_the_loops_own_if_its_terms_explain_less_than_half(off: float, found: list[tuple[str, int]]) -> None:
    """The terms' errors are at most their sum. `off`: that sum as a share of the error of the state."""
    graph, state, size = Graph(), given(), OFF * 8.0
    for turn in range(RECURRENT + 1):
        term = graph.op("mul.Tensor", given(), given(), makes={"drift": off * size / (RECURRENT + 1), "norm": 1.0, "local": U / 4})
        makes = {"drift": OFF * (turn + 1) / (RECURRENT + 1), "local": U / 16, "alive": turn == RECURRENT}
        state = graph.op("add.Tensor", state, term, source="model.py:1", makes=makes)
    assert graph.rules() == found


def list_of_averages() -> list[torch.Tensor]:
    states = [torch.ones(64).bfloat16() for _ in range(3)]
    for term in TERMS:
        for state in states:
            state.mul_(0.99).add_(term)  # fault
    return states


def test_a_list_of_states_is_told_once() -> None:
    finds(list_of_averages, "accumulated-drift", says="carries this state on 200 times")


def first_of_a_list(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    states = [torch.ones(64).to(dtype) for _ in range(3)]
    for term in TERMS:
        for state, kept in zip(states, (0.99, 0.999, 0.98), strict=True):
            state.mul_(kept).add_(term)  # fault
    return states[0]


def first_of_a_wide_list() -> torch.Tensor:
    return first_of_a_list(torch.float32)


def test_a_state_that_nobody_takes_does_not_stand_for_the_others() -> None:
    """A loop over parameters, whose last one and whose worst one are let go."""
    finds(first_of_a_list, "accumulated-drift", says="stored in float32 it would be")
    passes(first_of_a_wide_list)


def list_of(*offs: float) -> Graph:
    """A loop that adds to each of a list of sums on line 1, one after the other; they end off by as much."""
    graph, sums = Graph(), [given() for _ in offs]
    for turn in range(RECURRENT + 1):
        for place, off in enumerate(offs):
            made = {"drift": off * (turn + 1) / (RECURRENT + 1), "alive": turn == RECURRENT}
            sums[place] = graph.op("add_.Tensor", sums[place], given("float32"), source="model.py:1", makes=made, in_place=True)
    return graph


@pytest.mark.parametrize(("offs", "found"), [
    ((OFF, 0.0), FOUND), ((0.0, OFF), FOUND), ((OFF, OFF, OFF), FOUND), ((1.1 * ADDED * U, *[0.1 * ADDED * U] * 9), []), ((0.0, 0.0), []),
], ids=str)  # fmt: skip
def test_of_many_sums_one_may_be_off_by_chance(offs: tuple[float, ...], found: list[tuple[str, int]]) -> None:
    """All of them together are what one tensor of them would be; the one that is written last is judged by itself as well."""
    assert list_of(*offs).rules() == found


@pytest.mark.parametrize(("nudge", "found"), [(below, FOUND), (above, [])])
def test_most_of_it_is_its_own(nudge: Any, found: list[tuple[str, int]]) -> None:
    """What the loop was given, and brings with it to the end, is not. Here that is all but `MADE_BY_FUNCTION` of the square."""
    graph, brought = Graph(), nudge((1 - MADE_BY_FUNCTION) ** 0.5) * OFF
    state = graph.op("mm.default", given(), given(), source="model.py:2", makes={"drift": brought})
    for turn in range(RECURRENT + 1):
        made = {"drift": OFF if turn else brought, "alive": turn == RECURRENT}
        state = graph.op("add.Tensor", state, given("float32"), source="model.py:1", makes=made)
    assert graph.rules() == found


@pytest.mark.parametrize("facts", [
    {"phase": "optimizer", "in_optimizer": True}, {"phase": "backward", "derived": True}, {"plain": True}, {"end": {"alive": False}},
    {"end": {"nonfinite": 1, "dtype": "float32"}}, {"end": {"sensitivity": 1.0, "perturbed_drift": 1.0}}, {"end": {"drift": float("inf")}},
], ids=str)  # fmt: skip
def test_what_is_no_fault_of_the_loop(facts: dict[str, Any]) -> None:
    """Optimizers' states, what autograd derives, torch's own modules, what nobody takes, chaos, remainders that are nothing in float32.

    By hand: of a real one the error would have to be beyond the limit, and each of these by another road.
    """
    assert not [rule for rule, _ in loop(**facts).rules() if rule == "accumulated-drift"]


def network(name: str, turns: int = RECURRENT) -> Graph:
    """A loop on line 1 that adds to its state what a product on line 2 makes of it."""
    graph, state, weight = Graph(), given(), given(shape=(8, 8))
    for turn in range(turns + 1):
        made = {"drift": OFF * (turn + 1) / (turns + 1)}
        said = graph.op("mm.default", state, weight, source="model.py:2", makes={"drift": 0.0})
        state = graph.op(name, state, said, source="model.py:1", makes=made | {"alive": turn == turns})
    return graph


def test_a_stream_of_residuals_is_let_be() -> None:
    """By hand: in a stream that grows earlier roundings count less, and a real one seldom comes to the limit."""
    assert network("add.Tensor").rules() == []
    with ledger.without("residual_stream"):
        assert network("add.Tensor").rules() == FOUND


def latents() -> torch.Tensor:
    torch.manual_seed(0)
    layer, state = nn.Linear(64, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    for _ in range(40):
        said = layer(state)
        state = state * 0.98 + 0.02 * said  # fault
    return state


def test_latents_that_are_scaled_as_well_are_told() -> None:
    finds(latents, "accumulated-drift")


def hidden_state() -> torch.Tensor:
    torch.manual_seed(0)
    weight, state = (torch.randn(64, 64) / 8).bfloat16(), torch.randn(8, 64).bfloat16()
    for _ in range(40):
        state = (state @ weight).tanh()
    return state


def test_a_hidden_state_is_no_state() -> None:
    """It passes a product and a tanh, which bound its error."""
    passes(hidden_state)
    graph, state, weight = Graph(), given(), given(shape=(8, 8))  # by hand as well, with an error beyond the limit
    for turn in range(RECURRENT + 1):
        made = graph.op("mm.default", state, weight, source="model.py:1", makes={"drift": OFF})
        state = graph.op("tanh.default", made, source="model.py:1", makes={"drift": OFF, "alive": turn == RECURRENT})
    assert graph.rules() == []


def remainder() -> Graph:
    """Kahan's remainder on line 4: what is taken from a sum again went into it before."""
    graph, total, rest = Graph(), given(), given()
    for turn in range(RECURRENT + 1):
        off = OFF * (turn + 1) / (RECURRENT + 1)
        term = graph.op("sub.Tensor", given("float32"), rest, source="model.py:1", makes={"drift": 0.0})
        summed = graph.op("add.Tensor", total, term, source="model.py:2", makes={"drift": 0.1 * U})
        back = graph.op("sub.Tensor", summed, total, source="model.py:3", makes={"drift": 0.0})
        rest = graph.op("sub.Tensor", back, term, source="model.py:4", makes={"drift": off, "alive": turn == RECURRENT})
        total = summed
    return graph


def test_kahans_remainder_is_let_be() -> None:
    assert ("accumulated-drift", 4) not in remainder().rules()
    with ledger.without("carries_a_remainder"):
        assert ("accumulated-drift", 4) in remainder().rules()


def stored_after_each_turn() -> torch.Tensor:
    state = torch.ones(64).bfloat16()
    for term in TERMS / 2:
        following = state.float() * 0.995 + term
        state = following.bfloat16()  # fault
    return state


def copied_after_each_turn() -> torch.Tensor:
    state = torch.ones(64).bfloat16()
    for term in TERMS / 2:
        following = state.float() * 0.995 + term
        state.copy_(following)  # fault
    return state


@pytest.mark.parametrize("program", [stored_after_each_turn, copied_after_each_turn], ids=lambda program: program.__name__)
def test_a_state_that_is_computed_wide_and_stored_low(program: Callable[[], Any]) -> None:
    """A copy is made of what is copied, not of what it writes over."""
    finds(program, "accumulated-drift")


def test_a_copy_rounds_though_it_writes_into_the_same_format() -> None:
    graph = Graph()
    wide = graph.op("mul.Tensor", given(), makes={"dtype": "float32", "drift": 0.0})
    kept = graph.op("copy_.default", given(drift=1.0), wide, makes={"drift": 0.42 * U})
    assert Attribution(kept, graph.observation.operations).shares == {graph.last: pytest.approx(1.0)}


@pytest.mark.parametrize(("name", "scalars", "share"), [
    ("add.Tensor", (), 0.5), ("add.Tensor", (0.5,), 0.2), ("add_.Tensor", (0.5,), 0.2), ("lerp.Scalar", (0.5,), 0.5), ("lerp.Scalar", (0.2,), 1 / 17),
])  # fmt: skip
def test_a_term_brings_its_error_as_often_as_it_is_taken(name: str, scalars: tuple[float, ...], share: float) -> None:
    """average.add_(weight, alpha=0.001), average.lerp_(weight, 0.001): next to nothing of the weight's own rounding."""
    graph = Graph()
    first, second = (graph.op("mm.default", given(), makes={"drift": 100 * U}) for _ in range(2))
    both = graph.op(name, first, second, scalars=scalars, makes={"dtype": "float32", "drift": 100 * U})
    assert _share(Attribution(both, graph.observation.operations), second.maker) == pytest.approx(share)


def test_errors_that_go_one_way_are_each_ops_own() -> None:
    """The error of a sum that stands still grows with its turns, so that nothing is left of the one it began with."""
    graph, state = Graph(), given()
    first = state = graph.op("_to_copy.default", given("float32"), makes={"drift": 0.42 * U})
    for turn in range(2, 21):
        state = graph.op("add.Tensor", state, given("float32"), source="model.py:9", makes={"drift": 0.42 * U * turn})
    assert _share(Attribution(state, graph.observation.operations), first.maker) == pytest.approx(1 / 400)


def _share(whose: Attribution, maker: Operation | None) -> float:
    assert maker is not None
    return whose.shares[maker]
