"""The dead zone: which steps a weight of a low format does not see, whichever way torch takes them.

A weight moves if the step is longer than half its distance to the next number, and at exactly half of it if its last bit is
odd. Torch adds bf16 and fp16 in float32 and rounds twice, which for a step that is itself a number of the format is as good as
once: 24 bits are twice 11 and two more (Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precheck.formats import BF16, FP16, FP32, Format

brief = settings(max_examples=60, deadline=None, database=None)
every_format = pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)

Way = Callable[[torch.Tensor, float], None]


def _sgd(foreach: bool) -> Way:
    def step(weight: torch.Tensor, length: float) -> None:
        weight.grad = torch.ones_like(weight)
        torch.optim.SGD([weight], lr=abs(length), foreach=foreach, maximize=length < 0).step()

    return step


WAYS: dict[str, Way] = {
    "number": lambda weight, step: weight.sub_(step),
    "out-of-place": lambda weight, step: weight.copy_(weight - step),
    "tensor": lambda weight, step: weight.sub_(torch.full_like(weight, step)),
    "alpha": lambda weight, step: weight.add_(torch.ones_like(weight), alpha=-step),
    "addcdiv": lambda weight, step: weight.addcdiv_(torch.ones_like(weight), torch.ones_like(weight), value=-step),
    "foreach": lambda weight, step: torch._foreach_add_([weight], [torch.ones_like(weight)], alpha=-step),
    "float32": lambda weight, step: weight.copy_(weight.float() - step),
    "sgd": _sgd(foreach=False),
    "sgd-foreach": _sgd(foreach=True),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def stored(value: float, fmt: Format, size: int = 1) -> torch.Tensor:
    return torch.full((size,), value, dtype=fmt.dtype)


def stepped(value: float, step: float, fmt: Format, way: Way, times: int = 1) -> float:
    """A weight of `value` after that many steps; of 33 equal ones, so that vectorised code and its tail have to agree."""
    weight = stored(value, fmt, 33)
    for _ in range(times):
        way(weight, step)
    assert bool((weight == weight[0]).all())
    return weight[0].item()


def every_weight(fmt: Format) -> torch.Tensor:
    """All finite numbers of the format but the two largest, beside which lies infinity."""
    values = torch.arange(1 << 16).to(torch.int16).view(fmt.dtype)
    return values[values.isfinite() & (values.abs() < fmt.max)]


def dead_zone(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Half the way to the next number down and up, in float64, and whether the last bit is even: by torch, not by precheck."""
    end = torch.full_like(weights, math.inf)
    down, up = (weights.double() - torch.nextafter(weights, -end).double()) / 2, (torch.nextafter(weights, end).double() - weights.double()) / 2
    return down, up, weights.view(torch.int16) & 1 == 0


@st.composite
def steps(draw: st.DrawFn, fmt: Format) -> tuple[float, float]:
    """A weight and a step around what it can just see, both numbers of the format."""
    bits = draw(st.integers(0, (1 << 16) - 1))
    weight = torch.tensor([bits]).to(torch.int16).view(fmt.dtype).item()
    weight = weight if math.isfinite(weight) else 1.0
    length = draw(st.sampled_from(fmt.half_ulp(weight))) * draw(st.sampled_from((0.5, 0.99, 1.0, 1.01, 2.0)) | st.floats(2.0**-9, 2.0**9))
    return weight, fmt.round(draw(st.sampled_from((-1.0, 1.0))) * length)


# --- the law -------------------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("sign", [1, -1], ids=["down", "up"])
@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
def test_every_weight_there_is_moves_as_half_its_spacing_says(fmt: Format, sign: int, share: float) -> None:
    """All 2^16 of them: half of the half gap never moves, the half gap itself moves odd ones, half as much again moves all."""
    weights = every_weight(fmt)
    down, up, even = dead_zone(weights)
    length = share * (down if sign > 0 else up)
    step = length.to(fmt.dtype)
    exact = step.double() == length  # at the smallest numbers the half gap is no number of the format
    assert int(exact.sum()) > 0.9 * exact.numel()
    stays = (weights - sign * step) == weights
    assert torch.equal(stays[exact], (even if share == 1.0 else torch.full_like(even, share < 1.0))[exact])


@every_format
@brief
@given(data=st.data())
def test_a_step_is_lost_if_it_lies_in_the_dead_zone(fmt: Format, data: st.DataObject) -> None:
    """`Format.absorbs`, half an ulp and the parity of the bits, and torch's own subtraction are one law, for any weight and step."""
    weight, step = data.draw(steps(fmt))
    held = stored(weight, fmt)
    half, even = fmt.half_ulp(weight)[step < 0], bool(held.view(torch.int16) & 1 == 0)
    dead = abs(step) < half or (abs(step) == half and even)
    assert fmt.absorbs(weight, -step) == dead
    assert bool(held - torch.tensor([step], dtype=fmt.dtype) == held) == dead


@every_format
@every_way
@brief
@given(data=st.data())
def test_however_it_is_written_the_same_steps_are_lost(fmt: Format, way: Way, data: st.DataObject) -> None:
    """Numbers, tensors, alpha, foreach, float32 arithmetic on a low weight, torch's SGD: where it is stored is what counts."""
    weight, step = data.draw(steps(fmt))
    assert stepped(weight, step, fmt, way) == fmt.round(weight - step)


@every_format
@every_way
@brief
@given(data=st.data())
def test_what_does_not_move_at_once_never_moves(fmt: Format, way: Way, data: st.DataObject) -> None:
    """Twenty steps that are each lost are lost together, though float32 has moved by twenty."""
    weight, step = data.draw(steps(fmt).filter(lambda drawn: drawn[1] != 0 and fmt.absorbs(drawn[0], -drawn[1])))
    assert stepped(weight, step, fmt, way, times=20) == weight


@every_format
@brief
@given(data=st.data())
def test_a_growing_weight_comes_to_rest(fmt: Format, data: st.DataObject) -> None:
    """Equal steps from zero carry a weight to 2^precision of them: there the spacing is two steps, and half of it is lost."""
    step = math.ldexp(1.0, data.draw(st.integers(fmt.min_exponent, 4)))
    rest = math.ldexp(step, fmt.precision)
    before = stored(rest - step, fmt)
    assert (before + step).item() == rest
    assert stepped(rest - 3 * step, -step, fmt, WAYS["number"], times=20) == rest
    assert fmt.absorbs(rest, step)


# --- the numbers that people meet ----------------------------------------------------------------------------------------


@every_way
def test_a_thousand_steps_leave_a_bf16_weight_where_it_was(way: Way) -> None:
    """1.23456 less 1e-4 is 1.234375, which is also all that bf16 knows of the 1.23446 sometimes printed; float32 arrives at 1.13456."""
    assert stepped(1.23456, 1e-4, BF16, way, times=1000) == stored(1.23446, BF16).item() == 1.234375
    assert stepped(1.23456, 1e-4, FP32, way, times=1000) == pytest.approx(1.13456, abs=1000 * FP32.ulp(1.2) / 2)


@every_way
def test_a_norm_weight_of_one_moves_down_at_half_the_step_that_moves_it_up(way: Way) -> None:
    """Below 1.0 numbers are 2^-8 apart, above it 2^-7. Half of either is a tie, and 1.0 is even."""
    assert [stepped(1.0, step, BF16, way) for step in (1.95e-3, 2.0**-9, 1.97e-3)] == [1.0, 1.0, 1 - 2.0**-8]
    assert [stepped(1.0, -step, BF16, way) for step in (3.9e-3, 2.0**-8, 3.93e-3)] == [1.0, 1.0, 1 + 2.0**-7]


@every_way
def test_the_rate_is_rounded_before_the_weight_is(way: Way) -> None:
    """1.96e-3 is beyond the 2^-9 that 1.0 must see, but it is 2^-9 in bf16, to which torch casts numbers and alpha, not addcdiv's value."""
    assert BF16.round(1.96e-3) == 2.0**-9
    keeps = way in (WAYS["addcdiv"], WAYS["float32"])
    assert stepped(1.0, 1.96e-3, BF16, way) == (1 - 2.0**-8 if keeps else 1.0)


@pytest.mark.parametrize(("fmt", "last"), [(BF16, 256.0), (FP16, 2048.0), (FP32, 2.0**24)], ids=str)
@every_way
def test_counting_stops(fmt: Format, last: float, way: Way) -> None:
    assert stepped(last - 2, -1.0, fmt, way, times=10) == last


@every_format
@given(share=st.floats(2.0**-20, 2.0**-2))
@brief
def test_the_textbook_update_is_not_seen(fmt: Format, share: float) -> None:
    """Updates of a 2^-(precision+1)th of a weight are lost on all weights, those of 2^-precision on none, rounding of the step apart.

    1e-3 of the weight, which is what is taught to aim at, is below bf16's 2^-9.
    """
    weights = torch.linspace(1, 2, 1025, dtype=torch.float64)[:-1].to(fmt.dtype)
    moved = (weights.float() * (1 - share)).to(fmt.dtype) != weights
    slack = 1 + 2.0**-10  # the product is rounded to float32 first
    assert share * slack >= 2.0 ** -(fmt.precision + 1) or not moved.any()
    assert share <= 2.0**-fmt.precision * slack or moved.all()
    assert 1e-3 < 2.0 ** -(BF16.precision + 1)
