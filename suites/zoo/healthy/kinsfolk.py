"""What looks like the sounds, bodies and plans of batch 20, and is right: the same code on numbers that its format holds."""

from __future__ import annotations

import torch
from bugs.bodies import bodies, energy, flow, middle
from bugs.plans import ancestral, annealed, beside_the_others, left, signed, stepped
from bugs.tones import chord, filtered, heard, separated

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def voices_of_a_short_tone() -> torch.Tensor:
    """Three voices in float32 that run on for twenty periods and are not wrapped."""
    return chord(WIDE, False, 20)


def high_filters_in_whole_numbers() -> torch.Tensor:
    """Low passes above three thousand hertz, of coefficients with fifteen bits behind the point."""
    return filtered(WIDE, 15, 3000.0, 60)


def bank_of_filters_of_a_near_voice() -> torch.Tensor:
    """Log-mel features within autocast of a voice whose power half holds."""
    return heard(HALF, False, 0.5)


def norm_of_channels_about_nought() -> torch.Tensor:
    """A cumulative norm in bfloat16 of channels about nought, by the mean of squares."""
    return separated(LOW, False, 0.0)


def variances_of_large_steps() -> torch.Tensor:
    """Variances of a denoiser of twelve steps in half, which take away a fifth to a half each."""
    return stepped(HALF, False, 12, 0.2, 0.5)


def noise_between_far_levels() -> tuple[torch.Tensor, torch.Tensor]:
    """A sampler's levels in bfloat16, six of them, each less than half of the one before."""
    return ancestral(LOW, False, 6)


def spread_of_rewards_that_are_ones() -> torch.Tensor:
    """Advantages beside the others of a group, by the mean of squares in float32, with a floor below the spread."""
    return beside_the_others(WIDE, 1e-3, (-0.2, 0.95))


def return_of_a_short_plan() -> torch.Tensor:
    """What is left of a return in bfloat16, of which each of seven steps brings a tenth."""
    return left(LOW, False, 7, 0.4)


def energy_of_fast_electrons() -> torch.Tensor:
    """Kinetic energies by the difference of a root from one, of momenta near the speed of light."""
    return energy(WIDE, False, 0.8)


def middle_of_a_near_field() -> torch.Tensor:
    """The middle of a field in float32 by sums over its sides, beside the origin."""
    return middle(WIDE, False, 8.0)


def fluid_that_flows() -> torch.Tensor:
    """Populations of a fluid that are kept in half, of a wave that is a tenth of the lattice's speed."""
    return flow(HALF, False, 0.1, 5)


def chain_of_few_joints_within_autocast() -> torch.Tensor:
    """Five joints whose turns autocast multiplies in bfloat16."""
    return bodies(LOW, False, 5, 0.8)


def momentum_that_half_holds() -> torch.Tensor:
    """Lion's momentum in half, of gradients near one."""
    return signed(HALF, None, 1.0)


def rate_of_a_few_steps() -> tuple[torch.Tensor, torch.Tensor]:
    """A rate in bfloat16 that falls to a fifteenth in six steps."""
    return annealed(LOW, False, 6)


IDIOMS = (
    voices_of_a_short_tone, high_filters_in_whole_numbers, bank_of_filters_of_a_near_voice, norm_of_channels_about_nought,
    variances_of_large_steps, noise_between_far_levels, spread_of_rewards_that_are_ones, return_of_a_short_plan,
    energy_of_fast_electrons, middle_of_a_near_field, fluid_that_flows, chain_of_few_joints_within_autocast, momentum_that_half_holds,
    rate_of_a_few_steps,
)  # fmt: skip
EXACT = (
    "voices_of_a_short_tone", "high_filters_in_whole_numbers", "spread_of_rewards_that_are_ones", "energy_of_fast_electrons",
    "middle_of_a_near_field",
)  # fmt: skip
