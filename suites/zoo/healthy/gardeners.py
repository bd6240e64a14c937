"""Beside the orchards and smithies: norms in float32, means of means, decays by their largest exponent, wrapped phases, bounds in closed form."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def close_features_in_float32() -> torch.Tensor:
    """Words whose features lie close together are float32 until they are normalized, and only then bfloat16."""
    torch.manual_seed(2201)
    layer, words = nn.Linear(32, 32).to(LOW), 5 + 0.06 * normal(16, 32, seed=2202)
    with torch.no_grad():
        return layer(functional.layer_norm(words, (32,)).to(LOW)).float()


def spread_features_in_bfloat16() -> torch.Tensor:
    """The same norm by hand in bfloat16, of features that are about zero and differ."""
    words = (0.1 + 2 * normal(16, 32, seed=2211)).to(LOW)
    centred = words - words.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)).float()


def groups_within_the_format() -> torch.Tensor:
    """A group norm in half of features up to fifty, whose squares fit."""
    torch.manual_seed(2221)
    layer = nn.Conv2d(3, 8, 3, padding=1).to(HALF)
    with torch.no_grad():
        values = (10 * layer(normal(2, 3, 8, 8, seed=2222).to(HALF))).view(2, 4, -1)
        spread = (values - values.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return ((values - values.mean(-1, keepdim=True)) * torch.rsqrt(spread + 1e-3)).float()


def squares_of_a_centred_batch() -> torch.Tensor:
    """Batch normalization by squares in bfloat16: the batch has no mean to speak of, so nothing is taken from anything."""
    values = normal(64, 24, seed=2231).to(LOW)
    mean, squares = values.mean(0), values.square().mean(0)
    return ((values - mean) * torch.rsqrt(squares - mean.square() + 1e-5)).float()


def running_statistics_in_float32() -> torch.Tensor:
    """A network in bfloat16 whose batch norms keep their statistics in float32, over twenty batches."""
    torch.manual_seed(2241)
    layer, norm = nn.Linear(12, 16).to(LOW), nn.BatchNorm1d(16, momentum=0.05)
    with torch.no_grad():
        for turn in range(20):
            norm(layer((2 + normal(32, 12, seed=2242 + turn)).to(LOW)).float())
        norm.eval()
        return norm(layer((2 + normal(8, 12, seed=2290)).to(LOW)).float())


def mean_of_means() -> torch.Tensor:
    """The mean of sixteen thousand losses in half, by the means of equal parts; each of them fits."""
    losses = (4 + normal(16384, seed=2301).abs()).to(HALF)
    return torch.stack([part.mean() for part in losses.chunk(64)]).mean().float()


def decays_by_the_largest() -> torch.Tensor:
    """Exponentials of keys, each less the largest so far, in half; what is far below it becomes zero and should."""
    keys, values = (5 * normal(24, 16, seed=2311)).to(HALF), normal(24, 16, seed=2312).to(HALF)
    above, below, most, told = torch.zeros(16, dtype=HALF), torch.zeros(16, dtype=HALF), torch.full((16,), -1e4, dtype=HALF), []
    for key, value in zip(keys, values, strict=True):
        now = torch.maximum(most - 0.3, key)
        past, fresh = torch.exp(most - 0.3 - now), torch.exp(key - now)
        above, below, most = past * above + fresh * value, past * below + fresh, now
        told.append((above / below).float())
    return torch.stack(told)


def table_in_the_layers_format() -> torch.Tensor:
    """A table of steps is made in float32 and becomes bfloat16 before the first layer."""
    torch.manual_seed(2321)
    first = nn.Linear(24, 32).to(LOW)
    angles = torch.linspace(0, 999, 8)[:, None] * 10_000.0 ** (-torch.arange(0, 24, 2) / 24)
    with torch.no_grad():
        return functional.silu(first(torch.cat([angles.cos(), angles.sin()], -1).to(LOW))).float()


def tone_of_a_second() -> torch.Tensor:
    """A sine whose phase is wrapped at each turn, so that its sum stays small."""
    turns = (220 + 20 * torch.sin(torch.arange(8000) / 900)) / 16_000
    phase = torch.cumsum(turns.double(), 0)
    return torch.sin((phase - phase.floor()).float() * 2 * math.pi)


def turn_that_is_well_posed() -> torch.Tensor:
    """Channels are mixed by a matrix near a rotation in float32, and back by its inverse."""
    turn, _ = torch.linalg.qr(normal(16, 16, seed=2331))
    turn = turn + 0.05 * normal(16, 16, seed=2332)
    return normal(32, 16, seed=2333) @ turn @ torch.inverse(turn)


def spreads_that_are_bounded() -> torch.Tensor:
    """A network's log spreads are kept between minus thirty and twenty; the exponential of the lower ones is nearly zero, and should be."""
    spread = (25 * normal(32, 8, seed=2341)).clamp(-30, 20)
    place = normal(32, 8, seed=2342)
    return torch.log((place.pow(2) + spread.exp() - spread - 1).mean(0)) / 2


def actions_near_their_bound() -> torch.Tensor:
    """Log chances of squashed actions by softplus, which loses nothing however near they come to one."""
    mean, spread = 6 + normal(40, 3, seed=2351), 0.2 + uniform(40, 3, seed=2352)
    raw = mean + spread * normal(40, 3, seed=2353)
    chance = torch.distributions.Normal(mean, spread).log_prob(raw)
    return (chance - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))).sum(-1)


IDIOMS = (
    close_features_in_float32, spread_features_in_bfloat16, groups_within_the_format, squares_of_a_centred_batch, running_statistics_in_float32,
    mean_of_means, decays_by_the_largest, table_in_the_layers_format, tone_of_a_second, turn_that_is_well_posed, spreads_that_are_bounded,
    actions_near_their_bound,
)  # fmt: skip
EXACT = {"tone_of_a_second", "turn_that_is_well_posed", "spreads_that_are_bounded", "actions_near_their_bound"}
