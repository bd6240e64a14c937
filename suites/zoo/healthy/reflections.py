"""Increments, embeddings, particles and waves that look like the bugs of increments, embeddings, particles and waves."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def average_that_follows_closely() -> torch.Tensor:
    """A moving average kept in bfloat16 that takes half of what is new at each step."""
    average = normal(40, 16).to(LOW)
    for step in range(12):
        average.mul_(0.5).add_((normal(40, 16, seed=1) + 0.5 * normal(40, 16, seed=10 + step)).to(LOW), alpha=0.5)
    return average.float()


def four_micro_batches() -> torch.Tensor:
    """Gradients of four micro-batches, added up in bfloat16."""
    model = nn.Linear(16, 8).to(LOW)
    with torch.no_grad():
        model.weight.copy_(normal(8, 16) / 4)
        model.bias.zero_()
    for step in range(4):
        (model((0.5 + normal(64, 16, seed=step)).to(LOW)).float().square().mean() / 4).backward()
    assert model.weight.grad is not None
    return model.weight.grad.float()


def centred_around_a_small_mean() -> torch.Tensor:
    """Mean of squares less square of mean in float32, of gradients whose mean is half of their spread."""
    weight, square, mean, start = normal(6, 12), torch.zeros(6, 12), torch.zeros(6, 12), normal(6, 12)
    for step in range(120):
        gradient = 0.5 + normal(6, 12, seed=step)
        square, mean = 0.9 * square + 0.1 * gradient.square(), 0.9 * mean + 0.1 * gradient
        weight = weight - 1e-2 * gradient / torch.sqrt(square - mean.square() + 1e-4)
    return weight - start


def clipped_after_unscaling() -> torch.Tensor:
    """Gradients under a GradScaler, unscaled and then clipped."""
    model = nn.Linear(16, 8)
    with torch.no_grad():
        model.weight.copy_(normal(8, 16) / 4)
        model.bias.zero_()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = (model(normal(32, 16, seed=step)) - 2).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model.weight.detach() - normal(8, 16) / 4


def low_model_with_large_steps() -> torch.Tensor:
    """A model in bfloat16 whose steps are a tenth of its weights."""
    weight = nn.Parameter((0.05 * normal(12, 24)).to(LOW))
    start, optimizer = weight.detach().clone(), torch.optim.SGD([weight], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (functional.linear(normal(32, 24, seed=step).to(LOW), weight).float() - 3).square().mean().mul(4).backward()
        optimizer.step()
    return weight.detach().float() - start.float()


def frequencies_of_a_short_window() -> torch.Tensor:
    """Rotary frequencies in bfloat16 for sixteen places."""
    frequencies = (1.0 / 100 ** (torch.arange(0, 32, 2) / 32)).to(LOW)
    angles = torch.outer(torch.arange(16).float(), frequencies.float())
    query, key = normal(16, 16, seed=1).to(LOW), normal(16, 16, seed=2).to(LOW)
    turned, other = query * angles.cos() + key * angles.sin(), key * angles.cos() - query * angles.sin()
    return torch.softmax(turned @ other.T / 8, -1)


def timestep_as_a_fraction() -> torch.Tensor:
    """A timestep between zero and one in bfloat16, embedded by a small network."""
    timestep = torch.tensor([1.0, 0.9375, 0.8125, 0.625])[:, None].to(LOW)
    hidden = functional.silu(timestep @ normal(1, 64).to(LOW))
    return (hidden @ (normal(64, 32, seed=1) / 8).to(LOW)).float()


def slow_waves_of_pixels() -> torch.Tensor:
    """Sine and cosine in bfloat16 of pixels between -1 and 1, one turn at most."""
    frames = (uniform(1, 3, 24, 24) * 2 - 1).to(LOW)
    waves = torch.cat([frames, (math.pi / 2 * frames).sin(), (math.pi / 2 * frames).cos()], 1)
    return functional.conv2d(waves, (normal(12, 9, 1, 1) / 3).to(LOW)).float()


def state_of_a_head_that_forgets() -> torch.Tensor:
    """A delta rule in half whose state halves with each token."""
    keys, values = functional.normalize(normal(200, 24), dim=-1).to(HALF), normal(200, 16, seed=2).to(HALF)
    state, outputs = torch.zeros(24, 16, dtype=HALF), []
    for key, value in zip(keys, values, strict=True):
        state = 0.5 * state
        state = state + key[:, None] * (value - key @ state)[None]
        outputs.append(key @ state)
    return torch.stack(outputs).float()


def norm_of_small_channels() -> torch.Tensor:
    """A layer norm over channels in half, written out, of values about ten."""
    x = (10 * normal(2, 64, 12, 12)).to(HALF)
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return ((x - mean) * torch.rsqrt(variance + 1e-3)).float()


def gates_of_small_groups() -> torch.Tensor:
    """Agreement of each place with the mean of its group, in half, of values about one."""
    x = normal(4, 16, 10, 10).relu().to(HALF)
    agreement = (x * x.mean((2, 3), keepdim=True)).sum(1).view(4, -1)
    agreement = (agreement - agreement.mean(1, keepdim=True)) / (agreement.std(1, keepdim=True) + 1e-5)
    return (x * torch.sigmoid(agreement).view(4, 1, 10, 10)).float()


def spread_of_centred_cells() -> torch.Tensor:
    """Mean of squares less square of mean in float32, of particles around the origin."""
    cell, phase, weight = torch.arange(4000) % 16, 0.2 + normal(4000, 6), 1 + uniform(4000, seed=1)
    inverse = 1 / torch.zeros(16).index_add_(0, cell, weight)[:, None]
    mean = torch.zeros(16, 6).index_add_(0, cell, weight[:, None] * phase) * inverse
    squares = torch.zeros(16, 6).index_add_(0, cell, weight[:, None] * phase.square()) * inverse
    return (squares - mean.square()).clamp_min(0).sqrt()


def boxes_at_the_origin() -> torch.Tensor:
    """Positions in float32 that gain a little in each of 480 substeps, a few metres from the origin."""
    position, velocity = 4 * normal(8, 3), 0.5 * normal(8, 3, seed=1)
    start = position.clone()
    for _ in range(480):
        velocity = velocity * 0.9998
        position = position + velocity / 720
    return position - start


def wide_turns_of_joints() -> torch.Tensor:
    """Angles in float32 by an arc cosine, of joints that are half a turn from rest or less."""
    half = 0.3 + 0.8 * uniform(200)
    quaternion = torch.cat([functional.normalize(normal(200, 3), dim=-1) * half.sin()[:, None], half.cos()[:, None]], -1)
    quaternion = quaternion / quaternion.square().sum(-1, keepdim=True).sqrt()
    return 2 * torch.acos(quaternion[:, 3].clamp(-1, 1))


def distances_between_cities() -> torch.Tensor:
    """Great circles in float32 between points that are thousands of kilometres apart."""
    one = torch.deg2rad(torch.stack([360 * uniform(200) - 180, 120 * uniform(200, seed=1) - 60], -1))
    other = torch.deg2rad(torch.stack([360 * uniform(200, seed=2) - 180, 120 * uniform(200, seed=3) - 60], -1))
    difference = other - one
    a = (difference[:, 1] / 2).sin().square() + one[:, 1].cos() * other[:, 1].cos() * (difference[:, 0] / 2).sin().square()
    return 2 * 6371 * torch.asin(a.clamp(0, 1).sqrt())


def energies_of_interaction() -> torch.Tensor:
    """Energies in float32 of conformers relative to the first, without the isolated atoms."""
    batch = torch.arange(24).repeat_interleave(90)
    energies = torch.zeros(24).index_add_(0, batch, (-4 + normal(90) + 0.1 * normal(24, 90, seed=1)).flatten())
    return energies - energies[0]


def phase_of_a_short_note() -> torch.Tensor:
    """A phase in float32 that runs on for a tenth of a second."""
    step = 2 * math.pi * torch.tensor([220.0, 554.37, 987.77]) / 48_000
    phase, blocks = torch.zeros(3), []
    for _ in range(10):
        blocks.append((phase[:, None] + step[:, None] * torch.arange(512)).sin())
        phase = phase + step * 512
    return torch.cat(blocks, 1)


def windows_of_an_even_trace() -> torch.Tensor:
    """Energies of windows in float32 as differences of a running sum, over a trace that is equally loud throughout."""
    template, data = normal(200, seed=1), normal(6000)
    running = functional.pad(torch.cumsum(data.square(), 0), (1, 0))
    energy = running[200:] - running[:-200]
    return data.unfold(0, 200, 1) @ template / (template.square().sum() * energy).sqrt()


def logarithms_of_unsure_losses() -> torch.Tensor:
    """Logarithms in half of losses between one and six, to which 1e-10 is added for nothing."""
    losses = functional.cross_entropy((0.5 * normal(300, 40)).to(HALF), torch.arange(300) % 40, reduction="none")
    return torch.log(1e-10 + losses).float()


def pairs_close_together() -> torch.Tensor:
    """The logarithm of a sigmoid in float32, of margins below five."""
    margin = (2 * normal(64)).clamp(-5, 5).requires_grad_()
    (-torch.log(torch.sigmoid(margin))).mean().backward()
    assert margin.grad is not None
    return margin.grad


EXACT = frozenset({"centred_around_a_small_mean", "spread_of_centred_cells", "boxes_at_the_origin", "wide_turns_of_joints",
                   "distances_between_cities", "energies_of_interaction", "phase_of_a_short_note", "windows_of_an_even_trace",
                   "pairs_close_together"})  # fmt: skip
IDIOMS = (
    average_that_follows_closely, four_micro_batches, centred_around_a_small_mean, clipped_after_unscaling, low_model_with_large_steps,
    frequencies_of_a_short_window, timestep_as_a_fraction, slow_waves_of_pixels, state_of_a_head_that_forgets, norm_of_small_channels,
    gates_of_small_groups, spread_of_centred_cells, boxes_at_the_origin, wide_turns_of_joints, distances_between_cities, energies_of_interaction,
    phase_of_a_short_note, windows_of_an_even_trace, logarithms_of_unsure_losses, pairs_close_together,
)  # fmt: skip
