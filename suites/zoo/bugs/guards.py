"""Scales, temperatures and small numbers that guard: what half precision makes of 1e-8, of e to the fourteenth, of -1e16, of a fine scale."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def coded_weights(dtype: torch.dtype) -> torch.Tensor:
    """Eight-bit codes of small weights, row by row, with a scale and an offset, and what they stand for."""
    weight = (2e-5 + 3e-5 * uniform(12, 1, seed=1)) * (normal(12, 64) + 0.5)
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = ((high - low) / 255).to(dtype).float()  # culprit: weight-ranges
    scale = torch.where(scale == 0, 1e-7, scale)
    offset = torch.round(low / scale)
    codes = (torch.round(weight / scale) - offset).clamp(0, 255).to(torch.uint8)
    kept = scale.to(dtype)  # culprit: weight-ranges
    return (codes.to(dtype) + offset.to(dtype)).float() * kept.float()


def chosen(dtype: torch.dtype) -> torch.Tensor:
    """The loss by which a set of pictures is chosen to label: features near to centres, at a temperature of 0.07."""
    features = functional.normalize(normal(200, 16), dim=1).to(dtype)
    centres = features[:20].clone().requires_grad_()
    nearness = torch.exp(features @ centres.T / 0.07)  # culprit: active-choice
    best = nearness.amax(1)
    apart = torch.exp(centres @ centres.detach().T / 0.07).sum(1)  # culprit: active-choice
    loss = -(best / apart[nearness.argmax(1)]).float().log().mean()
    loss.backward()
    assert centres.grad is not None
    return torch.cat([loss.detach()[None], centres.grad.float().flatten()])


def certain_words(off: float) -> torch.Tensor:
    """The cost of a sentence's class by a network in half that is sure of another one."""
    logits = torch.stack([18 + normal(6), -6 + normal(6, seed=1)], 1).half()
    probabilities = functional.softmax(logits, 1)
    return -torch.log(probabilities[:, 1] + off).float().mean()  # culprit: certain-words


def gathered(masking: float) -> torch.Tensor:
    """Features of the classes that a picture may hold: of each class the mean over its pixels, of one that is absent that over all."""
    features, labels = normal(64, 8).half(), torch.arange(64) % 3
    present = functional.one_hot(labels, 4).T.half()
    scores = (normal(4, 64, seed=1) / 4).half() + (1 - present) * masking  # culprit: absent-classes
    return (functional.softmax(scores, -1) @ features).float()  # culprit: absent-classes


BUGS = (
    Bug("weight-ranges", "qualcomm/aimet#3231", ("underflow",), "aten._to_copy.default", lambda: coded_weights(HALF),
        lambda: coded_weights(WIDE)),
    Bug("active-choice", "yichen928/ActiveFT#4", ("overflow",), "aten.exp.default", lambda: chosen(HALF), lambda: chosen(WIDE)),
    Bug("certain-words", "lisa-lab/DeepLearningTutorials#86", ("vanished-constant", "underflow"), "aten.add.Tensor",
        lambda: certain_words(1e-8), lambda: certain_words(1e-6)),
    Bug("absent-classes", "SegmentationBLWX/sssegmentation#83", ("overflow", "nan"), "aten.mul.Tensor", lambda: gathered(-1e16),
        lambda: gathered(-1e4)),
)  # fmt: skip
