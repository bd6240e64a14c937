"""Canyons: drones after hours, lines by beams, robots without noise, grenades, pictures of tiles, snakes in sound, neighbours of a query."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class RateController:
    """Keeps the rate of a turn, with a term for how fast its error changes."""

    def __init__(self, start: torch.Tensor, in_microseconds: bool) -> None:
        self.in_microseconds = in_microseconds
        self.last_update = start if in_microseconds else start.float() * 1e-6  # culprit: drone-after-hours
        self.last_error, self.integral = torch.zeros(3), torch.zeros(3)

    def update(self, ticks: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        if self.in_microseconds:
            now = ticks
            dt = (now - self.last_update).float() * 1e-6
        else:
            now = ticks.float() * 1e-6  # culprit: drone-after-hours
            dt = now - self.last_update  # culprit: drone-after-hours
        self.integral = self.integral + error * dt
        slope = (error - self.last_error) / dt
        self.last_update, self.last_error = now, error
        return 0.8 * error + 0.2 * self.integral + 0.02 * slope


def flown(in_microseconds: bool) -> torch.Tensor:
    """Commands of fifty turns, four thousandths of a second each, three hours after a start."""
    start = torch.tensor(10_800_000_000)
    controller, commands = RateController(start, in_microseconds), []
    for turn in range(1, 51):
        ticks = start + 4000 * turn + (30 * uniform(1, seed=7200 + turn)).long()[0]
        error = torch.sin(0.35 * turn + torch.arange(3.0)) + 0.02 * normal(3, seed=7260 + turn)
        commands.append(controller.update(ticks, error))
    return torch.stack(commands)


class Reader(nn.Module):
    """Letters of a line of handwriting, a distribution for each of its slices."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        torch.manual_seed(7301)
        self.mix, self.out = nn.Linear(12, 32), nn.Linear(32, letters)

    def forward(self, slices: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.out(torch.tanh(self.mix(slices))), -1)


class BeamDecoder:
    """Keeps the best labelings of a line, slice by slice; pairs of letters are more or less likely."""

    def __init__(self, pairs: torch.Tensor, width: int, by_logarithms: bool) -> None:
        self.pairs, self.width, self.by_logarithms = pairs, width, by_logarithms

    def decode(self, probabilities: torch.Tensor) -> torch.Tensor:
        """The score of each of the best labelings, as a logarithm."""
        if self.by_logarithms:
            probabilities = probabilities.log()
        best, last = probabilities[0].topk(self.width)
        for each in probabilities[1:]:
            if self.by_logarithms:
                extended = best[:, None] + each + self.pairs.log()[last]
            else:
                extended = best[:, None] * each * self.pairs[last]  # culprit: line-by-beams
            best, which = extended.flatten().topk(self.width)
            last = which % len(each)
        return best if self.by_logarithms else best.log()


def decoded(by_logarithms: bool) -> torch.Tensor:
    """How likely the best four labelings of a line are, which has fifty slices and thirty letters."""
    pairs = (3 * normal(30, 30, seed=7302)).softmax(-1)
    with torch.no_grad():
        return BeamDecoder(pairs, 4, by_logarithms).decode(Reader(30)(normal(50, 12, seed=7303)))


class GaussianPolicy(nn.Module):
    """Actions of a robot with a learned logarithm of their standard deviation."""

    def __init__(self, bounds: tuple[float, float] | None) -> None:
        super().__init__()
        torch.manual_seed(7311)
        self.mean = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 4))
        self.log_std, self.bounds = nn.Parameter(torch.tensor([-3.2, -108.0, -1.5, -125.0])), bounds

    def deviation(self) -> torch.Tensor:
        log_std = self.log_std if self.bounds is None else self.log_std.clamp(*self.bounds)
        return torch.exp(log_std)  # culprit: robot-without-noise

    def act(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = self.mean(state), self.deviation()
        action = mean + std * noise
        likely = -((action - mean) ** 2) / (2 * std**2) - torch.log(std) - math.log(math.sqrt(2 * math.pi))
        return action, likely.sum(-1)


def walked(bounds: tuple[float, float] | None) -> torch.Tensor:
    """How likely the actions of three steps are that twenty robots take, after a training that has brought the noise down."""
    policy, likely = GaussianPolicy(bounds), []
    with torch.no_grad():
        for step in range(3):
            likely.append(policy.act(normal(20, 10, seed=7312 + step), normal(20, 4, seed=7322 + step))[1])
    return torch.stack(likely)


class Physics:
    """Moves what was shot, in steps of a hundredth of a second, up to the time of the server."""

    def __init__(self, start: float, kind: torch.dtype) -> None:
        self.time = torch.tensor(start, dtype=kind)
        self.fired = self.time.clone()
        self.place, self.speed = torch.zeros(12, 2), 40 * normal(12, 2, seed=7331)

    def step(self, dt: float) -> None:
        self.time += dt  # culprit: worms-that-are-shot-at
        self.speed = self.speed + dt * torch.tensor([0.0, -9.8])
        self.place = self.place + dt * self.speed

    def fuse(self) -> torch.Tensor:
        """How much of three seconds each grenade has still to go."""
        return 3 - (self.time - self.fired).float()


def shot(kind: torch.dtype) -> torch.Tensor:
    """What is left of a fuse in each tenth of a second, on a server that has been up for three days."""
    physics, left = Physics(293113.72, kind), []
    for turn in range(200):
        physics.step(0.01)
        if turn % 10 == 9:
            left.append(physics.fuse())
    return torch.stack(left)


class TilingPipeline:
    """Denoises a wide picture as tiles that overlap; what two of them say is weighted by how near their middles are."""

    def __init__(self, tile: int, overlap: int, wide: bool) -> None:
        torch.manual_seed(7341)
        self.unet = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 4, 3, padding=1)).to(HALF)
        self.tile, self.step = tile, tile - overlap
        self.kind = SINGLE if wide else HALF

    def gaussian_weights(self) -> torch.Tensor:
        middle, variance = (self.tile - 1) / 2, 0.01
        along = [math.exp(-(((x - middle) / self.tile) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance) for x in range(self.tile)]
        weights = torch.outer(torch.tensor(along), torch.tensor(along))
        return weights.to(self.kind)  # culprit: picture-of-tiles

    def __call__(self, latents: torch.Tensor, steps: int) -> torch.Tensor:
        weights = self.gaussian_weights()
        for _ in range(steps):
            noise, contributors = (torch.zeros(latents.shape, dtype=self.kind) for _ in range(2))
            for left in range(0, latents.shape[-1] - self.tile + 1, self.step):
                part = slice(left, left + self.tile)
                noise[..., part] += self.unet(latents[..., part]) * weights
                contributors[..., part] += weights
            noise /= contributors
            latents = latents - 0.1 * noise.to(latents.dtype)
        return latents


def tiled(wide: bool) -> torch.Tensor:
    """A picture of three tiles in half, after four steps."""
    with torch.no_grad():
        return TilingPipeline(16, 4, wide)(normal(1, 4, 16, 40, seed=7342).to(HALF), 4).float()


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, with a learned alpha for each channel."""

    def __init__(self, alpha: torch.Tensor, by_sinc: bool) -> None:
        super().__init__()
        self.alpha, self.by_sinc = nn.Parameter(alpha[:, None]), by_sinc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_sinc:
            return x + self.alpha * (x * torch.sinc(self.alpha * x / torch.pi)) ** 2
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x) ** 2  # culprit: snakes-in-sound


def encoded(by_sinc: bool) -> torch.Tensor:
    """What an encoder in half makes of a sound; two channels of its first snake have learned to be straight."""
    torch.manual_seed(7351)
    alphas = [uniform(12, seed=7352) + 0.2, uniform(16, seed=7353) + 0.2]
    alphas[0][3], alphas[0][8] = 1.2e-8, 0.0
    model = nn.Sequential(nn.Conv1d(1, 12, 7, 2), Snake(alphas[0], by_sinc), nn.Conv1d(12, 16, 5, 2), Snake(alphas[1], by_sinc), nn.Conv1d(16, 4, 3))
    with torch.no_grad():
        return model.to(HALF)((0.4 * normal(2, 1, 120, seed=7354)).to(HALF)).float()


class FlatIndex:
    """All vectors of a collection, which are compared with a query one by one."""

    def __init__(self, vectors: torch.Tensor, kind: torch.dtype) -> None:
        self.vectors, self.kind = vectors, kind

    def search(self, query: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.vectors.to(self.kind) @ query.to(self.kind)  # culprit: neighbours-of-a-query
        return scores.topk(k)


def sought(kind: torch.dtype) -> torch.Tensor:
    """The five nearest of two hundred vectors for each of six queries; one number of every vector is a bias of a million."""
    vectors = torch.cat([torch.full((200, 1), 1e6), normal(200, 24, seed=7361)], 1)
    index = FlatIndex(vectors, kind)
    queries = torch.cat([torch.full((6, 1), 1e6), normal(6, 24, seed=7362)], 1)
    return torch.stack([index.search(query, 5)[1] for query in queries])


BUGS = (
    Bug("drone-after-hours", "lis-epfl/MAVRIC_Library#284", ("cancellation", "amplified-rounding", "integer-rounding"), "aten.sub.Tensor",
        lambda: flown(in_microseconds=False), lambda: flown(in_microseconds=True), precision="32-true"),
    Bug("line-by-beams", "githubharald/CTCDecoder#23", ("underflow", "decision-flip"), "aten.mul.Tensor",
        lambda: decoded(by_logarithms=False), lambda: decoded(by_logarithms=True), phase="data", precision="32-true"),
    Bug("robot-without-noise", "leggedrobotics/rsl_rl#190", ("underflow", "nan", "overflow"), "aten.exp.default",
        lambda: walked(None), lambda: walked((-5.0, 2.0)), phase="data", precision="32-true"),
    Bug("worms-that-are-shot-at", "openlierox/openlierox#189", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: shot(SINGLE), lambda: shot(DOUBLE), precision="32-true"),
    Bug("picture-of-tiles", "albarji/mixture-of-diffusers#3", ("underflow", "nan"), "aten._to_copy.default",
        lambda: tiled(wide=False), lambda: tiled(wide=True),
        note="the thread speaks of an overflow; what half loses in the code that it changes are the weights of corners"),
    Bug("snakes-in-sound", "acids-ircam/RAVE#351", ("vanished-constant", "overflow", "nan"), "aten.add.Tensor",
        lambda: encoded(by_sinc=False), lambda: encoded(by_sinc=True), module="1",
        note="the thread is about alpha near minus the constant, in any format; in half it is any alpha that is zero"),
    Bug("neighbours-of-a-query", "weaviate/weaviate#11667", ("decision-flip", "absorption", "local-drift"), "aten.topk.default",
        lambda: sought(SINGLE), lambda: sought(DOUBLE), precision="32-true",
        note="closed as not to be fixed, since float64 is slow; that is what the twin does",
        expected_miss="runs that round the scores choose others as often: the data have no more digits in float32"),
)  # fmt: skip
