"""Weights over their largest stretch, softmaxes with a one, windows by positions, keys of eight bits, and turns that grow with the place."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class SpectralLinear(nn.Module):
    """A layer over its largest singular value, by a power iteration."""

    def __init__(self, size: float, dtype: torch.dtype, widened: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter((size * normal(24, 32)).to(LOW).to(dtype))
        self.register_buffer("u", self.unit(wider(normal(24, seed=1))).to(LOW).to(dtype))
        self.widened = widened

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().sum().sqrt() + 1e-12)  # culprit: stretch-of-small-weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = wider(self.weight) if self.widened else self.weight
        with torch.no_grad():
            u = self.u.to(weight.dtype)
            for _ in range(4):
                v = self.unit(weight.T @ u)
                u = self.unit(weight @ v)
        return functional.linear(x, (weight / (u @ (weight @ v))).to(x.dtype))


def stretched(dtype: torch.dtype, widened: bool, size: float = 8e-5) -> torch.Tensor:
    """What a layer gives whose weights began near 8e-5; squares of what it makes of a unit vector are a step of half or two. Off by 7 %."""
    return wider(SpectralLinear(size, dtype, widened)(normal(16, 32, seed=2).to(LOW).to(dtype)))


class QuietAttention(nn.Module):
    """Attention that may look at nothing: its softmax has a one below the line."""

    def __init__(self, width: int, shifted: bool) -> None:
        super().__init__()
        self.width, self.shifted = width, shifted

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        if self.shifted:
            highest = scores.amax(-1, keepdim=True).clamp(min=0)
            powers = torch.exp(scores - highest)
            return powers / (torch.exp(-highest) + powers.sum(-1, keepdim=True))
        powers = torch.exp(scores)
        return powers / (1 + powers.sum(-1, keepdim=True))  # culprit: softmax-with-a-one

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.softmax(q @ k.mT / self.width**0.5) @ v


def quiet(dtype: torch.dtype, shifted: bool, level: float = 1.3) -> torch.Tensor:
    """Attention in half with scores near seven: no power overflows, but sums of 128 of them do, and those rows are nought. Off by 100 %."""
    q, k, v = (each.to(LOW).to(dtype) for each in (level + normal(20, 16) / 3, level + normal(128, 16, seed=1) / 3, normal(128, 16, seed=2)))
    return wider(QuietAttention(16, shifted)(q, k, v))


class WindowAttention(nn.Module):
    """Each token reads itself and the few before it."""

    def __init__(self, window: int, counted: torch.dtype | None) -> None:
        super().__init__()
        self.window, self.counted = window, counted

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        place = torch.arange(len(q), dtype=self.counted or q.dtype)  # culprit: window-of-places
        away = place[:, None] - place
        mask = torch.where((away >= 0) & (away < self.window), 0.0, -torch.inf)
        return torch.softmax(wider(q @ k.T) / q.shape[1] ** 0.5 + mask, -1).to(v.dtype) @ v


def windowed(dtype: torch.dtype, counted: torch.dtype | None, length: int = 640) -> torch.Tensor:
    """What 640 tokens read in windows of six; places above 256 are even in bfloat16, and above 512 multiples of four. Off by 99 %."""
    q, k, v = (normal(length, 16, seed=seed).to(LOW).to(dtype) for seed in range(3))
    return wider(WindowAttention(6, counted)(q, k, v))


class EightBitCache:
    """Keys and values of a conversation, in eight bits."""

    def __init__(self, kept: torch.dtype, scaled: bool) -> None:
        self.kept, self.scaled = kept, scaled
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, x: torch.Tensor) -> None:
        scale = x.abs().amax(0, keepdim=True) / 256 if self.scaled else torch.ones_like(x[:1])
        self.parts.append(((x / scale).to(self.kept), scale))  # culprit: keys-of-eight-bits

    def read(self) -> torch.Tensor:
        return torch.cat([part.to(scale.dtype) * scale for part, scale in self.parts])


def conversation(kept: torch.dtype, scaled: bool, outlier: float = 400.0) -> torch.Tensor:
    """What a query reads of three turns, whose keys have a channel with numbers up to 1600; float8_e4m3fn ends at 448. Off by 75 %."""
    keys, values = EightBitCache(kept, scaled), EightBitCache(kept, scaled)
    for seed in range(3):
        key = normal(12, 16, seed=seed)
        key[:, 3] = outlier * (1 + 3 * uniform(12, seed=seed))
        keys.add(key.double() if kept == torch.float64 else key)
        values.add(normal(12, 16, seed=seed + 5).to(keys.parts[0][1].dtype))
    k = keys.read()
    query = normal(8, 16, seed=20).to(k.dtype)
    query[:, 3] = 0.01 * query[:, 3]
    return torch.softmax(query @ k.T / 4, -1) @ values.read()


class ExtendedRotary(nn.Module):
    """Rotary turns whose size falls with the place for queries, and grows with it for keys (xPos)."""

    def __init__(self, width: int, centred: bool) -> None:
        super().__init__()
        self.centred = centred
        steps = torch.arange(0, width, 2, dtype=torch.float64)
        self.register_buffer("base", (steps / width + 0.4) / 1.4)
        self.register_buffer("frequency", 10000 ** (-steps / width))

    def turned(self, x: torch.Tensor, place: torch.Tensor, sign: int) -> torch.Tensor:
        angle = place.double()[:, None] * self.frequency
        power = place - place[len(place) // 2] if self.centred else place
        size = self.base.to(x.dtype) ** (sign * power.to(x.dtype)[:, None] / 512)  # culprit: turns-that-grow
        cos, sin = (angle.cos().to(x.dtype) * size, angle.sin().to(x.dtype) * size)
        even, odd = x[:, ::2], x[:, 1::2]
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)  # culprit: turns-that-grow

    def forward(self, q: torch.Tensor, k: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.turned(q, place, 1) @ self.turned(k, place, -1).T / q.shape[1] ** 0.5


def extended(dtype: torch.dtype, centred: bool, first: int = 4400) -> torch.Tensor:
    """Scores in half of thirty tokens at some places beyond 4400, where sizes of keys are up to 5e4, and many keys are infinite."""
    q, k = (normal(30, 16, seed=seed).to(LOW).to(dtype) for seed in range(2))
    return wider(ExtendedRotary(16, centred)(q, k, first + torch.arange(30)))


BUGS = (
    Bug("stretch-of-small-weights", "", ("underflow",), "aten.pow.Tensor_Scalar", lambda: stretched(HALF, False), lambda: stretched(HALF, True),
        module="SpectralLinear"),
    Bug("softmax-with-a-one", "", ("overflow",), "aten.sum.dim_IntList", lambda: quiet(HALF, False), lambda: quiet(HALF, True),
        module="QuietAttention"),
    Bug("window-of-places", "", ("integer-rounding", "decision-flip"), "aten.arange.default", lambda: windowed(LOW, None),
        lambda: windowed(LOW, torch.int64), module="WindowAttention"),
    Bug("keys-of-eight-bits", "", ("clipping", "overflow"), "",
        lambda: conversation(torch.float8_e4m3fn, False), lambda: conversation(torch.float8_e4m3fn, True),
        note="a number beyond the format becomes its largest, which is no kernel that accumulates low"),
    Bug("turns-that-grow", "", ("integer-rounding", "overflow", "underflow", "amplified-rounding"), "aten._to_copy.default",
        lambda: extended(HALF, False), lambda: extended(HALF, True), module="ExtendedRotary"),
)  # fmt: skip
