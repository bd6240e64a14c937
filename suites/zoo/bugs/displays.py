"""What is seen and compared: codes of highlights, a horizon, distances to a line, the rim of a ball, likeness of layers, far forecasts."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class PerceptualQuantiser(nn.Module):
    """From codes of SMPTE ST 2084 to light, as a share of ten thousand candelas a square metre."""

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        root = code.clamp(min=0) ** (32 / 2523)
        light = (root - 0.8359375).clamp(min=0)  # culprit: light-of-highlights
        return (light / (18.8515625 - 18.6875 * root)) ** (8192 / 1305)  # culprit: light-of-highlights


def graded(single: bool) -> torch.Tensor:
    """The light of a ramp of codes of ten bits that a renderer holds in half, from a lit room to the sun on metal."""
    code = (torch.arange(560, 1000, 8) / 1024).to(HALF)
    return PerceptualQuantiser()(code.float() if single else code).float()


def ground(height: torch.Tensor, down: torch.Tensor, radius: float, apart: bool) -> torch.Tensor:
    """How far a planet's ground is along rays from a height over it, by the cosine of the angle between the ray and what is up."""
    if apart:
        product, centre = height * (2 * radius + height), radius + height
        along = centre * down
        return product / (torch.sqrt(along.square() - product) - along)
    centre = radius + height
    along, product = centre * down, centre * centre - radius * radius  # culprit: horizon-of-a-planet
    return -along - torch.sqrt((along.square() - product).clamp(min=0))  # culprit: horizon-of-a-planet


def horizon(apart: bool) -> torch.Tensor:
    """Distances in metres of what a walker sees on the way to the horizon."""
    return ground(torch.tensor(1.75), -torch.logspace(-2.2, -0.2, 40), 6360000.0, apart)


def distance_transform(image: torch.Tensor, size: int, softness: float) -> torch.Tensor:
    """Distances to the nearest pixel of a line, by convolutions with a kernel that falls with the distance, ring by ring."""
    half = size // 2
    row, column = torch.meshgrid(torch.arange(size) - half, torch.arange(size) - half, indexing="ij")
    kernel = torch.exp(-torch.hypot(row.float(), column.float()) / softness).to(image.dtype)  # culprit: distance-to-a-line
    boundary, found = image, torch.zeros_like(image)
    for turn in range(math.ceil(max(image.shape) / half)):
        near = functional.conv2d(boundary[None, None], kernel[None, None], padding=half)[0, 0]
        away = torch.nan_to_num(-softness * torch.log(near), posinf=0.0)  # culprit: distance-to-a-line
        reached = away > 0
        found = found + (turn * half + away) * reached
        boundary = torch.where(reached, torch.ones_like(boundary), boundary)
    return found


def outlined(dtype: torch.dtype) -> torch.Tensor:
    """Distances to three pixels of a mask of 24 by 24."""
    image = torch.zeros(24, 24)
    image[[4, 12, 19], [5, 17, 8]] = 1
    return distance_transform(image.to(dtype), 9, 0.25).float()


class Hyperbolic(nn.Module):
    """Words in the ball of Poincaré: what leaves it is brought back to just within its rim, and depth is the distance from the middle."""

    def __init__(self, width: int, single: bool) -> None:
        super().__init__()
        self.head, self.single = nn.Linear(width, 4), single

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        point = self.head(hidden)
        point = point.float() if self.single else point
        length, most = point.norm(dim=-1, keepdim=True), 1 - 1e-3
        within = torch.where(length > most, point / length * most, point)  # culprit: rim-of-a-ball
        return 2 * torch.atanh(within.norm(dim=-1))  # culprit: rim-of-a-ball


def depths(single: bool) -> torch.Tensor:
    """How deep forty words are in a tree, by a head in bfloat16."""
    model = Hyperbolic(8, single)
    with torch.no_grad():
        model.head.weight.copy_(normal(4, 8) / 4)
        model.head.bias.zero_()
        return model.to(LOW)(normal(40, 8, seed=1).to(LOW)).float()


def independence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The unbiased estimate of the Hilbert-Schmidt criterion of two tables of kernels, whose diagonals are zero."""
    count, both = len(first), first @ second
    traces, sums = both.diagonal().sum(), first.sum() * second.sum() / ((count - 1) * (count - 2))  # culprit: likeness-of-layers
    return (traces + sums - 2 / (count - 2) * both.sum()) / (count * (count - 3))  # culprit: likeness-of-layers


def aligned_kernels(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How alike two layers are: their kernels' criterion, beside that of each with itself."""
    first, second = one @ one.T, other @ other.T
    first, second = first - torch.diag(first.diagonal()), second - torch.diag(second.diagonal())
    return independence(first, second) / (independence(first, first) * independence(second, second)).sqrt()


def likeness(dtype: torch.dtype) -> torch.Tensor:
    """How alike three layers of a network in bfloat16 are to its first, by activations that are all positive."""
    hidden = [functional.relu(1 + normal(48, 8, seed=3) @ normal(8, 24, seed=layer) / 8 + 0.2 * normal(48, 24, seed=9 + layer)) for layer in range(4)]
    layers = [each.to(LOW).to(dtype) for each in hidden]
    return torch.stack([aligned_kernels(layers[0], each) for each in layers[1:]]).float()


class LogCosh(nn.Module):
    """The mean over all batches of the logarithm of the hyperbolic cosine of errors."""

    total: torch.Tensor
    count: torch.Tensor

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable = stable
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def update(self, made: torch.Tensor, seen: torch.Tensor) -> None:
        if self.stable:
            away = made.float() - seen.float()
            self.total += (torch.logaddexp(away, -away) - math.log(2)).sum(0)
        else:
            away = made - seen
            self.total += torch.log((torch.exp(away) + torch.exp(-away)) / 2).sum(0)  # culprit: errors-of-a-far-forecast
        self.count += len(made)

    def forward(self) -> torch.Tensor:
        return self.total / self.count


def forecasts(stable: bool) -> torch.Tensor:
    """Errors of forecasts in half of three quantities over four batches, some of which are far off."""
    metric = LogCosh(stable)
    for step in range(4):
        seen = (8 * normal(32, 3, seed=step)).to(HALF)
        metric.update((seen.float() + 6 * normal(32, 3, seed=10 + step)).to(HALF), seen)
    return metric()


BUGS = (
    Bug("light-of-highlights", "sekrit-twc/zimg#69", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: graded(False),
        lambda: graded(True), module="PerceptualQuantiser"),
    Bug("horizon-of-a-planet", "ebruneton/precomputed_atmospheric_scattering#21", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: horizon(False), lambda: horizon(True), precision="32-true"),
    Bug("distance-to-a-line", "kornia/kornia#4158", ("underflow",), "aten._to_copy.default", lambda: outlined(HALF), lambda: outlined(WIDE)),
    Bug("rim-of-a-ball", "ferrine/hyrnn#14", ("amplified-rounding", "nan", "overflow"), "aten.linalg_vector_norm.default", lambda: depths(False),
        lambda: depths(True)),
    Bug("likeness-of-layers", "phrasenmaeher/cka#1", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: likeness(LOW),
        lambda: likeness(WIDE)),
    Bug("errors-of-a-far-forecast", "Lightning-AI/torchmetrics#3488", ("overflow",), "aten.exp.default", lambda: forecasts(False),
        lambda: forecasts(True)),
)  # fmt: skip
