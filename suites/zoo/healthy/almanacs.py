"""Dates, views and curves in float32 that look as if something cancelled, stood still or overflowed, and that are right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform

DOUBLE = torch.float64


def night_from_its_first_date() -> torch.Tensor:
    """Dates of a night are large and near each other; they are told from the first before they are stored."""
    dates = 59450.869 + 0.0027 * torch.arange(10, dtype=DOUBLE)
    since = (dates - dates[0]).float()
    return 60 + 500 * since


def clock_of_whole_steps() -> torch.Tensor:
    """A run that goes on from the 25th day counts its steps, and multiplies where a time is wanted."""
    step, warmth = torch.tensor(0), []
    for _ in range(20):
        step = step + 1
        warmth.append(torch.sin(2 * math.pi * (step * 0.3) / 60))
    return torch.stack(warmth)


def chances_of_a_year() -> torch.Tensor:
    """One and a hazard of a tenth are added: nothing is lost that matters."""
    hazard = 0.02 + 0.2 * uniform(40)
    return 1 - torch.exp(12 * torch.log(1 - hazard))


def loudness_by_squares() -> torch.Tensor:
    """A mean of squares less a squared mean, of a signal whose mean is small beside its swing."""
    x = 0.3 + normal(12, 256)
    return (x.square().mean(-1) - x.mean(-1).square()).sqrt()


def turns_by_their_skew_part() -> torch.Tensor:
    """Angles of turns between a tenth and two, by what a matrix and its transpose differ by."""
    angle = 0.1 + 1.9 * uniform(20)
    axis = normal(20, 3)
    axis = axis / axis.norm(dim=-1, keepdim=True)
    x, y, z = axis.unbind(-1)
    nought = torch.zeros_like(x)
    cross = torch.stack([nought, -z, y, z, nought, -x, -y, x, nought], -1).view(-1, 3, 3)
    matrix = torch.eye(3) + angle.sin()[:, None, None] * cross + (1 - angle.cos())[:, None, None] * (cross @ cross)
    skew = torch.stack([matrix[:, 2, 1] - matrix[:, 1, 2], matrix[:, 0, 2] - matrix[:, 2, 0], matrix[:, 1, 0] - matrix[:, 0, 1]], -1)
    size = (skew.norm(dim=-1) / 2).clamp(max=1)
    return torch.atan2(size, (matrix.diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2)


def sphere_from_nearby() -> torch.Tensor:
    """The quadratic formula for a sphere three radii away, hit well within its rim."""
    across = 0.7 * (2 * uniform(100, 2) - 1) / math.sqrt(2)
    origin = torch.cat([across, torch.full((100, 1), 3.0)], -1)
    discriminant = origin[:, 2].square() - (origin.square().sum(-1) - 1)
    return origin[:, 2] - (origin[:, 2] - discriminant.sqrt())


def clusters_by_their_first_cell() -> torch.Tensor:
    """Variances as differences of means, of places told from the first cell of each cluster."""
    cluster = torch.arange(20).repeat_interleave(5)
    places = 480 + 0.7 * cluster + 0.05 * (torch.arange(100) % 5)
    charge = 0.2 + uniform(100)
    told = places - places.view(20, 5)[:, 0].repeat_interleave(5)

    def total(of: torch.Tensor) -> torch.Tensor:
        return torch.zeros(20).index_add_(0, cluster, of)

    weight = total(charge)
    return (total(charge * told.square()) / weight - (total(charge * told) / weight).square()).clamp_min(0).sqrt()


def noise_of_whole_numbers() -> torch.Tensor:
    """A hash of far cells by integers, of which the low bits become a number between nought and one."""
    cell = torch.floor((150_000 + 5_000 * (2 * uniform(120, 2) - 1)) / 32).long()
    mixed = (cell[:, 0] * 73_856_093) ^ (cell[:, 1] * 19_349_663)
    return ((mixed >> 8) & 0xFFFF).float() / 65_536


def curve_above_the_corner() -> torch.Tensor:
    """The gain of a low cut by cosines, at frequencies whose cosines are far from that of the corner."""
    w = 2 * math.pi * torch.linspace(2000, 20_000, 40) / 96_000
    corner = 2 * math.pi * 400 / 96_000
    alpha = math.sin(corner) / math.sqrt(2)
    real = 2 * torch.cos(w) - 2 * math.cos(corner)
    return 16 * torch.sin(w / 2) ** 4 * math.cos(corner / 2) ** 4 / (real.square() + (2 * alpha * torch.sin(w)).square())


def ledger_of_a_year() -> torch.Tensor:
    """A balance that takes small interest on it each day: the interest is far above the spacing of the balance."""
    balance = torch.full((4,), 1000.0)
    for _ in range(60):
        balance = balance + balance * 1e-4
    return balance


IDIOMS = (
    night_from_its_first_date, clock_of_whole_steps, chances_of_a_year, loudness_by_squares, turns_by_their_skew_part, sphere_from_nearby,
    clusters_by_their_first_cell, noise_of_whole_numbers, curve_above_the_corner, ledger_of_a_year,
)  # fmt: skip
EXACT = tuple(idiom.__name__ for idiom in IDIOMS)
