"""Rounding in the forms that training needs: gradients pass straight through, or a chance decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from float8_by_hand import LOW, channels, normal
from frozen import watched
from torch import nn

Rounding = Callable[[torch.Tensor], torch.Tensor]


class Passed(torch.autograd.Function):
    """`round`, whose gradient is 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def passed(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = Passed.apply(x)  # type: ignore[no-untyped-call]
    return made


FORMS: dict[str, Rounding] = {
    "difference first": lambda x: (x.round() - x).detach() + x,
    "difference last": lambda x: x + (x.round() - x).detach(),
    "difference subtracted": lambda x: x - (x - x.round()).detach(),
    "a function": passed,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", ["clipping", "wrong-scale"])
def test_faults_are_seen_through_each_form(form: str, fault: str) -> None:
    def program(bug: bool) -> torch.Tensor:
        x, w = normal(64, 32) * torch.exp2(normal(64, 1, seed=2)), normal(32, 16, seed=1)
        step = x.abs().amax(1, keepdim=True) / 7
        step = step / 3 if bug and fault == "clipping" else step
        codes = FORMS[form]((x / step).clamp(-8, 7))
        return (codes * (x.abs().amax() / 7 if bug and fault == "wrong-scale" else step) @ w).to(LOW)

    assert watched(program, True).errors[0].rule == fault
    assert not watched(program, False).findings


@pytest.mark.parametrize("form", FORMS)
def test_steps_and_weights_that_are_trained_are_left_in_peace(form: str) -> None:
    """The gradient of a step has codes in it, which no scale is multiplied into. Some numbers are clipped while a step is learned."""

    def program(_: bool) -> torch.Tensor:
        w = nn.Parameter(channels())
        step = nn.Parameter(w.detach().abs().mean(1, keepdim=True) * 2 / 7**0.5)
        optimizer = torch.optim.SGD([w, step], lr=1e-3)
        for batch in range(3):
            optimizer.zero_grad()
            dense = FORMS[form]((w / step).clamp(-8, 7)) * step
            (normal(8, 64, seed=batch) @ dense.t()).square().mean().backward()
            optimizer.step()
        return step.detach()

    assert not watched(program, False).findings


def test_scales_that_gradients_flow_through_are_left_in_peace() -> None:
    """Neither scale is detached, so the backward pass multiplies codes by gradients that have the other scale in them."""

    def program(_: bool) -> torch.Tensor:
        w, x = nn.Parameter(channels()), normal(16, 64).requires_grad_()
        scale, each = w.abs().amax(1, keepdim=True) / 127, x.abs().amax(1, keepdim=True) / 127
        y = passed(x / each) @ passed(w / scale).t() * each * scale.t()
        y.square().mean().backward()
        assert w.grad is not None
        return w.grad

    assert not watched(program, False).findings


def test_an_average_that_is_kept_from_zero_is_still_an_average() -> None:
    """BitNet: three numbers under the mean magnitude, to which a small number is added."""

    def program(_: bool) -> torch.Tensor:
        w = channels()
        scale = w.abs().mean()
        codes = torch.clamp(torch.round(w / (scale + 1e-5)), -1, 1)
        return nn.functional.silu(normal(8, 64) @ codes.t() * scale).to(LOW)

    assert not watched(program, False).findings


@pytest.mark.parametrize("drawn", ["a mask", "bernoulli"])
def test_a_chance_that_is_added_to_a_floor_is_judged_as_rounding(drawn: str) -> None:
    def program(bug: bool) -> torch.Tensor:
        g = normal(64, 64) * 1e-3
        scale = g.abs().amax() / 7
        floor, chance = torch.floor(g / scale), torch.Generator().manual_seed(2)
        part = g / scale - floor
        part = part * part if bug else part
        up = torch.rand(64, 64, generator=chance) < part if drawn == "a mask" else torch.bernoulli(part, generator=chance)
        return ((floor + up) * scale @ (1 + normal(64, 8, seed=2))).to(LOW)

    assert watched(program, True).errors[0].rule == "biased-rounding"
    assert not watched(program, False).findings


def test_a_table_that_is_not_that_of_the_codes_is_found() -> None:
    levels = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                           0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0])  # fmt: skip

    def program(bug: bool) -> torch.Tensor:
        w = channels().view(-1, 64)
        top = w.abs().amax(1, keepdim=True)
        places = (w / top).unsqueeze(-1).sub(levels).abs().argmin(-1)
        dense = (torch.linspace(-1, 1, 16) if bug else levels)[places] * top
        return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)

    error = watched(program, True).errors[0]
    assert error.rule == "wrong-scale"
    assert "are no longer what was rounded there" in error.message
    assert not watched(program, False).findings
