"""Beside the fjords: stars, heights, networks, scans, molecules, atlases and confounds whose float32 is enough."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn

SINGLE, DOUBLE = torch.float32, torch.float64


def stars_that_move() -> torch.Tensor:
    """A leapfrog in float32, in a box of a hundred; its steps are long."""
    places, speeds = 40 + 20 * uniform(40, 3, seed=4901), normal(40, 3, seed=4902)
    for _ in range(48):
        for half in range(2):
            away = places - 50
            speeds = speeds - 0.005 * away / (away.square().sum(1, keepdim=True) + 4.0) ** 1.5
            places = places + 0.01 * speeds if half == 0 else places
    return places


def height_above_a_pebble() -> torch.Tensor:
    """Thicknesses of a gas over a sphere of a hundred metres, by the lengths of places without its radius."""
    heights = torch.tensor([0.0, 5.0, 12.0, 21.0, 33.0, 48.0, 66.0, 90.0])
    latitudes = torch.linspace(-1.4, 1.4, 12)[:, None]
    places = torch.stack([(100 + heights) * latitudes.cos(), (100 + heights) * latitudes.sin()], -1)
    thickness = (9.8 * (places.square().sum(-1).sqrt() - 100)).diff(dim=1)
    return thickness / (287.05 * heights.diff() / 8400)


def slope_of_a_network_by_long_steps() -> torch.Tensor:
    """Derivatives of a network in float32, by differences whose step was chosen for float32."""
    torch.manual_seed(4911)
    network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    step, x = torch.finfo(SINGLE).eps ** (1 / 3), torch.linspace(0, 1, 32)[:, None]
    optimizer, seen = torch.optim.SGD(network.parameters(), lr=1e-3), []
    for _ in range(4):
        slope = (network(x + step) - network(x - step)) / (2 * step)
        seen.append(slope.detach())
        optimizer.zero_grad()
        (slope - 1).square().mean().backward()
        optimizer.step()
    return torch.stack(seen)


def windows_with_contrast() -> torch.Tensor:
    """How alike two scans between 0 and 1 are, window by window, by sums of squares above squared sums: every window has texture."""
    scan = uniform(36, 36, seed=4921)
    other = scan + 0.3 * uniform(36, 36, seed=4922)
    i, j = (x.unfold(0, 9, 2).unfold(1, 9, 2).flatten(2) for x in (scan, other))
    u_i, u_j = i.sum(-1) / 81, j.sum(-1) / 81
    cross = (i * j).sum(-1) - u_i * u_j * 81
    return cross * cross / (((i * i).sum(-1) - u_i * u_i * 81) * ((j * j).sum(-1) - u_j * u_j * 81) + 1e-5)


def conformers_above_their_atoms() -> torch.Tensor:
    """Relative energies in float32 of energies that are stored in float32, above those of free atoms."""
    found = []
    for index in range(4):
        energies = (-2.5 + 0.004 * uniform(12, seed=4931 + index).double()).to(SINGLE)
        found.append(627.509474 * (energies - energies.min()))
    return torch.stack(found)


def regions_with_small_numbers() -> torch.Tensor:
    """Regions of an atlas that are float32 while a transform moves them; their numbers are below two thousand."""
    names = torch.tensor([1, 17, 362, 400, 795, 1016, 1327, 1500, 1999])
    image = names[(9 * uniform(5, 5, seed=4941)).long()].repeat_interleave(6, 0).repeat_interleave(6, 1).float()
    turn, axis = math.radians(12), torch.arange(28.0) - 13.5
    rotation = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    places = (torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1) @ rotation.T + 14.5).round().long().clamp(0, 29)
    found = image[places[..., 0], places[..., 1]].long()
    return torch.stack([(found == name).sum() for name in names]).float()


def confounds_around_nought() -> torch.Tensor:
    """Confounds of one size, whose means are taken away before normal equations are solved in float32."""
    columns = torch.cat([normal(150, 2, seed=4951), 0.3 * normal(150, 3, seed=4952).cumsum(0)], 1)
    columns = columns - columns.mean(0)
    signals = 2 * normal(150, 8, seed=4953) + 3 * columns[:, :1] + 100
    design = torch.cat([torch.ones(150, 1), columns], 1)
    return signals - design @ torch.linalg.solve(design.T @ design, design.T @ signals)


IDIOMS = (
    stars_that_move,
    height_above_a_pebble,
    slope_of_a_network_by_long_steps,
    windows_with_contrast,
    conformers_above_their_atoms,
    regions_with_small_numbers,
    confounds_around_nought,
)
EXACT = ("stars_that_move", "height_above_a_pebble", "slope_of_a_network_by_long_steps", "windows_with_contrast", "conformers_above_their_atoms",
         "regions_with_small_numbers", "confounds_around_nought")  # fmt: skip
