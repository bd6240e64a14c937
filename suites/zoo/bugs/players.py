"""Players: faders that run for days, voices that go on, words of a beam, channels that inhibit each other, forecasts, codes of pictures."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Fader:
    """Takes a volume from one number to another between two moments of a player's clock."""

    def __init__(self, start: torch.Tensor, seconds: float) -> None:
        self.start, self.end = start, start + seconds  # culprit: fade-after-days
        self.seconds = seconds

    def volume(self, now: torch.Tensor) -> torch.Tensor:
        share = (now - self.start) / self.seconds  # culprit: fade-after-days
        return torch.where(now < self.end, 1 - share, 0.0)


def faded(kind: torch.dtype, running: float = 262_200.37, length: float = 0.2) -> torch.Tensor:
    """The volume at twenty moments of a fade of a fifth of a second, after three days. It falls in steps."""
    clock = torch.tensor(running, dtype=kind)  # culprit: fade-after-days
    fader, heard = Fader(clock, length), []
    for _ in range(20):
        clock = clock + 0.01  # culprit: fade-after-days
        heard.append(fader.volume(clock))
    return torch.stack(heard)


class Harmonics:
    """A voice of harmonics of one pitch, whose phase goes on from block to block."""

    def __init__(self, played: float, kind: torch.dtype) -> None:
        self.phase = torch.tensor(played, dtype=kind)  # culprit: voice-that-goes-sour
        self.many = torch.arange(1, 9, dtype=kind)

    def block(self, pitch: torch.Tensor, rate: int = 48_000, size: int = 64) -> torch.Tensor:
        step = 2 * math.pi * pitch / rate
        phase = self.phase + step * torch.arange(size, dtype=step.dtype)  # culprit: voice-that-goes-sour
        self.phase = self.phase + size * step  # culprit: voice-that-goes-sour
        return (torch.sin(self.many[:, None] * phase) / self.many[:, None]).sum(0)


def sung(kind: torch.dtype, minutes: float = 30.0, blocks: int = 12) -> torch.Tensor:
    """The last blocks of half an hour of a voice. It is out of tune."""
    voice = Harmonics(2 * math.pi * 220 * 60 * minutes, kind)
    pitches = 220 + 3 * torch.sin(torch.arange(blocks, dtype=kind))
    return torch.cat([voice.block(pitch) for pitch in pitches])


class Beam:
    """Texts that are read so far, each with the chance that it is what was written."""

    def __init__(self, width: int, kind: torch.dtype) -> None:
        self.width = width
        self.chance, self.last = torch.ones(1, dtype=kind), torch.zeros(1, dtype=torch.long)

    def step(self, frame: torch.Tensor, follows: torch.Tensor) -> None:
        chances = self.chance[:, None] * frame * follows[self.last]  # culprit: words-of-a-beam
        best = chances.flatten().topk(min(self.width, chances.numel()))
        self.chance, self.last = best.values, best.indices % frame.shape[0]


def read(kind: torch.dtype, frames: int = 40, letters: int = 30) -> torch.Tensor:
    """How likely the best four readings of a line of handwriting are beside each other. None is likely at all."""
    beam = Beam(4, kind)
    frame = torch.softmax(normal(frames, letters, seed=11), -1).to(kind)
    follows = torch.softmax(2 * normal(letters, letters, seed=12), -1).to(kind)
    for each in frame:
        beam.step(each, follows)
    return beam.chance / beam.chance.sum()  # culprit: words-of-a-beam


class Inhibition(nn.Module):
    """Divides each channel by what it and its neighbours have."""

    def __init__(self, size: int, strength: float, power: float) -> None:
        super().__init__()
        self.size, self.strength, self.power = size, strength, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = nn.functional.pad((x * x)[:, None], (0, 0, 0, 0, self.size // 2, self.size // 2))  # culprit: channels-that-inhibit
        around = sum(squares[:, 0, each : each + x.shape[1]] for each in range(self.size))  # culprit: channels-that-inhibit
        return x * (1 + self.strength / self.size * around).pow(-self.power)


def inhibited(kind: torch.dtype) -> torch.Tensor:
    """What two blocks of an old network for pictures make of bright ones. Bright places are black."""
    torch.manual_seed(98)
    layers = nn.Sequential(nn.Conv2d(3, 12, 5), nn.ReLU(), Inhibition(5, 1e-4, 0.75), nn.MaxPool2d(2), nn.Conv2d(12, 8, 3), nn.ReLU()).to(kind)
    return wider(layers((700 * uniform(2, 3, 16, 16, seed=13)).to(kind)).detach())


class Forecaster(nn.Module):
    """Tells how a series goes on, from the series itself as deviations from its mean."""

    def __init__(self, seen: int, ahead: int) -> None:
        super().__init__()
        torch.manual_seed(99)
        self.body, self.head = nn.Linear(seen, 32), nn.Linear(32, ahead)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        mean, spread = series.mean(-1, keepdim=True), series.std(-1, keepdim=True)
        scaled = ((series - mean) / spread).to(self.body.weight.dtype)  # culprit: forecast-by-default
        return wider(self.head(torch.relu(self.body(scaled)))) * wider(spread) + wider(mean)


def forecast(low: bool) -> torch.Tensor:
    """What six series do in the next four hours, as changes from their last hours' mean. Off by half."""
    hours = torch.arange(48)
    series = 4000 + 25 * torch.sin(hours / 24 * 2 * math.pi + 6 * uniform(6, 1, seed=14)) + 4 * normal(6, 48, seed=15)
    model = Forecaster(48, 4).to(LOW)
    given = series.to(LOW) if low else series  # culprit: forecast-by-default
    return model(given).detach() - series.mean(-1, keepdim=True)


class Codebook(nn.Module):
    """Replaces each vector by the nearest of its codes."""

    def __init__(self, codes: int, size: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(3 + 0.3 * normal(codes, size, seed=16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = self.codes.to(x.dtype)
        apart = x.square().sum(-1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(-1)  # culprit: codes-of-a-game
        place = apart.argmin(-1)  # culprit: codes-of-a-game
        return self.codes[place], place


def coded(kind: torch.dtype) -> torch.Tensor:
    """What is left of patches of a game's pictures after they were replaced by codes. A third are replaced by others."""
    book = Codebook(64, 16)
    patches = book.codes.detach()[torch.arange(200) % 64] + 0.1 * normal(200, 16, seed=17)
    return book(patches.to(kind))[0].detach() - patches


BUGS = (
    Bug("fade-after-days", "jarikomppa/soloud#49", ("amplified-rounding", "cancellation", "absorption"), "aten._to_copy.default",
        lambda: faded(SINGLE), lambda: faded(DOUBLE), precision="32-true"),
    Bug("voice-that-goes-sour", "magenta/ddsp-vst#1", ("amplified-rounding", "accumulated-drift", "absorption"), "aten._to_copy.default",
        lambda: sung(SINGLE), lambda: sung(DOUBLE), precision="32-true"),
    Bug("words-of-a-beam", "githubharald/CTCWordBeamSearch#23", ("underflow", "nan"), "aten.mul.Tensor",
        lambda: read(SINGLE), lambda: read(DOUBLE), precision="32-true"),
    Bug("channels-that-inhibit", "NVIDIA/caffe#135", ("overflow",), "aten.mul.Tensor", lambda: inhibited(HALF), lambda: inhibited(SINGLE),
        module="2"),
    Bug("forecast-by-default", "zqiao11/TIME#2", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: forecast(True), lambda: forecast(False)),
    Bug("codes-of-a-game", "p-doom/jasmine#166", ("cancellation", "decision-flip"), "aten.add.Tensor",
        lambda: coded(LOW), lambda: coded(SINGLE), module="Codebook"),
)  # fmt: skip
