"""Bins, counts and boxes: missed positives, patches in buckets, a joint histogram, a perfect box, where a number falls in a distribution."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def missed_positives(scores: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """False negatives and true negatives at each threshold, from the highest score down."""
    ranked = labels[scores.argsort(descending=True, stable=True)]
    positives = ranked.cumsum(0)
    negatives = torch.arange(1, len(ranked) + 1) - positives
    positives, negatives = positives.to(dtype), negatives.to(dtype)  # culprit: missed-positives
    return positives[-1] - positives, negatives[-1] - negatives  # culprit: missed-positives


def low_thresholds(single: bool) -> torch.Tensor:
    """The miss rates at the 400 lowest thresholds of a classifier whose scores are bfloat16."""
    labels = (uniform(6000) < 0.4).long()
    scores = (normal(6000, seed=1) + 2.5 * labels).to(LOW)
    misses, correct = missed_positives(scores, labels, WIDE if single else LOW)
    return torch.stack([misses[-400:].float() / labels.sum(), correct[-400:].float() / (1 - labels).sum()])


def position_ids(rows: int, columns: int, side: int, dtype: torch.dtype) -> torch.Tensor:
    """Which of a square table's positions each patch of a picture of another shape takes."""
    boundaries = torch.arange(1, side) / side
    down = (torch.arange(rows) / rows).to(dtype)  # culprit: patches-in-buckets
    across = (torch.arange(columns) / columns).to(dtype)  # culprit: patches-in-buckets
    row = torch.bucketize(down, boundaries.to(dtype), right=True)  # culprit: patches-in-buckets
    column = torch.bucketize(across, boundaries.to(dtype), right=True)  # culprit: patches-in-buckets
    return (row[:, None] * side + column).flatten()


def embedded_patches(dtype: torch.dtype) -> torch.Tensor:
    """Patches of 61 rows and 47 columns with a table of 70 by 70 positions, in bfloat16."""
    table, patches = normal(70 * 70, 8).to(LOW), normal(61 * 47, 8, seed=1).to(LOW)
    return (patches + table[position_ids(61, 47, 70, dtype)]).float()


def parzen(values: torch.Tensor, bins: int) -> torch.Tensor:
    """How much of each value falls into each bin, by cubic splines."""
    size = (values.amax() - values.amin()) / (bins - 3)
    place = (values - values.amin()) / size + 1
    apart = (torch.arange(bins).to(values.dtype) - place[..., None]).abs()
    near = (4 - 6 * apart**2 + 3 * apart**3) * (apart < 1) / 6  # culprit: bins-of-two-pictures
    far = (2 - apart) ** 3 * ((apart >= 1) & (apart < 2)) / 6  # culprit: bins-of-two-pictures
    return near + far


def mutual_information(dtype: torch.dtype) -> torch.Tensor:
    """What a picture tells of another, from a joint histogram of 64 bins."""
    one = uniform(900)
    other = (0.7 * one + 0.3 * uniform(900, seed=1)).to(HALF).to(dtype)
    first, second = parzen(one.to(HALF).to(dtype), 64), parzen(other, 64)
    joint = (first.T @ second).float() / 900
    expected = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return (joint * ((joint + 1e-7) / (expected + 1e-7)).log()).sum()


def complete_overlap(mine: torch.Tensor, theirs: torch.Tensor, eps: float = 1e-7) -> torch.Tensor:
    """The complete intersection over union of boxes given by centre, width and height."""
    left, right = (torch.cat([each[:, :2] - each[:, 2:] / 2, each[:, :2] + each[:, 2:] / 2], 1) for each in (mine, theirs))
    inner = (torch.minimum(left[:, 2:], right[:, 2:]) - torch.maximum(left[:, :2], right[:, :2])).clamp(0).prod(1)
    union = mine[:, 2:].prod(1) + theirs[:, 2:].prod(1) - inner + eps
    ratio = inner / union
    hull = (torch.maximum(left[:, 2:], right[:, 2:]) - torch.minimum(left[:, :2], right[:, :2])).square().sum(1) + eps
    apart = (mine[:, :2] - theirs[:, :2]).square().sum(1)
    shape = 4 / math.pi**2 * (torch.atan(theirs[:, 2] / theirs[:, 3]) - torch.atan(mine[:, 2] / mine[:, 3])).square()
    weight = shape / ((1 + eps) - ratio + shape)  # culprit: perfect-box
    return ratio - (apart / hull + shape * weight)  # culprit: perfect-box


def overlaps(dtype: torch.dtype) -> torch.Tensor:
    """24 boxes beside the boxes of a network that has learned a third of them by heart."""
    theirs = torch.cat([8 * uniform(24, 2), 1 + 4 * uniform(24, 2, seed=1)], 1).mul(32).round() / 32
    moved = torch.where(torch.arange(24)[:, None] % 3 == 0, theirs, (theirs + 0.3 * normal(24, 4, seed=2).mul(64).round() / 64).abs())
    return complete_overlap(moved.to(dtype), theirs.to(dtype)).float()


def drawn(probabilities: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """For each number, the category whose part of the distribution it falls into."""
    steps = probabilities.cumsum(-1)  # culprit: place-in-a-distribution
    return torch.searchsorted(steps, numbers.to(steps.dtype)).clamp(max=probabilities.shape[-1] - 1)  # culprit: place-in-a-distribution


def shares(dtype: torch.dtype) -> torch.Tensor:
    """How often 4000 evenly spread numbers draw each of 600 categories, in parts of 20."""
    probabilities = torch.softmax((0.5 * normal(600)).to(LOW).to(dtype), -1)
    choices = drawn(probabilities, (torch.arange(4000) + 0.5) / 4000)
    return torch.bincount(choices, minlength=600).view(-1, 20).amax(1).float()


BUGS = (
    Bug("missed-positives", "scikit-learn/scikit-learn#34975", ("integer-rounding", "cancellation"), "aten._to_copy.default",
        lambda: low_thresholds(False), lambda: low_thresholds(True)),
    Bug("patches-in-buckets", "huggingface/transformers#47133", ("integer-rounding", "decision-flip"), "aten._to_copy.default",
        lambda: embedded_patches(LOW), lambda: embedded_patches(WIDE)),
    Bug("bins-of-two-pictures", "Project-MONAI/MONAI#9022", ("overflow", "nan"), "aten.pow.Tensor_Scalar", lambda: mutual_information(HALF),
        lambda: mutual_information(WIDE)),
    Bug("perfect-box", "ultralytics/yolov5#2376", ("cancellation", "vanished-constant", "nan"), "aten.rsub.Scalar",
        lambda: overlaps(HALF), lambda: overlaps(WIDE)),
    Bug("place-in-a-distribution", "ROCm/AMDMIGraphX#3809", ("decision-flip", "absorption", "accumulated-drift", "local-drift"),
        "aten.cumsum.default", lambda: shares(LOW), lambda: shares(WIDE)),
)  # fmt: skip
