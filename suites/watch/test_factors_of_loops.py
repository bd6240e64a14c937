"""Factors that were rounded once and scale the state of a loop in each turn, beside those that are exact, wide or another each time."""

from __future__ import annotations

import torch

import precheck
from precheck.findings import Report


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def retained(decay: torch.Tensor, state: torch.dtype) -> Report:
    with precheck.watch() as report:
        kept = decay.to(torch.bfloat16) if decay.dim() else torch.tensor(float(decay), dtype=torch.bfloat16)
        memory = torch.zeros(8, 8, dtype=state)
        for turn in range(120):
            memory = kept.to(state) * memory + (1 + 0.1 * seeded(8, 8, seed=turn)).to(state)
        report.facts["result"] = memory.float().norm().item()
    return report


def test_a_decay_that_bfloat16_rounds_is_named_however_the_state_is_kept() -> None:
    for decay in (torch.tensor(0.985), 0.982 + 0.004 * torch.arange(8.0) / 8):
        for state in (torch.bfloat16, torch.float32):
            (finding, *_) = retained(decay, state).errors
            assert finding.rule in ("amplified-rounding", "accumulated-drift", "absorption")
    (finding,) = retained(torch.tensor(0.985), torch.float32).errors
    assert "iterations" in finding.message
    assert finding.rule == "amplified-rounding"


def test_a_decay_that_bfloat16_holds_is_not() -> None:
    assert not retained(torch.tensor(0.984375), torch.float32).errors


def gated(*, anew: bool) -> Report:
    """A state in float32 whose gates are made of each turn's data, in bfloat16; or shrunk by one number that is made low again in each turn."""
    shrink = torch.tensor(0.013, dtype=torch.bfloat16)
    with precheck.watch() as report:
        memory = torch.ones(32)
        for turn in range(120):
            gate = 1 - shrink if anew else torch.sigmoid(3 + seeded(32, seed=turn)).to(torch.bfloat16)
            memory = memory * gate + (0.0 if anew else 1.0)
        report.facts["result"] = memory.norm().item()
    return report


def test_gates_of_each_turn_are_another_matter_and_the_same_number_made_anew_is_not() -> None:
    assert not gated(anew=False).errors
    (finding,) = gated(anew=True).errors
    assert finding.op == "aten.rsub.Scalar"


def test_momentum_of_a_beta_in_bfloat16_costs_less_than_training_in_it() -> None:
    with precheck.watch() as report:
        beta, velocity, weight = torch.tensor(0.9, dtype=torch.bfloat16), torch.zeros(32), torch.ones(32)
        for turn in range(20):
            velocity = beta * velocity + weight + 0.1 * seeded(32, seed=turn)
            weight = weight - 0.01 * velocity
        report.facts["result"] = weight.norm().item()
    assert not report.errors


def slots(way: str, dtype: torch.dtype) -> Report:
    """One slot of a cache of states, blended with what comes in 300 times; read and written by index, by slice or by scatter."""
    with precheck.watch() as report:
        states, at = torch.zeros(4, 16, dtype=dtype), torch.full((1, 16), 1)
        for turn in range(300):
            held = states[1:2] if way == "slice" else states.gather(0, at)
            new = (0.995 * held.float() + 0.005 * (2 + 0.1 * seeded(1, 16, seed=turn))).to(dtype)
            if way == "slice":
                states[1:2] = new
            else:
                states.scatter_(0, at, new)
        report.facts["result"] = states.float().norm().item()
    return report


def test_a_slot_is_a_state_however_it_is_read_and_written_and_its_own_store_is_no_factor() -> None:
    assert {finding.rule for finding in slots("slice", torch.bfloat16).errors} == {"absorption"}
    assert [finding.rule for finding in slots("scatter", torch.bfloat16).errors] == ["absorption"]
    assert not slots("slice", torch.float32).errors
    assert not slots("scatter", torch.float32).errors


def stored_and_widened(*, again: bool) -> Report:
    """A state that goes to bfloat16 and back on one line in each turn; or as many batches of data that do."""
    with precheck.watch() as report:
        state = torch.zeros(16)
        for turn in range(300):
            new = 2 + 0.1 * seeded(16, seed=turn)
            if again:
                state = (0.995 * state + 0.005 * new).to(torch.bfloat16).float()
            else:
                state = 0.995 * state + 0.005 * new.to(torch.bfloat16).float()
        report.facts["result"] = state.norm().item()
    return report


def test_a_round_trip_on_one_line_is_meant_but_for_a_state_that_takes_it_in_each_turn() -> None:
    assert stored_and_widened(again=True).errors
    assert not stored_and_widened(again=False).errors
