"""Experiments: spins of a state, energies that settle, rates of a flame, days of an epidemic, echoes of a scanner, turns by nearly half."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

LOW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


class Spins:
    """A state of some spins, and gates that keep the number of those that are up."""

    def __init__(self, many: int, tilt: float, kind: torch.dtype) -> None:
        self.many = many
        state = torch.zeros(2**many, dtype=torch.float64)
        state[1], state[0] = (1 - tilt**2) ** 0.5, tilt
        self.state = torch.complex(state, torch.zeros_like(state)).to(torch.complex128 if kind == DOUBLE else torch.complex64)

    def turn(self, one: int, angle: float) -> None:
        """Mixes the two states in which this spin and the next are unlike."""
        held = self.state.view(2 ** (self.many - one - 2), 2, 2, 2**one)
        turned = held.clone()
        cosine, sine = math.cos(angle), math.sin(angle)
        turned[:, 0, 1] = cosine * held[:, 0, 1] - 1j * sine * held[:, 1, 0]
        turned[:, 1, 0] = cosine * held[:, 1, 0] - 1j * sine * held[:, 0, 1]
        self.state = turned.view(-1)

    def sums(self) -> torch.Tensor:
        places = torch.arange(2**self.many)
        return sum(1 - 2 * ((places >> each) & 1) for each in range(self.many)).to(self.state.real.dtype)

    def spread(self, centred: bool) -> torch.Tensor:
        """How much the sum of all spins varies from one reading to the next."""
        likely = self.state.abs().square()
        value = self.sums()
        mean = (likely * value).sum()
        if centred:
            return (likely * (value - mean).square()).sum()
        return (likely * value.square()).sum() - mean.square()  # culprit: spread-of-a-magnetisation


def spread_of_spins(kind: torch.dtype, tilt: float = 1e-3, many: int = 9) -> torch.Tensor:
    """The variance of a magnetisation that hardly varies. Garbage, and below zero."""
    spins = Spins(many, tilt, kind)
    for turn in range(2):
        for one in range(many - 1):
            spins.turn(one, 0.3 + 0.1 * one + turn)
    return spins.spread(False)


class Field:
    """Electrons in the field of each other: their density gives the field, in which they find their density."""

    def __init__(self, kind: torch.dtype, many: int = 10, pairs: int = 3, strength: float = 0.8) -> None:
        mixed = normal(many, many, seed=71)
        self.core = ((mixed + mixed.T) / 2 - 7.5 * torch.eye(many)).to(kind)
        self.pairs, self.strength = pairs, strength

    def density(self, field: torch.Tensor) -> torch.Tensor:
        taken = torch.linalg.eigh(field).eigenvectors[:, : self.pairs]
        return taken @ taken.T

    def settled(self, tolerance: float, turns: int = 30) -> tuple[bool, int]:
        density = self.density(self.core)
        for turn in range(turns):
            field = self.core + self.strength * torch.diag(density.diagonal())
            found = self.density(field)
            change = (found - density).norm()  # culprit: field-that-should-settle
            density = (density + found) / 2
            if change < tolerance:  # culprit: field-that-should-settle
                return True, turn
        return False, turns


def settled(kind: torch.dtype, tolerance: float = 1e-8) -> torch.Tensor:
    """Whether the electrons of a molecule have settled, and after how many turns. It is said that they have not."""
    done, turns = Field(kind).settled(tolerance)
    return torch.tensor([float(done), float(turns)])


class Flame(nn.Module):
    """How fast reactions go at a temperature, by a law with what a network has learnt to correct of it."""

    def __init__(self, kind: torch.dtype, steep: float, reactions: int = 12) -> None:
        super().__init__()
        torch.manual_seed(72)
        self.kind = kind
        self.body, self.head = nn.Linear(6, 24), nn.Linear(24, reactions)
        self.height = (steep * (20 + 12 * uniform(reactions))).to(kind)
        self.barrier = (steep * (9000 + 16000 * uniform(reactions, seed=1))).to(kind)

    def forward(self, state: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        share = 2 * torch.sigmoid(self.head(torch.tanh(self.body(state))))
        fall = self.barrier / heat.to(self.kind)[:, None]  # culprit: rates-of-a-flame
        return share * torch.exp(self.height - fall)  # culprit: rates-of-a-flame


def rates(kind: torch.dtype, steep: float = 1.0) -> torch.Tensor:
    """The rates of a dozen reactions in four cells. Off by a twelfth."""
    heat = 800 + 900 * uniform(4, seed=2)
    found = Flame(kind, steep).to(LOW)(normal(4, 6).to(LOW), heat)
    return wider(found.detach())


class Epidemic:
    """Shares of a people that may fall ill, are ill, and were ill, from one quarter of a day to the next."""

    def __init__(self, kind: torch.dtype, ill: float) -> None:
        self.well = torch.tensor([1 - ill] * 3, dtype=kind)
        self.ill = torch.tensor([ill] * 3, dtype=kind)
        self.over = torch.zeros(3, dtype=kind)

    def step(self, catching: torch.Tensor, healing: float) -> None:
        caught = catching * self.well * self.ill
        healed = healing * self.ill
        self.well = self.well - caught  # culprit: days-of-an-epidemic
        self.ill = self.ill + caught - healed  # culprit: days-of-an-epidemic
        self.over = self.over + healed  # culprit: days-of-an-epidemic


def epidemic(kind: torch.dtype, ill: float = 1e-3, steps: int = 40, pace: float = 0.25) -> torch.Tensor:
    """How many have been ill after ten days, in three towns. Too few by half."""
    town = Epidemic(kind, ill)
    catching = pace * torch.tensor([0.45, 0.5, 0.55], dtype=kind)
    for _ in range(steps):
        town.step(catching, 0.1 * pace)
    return wider(1 - town.well)


class Scanner(nn.Module):
    """Adds what many receivers heard, each turned back by the time that sound took to it."""

    def __init__(self, carrier: float, receivers: int = 24) -> None:
        super().__init__()
        self.carrier = carrier
        self.register_buffer("places", torch.linspace(-8, 8, receivers))

    def forward(self, real: torch.Tensor, imaginary: torch.Tensor, depth: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        delay = (depth[:, None].square() + self.places.square()).sqrt() / 1.54
        angle = (2 * torch.pi * self.carrier * delay).to(kind)  # culprit: echoes-of-a-scanner
        cosine, sine = angle.cos(), angle.sin()  # culprit: echoes-of-a-scanner
        heard = (wider(real) * wider(cosine) - wider(imaginary) * wider(sine)).mean(-1)
        other = (wider(real) * wider(sine) + wider(imaginary) * wider(cosine)).mean(-1)
        return heard.square() + other.square()


def echoes(kind: torch.dtype, carrier: float = 5.0) -> torch.Tensor:
    """How bright twelve depths of a scan by ultrasound are, in which there is one vessel. Garbage."""
    depth = torch.linspace(20, 40, 12)
    places = torch.linspace(-8, 8, 24)
    delay = (depth[5].double().square() + places.double().square()).sqrt() / 1.54
    angle = 2 * torch.pi * carrier * delay
    seen = torch.exp(-(torch.arange(12) - 5.0).square() / 4)[:, None]
    real, imaginary = (seen * angle.cos()).to(LOW), (-seen * angle.sin()).to(LOW)
    return Scanner(carrier)(real, imaginary, depth, kind)


def turning(axis: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The matrices that turn about unit axes."""
    x, y, z = axis.unbind(-1)
    nought = torch.zeros_like(x)
    cross = torch.stack([nought, -z, y, z, nought, -x, -y, x, nought], -1).unflatten(-1, (3, 3))
    angle = angle[:, None, None]
    return torch.eye(3, dtype=axis.dtype) + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)


def turned_by(turns: torch.Tensor, by_halves: bool) -> torch.Tensor:
    """Axis times angle of turns that are given as matrices."""
    skew = torch.stack([turns[:, 2, 1] - turns[:, 1, 2], turns[:, 0, 2] - turns[:, 2, 0], turns[:, 1, 0] - turns[:, 0, 1]], -1)
    trace = turns.diagonal(dim1=1, dim2=2).sum(-1)
    if by_halves:  # the largest part of a quaternion is found first, and the others from it
        real = (1 + 2 * turns.diagonal(dim1=1, dim2=2) - trace[:, None]).clamp_min(0).sqrt() / 2
        largest = real.argmax(-1)
        rows = torch.arange(len(turns))
        held = (turns + turns.mT)[rows, largest] / (4 * real[rows, largest])[:, None]
        held[rows, largest] = real[rows, largest]
        whole = skew[rows, largest] / (4 * real[rows, largest])
        length = held.norm(dim=-1)
        return held / length[:, None] * (2 * torch.atan2(length, whole))[:, None]
    angle = torch.acos((trace - 1) / 2)  # culprit: turns-by-nearly-half
    return skew * (angle / (2 * angle.sin()))[:, None]


def half_turns(by_halves: bool, short: float = 4e-4, many: int = 6) -> torch.Tensor:
    """How cameras have been turned that look back. Off by a sixth."""
    axis = nn.functional.normalize(uniform(many, 3, seed=3).double() + 0.1, dim=-1)
    angle = torch.pi - short * (1 + uniform(many, seed=4).double())
    return turned_by(turning(axis, angle).to(SINGLE), by_halves)


BUGS = (
    Bug("spread-of-a-magnetisation", "quantumlib/Cirq#6011", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: spread_of_spins(SINGLE), lambda: spread_of_spins(DOUBLE), precision="32-true"),
    Bug("field-that-should-settle", "tatopenn-cell/Dense-Evolution#284", ("cancellation", "decision-flip", "amplified-rounding"), "aten.sub.Tensor",
        lambda: settled(SINGLE), lambda: settled(DOUBLE), precision="32-true"),
    Bug("rates-of-a-flame", "", ("amplified-rounding",), "aten.exp.default",
        lambda: rates(LOW), lambda: rates(SINGLE), module="Flame",
        expected_miss="an exponent of thirty makes twelve unit roundoffs of one, and a softmax of sharp scores may have as many"),
    Bug("days-of-an-epidemic", "", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: epidemic(LOW), lambda: epidemic(SINGLE)),
    Bug("echoes-of-a-scanner", "tue-bmd/zea#518", ("amplified-rounding",), "aten._to_copy.default",
        lambda: echoes(LOW), lambda: echoes(SINGLE), module="Scanner"),
    Bug("turns-by-nearly-half", "facebookresearch/pytorch3d#188", ("amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: half_turns(False), lambda: half_turns(True), precision="32-true"),
)  # fmt: skip
