"""The poles of each function, as the registry has them: where torch gives Inf or NaN, and where an infinite slope."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from precheck import ops

NEAR = 1e-9
CASES = [(name, pole) for name, row in ops.REGISTRY.items() for pole in row.poles]


def function(name: str, pole: ops.Pole) -> Callable[[torch.Tensor], torch.Tensor]:
    """The op as a function of the operand that has the pole; its others are ones, and zero where something is added."""
    one = torch.ones((), dtype=torch.float64)
    if name == "pow":
        exponent = -1.5 if pole.when == "negative exponent" else 0.5
        return lambda x: torch.pow(x, exponent)
    if name == "polygamma":
        return lambda x: torch.polygamma(1, x)
    if name == "addcdiv":
        return lambda x: torch.addcdiv(0 * one, one, x)
    called = getattr(torch.special, name.removeprefix("special_")) if name.startswith("special_") else getattr(torch, name)
    return (lambda x: called(one, x)) if pole.operand == "b" else called


def at(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("name", "pole"), CASES, ids=lambda case: case if isinstance(case, str) else f"{case.operand}={case.at:.2g}-{case.what}")
def test_a_function_leaves_the_finite_numbers_at_its_poles(name: str, pole: ops.Pole) -> None:
    called = function(name, pole)
    if pole.what == "value":
        there = float(called(at(pole.at)).detach())
        assert not math.isfinite(there) or abs(there) > 1e15, f"{name} is {there} at {pole.at}"
    elif pole.what == "edge":
        sides = [float(called(at(pole.at + step)).detach()) for step in (-NEAR, NEAR)]
        assert [math.isnan(side) for side in sides].count(True) == 1, f"{name} is {sides} on both sides of {pole.at}"
    else:
        x = at(pole.at)
        called(x).backward()
        assert x.grad is not None
        assert not x.grad.isfinite(), f"the slope of {name} is {x.grad} at {pole.at}"


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES} - {"floor_divide"}))  # which has no slope
def test_between_its_poles_a_function_is_finite(name: str) -> None:
    poles = [pole for pole in ops.REGISTRY[name].poles if pole.when != "fractional exponent"]
    inside = {"acosh": 2.5, "logit": 0.4, "special_ndtri": 0.4}.get(name, 0.25)
    x = at(inside)
    made = function(name, poles[0])(x)
    made.backward()
    assert made.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite()


def test_a_whole_power_has_no_pole_and_ends_nowhere() -> None:
    for value in (0.0, -NEAR):
        x = at(value)
        made = torch.pow(x, 2.0)
        made.backward()
        assert made.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite()


@pytest.mark.parametrize("name", sorted(ops.POLYNOMIAL & {"add", "sub", "mul", "lerp", "addcmul"}))
def test_polynomials_have_no_poles(name: str) -> None:
    assert not ops.REGISTRY[name].poles
    assert name not in ops.POLES
