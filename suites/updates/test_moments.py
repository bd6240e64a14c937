"""What else of an optimizer a low format swallows: decays, moments, epsilons, averages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import precheck
from precheck.formats import BF16, FP16, FP32, Format

brief = settings(max_examples=40, deadline=None, database=None)
WAYS = pytest.mark.parametrize("way", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
DECAY = 0.999


def adam(fmt: Format, gradients: list[float], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight of ones after Adam has taken steps with these gradients everywhere, and its second moment."""
    weight = torch.nn.Parameter(torch.ones(40, dtype=fmt.dtype))
    optimizer = torch.optim.Adam([weight], betas=(0.9, DECAY), **options)
    for value in gradients:
        weight.grad = torch.full_like(weight, value)
        optimizer.step()
    return weight.detach(), optimizer.state[weight]["exp_avg_sq"]


@WAYS
def test_in_bf16_the_second_moment_of_adam_never_forgets(way: dict[str, bool]) -> None:
    """One gradient of 10 and two hundred of nothing: 0.999^200 = 0.82 of it is left in float32, all of it in bf16."""
    gradients = [10.0] + [0.0] * 200
    _, first = adam(BF16, gradients[:1], **way)
    _, low = adam(BF16, gradients, **way)
    _, exact = adam(FP32, gradients, **way)
    assert torch.equal(low, first)
    # Each decay rounds twice, the factor and the product: 2 * 200 roundings of 2^-24.
    assert torch.allclose(exact, torch.tensor(0.1 * DECAY**200), rtol=400 * FP32.unit_roundoff)


@brief
@given(st.integers(BF16.min_exponent + 20, 60), st.integers(128, 255))
def test_no_bf16_number_sees_a_decay_of_0_999(exponent: int, significand: int) -> None:
    """0.999 takes a thousandth, half the spacing below a number is 2^-9 of it at least; as a bf16 tensor the factor is 1.0 anyway."""
    value = math.ldexp(significand, exponent - 7)
    moment = torch.full((40,), value, dtype=torch.bfloat16)
    assert bool((moment * DECAY == value).all())
    assert BF16.absorbs(value, -(1 - DECAY) * value)
    assert torch.tensor(DECAY, dtype=torch.bfloat16) == 1.0


@brief
@given(st.floats(0.9, 0.9999), st.sampled_from((BF16, FP16)))
def test_an_average_stops_short_of_what_it_averages(decay: float, fmt: Format) -> None:
    """An average from 0.5 towards 1.0 rests where (1 - decay)(1 - average) is half a spacing: 2^-(p+1) / (1 - decay) short of it.

    By `lerp`, whose product and sum are taken in float32: two roundings of 2^-25, and where it rests is known to a spacing, 2^-p.
    """
    average, target = torch.full((8,), 0.5, dtype=fmt.dtype), torch.ones(8, dtype=fmt.dtype)
    rate = fmt.round(1 - decay)  # torch casts the number to the format
    for _ in range(4000):
        before = average
        average = torch.lerp(average, target, rate)
        if torch.equal(average, before):
            break
    spacing = 2.0**-fmt.precision
    short = min(0.5, spacing / 2 / rate)
    assert 1 - average[0].item() == pytest.approx(short, abs=spacing + 2.0**-24 / rate)


@pytest.mark.parametrize("way", [{"foreach": False}, {"foreach": True}], ids=["single", "foreach"])
@pytest.mark.parametrize("eps", [1e-8, 2.9e-8, 3.1e-8, 1e-7])
def test_an_epsilon_below_half_the_smallest_fp16_number_makes_nan(eps: float, way: dict[str, bool]) -> None:
    """2^-25 = 2.98e-8 is that half. A parameter without a gradient yet is then moved by 0 / 0."""
    weight, _ = adam(FP16, [0.0], eps=eps, **way)
    assert bool(weight.isnan().all()) == (FP16.round(eps) == 0.0) == (eps < 2.0**-25)


def test_the_fused_kernel_divides_in_float32() -> None:
    weight, _ = adam(FP16, [0.0], eps=1e-8, fused=True)
    assert bool((weight == 1.0).all())


@brief
@given(st.floats(1e-6, 1e-2))
def test_small_gradients_have_no_square_in_fp16(gradient: float) -> None:
    """The square in units of the smallest number, 2^-24, and times 1 - beta2 = 1e-3 as torch's Adam takes it."""
    _, moment = adam(FP16, [gradient], foreach=False)
    held = FP16.round(gradient)
    assert moment[0].item() == FP16.round(FP32.round(FP32.round(1 - DECAY) * FP32.round(held * held)))
    assert (moment[0].item() == 0.0) or gradient > 5e-3  # sqrt(2^-25 / 1e-3) = 5.5e-3


@pytest.mark.parametrize(("fmt", "gradient", "found"), [(BF16, 1e-40, []), (FP16, 1e-7, ["underflow"])], ids=["bf16", "fp16"])
def test_a_moment_that_float32_itself_hardly_holds_is_no_loss(fmt: Format, gradient: float, found: list[str]) -> None:
    """A tenth of 1e-40 is below bfloat16's smallest number. It is subnormal in float32 too, and moves a weight by 1e-35 at most."""
    weight = torch.nn.Parameter(torch.ones(40, dtype=fmt.dtype))
    optimizer = torch.optim.Adam([weight], lr=0.01, eps=1e-4)
    with precheck.watch() as report:
        (weight * torch.tensor([gradient] * 20 + [1.0] * 20, dtype=fmt.dtype)).sum().backward()
        optimizer.step()
    assert [error.rule for error in report.errors if "exp_avg " in error.message] == found
