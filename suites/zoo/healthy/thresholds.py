"""Bounds that a low format rounds, and numbers that become whole ones, where neither matters: no number lies at the bound, or a code is as near."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform

HALF, LOW = torch.float16, torch.bfloat16


def sure_tokens() -> torch.Tensor:
    """Tokens that a model is sure of, from 0.999 on, which is 1 in bfloat16: those that are 1 pass, as they should."""
    sure = torch.sigmoid(torch.linspace(-8, 16, 48)).to(LOW)
    return torch.where(sure >= 0.999, sure, torch.zeros_like(sure))


def never_so_sure() -> torch.Tensor:
    """None of these is above 0.999, neither here nor in float32."""
    sure = torch.softmax(normal(16, 10).to(LOW), -1)
    return torch.where(sure > 0.999, torch.ones_like(sure), sure)


def widened_before() -> torch.Tensor:
    """Masks of ones that are compared in float32."""
    mask = (uniform(8, 32) > 0.3).to(LOW)
    return torch.where(mask.float() > 1 - 1e-6, 1.0, 0.1) * normal(8, 32)


def nearly_every_draw() -> torch.Tensor:
    """Draws below 0.9999: all of them are here, and all but one of ten thousand would be."""
    draws = uniform(400).to(LOW)
    return torch.where(draws < 0.9999, normal(400).to(LOW), torch.zeros(400).to(LOW))


def rows_of_nothing() -> torch.Tensor:
    """Rows with a norm, in half, are divided by it: zero is not above 1e-9, and not above zero either."""
    x = normal(6, 16).half()
    x[2] = 0
    norm = x.norm(dim=-1, keepdim=True)
    return torch.where(norm > 1e-9, x / norm.clamp_min(1e-4), x)


def halves_of_a_mask() -> torch.Tensor:
    """A soft mask beside 0.7, which bfloat16 rounds to a number that no mask has."""
    mask = torch.sigmoid(8 * normal(16, 16)).to(LOW)
    return (mask > 0.7).to(LOW) * normal(16, 16).to(LOW)


def rows_in_codes() -> torch.Tensor:
    """Rows of weights in codes of four bits by scales in half, one of which is of a row of zeros; a code in thirty is its neighbour."""
    weight = (0.05 * normal(24, 64)).half()
    weight[5] = 0
    scale = (weight.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-4)
    codes = (weight / scale).round().clamp(-8, 7)
    return (codes.to(torch.int8).half() * scale) @ normal(64, 8).half()


def codes_of_what_is_left() -> torch.Tensor:
    """What four bits leave of a weight of bfloat16, in codes of four bits again."""
    weight = (0.05 * normal(24, 64)).to(LOW)
    first = weight.abs().amax() / 7
    rest = weight - (weight / first).round() * first
    second = rest.abs().amax() / 7
    return (weight / first).round() * first + (rest / second).round() * second


def maps_as_bytes() -> torch.Tensor:
    """Attention in bfloat16 as a picture of 256 greys."""
    scores = (3 * normal(12, 12)).to(LOW) @ (3 * normal(12, 12, seed=1)).to(LOW)
    shares = torch.softmax(scores / 12, -1)
    return (255 * shares).round().to(torch.uint8).float() / 255


def loudness_in_decibels() -> torch.Tensor:
    """Loudness in whole decibels, from powers in bfloat16."""
    power = (torch.exp(2 * normal(200))).to(LOW)
    return (10 * torch.log10(power)).round().to(torch.int32).float()


def noise_before_a_step() -> torch.Tensor:
    """Rounded by chance: a draw is added to each number of bfloat16 before it is cut off."""
    x = (4 * normal(300)).to(LOW)
    return torch.floor(x + uniform(300, seed=1).to(LOW))


def cells_of_small_steps() -> torch.Tensor:
    """Differences of positions as given in half, in float32, and the cells that they cross."""
    before = (10 * uniform(64, 2)).half()
    after = (before + 0.05 * normal(64, 2, seed=1)).half()
    return ((after.float() - before.float()) / 0.02).floor()


def phases_of_a_wave() -> torch.Tensor:
    """What a phase of bfloat16 leaves beside whole turns, as a point on a circle."""
    turns = (3 * uniform(100)).to(LOW)
    rest = turns - turns.floor()
    return torch.stack([(6.2831853 * rest.float()).cos(), (6.2831853 * rest.float()).sin()])


IDIOMS = (sure_tokens, never_so_sure, widened_before, nearly_every_draw, rows_of_nothing, halves_of_a_mask, rows_in_codes, codes_of_what_is_left,
          maps_as_bytes, loudness_in_decibels, noise_before_a_step, cells_of_small_steps, phases_of_a_wave)  # fmt: skip
