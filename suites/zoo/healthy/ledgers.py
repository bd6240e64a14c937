"""Times, ids, energies, statistics and draws that look like the bugs of ledgers and samples."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

LOW, HALF, DOUBLE = torch.bfloat16, torch.float16, torch.float64


def sweeps_since_the_frame() -> torch.Tensor:
    """Lags of a lidar's sweeps: differences are taken of integers, and stored in float32 as seconds."""
    stamps = 1550083467346370 + 100217 * torch.arange(10)
    lag = ((stamps[-1] - stamps).double() * 1e-6).float()
    return torch.cat([normal(10, 3), lag[:, None]], -1)


def small_ids_beside_columns() -> torch.Tensor:
    """Rows of a table, looked up by a column of float32 that holds numbers below 2^24."""
    ids = 9_000_001 + torch.arange(48)
    batch = torch.stack([(torch.arange(48) % 4).float(), ids.float()], -1)
    return normal(64, 8)[(batch[:, 1].to(torch.int32) - 9_000_001).long()]


def energies_above_the_lowest() -> torch.Tensor:
    """Energies along a path, less the lowest of them before they are float32."""
    totals = -59455.731 + 0.01 * torch.arange(12, dtype=DOUBLE) ** 2
    above = (totals - totals.min()).float()
    return functional.softmax(-above / 0.0257, 0)


def compensated_total() -> torch.Tensor:
    """A running energy in float32 beside which Kahan's remainder is kept."""
    energy, remainder = torch.full((16,), -40000.0), torch.zeros(16)
    for move in range(200):
        change = 0.0007 + 0.0004 * normal(16, seed=move) - remainder
        total = energy + change
        remainder, energy = (total - energy) - change, total
    return energy


def beam_about_its_axis() -> torch.Tensor:
    """A beam's emittance in float32 from an upright ellipse: nothing is subtracted from something as large."""
    places, slopes = 1e-3 * normal(3, 2000), 1e-3 * normal(3, 2000, seed=1)
    squares, mixed = (places**2).mean(-1) * (slopes**2).mean(-1), (places * slopes).mean(-1)
    return torch.sqrt(squares - mixed**2)


def axes_about_their_means() -> torch.Tensor:
    """The correlation of two axes, of which means are taken off first."""
    shared = 0.05 * normal(8, 3000)
    x, y = 9.81 + shared, 9.79 + shared + 0.02 * normal(8, 3000, seed=1)
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (x * y).mean(-1) / (x.square().mean(-1) * y.square().mean(-1)).sqrt()


def advantages_of_unlike_answers() -> torch.Tensor:
    """Advantages in groups whose rewards differ, in bfloat16 as they came from the reward model, widened."""
    rewards = (0.2 + 0.6 * uniform(12, 8)).to(LOW).float()
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-4)


def noise_in_float32() -> torch.Tensor:
    """Tokens drawn by Gumbel's noise, which is float32; the logits are bfloat16."""
    logits = (1.5 * normal(64)).to(LOW).expand(2000, 64)
    noise = torch.rand(2000, 64, generator=torch.Generator().manual_seed(2)).clamp(min=1e-12)
    choice = (logits.float() - torch.log(-torch.log(noise))).argmax(-1)
    return torch.bincount(choice, minlength=64) / 2000


def votes_in_half() -> torch.Tensor:
    """How many of 500 trees vote for each class, counted in half, which holds every whole number up to 2048."""
    votes = functional.one_hot((uniform(500) * 5).long(), 5).half()
    return votes.sum(0) / 500


def ages_in_days() -> torch.Tensor:
    """Time stamps as days since the first of them, in half: nothing is taken off afterwards."""
    stamps = 1_700_000_000 + 3600 * torch.arange(64)
    days = ((stamps - stamps[0]).double() / 86400).half()
    return torch.exp(-days.float() / 2)


IDIOMS = (sweeps_since_the_frame, small_ids_beside_columns, energies_above_the_lowest, compensated_total, beam_about_its_axis,
          axes_about_their_means, advantages_of_unlike_answers, noise_in_float32, votes_in_half, ages_in_days)  # fmt: skip
EXACT = ("sweeps_since_the_frame", "small_ids_beside_columns", "energies_above_the_lowest", "compensated_total", "beam_about_its_axis",
         "axes_about_their_means")  # fmt: skip
