"""The programs of four files of bugs (surgeries, equilibria, charts, steerings) where nothing is lost: other sizes, ranges and rates."""

from __future__ import annotations

import torch
from bugs.charts import ensemble, matches, neighbours, rare_words, related, weighed
from bugs.equilibria import calibrated, played, running_sum, trend
from bugs.steerings import champions, novelty, robust, smoothed, spline, steered, stretched, voiced
from bugs.surgeries import chain, disagreeing, looked_ahead, rectified, snapshot, sprung

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def rectified_steps_of_a_short_mean() -> torch.Tensor:
    """A rectified step whose mean of squares is of fifty gradients: a fiftieth of it is there at once."""
    return rectified(SINGLE, 0.98)


def slow_weights_of_large_steps() -> torch.Tensor:
    """Slow weights in bfloat16 that go half of a long way."""
    return looked_ahead(LOW, 0.1)


def snapshot_of_far_away() -> torch.Tensor:
    """Slopes in bfloat16 less those at a snapshot, which is as far off as the weights are large."""
    return snapshot(LOW, 1.0)


def tasks_that_disagree_unscaled() -> torch.Tensor:
    """Products of two tasks' gradients in half precision, at scale one."""
    return disagreeing(False, 0.25)


def chain_of_large_noise() -> torch.Tensor:
    """A chain of weights in bfloat16, moved by a twentieth of themselves."""
    return chain(LOW, 2.5e-3)


def springs_with_a_wide_range() -> torch.Tensor:
    """Squares of slopes in bfloat16, where none is too small."""
    return sprung(LOW)


def gradient_of_a_level_running_sum() -> torch.Tensor:
    """All slopes less those before, where all of them are alike."""
    return running_sum(False, 0.0)


def columns_of_even_inputs() -> torch.Tensor:
    """Products of inputs in bfloat16, of which no direction holds most."""
    return calibrated(LOW, 0.0)


def arms_in_few_rounds() -> torch.Tensor:
    """An inverse in bfloat16 that is corrected six times, by contexts that have little in common."""
    return played(LOW, 6, 0.0)


def trend_of_a_low_level() -> torch.Tensor:
    """A smoother of level and trend of readings near a hundred."""
    return trend(SINGLE, 100.0)


def ranks_of_near_pages() -> torch.Tensor:
    """Ranks of pages in half precision, one to eight clicks away."""
    return related(HALF, 0.5, 1, 12)


def neighbours_of_few_features() -> torch.Tensor:
    """Weights of neighbours, of points that have hardly a feature of their own."""
    return neighbours(False, 1.0)


def ranks_of_frequent_words() -> torch.Tensor:
    """Logarithms of neighbouring ranks of a vocabulary of two thousand words, less each other."""
    return rare_words(False, 2000)


def coefficient_of_few_matches() -> torch.Tensor:
    """A product of four counts of two dozen pictures, in half precision."""
    return matches(HALF, 24)


def weights_of_few_samples() -> torch.Tensor:
    """Sums of the weights of three thousand samples in half precision."""
    return weighed(HALF, 3000)


def scores_of_an_ensemble_of_anomalies() -> torch.Tensor:
    """Moments of members in half precision that are near nought."""
    return ensemble(False, 0.0)


def joints_without_an_integral() -> torch.Tensor:
    """Joints steered in bfloat16 by their errors and how these change, whose sum of errors is not used."""
    return steered(LOW, (40.0, 0.0, 1.0))


def filter_of_a_hoarse_voice() -> torch.Tensor:
    """A filter of few taps of a sound that is a fifth noise."""
    return voiced(SINGLE, 6, 0.2)


def smoothing_by_few_powers() -> torch.Tensor:
    """A cubic that is fitted to eleven samples by its powers."""
    return smoothed(False, 3, 5)


def spline_of_three_pieces() -> torch.Tensor:
    """A spline of order three by powers of the distances to its knots."""
    return spline(False, 3)


def stretch_of_a_coarse_sheet() -> torch.Tensor:
    """Triangles of a sheet in half precision, of a size near one."""
    return stretched(False, 0.5)


def belief_of_many_counts() -> torch.Tensor:
    """What is to be learnt of states that were seen often enough."""
    return novelty(False, 2.0)


def skill_of_an_equal() -> torch.Tensor:
    """How much doubt shrinks by a win over one who is hardly better."""
    return champions(False, 2.0)


def large_errors_of_a_robust_loss() -> torch.Tensor:
    """Losses in bfloat16 of errors that are larger than one."""
    return robust(False, 1.0, 4.0)


IDIOMS = (rectified_steps_of_a_short_mean, slow_weights_of_large_steps, snapshot_of_far_away, tasks_that_disagree_unscaled,
          chain_of_large_noise, springs_with_a_wide_range, gradient_of_a_level_running_sum, columns_of_even_inputs, arms_in_few_rounds,
          trend_of_a_low_level, ranks_of_near_pages, neighbours_of_few_features, ranks_of_frequent_words, coefficient_of_few_matches,
          weights_of_few_samples, scores_of_an_ensemble_of_anomalies, joints_without_an_integral, filter_of_a_hoarse_voice,
          smoothing_by_few_powers, spline_of_three_pieces, stretch_of_a_coarse_sheet, belief_of_many_counts, skill_of_an_equal,
          large_errors_of_a_robust_loss)  # fmt: skip
EXACT = ("rectified_steps_of_a_short_mean", "gradient_of_a_level_running_sum", "trend_of_a_low_level", "neighbours_of_few_features",
         "ranks_of_frequent_words", "filter_of_a_hoarse_voice", "smoothing_by_few_powers", "spline_of_three_pieces",
         "belief_of_many_counts", "skill_of_an_equal")  # fmt: skip
