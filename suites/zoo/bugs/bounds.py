"""Comparisons in the format of what is compared: a bound of 0.999 is one in bfloat16, and one of 1e-8 is nothing in half."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class PseudoLabels(nn.Module):
    """Takes what a teacher is sure of as labels for a student, as semi-supervised training does."""

    def __init__(self, threshold: float, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.threshold, self.wide, self.teacher = threshold, wide, nn.Linear(12, 4)
        with torch.no_grad():
            self.teacher.weight.mul_(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sure, label = torch.softmax(self.teacher(x), -1).max(-1)
        sure = wider(sure) if self.wide else sure
        taken = sure > self.threshold  # culprit: sure-labels
        return torch.bincount(label[taken], minlength=4).float()


def labelled(wide: bool) -> torch.Tensor:
    """How many pictures of each kind a student gets labels for. It gets none."""
    with torch.no_grad():
        return PseudoLabels(0.9999, wide).to(LOW)(normal(200, 12).to(LOW))


def halted(wide: bool) -> torch.Tensor:
    """How many turns each token thinks, which ends when its halting probability has added up to one but for a thousandth. None of them ends."""
    total, turns = torch.zeros(32).to(LOW), torch.zeros(32)
    for turn in range(12):
        more = torch.minimum((0.1 + 0.2 * uniform(32, seed=turn)).to(LOW), 1 - total)
        total = total + more
        going = (wider(total) if wide else total) < 1 - 1e-3  # culprit: thoughts-that-go-on
        done = (wider(total) if wide else total) > 1 - 1e-3  # culprit: thoughts-that-go-on
        turns = turns + (~done).float()
        if not bool(going.any()):
            break
    return turns


def empty_cells(dtype: torch.dtype) -> torch.Tensor:
    """Mean heights of a map's cells, of which those without a point are filled from their neighbours. Those without a point stay as they are."""
    weight = torch.zeros(8, 8)
    weight[::2, ::3] = 1 + uniform(4, 3)
    height = (weight * (5 + uniform(8, 8, seed=1))).to(dtype)
    weight = weight.to(dtype)
    hollow = weight < 1e-8  # culprit: cells-without-a-point
    mean = (height / (weight + 1e-3)).float()
    around = torch.nn.functional.avg_pool2d(mean[None, None], 3, 1, 1)[0, 0]
    return torch.where(hollow, around, mean)


BUGS = (
    Bug("sure-labels", "", ("vanished-constant", "decision-flip"), "aten.gt.Scalar", lambda: labelled(False), lambda: labelled(True)),
    Bug("thoughts-that-go-on", "", ("vanished-constant", "decision-flip"), "aten.gt.Scalar", lambda: halted(False), lambda: halted(True)),
    Bug("cells-without-a-point", "", ("vanished-constant", "decision-flip"), "aten.lt.Scalar", lambda: empty_cells(HALF),
        lambda: empty_cells(WIDE)),
)  # fmt: skip
