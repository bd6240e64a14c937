"""Steerings: an integral of small errors, a filter of a voice, powers that smooth, a spline's end, sheets, few counts, champions, robust losses."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Joint:
    """A robot's joints: each turns by the torque that is given, less friction and less its arm's weight."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.place, self.speed = torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)
        self.weight = (1 + 0.5 * uniform(count, seed=11)).to(dtype)

    def move(self, torque: torch.Tensor, step: float) -> None:
        pull = self.weight * torch.cos(0.2 * self.place)
        self.speed = self.speed + step * (torque - pull - 2.0 * self.speed) / 0.5
        self.place = self.place + step * self.speed


class Controller:
    """Steers joints by their errors, by the sum of these and by how they change, in the format of its board."""

    def __init__(self, count: int, kept: torch.dtype, gains: tuple[float, float, float], most: float = 8.0) -> None:
        self.gains, self.most, self.kept = gains, most, kept
        self.sum, self.last = torch.zeros(count, dtype=kept), torch.zeros(count, dtype=kept)
        self.slope = torch.zeros(count, dtype=kept)

    def torque(self, goal: torch.Tensor, place: torch.Tensor, step: float) -> torch.Tensor:
        direct, summed, changed = self.gains
        error = (goal - place).to(self.kept)  # culprit: integral-of-a-small-error
        self.sum = (self.sum + summed * step * error).clamp(-self.most, self.most)  # culprit: integral-of-a-small-error
        self.slope = 0.9 * self.slope + 0.1 * (error - self.last) / step  # culprit: integral-of-a-small-error
        self.last = error
        told = direct * error + self.sum + changed * self.slope
        return told.clamp(-self.most, self.most)


class Recorder:
    """Keeps how far joints are from where they should be, turn by turn."""

    def __init__(self, every: int) -> None:
        self.every, self.turn = every, 0
        self.seen: list[torch.Tensor] = []

    def note(self, error: torch.Tensor) -> None:
        self.turn += 1
        if self.turn % self.every == 0:
            self.seen.append(wider(error))

    def last(self) -> torch.Tensor:
        return self.seen[-1]


def steered(kept: torch.dtype, gains: tuple[float, float, float] = (12.0, 3.0, 1.0), dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How far twelve joints are from where they should be after six seconds. Off by 15 %."""
    joints, board, seen = Joint(12, dtype), Controller(12, kept, gains), Recorder(10)
    goal = (0.5 * normal(12, seed=12)).to(dtype)
    for _ in range(120):
        torque = board.torque(goal, joints.place, 0.05)
        joints.move(torque.to(dtype), 0.05)
        seen.note(goal - joints.place)
    return seen.last()


class Voice:
    """Codes frames of a voice by filters that foretell each sample from those before, and by what is left."""

    def __init__(self, order: int, kind: torch.dtype) -> None:
        self.order, self.kind = order, kind

    @staticmethod
    def frames(sound: torch.Tensor, size: int, hop: int) -> torch.Tensor:
        window = torch.hann_window(size, dtype=sound.dtype)
        return sound.unfold(0, size, hop) * window

    def products(self, frames: torch.Tensor) -> torch.Tensor:
        """How alike each frame is to itself some samples later."""
        size = frames.shape[1]
        told = [(frames[:, : size - lag] * frames[:, lag:]).sum(1) for lag in range(self.order + 1)]  # culprit: filter-of-a-voice
        return torch.stack(told, 1)

    def filters(self, products: torch.Tensor) -> torch.Tensor:
        """The recursion of Levinson and Durbin: from each order to the next."""
        told = torch.ones(len(products), 1, dtype=products.dtype)
        error = products[:, 0]
        for order in range(1, self.order + 1):
            left = (told * products[:, 1 : order + 1].flip(1)).sum(1)  # culprit: filter-of-a-voice
            turned = -left / error
            longer = torch.cat([told, torch.zeros_like(told[:, :1])], 1)
            told = longer + turned[:, None] * longer.flip(1)  # culprit: filter-of-a-voice
            error = error * (1 - turned.square())  # culprit: filter-of-a-voice
        return told

    def residual(self, frames: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """What a filter does not foretell of each frame."""
        padded = torch.nn.functional.pad(frames, (self.order, 0))
        return (padded.unfold(1, self.order + 1, 1).flip(2) * filters[:, None]).sum(2)

    def code(self, sound: torch.Tensor) -> torch.Tensor:
        frames = self.frames(sound, 240, 120)
        filters = self.filters(self.products(frames.to(self.kind)))
        return self.residual(frames, filters.to(frames.dtype)).square().mean(1).sqrt()


def voiced(kind: torch.dtype, order: int = 20, breath: float = 1e-4, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How loud what is left is, frame by frame, of a sound of some low tones. Garbage."""
    time = torch.arange(1200, dtype=DOUBLE)
    sound = sum(torch.sin(0.11 * place * time + place) / place for place in range(1, 6))
    return Voice(order, kind).code((sound + breath * normal(1200, seed=13)).to(dtype))


def smoothed(turned: bool, order: int = 13, half: int = 24, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """The weights by which the middle of 49 samples is read off the polynomial of order thirteen that fits them. Off by a third."""
    place = torch.arange(-half, half + 1, dtype=dtype)
    if turned:
        base, _ = torch.linalg.qr((place / half)[:, None] ** torch.arange(order + 1))
        return base @ base[half]
    powers = place[:, None] ** torch.arange(order + 1)
    first = torch.zeros(order + 1, dtype=dtype)
    first[0] = 1
    return powers @ torch.linalg.solve(powers.T @ powers, first)  # culprit: smoothing-by-powers


def spline(near: bool, order: int = 8, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A spline of eight pieces, near its far end, by powers of the distances to its knots. Garbage."""
    x = torch.linspace(order - 1.0, order - 0.25, 24, dtype=dtype)
    if near:
        x = order - x
    told = torch.zeros_like(x)
    for knot in range(order):
        weight = (-1) ** knot * math.comb(order, knot) / math.factorial(order - 1)
        told = told + weight * (x - knot).clamp_min(0) ** (order - 1)  # culprit: spline-near-its-end
    return told


def stretched(scaled: bool, size: float = 0.004, dtype: torch.dtype = HALF) -> torch.Tensor:
    """How far triangles of a sheet are stretched in two directions, in units of the larger of the two. Off by 100 %."""
    told = (size * normal(50, 2, 2, seed=14)).to(dtype)
    most = told.abs().amax((1, 2), keepdim=True)
    if scaled:
        told = told / most
    first, both, second = told[:, :, 0].square().sum(1), (told[:, :, 0] * told[:, :, 1]).sum(1), told[:, :, 1].square().sum(1)
    apart = ((first - second).square() + 4 * both.square()).sqrt()  # culprit: stretch-of-a-sheet
    large = ((first + second + apart) / 2).sqrt()
    small = ((first + second - apart).clamp_min(0) / 2).sqrt()
    return wider(torch.stack([small / large, (large if scaled else large / most[:, 0, 0]) / 2]))


def novelty(joined: bool, least: float = 1e-8, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """How much is to be learnt of states of which little was seen, by counts that begin near nought. Off by a third."""
    counts = (least * (1 + uniform(12, 4, seed=15))).to(dtype)
    counts[:, 0] += 3
    total = counts.sum(1, keepdim=True)
    told = total.log() - counts.log()
    if joined:
        return told + torch.digamma(counts + 1) - torch.digamma(total + 1)
    return told + 1 / counts - 1 / total + torch.digamma(counts) - torch.digamma(total)  # culprit: belief-of-few-counts


def champions(wide: bool, far: float = 40.0, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """By how much doubt of a player's skill shrinks by a win over a far better one: nearly all that it can. Garbage."""
    gap = torch.linspace(-far, -far / 2, 24, dtype=DOUBLE if wide else dtype)
    moved = torch.exp(-0.5 * gap.square() - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(gap))
    less = moved * (moved + gap)  # culprit: skill-of-a-champion
    return 1 - less  # culprit: skill-of-a-champion


def robust(plain: bool, wide: float = 1.0, size: float = 0.05, dtype: torch.dtype = LOW) -> torch.Tensor:
    """Losses of rows that are squares near nought and grow like distances far out, where all errors are small. Off by 60 %."""
    torch.manual_seed(36)
    net = torch.nn.Linear(16, 6).to(dtype)
    x = normal(40, 16).to(dtype)
    with torch.no_grad():
        said = net(x)
        goal = wider(said) + size * normal(40, 6, seed=1)
        error = ((wider(said) - goal) / wide).to(dtype)
        if plain:
            told = error.square() / (torch.sqrt(1 + error.square()) + 1)
        else:
            told = torch.sqrt(1 + error.square()) - 1  # culprit: small-errors-of-a-robust-loss
        return wider((wide**2 * told).mean(1))


BUGS = (
    Bug("integral-of-a-small-error", "cleanflight/cleanflight#1632", ("cancellation", "amplified-rounding", "absorption", "accumulated-drift"),
        "aten.sub.Tensor", lambda: steered(LOW), lambda: steered(SINGLE)),
    Bug("filter-of-a-voice", "librosa/librosa#1736", ("cancellation", "amplified-rounding", "accumulated-drift"), "aten.sum.dim_IntList",
        lambda: voiced(SINGLE), lambda: voiced(DOUBLE), precision="32-true",
        expected_miss="a sum that cancels to less than 2^-17 of its terms is taken for what the reference does not determine, even beside float64"),
    Bug("smoothing-by-powers", "scipy/scipy#20825", ("amplified-rounding", "cancellation"), "aten.mm.default",
        lambda: smoothed(False), lambda: smoothed(True), precision="32-true",
        expected_miss="products beyond 2^100 are taken for the fills of masks, and left out of norms"),
    Bug("spline-near-its-end", "NFFT/nfft#16", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: spline(False), lambda: spline(True), precision="32-true"),
    Bug("stretch-of-a-sheet", "NVIDIA/warp#1831", ("underflow",), "aten.pow.Tensor_Scalar",
        lambda: stretched(False), lambda: stretched(True)),
    Bug("belief-of-few-counts", "infer-actively/pymdp#415", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: novelty(False), lambda: novelty(True), precision="32-true"),
    Bug("skill-of-a-champion", "scttcper/ts-trueskill#228", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: champions(False), lambda: champions(True), precision="32-true"),
    Bug("small-errors-of-a-robust-loss", "bmaltais/kohya_ss#3494", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: robust(False), lambda: robust(True), phase="data"),
)  # fmt: skip
