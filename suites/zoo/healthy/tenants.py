"""Beside the paddocks: losses without labels, counts, spectra, mixtures, splats and clipped gradients that hold."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, SINGLE = torch.float16, torch.float32


def pictures_nobody_labelled_yet() -> torch.Tensor:
    """A loss of nought that keeps the graph, as nought times the sum of logits in half, which is small."""
    torch.manual_seed(7601)
    net = nn.Linear(3, 5).to(HALF)
    loss = net(normal(2, 100, 3, seed=7602).to(HALF)).sum().float() * 0 + functional.cross_entropy(net.bias.float()[None], torch.tensor([1]))
    loss.backward()
    return net.bias.grad.float()


def pixels_of_a_small_evaluation() -> torch.Tensor:
    """A count in float32 that goes up by one for each pixel that is right, far from where float32 ends."""
    right = torch.tensor(250_000.0)
    for mine in (uniform(80, seed=7611) < 0.8).tolist():
        if mine:
            right += 1
    return right / 400_000


def pictures_of_high_waves() -> torch.Tensor:
    """How far two spectra are from each other, by products with waves in half; pictures are small and have mean 0."""
    angles = 2 * math.pi * torch.arange(16)[:, None] * torch.arange(16) / 16
    cos, sin = angles.cos().to(HALF), angles.sin().to(HALF)
    apart = (normal(2, 16, 16, seed=7621) - normal(2, 16, 16, seed=7622)).to(HALF)
    real, imaginary = apart @ cos, apart @ sin
    return ((cos @ real - sin @ imaginary).square() + (sin @ real + cos @ imaginary).square()).mean().float()


def balls_near_nought() -> torch.Tensor:
    """Variances of three balls as means of squares without squares of means; they are near nought, and wide."""
    centres = torch.tensor([[-2.0, 0.0], [0.0, 2.0], [2.0, -1.0]])
    x = (centres[:, None] + 0.8 * normal(3, 80, 2, seed=7631)).flatten(0, 1)
    shares = (-(x[:, None] - centres).square().sum(-1)).softmax(1)
    counts = shares.sum(0)[:, None]
    means = shares.T @ x / counts
    return (shares.T @ (x * x) / counts - means * means).mean(1) + 1e-6


def splats_seen_from_the_front() -> torch.Tensor:
    """Stains of bodies that are about as wide as they are long, by a determinant of products."""
    axes = 2 * torch.eye(2).expand(12, 2, 2) + 0.5 * normal(12, 2, 2, seed=7641)
    spread = axes @ axes.mT
    a, b, c = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
    conic = torch.stack([c, -b, -b, a], -1).view(-1, 2, 2) / (a * c - b * b)[:, None, None]
    return torch.exp(-0.5 * torch.einsum("pi,nij,pj->np", normal(40, 2, seed=7642), conic, normal(40, 2, seed=7642)))


def lips_that_learn() -> torch.Tensor:
    """Three steps under autocast in half with a scaler, whose gradients are clipped after they are unscaled."""
    torch.manual_seed(7651)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 6))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(3):
        with torch.autocast("cpu", dtype=HALF):
            out = model(normal(24, 20, seed=7652 + step))
        scaler.scale(functional.cross_entropy(out.float(), torch.arange(24) % 6)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model[2].weight.detach()


IDIOMS = (
    pictures_nobody_labelled_yet,
    pixels_of_a_small_evaluation,
    pictures_of_high_waves,
    balls_near_nought,
    splats_seen_from_the_front,
    lips_that_learn,
)
EXACT = ("pixels_of_a_small_evaluation", "balls_near_nought", "splats_seen_from_the_front")
