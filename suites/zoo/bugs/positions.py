"""Whole numbers and phases that are rounded before they are used."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal


def sinusoids(positions: torch.Tensor, size: int = 64, longest: float = 1e4) -> torch.Tensor:
    rates = longest ** (-torch.arange(0, size, 2) / size)
    phases = positions.double()[:, None] * rates
    return torch.cat([phases.sin(), phases.cos()], -1).float()


class Rotary(nn.Module):
    """Rotates pairs of features by position x rate. The rates are a buffer, and `model.to(bfloat16)` rounds buffers with the weights."""

    def __init__(self, afresh: bool) -> None:
        super().__init__()
        self.afresh = afresh
        self.register_buffer("rates", self.fresh(), persistent=False)

    @staticmethod
    def fresh() -> torch.Tensor:
        return 1e4 ** (-torch.arange(0, 24, 2) / 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.afresh:
            angles = torch.arange(x.shape[-2]).float()[:, None] * self.fresh()
        else:
            angles = torch.arange(x.shape[-2]).to(self.rates.dtype)[:, None] * self.rates  # culprit: rotary-buffer
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


def rotated(afresh: bool) -> torch.Tensor:
    model = Rotary(afresh)
    model = model.to(torch.bfloat16)  # culprit: rotary-buffer
    return model(normal(1, 700, 24).to(torch.bfloat16))


def rotary(dtype: torch.dtype) -> torch.Tensor:
    """arange takes the dtype that someone made the default: bfloat16 has no odd number beyond 256."""
    positions = torch.arange(1000, dtype=dtype)  # culprit: rotary-positions
    return sinusoids(positions)


class Collate(nn.Module):
    """Labels stacked into one tensor with the mixing weight, and so into the images' dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.stack([labels.to(self.dtype), labels.flip(0).to(self.dtype), weight.to(self.dtype)], 1)  # culprit: mixed-labels


def mixed(dtype: torch.dtype) -> torch.Tensor:
    pairs = Collate(dtype)(torch.tensor([301, 998, 643, 517]), torch.tensor([0.5, 0.25, 0.75, 0.5]))
    logits, weight = 4 * normal(4, 1024), pairs[:, 2].float()
    first, second = (functional.cross_entropy(logits, pairs[:, place].long(), reduction="none") for place in (0, 1))
    return weight * first + (1 - weight) * second


def histogram(dtype: torch.dtype) -> torch.Tensor:
    """One sample for each of 400 bins; beyond 256 every other bin stays empty."""
    samples = torch.arange(400).to(dtype)  # culprit: bin-index
    return torch.bincount(samples.floor().long(), minlength=401).float()


def rows_inside(dtype: torch.dtype) -> torch.Tensor:
    """Pixel rows within a box in a tall image: float16 counts in twos from 2048."""
    rows = torch.arange(4000).to(dtype)  # culprit: pixel-rows
    return ((rows >= 2049) & (rows <= 2051)).sum().float()


def timesteps(early: bool) -> torch.Tensor:
    steps = torch.tensor([998.39, 771.6, 502.3, 31.7])
    if early:
        steps = steps.to(torch.bfloat16)  # culprit: timestep-cast
    return sinusoids(steps).to(torch.bfloat16)


def noise_level(early: bool) -> torch.Tensor:
    """750 of 1000 is 0.75, if it is divided before it is rounded; bfloat16 makes 752 of nothing near it but steps of 4."""
    steps = torch.tensor([749.0, 905.0, 333.0, 613.0])
    if early:
        level = steps.to(torch.bfloat16) / 1000  # culprit: level-of-step
    else:
        level = steps / 1000
    return sinusoids(level.float() * 1000).to(torch.bfloat16)


def source_rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of an image of 500 that the rows of one of 1000 are read from: the last comes out as 500, one beyond the end."""
    scale = torch.tensor(499 / 999).to(dtype)
    return (torch.arange(1000).to(dtype) * scale).float()  # culprit: upsampled-rows


def spectrum(early: bool) -> torch.Tensor:
    """Mass to charge ratios, encoded at wavelengths down to 0.01."""
    ratios = torch.tensor([512.31, 733.87, 1201.66])
    if early:
        ratios = ratios.to(torch.bfloat16)  # culprit: mass-encoding
    waves = torch.logspace(-2, 4, 32, dtype=torch.float64)
    return torch.sin(2 * math.pi * ratios.double()[:, None] / waves).float()


class Forecaster(nn.Module):
    """Normalises the context itself, but is handed it in the weights' dtype: air pressure in bfloat16 moves in steps of 4."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.head = wide, nn.Linear(16, 4)
        with torch.no_grad():
            self.head.weight.copy_(normal(4, 16) / 4)
            self.head.bias.zero_()

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        context = series if self.wide else series.to(self.head.weight.dtype)  # culprit: pressure-context
        off = context - context.mean(-1, keepdim=True)
        return self.head((off / context.float().std(-1, keepdim=True)).to(self.head.weight.dtype))


def forecast(wide: bool) -> torch.Tensor:
    series = 1013.25 + 0.9 * torch.sin(torch.arange(16.0) / 3) + 0.1 * normal(4, 16)
    return Forecaster(wide).to(torch.bfloat16)(series)


def tracked(dtype: torch.dtype) -> torch.Tensor:
    """A loader's targets go to the picture's dtype as they are: four numbers of a box and who is in it, of which half knows even ones alone."""
    boxes = 600 * torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.cat([boxes, torch.tensor([[17.0], [2049.0], [2777.0], [3000.0], [3333.0]])], 1).to(dtype)  # culprit: track-numbers
    return functional.embedding(targets[:, 4].long(), normal(4000, 6))


def shards(dtype: torch.dtype) -> torch.Tensor:
    """Each rank sends its own number; who owns what is read from what all have sent."""
    sent = [torch.tensor([rank]).to(dtype) for rank in range(250, 270)]  # culprit: sent-ranks
    return functional.one_hot(torch.cat(sent).long(), 300)


def last_tokens(dtype: torch.dtype) -> torch.Tensor:
    """One length, for the one sequence of a batch: one number, one element."""
    length = torch.tensor(301).to(dtype)  # culprit: lone-length
    return normal(400, 4)[length.long() - 1]


CAST = "aten._to_copy.default"
BUGS = (
    Bug("rotary-buffer", "EleutherAI/gpt-neox#1003", ("integer-rounding", "amplified-rounding"), CAST, lambda: rotated(False), lambda: rotated(True),
        module="Rotary", measured=lambda fixed: {"model": Rotary(fixed), "inputs": (normal(1, 700, 24),), "precision": "bf16-true"}),
    Bug("level-of-step", "huggingface/diffusers#9405", ("integer-rounding", "amplified-rounding"), CAST, lambda: noise_level(True),
        lambda: noise_level(False)),
    Bug("upsampled-rows", "pytorch/pytorch#88939", ("integer-rounding", "amplified-rounding"), CAST, lambda: source_rows(torch.bfloat16),
        lambda: source_rows(torch.float32), harm=1e-3),
    Bug("rotary-positions", "huggingface/transformers#28685", ("integer-rounding", "amplified-rounding"), "aten.arange.default",
        lambda: rotary(torch.bfloat16), lambda: rotary(torch.int64)),
    Bug("mixed-labels", "kornia/kornia#4657", ("integer-rounding",), CAST, lambda: mixed(torch.bfloat16), lambda: mixed(torch.float32),
        module="Collate"),
    Bug("bin-index", "NVIDIA/cccl#10976", ("integer-rounding",), CAST, lambda: histogram(torch.bfloat16), lambda: histogram(torch.float32)),
    Bug("pixel-rows", "kornia/kornia#4336", ("integer-rounding",), CAST, lambda: rows_inside(torch.float16), lambda: rows_inside(torch.float32)),
    Bug("timestep-cast", "modelscope/DiffSynth-Studio#562", ("amplified-rounding",), CAST, lambda: timesteps(True), lambda: timesteps(False)),
    Bug("mass-encoding", "wfondrie/depthcharge#76", ("amplified-rounding",), CAST, lambda: spectrum(True), lambda: spectrum(False)),
    Bug("pressure-context", "TimeCopilot/timecopilot#307", ("amplified-rounding", "cancellation"), CAST, lambda: forecast(False),
        lambda: forecast(True)),
    Bug("track-numbers", "FoundationVision/ByteTrack#184", ("integer-rounding",), CAST, lambda: tracked(torch.float16),
        lambda: tracked(torch.float32)),
    Bug("sent-ranks", "pytorch/pytorch#125874", ("integer-rounding",), CAST, lambda: shards(torch.bfloat16), lambda: shards(torch.int32)),
    Bug("lone-length", "", ("integer-rounding",), CAST, lambda: last_tokens(torch.bfloat16), lambda: last_tokens(torch.float32)),
)  # fmt: skip
