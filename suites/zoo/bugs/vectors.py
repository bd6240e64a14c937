"""Lengths, shares and differences of vectors: what libraries compute of them in the format that they came in."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def unit_vectors(wide: bool) -> torch.Tensor:
    """Embeddings over their length plus 1e-32; a text of unknown words only has none."""
    x = normal(4, 16).half()
    x[2] = 0
    given = x.float() if wide else x
    return given / (given.norm(dim=1, keepdim=True) + 1e-32)  # culprit: no-known-word


def rescaled(wide: bool) -> torch.Tensor:
    """Merging models: what a mask left is scaled to the sum of absolute weights that there was, 160000."""
    weight = torch.ones(400, 400).half()
    left = weight * (torch.arange(400) % 2)
    first, second = (weight.float(), left.float()) if wide else (weight, left)
    return left * (first.abs().sum() / second.abs().sum()).half()  # culprit: rescaled-merge


class Contrastive(torch.autograd.Function):
    """max(0, 1 - distance)², whose slope divides by a distance plus 1e-7: in half, a distance of zero gives Inf, times zero."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(a - b)
        ctx.eps = eps
        return (1 - (a - b).float().norm(dim=1)).clamp(min=0).square().mean()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (apart,) = ctx.saved_tensors
        distance = apart.float().norm(dim=1, keepdim=True).to(apart.dtype)
        share = 2 * (1 - distance).clamp(min=0) / (distance + ctx.eps)  # culprit: contrastive-slope
        return -share * apart * upstream[0] / len(apart), None, None


def pulled(eps: float) -> torch.Tensor:
    a = (0.2 * normal(6, 4)).half().requires_grad_()
    b = a.detach().clone()
    b[1:] += 0.25
    Contrastive.apply(a, b, eps).backward()
    assert a.grad is not None
    return a.grad


def draft_slope(wide: bool) -> torch.Tensor:
    """A draft model that has learnt its target: the gradient of their divergence is a difference of nearly equal probabilities."""
    target = torch.round(16 * normal(16, 200)) / 8
    draft = target + (uniform(16, 200, seed=1) < 0.1) / 16
    p, q = (torch.softmax((each.float() if wide else each.to(LOW)), -1) for each in (draft, target))  # culprit: learnt-draft
    return (p - q).float()  # culprit: learnt-draft


def added_tensors(wide: bool) -> torch.Tensor:
    """Seven gradients of half a spacing each, added to one: each of them is rounded away."""
    parts = [torch.ones(8).half(), *(torch.full((8,), 2.0**-11).half() for _ in range(60))]
    total = parts[0].float() if wide else parts[0]
    for part in parts[1:]:
        total = total + part  # culprit: added-tensors
    return total.float() - 1


def average_loss(wide: bool) -> torch.Tensor:
    """A mean whose divisor, 90000, is a number of the tensor's format: the loss is zero."""
    error = (0.5 + uniform(300, 300)).half().float() if wide else (0.5 + uniform(300, 300)).half()
    number = torch.tensor(float(error.numel())).to(error.dtype)  # culprit: infinite-number
    return (error / number).float().sum()


def logit_normal(wide: bool) -> torch.Tensor:
    """Timesteps as a sigmoid, kept off one by 1e-5, which bfloat16 does not know: the weight 1 / (1 - t) is Inf."""
    draw = torch.cat([3 * normal(60), torch.tensor([7.0, 8.0, 9.0])]).to(LOW)
    t = torch.sigmoid(draw.float() if wide else draw).clamp(1e-5, 1 - 1e-5)  # culprit: saturated-times
    return (1 / (1 - t)).float().log()  # culprit: saturated-times


def curvature(low: bool) -> torch.Tensor:
    """Second derivatives of a product, by dividing it by each factor: 4000 / 0.03 leaves float16, though 0.03 is multiplied next."""
    x = torch.tensor([2.0**-5, 1.0, 1.0, 1.0]).to(HALF if low else WIDE).requires_grad_()
    (slope,) = torch.autograd.grad(4000.0 * x.prod(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope[0], x)  # culprit: curvature-of-product
    return second[1:].float()


def quaternion_log(wide: bool) -> torch.Tensor:
    """The logarithm of a rotation: its vector part over its length, kept from zero by 1e-8; the identity has none."""
    q = functional.normalize(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.8, 0.6, 0.0, 0.0], [0.5, 0.5, -0.5, 0.5]]), dim=-1).half()
    q = q.float() if wide else q
    length = q[:, 1:].norm(dim=-1, keepdim=True).clamp(min=1e-8)  # culprit: identity-rotation
    return q[:, 1:] / length * 2 * torch.atan2(length, q[:, :1])


BUGS = (
    Bug("no-known-word", "MinishLab/model2vec#368", ("vanished-constant",), "aten.add.Tensor", lambda: unit_vectors(False),
        lambda: unit_vectors(True)),
    Bug("rescaled-merge", "arcee-ai/mergekit#704", ("overflow",), "aten.sum.default", lambda: rescaled(False), lambda: rescaled(True)),
    Bug("contrastive-slope", "chainer/chainer#7745", ("underflow", "overflow"), "aten.div.Tensor", lambda: pulled(1e-7), lambda: pulled(5e-3),
        phase="backward"),
    Bug("learnt-draft", "vllm-project/speculators#788", ("amplified-rounding", "cancellation"), "aten._softmax.default or aten.sub.Tensor",
        lambda: draft_slope(False), lambda: draft_slope(True)),
    Bug("added-tensors", "tensorflow/tensorflow#27544", ("absorption",), "aten.add.Tensor", lambda: added_tensors(False),
        lambda: added_tensors(True)),
    Bug("infinite-number", "chelsea0x3b/dfdx#748", ("overflow",), "aten._to_copy.default", lambda: average_loss(False),
        lambda: average_loss(True)),
    Bug("saturated-times", "koda-dernet/Side-Step#38", ("vanished-constant",), "aten.clamp.default", lambda: logit_normal(False),
        lambda: logit_normal(True)),
    Bug("curvature-of-product", "pytorch/pytorch#193012", ("overflow",), "aten.mul.Tensor", lambda: curvature(True), lambda: curvature(False),
        phase="backward"),
    Bug("identity-rotation", "kornia/kornia#3966", ("vanished-constant",), "aten.clamp.default", lambda: quaternion_log(False),
        lambda: quaternion_log(True)),
)  # fmt: skip
