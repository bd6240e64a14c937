"""The nineteenth batch, fourth part: pictures, videos, sounds, series, and weights of other libraries.

Taps that each place makes, norms of one picture, attention over time and then over space, zeros between samples, blurs, boxes of features, filters
with feedback, trends, kernels of two axes of channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_nineteenth import ROWS, State, W, family, filled, seeded
from pair_nineteenth_shapes import B, three
from torch import nn

SIZE = 6


class Scene(nn.Module):
    """A filter, three parts of which the second may have a fault, and a head on the mean."""

    def __init__(self, kind: Any, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages, self.head = nn.Sequential(kind(**ways), kind(**ways, **(bad or {})), kind(**ways)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).flatten(2).mean(-1))


def scene(kind: Any, **ways: Any) -> Any:
    return lambda **bad: filled(seeded(Scene, kind=kind), Scene(kind, bad, **ways), numbers(2, 3, SIZE, SIZE + 2))


S = ("stages.1",)


class Involved(nn.Module):
    """Taps for two groups of channels that each place makes of itself."""

    def __init__(self, shifted: bool = False, **ways: Any) -> None:
        super().__init__()
        self.shifted, self.ways, self.less, self.more = shifted, ways, nn.Conv2d(8, 4, 1), nn.Conv2d(4, 18, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps = self.more(F.relu(self.less(x))).unflatten(1, (2, 9))
        if not self.shifted:
            seen = F.unfold(x, 3, padding=1).view(len(x), 2, 4, 9, *x.shape[2:])
            return x + (taps[:, :, None] * seen).sum(3).flatten(1, 2).to(x.dtype)
        ways, padded, total = self.ways, F.pad(x, (1, 1, 1, 1), "reflect" if self.ways.get("mirror") else "constant"), torch.zeros_like(x)
        for number in range(9):
            row, column = (number % 3, number // 3) if ways.get("turned") else (number // 3, number % 3)
            tap = taps[:, :, number].tile(1, 4, 1, 1) if ways.get("tiled") else taps[:, :, number].repeat_interleave(4, 1)
            total = total + tap * padded[:, :, row : row + x.shape[2], column : column + x.shape[3]]
        return x + total.to(x.dtype)


family("taps of each place", "shifted pictures", scene(Involved, shifted=True), {
    "rows for columns": ({"turned": True}, S), "groups tiled": ({"tiled": True}, S), "mirrored edges": ({"mirror": True}, S),
})  # fmt: skip


class Alone(nn.Module):
    """A filter whose weight has no mean and one size, and a norm of each picture. `batched`: as a norm of a batch of many channels."""

    def __init__(self, batched: bool = False, **ways: Any) -> None:
        super().__init__()
        self.batched, self.ways = batched, ways
        self.filter, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.InstanceNorm2d(8, affine=True, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, ways = self.filter.weight, self.ways
        if not self.batched:
            std, mean = torch.std_mean(weight, (1, 2, 3), keepdim=True)
            return x + F.silu(self.norm(F.conv2d(x, (weight - mean) / (std + 1e-4), padding=1)))
        flat = weight.flatten(1)
        flat = flat if ways.get("mean") else flat - flat.mean(1, keepdim=True)
        spread = (flat.square().sum(1, keepdim=True) / 71).sqrt()
        made = F.conv2d(x, (flat / (spread + 1e-4)).view_as(weight), padding=1)
        gain, bias = (each.repeat_interleave(len(x)) if ways.get("order") else each.repeat(len(x)) for each in (self.norm.weight, self.norm.bias))
        wide = made.reshape(1, -1, *made.shape[2:])
        wide = F.batch_norm(wide, None, None, gain, bias, True, 0.1, 1e-1 if ways.get("eps") else 1e-3)
        return x + F.silu(wide.view_as(x))


family("a norm of each picture", "as one batch", scene(Alone, batched=True), {
    "gains in the order of rows": ({"order": True}, (*S, "stages.1.norm")), "weights that keep their mean": ({"mean": True}, S),
    "another eps": ({"eps": True}, S),
})  # fmt: skip


class Blurred(nn.Module):
    """A filter and a blur of four taps each way. `apart`: along rows, then along columns, with the mean of two for the last."""

    def __init__(self, apart: bool = False, **ways: Any) -> None:
        super().__init__()
        self.apart, self.ways, self.filter = apart, ways, nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, taps = F.hardswish(self.filter(x)), torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        if not self.apart:
            weight = (taps[:, None] * taps).expand(8, 1, 4, 4).to(made.dtype)
            return x + F.conv2d(F.pad(made, (1, 2, 1, 2), "replicate"), weight, groups=8)
        ways = self.ways
        taps = torch.tensor([3.0, 1.0, 1.0, 3.0]) / 8 if ways.get("taps") else taps
        made = F.pad(made, (2, 1, 2, 1) if ways.get("late") else (1, 2, 1, 2), "constant" if ways.get("zeros") else "replicate")
        for axis in (2, 3):
            parts = made.unfold(axis, 4, 1)
            made = sum(parts[..., tap] * float(taps[tap]) for tap in range(4))
        return x + made  # type: ignore[no-any-return]


family("blurs", "rows and then columns", scene(Blurred, apart=True), {
    "one place late": ({"late": True}, S), "zeros around": ({"zeros": True}, S), "taps inside out": ({"taps": True}, S),
})  # fmt: skip


class Divided(nn.Module):
    """Attention over time at each place, then over places at each time. The input is (batch, time · places, width)."""

    def __init__(self, moved: bool = False, **ways: Any) -> None:
        super().__init__()
        self.moved, self.ways, self.times, self.places = moved, ways, nn.Linear(W, 3 * W), nn.Linear(W, 3 * W)
        self.norm = nn.LayerNorm(W)

    def mix(self, x: torch.Tensor, part: nn.Linear) -> torch.Tensor:
        q, k, v = part(self.norm(x)).chunk(3, -1)
        if self.moved:
            return torch.einsum("...ts,...sw->...tw", (torch.einsum("...tw,...sw->...ts", q, k) / math.sqrt(W)).softmax(-1).to(v.dtype), v)
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        if not self.moved:
            y = x.unflatten(1, (3, 4)).transpose(1, 2).flatten(0, 1)
            y = y + self.mix(y, self.times)
            y = y.unflatten(0, (-1, 4)).transpose(1, 2).flatten(0, 1)
            return (y + self.mix(y, self.places)).view_as(x)
        y = x.unflatten(1, (4, 3)).transpose(1, 2) if ways.get("read") else x.unflatten(1, (3, 4))
        first, second = (self.places, self.times) if ways.get("weights") else (self.times, self.places)
        y = y + self.mix(y.movedim(1, 2), first).movedim(1, 2)
        seen = y.movedim(1, 2) if ways.get("time") else y
        made = self.mix(seen, second)
        return (y + (made.movedim(1, 2) if ways.get("time") else made)).flatten(1, 2)


family("a video", "five axes", three(Divided, numbers(2, 12, 6), moved=True), {
    "places before times": ({"read": True}, B), "time twice": ({"time": True}, B), "weights exchanged": ({"weights": True}, B),
})  # fmt: skip


class Longer(nn.Module):
    """Twice as many samples by a filter with a stride, and back by means. `zeros`: zeros between samples, and taps turned round."""

    def __init__(self, zeros: bool = False, **ways: Any) -> None:
        super().__init__()
        self.zeros, self.ways, self.filter = zeros, ways, nn.ConvTranspose1d(W, W, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.zeros:
            made = self.filter(x.mT)
        else:
            spaced = torch.stack([x.mT, torch.zeros_like(x.mT)], -1).flatten(-2)
            spaced = F.pad(spaced, (1, 2) if self.ways.get("late") else (2, 1))
            weight = self.filter.weight if self.ways.get("inner") else self.filter.weight.transpose(0, 1)
            made = F.conv1d(spaced, weight if self.ways.get("same") else weight.flip(-1), self.filter.bias)
        return F.avg_pool1d(torch.sin(made), 2).mT


family("zeros between samples", "taps turned round", three(Longer, ROWS, zeros=True), {
    "taps as they are": ({"same": True}, B), "one sample late": ({"late": True}, B), "channels exchanged": ({"inner": True}, (*B, "body.b.filter")),
})  # fmt: skip


class Feedback(nn.Module):
    """Two filters with feedback one after another, sample by sample. `long`: a product with the matrix of what one impulse leaves."""

    def __init__(self, long: bool = False, **ways: Any) -> None:
        super().__init__()
        self.long, self.ways, self.taps, self.back = long, ways, nn.Parameter(torch.zeros(2, 3, W)), nn.Parameter(torch.zeros(2, 2, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, ways = x.float(), self.ways
        for taps, back in zip(self.taps.float(), torch.tanh(self.back.float()) * 0.45, strict=True):
            given = torch.eye(y.shape[1]).to(y)[:, :, None].expand(-1, -1, W) if self.long else y
            padded, made = F.pad(given, (0, 0, 2, 0)), [torch.zeros_like(given[:, 0])] * 2
            for place in range(y.shape[1]):
                seen = taps[0] * padded[:, place + 2] + taps[1] * padded[:, place + 1] + taps[2] * padded[:, place]
                sign = -1 if ways.get("sign") else 1
                made.append(seen - sign * back[0] * made[-1] - (0 if ways.get("short") else 1) * back[1] * made[-2])
            left = torch.stack(made[2:], 1)
            y = left if not self.long else torch.einsum("ftw,bfw->btw", left, y.flip(1) if ways.get("round") else y)
        return torch.tanh(y).to(x.dtype)


family("filters with feedback", "what impulses leave", three(Feedback, ROWS, long=True), {
    "another sign of feedback": ({"sign": True}, B), "one sample of feedback": ({"short": True}, B), "the signal from its end": ({"round": True}, B),
})  # fmt: skip


class Trend(nn.Module):
    """A series and its mean of five, each with a layer of its own. `summed`: by differences of sums."""

    def __init__(self, summed: bool = False, **ways: Any) -> None:
        super().__init__()
        self.summed, self.ways, self.slow, self.fast = summed, ways, nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mT
        if not self.summed:
            mean = F.avg_pool1d(F.pad(y, (2, 2), "replicate"), 5, 1)
        else:
            wide = F.pad(F.pad(y, (2, 2), "constant" if self.ways.get("zeros") else "replicate").double(), (1, 0)).cumsum(-1)
            mean = ((wide[..., 5:] - wide[..., :-5]) / (4 if self.ways.get("four") else 5)).to(x.dtype)
        rest = y if self.ways.get("whole") else y - mean
        return self.slow(mean.mT) + self.fast(rest.mT).sin()


family("trends", "differences of sums", three(Trend, ROWS, summed=True), {
    "zeros at the ends": ({"zeros": True}, B), "a mean of four": ({"four": True}, B), "the trend left in the rest": ({"whole": True}, B),
})  # fmt: skip


class Mobile(nn.Module):
    """Filters for each channel, two for one, and a layer on all places. Channels lie first."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.point, self.dense = nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 4, 1), nn.Linear(4 * 4 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(F.relu6(self.point(F.relu6(self.deep(x)))).flatten(1))


class MobilePort(nn.Module):
    """Channels lie last, in pictures and in weights: (height, width, channels, two for each)."""

    def __init__(self, tiled: bool = False, same: bool = False) -> None:
        super().__init__()
        self.tiled, self.kernel, self.bias = tiled, nn.Parameter(torch.zeros(3, 3, 3, 2)), nn.Parameter(torch.zeros(6))
        self.point, self.dense, self.same = nn.Linear(6, 4), nn.Linear(4 * 4 * 6, 5), same

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.permute(0, 2, 3, 1).unfold(1, 3, 1).unfold(2, 3, 1)
        made = torch.einsum("bhwcij,ijcm->bhwmc" if self.tiled else "bhwcij,ijcm->bhwcm", seen, self.kernel).flatten(3) + self.bias
        made = self.point(made.clamp(0, 6)).clamp(0, 6)
        return self.dense(made.permute(0, 3, 1, 2).flatten(1) if self.same else made.flatten(1))


def last(state: State, kept: bool = False) -> State:
    found = dict(state)
    found["kernel"] = found.pop("deep.weight").unflatten(0, (3, 2))[:, :, 0].permute(2, 3, 0, 1).contiguous()
    found["bias"], found["point.weight"] = found.pop("deep.bias"), found["point.weight"][..., 0, 0]
    if not kept:
        found["dense.weight"] = found["dense.weight"].unflatten(1, (4, 4, 6)).permute(0, 2, 3, 1).flatten(1)
    return found


def mobile(kept: bool = False, **bad: Any) -> Made:
    return filled(seeded(Mobile), MobilePort(**bad), numbers(2, 3, 6, 8), lambda state: last(state, kept))


family("kernels of another library", "channels last", mobile, {
    "pairs of channels tiled": ({"tiled": True}, ("", "point")), "places in the old order": ({"kept": True}, ("", "dense")),
    "channels first for the layer": ({"same": True}, ("",)),
})  # fmt: skip
