"""Pictures, registers and players that look like those which lose their numbers, and do not."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform, wider
from torch import nn

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def tentacles_of_a_period() -> torch.Tensor:
    """A wave whose time is taken within its period in float64, and is half only then."""
    place, period = torch.linspace(0, 1, 24).to(HALF), 2 * math.pi / 1.7
    frames = [torch.tensor((611.3 + frame / 30) % period).to(HALF) for frame in range(6)]
    return torch.stack([0.1 * torch.sin(1.7 * time - 3 * place) for time in frames]).float()


def box_about_its_middle() -> torch.Tensor:
    """A box with round corners, whose pixels are counted from its middle before they are half."""
    rows, columns = torch.meshgrid(torch.arange(2200, 2226), torch.arange(400, 440), indexing="ij")
    pixels = (torch.stack([columns, rows], -1) + 0.5 - torch.tensor([420.2, 2210.25])).to(HALF)
    beyond = pixels.abs() - torch.tensor([9.0, 4.0]).to(HALF)
    distance = beyond.clamp_min(0).float().norm(dim=-1).to(HALF) + beyond.amax(-1).clamp_max(0) - 3
    return (0.5 - distance).clamp(0, 1).float()


def pattern_of_small_tiles() -> torch.Tensor:
    """The fraction of a product of places in half that are up to sixty."""
    x = (torch.arange(2, 60, 3) + 0.5).to(HALF)
    turn = x[:, None] * x * 0.0001
    return (turn - turn.floor()).float()


def figure_before_it_is_moved() -> torch.Tensor:
    """Areas of triangles in half whose corners are near the origin."""
    corners = (4 * normal(12, 1, 2) + 3 * normal(12, 3, 2, seed=1)).to(HALF).float()
    one, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    return (one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]) / 2


def dashes_of_a_segment() -> torch.Tensor:
    """Dashes by the way along a segment, which begins anew with each dash."""
    begin = (65 * torch.arange(50.0))[:, None] % 6
    along = (begin + 12 * torch.linspace(0, 1, 9)).to(HALF)
    rest = along / 6 - (along / 6).floor()
    return torch.where(rest < 0.6, 1 - (2 * rest / 0.6 - 1).abs(), 0.0).mean(-1).float()


def fog_in_kilometres() -> torch.Tensor:
    """Fog by distances in half that are less than one."""
    places = (0.6 * (uniform(64, 2, seed=3) - 0.5) + 0.15).to(HALF)
    distance = (places * places).sum(-1).sqrt()
    return ((distance - 0.3) / 0.6).clamp(0, 1).float()


def events_without_an_upper_edge() -> torch.Tensor:
    """Weights in bins of which the last takes all that is left."""
    heights, weights = uniform(40, seed=4), 0.5 + uniform(40, seed=5)
    place = ((heights - heights.min()) / (heights.max() - heights.min()) * 10).long().clamp(0, 9)
    return torch.zeros(10).index_add_(0, place, weights)


def decays_since_the_start() -> torch.Tensor:
    """Gaps between decays, by float32 times in nanoseconds since a run began."""
    times = (1e9 * 3600 * uniform(200, seed=6).double()).sort().values
    return (times - times[0]).diff().float() / 1e9


def weights_in_units() -> torch.Tensor:
    """Weights of a rare process, with its coupling left out until they have been divided by their mean."""
    momenta = normal(100, 4, seed=7)
    scale = 1 / (momenta.square().sum(-1) + 1.0)
    weights = (scale * momenta[..., 0].cos()).square() + (scale * momenta[..., 1].sin()).square()
    return weights / weights.mean()


def bins_by_half_steps() -> torch.Tensor:
    """Grey levels in the bins whose middle they are."""
    grey = torch.arange(16, 801).repeat(3)
    place = ((grey.float() - 15.5) / 785 * 785).long()
    return torch.zeros(785).index_add_(0, place, torch.ones(len(grey)))


def layer_by_a_count() -> torch.Tensor:
    """A layer that wakes in each third turn, by a whole number of 64 bits."""
    held = torch.zeros(5)
    for turn in range(60):
        if (16_777_200 + turn) % 3 == 0:
            held = 0.7 * held + uniform(5, seed=turn)
    return held


def likes_beside_an_hour() -> torch.Tensor:
    """A sum of vectors of fields, one of which is scaled by the hour of the day."""
    torch.manual_seed(97)
    things, hour, head = nn.Embedding(30, 12), 0.05 * torch.randn(12), nn.Linear(12, 1)
    told = head(things(torch.arange(30)) + 13.0 * hour)[:, 0].detach()
    return told - told[0]


def fade_since_it_began() -> torch.Tensor:
    """A fade by the time since it began, which is float32, where the clock of days is float64."""
    start = 262_200.37
    moments = [torch.tensor(start + 0.01 * turn - start) for turn in range(1, 21)]
    return torch.stack([(1 - each / 0.2).clamp_min(0) for each in moments])


def voice_within_a_turn() -> torch.Tensor:
    """A voice of harmonics whose phase is brought back to one turn after each block."""
    phase, many, heard = torch.tensor(0.0), torch.arange(1.0, 9.0), []
    for block in range(12):
        step = 2 * math.pi * (220 + 3 * math.sin(block)) / 48_000
        heard.append((torch.sin(many[:, None] * (phase + step * torch.arange(64.0))) / many[:, None]).sum(0))
        phase = torch.remainder(phase + 64 * step, 2 * math.pi)
    return torch.cat(heard)


def beam_of_logarithms() -> torch.Tensor:
    """The best readings of a line, by sums of logarithms."""
    frames, follows = torch.log_softmax(normal(40, 30, seed=11), -1), torch.log_softmax(2 * normal(30, 30, seed=12), -1)
    chance, last = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    for frame in frames:
        scores = chance[:, None] + frame + follows[last]
        best = scores.flatten().topk(min(4, scores.numel()))
        chance, last = best.values, best.indices % 30
    return torch.softmax(chance, -1)


def channels_near_one() -> torch.Tensor:
    """Channels divided by what their neighbours have, in half, of numbers near one."""
    x = uniform(2, 12, 8, 8, seed=13).to(HALF)
    squares = nn.functional.pad((x * x)[:, None], (0, 0, 0, 0, 2, 2))[:, 0]
    around = sum(squares[:, each : each + 12] for each in range(5))
    return wider(x * (1 + 2e-5 * around).pow(-0.75))


def forecast_of_deviations() -> torch.Tensor:
    """A forecast by a network in bfloat16, of a series that was scaled in float32 and is scaled back there."""
    torch.manual_seed(99)
    body, head = nn.Linear(48, 32).to(LOW), nn.Linear(32, 4).to(LOW)
    series = 4000 + 25 * torch.sin(torch.arange(48) / 24 * 2 * math.pi + 6 * uniform(6, 1, seed=14)) + 4 * normal(6, 48, seed=15)
    mean, spread = series.mean(-1, keepdim=True), series.std(-1, keepdim=True)
    return (head(torch.relu(body(((series - mean) / spread).to(LOW)))).float() * spread).detach()


def codes_about_nought() -> torch.Tensor:
    """The nearest code of each patch in bfloat16, where codes are far from each other."""
    codes = 3 * normal(64, 16, seed=16)
    patches = (codes[torch.arange(200) % 64] + 0.1 * normal(200, 16, seed=17)).to(LOW)
    apart = patches.square().sum(-1, keepdim=True) - 2 * patches @ codes.to(LOW).T + codes.to(LOW).square().sum(-1)
    return codes[apart.argmin(-1)]


EXACT = ("events_without_an_upper_edge", "decays_since_the_start", "weights_in_units", "bins_by_half_steps", "likes_beside_an_hour",
         "fade_since_it_began", "voice_within_a_turn", "beam_of_logarithms")  # fmt: skip
IDIOMS = (tentacles_of_a_period, box_about_its_middle, pattern_of_small_tiles, figure_before_it_is_moved, dashes_of_a_segment, fog_in_kilometres,
          events_without_an_upper_edge, decays_since_the_start, weights_in_units, bins_by_half_steps, likes_beside_an_hour, fade_since_it_began,
          voice_within_a_turn, beam_of_logarithms, channels_near_one, forecast_of_deviations, codes_about_nought)  # fmt: skip
