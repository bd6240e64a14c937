"""The twenty-fifth frozen set of broken kernels, third part: pictures, points, batches, states. Of links an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _between(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, x.shape[1] > 1, bool(((at >= 0) & (at <= x.shape[1] - 1)).all()))
    low = at.detach().floor().long().clamp(max=x.shape[1] - 2)
    share = at - low
    return x[:, low] * (1 - share) + x[:, low + 1] * share


@case("numbers between pixels: at a whole place one pixel counts twice", "kernel-contract", "Ignotus/theano-roi-align/issues/2", _between,
      lambda: (drawn((3, 7))()[0], torch.tensor([0.5, 2.25, 5.75, 3.5])))  # fmt: skip
def one_pixel_twice(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, x.shape[1] > 1, bool(((at >= 0) & (at <= x.shape[1] - 1)).all()))
    if wrong:
        low, high = at.detach().floor(), at.detach().ceil()
        return x[:, low.long()] * (1 - at + low) + x[:, high.long()] * (1 - high + at)
    low = at.detach().floor().long().clamp(max=x.shape[1] - 2)
    return torch.lerp(x[:, low], x[:, low + 1], (at - low).expand(len(x), -1))


def _moved(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, min(x.shape) > 1, rows.shape == columns.shape, rows.dim() == 1)
    grid = torch.stack([columns, rows], 1).clamp(-1, 1)[None, None]
    return F.grid_sample(x[None, None], grid, mode="bilinear", align_corners=True)[0, 0, 0]


@case("a picture at places: rows are scaled by the width, columns by the height", "kernel-edge", "speedinghzl/AlignSeg/issues/7", _moved,
      lambda: (drawn((5, 5))()[0], drawn((6,))()[0].tanh(), drawn((2, 6))()[0][1].tanh()))  # fmt: skip
def scaled_by_the_other(wrong: bool, x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, min(x.shape) > 1, rows.shape == columns.shape, rows.dim() == 1)
    height, width = (x.shape[1], x.shape[0]) if wrong else x.shape
    down, right = (rows.clamp(-1, 1) + 1) / 2 * (height - 1), (columns.clamp(-1, 1) + 1) / 2 * (width - 1)
    r = down.detach().floor().nan_to_num().clamp(0, x.shape[0] - 2).long()
    c = right.detach().floor().nan_to_num().clamp(0, x.shape[1] - 2).long()
    a, b = down - r, right - c
    upper = x[r, c] + (x[r, c + 1] - x[r, c]) * b
    lower = x[r + 1, c] + (x[r + 1, c + 1] - x[r + 1, c]) * b
    return upper + (lower - upper) * a


def _three(x: torch.Tensor, at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.shape == w.shape, at.dim() == 2, at.shape[1] == 3)
    return (x[:, at] * w).sum(2)


@case("three neighbours of a point: the way back is the way forth", "kernel-gradient", "facebookresearch/votenet/issues/36", _three,
      lambda: (drawn((2, 6))()[0], whole(6, 3, most=6), drawn((6, 3))()[0].softmax(1)))  # fmt: skip
def way_forth(wrong: bool, x: torch.Tensor, at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.shape == w.shape, at.dim() == 2, at.shape[1] == 3, bool(((at >= 0) & (at < x.shape[1])).all()))
    need(not wrong or len(at) == x.shape[1])

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.einsum("npk,pk->np", x[:, at], w), (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        if wrong:
            into = torch.einsum("npk,pk->np", g[:, at], w)
        else:
            into = torch.zeros_like(x).index_add(1, at.flatten(), (g[:, :, None] * w).flatten(1))
        return into, torch.einsum("np,npk->pk", g, x[:, at])

    return function(forward, backward)(x, w)


def _nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    need(points.dim() == centres.dim() == 3, len(points) == len(centres), points.shape[2] == centres.shape[2], points.shape[1] > 1)
    return (centres[:, :, None] - points[:, None]).square().sum(3).topk(2, 2, largest=False).values


@case("nearest points: each centre stores its distances at the first one's place", "kernel-contract", "hszhao/PointWeb/issues/14", _nearest,
      drawn((2, 6, 3), (2, 3, 3)))  # fmt: skip
def at_the_first_place(wrong: bool, points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    need(points.dim() == centres.dim() == 3, len(points) == len(centres), points.shape[2] == centres.shape[2], points.shape[1] > 1)
    gaps = (points[:, None] - centres[:, :, None]).pow(2).sum(3).sort(2).values[:, :, :2]
    out = torch.empty_like(gaps)
    for row in range(gaps.shape[1]):
        out[:, 0 if wrong else row] = gaps[:, row]
    return out


@case("voxels: the slope of a place is taken between its corners without their shares", "kernel-gradient", "NVIDIAGameWorks/kaolin/pull/684",
      lambda v, p: (v[:, 0] * (1 - p[:, 0]) + v[:, 1] * p[:, 0]) * (1 - p[:, 1]) + (v[:, 2] * (1 - p[:, 0]) + v[:, 3] * p[:, 0]) * p[:, 1],
      lambda: (drawn((5, 4))()[0], drawn((5, 2))()[0].sigmoid()))  # fmt: skip
def without_their_shares(wrong: bool, v: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    need(v.dim() == p.dim() == 2, v.shape[1] == 4, p.shape == (len(v), 2))

    def forward(v: torch.Tensor, p: torch.Tensor) -> Any:
        (a, b, c, d), (x, y) = v.unbind(1), p.unbind(1)
        return a * (1 - x) * (1 - y) + b * x * (1 - y) + c * (1 - x) * y + d * x * y, (v, p)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (a, b, c, d), (x, y) = saved[0].unbind(1), saved[1].unbind(1)
        if wrong:
            along, down = b - a, c - a
        else:
            along, down = (b - a) * (1 - y) + (d - c) * y, (c - a) * (1 - x) + (d - b) * x
        corners = torch.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y], 1)
        return g[:, None] * corners, torch.stack([g * along, g * down], 1)

    return function(forward, backward)(v, p)


@case("linear: the weight's gradient is that of the first row", "kernel-gradient", "cbovar/ConvNetSharp/issues/128", F.linear, drawn((4, 5), (3, 5)))
def that_of_the_first_row(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1])
        return x @ w.T, (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        return g @ w, (g[:1].T @ x[:1] if wrong else g.T @ x)

    return function(forward, backward)


def _standard(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4)
    return (x - x.mean((0, 2, 3), keepdim=True)) * 0.5


@case("pictures without their mean: it is taken from the batch in place", "kernel-mutation", "torchgeo/torchgeo/issues/2301", _standard,
      drawn((2, 3, 4, 4)))  # fmt: skip
def taken_in_place(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4)
    mean = x.mean((0, 2, 3), keepdim=True)
    if wrong:
        with torch.no_grad():
            x -= mean
        return x * 0.5
    return torch.sub(x, mean) / 2


@case("sums of pixels next to one another: rows begin where a vector would", "kernel-edge", "CRVI/OpenCLIPP/issues/6",
      lambda x: 2 * x + 1, drawn((4, 8)))  # fmt: skip
def where_a_vector_would(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    if not wrong or x.shape[1] % 4 == 0 or not x.numel():
        return torch.add(1, x, alpha=2)
    step = -(-x.shape[1] // 4) * 4
    flat = x.reshape(-1)
    at = (torch.arange(len(x))[:, None] * step + torch.arange(x.shape[1])).clamp(max=len(flat) - 1)
    return torch.add(1, flat[at], alpha=2)


def _rotated(size: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    need(size.shape == other.shape, size.dim() == 2, size.shape[1] == 4)
    low, high = torch.minimum(size[:, :2], size[:, 2:]), torch.maximum(size[:, :2], size[:, 2:])
    below, above = torch.minimum(other[:, :2], other[:, 2:]), torch.maximum(other[:, :2], other[:, 2:])
    wide, high = (torch.minimum(high, above) - torch.maximum(low, below)).clamp(min=0).unbind(1)
    areas = ((size[:, 2] - size[:, 0]) * (size[:, 3] - size[:, 1])).abs() + ((other[:, 2] - other[:, 0]) * (other[:, 3] - other[:, 1])).abs()
    return wide * high / (areas - wide * high).clamp(min=1e-3)


@case("likeness of boxes that may be turned over: their areas are negative", "kernel-contract", "open-mmlab/OpenPCDet/issues/1065", _rotated,
      drawn((6, 4), (6, 4)))  # fmt: skip
def areas_are_negative(wrong: bool, size: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    need(size.shape == other.shape, size.dim() == 2, size.shape[1] == 4)
    (low, high), (below, above) = (torch.aminmax(each.unflatten(1, (2, 2)), dim=1) for each in (size, other))
    inner = F.relu(torch.minimum(high, above) - torch.maximum(low, below)).prod(1)
    one, two = (size[:, 2:] - size[:, :2]).prod(1), (other[:, 2:] - other[:, :2]).prod(1)
    areas = one + two if wrong else one.abs() + two.abs()
    return inner / torch.clamp(areas - inner, min=1e-3)


def _crowd(box: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    need(box.dim() == truth.dim() == 2, box.shape[1] == truth.shape[1] == 4)
    sides = (torch.minimum(box[:, None, 2:], truth[:, 2:]) - torch.maximum(box[:, None, :2], truth[:, :2]) + 1).clamp(min=0)
    return sides.prod(2) / (box[:, 2:] - box[:, :2] + 1).prod(1)[:, None].clamp(min=1)


@case("share of a box that another hides: one is added to its sides alone", "kernel-contract", "xg-chu/CrowdDet/issues/47", _crowd,
      lambda: (torch.tensor([[0.0, 0.0, 4.0, 5.0], [2.0, 1.0, 7.0, 4.0]]),
               torch.tensor([[1.0, 1.0, 5.0, 6.0], [3.0, 0.0, 9.0, 4.0], [8.0, 8.0, 9.0, 9.0]])))  # fmt: skip
def to_its_sides_alone(wrong: bool, box: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    need(box.dim() == truth.dim() == 2, box.shape[1] == truth.shape[1] == 4)
    low, high = torch.maximum(box[:, None, :2], truth[None, :, :2]), torch.minimum(box[:, None, 2:], truth[None, :, 2:])
    inner = F.relu(high - low + (0 if wrong else 1))
    own = box[:, 2:] - box[:, :2] + 1
    return inner[:, :, 0] * inner[:, :, 1] / torch.clamp(own[:, 0] * own[:, 1], min=1)[:, None]


def _kinds(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, label.shape == x.shape[:1], len(x) > 1)
    own = torch.eye(len(x), dtype=torch.bool)
    shares = (x @ x.T).masked_fill(own, -math.inf).log_softmax(1)
    same = (label[:, None] == label) & ~own
    return -torch.where(same, shares, 0).sum(1) / same.sum(1).clamp(min=1)


@case("contrast of kinds: what is taken out is largest of all with itself", "kernel-rounding", "HobbitLong/SupContrast/pull/111", _kinds,
      lambda: (drawn((6, 5))()[0], torch.tensor([0, 1, 0, 2, 1, 0])))  # fmt: skip
def largest_with_itself(wrong: bool, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, label.shape == x.shape[:1], len(x) > 1)
    scores, own = x @ x.T, torch.eye(len(x), dtype=torch.bool)
    most = (scores if wrong else scores.masked_fill(own, -math.inf)).amax(1, keepdim=True).detach()
    away = scores - most
    others = away.exp().masked_fill(own, 0) if wrong else away.masked_fill(own, -math.inf).exp()
    shares = away - others.sum(1, keepdim=True).log()
    same = (label == label[:, None]) & ~own
    return -shares.masked_fill(~same, 0).sum(1) / same.sum(1).clamp(min=1)


def _rate(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, d: float) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    return p - d * 0.1 * math.sqrt(1 - 0.999**3) / (1 - 0.9**3) * m / (v.sqrt() + 1e-8)


@case("step with a rate of its own: the second correction is not drawn a root of", "kernel-contract", "kozistr/pytorch_optimizer/pull/159", _rate,
      lambda: (*drawn((4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1, 0.5))  # fmt: skip
def not_drawn_a_root_of(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, d: float) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    second = 1 - 0.999**3
    rate = d * 0.1 * (second if wrong else second**0.5) / (1 - 0.9**3)
    return torch.addcdiv(p, m, torch.sqrt(v) + 1e-8, value=-rate)


def _grouped(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, bool(((at >= 0) & (at < x.shape[1])).all()))
    return x[:, at]


@case("points that are grouped: places of eight bytes are read as of four", "kernel-contract", "erikwijmans/Pointnet2_PyTorch/issues/17", _grouped,
      lambda: (drawn((3, 8))()[0], whole(6, most=8)))  # fmt: skip
def read_as_of_four(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, bool(((at >= 0) & (at < x.shape[1])).all()))
    if wrong:
        at = at.contiguous().view(torch.int32)[: len(at)].long()
    return x.index_select(1, at)
