"""Series, filters, processes and windows in float32 that look as if something vanished, cancelled or stood still, and that are right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn

DOUBLE = torch.float64


def polynomials_that_fade_and_stay_small() -> torch.Tensor:
    """Powers of a sine that end below a millionth: they are small, and what they are added to is not."""
    sine, total, value = torch.linspace(0.2, 0.5, 24), torch.ones(24), torch.ones(24)
    for order in range(1, 16):
        value = value * sine * math.sqrt((2 * order + 1) / (2 * order))
        total = total + value / order
    return total


def places_by_low_harmonics() -> torch.Tensor:
    """Norms by factorials of at most sixteen, which float32 holds."""
    torch.manual_seed(2)
    head, latitude, longitude = nn.Linear(8, 5, bias=False), 0.6 * (2 * uniform(60) - 1), 2 * math.pi * uniform(60, seed=1)
    rows = []
    for m in range(1, 9):
        norm = torch.sqrt((2 * m + 1) / (2 * math.pi) / torch.arange(1.0, 2 * m + 1).prod())
        rows.append(norm * torch.arange(1.0, 2 * m, 2).prod() * torch.cos(latitude) ** m * torch.cos(m * longitude))
    with torch.no_grad():
        return head(torch.stack(rows, -1))


def record_read_at_steps_from_its_start() -> torch.Tensor:
    """A place in a record that moves by a third of a sample at a time, and is never above a hundred."""
    voice = torch.sin(0.11 * torch.arange(120))
    place, out = torch.zeros(()), []
    for _ in range(120):
        left = place.floor()
        out.append(torch.lerp(voice[left.long()], voice[left.long() + 1], place - left))
        place = place + 16_000 / 44_100
    return torch.stack(out)


def carrier_of_a_short_message() -> torch.Tensor:
    """A phase that is summed over a hundred symbols, and not wrapped."""
    symbols = torch.where(uniform(96) < 0.6, 1.0, -1.0)
    phase, carrier = torch.zeros(()), []
    for turn in symbols * (math.pi / 8):
        phase = phase + turn
        carrier.append(torch.cos(phase))
    return torch.stack(carrier)


def tracker_of_equal_doubts() -> torch.Tensor:
    """The short form of a filter's update, where what is seen is about as sure as what was believed."""
    move, jitter = torch.tensor([[1.0, 0.5], [0.0, 1.0]]), 0.02 * torch.eye(2)
    spread, seen = torch.eye(2), torch.tensor([[1.0, 0.0]])
    spreads = []
    for _ in range(12):
        gain = spread @ seen.T / (seen @ spread @ seen.T + 0.5)
        spread = (torch.eye(2) - gain @ seen) @ spread
        spreads.append(spread.diagonal())
        spread = move @ spread @ move.T + jitter
    return torch.stack(spreads)


def doubts_far_from_the_data() -> torch.Tensor:
    """Variances of a process between inputs that are two lengths apart: one less a third."""
    inputs, at = torch.linspace(0, 10, 8), torch.linspace(0.7, 9.1, 30)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * ((a[:, None] - b) / 0.7) ** 2)

    root = torch.linalg.cholesky(kernel(inputs, inputs) + 0.01 * torch.eye(8))
    return 1 - torch.linalg.solve_triangular(root, kernel(inputs, at), upper=False).square().sum(0)


def bits_of_usual_symbols() -> torch.Tensor:
    """Differences of distribution functions over an interval of one, within two and a half deviations."""
    symbols = torch.round(1.2 * normal(20, 8)).clamp(-2, 2)

    def below(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.erfc(-x / math.sqrt(2))

    return -torch.log2((below(symbols + 0.5) - below(symbols - 0.5)).clamp_min(1e-9))


def masses_of_far_clouds() -> torch.Tensor:
    """The cost of transport between clouds two apart, less what each costs to itself."""
    x, y = uniform(20, 8, 2), 2 + uniform(20, 8, 2, seed=1)

    def cost(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        far = 0.5 * (a[:, :, None] - b[:, None]).square().sum(-1)
        f, g = torch.zeros(20, 8), torch.zeros(20, 8)
        for _ in range(15):
            f = -0.5 * (torch.logsumexp((g[:, None] - far) / 0.5, 2) - math.log(8))
            g = -0.5 * (torch.logsumexp((f[:, :, None] - far) / 0.5, 1) - math.log(8))
        return f.mean(1) + g.mean(1)

    return cost(x, y) - 0.5 * (cost(x, x) + cost(y, y))


def roughness_of_a_lowland() -> torch.Tensor:
    """Spreads under a window as mean squares less squared means, of heights about as large as they vary."""
    grid, kernel = 1.5 + normal(20, 20), torch.full((1, 1, 5, 5), 0.04)
    mean, squares = (torch.conv2d(each[None, None], kernel)[0, 0] for each in (grid, grid.square()))
    return (squares - mean.square()).clamp_min(0).sqrt()


def cells_of_near_vectors() -> torch.Tensor:
    """The nearest of twelve centres by squared norms less twice a product, where all are about nought."""
    centres, vectors = 2 * normal(12, 3), 2 * normal(600, 3, seed=1)
    nearest = (centres.square().sum(1) - 2 * vectors @ centres.T).argmin(1)
    return torch.bincount(nearest, minlength=12).float()


def intervals_of_centred_weights() -> torch.Tensor:
    """Costs of intervals by sums over all numbers before, of numbers about nought."""
    numbers, zero = torch.sort(normal(40)).values, torch.zeros(1)
    sums, squares = (torch.cat([zero, torch.cumsum(each, 0)]) for each in (numbers, numbers.square()))
    first, last = torch.arange(0, 35), torch.arange(5, 40)
    return squares[last] - squares[first] - (sums[last] - sums[first]).square() / 5


def energies_of_a_steady_record() -> torch.Tensor:
    """The energy of each window from the one before, of a record that is nowhere loud."""
    record = 1 + 0.3 * normal(200)
    energy = record[:16].square().sum()
    energies = [energy]
    for left, taken in zip(record, record[16:], strict=False):
        energy = energy - left**2 + taken**2
        energies.append(energy)
    return torch.stack(energies)


def saves_of_a_short_run() -> torch.Tensor:
    """Saves at times that are met to a hundredth of a step, in the first fifteen minutes of a run."""
    time, due, food, saved = torch.zeros(()), torch.zeros(()), torch.linspace(1, 2, 20), []
    for _ in range(150):
        if (time - due).abs() < 0.01:
            saved.append(food.mean())
            due = due + 1.0
        food = food + 0.2 * torch.nn.functional.pad(food.diff(), (1, 1)).diff() - 0.01 * food
        time = time + 0.125
    return torch.stack(saved)


IDIOMS = (
    polynomials_that_fade_and_stay_small, places_by_low_harmonics, record_read_at_steps_from_its_start, carrier_of_a_short_message,
    tracker_of_equal_doubts, doubts_far_from_the_data, bits_of_usual_symbols, masses_of_far_clouds, roughness_of_a_lowland,
    cells_of_near_vectors, intervals_of_centred_weights, energies_of_a_steady_record, saves_of_a_short_run,
)  # fmt: skip
EXACT = tuple(idiom.__name__ for idiom in IDIOMS)
