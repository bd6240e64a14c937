"""Draws: a word by noise from counted bits, a first step out of noise, running moments, averages of weights, doubles among texts."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
ALL_BITS = 0xFFFFFFFF


def stirred(count: torch.Tensor) -> torch.Tensor:
    """Thirty-two bits that look drawn, from a count."""
    bits = count & ALL_BITS
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ (bits >> shift)) * factor) & ALL_BITS
    return bits ^ (bits >> 16)


class Noise:
    """Noise for choosing words, the same for the same seed on any device."""

    def __init__(self, seed: int, words: int) -> None:
        self.first, self.words = seed * words, words

    def even(self, careful: bool) -> torch.Tensor:
        bits = stirred(self.first + torch.arange(self.words))
        if careful:
            return ((bits >> 9).float() + 0.5) * 2.0**-23
        return bits.float() * 2.0**-32  # culprit: word-that-always-wins

    def gumbel(self, careful: bool) -> torch.Tensor:
        return -torch.log(-torch.log(self.even(careful)))  # culprit: word-that-always-wins


def scores_of_words(careful: bool) -> torch.Tensor:
    """The noisy scores of 64 words. One is infinite."""
    return normal(64, seed=41) + Noise(35_205_957, 64).gumbel(careful)


class Diffusion:
    """Pictures that noise goes out of, by a schedule that is half a cosine."""

    def __init__(self, steps: int) -> None:
        time = torch.linspace(0, 1, steps + 1, dtype=DOUBLE)
        kept = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - kept[1:] / kept[:-1]).clamp_max(0.999)
        self.kept = (1 - betas).cumprod(0)

    def start(self, noisy: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
        """The picture that a noisy one came from, if that is its noise."""
        kept = float(self.kept[step])
        return (1 / kept) ** 0.5 * noisy - (1 / kept - 1) ** 0.5 * noise  # culprit: first-step-of-a-cosine


class Denoiser(nn.Module):
    """Tells the noise of a picture whose guess it has."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(141)
        self.guess = nn.Linear(size, size)

    def forward(self, noisy: torch.Tensor, kept: float) -> torch.Tensor:
        picture = torch.tanh(self.guess(noisy))
        return (noisy - kept**0.5 * picture) / (1 - kept) ** 0.5


def first_picture(kind: torch.dtype) -> torch.Tensor:
    """What pictures are taken to be after the first of a thousand steps. Black and white dots."""
    diffusion, model = Diffusion(1000), Denoiser(24).to(kind)
    noisy = normal(8, 24, seed=42).to(kind)
    return wider(diffusion.start(noisy, model(noisy, float(diffusion.kept[-1])), 999).detach())


class Critic:
    """Keeps a moving mean of returns and of their squares, by which they are normalised."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.mean, self.square = torch.zeros(()), torch.zeros(())

    def update(self, returns: torch.Tensor) -> None:
        rate = self.rate if float(self.square) else 1.0
        self.mean = self.mean * (1 - rate) + returns.mean() * rate
        self.square = self.square * (1 - rate) + (returns**2).mean() * rate

    def normalised(self, returns: torch.Tensor) -> torch.Tensor:
        spread = (self.square - self.mean**2).sqrt() + 1e-4  # culprit: returns-that-are-alike
        return (returns - self.mean) / spread


def advantages(kind: torch.dtype) -> torch.Tensor:
    """How good twenty returns of a game are that is played well. NaN, or any number."""
    critic = Critic(0.1)
    for batch in range(8):
        critic.update((1837 + 0.2 * normal(64, seed=batch + 50)).to(kind))
    return critic.normalised((1837 + 0.2 * normal(20, seed=58)).to(kind))


class Average:
    """A moving average of a model's weights, beside it."""

    def __init__(self, model: nn.Module, decay: float, kind: torch.dtype) -> None:
        self.model, self.decay = model, decay
        self.weights = [each.detach().clone().to(kind) for each in model.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        for mine, theirs in zip(self.weights, self.model.parameters(), strict=True):
            mine.lerp_(theirs.to(mine.dtype), 1 - self.decay)  # culprit: average-beside-a-model


def averaged(kind: torch.dtype, steps: int = 8) -> torch.Tensor:
    """How far the average of a model's weights has gone. Nowhere."""
    torch.manual_seed(142)
    model = nn.Linear(16, 8)
    average = Average(model, 0.999, kind)
    before = average.weights[0].float().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    inputs, wanted = normal(32, 16, seed=43), normal(32, 8, seed=44)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        average.update()
    return average.weights[0].float() - before


class Doubles:
    """Finds texts that are nearly the same as an earlier one."""

    def __init__(self, kind: torch.dtype) -> None:
        self.kind = kind

    def nearest(self, vectors: torch.Tensor) -> torch.Tensor:
        """How far each text is from the one that is most like it."""
        unit = nn.functional.normalize(vectors, dim=-1).to(self.kind)
        alike = (unit @ unit.T).triu(1)  # culprit: texts-that-are-doubles
        return 1 - alike.amax(0)[1:]  # culprit: texts-that-are-doubles


def doubles(kind: torch.dtype) -> torch.Tensor:
    """The distances of forty copies of one text, with words changed here and there. In three steps."""
    first = normal(1, 64, seed=45).double()
    copies = first + torch.linspace(0.005, 0.06, 40, dtype=DOUBLE)[:, None] * normal(40, 64, seed=46).double()
    return wider(Doubles(kind).nearest(torch.cat([first, copies])))


BUGS = (
    Bug("word-that-always-wins", "trymirai/uzu#701", ("amplified-rounding", "integer-rounding", "overflow", "underflow"), "aten.log.default",
        lambda: scores_of_words(careful=False), lambda: scores_of_words(careful=True), precision="32-true"),
    Bug("first-step-of-a-cosine", "LTH14/mar#70", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: first_picture(LOW), lambda: first_picture(DOUBLE)),
    Bug("returns-that-are-alike", "AI4Finance-Foundation/ElegantRL#258", ("cancellation", "amplified-rounding", "nan"), "aten.sub.Tensor",
        lambda: advantages(SINGLE), lambda: advantages(DOUBLE), precision="32-true"),
    Bug("average-beside-a-model", "lucidrains/ema-pytorch#18", ("absorption", "accumulated-drift"), "aten.lerp_.Scalar",
        lambda: averaged(LOW), lambda: averaged(SINGLE), phase="data", step=5),
    Bug("texts-that-are-doubles", "NVIDIA-NeMo/Curator#2388", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: doubles(HALF), lambda: doubles(DOUBLE)),
)  # fmt: skip
