"""Beside the accounts: float32 states that low numbers are made from or added to, and that lose nothing that matters."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def weight_that_is_cast_for_each_use() -> torch.Tensor:
    """A float32 weight that each of ten steps casts for its products. The cast is not stored, and steps are taken in float32."""
    weight, aim = normal(16, 24, seed=9201) / 4, normal(16, 24, seed=9202) / 4
    for step in range(10):
        x = normal(24, 32, seed=9203 + step).to(LOW)
        low = weight.to(LOW)
        residual = (low @ x).float() - aim @ x.float()
        weight = weight - 1e-4 * residual @ x.float().T
    return weight


def level_of_a_tank() -> torch.Tensor:
    """A level in float32 to which a bfloat16 step adds a tenth of it each hour: the sum is rounded, and nothing stands still."""
    level = 2 + uniform(24, seed=9211)
    for hour in range(12):
        level = (level.to(LOW) + (0.2 + 0.1 * uniform(24, seed=9212 + hour)).to(LOW)).float()
    return level


def phase_of_a_wheel() -> torch.Tensor:
    """A share of a turn, which a half holds exactly, and which begins again at one."""
    phase = torch.zeros(20)
    for step in range(40):
        phase = ((phase.to(HALF) + 0.0625 * (1 + step % 3)) % 1).float()
    return phase


def weights_rounded_at_random() -> torch.Tensor:
    """Weights that lie on bfloat16's numbers in float32 tensors, and are rounded to them at random after each small step."""
    draws, weight, slope = torch.Generator().manual_seed(9221), normal(64, 32, seed=9222).to(LOW).float(), normal(64, 32, seed=9223).sign()
    for _ in range(30):
        moved = weight.to(LOW).float() - 5e-4 * slope
        noise = torch.randint(0, 1 << 16, moved.shape, dtype=torch.int32, generator=draws)
        weight = ((moved.view(torch.int32) + noise) & -65536).view(SINGLE).to(LOW).float()
    return weight


def trace_that_fades() -> torch.Tensor:
    """A trace of what came before, which is cast, fades by a tenth, and is added to in float32."""
    trace = torch.zeros(32)
    for step in range(25):
        trace = (trace.to(LOW) * 0.9).float() + uniform(32, seed=9231 + step)
    return trace


def level_that_noise_moves() -> torch.Tensor:
    """A mean that is where it should be. A thousandth of the noise around it is lost, and so it stays there."""
    mean = (5 + uniform(48, seed=9241)).to(LOW).float()
    for step in range(12):
        mean = (mean.to(LOW) + (1e-3 * normal(48, seed=9242 + step)).to(LOW)).float()
    return mean


def sum_with_its_remainder() -> torch.Tensor:
    """A sum in bfloat16 numbers, stored in float32 beside what did not arrive, which the next term takes with it."""
    total, rest = (100 + 50 * uniform(32, seed=9261)).to(LOW).float(), torch.zeros(32)
    for step in range(60):
        term = (0.1 + 0.05 * uniform(32, seed=9262 + step)) + rest
        new = (total.to(LOW) + term.to(LOW)).float()
        rest = term - (new - total)
        total = new
    return total + rest


class Relaxation(nn.Module):
    """A state that goes half of the way to its fixed point in each turn, and has reached it long before the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9270)
        self.mix = nn.Linear(24, 24)
        with torch.no_grad():
            self.mix.weight *= 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x)
        for _ in range(24):
            state = (state.to(LOW) + 0.5 * (torch.tanh(self.mix(state) + x) - state).to(LOW)).float()
        return state


def fixed_point() -> torch.Tensor:
    with torch.no_grad():
        return Relaxation()(normal(6, 24, seed=9271))


class Block(nn.Module):
    """A block whose branch begins at a millionth, as LayerScale has it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.gamma = nn.Linear(16, 16), nn.Parameter(torch.full((16,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(LOW) + (self.gamma * torch.tanh(self.mix(x))).to(LOW)).float()


def branches_that_begin_small() -> torch.Tensor:
    """Nine blocks at the beginning of a training, each of which casts its stream, adds to it and stores it wide."""
    torch.manual_seed(9280)
    net = nn.Sequential(*[Block() for _ in range(9)])
    with torch.no_grad():
        return net(normal(8, 16, seed=9281))


def momentum_of_a_tenth() -> torch.Tensor:
    """A momentum in float32, cast and stored again each step: what is added is a tenth of it and arrives."""
    momentum = 0.1 * normal(40, seed=9291)
    for step in range(15):
        gradient = normal(40, seed=9292 + step).to(LOW)
        momentum = (0.9 * momentum.to(LOW) + 0.1 * gradient).float()
    return momentum


def pixels_of_an_attack() -> torch.Tensor:
    """A picture in float32 that eight steps of an attack move, each by two of 256 grey levels, within eight of them."""
    picture = (255 * uniform(3, 8, 8, seed=9301)).floor() / 256
    moved, slope = picture.clone(), normal(3, 8, 8, seed=9302)
    for _ in range(8):
        moved = (moved.to(HALF) + (2 / 256) * slope.sign().to(HALF)).float()
        moved = torch.minimum(torch.maximum(moved, picture - 8 / 256), picture + 8 / 256).clamp(0, 1)
    return moved


def guard_that_is_added_each_time() -> torch.Tensor:
    """A covariance that each round computes anew in bfloat16, with a guard on its diagonal that large entries swallow and small ones need."""
    spectra = []
    for turn in range(10):
        x = normal(64, 8, seed=9311 + turn) * torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.3])
        covariance = (x.T @ x / 64).to(LOW) + 1e-4 * torch.eye(8, dtype=LOW)
        spectra.append(torch.linalg.eigvalsh(covariance.float())[-3:])
    return torch.stack(spectra)


def clock_in_quarters() -> torch.Tensor:
    """A clock of quarters of a second, which bfloat16 holds exactly up to 64, and the wave that it drives."""
    clock, wave = torch.tensor(8.0), torch.zeros(16)
    for _ in range(60):
        clock = (clock.to(LOW) + 0.25).float()
        wave = wave + 0.1 * torch.sin(2 * math.pi * clock * torch.arange(1, 17) / 16)
    return wave


IDIOMS = (
    weight_that_is_cast_for_each_use,
    level_of_a_tank,
    phase_of_a_wheel,
    weights_rounded_at_random,
    trace_that_fades,
    level_that_noise_moves,
    sum_with_its_remainder,
    fixed_point,
    branches_that_begin_small,
    momentum_of_a_tenth,
    pixels_of_an_attack,
    guard_that_is_added_each_time,
    clock_in_quarters,
)
