"""Scenes, verdicts, draws and tables that look like those which lose their numbers, and do not."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def lamps_of_a_near_ship() -> torch.Tensor:
    """Light by places in half, which are counted from the ship."""
    across, up = torch.meshgrid(torch.linspace(-40, 40, 24), torch.linspace(-12, 12, 10), indexing="ij")
    hull = torch.stack([across, up, 0.2 * across], -1).reshape(-1, 3).to(HALF)
    lamps = torch.tensor([[-20.0, 3.0, -9.0], [4.0, -5.0, -3.0], [22.0, 6.0, 1.0]]).to(HALF)
    return (1 - (lamps[:, None] - hull).float().norm(dim=-1) / 16).clamp_min(0).sum(0)


def metres_with_zero_far_away() -> torch.Tensor:
    """Depths in float32 that are kept the other way round, where what is far is near nought."""
    near = 0.0004
    stairs = 30 + 0.17 * torch.arange(30, dtype=DOUBLE)
    return (near / (near / stairs).float()).diff()


def ball_from_its_middle() -> torch.Tensor:
    """Where rays meet a tiny ball, by how far they pass its middle."""
    middle, origin, radius = torch.tensor([0.3, 7.0, -21.0]), torch.tensor([0.0, 6.0, 40.0]), 0.5
    way = nn.functional.normalize(middle + 0.4 * normal(200, 3, seed=21) - origin, dim=-1)
    there = middle - origin
    along = (there * way).sum(-1, keepdim=True)
    past = (there - along * way).square().sum(-1)
    return (radius * radius - past).clamp_min(0).sqrt()


def tone_within_a_second() -> torch.Tensor:
    """A tone after an hour, whose samples are counted within a second of whole periods."""
    count = (28_800_000 + torch.arange(96)) % 8000
    return torch.sin(2 * torch.pi * ((count * 439) % 8000).float() / 8000)


def samples_spread_by_shares() -> torch.Tensor:
    """Strong samples spread onto a grid by a bell whose sum is one."""
    places = 4 + 8 * uniform(60, seed=22)
    bell = torch.exp(-((places[:, None] - torch.arange(16)) ** 2))
    return (1e16 * (1 + uniform(60, seed=23))) @ (bell / bell.sum(-1, keepdim=True)) / 1e16


def focus_by_whole_powers() -> torch.Tensor:
    """The gradient of a focal loss whose power is two, in float32, of scores that are not sure."""
    scores = (2 * normal(40, 5, seed=31)).requires_grad_()
    log_chance = scores.log_softmax(-1).amax(-1)
    (-((1 - log_chance.exp()) ** 2) * log_chance).mean().backward()
    assert scores.grad is not None
    return scores.grad


def points_by_logarithms() -> torch.Tensor:
    """How likely points are that no part is near to, by logarithms."""
    apart = ((1.5 * normal(30, 1, 2, seed=33) - normal(6, 2, seed=32)) / 0.12).square().sum(-1)
    return (-0.5 * apart + torch.zeros(6).log_softmax(0)).logsumexp(-1)


def counts_that_are_small() -> torch.Tensor:
    """How well counts below thirty fit, by factorials."""
    rates = 3 + 9 * uniform(40, seed=34)
    counts = rates.round()
    return counts * rates.log() - rates - torch.exp(torch.lgamma(counts + 1)).log()


def texts_by_float_losses() -> torch.Tensor:
    """Perplexities from a model in bfloat16, whose scores are float32 before the loss."""
    torch.manual_seed(131)
    model = nn.Sequential(nn.Embedding(200, 16), nn.Linear(16, 200)).to(LOW)
    text = (200 * uniform(12, 41, seed=36)).long()
    logits = model(text)[:, :-1].detach().float()
    losses = nn.functional.cross_entropy(logits.reshape(-1, 200), text[:, 1:].reshape(-1), reduction="none")
    return losses.view(12, -1).mean(-1).exp()


def process_with_noise() -> torch.Tensor:
    """A draw of a process whose places are apart, in float32, with noise on its diagonal."""
    places = torch.linspace(0, 2, 30)
    apart = (places[:, None] - places) / 0.3
    return torch.linalg.cholesky(torch.exp(-0.5 * apart**2) + 1e-2 * torch.eye(30)) @ normal(30, seed=37)


def words_by_counted_bits() -> torch.Tensor:
    """Noise for words from twenty-three counted bits, which are never nought and never one."""
    bits = (torch.arange(64) * 0x85EBCA6B + 12345) & 0x7FFFFF
    return normal(64, seed=41) - torch.log(-torch.log((bits.float() + 0.5) * 2.0**-23))


def first_step_of_a_line() -> torch.Tensor:
    """A step of a flow in bfloat16, from pure noise, which divides by nothing."""
    torch.manual_seed(141)
    model = nn.Linear(24, 24).to(LOW)
    noisy = normal(8, 24, seed=42).to(LOW)
    return (noisy.float() - 0.02 * torch.tanh(model(noisy)).float()).detach()


def returns_about_nought() -> torch.Tensor:
    """Returns normalised by running moments, where their mean is small beside their spread."""
    mean, square = torch.zeros(()), torch.ones(())
    for batch in range(8):
        returns = 0.3 + normal(64, seed=batch + 50)
        mean, square = 0.9 * mean + 0.1 * returns.mean(), 0.9 * square + 0.1 * (returns**2).mean()
    return (normal(20, seed=58) - mean) / (square - mean**2).sqrt()


def average_kept_wide() -> torch.Tensor:
    """A moving average in float32 of weights in bfloat16."""
    weight, average = normal(8, 16, seed=43).to(LOW), normal(8, 16, seed=43)
    for turn in range(8):
        weight = weight + 0.2 * normal(8, 16, seed=80 + turn).to(LOW)
        average.lerp_(weight.float(), 0.001)
    return average


def average_of_fast_weights() -> torch.Tensor:
    """A moving average in bfloat16 that takes a third of the difference each time."""
    weight, average = normal(8, 16, seed=43), torch.zeros(8, 16, dtype=LOW)
    for turn in range(6):
        average.lerp_((weight + 0.1 * normal(8, 16, seed=90 + turn)).to(LOW), 0.33)
    return average.float()


def texts_that_differ() -> torch.Tensor:
    """Distances of texts that have little in common, in half."""
    unit = nn.functional.normalize(normal(40, 64, seed=46), dim=-1).to(HALF)
    return (1 - (unit @ unit.T).triu(1).amax(0)[1:]).float()


def mean_by_wide_lanes() -> torch.Tensor:
    """A mean of halves in eight lanes of float32."""
    register = torch.zeros(8)
    for eight in (0.3 + 1.4 * uniform(100, 8, seed=61)).to(HALF):
        register += eight.float()
    return register.sum() / 800


def bins_with_a_last_edge() -> torch.Tensor:
    """Bins of one width whose last edge is the greatest number itself."""
    column = 0.1 + 0.7 * uniform(60, seed=62)
    edges = torch.linspace(float(column.min()), float(column.max()), 12)
    edges[-1] = column.max()
    place = (torch.searchsorted(edges, column, right=True) - 1).clamp(0, 10)
    return (place[:, None] == torch.arange(11)).float().sum(0)


def shares_of_scaled_rows() -> torch.Tensor:
    """Shares of rows with large numbers, which are divided by the largest first."""
    effects = 4e36 * normal(90, 90, seed=63)
    scaled = effects / effects.abs().amax(-1, keepdim=True)
    return scaled / scaled.abs().sum(-1, keepdim=True)


def seconds_of_a_day() -> torch.Tensor:
    """The speed of a boat by float32 seconds since it left."""
    seconds = 0.05 * torch.arange(51)
    return (0.4 + 0.01 * torch.sin(torch.arange(50) / 9)) / seconds.diff()


def ages_by_whole_numbers() -> torch.Tensor:
    """Prices weighed by ages, which are whole milliseconds until they are small."""
    now, stamps = 1_516_771_245_000, 1_516_771_245_000 - 5000 * torch.arange(12)
    weights = torch.exp(-(now - stamps).float() / 20_000)
    return (weights * (100 + normal(12, seed=70))).sum() / weights.sum()


EXACT = ("metres_with_zero_far_away", "ball_from_its_middle", "tone_within_a_second", "samples_spread_by_shares", "focus_by_whole_powers",
         "points_by_logarithms", "counts_that_are_small", "process_with_noise", "words_by_counted_bits", "returns_about_nought",
         "bins_with_a_last_edge", "shares_of_scaled_rows", "seconds_of_a_day", "ages_by_whole_numbers")  # fmt: skip
IDIOMS = (lamps_of_a_near_ship, metres_with_zero_far_away, ball_from_its_middle, tone_within_a_second, samples_spread_by_shares,
          focus_by_whole_powers, points_by_logarithms, counts_that_are_small, texts_by_float_losses, process_with_noise, words_by_counted_bits,
          first_step_of_a_line, returns_about_nought, average_kept_wide, average_of_fast_weights, texts_that_differ, mean_by_wide_lanes,
          bins_with_a_last_edge, shares_of_scaled_rows, seconds_of_a_day, ages_by_whole_numbers)  # fmt: skip
