"""The programs of four files of bugs (experiments, lotteries, campaigns, workpieces) where nothing is lost: other sizes, levels and rates."""

from __future__ import annotations

import torch
from bugs.campaigns import baked, by_count, followed, plateau, rescaled, usual
from bugs.experiments import echoes, epidemic, half_turns, rates, settled, spread_of_spins
from bugs.lotteries import densities, fired, particles, reads, states, sticks
from bugs.workpieces import cents_off, defects, run_times, slots, speeds, styles

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def spread_of_many_spins() -> torch.Tensor:
    """A variance as a difference of means, of a sum of spins that varies by a third of itself."""
    return spread_of_spins(SINGLE, 0.6)


def field_that_settles_roughly() -> torch.Tensor:
    """Electrons in float32 whose density has settled where it changes by a ten-thousandth."""
    return settled(SINGLE, 1e-4)


def rates_with_low_barriers() -> torch.Tensor:
    """Rates by an exponential function in bfloat16, of numbers between nought and two."""
    return rates(LOW, 0.05)


def epidemic_of_a_week() -> torch.Tensor:
    """Shares in bfloat16 of a people of which a third is ill, by steps of one day."""
    return epidemic(LOW, 0.3, 6, 1.0)


def echoes_without_a_carrier() -> torch.Tensor:
    """Times of flight in bfloat16 times a frequency so low that no angle reaches half a turn."""
    return echoes(LOW, 0.004)


def quarter_turns() -> torch.Tensor:
    """Turns by a quarter and more as the angle of a cosine, and the axis from what is not symmetric."""
    return half_turns(False, 0.9)


def coins_in_bfloat16() -> torch.Tensor:
    """Bits compared with a chance in bfloat16 times 2^16, which it holds."""
    return fired(False, LOW)


def particles_by_sixteenths() -> torch.Tensor:
    """A few particles that are drawn again at marks in half precision, each added to the last."""
    return particles(True, 16)


def sticks_that_are_halved() -> torch.Tensor:
    """Shares in bfloat16 of a stick of which about a half is broken off each time."""
    return sticks(False, 0.0, 6)


def states_of_few_cells() -> torch.Tensor:
    """How likely states are, from likelihoods of four cells as they are."""
    return states(False, 4, 6)


def reads_of_one_cell() -> torch.Tensor:
    """Log-likelihoods by the logarithm of Gamma, of five thousand reads that hold few mutations."""
    return reads(SINGLE, 5e3)


def bounds_about_the_mean() -> torch.Tensor:
    """A normal law within bounds, divided by a difference of two probabilities that are far apart."""
    return densities(False, -1.5)


def rate_of_the_first_steps() -> torch.Tensor:
    """A rate that falls by a counter in half precision of some hundred steps."""
    return by_count(HALF, 0, 60)


def rewards_about_nought() -> torch.Tensor:
    """The spread of rewards by sums of squares in float32, which are about nought."""
    return rescaled(SINGLE, 0.0)


def loss_that_falls_fast() -> torch.Tensor:
    """A loss in bfloat16 that is a fiftieth better each epoch than the best before."""
    return plateau(False, 12, 4e-3)


def norms_that_are_unscaled() -> torch.Tensor:
    """Gradients that are cut by an average of norms, under a scale that does not change."""
    return usual(True, 50)


def target_that_follows_closely() -> torch.Tensor:
    """A target in bfloat16 that goes half of the way at each of six turns."""
    return followed(LOW, 0.5, 6)


def adapter_beside_its_codes() -> torch.Tensor:
    """An adapter that is added to the decoded weight, and stored in bfloat16."""
    return baked(True, 0.05)


def defects_of_a_matt_part() -> torch.Tensor:
    """Distances by the inverse of a covariance in float32, of features about one."""
    return defects(SINGLE, 1.0)


def times_since_the_start() -> torch.Tensor:
    """Times in float32 that are counted from the start of a run."""
    return run_times(SINGLE, 0.25)


def cents_in_float32() -> torch.Tensor:
    """A pitch by a mean over saliences in bfloat16, with a table of cents in float32."""
    return cents_off(SINGLE)


def way_from_noise() -> torch.Tensor:
    """The way to a picture from one that is half noise, by a difference in float32 of what a network gives in bfloat16."""
    return speeds(SINGLE, 0.5)


def slots_of_a_young_memory() -> torch.Tensor:
    """Slots that were met some thousand times, counted in float32."""
    return slots(SINGLE, 2**12)


def styles_of_a_sketch() -> torch.Tensor:
    """The norm of weights in half precision, scaled by a weak style."""
    return styles(False, 1.0)


IDIOMS = (
    spread_of_many_spins, field_that_settles_roughly, rates_with_low_barriers, epidemic_of_a_week, echoes_without_a_carrier, quarter_turns,
    coins_in_bfloat16, particles_by_sixteenths, sticks_that_are_halved, states_of_few_cells, reads_of_one_cell, bounds_about_the_mean,
    rate_of_the_first_steps, rewards_about_nought, loss_that_falls_fast, norms_that_are_unscaled, target_that_follows_closely,
    adapter_beside_its_codes, defects_of_a_matt_part, times_since_the_start, cents_in_float32, way_from_noise, slots_of_a_young_memory,
    styles_of_a_sketch,
)  # fmt: skip
EXACT = (
    "spread_of_many_spins", "field_that_settles_roughly", "quarter_turns", "states_of_few_cells", "reads_of_one_cell", "bounds_about_the_mean",
    "rewards_about_nought", "defects_of_a_matt_part", "times_since_the_start", "slots_of_a_young_memory",
)  # fmt: skip
