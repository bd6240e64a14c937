"""States that are read, computed wide and stored low again: told as accumulators, with what of their displacement arrived."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precheck
from precheck.findings import Finding

LOW, WIDE = torch.bfloat16, torch.float32
TURNS = 60


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def copied(dtype: torch.dtype) -> torch.Tensor:
    """A thousandth more each turn, which is less than half a spacing of one."""
    state = torch.ones(64).to(dtype)
    for _ in range(TURNS):
        state.copy_(state.float() + 0.001)
    return state


def cast(dtype: torch.dtype) -> torch.Tensor:
    state = torch.ones(64).to(dtype)
    for _ in range(TURNS):
        state = (state.float() + 0.001).to(dtype)
    return state


def slot(dtype: torch.dtype) -> torch.Tensor:
    cache = torch.ones(4, 64).to(dtype)
    for _ in range(TURNS):
        following = 0.999 * cache[2].float()
        cache[2] = following
    return cache[2]


def watched(program: Callable[[torch.dtype], torch.Tensor], dtype: torch.dtype) -> list[Finding]:
    with precheck.watch() as report:
        kept = program(dtype)
    del kept
    return report.errors


@pytest.mark.parametrize(("program", "op"), [(copied, "aten.copy_.default"), (cast, "aten._to_copy.default"), (slot, "aten.copy_.default")])
def test_a_store_that_loses_what_each_turn_adds(program: Callable[[torch.dtype], torch.Tensor], op: str) -> None:
    first = watched(program, LOW)[0]
    assert (first.rule, first.op) == ("absorption", op)
    stood_still = "additions left at least half of the elements unchanged"
    assert "0% of what 8 updates in a row should add arrived" in first.message or stood_still in first.message
    assert watched(program, WIDE) == []


def test_a_line_that_widens_what_it_stored_a_turn_before_rounds_nothing_on_purpose() -> None:
    """`cast` goes down and up on one line, as `x.bfloat16().float()` does, but the way up belongs to the turn before."""
    assert watched(cast, LOW)[0].rule == "absorption"


def kept_rounded() -> torch.Tensor:
    """A round trip on one line, turn by turn: what it rounds is what it gave a turn before."""
    state = torch.ones(64)
    for _ in range(TURNS):
        state = (state + 0.001).to(LOW).float()
    return state


def rounded_on_purpose() -> torch.Tensor:
    """A round trip on one line, turn by turn, of what the state is made of: the format that hardware would be given it in."""
    state = torch.ones(64)
    for turn in range(TURNS):
        state = state + (state.new_full((64,), 0.001 * (turn + 1))).to(LOW).float()
    return state


def test_a_round_trip_on_one_line_is_meant_in_a_loop_too_unless_it_stores_the_state() -> None:
    with precheck.watch() as report:
        rounded_on_purpose()
    assert report.findings == []
    assert watched(lambda dtype: kept_rounded(), LOW)[0].rule == "absorption"


def overwritten() -> torch.Tensor:
    """A buffer that is written anew each turn, from data alone."""
    buffer = torch.ones(64).to(LOW)
    for turn in range(TURNS):
        buffer.copy_(1 + 0.0001 * normal(64, seed=turn))
    return buffer


def decayed() -> torch.Tensor:
    """Half of the way each turn, which arrives."""
    state, target = torch.zeros(64).to(LOW), normal(64)
    for _ in range(TURNS):
        state.copy_(state.float() + 0.5 * (target - state.float()))
    return state


def master() -> torch.Tensor:
    """The copy of a float32 state lags behind it, and adds nothing up."""
    state, shown = torch.ones(64), torch.ones(64).to(LOW)
    for _ in range(TURNS):
        state = state + 0.0001
        shown.copy_(state)
    return shown


@pytest.mark.parametrize("program", [overwritten, decayed, master])
def test_a_store_that_adds_nothing_up_is_let_be(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        kept = program()
    del kept
    assert report.errors == []
    assert report.facts["shadowed"] > 0


def test_a_store_in_a_function_of_the_users_is_told() -> None:
    """A copy's own rounding is what it rounds, though it writes into a tensor of the same format."""
    state = torch.ones(64).to(LOW)

    def turn(state: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
        state.copy_(0.999 * state.float() + 0.001 * term)
        return state

    with precheck.watch() as report:
        for term in 1 + normal(200, 64):
            turn(state, term)
    assert [(finding.rule, finding.op) for finding in report.errors] == [("absorption", "aten.copy_.default")]
