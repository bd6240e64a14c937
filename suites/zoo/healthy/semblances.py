"""Advantages, echoes, likelihoods and lattices that look like the bugs of advantages, echoes, likelihoods and lattices."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def rollout_of_small_values() -> torch.Tensor:
    """Advantages in bfloat16 of values that are small beside the rewards, so that no difference loses digits."""
    rewards, values = normal(12, 8).to(LOW), (0.2 * normal(13, 8, seed=1)).to(LOW)
    advantage, found = torch.zeros(8, dtype=LOW), []
    for step in reversed(range(12)):
        advantage = rewards[step] + 0.8 * values[step + 1] - values[step] + 0.8 * 0.7 * advantage
        found.append(advantage)
    return torch.stack(found[::-1]).float()


def moments_of_scaled_observations() -> torch.Tensor:
    """Running moments in half of observations near one, over five batches."""
    mean, variance, count = torch.zeros(12, dtype=HALF), torch.ones(12, dtype=HALF), torch.tensor(1e-4, dtype=HALF)
    for step in range(5):
        batch = (0.3 + normal(64, 12, seed=step)).to(HALF)
        away, total = batch.mean(0) - mean, count + len(batch)
        squares = variance * count + batch.var(0, unbiased=False) * len(batch) + away.square() * (count * len(batch) / total)
        mean, variance, count = mean + away * (len(batch) / total), squares / total, total
    return ((batch - mean) / (variance + 1e-4).sqrt()).float()


def value_behind_a_root() -> torch.Tensor:
    """Values under autocast that a network says as roots; to take them back is to square, and what is taken off is small beside it."""
    head = nn.Linear(16, 1)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        head.weight.copy_(normal(1, 16) / 4)
        head.bias.fill_(9.0)
        said = head(normal(48, 16, seed=1)).squeeze(-1)
        return (said.sign() * ((said.abs() + 1).square() - 1)).float()


def average_of_large_steps() -> torch.Tensor:
    """A schedule-free average in half of five large steps, none of which is lost."""
    weight, goal = (0.5 * normal(12, 24)).to(HALF), normal(12, 24, seed=1)
    base = weight.clone()
    for step in range(1, 6):
        gradient = (weight.float() - goal).to(HALF)
        weight.lerp_(base, 1 / step)
        weight.add_(gradient, alpha=0.3 * (0.9 * (1 - 1 / step) - 1))
        base.sub_(gradient, alpha=0.3)
    return torch.lerp(weight.float(), base.float(), 1 - 1 / 0.9)


def uphill_by_whole_bits() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights in half that are moved uphill by a sixteenth and back: the move is a multiple of their spacing, and they return."""
    weight, x = (1 + 0.8 * uniform(8, 16)).to(HALF), normal(64, 16, seed=1).to(HALF)
    move = (normal(8, 16, seed=2).sign() / 16).to(HALF)
    weight.add_(move)
    made = functional.linear(x, weight).float()
    weight.sub_(move)
    return made, weight.float()


def norm_of_few_shards() -> torch.Tensor:
    """The norm of six shards, whose squares are added up in bfloat16."""
    total = torch.zeros((), dtype=LOW)
    for shard in range(6):
        total += (normal(64, seed=shard) / 8).to(LOW).float().norm().to(LOW) ** 2
    return normal(64) * (1 / total.float().sqrt())


def song_by_its_phases() -> torch.Tensor:
    """A waveform from magnitudes and phases in half, each of which is used as it is."""
    window = torch.hann_window(256)
    spectrum = torch.stft(torch.sin(torch.arange(2048) / 5) * torch.sin(torch.arange(2048) / 300), 256, 64, window=window, return_complex=True)
    magnitude, phase = spectrum.abs().to(HALF), spectrum.angle().to(HALF)
    return torch.istft(torch.polar((magnitude * 0.5).float(), phase.float()), 256, 64, window=window)[256:-256]


def voice_in_loud_noise() -> torch.Tensor:
    """Decibels of voices beside noise that is nearly as loud, whose products autocast makes low."""
    voice = torch.sin(torch.arange(1.0, 5)[:, None] * torch.arange(2000) / 9)
    estimate = voice + torch.tensor([0.3, 0.25, 0.2, 0.15])[:, None] * normal(4, 2000)
    with torch.autocast("cpu", LOW):
        share = (estimate[:, None] @ voice[:, :, None]).squeeze(-1) / (voice[:, None] @ voice[:, :, None]).squeeze(-1) * voice
        return (10 * torch.log10(share.square().sum(-1) / (estimate - share).square().sum(-1))).float()


def turn_from_matches() -> torch.Tensor:
    """A linear map of centred points from matches by normal equations, whose products autocast makes low; they are far from singular."""
    here, turn = normal(80, 2), torch.tensor([[0.9, -0.3], [0.4, 1.1]])
    with torch.autocast("cpu", LOW):
        square, both = here.T @ here, here.T @ (here @ turn.T)
    return torch.linalg.solve(square.float(), both.float()).T


def pixels_of_a_small_picture() -> torch.Tensor:
    """Places of pixels in half in a picture of 48 columns, where a picture that is smooth is read."""
    y, x = torch.meshgrid(torch.arange(48, dtype=HALF), torch.arange(48, dtype=HALF), indexing="ij")
    landed = torch.stack([x, y], -1) + normal(48, 48, 2).clamp(-2, 2).to(HALF)
    rows, columns = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    picture = torch.sin(rows / 20) + torch.cos(columns / 15)
    return functional.grid_sample(picture[None, None], (2 * landed.float() / 47 - 1)[None], align_corners=True, padding_mode="border")[0]


def counts_of_a_noisy_gene() -> torch.Tensor:
    """Losses of counts in half, whose inverse dispersion is near one, so that no logarithm of a gamma function is large."""
    theta, mean = (0.6 + uniform(30)).to(HALF), (1 + 2 * uniform(24, 30, seed=1)).to(HALF)
    counts = (4 * uniform(24, 30, seed=2)).round().to(HALF)
    both = torch.log(theta + mean)
    chances = theta * (torch.log(theta) - both) + counts * (torch.log(mean) - both)
    return -(chances + torch.lgamma(counts + theta) - torch.lgamma(theta) - torch.lgamma(counts + 1)).float().sum(-1)


def tails_that_are_heavy() -> torch.Tensor:
    """Losses of a Student distribution of three degrees of freedom in bfloat16, of places that are far from what is seen."""
    away = (2 + 4 * uniform(96)).to(LOW)
    return (0.98 + 2 * torch.log(1 + away.square() / 3)).float()


def flow_of_shifts() -> torch.Tensor:
    """Four couplings that only shift, by less than what they shift, there and back under autocast in half."""
    weights = [normal(6, 6, seed=layer) / 8 for layer in range(4)]
    one, other = normal(32, 6, seed=5).to(HALF), normal(32, 6, seed=6).to(HALF)
    with torch.autocast("cpu", HALF):
        for weight in weights:
            one, other = other + functional.linear(one, weight).tanh(), one
        for weight in reversed(weights):
            one, other = other, one - functional.linear(other, weight).tanh()
    return torch.cat([one, other], -1).float()


def wealth_of_a_wild_week() -> torch.Tensor:
    """Wealth over six days in half, whose returns are tenths: one plus such a return keeps its digits."""
    return (1 + (0.3 * normal(6, 8)).clamp(-0.8, 0.8).to(HALF)).cumprod(0).float()


def confidence_of_a_bad_classifier() -> torch.Tensor:
    """Gaps between confidence and accuracy, by sums in bfloat16 over one batch of 90 answers, most of which are wrong."""
    confidence = (0.5 + 0.5 * uniform(90)).to(LOW)
    held = functional.one_hot((confidence.float() * 5).long().clamp(max=4), 5).to(LOW)
    right = (uniform(90, seed=1) < 0.2).to(LOW)
    return (((held * right[:, None]).sum(0) - (held * confidence[:, None]).sum(0)) / held.sum(0).clamp(min=1)).float()


def agreement_of_a_small_picture() -> torch.Tensor:
    """Kappa in half of 144 pixels, whose table and products are small."""
    truth = (3 * uniform(144)).long()
    predicted = torch.where(uniform(144, seed=1) < 0.3, (3 * uniform(144, seed=2)).long(), truth)
    table = torch.bincount(truth * 3 + predicted, minlength=9).view(3, 3).to(HALF)
    observed, expected = table.diagonal().sum() / 144, (table.sum(0) / 144 * (table.sum(1) / 144)).sum()
    return ((observed - expected) / (1 - expected)).float()


def tomogram_in_tenths() -> torch.Tensor:
    """A volume in half that is given a mean of zero and a spread of one, and whose values are tenths."""
    volume = (0.3 * normal(12, 24, 24) + 0.1).to(HALF)
    mean = volume.mean()
    return ((volume - mean) / (volume - mean).square().mean().sqrt()).float()


def populations_of_a_fast_fluid() -> torch.Tensor:
    """The velocity by populations of four directions in half, of a fluid that moves so fast that they differ by as much as they are."""
    velocity = 0.3 + 0.1 * normal(2, 16, 16).clamp(-2, 2)
    ways = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    stored = (0.25 * (1 + 2 * torch.einsum("qd,dxy->qxy", ways, velocity))).to(HALF)
    return torch.einsum("qd,qxy->dxy", ways, stored.float()) / stored.float().sum(0)


def modes_of_an_anomaly() -> torch.Tensor:
    """Modes of rows of temperatures less their mean, by products in half under autocast."""
    angles = 2 * math.pi * torch.arange(256)[:, None] * torch.arange(1, 12) / 256
    field = 3 * torch.sin(angles[:, 0]) + normal(8, 1) * torch.cos(angles[:, 2])
    with torch.autocast("cpu", HALF):
        real, imaginary = field @ angles.cos(), field @ angles.sin()
        return ((real / 128) @ angles.cos().T + (imaginary / 128) @ angles.sin().T).float()


def pairs_that_are_near() -> torch.Tensor:
    """Forces in half by a softened law of twelve and six, on particles of which none is further from another than four."""
    places = (torch.cartesian_prod(*[torch.arange(2.0)] * 3) + 0.1 * normal(8, 3)).to(HALF).requires_grad_()
    first, second = torch.triu_indices(8, 8, 1)
    near = 1 / (0.5 + ((places[first] - places[second]).norm(dim=-1) / 0.9) ** 6)
    return -torch.autograd.grad((near * (near + 1)).float().sum(), places)[0].float()


def word_after_a_poor_draft() -> torch.Tensor:
    """Chances after a rejection by logarithms in half, of a draft that has half the target's chance for some words and more for the others."""
    target = functional.log_softmax(normal(12, 40), -1)
    draft = (target + torch.where(normal(12, 40, seed=1) > 0, -0.7 - uniform(12, 40, seed=2), 0.8)).to(HALF)
    ratio = (draft - target.to(HALF)).exp()
    return torch.softmax(torch.where(ratio < 1, target.to(HALF) + torch.log(1 - ratio), -60000.0).float(), -1)


def draws_of_few_words() -> torch.Tensor:
    """Draws from six words by sums of chances in bfloat16; no draw is near a sum."""
    chances = torch.tensor([0.25, 0.125, 0.25, 0.125, 0.125, 0.125]).to(LOW)
    draws = (torch.arange(64) + 0.5) / 64
    words = torch.searchsorted(chances.cumsum(0), draws.to(LOW))
    return torch.bincount(words, minlength=6).float()


def buckets_of_short_distances() -> torch.Tensor:
    """Biases of attention of distances in bfloat16 that are exact ones: logarithms are taken, and not used."""
    table = (2 * normal(32, 4)).to(LOW)
    distance = (torch.arange(16)[:, None] - torch.arange(16)).clamp(min=0)
    far = 16 + torch.log(distance.clamp(min=1).to(LOW) / 16) / math.log(8) * 16
    return torch.softmax(table[torch.where(distance < 16, distance, far.long())].float(), 1)


def attention_in_few_steps() -> torch.Tensor:
    """What attention twenty keys had in five steps, added up in half."""
    keys, had = normal(20, 16).to(HALF), torch.zeros(20, dtype=HALF)
    for step in range(5):
        had += torch.softmax((normal(2, 16, seed=1 + step).to(HALF) @ keys.T).float() / 4, -1).to(HALF).sum(0)
    return had.float()


IDIOMS = (
    rollout_of_small_values, moments_of_scaled_observations, value_behind_a_root, average_of_large_steps, uphill_by_whole_bits, norm_of_few_shards,
    song_by_its_phases, voice_in_loud_noise, turn_from_matches, pixels_of_a_small_picture, counts_of_a_noisy_gene, tails_that_are_heavy,
    flow_of_shifts, wealth_of_a_wild_week, confidence_of_a_bad_classifier, agreement_of_a_small_picture, tomogram_in_tenths,
    populations_of_a_fast_fluid, modes_of_an_anomaly, pairs_that_are_near, word_after_a_poor_draft, draws_of_few_words, buckets_of_short_distances,
    attention_in_few_steps,
)  # fmt: skip
