"""Beside the barges, lathes and vineyards: tallies that hold, numbers far from zero, like formats, exponentials of bounded scores."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def tally_of_an_epoch() -> torch.Tensor:
    """Losses of two hundred words in float32 are added up from zero."""
    total = torch.tensor(0.0)
    for loss in 2 + normal(200, seed=2501).abs():
        total += loss
    return total / 200


def counts_below_the_largest() -> torch.Tensor:
    """Counts in float32 of up to a million grow one by one, and stay whole."""
    counts = torch.tensor([1e3, 9e5, 1e6, 5e4])
    for each in (4 * uniform(120, seed=2511)).long():
        counts = counts + functional.one_hot(each, 4).float()
    return counts - torch.tensor([1e3, 9e5, 1e6, 5e4])


def examples_that_float32_holds() -> torch.Tensor:
    """A number of examples, even and beyond 2^24, is float32 for a while and what it was."""
    said = torch.tensor(60_002_992).float()
    if int(said.item()) != 60_002_992:
        raise RuntimeError("others")
    return said / 1e6


def spread_by_deviations() -> torch.Tensor:
    """Variances of numbers far from zero, of what they differ from their mean."""
    values = 500 + normal(12, 200, seed=2521)
    return (values - values.mean(-1, keepdim=True)).square().mean(-1)


def spread_by_squares_near_zero() -> torch.Tensor:
    """Variances by squares in float32, of numbers whose mean is as large as their spread."""
    values = 1 + normal(12, 200, seed=2531)
    return values.square().mean(-1) - values.mean(-1).square()


def rolling_spread_of_steps() -> torch.Tensor:
    """Deviations in windows of a series, of its steps and not of its level."""
    steps = (5000 + normal(300, seed=2541).cumsum(0)).diff()
    return steps.unfold(0, 20, 10).std(-1)


def few_kinds_in_half() -> torch.Tensor:
    """Labels below two thousand are half for a while, which holds them, and find their kinds."""
    people = (2000 * uniform(8, seed=2551)).long()
    right = people.to(HALF)[:, None] == torch.arange(2000).to(HALF)
    scores = normal(8, 2000, seed=2552)
    return torch.logsumexp(scores, -1) - scores[right]


def wide_bins_of_half() -> torch.Tensor:
    """Numbers in half are counted in sixteen bins, whose edges are exact in half."""
    edges = torch.arange(17).to(HALF) / 16
    found = torch.bucketize(uniform(2000, seed=2561).to(HALF), edges[1:-1].contiguous())
    return torch.bincount(found, minlength=16) / edges.diff().float() / 2000


def matches_barred_by_a_small_number() -> torch.Tensor:
    """Scores in half are barred by minus ten thousand; every row has some left."""
    scores = (normal(20, 24, seed=2571) * 3).to(HALF)
    scores = scores.masked_fill(torch.arange(24) > 19, -1e4)
    return torch.softmax(scores.float(), -1)


def squares_of_words_that_fit() -> torch.Tensor:
    """A norm in half by mean squares, of numbers up to a hundred."""
    words = (20 * normal(16, 32, seed=2581)).to(HALF)
    return (words * torch.rsqrt(words.square().mean(-1, keepdim=True) + 1e-6)).float()


def likeness_of_windows_in_float32() -> torch.Tensor:
    """The spread of what lies in windows of a dark picture, by squares in float32."""
    picture = 0.1 + 0.1 * normal(1, 1, 20, 20, seed=2591)
    mean, squares = functional.avg_pool2d(picture, 5, 1), functional.avg_pool2d(picture * picture, 5, 1)
    return squares - mean * mean


def texts_in_one_format() -> torch.Tensor:
    """Places of texts, all in half, and their losses in float32."""
    first = functional.normalize(normal(16, 24, seed=2601)).to(HALF)
    scores = (first @ first.T).float() / 0.1
    return torch.logsumexp(scores, -1) - scores.diagonal() + 1


def codes_with_a_least_scale() -> torch.Tensor:
    """Rows are coded in eight bits with a scale in float32; a row of zeros has the least one."""
    rows = normal(8, 32, seed=2611)
    rows[2] = 0
    scale = (rows.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-8)
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def bands_of_a_voice_in_bfloat16() -> torch.Tensor:
    """A spectrum in bfloat16 meets filters in bfloat16, and the logarithm is float32."""
    spectrum = normal(65, 20, seed=2621).abs().to(LOW)
    return torch.log((spectrum.T @ uniform(65, 12, seed=2622).to(LOW)).float().clamp_min(1e-5))


def windows_for_a_half_model() -> torch.Tensor:
    """Windows of a series become half, as the convolution that reads them is."""
    torch.manual_seed(2631)
    layer = nn.Conv1d(8, 12, 3, padding=1).to(HALF)
    with torch.no_grad():
        return layer(normal(2, 64, seed=2632).unfold(-1, 8, 8).transpose(1, 2).to(HALF)).float()


def sums_at_nodes_under_autocast() -> torch.Tensor:
    """Half products are added up at places of a tensor in half, three at each."""
    torch.manual_seed(2641)
    weight, places = nn.Linear(12, 12, bias=False), torch.arange(30) % 10
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return torch.zeros(10, 12, dtype=HALF).index_add_(0, places, weight(normal(30, 12, seed=2642))).float()


def softplus_of_bounded_rows() -> torch.Tensor:
    """The logarithm of one and an exponential, of rows of up to thirty."""
    return torch.log(1 + torch.exp((10 * normal(20, 12, seed=2651)).clamp(-30, 30)) + 0.1)


def focus_by_sigmoids() -> torch.Tensor:
    """The focal loss by softplus and sigmoid, of scores beyond a hundred."""
    against = 60 * normal(12, 16, seed=2661)
    return (torch.sigmoid(against).square() * functional.softplus(against)).sum(-1)


def attention_scaled_before() -> torch.Tensor:
    """Queries and keys in half are each divided by the root of the scale before they meet."""
    query, key = ((30 * normal(12, 64, seed=2671 + each)).to(HALF) / 64**0.25 for each in range(2))
    return torch.softmax((query @ key.T).float() / math.sqrt(64), -1) @ normal(12, 8, seed=2673)


def scores_kept_wide_under_autocast() -> torch.Tensor:
    """Under autocast, attention leaves it for the product of queries and keys."""
    torch.manual_seed(2681)
    pairs = nn.Linear(32, 96)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        query, key, value = pairs(normal(2, 12, 32, seed=2682)).chunk(3, -1)
        with torch.autocast("cpu", enabled=False):
            scores = query.float() @ key.float().transpose(-2, -1) / math.sqrt(32)
        return (torch.softmax(scores, -1).to(HALF) @ value).float()


IDIOMS = (
    tally_of_an_epoch, counts_below_the_largest, examples_that_float32_holds, spread_by_deviations, spread_by_squares_near_zero,
    rolling_spread_of_steps, few_kinds_in_half, wide_bins_of_half, matches_barred_by_a_small_number, squares_of_words_that_fit,
    likeness_of_windows_in_float32, texts_in_one_format, codes_with_a_least_scale, bands_of_a_voice_in_bfloat16, windows_for_a_half_model,
    sums_at_nodes_under_autocast, softplus_of_bounded_rows, focus_by_sigmoids, attention_scaled_before, scores_kept_wide_under_autocast,
)  # fmt: skip
EXACT = {
    "tally_of_an_epoch", "counts_below_the_largest", "examples_that_float32_holds", "spread_by_deviations", "spread_by_squares_near_zero",
    "rolling_spread_of_steps", "likeness_of_windows_in_float32", "softplus_of_bounded_rows", "focus_by_sigmoids",
}  # fmt: skip
