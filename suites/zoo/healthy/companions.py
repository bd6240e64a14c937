"""What looks like the optimizers, losses, attentions and scans of batch 19, and is right: the same code on numbers that its format holds."""

from __future__ import annotations

import torch
from bugs.attentions import conversation, extended, quiet, stretched, windowed
from bugs.criteria import alignments, contrast, deviances, domains, explained, regressed
from bugs.descents import averaged, climbed, factored, in_bytes, layerwise, rounds, unscaled
from bugs.flows import aggregated, decays, denoised, dispatched, forecast, recurrent

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def factored_squares_of_large_gradients() -> torch.Tensor:
    """Mean squares of rows and columns in half, of gradients near a tenth."""
    return factored(HALF, False, 0.1)


def layerwise_steps_of_two_heads() -> tuple[torch.Tensor, ...]:
    """Gradients in half over their layer's norm, where both heads are read; the lift of 1e-8 is nought beside norms near one."""
    return layerwise(HALF, False, 1.0)


def climb_of_large_gains() -> torch.Tensor:
    """Two steps of SAM in bfloat16 from gains near one: the way back is off by one rounding of them."""
    return climbed(LOW, False, 1.0, 2)


def mean_of_a_few_weights() -> torch.Tensor:
    """The mean of twenty steps' weights in bfloat16."""
    return averaged(LOW, False, 20)


def gradients_that_are_divided_early() -> torch.Tensor:
    """Gradients in half that are divided by their scale before they are widened, and are near a hundredth then."""
    return unscaled(HALF, False, 1.0)


def even_squares_in_bytes() -> torch.Tensor:
    """Mean squares in bytes that are within a factor of two of the largest."""
    return in_bytes(True, False, 0.1)


def long_rounds() -> torch.Tensor:
    """Weights that are sent in bfloat16 and subtracted, after steps that are as large as the weights."""
    return rounds(LOW, True, 0.3)


def mild_contrast() -> torch.Tensor:
    """A contrastive loss in bfloat16 at temperature two, where the likeness with itself is a fiftieth of the sum."""
    return contrast(LOW, False, 2.0)


def unlike_samples_by_kernels() -> torch.Tensor:
    """A kernel distance in bfloat16 of samples that are far apart."""
    return domains(LOW, False, 1.5)


def cosine_of_small_residuals() -> tuple[torch.Tensor, ...]:
    """A logarithm of a hyperbolic cosine in half, of residuals below seven."""
    return regressed(HALF, False, 1.5)


def soft_alignment_of_a_warm_kind() -> torch.Tensor:
    """Soft costs in half whose powers of e are above a thousandth."""
    return alignments(HALF, False, 3.0)


def deviance_of_a_bad_fit() -> torch.Tensor:
    """Deviances in bfloat16 of counts from rates that are off by a factor of two."""
    return deviances(LOW, False, 1.0)


def share_by_sums_about_nought() -> torch.Tensor:
    """R squared by sums in float32, of targets about nought."""
    return explained(WIDE, 0.0)


def stretch_of_usual_weights() -> torch.Tensor:
    """A power iteration in half of weights near a tenth."""
    return stretched(HALF, False, 0.1)


def softmax_with_a_one_of_small_scores() -> torch.Tensor:
    """A softmax with a one below the line and without a maximum, in half, of scores below five."""
    return quiet(HALF, False, 0.5)


def window_of_few_places() -> torch.Tensor:
    """Windows by places that are bfloat16, of which there are two hundred."""
    return windowed(LOW, None, 200)


def keys_in_eight_bits_that_fit() -> torch.Tensor:
    """Keys in float8_e4m3fn without a scale, all below four hundred."""
    return conversation(torch.float8_e4m3fn, False, 4.0)


def turns_that_grow_a_little() -> torch.Tensor:
    """Sizes of turns in half at places below a thousand, between a seventh and seven."""
    return extended(HALF, False, 700)


def factors_of_weak_noise() -> torch.Tensor:
    """Factors of a denoiser in half at noises up to eighty."""
    return denoised(HALF, False, 80.0)


def slots_of_a_small_batch() -> torch.Tensor:
    """Slots of experts by a sum in bfloat16 over two hundred tokens."""
    return dispatched(LOW, None, 200)


def gates_of_fast_states() -> torch.Tensor:
    """What a state lets in in bfloat16, where it keeps between a third and two thirds."""
    return recurrent(LOW, False, 0.3, 0.6)


def short_scan_by_two_sums() -> torch.Tensor:
    """A scan in half by two sums, whose decays add up to three."""
    return decays(HALF, False, 7)


def spread_of_neighbours_about_nought() -> tuple[torch.Tensor, ...]:
    """Spreads in bfloat16 by the mean of squares, of features about nought."""
    return aggregated(LOW, False, 0.0)


def moves_of_a_series_about_nought() -> torch.Tensor:
    """A series near nought that is cast to bfloat16 before its last value is taken away."""
    return forecast(LOW, True, 0.0)


IDIOMS = (
    factored_squares_of_large_gradients, layerwise_steps_of_two_heads, climb_of_large_gains, mean_of_a_few_weights,
    gradients_that_are_divided_early, even_squares_in_bytes, long_rounds, mild_contrast, unlike_samples_by_kernels,
    cosine_of_small_residuals, soft_alignment_of_a_warm_kind, deviance_of_a_bad_fit, share_by_sums_about_nought, stretch_of_usual_weights,
    softmax_with_a_one_of_small_scores, window_of_few_places, keys_in_eight_bits_that_fit, turns_that_grow_a_little, factors_of_weak_noise,
    slots_of_a_small_batch, gates_of_fast_states, short_scan_by_two_sums, spread_of_neighbours_about_nought,
    moves_of_a_series_about_nought,
)  # fmt: skip
EXACT = ("share_by_sums_about_nought", "even_squares_in_bytes")
ACCUSED = {
    "mean_of_a_few_weights": "truly: a ninth of what twenty steps move the mean by arrives, as in the bug; it is off by 0.9 %, as they are small",
}
