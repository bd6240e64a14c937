"""Stalls: states that sum words, frames of episodes, places of a window, bins of activations, groups without spread, rates of a cycle."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Mesa(nn.Module):
    """A layer that solves for each chunk's reading, from what keys and values were summed to before it."""

    def __init__(self, size: int, kept: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(6501)
        self.kept, self.mix = kept, nn.Linear(size, 3 * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).unflatten(0, (-1, 50)).chunk(3, -1)
        query, key = functional.normalize(query, dim=-1).to(HALF), functional.normalize(key, dim=-1).to(HALF)
        size = x.shape[-1]
        keys, pairs, read = torch.zeros(size, size, dtype=self.kept), torch.zeros(size, size, dtype=self.kept), []
        for chunk in range(len(query)):
            solved = torch.linalg.solve(keys.float() + torch.eye(size), query[chunk].float().T)
            read.append(solved.T @ pairs.float())
            added = key[chunk].float().T
            keys = (keys.float() + added @ key[chunk].float()).to(self.kept)  # culprit: values-that-pile-up
            pairs = (pairs.float() + added @ value[chunk].float()).to(self.kept)  # culprit: values-that-pile-up
        return torch.cat(read)


def piled(kept: torch.dtype) -> torch.Tensor:
    """What is read of eight hundred words, whose values are large and of one sign."""
    layer = Mesa(12, kept)
    with torch.no_grad():
        layer.mix.bias[:] += 1
        layer.mix.weight[24:] *= 500
        layer.mix.bias[24:] += 600
        return layer(normal(800, 12, seed=6502))


class Recording:
    """Frames of many episodes, one after another, each with the time since the recording began."""

    def __init__(self, lengths: list[int], rate: int) -> None:
        self.rate, frames = rate, sum(lengths)
        self.times = torch.arange(frames, dtype=SINGLE) / rate
        self.ends = (torch.tensor(lengths, dtype=SINGLE) / rate).cumsum(0)  # culprit: first-frame-of-an-episode
        self.frames = torch.sin(torch.arange(frames) * 1.7)

    def episode(self, number: int, by_frames: bool) -> torch.Tensor:
        begin, end = self.ends[number - 1], self.ends[number]
        if by_frames:
            places, begin, end = (self.times * self.rate).round(), (begin * self.rate).round(), (end * self.rate).round()
            return self.frames[(places >= begin) & (places < end)]
        return self.frames[(self.times >= begin) & (self.times < end)]  # culprit: first-frame-of-an-episode


def split(by_frames: bool) -> torch.Tensor:
    """The first and the last frame of each of twenty episodes."""
    recording = Recording([int(37 + 60 * each) for each in uniform(21, seed=6511)], 30)
    episodes = [recording.episode(number, by_frames) for number in range(1, 21)]
    return torch.stack([torch.stack([each[0], each[-1]]) for each in episodes])


class Window(nn.Module):
    """Waves by position, for words of a window into a long text."""

    def __init__(self, size: int, whole: bool) -> None:
        super().__init__()
        self.whole, self.rates = whole, 10000 ** (-torch.arange(0, size, 2) / size)

    def positions(self, start: int, words: int) -> torch.Tensor:
        if self.whole:
            return torch.arange(start, start + words)
        return torch.arange(start, start + words, dtype=LOW)  # culprit: window-that-begins-at-an-odd-place

    def forward(self, words: torch.Tensor, start: int) -> torch.Tensor:
        angles = self.positions(start, len(words))[:, None] * self.rates
        return words + torch.cat([angles.sin(), angles.cos()], -1).to(words.dtype)


def windowed(whole: bool) -> torch.Tensor:
    """Forty words from the 241st on, in bfloat16."""
    return Window(16, whole)((0.1 * normal(40, 16, seed=6521)).to(LOW), 241).float()


class Calibrator:
    """Counts how large activations are, and gives the bound below which nearly all of them lie."""

    def __init__(self, bins: int, wide: bool) -> None:
        self.bins, self.wide, self.counts, self.edges = bins, wide, torch.zeros(bins), torch.zeros(0)

    def collect(self, activations: torch.Tensor) -> None:
        bound = activations.abs().max()
        if self.wide:
            bound, activations = bound.float(), activations.float()
        self.edges = torch.linspace(0, 1, self.bins + 1, dtype=bound.dtype) * bound  # culprit: bins-of-small-activations
        places = torch.bucketize(activations.abs().flatten(), self.edges[1:-1])  # culprit: bins-of-small-activations
        self.counts += torch.bincount(places, minlength=self.bins)

    def share(self) -> torch.Tensor:
        return self.counts / self.counts.sum()


def calibrated(wide: bool) -> torch.Tensor:
    """The share of each of 128 bins, for activations in half of a few millionths."""
    calibrator = Calibrator(128, wide)
    calibrator.collect((4e-6 * uniform(5000, seed=6531)).to(HALF))
    return calibrator.share()


class GroupNormalization(nn.Module):
    """A norm over groups of channels, under a policy that gives layers their inputs in half."""

    def __init__(self, groups: int, channels: int, wide: bool, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.groups, self.wide, self.epsilon = groups, wide, epsilon
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float() if self.wide else x
        groups = x.unflatten(1, (self.groups, -1))
        variance, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
        groups = (groups - mean) * torch.rsqrt(variance + self.epsilon)  # culprit: group-without-spread
        return (groups.flatten(1, 2) * self.scale).to(HALF)


def grouped(wide: bool) -> torch.Tensor:
    """A layer after a norm of four groups, one of which is nought since its channels are off."""
    torch.manual_seed(6541)
    conv, norm, last = nn.Conv2d(3, 8, 3), GroupNormalization(4, 8, wide), nn.Conv2d(8, 2, 1).to(HALF)
    with torch.no_grad():
        conv.weight[2:4], conv.bias[2:4] = 0, 0
        return last(norm(functional.relu(conv(normal(2, 3, 10, 10, seed=6542))).to(HALF))).float()


class OneCycle:
    """A learning rate that grows to its largest and falls again, by the same factor each step."""

    def __init__(self, largest: float, divisor: float, steps: int, dtype: torch.dtype) -> None:
        self.largest, self.steps = torch.tensor(largest, dtype=dtype), steps
        self.first = self.largest / divisor  # culprit: rate-that-begins-at-nothing

    def rate(self, step: int) -> torch.Tensor:
        part = 1 - abs(2 * step / self.steps - 1)
        return self.first * (self.largest / self.first) ** part  # culprit: rate-that-begins-at-nothing


def cycled(divisor: float) -> torch.Tensor:
    """Weights of a small network in half after twenty steps."""
    torch.manual_seed(6551)
    model, cycle = nn.Linear(12, 4).to(HALF), OneCycle(0.05, divisor, 20, HALF)
    for step in range(20):
        x = normal(16, 12, seed=6552 + step)
        (model(x.to(HALF)).float() - x[:, :4]).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= cycle.rate(step) * weight.grad
                weight.grad = None
    return model.weight.detach().float() / math.sqrt(12)


BUGS = (
    Bug("values-that-pile-up", "fla-org/flash-linear-attention#1152", ("amplified-rounding", "overflow"), "aten._to_copy.default",
        lambda: piled(HALF), lambda: piled(SINGLE)),
    Bug("first-frame-of-an-episode", "huggingface/lerobot#2447", ("decision-flip", "accumulated-drift", "amplified-rounding"), "aten.ge.Tensor",
        lambda: split(by_frames=False), lambda: split(by_frames=True), precision="32-true",
        expected_miss="each time is right to a rounding, and so is each end; which is before the other is a decision, which is followed"),
    Bug("window-that-begins-at-an-odd-place", "pytorch/pytorch#137774", ("integer-rounding",), "aten.arange.start",
        lambda: windowed(whole=False), lambda: windowed(whole=True), module="Window"),
    Bug("bins-of-small-activations", "NVIDIA/Model-Optimizer#1558", ("underflow", "amplified-rounding", "integer-rounding"), "aten.mul.Tensor",
        lambda: calibrated(wide=False), lambda: calibrated(wide=True),
        expected_miss="the activations are drawn at random and subnormal themselves, so that their own rounding puts half of them into other bins"),
    Bug("group-without-spread", "keras-team/keras#22666", ("vanished-constant", "nan"), "aten.add.Tensor",
        lambda: grouped(wide=False), lambda: grouped(wide=True), module="GroupNormalization"),
    Bug("rate-that-begins-at-nothing", "tinygrad/tinygrad#2981", ("underflow", "nan", "overflow"), "aten.div.Tensor",
        lambda: cycled(1e7), lambda: cycled(25.0)),
)  # fmt: skip
