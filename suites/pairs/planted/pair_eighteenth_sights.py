"""The eighteenth batch, third part: pictures with channels last, spectrograms, filters of speech.

A fault is in the second layer alone, but for patches and spectrograms, which come first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_eighteenth import LAST, W, entered
from pair_fourteenth_scans import Stream, numbers
from torch import nn

SIDE = 6


class Picture(nn.Module):
    """Patches, layers in a residual stream, a norm over channels, a head for each picture. Channels are the second axis."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.patches, self.layers, self.norm, self.head = nn.Conv2d(3, W, 2, 2), nn.ModuleList(layers), nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x.mean((2, 3))))


class Last(Picture):
    """Channels are the last axis. Patches are rows of a product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        x = F.linear(patches, self.patches.weight.flatten(1), self.patches.bias)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x.mean((1, 2))))


PICTURES = numbers(2, 3, 2 * SIDE, 2 * SIDE)


class Next(nn.Module):
    """Filters of each channel, a norm, a branch, a scale of channels."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.deep, self.norm, self.up, self.down = nn.Conv2d(W, W, 3, padding=1, groups=W), nn.LayerNorm(W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.gamma = nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return (self.gamma * self.down(F.gelu(self.up(x)))).permute(0, 3, 1, 2)


class NextLast(Next):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, taps = self.ways, self.deep.weight[:, 0].permute(1, 2, 0)
        taps = taps.transpose(0, 1) if ways.get("turned") else taps.flip(0, 1) if ways.get("flipped") else taps
        wide = F.pad(x, (0, 0, 1, 1, 1, 1))
        x = sum(wide[:, i : i + x.shape[1], j : j + x.shape[2]] * taps[i, j] for i in range(3) for j in range(3)) + self.deep.bias  # type: ignore[assignment]
        axis = 1 if ways.get("axis") else -1
        middle = x - x.mean(axis, keepdim=True)
        x = middle * (middle.square().mean(axis, keepdim=True) + 1e-5).rsqrt() * self.norm.weight + self.norm.bias
        made = self.down(F.gelu(self.up(x)))
        return made if ways.get("gamma") else self.gamma * made


entered("filters with channels last", "sums of taps", Next, NextLast, {
    "rows and columns of taps exchanged": ({"turned": True}, ""), "taps turned round": ({"flipped": True}, ""),
    "the norm over rows of the picture": ({"axis": True}, ""), "channels not scaled": ({"gamma": True}, ""),
}, stream=Picture, port=Last, inputs=PICTURES)  # fmt: skip


class Mobile(nn.Module):
    """A wide filter for each channel with a norm of the training data, a gate for each channel, an act by parts of lines."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.up, self.deep = nn.Conv2d(W, 2 * W, 1), nn.Conv2d(2 * W, 2 * W, 3, padding=1, groups=2 * W, bias=False)
        self.norm, self.less, self.more = nn.BatchNorm2d(2 * W, 1e-3), nn.Conv2d(2 * W, 8, 1), nn.Conv2d(8, 2 * W, 1)
        self.down = nn.Conv2d(2 * W, W, 1)
        with torch.no_grad():
            self.norm.running_mean.copy_(numbers(2 * W) / 3)  # type: ignore[union-attr, operator]
            self.norm.running_var.copy_(numbers(2 * W).abs() / 9 + 0.05)  # type: ignore[union-attr, operator]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.deep(F.hardswish(self.up(x)))))
        return self.down(x * F.hardsigmoid(self.more(F.relu(self.less(x.mean((2, 3), keepdim=True))))))


class MobileLast(Mobile):
    """The norm lies in the filter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = x.permute(0, 3, 1, 2)
        x = self.up(x)
        x = x * F.relu6(x + 3) / 6
        scale = self.norm.weight / (self.norm.running_var + (1e-5 if ways.get("eps") else 1e-3)).sqrt()  # type: ignore[operator]
        bias = self.norm.bias if ways.get("mean") else self.norm.bias - self.norm.running_mean * scale  # type: ignore[operator]
        x = F.conv2d(x, self.deep.weight * scale[:, None, None, None], bias, padding=1, groups=2 * W)
        x = x * F.relu6(x + 3) / 6
        gate = self.more(F.relu(self.less(x.mean((2, 3), keepdim=True))))
        gate = (0.2 * gate + 0.5).clamp(0, 1) if ways.get("slope") else F.relu6(gate + 3) / 6
        return self.down(x * gate).permute(0, 2, 3, 1)


entered("mobile filters", "norms in weights", Mobile, MobileLast, {
    "the eps of torch": ({"eps": True}, ""), "no mean in the bias": ({"mean": True}, ""), "a gate of another slope": ({"slope": True}, ""),
}, stream=Picture, port=Last, inputs=PICTURES)  # fmt: skip


class Grouped(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.norm, self.mix = ways, nn.GroupNorm(4, W), nn.Conv2d(W, W, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(F.silu(self.norm(x)))


class GroupedLast(Grouped):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        rows = x.flatten(1, 2)
        groups = rows.unflatten(2, (4, 4)).mT if ways.get("turned") else rows.unflatten(2, (4, 4))
        axes = (3,) if ways.get("places") else (1, 3)
        middle = groups - groups.mean(axes, keepdim=True)
        normed = middle * (middle.square().mean(axes, keepdim=True) + 1e-5).rsqrt()
        normed = (normed.mT if ways.get("turned") else normed).flatten(2) * self.norm.weight + self.norm.bias
        return F.linear(F.silu(normed), self.mix.weight.flatten(1), self.mix.bias).view_as(x)


entered("groups with channels last", "by formulas", Grouped, GroupedLast, {
    "groups of every fourth channel": ({"turned": True}, ""), "a norm for each place": ({"places": True}, ""),
}, stream=Picture, port=Last, inputs=PICTURES)  # fmt: skip


class Wrapped(Last):
    """`fault` turns rows and columns within a patch, or puts channels last in it."""

    def __init__(self, *layers: nn.Module, order: tuple[int, ...] = (0, 2, 4, 1, 3, 5)) -> None:
        super().__init__(*layers)
        self.order, self.rows = order, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(self.order).flatten(3)
        x = F.linear(patches, self.patches.weight.flatten(1), self.patches.bias)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x.mean((1, 2))))


def patched(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Picture(Next(), Next())), Wrapped(NextLast(), NextLast(), **bad)
    other.load_state_dict(model.state_dict())
    return model, other, PICTURES, dict(MEAN)


healthy("patches by a product", "channels first", patched)
broken("patches by a product", "channels last in a patch", lambda: patched(order=(0, 2, 4, 3, 5, 1)), "", "patches")
broken("patches by a product", "rows and columns in a patch", lambda: patched(order=(0, 2, 4, 1, 5, 3)), "", "patches")

SOUND = numbers(2, 160)
BINS, HOP = 32, 8


class Melody(nn.Module):
    """The logarithm of a spectrum in bands."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        places = torch.arange(BINS // 2 + 1)[:, None] - torch.linspace(1, 15, W)
        self.register_buffer("bands", (1.5 - places.abs()).clamp(min=0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.dtype == torch.float64 else x.float()
        window = torch.hann_window(BINS, dtype=x.dtype)
        power = torch.stft(x, BINS, HOP, window=window, center=True, return_complex=True).abs().square()
        return (power.mT @ self.bands.to(power.dtype) + 1e-3).log10()


class MelodyPort(Melody):
    """Products of frames with waves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = x if x.dtype == torch.float64 else x.float()
        x = F.pad(x, (BINS // 2, BINS // 2), "constant" if ways.get("zeros") else "reflect")
        steps = torch.arange(BINS, dtype=x.dtype)
        window = 0.5 - 0.5 * (2 * math.pi * steps / (BINS - 1 if ways.get("symmetric") else BINS)).cos()
        frames = x.unfold(1, BINS, HOP) * window
        angles = 2 * math.pi * steps[:, None] * torch.arange(BINS // 2 + 1, dtype=x.dtype) / BINS
        power = (frames @ angles.cos()).square() + (frames @ angles.sin()).square()
        power = (power + 1e-12).sqrt() if ways.get("size") else power
        made = power @ self.bands.to(power.dtype) + 1e-3
        return made.log() if ways.get("natural") else made.log() / math.log(10)


class Spoken(Stream):
    def __init__(self, front: nn.Module, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.front = front

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.front(x).to(self.inside.weight.dtype))


class Speech(nn.Module):
    """A gate, filters over time, a norm over channels."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.up, self.deep, self.norm, self.down = nn.Linear(W, 2 * W), nn.Conv1d(W, W, 5, padding=2, groups=W), nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.glu(self.up(x), dim=-1).transpose(1, 2)
        return self.down(F.silu(self.norm(self.deep(x).transpose(1, 2))))


class SpeechPort(Speech):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        first, second = self.up(x).chunk(2, -1)
        x = torch.sigmoid(first) * second if ways.get("gate") else first * torch.sigmoid(second)
        frames = F.pad(x, (0, 0, 4, 0) if ways.get("causal") else (0, 0, 2, 2)).unfold(1, 5, 1)
        x = (frames * self.deep.weight[:, 0]).sum(-1) + self.deep.bias
        x = self.norm(F.silu(x)) if ways.get("act") else F.silu(self.norm(x.to(self.down.weight.dtype)))
        return self.down(x.to(self.down.weight.dtype))


def spoken(front: dict[str, Any] | None = None, bad: dict[str, Any] | None = None) -> Made:
    torch.manual_seed(0)
    model, other = spread(Spoken(Melody(), Speech(), Speech())), Spoken(MelodyPort(**(front or {})), SpeechPort(), SpeechPort(**(bad or {})))
    other.load_state_dict(model.state_dict())
    return model, other, SOUND, dict(MEAN)


healthy("speech", "waves and frames", spoken)
for fault, way in (("a symmetric window", "symmetric"), ("zeros around", "zeros"), ("size for power", "size"), ("natural logarithms", "natural")):
    broken("speech", fault, lambda way=way: spoken({way: True}), "front")  # type: ignore[misc]
for fault, way in (("halves of the gate exchanged", "gate"), ("filters that look back", "causal"), ("the act before the norm", "act")):
    broken("speech", fault, lambda way=way: spoken(None, {way: True}), LAST)  # type: ignore[misc]
