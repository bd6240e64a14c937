"""Errands: clocks of robots, sweeps of a car, arms that turn a little, statistics of actions, poses that nearly fit, balls above a wall."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform, wider

SINGLE, DOUBLE = torch.float32, torch.float64


class RobotState:
    """What a robot tells a controller: where its joints are, and when that was."""

    def __init__(self, joints: torch.Tensor, seconds: int, nanos: int) -> None:
        self.joints = joints
        self.time = torch.tensor(seconds).float() + 1e-9 * torch.tensor(nanos).float()  # culprit: clock-of-an-arm
        self.stamp = torch.tensor([seconds, nanos])


class Swing:
    """A controller that swings each joint once in three seconds, from where it is when it begins."""

    def __init__(self, first: RobotState, exact: bool) -> None:
        self.first, self.exact = first, exact

    def elapsed(self, state: RobotState) -> torch.Tensor:
        if self.exact:
            seconds, nanos = state.stamp - self.first.stamp
            return seconds.float() + 1e-9 * nanos.float()
        return state.time - self.first.time  # culprit: clock-of-an-arm

    def forward(self, state: RobotState) -> torch.Tensor:
        return self.first.joints + 0.3 * torch.sin(2 * math.pi * self.elapsed(state) / 3)


def swung(exact: bool) -> torch.Tensor:
    """Where seven joints should be at forty moments of a second. They stay."""
    joints = 0.5 * normal(7, seed=401)
    ticks = [(1_624_868_412, 103_000_000 + 20_000_000 * tick) for tick in range(40)]
    states = [RobotState(joints, seconds, nanos) for seconds, nanos in ticks]
    controller = Swing(states[0], exact)
    return torch.stack([controller.forward(state) - joints for state in states])


class Pose:
    """Where a frame lies within another: a turn about the vertical, and a way."""

    def __init__(self, turn: float, way: tuple[float, float, float]) -> None:
        cos, sin = math.cos(turn), math.sin(turn)
        self.rotation = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]], dtype=DOUBLE)
        self.way = torch.tensor(way, dtype=DOUBLE)

    def matrix(self) -> torch.Tensor:
        matrix = torch.eye(4, dtype=DOUBLE)
        matrix[:3, :3], matrix[:3, 3] = self.rotation, self.way
        return matrix


class PointCloud:
    """The points of one sweep of a lidar."""

    def __init__(self, points: torch.Tensor) -> None:
        self.points = points

    def rotate(self, rotation: torch.Tensor) -> None:
        self.points = self.points @ rotation.to(self.points.dtype).T

    def translate(self, way: torch.Tensor) -> None:
        self.points = self.points + way.to(self.points.dtype)  # culprit: sweep-of-a-moving-car


def aligned(together: bool) -> torch.Tensor:
    """Points of an earlier sweep, as the car sees them now, from the car and by way of the world. Rings break up."""
    ring = torch.linspace(0, 2 * math.pi, 90)
    cloud = PointCloud(torch.stack([6 * torch.cos(ring), 6 * torch.sin(ring), -1.6 + 0.01 * normal(90, seed=402)], -1))
    then, now = Pose(0.41, (691_203.37, 5_335_871.62, 519.4)), Pose(0.43, (691_205.08, 5_335_872.33, 519.5))
    if together:
        matrix = torch.linalg.inv(now.matrix()) @ then.matrix()
        cloud.rotate(matrix[:3, :3])
        cloud.translate(matrix[:3, 3])
    else:
        cloud.rotate(then.rotation)
        cloud.translate(then.way)
        cloud.translate(-now.way)
        cloud.rotate(now.rotation.T)
    return cloud.points


def slerp(first: torch.Tensor, last: torch.Tensor, share: torch.Tensor, angles: torch.dtype) -> torch.Tensor:
    """The turn that lies between two, as quaternions."""
    theta = torch.acos((first * last).sum(-1, keepdim=True).to(angles)).double()  # culprit: arm-that-turns-a-little
    whole = torch.sin(theta)
    return (torch.sin((1 - share) * theta) / whole) * first + (torch.sin(share * theta) / whole) * last


def turned(angles: torch.dtype) -> torch.Tensor:
    """How an arm is turned at nine moments between two orders that differ by a ten-thousandth. Not a number."""
    axis = torch.tensor([0.48, -0.6, 0.64], dtype=DOUBLE)
    first = torch.cat([torch.tensor([math.cos(0.4)], dtype=DOUBLE), math.sin(0.4) * axis])
    last = torch.cat([torch.tensor([math.cos(0.4001)], dtype=DOUBLE), math.sin(0.4001) * axis])
    shares = torch.linspace(0.1, 0.9, 9, dtype=DOUBLE)[:, None]
    return slerp(first.expand(9, 4), last.expand(9, 4), shares, angles)


class RunningStats:
    """Means and spreads of actions, batch by batch."""

    def __init__(self, size: int, kind: torch.dtype) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(size, dtype=kind), torch.zeros(size, dtype=kind)

    def update(self, batch: torch.Tensor) -> None:
        self.count += len(batch)
        share = len(batch) / self.count
        self.mean = self.mean + (batch.mean(0) - self.mean) * share
        self.squares = self.squares + (batch.square().mean(0) - self.squares) * share  # culprit: actions-that-hardly-differ

    def spread(self) -> torch.Tensor:
        variance = self.squares - self.mean.square()  # culprit: actions-that-hardly-differ
        return variance.clamp_min(0).sqrt()


def spreads(kind: torch.dtype) -> torch.Tensor:
    """Spreads of seven joints in demonstrations of a task in which the arm hardly moves."""
    stats = RunningStats(7, kind)
    rest = 0.9 + 0.4 * uniform(7, seed=403)
    for seed in range(404, 412):
        stats.update((rest + 3e-4 * normal(50, 7, seed=seed)).to(kind))
    return stats.spread()


def rotation_of(turn: torch.Tensor) -> torch.Tensor:
    """The rotation about an axis as long as its angle."""
    x, y, z = turn
    nought = torch.zeros_like(x)
    return torch.matrix_exp(torch.stack([nought, -z, y, z, nought, -x, -y, x, nought]).view(3, 3))


def geodesic(first: torch.Tensor, second: torch.Tensor, edge: float) -> torch.Tensor:
    """The angle between two rotations."""
    cosine = ((first.T @ second).diagonal().sum() - 1) / 2  # culprit: pose-that-nearly-fits
    return torch.acos(cosine.clamp(-1 + edge, 1 - edge))  # culprit: pose-that-nearly-fits


def pose_slopes(kind: torch.dtype, edge: float) -> torch.Tensor:
    """How an X-ray's pose should turn, from eight guesses that are almost right."""
    slopes = []
    for seed in range(412, 420):
        true = 0.7 * normal(3, seed=seed).to(kind)
        guess = (true + 2e-4 * normal(3, seed=seed + 50).to(kind)).requires_grad_()
        geodesic(rotation_of(true), rotation_of(guess), edge).backward()
        slopes.append(guess.grad)
    return torch.stack(slopes)


def roots_quadratic(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both roots of quadratic equations, the first the smaller."""
    discriminant = b * b - 4 * a * c  # culprit: balls-above-a-wall
    root = discriminant.clamp_min(0).sqrt()
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def airtimes(kind: torch.dtype) -> torch.Tensor:
    """How long twenty balls that are thrown up stay above a wall that they just pass."""
    speed = (28 + 4 * uniform(20, seed=420)).to(kind)
    top = speed * speed / (2 * 9.81)
    wall = (top.float() * (1 - 4e-7 * (1 + uniform(20, seed=421)))).to(kind)
    leaves, returns = roots_quadratic(torch.full((20,), 9.81 / 2, dtype=SINGLE).to(kind), -speed, wall)
    return wider(returns - leaves)


BUGS = (
    Bug("clock-of-an-arm", "facebookresearch/polymetis#3", ("absorption", "cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: swung(exact=False), lambda: swung(exact=True), precision="32-true"),
    Bug("sweep-of-a-moving-car", "nutonomy/nuscenes-devkit#1182", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: aligned(together=False), lambda: aligned(together=True), precision="32-true"),
    Bug("arm-that-turns-a-little", "boostorg/qvm#20", ("underflow", "nan", "overflow", "amplified-rounding", "cancellation"),
        "aten.acos.default",
        lambda: turned(SINGLE), lambda: turned(DOUBLE), precision="32-true"),
    Bug("actions-that-hardly-differ", "Physical-Intelligence/openpi#1051", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: spreads(SINGLE), lambda: spreads(DOUBLE), precision="32-true"),
    Bug("pose-that-nearly-fits", "eigenvivek/nanodrr#31", ("cancellation", "nan", "overflow", "amplified-rounding"),
        "aten.add.Scalar or aten.acos.default",
        lambda: pose_slopes(SINGLE, 0.0), lambda: pose_slopes(DOUBLE, 1e-14), precision="32-true"),
    Bug("balls-above-a-wall", "vorot/roots#37", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: airtimes(SINGLE), lambda: airtimes(DOUBLE), precision="32-true"),
)  # fmt: skip
