"""What looks like the search, decoding, series, trees and boxes of batch 20, and is right: the same code on numbers that its format holds."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform, wider
from bugs.detections import Planes, aligned_loss
from bugs.lineages import molecule, species
from bugs.retrievals import discounted, matches, neighbours
from bugs.series import averaged, forecaster_inputs, smoothed
from bugs.tokens import left_over, sampled

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def neighbours_of_many_scenes() -> torch.Tensor:
    """Distances by squared lengths and a product in float32, of vectors that are as far apart as they are long."""
    return neighbours(WIDE, False, 1.0)


def rows_of_a_small_collection() -> torch.Tensor:
    """Numbers of documents below sixteen millions in rows of float32."""
    return matches(WIDE, True, 1_000_000)


def gain_of_five_grades() -> torch.Tensor:
    """Gains of grades from nought to four in half, and their discounted sums."""
    grades, order = (4.99 * uniform(8, 22)).floor().to(HALF), normal(8, 22, seed=1).argsort(-1)
    return wider(discounted(grades, order, False) / discounted(grades, grades.argsort(-1, descending=True), False))


def left_of_a_poor_draft() -> torch.Tensor:
    """What is left of targets in bfloat16 whose drafts know nothing of them."""
    return wider(left_over(torch.softmax((2 * normal(12, 80)).to(LOW), -1), torch.softmax((2 * normal(12, 80, seed=1)).to(LOW), -1)))


def nucleus_of_a_sharp_distribution() -> torch.Tensor:
    """A sum of probabilities in bfloat16, each at least a thirtieth of it."""
    return sampled(LOW, LOW, 24, 1.0)


def window_without_a_spike() -> torch.Tensor:
    """One sum in float32 that values enter and leave, all of a size."""
    return smoothed(WIDE, True, 6e-5)


def spread_of_few_sales() -> torch.Tensor:
    """Sums of squares in half that reach a thousand, of numbers about as large as their spread."""
    return forecaster_inputs(HALF, None, 4.0)


def average_in_half_that_follows() -> torch.Tensor:
    """An average in half that goes a tenth of the way with each step."""
    return averaged(HALF, HALF, 0.9, 30)


def tree_of_few_species() -> torch.Tensor:
    """The likelihood of sixteen species in float32, as it is."""
    return species(WIDE, False, 16)


def shares_of_like_neighbours() -> torch.Tensor:
    """Powers of e in half of scores below four."""
    return molecule(HALF, False, 0.8)


def boxes_that_are_apart() -> torch.Tensor:
    """The same loss in half of boxes a fifth of their size off their targets."""
    corner, size = 0.1 + 0.3 * uniform(20, 2), 0.3 + 0.3 * uniform(20, 2, seed=1)
    move = (0.05 * (1 + uniform(20, 2, seed=2)) * torch.where(normal(20, 2, seed=3) > 0, 1.0, -1.0)).repeat(1, 2)
    target = torch.cat([corner, corner + size], -1)
    return wider(aligned_loss((target + move).to(HALF), target.to(HALF)))


def rays_along_a_coarse_grid() -> torch.Tensor:
    """Points in bfloat16 that are multiples of a sixteenth, which it holds, in a volume of 33 cells a side."""
    along = torch.arange(-8, 9).to(LOW)[:, None] / 8
    points = along * torch.tensor([[0.5, 1.0, -0.5]], dtype=LOW) + torch.tensor([[0.25, 0.0, -0.125]], dtype=LOW)
    return Planes(33, 4, LOW)(points)


IDIOMS = (
    neighbours_of_many_scenes, rows_of_a_small_collection, gain_of_five_grades, left_of_a_poor_draft, nucleus_of_a_sharp_distribution,
    window_without_a_spike, spread_of_few_sales, average_in_half_that_follows, tree_of_few_species, shares_of_like_neighbours,
    boxes_that_are_apart, rays_along_a_coarse_grid,
)  # fmt: skip
EXACT = ("neighbours_of_many_scenes", "rows_of_a_small_collection", "window_without_a_spike", "tree_of_few_species")
