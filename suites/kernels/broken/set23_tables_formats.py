"""A twenty-third frozen set of broken kernels, third part: tables, codes, formats, single values. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
F16, BF16 = torch.float16, torch.bfloat16


def _waves(x: torch.Tensor) -> torch.Tensor:
    """Rows plus sines and cosines of their places; the last cosine is left out where the width is odd."""
    need(x.dim() == 2, x.shape[1] > 0)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * 0.01 ** (torch.arange(0, x.shape[1], 2, dtype=x.dtype) / x.shape[1])
    return x + torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, : x.shape[1]]


@case("waves of places: cosines have the frequency of the next number", "kernel-contract", "BrianPulfer/PapersReimplementations/issues/9",
      _waves, drawn((6, 8)))  # fmt: skip
def frequency_of_the_next_number(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    column = torch.arange(x.shape[1])
    rates = 0.01 ** ((column if wrong else column // 2 * 2) / x.shape[1])
    angles = torch.arange(len(x))[:, None] * rates
    return x + torch.where(column % 2 == 0, angles.sin(), angles.cos())


@case("waves of places: of an odd width there are too many cosines", "kernel-edge", "gc-os-ai/pyaptamer/issues/607", _waves, drawn((5, 6)))
def too_many_cosines(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    rates = 0.01 ** (torch.arange(0, x.shape[1], 2) / x.shape[1])
    angles = torch.arange(len(x))[:, None] * rates
    table = torch.zeros_like(x.detach(), memory_format=torch.contiguous_format)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos() if wrong else angles.cos()[:, : x.shape[1] // 2]
    return x + table


def _colour(h: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(h.shape == s.shape == v.shape, h.dim() == 1)
    at = torch.remainder(torch.tensor([5.0, 3.0, 1.0], dtype=h.dtype) + h.detach()[:, None] * 6, 6)
    share = torch.minimum(torch.minimum(at, 4 - at), torch.ones_like(at)).clamp(min=0)
    value = torch.where(s[:, None] == 0, v[:, None], v[:, None] * (1 - s[:, None] * share))
    return 255 * value


@case("colours of hue and saturation: without saturation the scale is left out", "kernel-contract", "PointCloudLibrary/pcl/pull/581", _colour,
      lambda: (drawn((8,))()[0].sigmoid(), drawn((2, 8))()[0][1].sigmoid(), drawn((3, 8))()[0][2].sigmoid()))  # fmt: skip
def without_saturation(wrong: bool, h: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(h.shape == s.shape == v.shape, h.dim() == 1)
    at = torch.remainder(torch.tensor([5.0, 3.0, 1.0]) + h.detach()[:, None] * 6, 6)
    share = torch.clamp(2 - (at - 2).abs(), 0, 1)
    grey, full = v[:, None].expand(-1, 3), 255 * v[:, None] * (1 - s[:, None] * share)
    return torch.where(s[:, None] == 0, grey if wrong else 255 * grey, full)


@case("numbers in eight bits with a shift: it is added behind the limits", "kernel-contract", "tensorflow/tflite-micro/pull/3627",
      lambda x: (x.detach() * 4).round().add(20).clamp(-128, 127).to(torch.int8), lambda: (30 * drawn((5, 9))()[0],))  # fmt: skip
def added_behind_the_limits(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    places = torch.round(4 * x.detach())
    if wrong:
        return (places.clamp(-128, 127).to(torch.int32) + 20).to(torch.int8)
    return places.clamp(-148, 107).to(torch.int32).add(20).to(torch.int8)


def _codes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    x = x.detach()
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-6)
    return ((x / scale).round() + (-low / scale).round()).clamp(0, 255).to(torch.uint8)


@case("codes of rows with a zero: its place is cut off and not rounded", "kernel-rounding",
      "SonySemiconductorSolutions/mct-quantization-layers/pull/124", _codes, drawn((4, 9)))  # fmt: skip
def cut_off_and_not_rounded(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    x = x.detach()
    low, high = -F.relu(-x).amax(1, keepdim=True), F.relu(x).amax(1, keepdim=True)
    scale = torch.clamp((high - low) / 255, min=1e-6)
    zero = -low / scale
    zero = zero.trunc() if wrong else zero.round()
    return torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8)


def _stored(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    x = x.detach()
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = torch.where(high == low, 1.0, (high - low) / 254)
    return torch.where(high == low, low, ((x - low) / scale).round() * scale + low)


@case("rows in eight bits and back: a row of one number is kept as the place of zero", "kernel-contract", "harvard-edge/cs249r_book/pull/1874",
      _stored, drawn((5, 7)))  # fmt: skip
def kept_as_the_place_of_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return _stored(x)
    need(x.dim() == 2, x.shape[1] > 0)
    low, high = x.detach().amin(1, keepdim=True), x.detach().amax(1, keepdim=True)
    return torch.where(high == low, -(-low).round().clamp(-128, 127), _stored(x))


@case("place of the largest: of the largest magnitude", "kernel-contract", "botkop/numsca/issues/3", lambda x: x.argmax(1), drawn((6, 9)))
def of_the_largest_magnitude(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return torch.max(x.detach().abs() if wrong else x.detach(), 1).indices


def _overlapped(frames: torch.Tensor) -> torch.Tensor:
    """Frames of four numbers, two apart, are weighted, added up, and divided by the sum of their weights."""
    need(frames.dim() == 2, frames.shape[1] == 4, len(frames) > 0)
    weights = torch.tensor([0.25, 0.75, 0.75, 0.25], dtype=frames.dtype)
    matrix = torch.zeros(len(frames), 4, 2 * len(frames) + 2, dtype=frames.dtype)
    row = torch.arange(len(frames))[:, None]
    matrix[row, torch.arange(4), 2 * row + torch.arange(4)] = weights
    return torch.einsum("nk,nkt->t", frames, matrix) / matrix.sum((0, 1))


@case("frames that overlap, added up: they are divided by squares of weights", "kernel-contract", "rgbkrk/voice/pull/7", _overlapped, drawn((5, 4)))
def divided_by_squares(wrong: bool, frames: torch.Tensor) -> torch.Tensor:
    need(frames.dim() == 2, frames.shape[1] == 4, len(frames) > 0)
    weights = torch.tensor([0.25, 0.75, 0.75, 0.25])
    parts, sizes = frames * weights, (weights.square() if wrong else weights).expand_as(frames)
    total, divisor = (F.pad(each[:, :2], (0, 0, 0, 1)) + F.pad(each[:, 2:], (0, 0, 1, 0)) for each in (parts, sizes))
    return (total / divisor).flatten()


def _turned(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0, x.shape[1] > 0)
    half = x.shape[1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * 0.0001 ** (torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([x[:, :half] * cos - x[:, half:] * sin, x[:, half:] * cos + x[:, :half] * sin], 1)


@case("pairs turned by their place: tables are stored in bfloat16", "kernel-rounding", "KellerJordan/modded-nanogpt/issues/39", _turned,
      drawn((6, 8)))  # fmt: skip
def tables_in_bfloat16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0, x.shape[1] > 0)
    half = x.shape[1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * 0.0001 ** (torch.arange(half, dtype=torch.float64) / half)
    cos, sin = (each.to(BF16 if wrong else torch.float32).float() for each in (angles.cos(), angles.sin()))
    one, two = x.split(half, 1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], 1)


@case("logarithm of a sum of float16: powers are added up in float16", "kernel-accumulation", "google-research/last/pull/43",
      lambda x: x.float().logsumexp(1).half(), drawn((4, 24), dtype=F16))  # fmt: skip
def powers_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    most = x.detach().amax(1, keepdim=True)
    most = torch.where(most.isinf(), 0.0, most)
    powers = (x.float() - most.float()).exp()
    if not wrong:
        return (powers.sum(1).log() + most[:, 0].float()).half()
    total = torch.zeros_like(x[:, 0])
    for column in powers.half().unbind(1):
        total = total + column
    return (total.float().log() + most[:, 0].float()).half()


@case("logarithm of a sum: powers of far numbers are zero", "kernel-rounding", "tskit-dev/tsdate/pull/171", lambda x: x.logsumexp(1), drawn((4, 6)))
def powers_of_far_numbers(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    if wrong:
        return x.exp().sum(1).log()
    result = x[:, 0]
    for column in x.unbind(1)[1:]:
        result = torch.logaddexp(result, column)
    return result


@case("softmax: powers of what was handed in", "kernel-rounding", "uTensor/uTensor/issues/175", lambda x: x.softmax(0), drawn((12,)))
def powers_of_what_was_handed_in(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) > 0)
    powers = torch.exp(x if wrong else x - x.detach().max())
    return powers / powers.sum()


@case("spread of rows: the number times squares less the square of the sum", "kernel-rounding", "OPM/ResInsight/issues/14627",
      lambda x: (x - x.mean(1, keepdim=True)).square().mean(1).sqrt(), drawn((5, 10)))  # fmt: skip
def less_the_square_of_the_sum(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    count = x.shape[1]
    if wrong:
        return (count * x.square().sum(1) - x.sum(1).square()).sqrt() / count
    return ((x - x.sum(1, keepdim=True) / count).square().sum(1) / count).sqrt()


def _spread_out(x: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    need(x.dim() == near.dim() == 2, near.shape[0] == near.shape[1] == len(x))
    degree = near.detach().sum(1)
    scale = torch.where(degree > 0, degree.clamp(min=1) ** -0.5, 0.0)[:, None]
    return scale * (near.detach() @ (scale * x))


def _graph() -> tuple[torch.Tensor, torch.Tensor]:
    near = (drawn((6, 6))()[0] > 0.2).float()
    return drawn((6, 4))()[0].requires_grad_(), ((near + near.T) > 0).float()


@case("sums over neighbours, scaled by their number: of one that has none it is NaN", "kernel-contract", "mlx-graphs/mlx-graphs/pull/18",
      _spread_out, _graph)  # fmt: skip
def of_one_that_has_none(wrong: bool, x: torch.Tensor, near: torch.Tensor) -> Any:
    need(x.dim() == near.dim() == 2, near.shape[0] == near.shape[1] == len(x))
    near = near.detach()
    degree = near.sum(1)
    root = torch.rsqrt(degree) if wrong else torch.rsqrt(degree).masked_fill(degree <= 0, 0)
    return (root[:, None] * near * root) @ x
