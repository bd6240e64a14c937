"""The programs of four files of bugs (deviations, near_copies, long_ways, steps_and_plans) where nothing is lost: other sizes, levels and rates."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from bugs.deviations import bands, cells, curve, shapes, spreads, variants
from bugs.long_ways import Turns, beep, chart, column_means, matrices, roads, wall
from bugs.near_copies import distance_of_sets, far_tokens, loss_of_near, nearest, next_words, reranked
from bugs.steps_and_plans import judged, label_costs, plans, replayed, scanned, tuned

LOW, SINGLE = torch.bfloat16, torch.float32


def deviation_about_nought() -> torch.Tensor:
    """The spread of realizations from sums of squares, whose mean is small beside it."""
    return cells(False, 0.01, 0.05)


def curve_of_a_short_scale() -> torch.Tensor:
    """A density of readings that know little of each other."""
    return curve(SINGLE, 0.1)


def counts_of_a_few_reads() -> torch.Tensor:
    """Beta functions of counts of some forty, as three logarithms of Gamma functions."""
    return variants(False, 40.0, 30.0)


def shapes_of_poor_instruments() -> torch.Tensor:
    """A shape near four, fitted by the logarithm less the digamma function."""
    return shapes(False, 1.4)


def spread_of_a_difference() -> torch.Tensor:
    """A spread by running sums of squares, of numbers that go up and down about nought."""
    return spreads(True, 0.0, 0.3)


def bands_of_a_difference() -> torch.Tensor:
    """Bands of what two prices are apart, which is a few steps."""
    return bands(False, 0.0)


def loss_of_a_coarse_drawing() -> torch.Tensor:
    """How unlike two images are, by means of squares, where noise is a fifth of full scale."""
    return loss_of_near(False, 0.2, 0.2)


def distance_of_other_sets() -> torch.Tensor:
    """Fréchet's distance of sets whose features are a third larger or smaller."""
    return distance_of_sets(SINGLE, 0.3)


def neighbours_far_apart() -> torch.Tensor:
    """Squared distances by products, of vectors in bfloat16 that are as far apart as they are long."""
    return nearest(True, 0.4)


def scores_of_fair_matches() -> torch.Tensor:
    """A sigmoid in half precision, of logits about nought."""
    return reranked(False, 0.0)


def words_of_a_short_list() -> torch.Tensor:
    """Sums of probabilities in bfloat16, of twenty words of which few hold most."""
    return next_words(False, 20, 0.8)


def places_of_a_short_prompt() -> torch.Tensor:
    """Places of two hundred tokens, counted in bfloat16, which holds them."""
    return far_tokens(LOW, 200)


def length_of_a_flight() -> torch.Tensor:
    """Ways between cities, by the law of cosines."""
    return roads(False, 2.0)


def turns_of_a_quarter() -> torch.Tensor:
    """Turns by one to two radians, by way of their trace."""
    return Turns(False)(matrices(normal(20, 3), 1 + uniform(20, seed=1)))


def beep_of_the_first_second() -> torch.Tensor:
    """A tone in its first second, whose phase is a few hundred radians."""
    return beep(False, 1 / 120)


def chart_of_a_morning() -> torch.Tensor:
    """Readings on a chart, by seconds since midnight."""
    return chart(False, 32400)


def depth_of_a_near_corner() -> torch.Tensor:
    """How steep a corner is, whose shifts change by a few at each place."""
    return wall(False, 20.0, 4.0)


def means_of_a_short_column() -> torch.Tensor:
    """Means in half precision, of two thousand rows."""
    return column_means(False, 2000)


def tree_of_halved_priorities() -> torch.Tensor:
    """All nodes of a tree times a half, which is exact."""
    return replayed(False, 0.5)


def steps_of_words_in_float32() -> torch.Tensor:
    """Adam on weights held in float32, for a model in half precision with words that are not used."""
    return tuned(True)


def large_steps_of_a_judge() -> torch.Tensor:
    """Steps of a tenth in bfloat16 weights."""
    return judged(LOW, 0.1, 1)


def costs_of_likely_labels() -> torch.Tensor:
    """Logarithms of probabilities, none of which is small."""
    return label_costs(False, 2.0)


def plan_of_a_wide_blur() -> torch.Tensor:
    """A plan by exponentials, the least of which is a millionth."""
    return plans(False, 0.8)


def scan_of_slow_rates() -> torch.Tensor:
    """Sums over all steps of a state that fades by a thirtieth at each of them."""
    return scanned(False, 0.01)


IDIOMS = (
    deviation_about_nought, curve_of_a_short_scale, counts_of_a_few_reads, shapes_of_poor_instruments, spread_of_a_difference, bands_of_a_difference,
    loss_of_a_coarse_drawing, distance_of_other_sets, neighbours_far_apart, scores_of_fair_matches, words_of_a_short_list, places_of_a_short_prompt,
    length_of_a_flight, turns_of_a_quarter, beep_of_the_first_second, chart_of_a_morning, depth_of_a_near_corner, means_of_a_short_column,
    tree_of_halved_priorities, steps_of_words_in_float32, large_steps_of_a_judge, costs_of_likely_labels, plan_of_a_wide_blur, scan_of_slow_rates,
)  # fmt: skip
EXACT = (
    "deviation_about_nought", "curve_of_a_short_scale", "counts_of_a_few_reads", "shapes_of_poor_instruments", "spread_of_a_difference",
    "bands_of_a_difference", "loss_of_a_coarse_drawing", "distance_of_other_sets", "neighbours_far_apart", "length_of_a_flight", "turns_of_a_quarter",
    "beep_of_the_first_second", "chart_of_a_morning", "tree_of_halved_priorities",
    "costs_of_likely_labels", "plan_of_a_wide_blur", "scan_of_slow_rates",
)  # fmt: skip
