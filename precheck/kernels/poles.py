"""Tells whether a pole of the reference is as near to the inputs as rounding: what is infinite there, or of the other sign, is no fault.

Let a result be n / d, with a d that is zero up to rounding, as the determinant of a matrix that has no inverse. float64 leaves 1e-17 of it, and a
kernel 0. No digit of that result is known, nor that it is finite. A step s of the inputs, as long as the roundings of a kernel, changes d by e. Then

    f(s) + f(-s) - 2 f(0) = 2 n e² / (d (d² - e²)),    f(s) - f(-s) = -2 n e / (d² - e²),

whose quotient is e / d: the second difference is the larger one if e is larger than d, so that d is zero within the step. A result that crosses zero
has no such second difference (it is the square of the step, and the first one the step), nor has an exponential before it overflows. A minimum has
one: f(0) is no larger than what lies on either side of it, and at a pole it is. So has a jump, and half of the step shows as much of it as all does.
At a pole half of it shows more, by (e + d) / (e/2 + d), which is 4/3 where e is d, and grows to 2.
"""

from __future__ import annotations

import torch

from precheck.analysis.noise_floor.kernel_floor import ADDED_NOISE, Floor
from precheck.kernels.bench import Bench
from precheck.kernels.noise import base_roundoff
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.torch_support.dense_parts import continuous

DRAWS = 4
"""Directions of the step. Along one of them a determinant may hardly change."""
_STEEPER = 1.25
"""Times as large as behind all of the step a result has to be behind half of it. It is 1 at a jump, and at least 4/3 at a pole."""


def near(bench: Bench, judged: Judged) -> bool:
    """Whether there is one near any result that the candidate has not finite. Such results are unknown from then on."""
    reference, fault = judged.reference, judged.fault
    if reference is None or fault is None or fault.kind != "lost" or fault.distance is None:
        return False
    made, found = reference.made or bench.make(judged.trial), False
    for seed in range(DRAWS):
        sides = [_moved(bench, judged, made, seed, share) for share in (1.0, -1.0, 0.5, -0.5)]
        for name, floored in reference.floors.items():
            if continuous(floored.exact) and all(name in each and each[name].shape == floored.exact.shape for each in sides):
                there = _pole(floored, *(each[name] for each in sides)) & ~floored.unknown
                floored.unknown |= there
                found |= bool(there.any())
    return found


def _moved(bench: Bench, judged: Judged, made: Made, seed: int, share: float) -> dict[str, torch.Tensor]:
    """Exact results beside these inputs, each number of which is moved by a random share of the roundings that noise runs add."""
    generator, values = torch.Generator().manual_seed(6211 + seed), []
    for each in made.values:
        if each.is_floating_point():
            drawn = 2 * torch.rand(each.shape, generator=generator, dtype=torch.float64) - 1
            each = each.double() * (1 + share * ADDED_NOISE * base_roundoff(each.dtype) * drawn)
        values.append(each)
    outcome = bench.exact_of(judged.trial, Made(values, made.numbers))
    return {} if outcome.error is not None else {name: each for name, each in outcome.values.items() if each is not None}


def _pole(floored: Floor, one: torch.Tensor, other: torch.Tensor, half: torch.Tensor, other_half: torch.Tensor) -> torch.Tensor:
    """Where a pole lies within the step."""
    here = floored.exact
    second, first = (one + other - 2 * here).abs(), (one - other).abs()
    small = torch.minimum(one.abs(), other.abs())
    halfway = torch.where(one.abs() <= other.abs(), half.abs(), other_half.abs())
    return (second >= first) & (second >= here.abs()) & (small < here.abs()) & (halfway > _STEEPER * small)
