"""Linearity and scale of each op, as the registry has them, on torch's own calls and directions and scales that hypothesis draws."""

from __future__ import annotations

import math
import random
import string
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_calls import Call, Calls

from precheck import ops

LETTERS = string.ascii_lowercase
TOLERANCE = 1e-9
"""Of float64's results, relative: sums of some hundred terms, and what float32 is not right to."""
few = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**16)
HELD = [name for name, row in ops.REGISTRY.items() if row.library == "aten" and row.linear]
SCALED = [name for name, row in ops.REGISTRY.items() if row.library == "aten" and row.law]
SMOOTH = {ops.Kind.SUM, ops.Kind.BLEND, ops.Kind.PRODUCT, ops.Kind.QUOTIENT, ops.Kind.FUSED, ops.Kind.CONTRACTION, ops.Kind.REDUCTION,
          ops.Kind.RUNNING, ops.Kind.NORM, ops.Kind.MOMENT, ops.Kind.LOGARITHM, ops.Kind.EXPONENTIAL, ops.Kind.POWER, ops.Kind.PIECEWISE,
          ops.Kind.BOUND, ops.Kind.MOVE, ops.Kind.JOIN}  # fmt: skip
"""Kinds of which the row says all operands in which an op is linear."""
BENT = [name for name, row in ops.REGISTRY.items() if row.library == "aten" and row.kind in SMOOTH and row.accumulates != "may scatter"]


def linear_in(row: ops.OpSpec, call: Call) -> list[int]:
    count = len(call.operands)
    return list(range(count)) if row.linear == "..." else [LETTERS.index(letter) for letter in row.linear if LETTERS.index(letter) < count]


def moved(call: Call, place: int, step: torch.Tensor) -> list[torch.Tensor]:
    operands = call.operands
    operands[place] = operands[place] + step
    return call.with_operands(operands)()


def off_a_line(call: Call, place: int, seed: int) -> float:
    """How far f(x + d) - 2 f(x) + f(x - d) is from zero, beside these."""
    operand = call.operands[place]
    step = torch.randn(operand.shape, dtype=operand.dtype, generator=torch.Generator().manual_seed(seed))
    there, here, back = moved(call, place, step), call(), moved(call, place, -step)
    worst = 0.0
    for one, two, three in zip(there, here, back, strict=True):
        size = max(float(part.abs().max()) if part.numel() else 0.0 for part in (one, two, three))
        bend = (one - 2 * two + three).abs()
        if not bend.isfinite().all():
            return math.inf
        worst = max(worst, float(bend.max()) / (size or 1.0) if bend.numel() else 0.0)
    return worst


@few
@given(seed=seeds)
@pytest.mark.parametrize("name", HELD)
def test_an_op_is_linear_where_its_row_says_so(calls: Calls, name: str, seed: int) -> None:
    for call in calls.get(name, ()):
        for place in linear_in(ops.REGISTRY[name], call):
            if call.operands[place].isfinite().all():
                assert off_a_line(call, place, seed) < TOLERANCE, f"{call.func} is not linear in {LETTERS[place]}"


@pytest.mark.parametrize("name", BENT)
def test_an_op_is_linear_nowhere_else(calls: Calls, name: str) -> None:
    row = ops.REGISTRY[name]
    straight: dict[int, bool] = {}
    for call in calls.get(name, ()):
        for place in set(range(len(call.operands))) - set(linear_in(row, call)):
            bends = any(off_a_line(call, place, seed) > TOLERANCE for seed in range(3))
            straight[place] = straight.get(place, True) and not bends
    found = [LETTERS[place] for place, always in straight.items() if always]
    assert not found, f"{name} is linear in {found}, and its row does not say so"


@few
@given(seed=seeds)
@pytest.mark.parametrize("name", sorted(ops.STEADY))
def test_no_error_grows_in_a_steady_op(calls: Calls, name: str, seed: int) -> None:
    """Elements of any size, moved by up to thirty: the result moves by twice as much at most."""
    tried = 0
    for call in calls.get(name, ()):
        for place, operand in enumerate(call.operands):
            if not operand.numel() or not operand.isfinite().all():
                continue
            step = 10 * torch.randn(operand.shape, dtype=operand.dtype, generator=torch.Generator().manual_seed(seed))
            for here, there in zip(call(), moved(call, place, step), strict=True):
                tried += here.numel()
                assert float((there - here).abs().max()) <= 2 * float(step.abs().max()) * (1 + TOLERANCE), f"{call.func} enlarges an error"
    assert tried, f"no call of {name} was tried"


def exponents(law: str, call: Call, draw: random.Random) -> tuple[list[int], float] | None:
    """Powers of two to scale the operands by, so that all terms of the law have one scale; and the power that the result has then."""
    letters = LETTERS[: len(call.operands)]
    wanted = [term for term in ops.terms(law, letters) if all(letter in letters for letter in term)]
    if len(wanted) < len(ops.terms(law, letters)) and law != "a*b + c":
        return None
    drawn = {letter: draw.choice((-4, -2, 2, 4)) for letter in letters}
    powers = [sum(drawn[letter] * power for letter, power in term.items()) for term in wanted]
    for term, power in zip(wanted[1:], powers[1:], strict=True):
        letter, own = next(iter(term.items()))
        drawn[letter] += int((powers[0] - power) / own)
    named = {letter for term in wanted for letter in term}
    return [drawn[letter] if letter in named else 0 for letter in letters], powers[0]


def unfit(row: ops.OpSpec, call: Call) -> bool:
    """Whether a call has numbers of its own beside its operands, which scale with nothing, or is another op of the same name."""
    values = [*call.args[1:], *call.kwargs.values()]
    numbers = any(isinstance(value, float) and value != 0 for value in values)
    if row.kind is ops.Kind.CHOICE:
        return len(call.operands) > 1  # the larger of two, element by element
    if row.kind is ops.Kind.NORM:
        return any(value == 0 for value in call.args[1:2])  # how many are not zero
    if row.kind in (ops.Kind.BOUND, ops.Kind.REMAINDER):
        return len(call.operands) < 2
    filled = row.name in ("masked_fill", "index_fill") and len(call.operands) < 2
    return filled or (numbers and (row.law == "a + ..." or row.name in ("constant_pad_nd", "nan_to_num")))


@few
@given(seed=seeds)
@pytest.mark.parametrize("name", SCALED)
def test_a_scale_passes_through_an_op_as_its_law_says(calls: Calls, name: str, seed: int) -> None:
    row, tried = ops.REGISTRY[name], 0
    for call in calls.get(name, ()):
        found = None if unfit(row, call) else exponents(row.law, call, random.Random(seed))
        if found is None:
            continue
        powers, total = found
        before, tried = call(), tried + 1
        scaled = call.with_operands([operand * 2.0**power for operand, power in zip(call.operands, powers, strict=True)])
        for one, other in zip(before, scaled(), strict=True):
            why = f"the scale that {call.func} hands on is not that of {row.law}"
            torch.testing.assert_close(other, one * 2.0**total, rtol=TOLERANCE, atol=0.0, equal_nan=True, msg=why)
    assert tried or name not in calls, f"no call of {name} tells its law"


def test_sums_bring_absolute_errors() -> None:
    """What `ADDITIVE` says is that the law has one operand a term, and that the op is linear in each."""
    for name in ops.ADDITIVE - ops.REDUCED:
        row: Any = ops.REGISTRY[name]
        assert row.linear, name
        assert all(list(term.values()) == [1.0] for term in ops.terms(row.law, "ab")), name
