"""The twenty-fifth frozen set of broken kernels, first part: losses, likenesses of boxes, steps. Of links an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional


def _shares(*shape: int) -> torch.Tensor:
    return drawn(shape)()[0].sigmoid()


def _labels(*shape: int) -> torch.Tensor:
    return (drawn((2, *shape))()[0][1] > 0.2).float()


def _dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    return 1 - 2 * (p * t).sum(1) / (p.square().sum(1) + t.square().sum(1) + 1e-3)


@case("dice loss: what it is divided by is not squared", "kernel-contract", "argman/EAST/issues/288", _dice, lambda: (_shares(3, 8), _labels(3, 8)))
def not_squared(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    sizes = p.sum(1) + t.sum(1) if wrong else torch.linalg.vecdot(p, p) + torch.linalg.vecdot(t, t)
    return 1 - 2 * torch.linalg.vecdot(p, t) / (sizes + 1e-3)


def _smoothed_dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    return 1 - (2 * (p * t).sum(1) + 1e-5) / (p.sum(1) + t.sum(1) + 1e-5)


@case("dice loss: smoothed below alone, so that nothing and nothing differ", "kernel-contract", "aim-uofa/AdelaiDet/issues/610", _smoothed_dice,
      lambda: (_shares(3, 8), _labels(3, 8)))  # fmt: skip
def smoothed_below_alone(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    both, sizes = torch.einsum("ni,ni->n", p, t), (p + t).sum(1)
    return 1 - (2 * both + (0.0 if wrong else 1e-5)) / (sizes + 1e-5)


def _dot(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == t.shape)
    return (2 * (p * t).sum() + 1e-4) / (p.sum() + t.sum() + 1e-4)


@case("overlap of two pictures: what smooths is doubled with the overlap", "kernel-contract", "milesial/Pytorch-UNet/issues/24", _dot,
      lambda: (_shares(3, 4), _labels(3, 4)))  # fmt: skip
def doubled_with_the_overlap(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == t.shape)
    both = torch.dot(p.flatten(), t.flatten())
    return (2 * (both + 1e-4) if wrong else 2 * both + 1e-4) / (p.sum() + t.sum() + 1e-4)


def _weighed(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 3, p.shape == t.shape)
    w = 1 / (t.sum(2).square() + 1)
    return 1 - 2 * (w * (p * t).sum(2)).sum(1) / ((w * (p + t).sum(2)).sum(1) + 1e-3)


@case("dice loss with weights of classes: divided class by class, so that weights cancel", "kernel-contract", "Project-MONAI/MONAI/issues/369",
      _weighed, lambda: (_shares(2, 3, 6), _labels(2, 3, 6)))  # fmt: skip
def class_by_class(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 3, p.shape == t.shape)
    each = t.sum(2)
    w, both, sizes = 1 / (each * each + 1), (p * t).sum(2), p.sum(2) + each
    if wrong:
        return 1 - (2 * w * both / (w * sizes + 1e-3)).mean(1)
    return 1 - 2 * (w * both).sum(1) / ((w * sizes).sum(1) + 1e-3)


def _infill(x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape == hidden.shape)
    return torch.where(hidden, (x - y).square(), 0).sum(1) / hidden.sum(1).clamp(min=1)


@case("loss of what is filled in: numbers of the one side, counts of the other", "kernel-mask", "lucidrains/voicebox-pytorch/issues/6", _infill,
      lambda: (*drawn((3, 7), (3, 7))(), torch.arange(7) < torch.tensor([[2], [5], [4]])))  # fmt: skip
def of_the_other_side(wrong: bool, x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape == hidden.shape)
    away = (x - y) ** 2
    each = away.masked_fill(hidden if wrong else ~hidden, 0)
    return each.sum(1) / hidden.sum(1).clamp(min=1)


def _translation(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2, labels.shape == logits.shape[:1])
    return F.cross_entropy(logits, labels, ignore_index=0, reduction="sum") / (labels != 0).sum().clamp(min=1)


@case("loss of a translation: a mean over what fills up, too", "kernel-mask", "tensorflow/docs/pull/1460", _translation,
      lambda: (*drawn((8, 6))(), torch.tensor([3, 1, 5, 2, 0, 4, 0, 0])))  # fmt: skip
def mean_over_what_fills_up(wrong: bool, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2, labels.shape == logits.shape[:1], logits.shape[1] > 0, bool(((labels >= 0) & (labels < logits.shape[1])).all()))
    each = logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]
    each = each.masked_fill(labels == 0, 0)
    return each.sum() / max(len(each) if wrong else int((labels != 0).sum()), 1)


def _distilled(student: torch.Tensor, teacher: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(student.dim() == 3, student.shape == teacher.shape, keep.shape == student.shape[:2])
    each = F.kl_div(student.log_softmax(2), teacher.log_softmax(2), reduction="none", log_target=True).sum(2)
    return torch.where(keep, each, 0).sum() / keep.sum().clamp(min=1)


@case("divergence from a teacher: rows that fill up are in the sum", "kernel-mask", "arcee-ai/DAM/pull/16", _distilled,
      lambda: (*drawn((2, 4, 5), (2, 4, 5))(), torch.arange(4) < torch.tensor([[4], [2]])))  # fmt: skip
def rows_in_the_sum(wrong: bool, student: torch.Tensor, teacher: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(student.dim() == 3, student.shape == teacher.shape, keep.shape == student.shape[:2])
    own, other = F.log_softmax(student, 2), F.log_softmax(teacher, 2)
    each = (other.exp() * (other - own)).sum(2)
    return (each if wrong else each.masked_fill(~keep, 0)).sum() / keep.sum().clamp(min=1)


def _token_scale(loss: torch.Tensor, made: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    need(loss.dim() == 2, loss.shape == made.shape, steps.shape == loss.shape[:1])
    kept = made & (torch.arange(loss.shape[1]) < steps[:, None])
    return torch.where(kept, loss, 0).sum() / kept.sum().clamp(min=1)


@case("scale of a loss: tokens behind a sequence's end are counted", "kernel-mask", "PrimeIntellect-ai/prime-rl/pull/674", _token_scale,
      lambda: (*drawn((3, 8))(), torch.arange(8).expand(3, 8) > 1, torch.tensor([8, 5, 6])))  # fmt: skip
def behind_the_end(wrong: bool, loss: torch.Tensor, made: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    need(loss.dim() == 2, loss.shape == made.shape, steps.shape == loss.shape[:1])
    kept = made & (torch.arange(loss.shape[1]) < steps[:, None])
    return loss.masked_fill(~kept, 0).sum() / (made if wrong else kept).sum().clamp(min=1)


def _pairs(anchor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    need(anchor.dim() == 2, anchor.shape == other.shape)
    scores = anchor @ other.T
    return torch.logsumexp(scores - scores.diagonal()[:, None], 1)


@case("loss of pairs: the logarithm of a sum that overflows", "kernel-rounding", "leeesangwon/PyTorch-Image-Retrieval/pull/16", _pairs,
      drawn((4, 6), (4, 6)))  # fmt: skip
def sum_that_overflows(wrong: bool, anchor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    need(anchor.dim() == 2, anchor.shape == other.shape)
    scores = anchor @ other.T
    away = scores - torch.einsum("ii->i", scores)[:, None]
    if wrong:
        return away.exp().sum(1).log()
    return F.softplus(away.masked_fill(torch.eye(len(away), dtype=torch.bool), -math.inf).logsumexp(1), threshold=60.0)


def _mixture(x: torch.Tensor, mean: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == mean.dim() == 2, x.shape[1] == mean.shape[1], share.shape == mean.shape[:1])
    return torch.logsumexp(share.log_softmax(0) - 0.5 * (x[:, None] - mean).square().sum(2), 1)


@case("likelihood of a mixture: powers are added up before their logarithm", "kernel-rounding", "mlberkeley/scae-pytorch/pull/4", _mixture,
      drawn((5, 3), (4, 3), (4,)))  # fmt: skip
def powers_are_added_up(wrong: bool, x: torch.Tensor, mean: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == mean.dim() == 2, x.shape[1] == mean.shape[1], share.shape == mean.shape[:1], len(mean) > 0)
    each = F.log_softmax(share, 0) - (x[:, None] - mean).pow(2).sum(2) / 2
    if wrong:
        return each.exp().sum(1).log()
    most = each.amax(1, keepdim=True).detach()
    return (each - most).exp().sum(1).log() + most[:, 0]


@case("logarithm of a sum of powers: the largest number of all rows is taken out", "kernel-rounding", "amdegroot/ssd.pytorch/issues/483",
      lambda x: torch.logsumexp(x, 1), drawn((4, 6)))  # fmt: skip
def largest_of_all_rows(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    most = (x.amax() if wrong else x.amax(1, keepdim=True)).detach()
    most = torch.where(most.isfinite() | most.isnan(), most, 0)
    return (x - most).exp().sum(1).log() + (most if wrong else most[:, 0])


def _box_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[1] == 4)
    inner = (torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])).clamp(min=0).prod(2)
    sizes = (a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1)
    return inner / (sizes - inner + 1e-6)


def _boxes(seed: int, count: int) -> torch.Tensor:
    corners = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed)) * 10
    return torch.cat([corners[0], corners[0] + corners[1] + 0.5], 1)


@case("likeness of boxes: one is added to each side", "kernel-contract", "facebookresearch/maskrcnn-benchmark/issues/1020", _box_iou,
      lambda: (_boxes(1, 4), _boxes(2, 3)))  # fmt: skip
def one_is_added(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[1] == 4)
    more = 1 if wrong else 0
    (x1, y1, x2, y2), (u1, v1, u2, v2) = a[:, :, None].unbind(1), b.T[:, None]
    wide = (torch.minimum(x2, u2) - torch.maximum(x1, u1) + more).clamp(min=0)
    high = (torch.minimum(y2, v2) - torch.maximum(y1, v1) + more).clamp(min=0)
    sizes = (x2 - x1 + more) * (y2 - y1 + more) + (u2 - u1 + more) * (v2 - v1 + more)
    return wide * high / (sizes - wide * high + 1e-6)


def _own_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape, a.dim() == 2, a.shape[1] == 4)
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    return inner / ((a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - inner + 1e-6)


@case("likeness of boxes that are apart: two negative sides make an overlap", "kernel-contract", "mystic123/tensorflow-yolo-v3/issues/84", _own_iou,
      lambda: (_boxes(3, 6), _boxes(4, 6)))  # fmt: skip
def two_negative_sides(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape, a.dim() == 2, a.shape[1] == 4)
    sides = torch.minimum(a, b)[:, 2:] - torch.maximum(a, b)[:, :2]
    inner = (sides if wrong else F.relu(sides)).prod(1)
    one, other = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    return inner / (one[:, 0] * one[:, 1] + other[:, 0] * other[:, 1] - inner + 1e-6)


def _adamw(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    return p - 0.01 * (m / 0.19) / ((v / 0.002).sqrt() + 1e-8) - 0.01 * 0.1 * p


@case("step of adamw: the decay is divided as the step is", "kernel-contract", "joennlae/tensorli/issues/1", _adamw,
      lambda: (*drawn((4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1))  # fmt: skip
def divided_as_the_step(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    below = torch.sqrt(v / 0.002) + 1e-8
    if wrong:
        return p - 0.01 * (m / 0.19 + 0.1 * p) / below
    return torch.addcdiv(p * (1 - 0.001), m, below, value=-0.01 / 0.19)


def _adam(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    return p - 0.01 * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-4)


@case("step of adam: both means are multiplied by what they are to be divided by", "kernel-contract", "karpathy/convnetjs/pull/107", _adam,
      lambda: (*drawn((3, 6), (3, 6))(), drawn((3, 6))()[0].square() + 0.1, 4))  # fmt: skip
def multiplied_not_divided(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    one, two = 1 - 0.9**step, 1 - 0.99**step
    if wrong:
        return p - 0.01 * m * one / ((v * two).sqrt() + 1e-4)
    return p - (0.01 / one) * m / (v.sqrt() * two**-0.5 + 1e-4)


@case("softplus: its slope is the share of the result", "kernel-gradient", "NVlabs/tiny-cuda-nn/pull/130", lambda x: F.softplus(x, threshold=60.0),
      drawn((4, 7)))  # fmt: skip
def share_of_the_result(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        out = torch.logaddexp(x, torch.zeros((), dtype=x.dtype))
        return out, (x, out)

    return function(forward, lambda saved, g: g * torch.sigmoid(saved[1] if wrong else saved[0]))


@case("convolution: of a batch the first is read each time", "kernel-edge", "Pegessi/conv2d_direct/issues/1",
      lambda x, w: F.conv1d(x, w), drawn((1, 3, 9), (4, 3, 3)))  # fmt: skip
def first_of_a_batch(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], 0 < w.shape[2] <= x.shape[2], x.numel() > 0, len(w) > 0)
    windows = x.unfold(2, w.shape[2], 1)
    if wrong:
        windows = windows[:1].expand_as(windows)
    return torch.einsum("nctk,ock->not", windows, w)
