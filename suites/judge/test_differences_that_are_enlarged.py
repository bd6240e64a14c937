"""Differences whose own gain does not show what they lose: quotients by a small step, results beside data, two differences in a row, lost numbers."""

from __future__ import annotations

import math

import torch
from scenario import finds, passes, watched
from torch.nn import functional

import precheck

LOW, HALF = torch.bfloat16, torch.float16


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def loss(weight: torch.Tensor, low: bool) -> torch.Tensor:
    with torch.autocast("cpu", LOW, enabled=low):
        made = (normal(64, 16) @ weight).tanh()
    return functional.mse_loss(made.float(), normal(64, 8, seed=1))


def slope(low: bool = True, step: float = 1e-3) -> torch.Tensor:
    way = normal(16, 8, seed=2)
    above, below = (loss(normal(16, 8, seed=3) / 4 + sign * step * way, low) for sign in (1, -1))
    return (above - below) / (2 * step)  # fault


def improvement(low: bool) -> torch.Tensor:
    """What a step gains, which nobody divides by it."""
    before, after = (loss(normal(16, 8, seed=3) / 4 + step * normal(16, 8, seed=2), low) for step in (0.0, 1e-3))
    return torch.stack([before, after, before - after])


def ratio(low: bool) -> torch.Tensor:
    """A policy's ratio to what it was before a small step."""
    with torch.autocast("cpu", LOW, enabled=low):
        new, old = (normal(64, 16) @ (normal(16, 8, seed=3) + step * normal(16, 8, seed=2)) for step in (1e-4, 0.0))
    return torch.exp(torch.log_softmax(new.float(), -1) - torch.log_softmax(old.float(), -1))


def test_a_difference_quotient_of_a_low_function_is_told() -> None:
    finds(slope, "cancellation", says="nearly equal numbers")
    passes(lambda: slope(False), wide=True)
    passes(lambda: slope(True, step=1.0))


def test_differences_that_nobody_enlarges_are_what_the_precision_means() -> None:
    passes(lambda: improvement(True))
    passes(lambda: ratio(True))


def unwrapped(steps: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    total, found = torch.zeros(len(steps), dtype=low), []
    for step in steps.unbind(1):
        total = total + step.to(low)  # fault
        found.append(total)
    return torch.stack(found, 1).float()


def levelled(phase: torch.Tensor) -> torch.Tensor:
    """A phase without its slope along the rows."""
    place = torch.arange(phase.shape[1]).float()
    place = place - place.mean()
    slope = (phase * place).sum(1, keepdim=True) / place.square().sum()
    return phase - phase.mean(1, keepdim=True) - slope * place


def ripples(low: torch.dtype) -> torch.Tensor:
    return levelled(unwrapped(0.9 + 0.02 * (normal(16, 8) @ normal(8, 32, seed=1)).tanh(), low))


def gains() -> torch.Tensor:
    """What a step makes of each number. Two products round, each for itself."""
    with torch.autocast("cpu", LOW):
        before, after = (normal(64, 16) @ (normal(16, 8, seed=3) + step * normal(16, 8, seed=2)) for step in (0.0, 1e-4))
    one, other = before.float().tanh(), after.float().tanh()
    return torch.stack([one, other, one - other])


def test_a_wide_difference_of_a_number_and_its_own_trend_shows_how_it_was_stored() -> None:
    (found,) = watched(lambda: ripples(LOW)).errors
    assert found.rule == "absorption"
    assert "total = total + step.to(low)" in watched(lambda: ripples(LOW)).summary()
    passes(lambda: ripples(torch.float32), wide=True)
    passes(gains)


def speeds(origin: float = 0.0) -> torch.Tensor:
    keys = (1000 - origin + torch.linspace(0, 2, 64)).to(HALF)  # fault
    places = keys.float() * 0.3 + origin
    return places[1:] - places[:-1]


def test_parts_of_a_wide_tensor_differ_by_what_was_stored_before_it() -> None:
    finds(speeds, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")
    passes(lambda: speeds(1000.0))


def parts(low: bool = True, most: bool = False) -> torch.Tensor:
    """What lies between two states, of which the last four are all but equal."""
    near = torch.cat([torch.ones(60), torch.full((4,), 1e-5)])
    old = torch.linspace(1, 2, 64) if low else torch.linspace(1, 2, 64).double()
    new = old + near
    between = (new.to(LOW) if low else new) - (old.to(LOW) if low else old)  # fault
    return between[:40].float().exp() if most else between[60:].float() * 1e5


def slopes(tilt: float = 0.11) -> torch.Tensor:
    """How steep a wall is, from shifts that are means of all shifts."""
    place = 180 + torch.tensor([[0.4963], [0.7682], [0.0885], [0.1320]]) + tilt * torch.arange(40)
    off = torch.arange(220.0) - place[..., None]
    likely = torch.softmax((-0.5 * off.square()).clamp_min(-30).to(HALF), -1)
    shift = (likely * torch.arange(220).to(HALF)).sum(-1)  # fault
    depth = 400 / shift.float()
    return depth[:, 1:] - depth[:, :-1]


def test_steps_of_one_size_that_are_off_by_half_of_themselves_are_lost() -> None:
    """Less than half of them have no correct digit, since none is small."""
    finds(slopes, "amplified-rounding", says="its rounding error grows at aten.sub.Tensor")
    passes(lambda: slopes(4.0))


def test_a_small_part_of_a_difference_that_is_picked_out_is_told() -> None:
    finds(parts, "cancellation", says="reads a part of this that is small beside the rest")
    passes(lambda: parts(most=True))
    passes(lambda: parts(False), wide=True)


def left_over(first: float = 30.0, second: float = 4.0) -> torch.Tensor:
    """What is left of a sum after two of its parts were taken off, one by one."""
    near, parts = normal(64).clamp(-2, 2) / 2, [each + normal(64, seed=place) / 4 for place, each in enumerate((first, second), 1)]
    return ((near + parts[0] + parts[1]).to(LOW) - parts[0].to(LOW)) - parts[1].to(LOW)  # fault


def test_what_is_taken_off_step_by_step_counts_as_taken_off_at_once() -> None:
    """Neither step loses five bits: the first makes the sum eight times smaller, and the second as many times."""
    finds(left_over, "cancellation", says="a difference of nearly equal numbers")
    passes(lambda: left_over(first=1.0))


def residual(spread: float = 0.02, low: bool = True) -> torch.Tensor:
    """How far points are from where they should be, after a turn that autocast makes low."""
    points, turn, shift = 30 * normal(60, 3), torch.linalg.qr(normal(3, 3, seed=1))[0], torch.tensor([4.0, -9.0, 2.0])
    should = points @ turn.T + shift + spread * normal(60, 3, seed=2)
    with torch.autocast("cpu", LOW, enabled=low):
        turned = points @ turn.T + shift  # fault
    return (turned - should).norm(dim=-1)


def test_a_result_beside_what_it_should_be_is_blamed_on_the_line_that_made_it() -> None:
    finds(residual, "amplified-rounding", says="a difference of nearly equal numbers")
    passes(lambda: residual(low=False), wide=True)
    passes(lambda: residual(spread=20.0))


def places(dtype: torch.dtype = LOW) -> torch.Tensor:
    """Parts of a cell, on a grid whose spacing is a difference of neighbours."""
    grid = torch.linspace(-10, 10, 51).to(dtype)
    place = (8 * torch.rand(200, generator=torch.Generator().manual_seed(0)) + 1).to(dtype) / (grid[1] - grid[0])  # fault
    return place - place.floor()


def test_the_gains_of_two_differences_multiply() -> None:
    finds(places, "cancellation", says="its rounding error grows")
    passes(lambda: places(torch.float32), wide=True)


def polynomial(x: torch.Tensor, last: float) -> torch.Tensor:
    square = x * x
    return x * (0.00489 + square * (0.000637 + square * (1.49e-05 + square * (square * 1e-12 + last)))) / 0.00489


def evaluated(dtype: torch.dtype, last: float) -> torch.Tensor:
    return polynomial((16 * torch.rand(400, generator=torch.Generator().manual_seed(0)) - 8).half().to(dtype), last)


def test_a_coefficient_with_few_bits_is_told() -> None:
    told = watched(lambda: evaluated(HALF, 4.1e-08)).findings[0]
    assert (told.rule, told.severity) == ("vanished-constant", "error")
    assert "4.1e-08 is 5.96e-08 in float16" in told.message
    passes(lambda: evaluated(HALF, 2e-5))
    passes(lambda: evaluated(torch.float32, 4.1e-08))


def exponential_less_one() -> torch.Tensor:
    """A value from its logarithm, which is a mean that is stored low."""
    scores = (8.53 + 0.1 * normal(40, 64)).to(LOW)
    logarithms = scores.mean(-1)  # fault
    return logarithms.exp() - 1


def test_a_sum_that_leaves_an_error_as_it_is_does_not_hide_it() -> None:
    finds(exponential_less_one, "amplified-rounding", says="so few numbers cost nothing in float32")


def ratio_of_gradients(low: bool = True) -> torch.Tensor:
    weight = (normal(8, 16) / 4).requires_grad_()
    with torch.autocast("cpu", HALF, enabled=low):
        made = functional.linear(normal(4096, 16, seed=1), weight)
        judged = functional.linear(made, 1e-4 * normal(1, 8, seed=2)).mean()  # fault
    (gradient,) = torch.autograd.grad(judged, weight)
    return gradient.norm()


def test_a_gradient_that_the_program_reads_itself_is_searched_for_zeros() -> None:
    finds(ratio_of_gradients, "gradient-underflow", says="without a loss scale")
    passes(lambda: ratio_of_gradients(False), wide=True)


def short_of_a_turn(low: bool = True, rim: bool = False) -> torch.Tensor:
    """What six angles around a point leave of a full turn: next to nothing, but at the rim."""
    angles = math.pi / 3 + 0.003 * normal(400, 6)
    angles[:80] /= 2
    around = (angles.to(LOW) if low else angles).sum(-1)  # fault
    left = 2 * math.pi - around.float()
    at_rim = torch.arange(400) < 80
    return torch.where(at_rim if rim else ~at_rim, left, 0)


def test_small_results_picked_of_a_float32_sum_are_put_down_to_what_stored_its_terms() -> None:
    """A sum in float32 is exact for terms that are nearly equal."""
    finds(short_of_a_turn, "cancellation", says="reads a part of the sum made of this that is small beside the rest")
    passes(lambda: short_of_a_turn(rim=True))
    passes(lambda: short_of_a_turn(low=False), wide=True)


def refused(given: torch.dtype) -> torch.Tensor:
    """One less the chance of a step, from what a product in some format says of it."""
    level = 0.5 + 0.004 * normal(4000)
    with torch.autocast("cpu", given):
        made = (level[:, None] @ torch.ones(1, 1))[:, 0]
    return 1 - rounded(torch.exp(-1.8 * (made.float() - 0.484).clamp_min(0)))


def rounded(chance: torch.Tensor) -> torch.Tensor:
    kept = chance.to(LOW)
    return kept.float()


def test_a_cast_is_blamed_for_what_it_has_rounded_itself() -> None:
    """Just below one a number loses half as much as one rounding may. A chance that is made of bfloat16 is further off before its cast."""
    passes(lambda: refused(LOW))
    (told,) = watched(lambda: refused(HALF)).errors
    assert (told.rule, "a rounding to bfloat16 here (0.12%) is amplified" in told.message) == ("amplified-rounding", True)


def to_the_end(heavy: int = 2) -> torch.Tensor:
    """Sums from each of the last numbers of a row to its end, as the total without those before. Some rows begin with much larger ones."""
    x = 1 + normal(5, 64) / 4
    x[:heavy, :32] *= 4000
    reached = x.to(LOW).cumsum(-1)
    sums = reached[:, -1:] - reached  # fault
    return sums[:, 32:-1].clone()


def test_a_part_that_is_off_by_more_than_itself_is_lost_though_most_of_its_rows_are_right() -> None:
    finds(to_the_end, "cancellation", says="reads a part of this that is small beside the rest")
    passes(lambda: to_the_end(heavy=0))


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean(0), x.square().mean(0)


def spread(centred: bool = False) -> torch.Tensor:
    x = (8 + normal(64, 32) / 4).to(LOW)
    mean, squares = moments(x)
    if centred:
        return (x - mean).square().mean(0)
    return squares - mean.square()  # fault


def test_a_variance_of_squares_is_told_where_it_is_subtracted_whoever_keeps_the_moments() -> None:
    """Nothing that rounds the moments less is a cure in any format: x - mean is."""
    finds(spread, "cancellation", says="a difference of nearly equal numbers")
    assert not watched(lambda: spread(centred=True)).errors


def apart(early: bool = False) -> torch.Tensor:
    one, other = (4e6 + normal(64, 3, seed=each).double() for each in range(2))
    if early:
        return (one - other).float()
    one, other = one.float(), other.float()
    return one - other


def test_a_cast_that_only_a_difference_reads_is_what_should_be_changed() -> None:
    """After the difference it would lose nothing. (Of float32 beside bfloat16 it is not known what the block has computed, and what it was given.)"""
    with precheck.watch(precision="32-true") as report:
        kept = apart()
    with precheck.watch(precision="32-true") as mended:
        kept = apart(early=True)
    (told,) = report.errors
    assert told.op == "aten._to_copy.default", report.summary()
    assert "its rounding error grows at aten.sub.Tensor" in told.message
    assert not mended.findings, kept
