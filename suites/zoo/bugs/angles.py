"""Angles and distances by products that autocast makes low: margin, stencil, superposed structures, warped views, distance from the usual."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def rotation(about_x: float, about_z: float) -> torch.Tensor:
    """A turn about z and then one about x."""
    a, b = math.cos(about_x), math.sin(about_x)
    c, d = math.cos(about_z), math.sin(about_z)
    return torch.tensor([[1, 0, 0], [0, a, -b], [0, b, a]]) @ torch.tensor([[c, -d, 0], [d, c, 0], [0, 0, 1.0]])


class ArcMargin(torch.nn.Module):
    """Cosines to the centres of classes, of which that of the own class gets an angle more."""

    def __init__(self, centres: torch.Tensor, single: bool, margin: float = 0.5, scale: float = 8.0) -> None:
        super().__init__()
        self.centres, self.single, self.margin, self.scale = torch.nn.Parameter(centres), single, margin, scale

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.single):
            cosine = functional.linear(functional.normalize(features), functional.normalize(self.centres))  # culprit: margin-of-an-angle
            sine = torch.sqrt((1.0 - cosine.square()).clamp(0, 1))  # culprit: margin-of-an-angle
            further = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
            own = functional.one_hot(labels, len(self.centres)).bool()
            return self.scale * torch.where(own, further, cosine)


def faces(single: bool) -> torch.Tensor:
    """The gradient that features get late in a training, when they are close to their centres."""
    labels = torch.arange(24) % 8
    centres = functional.normalize(normal(8, 64))
    away = (0.01 + 0.2 * uniform(24, 1)) * functional.normalize(normal(24, 64, seed=1))
    features = (centres[labels] + away).requires_grad_()
    logits = ArcMargin(centres, single)(features, labels)
    functional.cross_entropy(logits.float(), labels).backward()
    assert features.grad is not None
    return features.grad


def darcy(field: torch.Tensor, permeability: torch.Tensor) -> torch.Tensor:
    """The left side of an equation of flow: permeability times the Laplacian, by a stencil of five points."""
    step = 1.0 / (field.shape[-1] - 1)
    stencil = torch.tensor([[0, 1.0, 0], [1, -4, 1], [0, 1, 0]])[None, None] / step**2
    return -permeability[..., 1:-1, 1:-1] * functional.conv2d(field, stencil)  # culprit: residual-of-a-stencil


def flow(mixed: bool) -> torch.Tensor:
    """The left side for a field of the data set, within the block that autocast covers or after it."""
    x = torch.linspace(0, 1, 48)
    field = (1 + x[:, None] * (1 - x[:, None]) * torch.sin(math.pi * x)[None])[None, None]
    permeability = 1 + 0.2 * uniform(1, 1, 48, 48)
    with torch.autocast("cpu", LOW, enabled=mixed):
        return darcy(field, permeability)


def superpose(moving: torch.Tensor, fixed: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The points of one structure after the turn and the shift that lay them on another, by Kabsch."""
    total = weights.sum()
    centre, other = (weights[:, None] * moving).sum(0) / total, (weights[:, None] * fixed).sum(0) / total
    moving, fixed = moving - centre, fixed - other
    covariance = (weights[:, None] * fixed).T @ moving  # culprit: superposed-structures
    left, _, right = torch.linalg.svd(covariance.float())
    sign = torch.diag(torch.tensor([1.0, 1.0, float(torch.det(left).sign() * torch.det(right).sign())]))
    turn = left @ sign @ right  # culprit: superposed-structures
    return moving @ turn.T + other  # culprit: superposed-structures


def structures(mixed: bool) -> torch.Tensor:
    """How far each of 120 residues is from its place after the alignment, of a structure that is nearly right."""
    turn = torch.arange(120) * 0.3
    true = torch.stack([12 * turn.cos(), 12 * turn.sin(), 0.5 * torch.arange(120)], -1)
    predicted = true @ rotation(0.7, 1.9).T + torch.tensor([4.0, -9.0, 2.0]) + 0.05 * normal(120, 3)
    with torch.autocast("cpu", LOW, enabled=mixed):
        placed = superpose(true, predicted, 1 + uniform(120, seed=2))
    return (placed.float() - predicted).norm(dim=-1)


def warp(source: torch.Tensor, reference: torch.Tensor, depths: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Where the pixels of a reference view lie in another view, for planes of several depths."""
    projection = source @ torch.linalg.inv(reference)
    turn, shift = projection[:3, :3], projection[:3, 3:]
    y, x = torch.meshgrid(torch.arange(0.0, height, 8), torch.arange(0.0, width, 8), indexing="ij")
    pixels = torch.stack([x.flatten(), y.flatten(), torch.ones(x.numel())])
    points = turn @ (pixels * depths[:, None, None]) + shift  # culprit: warped-views
    return points[:, :2] / points[:, 2:]


def views(mixed: bool) -> torch.Tensor:
    """Pixels of a small picture for sixteen planes between 425 and 905 millimetres."""
    lens = torch.tensor([[360.0, 0, 160, 0], [0, 360, 128, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    pose = torch.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation(0.05, 0.04), torch.tensor([60.0, -20.0, 5.0])
    with torch.autocast("cpu", HALF, enabled=mixed):
        return warp(lens @ pose, lens, torch.linspace(425, 905, 16), 256, 320).float()


def gaussian_score(features: torch.Tensor, mean: torch.Tensor, precision: torch.Tensor) -> torch.Tensor:
    """Squared Mahalanobis distances of features from a class."""
    away = features - mean
    return ((away @ precision) * away).sum(-1)  # culprit: distance-from-the-usual


def unusual(mixed: bool) -> torch.Tensor:
    """Scores of 48 samples by features that depend on one another, as those of a late layer do."""
    basis = torch.linalg.qr(normal(24, 24))[0]
    spread = torch.logspace(0, -2.5, 24)
    known, seen = normal(2000, 24, seed=1) * spread @ basis, normal(48, 24, seed=2) * spread @ basis
    mean = known.mean(0)
    precision = torch.linalg.inv((known - mean).T @ (known - mean) / len(known))
    with torch.autocast("cpu", LOW, enabled=mixed):
        return gaussian_score(seen, mean, precision).float()


BUGS = (
    Bug("margin-of-an-angle", "ronghuaiyang/arcface-pytorch#91", ("cancellation", "amplified-rounding", "nan", "overflow"), "aten.rsub.Scalar",
        lambda: faces(False), lambda: faces(True), module="ArcMargin",
        expected_miss="the sines are right to three roundings, since few of them are small; the derivative of a root near zero makes the error, and "
                      "of backward passes that autograd derives only the kernels are judged, and zeros"),
    Bug("residual-of-a-stencil", "jhhuangchloe/DiffusionPDE#13", ("integer-rounding", "cancellation", "amplified-rounding"), "aten._to_copy.default",
        lambda: flow(True), lambda: flow(False)),
    Bug("superposed-structures", "RosettaCommons/foundry#283", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: structures(True), lambda: structures(False)),
    Bug("warped-views", "kwea123/CasMVSNet_pl#11", ("overflow",), "aten._to_copy.default", lambda: views(True), lambda: views(False)),
    Bug("distance-from-the-usual", "rivercold/BERT-unsupervised-OOD#7", ("cancellation", "amplified-rounding"), "aten.mm.default",
        lambda: unusual(True), lambda: unusual(False)),
)  # fmt: skip
