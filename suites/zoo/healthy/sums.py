"""What is off by itself, and right in what is added up of it."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.trainings import seeded

LOW = torch.bfloat16


def divergence_beside_a_likelihood() -> list[torch.Tensor]:
    """Close to the prior the terms of each divergence cancel; what they add up to is right, and small beside the likelihood."""
    encoder, decoder = seeded(lambda: nn.Linear(196, 16)), seeded(lambda: nn.Linear(8, 196))
    images = (uniform(32, 196) > 0.7).float()
    with torch.autocast("cpu", dtype=LOW):
        mean, log_variance = (encoder(images) / 8).chunk(2, -1)
        pixels = decoder(mean + normal(32, 8) * torch.exp(0.5 * log_variance))
    likelihood = functional.binary_cross_entropy_with_logits(pixels.float(), images, reduction="sum")
    (likelihood - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())).backward()
    return [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]


def nearest_orthogonal() -> torch.Tensor:
    """Singular vectors of equal singular values are any vectors, and the product of both sides is one matrix."""
    weight = torch.linalg.qr(normal(64, 64))[0].to(LOW) * 1.1
    left, _, right = torch.linalg.svd(weight.float())
    return left @ right


def pixels_of_many_pictures() -> torch.Tensor:
    """Sums of pixels beyond 2^24 in float32, and what one pixel is on the whole: each sum is off by a rounding at most."""
    pixels = torch.floor(256 * uniform(3, 1500, 1500))
    return torch.cat([pixels.sum((1, 2)), pixels.square().sum((1, 2))]) / 1500**2


IDIOMS = (divergence_beside_a_likelihood, nearest_orthogonal, pixels_of_many_pictures)
EXACT = ("pixels_of_many_pictures",)
