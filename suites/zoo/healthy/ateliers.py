"""Shadows, heads and calibrations in short formats, in the manner of faults of this kind, and right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def shadow_in_a_wide_hall() -> torch.Tensor:
    """A march in half whose steps are a hundred spacings long."""
    at = (10 * uniform(20)).to(HALF)
    for _ in range(12):
        at = at + (1 + 0.5 * torch.sin(at))
    return torch.exp(-0.1 * at.float())


def texels_of_the_first_tile() -> torch.Tensor:
    """Coordinates in half that are thirty-seconds below sixteen, less the offset of a tile: all of it is exact."""
    u = (torch.arange(400) / 32).to(HALF)
    place = ((u - 4) * 0.5).float()
    return torch.sin(place)


def map_of_a_lens_in_pixels_from_its_own() -> torch.Tensor:
    """A map of a lens written in half as how far each pixel moves, which is a few pixels."""
    x = (torch.arange(2000) + 0.5) / 2000
    moved = (-0.04 * (x - 0.5) ** 3 * 2000).to(HALF)
    at = torch.arange(2000) + moved.float()
    line = torch.sin(2 * math.pi * torch.arange(2000) / 9)
    left = at.floor().long().clamp(0, 1998)
    return torch.lerp(line[left], line[left + 1], at - left)


def wallpaper_of_a_minute_hand() -> torch.Tensor:
    """Seconds of an hour in half, wrapped before they are cast, at times that half holds."""
    across = torch.linspace(0, 1, 64).to(HALF)
    return torch.stack([torch.sin(6 * across + torch.tensor((1203.0 + frame / 8) % 4).to(HALF)) for frame in range(8)]).float()


def norm_of_small_features() -> torch.Tensor:
    """A norm written out in half, of features whose squares are in range, with an epsilon that half has."""
    x = (3 * normal(1, 8, 6, 6)).to(HALF)
    middle = x - x.mean(1, keepdim=True)
    return (middle / (middle.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()).float()


def draws_below_one() -> torch.Tensor:
    """Noise of draws that were made for bfloat16: the middles of 128 cells, none of which is one."""
    u = ((uniform(4, 300, seed=1) * 127).floor() / 128 + 1 / 256).to(LOW)
    return ((2 * normal(4, 300)).to(LOW) - torch.log(-torch.log(u))).float()


def margins_about_nought() -> torch.Tensor:
    """Rewards of a head in bfloat16 without a level of their own: pairs differ by as much as they are."""
    torch.manual_seed(3)
    head = nn.Linear(32, 1, bias=False).to(LOW)
    with torch.no_grad():
        chosen, rejected = head(normal(24, 32).to(LOW)), head(normal(24, 32, seed=1).to(LOW))
    return -functional.logsigmoid((chosen - rejected).float())


def scale_that_is_kept_below_a_hundred() -> torch.Tensor:
    """A learned scale in half, whose logarithm is clamped before its exponential is taken."""
    picture, text = functional.normalize(normal(8, 16), dim=-1).to(HALF), functional.normalize(normal(8, 16, seed=1), dim=-1).to(HALF)
    scale = torch.tensor(11.4).clamp(max=4.6).to(HALF).exp()
    return (scale * (picture @ text.T)).float().softmax(-1)


def cosines_of_scaled_classes() -> torch.Tensor:
    """Small weights in half are divided by their largest before they are squared."""
    weight = (1.5e-4 * normal(12, 24)).to(HALF)
    weight = weight / weight.abs().amax(-1, keepdim=True)
    unit = weight / (weight * weight).sum(-1, keepdim=True).sqrt()
    return (functional.normalize(normal(6, 24, seed=1), dim=-1).to(HALF) @ unit.T).float()


def padding_by_the_least_number() -> torch.Tensor:
    """Padding that is written over by the least number of half, and gets no weight."""
    scores = normal(2, 5, 6).to(HALF)
    return scores.masked_fill(torch.arange(6) > 3, torch.finfo(HALF).min).softmax(-1).float()


def middle_of_few_activations() -> torch.Tensor:
    """A sum of eight rows in bfloat16, whose mean is taken off."""
    x = normal(8, 6).to(LOW)
    total = torch.zeros(6, dtype=LOW)
    for row in x:
        total = total + row
    return (x.float() - total.float() / 8) + 3


def losses_that_fade() -> torch.Tensor:
    """A loss in bfloat16 whose running mean forgets a fifth a step: what is added is never small beside it."""
    mean = torch.tensor(2.3).to(LOW)
    for loss in (2.3 + 0.3 * normal(60)).to(LOW):
        mean = mean + 0.2 * (loss - mean)
    return mean.float()


def second_moments_of_one_batch() -> torch.Tensor:
    """Second moments by one product in bfloat16, which sums in float32, damped well before the inverse."""
    x = normal(128, 8).to(LOW)
    moments = (x.T @ x).float() / 128
    return torch.linalg.inv(moments + 0.1 * torch.eye(8))


def memory_that_fades_fast() -> torch.Tensor:
    """Decays between a half and nine tenths in bfloat16: what they are off by has faded before it adds up."""
    decay, state = (0.5 + 0.4 * uniform(6)).to(LOW), torch.zeros(6, 4)
    for token in range(30):
        state = state * decay[:, None] + normal(6, 4, seed=token)
    return state


IDIOMS = (
    shadow_in_a_wide_hall, texels_of_the_first_tile, map_of_a_lens_in_pixels_from_its_own, wallpaper_of_a_minute_hand, norm_of_small_features,
    draws_below_one, margins_about_nought, scale_that_is_kept_below_a_hundred, cosines_of_scaled_classes, padding_by_the_least_number,
    middle_of_few_activations, losses_that_fade, second_moments_of_one_batch, memory_that_fades_fast,
)  # fmt: skip
