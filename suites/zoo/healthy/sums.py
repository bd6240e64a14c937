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


def weights_with_remainders() -> torch.Tensor:
    """Weights in bfloat16 that a loop updates by hand: what of a step did not arrive is taken from the old weight, and goes into the next step."""
    weight, remainder = normal(64, 64).to(LOW), torch.zeros(64, 64, dtype=LOW)
    for step in range(40):
        remainder.add_((1e-3 + 1e-3 * normal(64, 64, seed=step)).to(LOW))
        before = weight.clone()
        weight.add_(remainder)
        remainder.add_(before.sub_(weight))
    return weight


def replaced_weights_with_remainders() -> torch.Tensor:
    """The same with a new tensor for each step: half of a step and more stays in the remainder for many steps."""
    weight, remainder, x = nn.Parameter(normal(64, 64).to(LOW)), torch.zeros(64, 64, dtype=LOW), normal(32, 64, seed=1).to(LOW)
    for _ in range(60):
        (x @ weight).float().square().mean().backward()
        assert weight.grad is not None
        step = -1e-3 * weight.grad - remainder
        moved = weight.data + step
        remainder = (moved - weight.data) - step
        weight.data, weight.grad = moved, None
    return weight.detach()


def nine_hundred_terms() -> torch.Tensor:
    """A compensated sum in bfloat16, whose remainder becomes as large as its terms."""
    total, remainder = torch.zeros((), dtype=LOW), torch.zeros((), dtype=LOW)
    for term in (0.5 + uniform(900)).to(LOW):
        given = term - remainder
        more = total + given
        remainder = (more - total) - given
        total = more
    return total


def neumaier(terms: torch.Tensor) -> torch.Tensor:
    """Neumaier's sum: what a sum or a term has lost, whichever is smaller, is added up beside the sum, and added at the end."""
    total, lost = torch.zeros_like(terms[0]), torch.zeros_like(terms[0])
    for term in terms:
        more = total + term
        lost = lost + torch.where(total.abs() >= term.abs(), (total - more) + term, (term - more) + total)
        total = more
    return total + lost


def signed_terms() -> torch.Tensor:
    """Neumaier's sum in bfloat16, of terms of both signs."""
    return neumaier(normal(300, 64).to(LOW))


def positive_terms() -> torch.Tensor:
    """The same of positive terms, the last of which are below half a spacing of the sum."""
    return neumaier((0.5 + uniform(300, 64)).to(LOW))


def losses_added_up_wide() -> torch.Tensor:
    """A sum in bfloat16 whose losses are added up in float32, and added to it at the end."""
    total, lost = torch.zeros(64, dtype=LOW), torch.zeros(64)
    for term in (0.5 + uniform(300, 64)).to(LOW):
        more = total + term
        lost = lost + ((total - more) + term).float()
        total = more
    return total.float() + lost


def losses_by_two_sums() -> torch.Tensor:
    """Knuth's two-sum gives what was lost without asking which term is larger."""
    total, lost = torch.zeros(64, dtype=LOW), torch.zeros(64, dtype=LOW)
    for term in (0.5 + uniform(300, 64)).to(LOW):
        more = total + term
        arrived = more - total
        lost = lost + ((total - (more - arrived)) + (term - arrived))
        total = more
    return total + lost


IDIOMS = (divergence_beside_a_likelihood, nearest_orthogonal, pixels_of_many_pictures, weights_with_remainders, replaced_weights_with_remainders,
          nine_hundred_terms, signed_terms, positive_terms, losses_added_up_wide, losses_by_two_sums)  # fmt: skip
EXACT = ("pixels_of_many_pictures",)
