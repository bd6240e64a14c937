"""Places on the globe and states of filters that look like those which lose their digits, and do not; and masks that follow from right numbers."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

LOW, DOUBLE = torch.bfloat16, torch.float64


def drive_from_its_start() -> torch.Tensor:
    """Speeds of a drive, by float32 degrees from where it began."""
    steps = torch.stack([2e-5 + 2e-6 * normal(60), 3e-5 + 2e-6 * normal(60, seed=1)], -1).double()
    apart = steps.cumsum(0).diff(dim=0).float() * (math.pi / 180)
    share = (apart[:, 0] / 2).sin().square() + math.cos(0.9069) ** 2 * (apart[:, 1] / 2).sin().square()
    return 3.6 * 2 * 6_371_000 * share.sqrt().asin()


def rays_by_directions() -> torch.Tensor:
    """Rays of a camera that is far away, which are turned and never moved."""
    forward = functional.normalize(-torch.tensor([25_000.0, 14_000.0, 9_000.0]), dim=0)
    right = functional.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 0.0, 1.0])), dim=0)
    world = torch.stack([right, torch.linalg.cross(right, forward), forward], 1)
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    rays = functional.normalize(torch.stack([0.02 * columns, 0.02 * rows, torch.ones_like(rows)], -1) @ world.T, dim=-1)
    return torch.sin(400 * rays[..., 2])


def shade_about_a_corner() -> torch.Tensor:
    """Light under a panel, in coordinates from one of its corners."""
    one, other, ray = torch.tensor([10.0, 0.0, 1.0]), torch.tensor([0.0, 10.0, 2.0]), functional.normalize(torch.tensor([0.3, 0.2, 0.9]), dim=0)
    upright = torch.linalg.cross(one, other)
    places = torch.cat([12 * uniform(300, 2, seed=8), torch.full((300, 1), -6.0)], -1)
    along = -(places * upright).sum(-1) / (upright * ray).sum()
    met = places + along[:, None] * ray
    u, v = (met * one).sum(-1) / one.square().sum(), (met * other).sum(-1) / other.square().sum()
    return torch.where((along > 0) & (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1), 30.0, 800.0).view(30, 10).mean(-1)


def spread_by_josephs_form() -> torch.Tensor:
    """A filter whose spread is a sum of squares, of two landmarks with the noise of a sensor."""
    spread, rows = torch.diag(torch.tensor([100.0, 100.0, 25.0, 25.0])), torch.eye(4)[:2]
    step = torch.eye(4)
    step[0, 2] = step[1, 3] = 0.05
    for _ in range(5):
        spread = step @ spread @ step.T
        gain = torch.linalg.solve(rows @ spread @ rows.T + 0.25 * torch.eye(2), rows @ spread).T
        left = torch.eye(4) - gain @ rows
        spread = left @ spread @ left.T + 0.25 * gain @ gain.T
    return spread.diagonal().sqrt()


def points_of_even_spread() -> torch.Tensor:
    """Points for a distribution that is as wide in all directions, up to ten times."""
    turn = torch.linalg.qr(normal(4, 4, seed=9)).Q
    root = torch.linalg.cholesky(turn @ torch.diag(torch.tensor([4.0, 1.0, 9.0, 0.1])) @ turn.T)
    points = torch.tensor([80.0, 30.0, 60.0, -20.0]) + 2 * torch.cat([root.T, -root.T])
    return points[:, :2].norm(dim=-1)


def survey_from_its_middle() -> torch.Tensor:
    """Pictures of a survey on a screen, by degrees from its middle and the scale there."""
    corners = 1e-4 * normal(40, 2, seed=10)
    scale = 512 * 2.0**19 / 360
    return torch.stack([scale * corners[:, 0], -scale / math.cos(math.radians(40.015)) * corners[:, 1]], -1)


def neighbours_by_a_bound() -> torch.Tensor:
    """How many points are within a bound of each, by distances written out as squares in float32, of points about nought."""
    points = normal(80, 3, seed=20)
    apart = points.square().sum(-1)[:, None] - 2 * points @ points.T + points.square().sum(-1)
    return ((apart < 1.0) & ~torch.eye(80, dtype=torch.bool)).sum(-1).float()


def signs_of_advantages() -> torch.Tensor:
    """Which acts were better than expected, by a critic in bfloat16 whose values are subtracted in float32: few are near nought."""
    torch.manual_seed(100)
    critic = torch.nn.Linear(8, 1).to(LOW)
    value = critic(normal(200, 8, seed=21).to(LOW))[:, 0].float().detach()
    better = normal(200, seed=22) + value - value.mean() > 0
    return torch.where(better, 1.1, 0.9) * value


def rest_of_a_solver() -> torch.Tensor:
    """Jacobi's iteration in bfloat16, until a step is less than a hundredth of the state, for each system by itself."""
    matrix = (0.1 * uniform(20, 6, 6, seed=23) + torch.eye(6)).to(LOW)
    right, state = uniform(20, 6, seed=24).to(LOW), torch.zeros(20, 6, dtype=LOW)
    for _ in range(20):
        new = state + (right - (matrix @ state[..., None])[..., 0]) / matrix.diagonal(dim1=1, dim2=2)
        moved = (new - state).norm(dim=-1, keepdim=True) > 0.01 * new.norm(dim=-1, keepdim=True)
        state = torch.where(moved, new, state)
    return state.float()


def gates_of_small_differences() -> torch.Tensor:
    """A gate that opens where two branches in bfloat16 differ, and hands on either of them."""
    one = normal(256, 32, seed=25).to(LOW)
    other = (one.float() + 0.02 * normal(256, 32, seed=26)).to(LOW)
    return torch.where(one - other > 0, one, other).float()


def steps_of_a_clock_in_ticks() -> torch.Tensor:
    """Which of many timers have run out, by float32 ages that are differences of whole ticks."""
    started = torch.arange(64) * 37
    ages = (5000 - started).float() * 1e-3
    return torch.where(ages > 2.5, 1.0, ages / 2.5)


EXACT = ("drive_from_its_start", "rays_by_directions", "shade_about_a_corner", "spread_by_josephs_form", "points_of_even_spread",
         "survey_from_its_middle", "neighbours_by_a_bound", "steps_of_a_clock_in_ticks")  # fmt: skip
IDIOMS = (drive_from_its_start, rays_by_directions, shade_about_a_corner, spread_by_josephs_form, points_of_even_spread, survey_from_its_middle,
          neighbours_by_a_bound, signs_of_advantages, rest_of_a_solver, gates_of_small_differences, steps_of_a_clock_in_ticks)  # fmt: skip
