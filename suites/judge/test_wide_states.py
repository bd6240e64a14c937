"""States that a program stores in float32 and adds to in a low format: found after three rounds, if the updates have a direction and go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import passes, watched
from torch import nn

from precheck import formats
from precheck.observe.shadow.op_notes import Absorbed
from precheck.rules.absorption import rule as absorption

LOW = torch.bfloat16
FEWEST = int(absorption.ROUNDS)
STOOD = Absorbed(
    share=absorption.UNCHANGED_SHARE,
    times=FEWEST,
    additions=FEWEST,
    rounds=FEWEST - 1,
    arrived=below(absorption.LOST_UPDATE),
    followed=below(absorption.LOST_UPDATE),
    intended=above(absorption.INTENDED * formats.FP32.unit_roundoff * FEWEST),
    lost=1.0,
    drift=1e-6,
    steady=absorption.STEADY,
    pace=absorption.LASTING,
)
"""A float32 state that stands still, at every limit."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounds(update: Callable[[torch.Tensor, int], torch.Tensor], turns: int = 6) -> Callable[[], torch.Tensor]:
    """A loop in which a model runs, and after it a float32 state is updated."""

    def code() -> torch.Tensor:
        model, state = nn.Linear(4, 4), (1 + normal(32).abs()).to(LOW).float()
        with torch.no_grad():
            for turn in range(turns):
                model(normal(2, 4, seed=turn))
                state = update(state, turn)
        return state

    return code


def judged(absorbed: Absorbed, shape: tuple[int, ...] = (64,)) -> list[str]:
    graph = Graph()
    graph.op("add.Tensor", given(shape=shape), given(shape=shape), makes={"shape": shape}, absorbed=absorbed)
    return [finding.rule for finding in graph.found() if finding.severity == "error"]


def counted(state: torch.Tensor, turn: int) -> torch.Tensor:
    return (state.to(LOW) + 1e-3).float()  # fault


def followed(state: torch.Tensor, turn: int) -> torch.Tensor:
    low = state.to(LOW)
    low.lerp_(torch.full((32,), 5.0, dtype=LOW), 1e-4)  # fault
    return low.float()


def written(state: torch.Tensor, turn: int) -> torch.Tensor:
    state.copy_(state.to(LOW) - 1e-3 * torch.ones(32, dtype=LOW))  # fault
    return state


def added_in_float32(state: torch.Tensor, turn: int) -> torch.Tensor:
    return state + 1e-3 * (state.to(LOW) > 0)


def moved_by_noise(state: torch.Tensor, turn: int) -> torch.Tensor:
    return (state.to(LOW) + 1e-3 * normal(32, seed=turn).to(LOW)).float()


def moved_less_and_less(state: torch.Tensor, turn: int) -> torch.Tensor:
    return (state.to(LOW) + 1e-3 * 0.4**turn).float()


def with_a_remainder() -> Callable[[torch.Tensor, int], torch.Tensor]:
    rest = torch.zeros(32)

    def update(state: torch.Tensor, turn: int) -> torch.Tensor:
        nonlocal rest
        term = 1e-3 + rest
        new = (state.to(LOW) + term.to(LOW)).float()
        rest = term - (new - state)
        return new

    return update


def without_a_model() -> torch.Tensor:
    """What one call computes has an end: all of its few updates together are less than a spacing."""
    x = 1 + normal(32).abs()
    for _ in range(6):
        x = (x.to(LOW) + 1e-6 * torch.ones(32, dtype=LOW)).float()
    return x


@pytest.mark.parametrize("update", [counted, followed, written], ids=lambda update: update.__name__)
def test_a_wide_state_that_is_added_to_low_is_found(update: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    report = watched(rounds(update))
    (found,) = report.errors
    assert found.rule == "absorption"
    assert "# fault" in report.summary()
    assert "0% of what 3 rounds in a row should add arrived: each casts a stored state to bfloat16 and adds to it" in found.message


def words_seen(low: torch.dtype) -> torch.Tensor:
    model, seen = nn.Linear(4, 4), torch.tensor(380_000.0)
    for turn in range(8):
        model(normal(2, 4, seed=turn))
        seen = (seen.to(low) + torch.tensor([180, 221]).sum()).float()
    return seen


def test_whole_numbers_that_are_added_are_known() -> None:
    """What the program adds is what it adds, in whole numbers as in others."""
    (found,) = watched(lambda: words_seen(LOW)).errors
    assert found.rule == "absorption"
    assert "0% of what 5 rounds in a row should add arrived" in found.message
    assert watched(lambda: words_seen(torch.float32)).errors == []


def rate(share: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    left = 1 - share.to(low).float()  # cast
    return torch.sin(1.5 * left).square()


def schedule(low: torch.dtype, *, counts: bool = True) -> None:
    """A rate that is made of a count, or of data that were made ready before."""
    model, seen, data = nn.Linear(4, 4), torch.tensor(380_000.0), torch.tensor(382_105.0) / 1e3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(6):
        model(normal(2, 4, seed=turn)).square().mean().backward()
        seen = seen + torch.tensor([1800, 221]).sum()
        optimizer.param_groups[0]["lr"] = float(rate(seen / 4e5 if counts else data / 400, low))
        optimizer.step()
        optimizer.zero_grad()


def test_what_steps_hand_on_is_a_state_and_no_data() -> None:
    """Its cast is the program's own, in a loop outside of all modules too."""
    (found,) = watched(lambda: schedule(LOW)).errors
    assert found.rule == "amplified-rounding"
    assert "on the same inputs as the reference, rate() is off by" in found.message
    assert watched(lambda: schedule(torch.float32)).errors == []
    assert watched(lambda: schedule(LOW, counts=False)).errors == []


def test_the_cure_is_to_leave_the_state_as_it_is_stored() -> None:
    (found,) = watched(rounds(counted)).errors
    assert found.remedy.startswith("add to the state in float32, as it is stored: stay in float32 on this line")


HEALTHY = {"wide": added_in_float32, "noise": moved_by_noise, "fades": moved_less_and_less, "rest": with_a_remainder()}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_loses_nothing_or_has_an_end_is_let_be(name: str) -> None:
    report = watched(rounds(HEALTHY[name]))
    assert report.facts["shadowed"]
    assert not report.errors, report.summary()


def test_so_is_what_one_call_computes() -> None:
    passes(without_a_model)


@pytest.mark.parametrize("change", [
    {"share": 0.49},
    {"rounds": FEWEST - 2},
    {"times": FEWEST - 1},
    {"arrived": absorption.LOST_UPDATE},
    {"followed": absorption.LOST_UPDATE},
    {"intended": below(absorption.INTENDED * formats.FP32.unit_roundoff * FEWEST)},
    {"steady": below(absorption.STEADY)},
    {"pace": below(absorption.LASTING)},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_state_that_falls_short_of_any_limit_is_let_be(change: dict[str, Any]) -> None:
    assert judged(STOOD) == ["absorption"]
    assert judged(dataclasses.replace(STOOD, **change)) == []


def test_one_number_takes_more_rounds() -> None:
    assert judged(STOOD, ()) == []
    many = int(absorption.AGREEING)
    assert judged(dataclasses.replace(STOOD, rounds=many, times=many + 1), ()) == ["absorption"]
