"""Losses that add up, or raise to a power of e, more than float16 holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

MECHANISM = "overflow"


class Dice(nn.Module):
    """Twice the overlap over the sizes; a mask of 400 x 400 that is full overflows both."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inside = torch.sigmoid(logits)
        if self.wide:
            inside, mask = inside.float(), mask.float()
        overlap = (inside * mask).sum()  # culprit: dice
        sizes = inside.sum() + mask.sum()  # culprit: dice
        return 1 - 2 * overlap / sizes


def segmentation() -> tuple[torch.Tensor, torch.Tensor]:
    return 2.5 + normal(400, 400), torch.ones(400, 400)


class Smoothed(nn.Module):
    """Cross entropy with a share for every word: 30 000 negative log-probabilities of 20 make 600 000."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        surprise = -functional.log_softmax(logits, -1)
        right = surprise.gather(-1, words[:, None]).mean()
        every = surprise.sum(-1, dtype=torch.float32 if self.wide else None)  # culprit: label-smoothing
        return 0.9 * right + 0.1 * every.mean() / logits.shape[-1]


def words() -> tuple[torch.Tensor, torch.Tensor]:
    return 8 * normal(2, 30_000), torch.tensor([11, 2929])


def assignment(scores: torch.Tensor, stable: bool) -> torch.Tensor:
    """Prototypes shared out evenly among samples, from exp(score / 0.05) without the largest taken off."""
    hot = scores.float() / 0.05 if stable else scores / 0.05
    plan = torch.exp(hot - hot.max() if stable else hot)  # culprit: prototype-scores
    plan = plan / plan.sum()
    for _ in range(3):
        plan = plan / plan.sum(0, keepdim=True) / plan.shape[1]
        plan = plan / plan.sum(1, keepdim=True) / plan.shape[0]
    return plan * plan.shape[0]


def prototypes(stable: bool) -> torch.Tensor:
    return assignment((0.25 * normal(12, 40)).half(), stable)


def agreement(first: torch.Tensor, second: torch.Tensor, stable: bool) -> torch.Tensor:
    """Contrastive loss of two views; the similarity of a pair is 1, over a temperature of 0.06 it is 16.7, and e to that 1.7e7."""
    close = first @ second.T / 0.06
    if stable:
        return functional.cross_entropy(close.float(), torch.arange(len(close)))
    powers = torch.exp(close)  # culprit: hand-written-softmax
    return -torch.log(powers.diagonal() / powers.sum(1)).mean()


def views() -> tuple[torch.Tensor, torch.Tensor]:
    first = functional.normalize(normal(10, 24), dim=1)
    return first.half(), functional.normalize(first + 0.05 * normal(10, 24, seed=1), dim=1).half()


def half(model: nn.Module, values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return model(values.half(), target.half() if target.is_floating_point() else target)


def measured(model: nn.Module, *inputs: torch.Tensor) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "precision": "16-true"}


BUGS = (
    Bug("dice", "qubvel-org/segmentation_models.pytorch#463", ("overflow",), "aten.sum.default", lambda: half(Dice(False), *segmentation()),
        lambda: half(Dice(True), *segmentation()), module="Dice", measured=lambda fixed: measured(Dice(fixed), *segmentation())),
    Bug("label-smoothing", "huggingface/transformers#10674", ("overflow",), "aten.sum.dim_IntList", lambda: half(Smoothed(False), *words()),
        lambda: half(Smoothed(True), *words()), module="Smoothed", measured=lambda fixed: measured(Smoothed(fixed), *words())),
    Bug("prototype-scores", "facebookresearch/dinov2#583", ("overflow",), "aten.exp.default", lambda: prototypes(False),
        lambda: prototypes(True)),
    Bug("hand-written-softmax", "UKPLab/sentence-transformers#2774", ("overflow",), "aten.exp.default", lambda: agreement(*views(), False),
        lambda: agreement(*views(), True)),
)  # fmt: skip
