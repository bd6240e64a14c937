"""The two cures that keep weights in bf16: rounding by chance is right on average, Kahan's remainder is right in sum."""

from __future__ import annotations

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from precheck.formats import BF16

brief = settings(max_examples=60, deadline=None, database=None)
ALL = torch.arange(1 << 16, dtype=torch.int32)
"""All the noise there is: the sixteen bits that bf16 drops of a float32."""


def by_chance(value: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to bf16, away from zero if the dropped bits and the noise carry."""
    return ((value.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32).bfloat16()


weights = st.integers(128, 255).flatmap(lambda bits: st.integers(-20, 20).map(lambda exponent: math.ldexp(bits, exponent - 7)))
shares = st.floats(2.0**-15, 1.0)


@brief
@given(weights, shares)
def test_rounding_by_chance_is_right_on_average(weight: float, share: float) -> None:
    """Over all noise exactly: the step, in 2^16ths of a spacing, is the number of roundings out of 2^16 that take it."""
    spacing = BF16.ulp(weight)
    wanted = torch.tensor(weight) + torch.tensor(share * spacing)
    got = by_chance(wanted.expand(1 << 16), ALL).double()
    assert set(got.tolist()) <= {weight, weight + spacing, BF16.neighbours(weight + spacing)[1]}
    assert got.mean().item() == wanted.double().item()
    assert BF16.round(wanted.item()) == weight or share >= 0.5  # what rounding to nearest makes of it


def test_a_thousand_steps_by_chance_arrive() -> None:
    """Each of 4096 weights moves a spacing d = 2^-7 with chance p = 1e-4 / d, a binomial: the mean is known to sqrt(Tp(1-p)/N) d."""
    steps, count, step, spacing = 1000, 4096, 1e-4, 2.0**-7
    drawn = torch.Generator().manual_seed(0)
    weight = torch.full((count,), 1.234375, dtype=torch.bfloat16)
    for _ in range(steps):
        weight = by_chance(weight.float() - step, torch.randint(0, 1 << 16, (count,), generator=drawn, dtype=torch.int32))
    chance = step / spacing
    deviation = math.sqrt(steps * chance * (1 - chance) / count) * spacing
    # In float32, where weights are spaced 2^-23, each difference is rounded by 2^-24 at most.
    assert abs(weight.double().mean().item() - (1.234375 - steps * step)) < 5 * deviation + steps * 2.0**-24
    assert 5 * deviation < 0.03 * steps * step  # rounding to nearest would be off by all of steps * step


@brief
@given(weights, shares, st.integers(1, 256))
def test_a_remainder_in_bf16_keeps_256_steps_to_one_rounding(weight: float, share: float, count: int) -> None:
    """What the weight lacks, at most half a spacing, is kept to 2^-8 of itself, so that 256 steps are off by half a spacing at most.

    The steps are half a spacing each or less, of which rounding to nearest takes none from an even weight.
    """
    step, spacing = share * BF16.half_ulp(weight)[1], BF16.ulp(weight)
    assume(weight + count * step < 2 ** (math.frexp(weight)[1]))  # within one binade
    held, owed = torch.tensor([weight], dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    for _ in range(count):
        wanted = owed.float() + step
        after = (held.float() + wanted).bfloat16()
        owed, held = (wanted - (after.float() - held.float())).bfloat16(), after
    exact = weight + count * step
    slack = count * spacing * 2.0**-15  # the sum and the remainder in float32, 24 bits against bf16's 8, twice half a unit a step
    assert abs(held.double().item() + owed.double().item() - exact) <= count * spacing / 2 * BF16.unit_roundoff + slack
    assert abs(held.double().item() - exact) <= spacing + slack  # the weight itself: a rounding of it and one of the remainder
