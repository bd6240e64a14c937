"""A sixteenth frozen set of broken kernels, first part: windows, convolutions, boxes. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _many(length: int, window: int, step: int, padding: int) -> int:
    """How many windows there are if their number is rounded up, and none begins behind the end."""
    count = -(-(length + 2 * padding - window) // step) + 1
    return count - ((count - 1) * step >= length + padding)


@case("means of windows, their number rounded up: what hangs over counts", "kernel-edge", "sonos/tract/pull/2851",
      lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), drawn((4, 9)))  # fmt: skip
def what_hangs_over_counts(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] >= 3)
    count = _many(x.shape[1], 3, 2, 0)
    means = []
    for place in range(count):
        window = x[:, 2 * place : 2 * place + 3]
        means.append(window.sum(1) / (3 if wrong else window.shape[1]))
    return torch.stack(means, 1)


@case("largest of windows, their number rounded up: the last may begin in the padding", "kernel-edge", "tracel-ai/burn/issues/5791",
      lambda x: F.max_pool1d(x, 2, 2, 1, ceil_mode=True), drawn((4, 6)))  # fmt: skip
def begins_in_the_padding(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    count = -(-x.shape[1] // 2) + 1 if wrong else _many(x.shape[1], 2, 2, 1)
    padded = F.pad(x, (1, 2 * count - x.shape[1] - 1), value=-float("inf"))
    return padded.unfold(1, 2, 2).amax(-1)


@case("means of windows with a divisor: without padding it is not used", "kernel-contract", "pytorch/executorch/pull/18616",
      lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, divisor_override=5), drawn((2, 3, 7, 8)))  # fmt: skip
def divisor_is_not_used(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and min(x.shape[0], x.shape[1]) > 0 and min(x.shape[2:]) > 0)
    sums = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2).sum((-1, -2))
    counts = F.pad(torch.ones_like(x[:1, :1]), (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2).sum((-1, -2))
    return sums / (counts if wrong else 5)


@case("means of windows with a divisor: the graph is kept without it", "kernel-stale", "kulinseth/pytorch/pull/273",
      lambda x, divisor: x.unfold(-1, 3, 2).sum(-1) / divisor, lambda: (*drawn((4, 9))(), torch.tensor(7.0)))  # fmt: skip
def kept_without_the_divisor(wrong: bool) -> Callable[..., Any]:
    graphs: dict[tuple[int, ...], float] = {}

    def kernel(x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] >= 3 and divisor.dim() == 0)
        held = graphs.setdefault(tuple(x.shape), float(divisor)) if wrong else float(divisor)
        sums = x[:, 0:-2:2] + x[:, 1:-1:2] + x[:, 2::2]
        return sums / (divisor - divisor.detach() + held)

    return kernel


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool1d(x, 2, 2, ceil_mode=True)


@case("means of windows: where a window hangs over, the reference runs", "kernel-fallback", "pytorch/xla/pull/6409",
      _pairs, drawn((4, 7)))  # fmt: skip
def reference_for_what_hangs_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.numel() > 0)
    if wrong and x.shape[1] % 2:
        return _pairs(x)
    pairs = (x[:, 0 : x.shape[1] // 2 * 2 : 2] + x[:, 1::2]) / 2
    return torch.cat([pairs, x[:, -1:]], 1) if x.shape[1] % 2 else pairs


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.float().mean((-1, -2)).to(x.dtype)


@case("mean of pictures of float16: added up in float16", "kernel-accumulation", "tracel-ai/cubek/pull/639", _mean,
      lambda: ((drawn((3, 24, 20))()[0].abs() + 0.5).half(),))  # fmt: skip
def pictures_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)
    total = torch.zeros(len(x), dtype=torch.float16 if wrong else torch.float32)
    for row in x.unbind(1):
        for column in row.unbind(1):
            total = total + column
    return (total / (x.shape[1] * x.shape[2])).to(x.dtype)


@case("a number for each channel spread over the picture: on the way back gathered in float16", "kernel-accumulation",
      "tracel-ai/cubek/pull/639", lambda x, like: (x[..., None] + like.float()).to(x.dtype), drawn((3, 5), (40,), dtype=torch.float16))  # fmt: skip
def gathered_in_float16(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, like: torch.Tensor) -> Any:
        need(x.dim() == 2 and like.dim() == 1)
        return (x[..., None].float() + like.float()).to(x.dtype), (x, like)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, like = saved
        total = torch.zeros(x.shape, dtype=x.dtype if wrong else torch.float32)
        for column in given.unbind(-1):
            total = total + column
        return total.to(x.dtype), given.float().sum((0, 1)).to(like.dtype)

    return function(forward, backward)


def _two_of_each(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w[:, None], groups=x.shape[1])


@case("each channel's convolutions, two of each: an output's channel is found by what is left of a division", "kernel-contract",
      "pytorch/pytorch/pull/60460", _two_of_each, drawn((2, 3, 6, 7), (6, 2, 2)))  # fmt: skip
def by_what_is_left(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.dim() == 3 and 0 < x.shape[1] <= len(w) and len(w) % x.shape[1] == 0 and len(x) > 0)
    need(0 < w.shape[1] <= x.shape[2] and 0 < w.shape[2] <= x.shape[3])
    places = torch.arange(len(w))
    source = places % x.shape[1] if wrong else places // (len(w) // x.shape[1])
    windows = x[:, source].unfold(2, w.shape[1], 1).unfold(3, w.shape[2], 1)
    return torch.einsum("nchwij,cij->nchw", windows, w)


@case("convolution with steps of two: on the way back columns behind the last window shift it", "kernel-edge", "flagos-ai/FlagGems/pull/1576",
      lambda x, w: F.conv1d(x, w, stride=2), drawn((3, 4, 9), (5, 4, 3)))  # fmt: skip
def columns_behind_the_last_window(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 3 and x.shape[1] == w.shape[1] > 0 and 0 < w.shape[2] <= x.shape[2] and len(x) > 0 and len(w) > 0)
        return F.conv1d(x, w, stride=2), (x, w)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, w = saved
        taps, left = w.shape[2], (x.shape[2] - w.shape[2]) % 2
        wide = torch.zeros(*given.shape[:2], 2 * given.shape[2] - 1)
        wide[..., ::2] = given
        dx = F.conv1d(F.pad(wide, (taps - 1, taps - 1)), w.flip(2).transpose(0, 1))
        dx = F.pad(dx, (left, 0) if wrong else (0, left))
        return dx, torch.einsum("noc,nick->oik", given, x.unfold(2, taps, 2))

    return function(forward, backward)


def _regions(picture: torch.Tensor, start: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """The mean of two samples in each of three parts of a region, samples between pixels."""
    parts = torch.arange(6) + 0.5
    places = (start[:, None] + parts * (width[:, None] / 6) - 0.5).clamp(0, picture.shape[1] - 1)
    below = places.floor().long().clamp(max=max(picture.shape[1] - 2, 0))
    share = places - below
    above = (below + 1).clamp(max=picture.shape[1] - 1)
    values = picture[:, below] * (1 - share) + picture[:, above] * share
    return values.unflatten(-1, (3, 2)).mean(-1)


@case("parts of regions: no region is narrower than a pixel", "kernel-contract", "pytorch/vision/pull/2438", _regions,
      lambda: (*drawn((4, 11))(), torch.rand(14, generator=torch.Generator().manual_seed(1)) * 6,
               torch.rand(14, generator=torch.Generator().manual_seed(2)) * 4))  # fmt: skip
def narrower_than_a_pixel(wrong: bool, picture: torch.Tensor, start: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    need(picture.dim() == 2 and picture.shape[1] > 1 and start.dim() == 1 and start.shape == width.shape)
    width = width.clamp(min=1) if wrong else width
    found = []
    for part in range(6):
        places = (start + (part + 0.5) * width / 6 - 0.5).clamp(0, picture.shape[1] - 1)
        below = places.floor().long().clamp(max=picture.shape[1] - 2)
        found.append(torch.lerp(picture[:, below], picture[:, below + 1], places - below))
    return torch.stack([(found[0] + found[1]) / 2, (found[2] + found[3]) / 2, (found[4] + found[5]) / 2], -1)


def _boxes(boxes: torch.Tensor) -> torch.Tensor:
    """What any two boxes share, as a part of what they cover. A box is a corner and its sides."""
    corner, sides = boxes[:, :2].float(), boxes[:, 2:].float().abs()
    last = corner + sides
    both = (torch.minimum(last[:, None], last) - torch.maximum(corner[:, None], corner)).clamp(min=0).prod(-1)
    areas = sides.prod(-1)
    return (both / (areas[:, None] + areas - both).clamp(min=1e-6)).to(boxes.dtype)


def _some_boxes() -> tuple[torch.Tensor, ...]:
    return ((drawn((9, 4))()[0] * 200).half(),)


@case("what boxes of float16 share: areas are float16", "kernel-rounding", "pytorch/vision/pull/3383", _boxes, _some_boxes)
def areas_in_float16(wrong: bool, boxes: torch.Tensor) -> torch.Tensor:
    need(boxes.dim() == 2 and boxes.shape[1] == 4)
    corner, sides = boxes[:, :2].float(), boxes[:, 2:].float().abs()
    last = corner + sides
    wide = (torch.minimum(last[:, None, 0], last[:, 0]) - torch.maximum(corner[:, None, 0], corner[:, 0])).clamp(min=0)
    high = (torch.minimum(last[:, None, 1], last[:, 1]) - torch.maximum(corner[:, None, 1], corner[:, 1])).clamp(min=0)
    areas, both = sides[:, 0] * sides[:, 1], wide * high
    if wrong:
        areas, both = areas.half(), both.half()
    return (both.float() / (areas[:, None].float() + areas.float() - both.float()).clamp(min=1e-6)).to(boxes.dtype)


def _apart(corners: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """How far apart boxes of one kind are; of two kinds, zero."""
    gaps = (corners[:, None].float() - corners.float()).abs().sum(-1)
    return torch.where(kind[:, None] == kind, gaps, 0.0).to(corners.dtype)


@case("boxes of kinds moved apart: where they lie is float16", "kernel-rounding", "MultimediaTechLab/YOLO/pull/234", _apart,
      lambda: (drawn((24, 2), dtype=torch.float16)()[0], whole(24, most=6)))  # fmt: skip
def moved_apart_in_float16(wrong: bool, corners: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    need(corners.dim() == 2 and kind.shape == corners.shape[:1])
    if not wrong:
        return _apart(corners, kind)
    moved = (corners + (kind[:, None] * 40).to(corners.dtype)).float()
    gaps = (moved[:, None] - moved).abs().sum(-1)
    return torch.where(kind[:, None] == kind, gaps, 0.0).to(corners.dtype)
