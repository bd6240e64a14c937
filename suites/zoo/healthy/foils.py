"""Pedigrees, itineraries, tuitions and prompts that look like those which lose their numbers, and do not."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
EARTH = 6_371_000.0


def spread_about_the_mean() -> torch.Tensor:
    """Variances of genes that are never silent, by kind of cell, from what is left without the mean."""
    cells, kinds = 3000 + 300 * torch.arange(8) + normal(120, 8, seed=301), torch.arange(120) % 3
    groups = [cells[kinds == kind] for kind in range(3)]
    return torch.stack([(group - group.mean(0)).square().sum(0) / (len(group) - 1) for group in groups])


def message_by_logarithms() -> torch.Tensor:
    """What forty-five children say of an ancestor, whose chances are added as logarithms."""
    passing = torch.eye(60) * 0.4 + 0.6 / 60 * (0.5 + uniform(60, 60, seed=302))
    homes = (8 * uniform(45, seed=303)).long()
    return torch.log(passing[:, homes]).sum(-1).softmax(0)


def structures_that_differ() -> torch.Tensor:
    """How far a protein is from another shape of itself, by the spread of both less what fits."""
    first, second = 3 * normal(150, 3, seed=304), 3 * normal(150, 3, seed=305)
    first, second = first - first.mean(0), second - second.mean(0)
    fit = torch.linalg.svdvals(first.T @ second).sum()
    return ((first.square().sum() + second.square().sum() - 2 * fit) / 150).sqrt()


def edges_within_a_box() -> torch.Tensor:
    """Energies of a chain by all distances, at places within a small box."""
    places = torch.stack([1.4 * torch.arange(50), torch.zeros(50), torch.zeros(50)], -1) + 0.1 * normal(50, 3, seed=320)
    apart = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.where((apart < 4) & ~torch.eye(50, dtype=torch.bool), torch.exp(-apart), 0.0).sum(-1)


def density_by_its_factor() -> torch.Tensor:
    """How likely six plants are by fifty measures, with the logarithm of a determinant from a factor's diagonal."""
    factors = 0.02 * normal(50, 50, seed=321)
    lower = torch.linalg.cholesky(factors @ factors.T / 50 + 0.0004 * torch.eye(50))
    away = torch.linalg.solve_triangular(lower, 0.03 * normal(6, 50, seed=322).T, upper=False)
    return -0.5 * (50 * math.log(2 * math.pi) + away.square().sum(0)) - lower.diagonal().log().sum()


def radial_parts_by_series() -> torch.Tensor:
    """A radial function near nought by the terms of its series."""
    places = torch.linspace(0.01, 0.2, 40)
    return 1 + places**2 / 10 + places**4 / 280


def way_by_half_angles() -> torch.Tensor:
    """The metres between fixes of a walk, by sines of half their differences, which are small numbers themselves."""
    steps = torch.deg2rad(torch.tensor([4e-5, 6e-5]) * (1 + 0.5 * normal(50, 2, seed=331)))
    half = torch.sin(steps[:, 0] / 2) ** 2 + math.cos(math.radians(60.5)) ** 2 * torch.sin(steps[:, 1] / 2) ** 2
    return 2 * EARTH * torch.asin(half.sqrt())


def corners_from_the_eye() -> torch.Tensor:
    """Pixels of a stair whose corners are counted from the eye before they are float32."""
    eye = torch.tensor([412_310.13, 5_654_780.31, 130.2], dtype=DOUBLE)
    corners = torch.tensor([412_310.0, 5_654_780.0, 120.0], dtype=DOUBLE) + uniform(40, 3, seed=332)
    seen = (corners - eye).float()
    return 540 * seen[:, :2] / -seen[:, 2:]


def raft_near_home() -> torch.Tensor:
    """How far a raft has gone from where its players are, in float32."""
    place, speed = torch.tensor([14.0, 63.0, -12.0]), torch.zeros(3)
    push = torch.tensor([0.09, 0.0, 0.05])
    for _ in range(60):
        speed = 0.98 * speed + 0.05 * push
        place = place + 0.05 * speed
    return place


def note_by_its_turns() -> torch.Tensor:
    """A chord that is held, whose places begin again with each turn of the sound."""
    sound, place = torch.sin(2 * math.pi * torch.arange(96) / 96), torch.zeros(4)
    played = []
    for _ in range(60):
        played.append(sound[place.long()])
        place = (place + torch.tensor([0.5312, 0.6691, 0.7958, 1.0624])) % 96
    return torch.stack(played)


def flow_of_even_days() -> torch.Tensor:
    """A moving sum of days that are alike, to which each is added once and from which it is taken once."""
    volume, total, sums = 900 + 400 * uniform(60, seed=334), torch.zeros(()), []
    for day, number in enumerate(volume):
        total = total + number
        if day >= 20:
            total = total - volume[day - 20]
        sums.append(total)
    return torch.stack(sums)


def movements_less_gravity() -> torch.Tensor:
    """A moving mean by differences of sums, of numbers whose own mean is nought."""
    felt = 0.002 * torch.sin(torch.arange(6000) / 70) + 0.0005 * normal(6000, seed=336)
    sums = felt.double().cumsum(0)
    return ((sums[10:] - sums[:-10]) / 10).float()


def gyroscope_at_a_middle_rate() -> torch.Tensor:
    """A filter of second order whose cutoff is a twentieth of its rate."""
    omega = torch.tensor(2 * math.pi / 20)
    alpha = torch.sin(omega) / math.sqrt(2)
    forward, back1, back2 = (1 - torch.cos(omega)) / 2 / (1 + alpha), -2 * torch.cos(omega) / (1 + alpha), (1 - alpha) / (1 + alpha)
    taken, given, drifts = [torch.zeros(3)] * 2, [torch.zeros(3)] * 2, []
    for number in 5 + normal(60, 3, seed=337):
        result = forward * (number + 2 * taken[0] + taken[1]) - back1 * given[0] - back2 * given[1]
        taken, given = [number, taken[0]], [result, given[0]]
        drifts.append(result)
    return torch.stack(drifts)


def steps_that_are_clipped() -> torch.Tensor:
    """Adam's steps after slopes of 1e15, which are clipped before they are squared."""
    theta, first, second = torch.zeros(6), torch.zeros(6), torch.zeros(6)
    for step in range(1, 9):
        slope = (1e15 if step < 3 else 1.0) * (1 + uniform(6, seed=340 + step))
        slope = slope / slope.norm().clamp_min(1)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope * slope
        theta = theta - 0.2 * first / (1 - 0.9**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
    return theta


def actions_before_they_are_squeezed() -> torch.Tensor:
    """How likely actions at their bounds are, by what they were before a tangent squeezed them."""
    before = 4 + 7 * uniform(32, 3, seed=342)
    squeezed = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
    return (torch.distributions.Normal(before + 0.3 * normal(32, 3, seed=343), 0.5).log_prob(before) - squeezed).sum(-1)


def lesson_before_four_bits() -> torch.Tensor:
    """A layer of four bits, whose lesson is as large as its weights."""
    weight = (0.05 * normal(32, 64, seed=344) + 0.1 * normal(32, 4, seed=345) @ normal(4, 64, seed=346)).view(32, 4, 16)
    scale = weight.abs().amax(-1, keepdim=True) / 7
    merged = ((weight / scale).round().clamp(-8, 7) * scale).flatten(1)
    return normal(20, 64, seed=347) @ merged.T


def chances_by_wide_scores() -> torch.Tensor:
    """How likely chosen words are, from scores in bfloat16 that are float32 before anything is taken from them."""
    logits = (9 * normal(4, 12, 300, seed=351)).to(LOW).float()
    words = (300 * uniform(4, 12, seed=348)).long()
    return logits.gather(-1, words[..., None])[..., 0] - torch.logsumexp(logits, -1)


def soft_steps_of_small_halves() -> torch.Tensor:
    """A smooth step in half, of numbers below five."""
    return torch.log(1 + torch.exp((2.5 * normal(40, seed=361)).clamp(-5, 5).to(HALF))).float()


def wave_without_its_mean() -> torch.Tensor:
    """A convolution by waves in half, from which the mean was taken first."""
    angles = 2 * math.pi * torch.outer(torch.arange(64), torch.arange(64)).double() / 64
    cosine, sine = torch.cos(angles).to(HALF), torch.sin(angles).to(HALF)
    signal, kernel = (0.5 * normal(4, 64, seed=363)).to(HALF), torch.exp(-torch.arange(64) / 8.0).to(HALF)
    even, odd, kernel_even, kernel_odd = signal @ cosine, signal @ sine, kernel @ cosine, kernel @ sine
    return (((even * kernel_even - odd * kernel_odd) @ cosine + (even * kernel_odd + odd * kernel_even) @ sine) / 64).float()


def words_of_one_size() -> torch.Tensor:
    """A filter as long as the text, by fast waves, whose words are of one size."""
    text, kernel = normal(64, 8, seed=365), torch.exp(-torch.arange(64) / 20.0)[:, None] * normal(64, 8, seed=364)
    waves = torch.fft.rfft(text, 128, dim=0) * torch.fft.rfft(kernel, 128, dim=0)
    mixed = torch.fft.irfft(waves, 128, dim=0)[:64]
    return mixed / mixed.square().mean(-1, keepdim=True).sqrt()


def words_filled_with_infinity() -> torch.Tensor:
    """Attention in half that fills what must not be seen with minus infinity."""
    query, key, value = normal(3, 10, 16, seed=367).to(HALF)
    blocked = torch.ones(10, 10, dtype=torch.bool).triu(1)
    return (torch.softmax((query @ key.T / 4).masked_fill(blocked, -torch.inf), -1) @ value).float()


def scales_that_are_wide() -> torch.Tensor:
    """Three layers of halves of size one, whose scale is a number in float32."""
    data, scale = normal(8, 32, seed=368).to(HALF), torch.tensor(96.0)
    for at, size in enumerate((12.0, 16.0, 0.002)):
        data, scale = data @ normal(32, 32, seed=369 + at).to(HALF) / math.sqrt(32), scale * size * math.sqrt(32)
    return data.float() * scale


def doubt_of_wide_chances() -> torch.Tensor:
    """Entropies of words that a model is sure of, in float32."""
    logits = normal(30, 50, seed=372)
    logits[torch.arange(30), (50 * uniform(30, seed=373)).long()] = 10.0
    logarithms = logits.to(LOW).float().log_softmax(-1)
    return -(logarithms.exp() * logarithms).sum(-1)


def embedding_of_a_short_text() -> torch.Tensor:
    """The mean of sixty words in half, two of whose channels are large."""
    hidden = normal(3, 60, 8, seed=376)
    hidden[..., :2] += 36
    vectors = (hidden.to(HALF).sum(1) / 60).float()
    return vectors / vectors.norm(dim=-1, keepdim=True)


IDIOMS = (spread_about_the_mean, message_by_logarithms, structures_that_differ, edges_within_a_box, density_by_its_factor,
          radial_parts_by_series, way_by_half_angles, corners_from_the_eye, raft_near_home, note_by_its_turns, flow_of_even_days,
          movements_less_gravity, gyroscope_at_a_middle_rate, steps_that_are_clipped, actions_before_they_are_squeezed,
          lesson_before_four_bits, chances_by_wide_scores, soft_steps_of_small_halves, wave_without_its_mean, words_of_one_size,
          words_filled_with_infinity, scales_that_are_wide, doubt_of_wide_chances, embedding_of_a_short_text)  # fmt: skip
LOW_ONES = {"chances_by_wide_scores", "soft_steps_of_small_halves", "wave_without_its_mean", "words_filled_with_infinity",
            "scales_that_are_wide", "doubt_of_wide_chances", "embedding_of_a_short_text"}  # fmt: skip
EXACT = tuple(idiom.__name__ for idiom in IDIOMS if idiom.__name__ not in LOW_ONES)
