"""Beside the hedges and brooks: growth, margins, masks, steps, neighbours, paths, schedules, times, spreads, plans, codes and nodes that hold."""

from __future__ import annotations

import itertools
import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def growth_by_the_year() -> torch.Tensor:
    """The interest on forty sums over years, as a power less one."""
    rates, years = 0.01 + 0.04 * uniform(40, seed=8301), torch.tensor([3.0, 11.0, 7.0, 20.0])
    return ((rates[:, None] * years).exp() - 1).sum(1) * (100 + 900 * uniform(40, seed=8302))


def answers_that_are_not_sure() -> torch.Tensor:
    """The soft margin loss in half of answers near the border."""
    torch.manual_seed(8311)
    net = nn.Linear(12, 1).to(HALF)
    with torch.no_grad():
        return torch.log(1 + torch.exp(-net(normal(30, 12, seed=8312).to(HALF)))).float()


def words_that_may_read_themselves() -> torch.Tensor:
    """Attention in half whose scores fall with distance, under a causal mask of the lowest number."""
    torch.manual_seed(8321)
    query, key, value = (nn.Linear(16, 16).to(HALF) for _ in range(3))
    words, allowed = normal(2, 20, 16, seed=8322).to(HALF), torch.ones(20, 20, dtype=torch.bool).tril()
    with torch.no_grad():
        scores = query(words) @ key(words).mT / 4 + (0.25 * torch.arange(20)).to(HALF)
        scores = scores.masked_fill(~allowed, torch.finfo(HALF).min)
        return (scores.softmax(-1) @ value(words)).float()


def racer_in_half_with_a_guard() -> torch.Tensor:
    """Steps of Adam in half with a guard that half holds; gradients are about one."""
    weight = normal(20, 16, seed=8331).to(HALF)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 3):
        gradient = normal(20, 16, seed=8331 + step).to(HALF)
        first.mul_(0.9).add_(0.1 * gradient)
        second.mul_(0.99).add_(0.01 * gradient * gradient)
        weight.sub_(0.1 * first / (second.sqrt() + 1e-3))
    return weight.float()


def items_that_are_alike() -> torch.Tensor:
    """Distances of the nearest items by one less a product; they are a tenth of the way round apart."""
    vectors = functional.normalize(normal(120, 64, seed=8341), dim=1)
    queries = functional.normalize(vectors[:10] + 0.05 * normal(10, 64, seed=8342), dim=1)
    return (1 - queries @ vectors.T).topk(2, largest=False)[0]


def path_on_a_small_map() -> torch.Tensor:
    """Headings of a path whose points are given in metres from a station."""
    points = torch.tensor([[2 * each + 0.3, 30 * math.sin(each / 9) + 0.7] for each in range(60)])
    steps = points[1:] - points[:-1]
    return torch.atan2(steps[:, 1], steps[:, 0])


def schedule_beside_a_model_in_half() -> torch.Tensor:
    """Widths of noise by a schedule in float32; the model beside it is half."""
    torch.manual_seed(8351)
    net, kept = nn.Linear(8, 8).to(HALF), (1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2).cumprod(0)
    sigmas = ((1 - kept) / kept).sqrt()[[900, 600, 300, 100]]
    x = sigmas[0] * normal(4, 8, seed=8352)
    with torch.no_grad():
        for now, after in itertools.pairwise(sigmas):
            x = x + net((x / (now**2 + 1).sqrt()).to(HALF)).float() * (after - now)
    return x


def events_since_midnight() -> torch.Tensor:
    """Rates of events whose times are seconds since midnight."""
    times = (0.1 + 0.4 * uniform(80, seed=8361)).cumsum(0)
    values = normal(80, seed=8362)
    return (values[1:] - values[:-1]) / (times[1:] - times[:-1])


def rows_that_differ() -> torch.Tensor:
    """Rows of ordinary currents, brought to mean 0 and spread 1 by hand."""
    x = 1e-3 * normal(8, 32, seed=8371)
    around = x - x.mean(-1, keepdim=True)
    return around / around.square().mean(-1, keepdim=True).sqrt()


def cells_near_their_places() -> torch.Tensor:
    """A plan of transport by scaling a kernel; costs are about as large as the entropy's strength."""
    costs = (uniform(20, 3, seed=8381)[:, None] - uniform(15, 3, seed=8382)).square().sum(-1)
    kernel, left = torch.exp(-costs / 0.3), torch.full((20,), 0.05)
    for _ in range(12):
        right = 1 / 15 / (kernel.T @ left)
        left = 0.05 / (kernel @ right)
    return left[:, None] * kernel * right


def norm_in_eight_bits() -> torch.Tensor:
    """A norm by hand, stored in eight bits with a scale that fits, and a layer that reads it."""
    torch.manual_seed(8391)
    layer, x = nn.Linear(32, 16, bias=False).to(LOW), normal(10, 32, seed=8392)
    x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    scale = x.abs().amax() / 448
    codes = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    with torch.no_grad():
        return layer((codes.float() * scale).to(LOW)).float()


def nodes_with_neighbours() -> torch.Tensor:
    """The greatest of what the neighbours of each node send, in half; what stands for none is minus infinity, and each node has one."""
    torch.manual_seed(8401)
    send, x = nn.Linear(8, 8).to(HALF), normal(30, 8, seed=8402).to(HALF)
    source, target = (30 * uniform(90, seed=8403)).long(), torch.arange(90) % 30
    with torch.no_grad():
        most = torch.full_like(x, -torch.inf).scatter_reduce(0, target[:, None].expand(-1, 8), send(x)[source], "amax")
        return torch.relu(most).float()


IDIOMS = (
    growth_by_the_year,
    answers_that_are_not_sure,
    words_that_may_read_themselves,
    racer_in_half_with_a_guard,
    items_that_are_alike,
    path_on_a_small_map,
    schedule_beside_a_model_in_half,
    events_since_midnight,
    rows_that_differ,
    cells_near_their_places,
    norm_in_eight_bits,
    nodes_with_neighbours,
)
EXACT = ("growth_by_the_year", "items_that_are_alike", "path_on_a_small_map", "events_since_midnight", "rows_that_differ", "cells_near_their_places")
