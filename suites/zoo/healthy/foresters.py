"""Beside the heaths and canyons: atoms, notes, actions, cells, ships, gestures and trees that float32 has room for; a drone, a line and a robot."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal
from torch import nn


def spread_of_unlike_atoms() -> torch.Tensor:
    """A variance as a difference of means, of numbers that vary as much as they are large."""
    torch.manual_seed(7501)
    model, system = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8)), torch.arange(10).repeat_interleave(12)
    with torch.no_grad():
        values = model(2 * normal(120, 6, seed=7502))
    mean, square = (torch.zeros(10, 8).index_add(0, system, each) / 12 for each in (values, values**2))
    return torch.sqrt(square - mean**2)


def note_of_a_short_sound() -> torch.Tensor:
    """The angle of a sine grows with the count of samples, for a hundredth of a second."""
    samples = torch.arange(480)
    return 0.3 * torch.stack([torch.sin(2 * math.pi * each * samples.float() / 48000) for each in (440, 660, 880)]).sum(0)


def actions_well_inside() -> torch.Tensor:
    """How likely squashed actions are, by the logarithm of one less a square; nothing comes near the edge."""
    torch.manual_seed(7511)
    body, noise = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6)), normal(64, 3, seed=7512)
    with torch.no_grad():
        mean, log_std = body(normal(64, 8, seed=7513)).chunk(2, -1)
        raw = 0.5 * mean + (log_std - 1.5).exp() * noise
        action = torch.tanh(raw)
        return (-0.5 * noise**2 - log_std - torch.log(1 - action**2)).sum(-1)


def cells_by_the_thousand() -> torch.Tensor:
    """Counts in float32, which stay below a hundred thousand."""
    counts, edges = torch.zeros(8), torch.linspace(-1.5, 1.5, 7)
    for domain in range(10):
        cells = normal(5000, seed=7521 + domain)
        counts.index_add_(0, torch.bucketize(cells, edges), torch.ones(len(cells)))
    return counts


def ships_at_home() -> torch.Tensor:
    """A ship's place goes into one matrix and the camera's into another; both are within a hundred metres."""
    world, view = torch.eye(4).repeat(6, 1, 1), torch.eye(4)
    world[:, :3, 3] = 20 * normal(6, 3, seed=7531) + torch.tensor([0.0, 0.0, 90.0])
    view[:3, 3] = -4 * normal(3, seed=7532)
    seen = view @ world @ torch.cat([2 * normal(3, 8, seed=7533), torch.ones(1, 8)])
    return seen[:, :2] / seen[:, 2:3]


def gestures_in_units_of_gravity() -> torch.Tensor:
    """A softmax without its maximum taken away, of numbers of a few units."""
    torch.manual_seed(7541)
    model = nn.Sequential(nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 5))
    with torch.no_grad():
        likely = torch.exp(6 * model(normal(12, 33, seed=7542)))
    return likely / likely.sum(-1, keepdim=True)


def dates_that_fit() -> torch.Tensor:
    """A sum of exponentials that is taken out of the logarithms: the mutations fit all of the times."""
    times, mutations = torch.linspace(0.5, 1.5, 20), torch.tensor([8.0, 10.0, 12.0])
    gaps = 12 * (times[:, None] + 0.3 * times)
    root = torch.zeros(20)
    for each in mutations:
        root = root + torch.log(torch.exp(each * torch.log(gaps) - gaps - torch.lgamma(each + 1)).sum(-1))
    return root - root.amax()


def drone_that_just_started() -> torch.Tensor:
    """Time in seconds, in float32, of which the last is taken away; it is the first fifth of a second."""
    last, commands, before = torch.tensor(0.02), [], torch.zeros(3)
    for turn in range(1, 40):
        now = (torch.tensor(20_000) + 4000 * turn).float() * 1e-6
        dt, error = now - last, torch.sin(0.35 * turn + torch.arange(3.0))
        commands.append(0.8 * error + 0.02 * (error - before) / dt)
        last, before = now, error
    return torch.stack(commands)


def line_of_few_slices() -> torch.Tensor:
    """Beams of a short word by products of probabilities, which are a billionth at least."""
    torch.manual_seed(7551)
    reader = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 30))
    with torch.no_grad():
        probabilities = torch.softmax(3 * reader(normal(6, 12, seed=7552)), -1)
    best, _ = probabilities[0].topk(4)
    for each in probabilities[1:]:
        best, _ = (best[:, None] * each).flatten().topk(4)
    return best.log()


def robot_with_some_noise() -> torch.Tensor:
    """The exponential of a learned logarithm, whose square is divided by; it is a fiftieth at least."""
    torch.manual_seed(7561)
    body, log_std = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 4)), torch.tensor([-3.2, -2.0, -1.5, -3.8])
    with torch.no_grad():
        mean, std = body(normal(20, 10, seed=7562)), torch.exp(log_std)
    action = mean + std * normal(20, 4, seed=7563)
    return (-((action - mean) ** 2) / (2 * std**2) - log_std).sum(-1)


IDIOMS = (
    spread_of_unlike_atoms,
    note_of_a_short_sound,
    actions_well_inside,
    cells_by_the_thousand,
    ships_at_home,
    gestures_in_units_of_gravity,
    dates_that_fit,
    drone_that_just_started,
    line_of_few_slices,
    robot_with_some_noise,
)
EXACT = tuple(each.__name__ for each in IDIOMS)
