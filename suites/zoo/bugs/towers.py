"""Towers: clocks that have run for long, ways between near places, times as numbers, and turns by a trace, in float32."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
EXACT = "32-true"


class Controller:
    """Steers a drone by what it is off, how long and how fast."""

    def __init__(self, kind: torch.dtype, start: int) -> None:
        self.kind, self.last, self.gathered, self.before = kind, torch.tensor(start), torch.zeros(()), torch.zeros(())

    def steer(self, now: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
        passed = (now.to(self.kind) - self.last.to(self.kind)).float() / 1000  # culprit: time-between-two-looks
        self.gathered = self.gathered + off * passed
        slope = (off - self.before) / passed if float(passed) > 1e-6 else torch.zeros(())
        self.last, self.before = now, off
        return 0.5 * off + 2 * self.gathered + 0.01 * slope


def steered(kind: torch.dtype) -> torch.Tensor:
    """How a drone is steered at looks three milliseconds apart, whose times are counted since 1970."""
    start, told = 1_522_772_381_696, []
    drone = Controller(kind, start)
    for turn in range(1, 30):
        told.append(drone.steer(torch.tensor(start + 3 * turn), 0.3 + 0.1 * normal(1, seed=3901 + turn)[0]))
    return torch.stack(told)


def cosimulated(whole: bool) -> torch.Tensor:
    """How many steps of a tenth a simulation takes until five seconds. One too many, and tiny."""
    if whole:
        step, now, last, taken = torch.tensor(100_000_000), torch.tensor(0), torch.tensor(5_000_000_000), 0
    else:
        step, now, last, taken = torch.tensor(0.1), torch.tensor(0.0), torch.tensor(5.0), 0
    while bool(now < last):
        now = now + torch.minimum(step, last - now)  # culprit: steps-of-a-cosimulation
        taken += 1
    return torch.tensor(float(taken))


def played(kind: torch.dtype) -> torch.Tensor:
    """How far things have moved in two hundred frames of a game that has run for five days."""
    now, start = torch.tensor(432_000.0, dtype=kind), torch.tensor(432_000.0, dtype=kind)
    for _ in range(200):
        now = now + 1 / 144  # culprit: time-of-a-long-game
    return 3 * (now - start).float() + torch.zeros(4)


def distances(places: torch.Tensor, halves: bool) -> torch.Tensor:
    """The length of a walk in metres, of places a few metres apart."""
    up, along = torch.deg2rad(places).unbind(-1)
    if halves:
        square = torch.sin(up.diff() / 2) ** 2 + torch.cos(up[1:]) * torch.cos(up[:-1]) * torch.sin(along.diff() / 2) ** 2
        return 2 * 6_371_000 * torch.asin(torch.sqrt(square))
    cosine = torch.sin(up[1:]) * torch.sin(up[:-1]) + torch.cos(up[1:]) * torch.cos(up[:-1]) * torch.cos(along.diff())  # culprit: length-of-a-walk
    return 6_371_000 * torch.acos(cosine.clamp(-1, 1))  # culprit: length-of-a-walk


def walked(halves: bool) -> torch.Tensor:
    steps = 1e-3 * (1 + uniform(60, 2, seed=3931))
    return distances(torch.tensor([2.5, 1.25]) + steps.cumsum(0), halves).sum() / 1000


def written(kind: torch.dtype) -> torch.Tensor:
    """How long after the first one each reading of a series was taken, in seconds, as it is stored beside its values."""
    stamps = 1_502_002_200 + 60 * torch.arange(40)
    values = 0.1 * torch.arange(40).to(SINGLE)
    rows = torch.stack([stamps.to(kind), values.to(kind)], -1)  # culprit: stamps-beside-values
    whole = rows[:, 0].long()
    return (whole - whole[0]).double()


def turned_by(matrix: torch.Tensor, held: bool) -> torch.Tensor:
    """The angle of a rotation, of its trace."""
    cosine = (matrix.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    if held:
        cosine = cosine.clamp(-1, 1)
    return torch.acos(cosine)  # culprit: angle-of-a-matrix


def rotation(axis: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotations about axes of length one, by Rodrigues' formula in float64."""
    x, y, z = axis.double().unbind(-1)
    cross = torch.stack([0 * x, -z, y, z, 0 * x, -x, -y, x, 0 * x], -1).view(-1, 3, 3)
    sine, cosine = angle.double().sin()[:, None, None], angle.double().cos()[:, None, None]
    return torch.eye(3, dtype=DOUBLE) + sine * cross + (1 - cosine) * (cross @ cross)


def turns(held: bool) -> torch.Tensor:
    """What is left of forty turns after they are taken back at once, of which some end nearly where they began."""
    axis = torch.nn.functional.normalize(normal(64, 3, seed=3951).double(), dim=-1)
    step = torch.full((64,), 0.1, dtype=DOUBLE)
    more = torch.cat([1 + uniform(40, seed=3952), 2e-4 * (1 + uniform(24, seed=3953))]).double()
    turn, done = rotation(axis, step).float(), torch.eye(3).expand(64, 3, 3)
    for _ in range(40):
        done = done @ turn
    return turned_by(done @ rotation(axis, more - 40 * step).float(), held)


BUGS = (
    Bug("time-between-two-looks", "microsoft/AirSim#929", ("cancellation", "integer-rounding", "amplified-rounding"), "aten.sub.Tensor",
        lambda: steered(SINGLE), lambda: steered(DOUBLE), precision=EXACT),
    Bug("steps-of-a-cosimulation", "open-simulation-platform/libcosim#80", ("accumulated-drift", "decision-flip", "cancellation"), "aten.add.Tensor",
        lambda: cosimulated(whole=False), lambda: cosimulated(whole=True), precision=EXACT, harm=0.019,
        expected_miss="one comparison is decided by a rounding, and the reference goes the same way: it takes one step more as well"),
    Bug("time-of-a-long-game", "bryanedds/Nu#1208", ("absorption", "accumulated-drift", "cancellation"), "aten.add.Tensor",
        lambda: played(SINGLE), lambda: played(DOUBLE), precision=EXACT),
    Bug("length-of-a-walk", "fgebhart/workoutizer#242", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: walked(halves=False), lambda: walked(halves=True), precision=EXACT),
    Bug("stamps-beside-values", "amacd31/phildb#16", ("integer-rounding",), "aten._to_copy.default",
        lambda: written(SINGLE), lambda: written(DOUBLE), precision=EXACT),
    Bug("angle-of-a-matrix", "g-truc/glm#1058", ("amplified-rounding", "nan"), "aten.acos.default",
        lambda: turns(held=False), lambda: turns(held=True), precision=EXACT),
)  # fmt: skip
