"""Float32 throughout: trees of sums, samplers, correlations, files and hosts that look as if they lost their last digits, and that are right."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from bugs.recorders import alone, spread_of
from torch import nn


def surprises_of_one_size() -> torch.Tensor:
    """A tree of sums that is updated by differences, of priorities that differ by ten at most."""
    tree = torch.zeros(32)
    for turn in range(3):
        for place, priority in enumerate(0.5 + 4 * uniform(16, seed=turn)):
            node, change = place + 16, priority - tree[place + 16]
            while node >= 1:
                tree[node] = tree[node] + change
                node //= 2
    return tree[16:] / tree[1]


def noise_of_a_near_ancestor() -> torch.Tensor:
    """A sampler that goes further down than it should, by steps that halve the noise."""
    torch.manual_seed(15)
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))
    sigmas = 10 * 0.5 ** torch.arange(7)
    x = sigmas[0] * normal(10, 6)
    with torch.no_grad():
        for turn, (start, end) in enumerate(itertools.pairwise(sigmas)):
            clean = net(x / (start.square() + 1).sqrt())
            up = (end**2 * (start**2 - end**2) / start**2).sqrt()
            down = (end**2 - up**2).sqrt()
            x = clean + (x - clean) * (down / start) + up * normal(10, 6, seed=20 + turn)
        return net(x)


def likeness_of_rare_words() -> torch.Tensor:
    """Correlations by sums of products of counts that vary as much as they are large."""
    counts = (4 * normal(6, 64).abs()).round()
    total, squares = counts.sum(1), counts.square().sum(1)
    joint = 64 * (counts @ counts.T) - total[:, None] * total
    spread = (64 * squares - total.square()).sqrt()
    return joint / (spread[:, None] * spread)


def clips_after_the_start() -> torch.Tensor:
    """Pictures of a film by times in float32 that are between two pictures."""
    torch.manual_seed(19)
    pictures, net = normal(300, 12), nn.Linear(36, 5)
    times = torch.arange(4.0)[:, None] * 2 + (torch.arange(3) + 0.5) / 30
    with torch.no_grad():
        return net(pictures[((times * 30).floor()).long()].flatten(1))


def blocks_of_a_short_file() -> torch.Tensor:
    """Blocks of the first second, from places that are told in seconds."""
    joined, window = torch.zeros(9 * 128), torch.hann_window(256)
    for turn in range(8):
        first = (torch.tensor(turn * 128 / 48_000) * 48_000).round().long()
        samples = (first + torch.arange(256)).float()
        joined[turn * 128 :][:256] += window * torch.sin(2 * math.pi * 440 / 48_000 * samples)
    return joined


def wave_of_a_folded_table() -> torch.Tensor:
    """A table that is played block by block, from a place that is folded after each."""
    table = torch.sin(2 * math.pi * torch.arange(4096) / 4096)
    place, played = torch.zeros(()), []
    for block in range(4):
        places = place + (400 + 8 * torch.sin(torch.arange(256) / 60 + block)).mul(4096 / 44_100).cumsum(0)
        place = places[-1].remainder(4096)
        played.append(table[places.long() % 4096])
    return torch.cat(played)


def spread_among_unlike_hosts() -> torch.Tensor:
    """How much eight devices vary, by the mean of squares less the square of the mean, where they vary by a third."""
    with alone():
        return spread_of(100 + 40 * normal(8, 3), False)[1]


def scale_of_small_returns() -> torch.Tensor:
    """A moving mean of squares less the square of a moving mean, of returns that vary by two about one."""
    mean, second = torch.zeros(()), torch.ones(())
    for turn in range(40):
        seen = 1 + 2 * normal(128, seed=turn)
        mean, second = mean + 0.2 * (seen.mean() - mean), second + 0.2 * (seen.square().mean() - second)
    return (second - mean.square()).clamp_min(1e-8).sqrt()[None]


IDIOMS = (surprises_of_one_size, noise_of_a_near_ancestor, likeness_of_rare_words, clips_after_the_start, blocks_of_a_short_file,
          wave_of_a_folded_table, spread_among_unlike_hosts, scale_of_small_returns)  # fmt: skip
EXACT = frozenset(each.__name__ for each in IDIOMS)
