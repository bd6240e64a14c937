"""The twenty-sixth frozen set of broken kernels, first part: losses, boxes, steps, gradients. Of links an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional


@case("copysign: its slope is the sign of the second number", "kernel-gradient", "chalk-lab/Mooncake.jl/issues/1195", torch.copysign,
      drawn((4, 6), (4, 6)))  # fmt: skip
def sign_of_the_second(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape)
        return torch.where(torch.signbit(y), -x.abs(), x.abs()), (x, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y = saved
        side = torch.where(torch.signbit(y), -1.0, 1.0).to(g.dtype)
        return g * side * (1 if wrong else x.sign()), torch.zeros_like(y)

    return function(forward, backward)


@case("difference: the second gradient has the sign of the first", "kernel-gradient", "KhawajaAbaid/micrograd_c/issues/1",
      lambda x, y: (x - y).square(), drawn((5, 3), (5, 3)))  # fmt: skip
def the_sign_of_the_first(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape)
        gap = torch.sub(x, y)
        return gap * gap, (gap,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        into = 2 * saved[0] * g
        return into, (into if wrong else -into)

    return function(forward, backward)


def _density(x: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, variance.shape == x.shape[1:], bool((variance > 0).all()))
    return -0.5 * (x.square() / variance + variance.log()).sum(1)


@case("log density of a normal vector: the slope of the variance has the other sign", "kernel-gradient", "HIPS/autograd/pull/412", _density,
      lambda: (drawn((4, 5))()[0], drawn((5,))()[0].square() + 0.3))  # fmt: skip
def has_the_other_sign(wrong: bool, x: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, variance.shape == x.shape[1:], bool((variance > 0).all()))

    def forward(x: torch.Tensor, variance: torch.Tensor) -> Any:
        wide, over = x.double(), variance.double()
        return ((wide * wide / over + over.log()).sum(1) * -0.5).to(x.dtype), (x, variance)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        wide, over = (each.double() for each in saved)
        slope = 0.5 * ((wide / over).square() - 1 / over)
        into = (g.double()[:, None] * slope).sum(0)
        return (-g.double()[:, None] * wide / over).to(g.dtype), (-into if wrong else into).to(g.dtype)

    return function(forward, backward)(x, variance)


@case("binomial loss: its slope lacks the two of the exponent", "kernel-gradient", "schalkdaniel/compboost/issues/260",
      lambda score, y: F.softplus(-2 * y * score), lambda: (drawn((7,))()[0], drawn((7,))()[0].sign()))  # fmt: skip
def lacks_the_two(wrong: bool, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(score.shape == y.shape)

    def forward(score: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.logaddexp(-2 * y * score, torch.zeros_like(score)), (score, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        score, y = saved
        share = -(1 if wrong else 2) * torch.sigmoid(-2 * y * score) * g
        return share * y, -2 * torch.sigmoid(-2 * y * score) * g * score

    return function(forward, backward)(score, y)


def _instance(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    return F.layer_norm(x, x.shape[2:], eps=1e-5)


@case("instance norm: the variance is that of a sample", "kernel-contract", "LBANN/lbann/pull/2024", _instance, drawn((2, 3, 9)))
def that_of_a_sample(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] > 0)
    mean = x.mean(2, keepdim=True)
    even = x - mean
    count = max(x.shape[2] - 1, 1) if wrong else x.shape[2]
    return even * torch.rsqrt((even * even).sum(2, keepdim=True) / count + 1e-5)


def _adamw(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, bool((v >= 0).all()))
    return p - 0.1 * 0.3 * p - 0.1 * m / (v.sqrt() + 1e-6)


@case("adamw: the decay is that of the number after its step", "kernel-contract", "stanford-cs336/assignment1-basics/issues/54", _adamw,
      lambda: (*drawn((4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1))  # fmt: skip
def after_its_step(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, bool((v >= 0).all()))
    step = torch.div(m, torch.sqrt(v) + 1e-6) * 0.1
    return (p - step) * (1 - 0.03) if wrong else p * (1 - 0.03) - step


@case("momentum with decay: the decay does not know the number", "kernel-contract", "e-sensing/torchopt/pull/14",
      lambda p, m: p - 0.1 * (m + 0.2 * p), drawn((3, 7), (3, 7)))  # fmt: skip
def does_not_know_the_number(wrong: bool, p: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape)
    return torch.add(p, m, alpha=-0.1) - (0.1 * 0.2 if wrong else 0.1 * 0.2 * p)


def _focal(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(p.shape == y.shape, bool(((p >= 0) & (p <= 1)).all()))
    shown = torch.where(y, p, 1 - p)
    return -(1 - shown) ** 2 * (shown + 1e-7).log()


@case("focal loss: nothing is added to a share of zero", "kernel-contract", "mkocabas/focal-loss-keras/issues/17", _focal,
      lambda: (torch.cat([drawn((10,))()[0].sigmoid(), torch.tensor([0.0, 1.0])]), torch.tensor([True, False] * 6)))  # fmt: skip
def nothing_is_added(wrong: bool, p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(p.shape == y.shape, bool(((p >= 0) & (p <= 1)).all()))
    yes, no = p, 1 - p
    kept = 0.0 if wrong else 1e-7
    return torch.where(y, -no.square() * torch.log(yes + kept), -(1 - no).square() * torch.log(no + kept))


def _entropy(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(p.shape == y.shape, bool(((p >= 0) & (p <= 1) & (y >= 0) & (y <= 1)).all()))
    return -(y * p.log().clamp(min=-100) + (1 - y) * (1 - p).log().clamp(min=-100)).sum(1)


@case("cross entropy of shares: logarithms have no least value", "kernel-contract", "zylo117/Yet-Another-EfficientDet-Pytorch/issues/717", _entropy,
      lambda: (torch.cat([drawn((3, 4))()[0].sigmoid(), torch.tensor([[0.0, 1.0, 0.5, 0.0]])]),
               torch.cat([drawn((3, 4))()[0].sigmoid(), torch.tensor([[1.0, 0.0, 0.25, 0.5]])])))  # fmt: skip
def have_no_least_value(wrong: bool, p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(p.shape == y.shape, p.dim() == 2, bool(((p >= 0) & (p <= 1) & (y >= 0) & (y <= 1)).all()))
    yes, no = p.log(), torch.log(1 - p)
    if not wrong:
        yes, no = yes.clamp_min(-100), no.clamp_min(-100)
    return -(torch.linalg.vecdot(y, yes) + torch.linalg.vecdot(1 - y, no))


def _sides(box: torch.Tensor) -> torch.Tensor:
    return (box[:, 2:] - box[:, :2]).clamp(min=0)


def _giou(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.shape == two.shape, one.dim() == 2, one.shape[1] == 4)
    inner = (torch.minimum(one[:, 2:], two[:, 2:]) - torch.maximum(one[:, :2], two[:, :2])).clamp(min=0).prod(1)
    outer = (torch.maximum(one[:, 2:], two[:, 2:]) - torch.minimum(one[:, :2], two[:, :2])).clamp(min=0).prod(1)
    union = _sides(one).prod(1) + _sides(two).prod(1) - inner
    return inner / (union + 1e-3) - (outer - union) / (outer + 1e-3)


def _boxes() -> tuple[torch.Tensor, torch.Tensor]:
    made = [torch.cat([low, low + size.abs() + 0.5], 1) for low, size in (drawn((6, 2), (6, 2))(), drawn((6, 2), (6, 2))()[::-1])]
    return made[0], made[1]


@case("generalised likeness of boxes: the overlap is taken for the union", "kernel-contract", "Megvii-BaseDetection/YOLOX/issues/712", _giou, _boxes)
def taken_for_the_union(wrong: bool, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.shape == two.shape, one.dim() == 2, one.shape[1] == 4)
    lows, highs = torch.stack([one, two])[:, :, :2], torch.stack([one, two])[:, :, 2:]
    inner = F.relu(highs.amin(0) - lows.amax(0))
    outer = F.relu(highs.amax(0) - lows.amin(0))
    overlap, around = inner[:, 0] * inner[:, 1], outer[:, 0] * outer[:, 1]
    union = F.relu(one[:, 2:] - one[:, :2]).prod(1) + F.relu(two[:, 2:] - two[:, :2]).prod(1) - overlap
    return overlap / (union + 1e-3) - (around - (overlap if wrong else union)) / (around + 1e-3)


@case("likeness of boxes from predictions: sides below zero give an area", "kernel-contract", "roboflow/trackers/pull/589", _giou,
      lambda: (torch.tensor([[0.0, 0.0, 2.0, 3.0], [4.0, 5.0, 1.0, 2.0], [1.0, 1.0, 3.0, 2.0], [6.0, 3.0, 2.0, 1.0]]),
               torch.tensor([[1.0, 1.0, 3.0, 4.0], [0.0, 0.0, 2.0, 2.0], [5.0, 4.0, 2.0, 2.5], [1.0, 0.0, 4.0, 5.0]])))  # fmt: skip
def give_an_area(wrong: bool, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.shape == two.shape, one.dim() == 2, one.shape[1] == 4)
    sides = [each[:, 2:] - each[:, :2] if wrong else F.relu(each[:, 2:] - each[:, :2]) for each in (one, two)]
    inner = F.relu(torch.minimum(one, two)[:, 2:] - torch.maximum(one, two)[:, :2])
    outer = F.relu(torch.maximum(one, two)[:, 2:] - torch.minimum(one, two)[:, :2])
    overlap, around = inner[:, 0] * inner[:, 1], outer[:, 0] * outer[:, 1]
    union = sides[0][:, 0] * sides[0][:, 1] + sides[1][:, 0] * sides[1][:, 1] - overlap
    return overlap / (union + 1e-3) - (around - union) / (around + 1e-3)


def _likeness(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.dim() == two.dim() == 2, one.shape[1] == two.shape[1] == 4)
    sides = (torch.minimum(one[:, None, 2:], two[:, 2:]) - torch.maximum(one[:, None, :2], two[:, :2])).clamp(min=0)
    inner = sides.prod(2)
    return inner / (_sides(one).prod(1)[:, None] + _sides(two).prod(1) - inner + 1e-3)


@case("likeness of poses' boxes: two that are apart on both sides overlap", "kernel-contract", "MVIG-SJTU/AlphaPose/issues/30", _likeness,
      lambda: (_boxes()[0] * 2, _boxes()[1][:4]))  # fmt: skip
def apart_on_both_sides(wrong: bool, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.dim() == two.dim() == 2, one.shape[1] == two.shape[1] == 4)
    a, b = one[:, None], two[None]
    wide = torch.minimum(a[..., 2], b[..., 2]) - torch.maximum(a[..., 0], b[..., 0])
    high = torch.minimum(a[..., 3], b[..., 3]) - torch.maximum(a[..., 1], b[..., 1])
    inner = wide * high if wrong else wide.relu() * high.relu()
    areas = [(each[..., 2] - each[..., 0]).relu() * (each[..., 3] - each[..., 1]).relu() for each in (a, b)]
    return inner / (areas[0] + areas[1] - inner + 1e-3)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] == x.shape[2] == 2, bool(x.isfinite().all()))
    return torch.linalg.inv(x)


@case("inverse of two by two: rows and columns change places", "kernel-contract", "recp/cglm/issues/1", _inverse,
      lambda: (drawn((5, 2, 2))()[0] + 3 * torch.eye(2),))  # fmt: skip
def change_places(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] == x.shape[2] == 2)
    (a, b), (c, d) = x[:, 0].unbind(1), x[:, 1].unbind(1)
    by = a * d - b * c
    made = torch.stack([d, -b, -c, a], 1).div(by[:, None]).unflatten(1, (2, 2))
    return made.transpose(1, 2).contiguous() if wrong else made


def _pooled(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    padded, seen = F.pad(x, (3, 3)), F.pad(torch.ones_like(x), (3, 3))
    total, count = padded.unfold(1, 3, 3).sum(2), seen.unfold(1, 3, 3).sum(2)
    return torch.where(count > 0, total / count.clamp(min=1), 0)


@case("means of windows with padding: of padding alone it is NaN", "kernel-contract", "CanReader/FastNN/issues/5", _pooled, drawn((2, 7)))
def of_padding_alone(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out = []
    for begin in range(-3, x.shape[1] + 1, 3):
        part = x[:, max(begin, 0) : max(begin + 3, 0)]
        out.append(part.mean(1) if part.shape[1] or wrong else x.new_zeros(len(x)))
    return torch.stack(out, 1)


def _second(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) > 2)
    return F.pad((x[:-2] + x[2:] - 2 * x[1:-1]) / 0.01, (1, 1))


@case("second differences: the ends are reckoned with what lies beside them", "kernel-contract", "myurtoglu/cudaforengineers/issues/5", _second,
      drawn((12,)))  # fmt: skip
def what_lies_beside(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) > 2)
    made = (torch.roll(x, 1) - 2 * x + torch.roll(x, -1)) / math.pow(0.1, 2)
    if wrong:
        return made
    inner = torch.arange(len(x)).clamp(1, len(x) - 2) == torch.arange(len(x))
    return torch.where(inner, made, 0)
