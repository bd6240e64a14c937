"""Scales that are left in a result: used once more where they had cancelled, forgotten in a gradient, or never applied by a cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from casts_by_hand import to_float8, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from frozen import watched
from torch import nn

Program = Callable[[bool], torch.Tensor]


def scale_of_the_weight_again(bug: bool) -> torch.Tensor:
    (qx, sx), (qw, sw) = to_float8(normal(16, 64), 1), to_float8(channels(), 1)
    y = (qx.float() * sx) @ (qw.float() * sw).t()
    return nn.functional.silu(y * sw.t() if bug else y).to(LOW)


def scale_again_in_training(bug: bool) -> torch.Tensor:
    w = channels().requires_grad_()
    scale = w.detach().abs().amax(1, keepdim=True) / 7
    dense = torch.round(w.detach() / scale) * scale
    dense = dense * scale if bug else dense
    return (normal(16, 64) @ (w + (dense - w).detach()).t()).detach().to(LOW)


def scale_left_in_a_gradient(bug: bool) -> torch.Tensor:
    """The product for the gradient of a weight has two scales, and one of them is multiplied into it."""
    x, w = normal(16, 64), channels().requires_grad_()

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            (qx, sx), (qw, sw) = to_float8(x, (0, 1)), to_float8(w, (0, 1))
            ctx.kept = qx, sx
            return qx.float() @ qw.float().t() * sx * sw

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[None, torch.Tensor]:
            qx, sx = ctx.kept
            scale = g.abs().amax() / 57344
            product = (g / scale).to(torch.float8_e5m2).float().t() @ qx.float() * scale
            return None, product if bug else product * sx

    Linear.apply(x, w).square().mean().backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    return w.grad.to(LOW)


def sums_in_sixteen_bits(bug: bool) -> torch.Tensor:
    (qx, sx), (qw, sw) = to_int8(normal(16, 256), 1), to_int8(normal(32, 256, seed=1), 1)
    sums = qx.to(torch.int32) @ qw.to(torch.int32).t()
    return ((sums.to(torch.int16) if bug else sums).float() * sx * sw.t()).to(LOW)


def cast_without_its_scale(bug: bool) -> torch.Tensor:
    x = normal(32, 64)
    scale = 448 / x.abs().amax()
    codes = (x if bug else x * scale).to(E4M3)
    return nn.functional.gelu(codes.float() / scale @ channels().t()).to(LOW)


def cast_before_its_scale(bug: bool) -> torch.Tensor:
    """Small numbers are cast without a scale, and once more with one."""
    x = normal(32, 64) * 1e-3
    scale = 448 / x.abs().amax()
    codes = ((x.to(E4M3).float() if bug else x) * scale).to(E4M3)
    return (codes.float() / scale @ channels().t()).to(LOW)


FAULTS = {
    scale_of_the_weight_again: ("wrong-scale", "these scales do not cancel"),
    scale_again_in_training: ("wrong-scale", "these scales do not cancel"),
    scale_left_in_a_gradient: ("wrong-scale", "a scale is missing here"),
    sums_in_sixteen_bits: ("wrong-scale", "have wrapped round in int16"),
    cast_without_its_scale: ("wrong-scale", "were cast without a scale, and one that is made of them is taken out here"),
    cast_before_its_scale: ("clipping", "there is no scale, and the format goes up to numbers"),
}


@pytest.mark.parametrize(("program", "told"), FAULTS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_is_found_and_the_same_code_without_it_is_left_in_peace(program: Program, told: tuple[str, str]) -> None:
    error = watched(program, True).errors[0]
    assert error.rule == told[0]
    assert told[1] in error.message
    assert not watched(program, False).findings


def attention(weights: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `weights` makes of scores, codes of values and their scale, plus other data."""
    q, k, v = (normal(4, 16, 16, seed=seed) for seed in range(3))
    codes, scale = to_float8(v, (1, 2))
    return (weights(q @ k.mT / 4, codes.float(), scale) + normal(4, 16, 16, seed=3)).relu()


def codes_divided_by_their_sum(scores: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    p = (torch.exp(scores - scores.amax(-1, keepdim=True)) * 448).to(E4M3).float()
    return p @ v * scale / p.sum(-1, keepdim=True)


def sum_before_the_cast(scores: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    p = torch.exp(scores - scores.amax(-1, keepdim=True)) * 448
    return p.to(E4M3).float() @ v * scale / p.sum(-1, keepdim=True)


def divided_by_the_number(scores: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(scores, -1) * 448).to(E4M3).float() @ v / 448 * scale


def scale_divided_by_the_number(scores: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(scores, -1) / (1 / 448)).to(E4M3).float() @ v * (scale / 448)


def number_in_the_exponent(scores: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.log_softmax(scores, -1) + 6.104793232414985).to(E4M3).float() @ v * (scale / 448)


HEALTHY = (codes_divided_by_their_sum, sum_before_the_cast, divided_by_the_number, scale_divided_by_the_number, number_in_the_exponent)


@pytest.mark.parametrize("weights", HEALTHY, ids=lambda each: each.__name__)
def test_weights_times_the_largest_number_are_left_in_peace_where_it_is_taken_out(weights: Callable[..., torch.Tensor]) -> None:
    assert not watched(lambda _: attention(weights), False).findings


def test_weights_times_the_largest_number_are_found_where_it_is_left() -> None:
    error = watched(lambda _: attention(lambda scores, v, scale: (torch.softmax(scores, -1) * 448).to(E4M3).float() @ v * scale), False).errors[0]
    assert error.rule == "wrong-scale"
    assert "the whole result is 448 times what it should be" in error.message


def data_rounded_twice(_: bool) -> torch.Tensor:
    """What was dequantised is divided by its scale and rounded again, under the same scale."""
    codes, scale = to_int8(normal(64, 32), 1)
    again = torch.round(codes.float() * scale / scale)
    return normal(4, 64) @ (again * scale)


def greatest_made_one(_: bool) -> torch.Tensor:
    k = normal(64, 32)
    top = k.abs().amax(1, keepdim=True)
    return nn.functional.gelu(torch.round(k / top * 127) / 127 * top / top)


def cast_and_divided_by_its_greatest(_: bool) -> torch.Tensor:
    """Numbers are cast as they are, and what was cast is divided by its own greatest magnitude afterwards."""
    y = normal(16, 64).to(E4M3).float()
    return nn.functional.gelu(y / y.abs().amax(1, keepdim=True) @ channels().t())


def clamped_after_a_cast(_: bool) -> torch.Tensor:
    return nn.functional.relu6((normal(16, 64) * 4).to(E4M3).float()) @ channels().t()


@pytest.mark.parametrize("program", [data_rounded_twice, greatest_made_one, cast_and_divided_by_its_greatest, clamped_after_a_cast])
def test_scales_that_are_used_again_on_purpose_are_left_in_peace(program: Program) -> None:
    assert not watched(program, False).findings
