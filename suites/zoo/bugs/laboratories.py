"""Laboratories: genotypes beyond doubt, states of many sensors, forces of bonded atoms, pictures of large counts, flat pictures, long tones."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform, wider

SINGLE, DOUBLE = torch.float32, torch.float64


class Genotypes:
    """Three genotypes of each site, each with a phred score: ten times the negative logarithm of how likely its reads are."""

    def __init__(self, phred: torch.Tensor) -> None:
        self.phred = phred

    def likelihoods(self) -> torch.Tensor:
        return 10 ** (-self.phred / 10)  # culprit: genotypes-of-many-reads

    def posteriors(self, prior: torch.Tensor) -> torch.Tensor:
        weighed = self.likelihoods() * prior
        return weighed / weighed.sum(-1, keepdim=True)  # culprit: genotypes-of-many-reads


def called(kind: torch.dtype) -> torch.Tensor:
    """How likely each genotype is at thirty sites that hundreds of reads cover. Not a number."""
    phred = 300 + 500 * uniform(30, 1, seed=451) + 12 * uniform(30, 3, seed=452)
    return Genotypes(phred.to(kind)).posteriors(torch.tensor([0.9, 0.08, 0.02], dtype=kind))


class StateFilter:
    """Which of some states a machine is in, from what its sensors tell."""

    def __init__(self, passing: torch.Tensor, levels: torch.Tensor, spread: float) -> None:
        self.passing, self.levels, self.spread = passing, levels, spread
        self.state = torch.full((len(passing),), 1 / len(passing))

    def density(self, seen: torch.Tensor) -> torch.Tensor:
        away = (seen - self.levels) / self.spread
        each = torch.exp(-0.5 * away.square()) / (self.spread * math.sqrt(2 * math.pi))
        return each.prod(-1)  # culprit: states-of-many-sensors

    def update(self, seen: torch.Tensor) -> torch.Tensor:
        joint = (self.state @ self.passing) * self.density(seen)
        self.state = joint / joint.sum()  # culprit: states-of-many-sensors
        return self.state


class LogStateFilter(StateFilter):
    """The same by logarithms of densities."""

    def update(self, seen: torch.Tensor) -> torch.Tensor:
        away = (seen - self.levels) / self.spread
        logs = (-0.5 * away.square() - math.log(self.spread * math.sqrt(2 * math.pi))).sum(-1)
        self.state = torch.softmax(torch.log(self.state @ self.passing) + logs, -1)
        return self.state


def followed(kind: type[StateFilter]) -> torch.Tensor:
    """Which of four states an engine is in, at twelve moments, by sixty thermometers. Not a number."""
    passing = 0.1 + 0.6 * torch.eye(4)
    levels = 300 + 4 * normal(4, 60, seed=453)
    machine = kind(passing, levels, 9.0)
    readings = levels[torch.arange(12) // 3] + 9 * normal(12, 60, seed=454)
    return torch.stack([machine.update(seen) for seen in readings])


class Forces:
    """Forces on atoms: those of all pairs, less those of pairs that a bond holds, which are computed apart."""

    def __init__(self, places: torch.Tensor, bonds: torch.Tensor, tally: torch.dtype) -> None:
        self.places, self.bonds, self.tally = places, bonds, tally

    def push(self, pairs: torch.Tensor) -> torch.Tensor:
        """How the atoms of each pair push each other, by the twelfth and the sixth power of their distance."""
        way = self.places[pairs[:, 0]] - self.places[pairs[:, 1]]
        square = way.square().sum(-1, keepdim=True)
        inverse = (0.3 * 0.3 / square) ** 3
        return 24 * (2 * inverse * inverse - inverse) / square * way

    def add(self, total: torch.Tensor, pairs: torch.Tensor, force: torch.Tensor) -> torch.Tensor:
        total = total.index_add(0, pairs[:, 0], force.to(self.tally))  # culprit: forces-of-bonded-atoms
        return total.index_add(0, pairs[:, 1], -force.to(self.tally))  # culprit: forces-of-bonded-atoms

    def total(self) -> torch.Tensor:
        pairs = torch.combinations(torch.arange(len(self.places)))
        total = self.add(torch.zeros(self.places.shape, dtype=self.tally), pairs, self.push(pairs))
        return self.add(total, self.bonds, -self.push(self.bonds))


def forces(tally: torch.dtype) -> torch.Tensor:
    """What pushes the atoms of sixteen small molecules that touch."""
    corner = 0.42 * torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 3, indexing="ij"), -1).view(-1, 3)[:16]
    first = corner + 0.01 * normal(16, 3, seed=455)
    away = torch.nn.functional.normalize(normal(16, 3, seed=456), dim=-1)
    places = torch.stack([first, first + 0.096 * away], 1).view(-1, 3)
    return Forces(places, torch.arange(32).view(16, 2), tally).total()


class ImageLayer:
    """A picture that is drawn between two limits of contrast. The card that draws takes float32."""

    def __init__(self, counts: torch.Tensor, rescale: bool) -> None:
        self.low, self.high = counts.min(), counts.max()
        if rescale:
            counts = (counts - self.low) / (self.high - self.low)
            self.low, self.high = torch.tensor(0.0), torch.tensor(1.0)
        self.texture = counts.to(SINGLE)  # culprit: picture-of-large-counts

    def draw(self) -> torch.Tensor:
        low, high = self.low.to(SINGLE), self.high.to(SINGLE)  # culprit: picture-of-large-counts
        return (self.texture - low) / (high - low)


def drawn(rescale: bool) -> torch.Tensor:
    """A detector's picture, whose counts are large and differ little. It has three greys."""
    counts = 7.25e9 + 900 * uniform(24, 24, seed=457).double() + 500 * torch.linspace(0, 1, 24).double()
    return ImageLayer(counts, rescale).draw()


def ssim(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """How alike two pictures are in structure, by windows of seven pixels."""
    window = torch.full((1, 1, 7, 7), 1 / 49)
    smooth = lambda picture: torch.nn.functional.conv2d(picture[None, None], window)[0, 0]  # noqa: E731
    mean, other = smooth(first), smooth(second)
    variance = smooth(first * first) - mean * mean  # culprit: pictures-without-structure
    variance_other = smooth(second * second) - other * other  # culprit: pictures-without-structure
    together = smooth(first * second) - mean * other  # culprit: pictures-without-structure
    bright = (2 * mean * other + 0.01**2) / (mean * mean + other * other + 0.01**2)
    return bright * (2 * together + 0.03**2) / (variance + variance_other + 0.03**2)


def likeness(brightest: float) -> torch.Tensor:
    """How alike two pictures of a white wall are, of which one is a little darker."""
    wall = brightest * (0.93 + 1e-5 * normal(20, 20, seed=458))
    return ssim(wall, 0.999 * wall)


class SineWave:
    """A tone that is asked for its samples one by one."""

    def __init__(self, pitch: float, rate: float, seconds: float) -> None:
        self.pitch, self.delta, self.time = pitch, 1 / rate, torch.tensor(seconds)

    def sample(self) -> torch.Tensor:
        angle = 2 * math.pi * self.pitch * self.time  # culprit: tone-after-a-quarter-hour
        self.time = self.time + self.delta  # culprit: tone-after-a-quarter-hour
        return torch.sin(angle)


class CycleWave:
    """The same, by how much of a turn has passed."""

    def __init__(self, pitch: float, rate: float, seconds: float) -> None:
        self.step, self.cycles = pitch / rate, torch.tensor((pitch * seconds) % 1)

    def sample(self) -> torch.Tensor:
        value = torch.sin(2 * math.pi * self.cycles)
        self.cycles = self.cycles + self.step
        self.cycles = self.cycles - (self.cycles > 1).float()
        return value


def played(wave: type[SineWave] | type[CycleWave]) -> torch.Tensor:
    """A hundred samples of a tone that has sounded for a quarter of an hour. Silence."""
    tone = wave(440.0, 44_100.0, 900.05)
    return wider(torch.stack([tone.sample() for _ in range(100)]))


BUGS = (
    Bug("genotypes-of-many-reads", "bigdatagenomics/bdg-formats#144", ("underflow", "nan"), "aten.pow.Scalar",
        lambda: called(SINGLE), lambda: called(DOUBLE), precision="32-true"),
    Bug("states-of-many-sensors", "tbrown122387/pf#25", ("underflow", "nan"), "aten.prod.dim_int",
        lambda: followed(StateFilter), lambda: followed(LogStateFilter), precision="32-true"),
    Bug("forces-of-bonded-atoms", "proteneer/timemachine#127", ("cancellation", "absorption", "amplified-rounding", "local-drift"),
        "aten.index_add.default",
        lambda: forces(SINGLE), lambda: forces(DOUBLE), precision="32-true"),
    Bug("picture-of-large-counts", "napari/napari#6537", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: drawn(rescale=False), lambda: drawn(rescale=True), precision="32-true"),
    Bug("pictures-without-structure", "Po-Hsun-Su/pytorch-ssim#33", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: likeness(255.0), lambda: likeness(1.0), precision="32-true"),
    Bug("tone-after-a-quarter-hour", "pschatzmann/arduino-audio-tools#138", ("amplified-rounding", "absorption", "accumulated-drift"),
        "aten.mul.Tensor",
        lambda: played(SineWave), lambda: played(CycleWave), precision="32-true"),
)  # fmt: skip
