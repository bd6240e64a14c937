"""Angles, critics, odds and curves that look like the bugs of angles, critics, odds and curves."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def margin_of_wide_angles() -> torch.Tensor:
    """Sines by the root of one less a square, under autocast in half, of features that are an angle of 0.6 or more from their centres."""
    labels = torch.arange(24) % 8
    centres = functional.normalize(normal(8, 64), dim=-1)
    features = (centres[labels] + functional.normalize(normal(24, 64, seed=1), dim=-1)).requires_grad_()
    with torch.autocast("cpu", HALF):
        cosine = functional.linear(functional.normalize(features), centres)
        sine = torch.sqrt((1.0 - cosine.square()).clamp(0, 1))
        logits = 8 * torch.where(functional.one_hot(labels, 8).bool(), cosine * math.cos(0.5) - sine * math.sin(0.5), cosine)
    functional.cross_entropy(logits.float(), labels).backward()
    assert features.grad is not None
    return features.grad


def great_circle_of_near_weights() -> torch.Tensor:
    """Two weights in half that point nearly the same way, merged along a great circle: the angle is off, and both shares hardly depend on it."""
    one = normal(32, 24).to(HALF)
    other = (one.float() + 0.1 * normal(32, 24, seed=1)).to(HALF)
    cosine = (one / one.norm() * (other / other.norm())).sum().clamp(-1, 1)
    angle = torch.acos(cosine)
    return (torch.sin(0.3 * angle) / torch.sin(angle) * one + torch.sin(0.7 * angle) / torch.sin(angle) * other).float()


def superposed_and_scaled() -> torch.Tensor:
    """The turn between two structures from a product under autocast, which is used to turn and not to measure what is left."""
    true = normal(120, 3) * torch.tensor([20.0, 12.0, 6.0])
    turn = torch.linalg.qr(normal(3, 3, seed=1))[0]
    with torch.autocast("cpu", LOW):
        covariance = (true @ turn.T).T @ true
    left, _, right = torch.linalg.svd(covariance.float())
    return true @ (left @ right).T


def warped_by_fractions() -> torch.Tensor:
    """Pixels as fractions of a picture, turned by a product under autocast in half."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 32), indexing="ij")
    pixels = torch.stack([x.flatten(), y.flatten(), torch.ones(x.numel())])
    turn = torch.tensor([[0.99, -0.1, 0.05], [0.1, 0.99, -0.02], [0.01, 0.02, 1.0]])
    with torch.autocast("cpu", HALF):
        points = turn @ pixels
        return (points[:2] / points[2:]).float()


def distance_by_even_spreads() -> torch.Tensor:
    """Squared Mahalanobis distances under autocast, of features whose spreads differ by a factor of three."""
    basis, spread = torch.linalg.qr(normal(24, 24))[0], torch.linspace(1, 3, 24)
    seen = normal(48, 24, seed=2) * spread @ basis
    precision = basis.T @ torch.diag(spread**-2) @ basis
    with torch.autocast("cpu", LOW):
        return ((seen @ precision) * seen).sum(-1).float()


def value_of_few_bins() -> torch.Tensor:
    """A value as the mean of 21 bins between -1 and 1 in bfloat16, without an exponential."""
    support = torch.linspace(-1, 1, 21).to(LOW)
    probabilities = torch.softmax(-((torch.linspace(-1, 1, 21) - 0.6 * uniform(40, 1) - 0.3) ** 2) / 0.02, -1).to(LOW)
    return (probabilities * support).sum(-1).float()


def weight_of_scaled_losses() -> torch.Tensor:
    """The ratio of two gradients' norms under autocast in half, both of scaled losses."""
    last, critic = nn.Parameter(normal(3, 16, 3, 3) / 12), normal(1, 3, 4, 4, seed=1) / 7
    hidden, pictures = normal(2, 16, 24, 24, seed=2), uniform(2, 3, 24, 24, seed=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", HALF):
        made = functional.conv2d(hidden, last, padding=1)
        likelihood, judged = (made - pictures).abs().mean(), functional.conv2d(made, critic, stride=2).mean()
    first = torch.autograd.grad(scaler.scale(likelihood.float()), last, retain_graph=True)[0]
    second = torch.autograd.grad(scaler.scale(-judged.float()), last)[0]
    return first.norm() / second.norm()


def product_by_two_derivatives() -> torch.Tensor:
    """A product with the Hessian by two derivatives, under autocast in bfloat16."""
    weight, x, y = nn.Parameter(normal(8, 16) / 4), normal(64, 16, seed=1), normal(64, 8, seed=2)
    with torch.autocast("cpu", LOW):
        made = functional.linear(x, weight).tanh()
    gradient = torch.autograd.grad((made.float() - y).square().mean(), weight, create_graph=True)[0]
    return torch.autograd.grad((gradient * normal(8, 16, seed=3)).sum(), weight)[0]


def atoms_by_tents() -> torch.Tensor:
    """A distribution spread over five atoms in bfloat16, each of which takes what lies within a distance of one: nothing is lost."""
    support = torch.linspace(-2, 2, 5).to(LOW)
    probabilities = torch.softmax(normal(16, 5), -1).to(LOW)
    place = ((0.3 * uniform(16, 1)).to(LOW) + 0.9 * support).clamp(-2, 2) + 2
    shares = (1 - (place[:, :, None] - torch.arange(5).to(LOW)).abs()).clamp(0, 1)
    return (probabilities[:, :, None] * shares).sum(1).float()


def slopes_by_wide_steps() -> torch.Tensor:
    """Slopes along six directions from two losses each, where weights in bfloat16 are moved by a quarter and losses are float32."""
    weight, x, labels = (normal(6, 16) / 2).to(LOW), normal(96, 16, seed=1).to(LOW), torch.arange(96) % 6
    slopes = []
    for seed in range(6):
        way = normal(6, 16, seed=10 + seed).sign().to(LOW) / 4
        above, below = (functional.cross_entropy((x @ (weight + sign * way).T).float(), labels) for sign in (1, -1))
        slopes.append((above - below) / 0.5)
    return torch.stack(slopes)


def divergence_of_strangers() -> torch.Tensor:
    """Jensen and Shannon's divergence in bfloat16 of distributions that have little in common."""
    mine, theirs = (functional.log_softmax((3 * normal(32, 60, seed=seed)).to(LOW), -1) for seed in range(2))
    mixture = torch.logsumexp(torch.stack([mine, theirs]) - math.log(2), 0)
    return 0.5 * ((theirs.exp() * (theirs - mixture)).sum(-1) + (mine.exp() * (mine - mixture)).sum(-1)).float()


def alignment_of_the_unsure() -> torch.Tensor:
    """Monotonic attention in half of three steps over eight states, none of which is sure."""
    energies = normal(3, 16, seed=1).to(HALF) @ (0.2 * normal(8, 16, seed=2)).to(HALF).T
    attention, rows = functional.pad(torch.ones(1, 1, dtype=HALF), (0, 7)), []
    for energy in energies:
        chosen = torch.sigmoid(energy)
        left = functional.pad(torch.cumprod(1 - chosen, -1), (1, -1), value=1.0)
        attention = chosen * left * torch.cumsum(attention / left.clamp_min(1e-4), -1)
        rows.append(attention)
    return torch.cat(rows).float()


def odds_of_unsure_answers() -> torch.Tensor:
    """Logarithms of ratios of odds in bfloat16, of answers whose tokens have probabilities between 0.05 and 0.5."""
    chosen, rejected = (-0.7 - 1.0 * uniform(40)).to(LOW), (-1.5 - 1.5 * uniform(40, seed=1)).to(LOW)
    return ((chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))).float()


def ranks_of_two_hundred() -> torch.Tensor:
    """Ranks of 200 scores in bfloat16, which holds each of them."""
    scores = normal(200).to(LOW)
    ranks = torch.empty_like(scores)
    ranks[scores.argsort(stable=True)] = torch.arange(1, 201, dtype=LOW)
    return (ranks / 200).float()


def way_of_large_steps() -> tuple[torch.Tensor, torch.Tensor]:
    """How far weights in bfloat16 have come in steps of a twentieth of them, as the gradients see it."""
    weight, goal = (0.5 + 0.2 * normal(16, 12)).to(LOW), 0.5 - normal(16, 12, seed=1).abs()
    start, way = weight.clone(), torch.zeros(())
    for _ in range(6):
        gradient = weight.float() - goal
        weight.sub_((gradient.sign() * 0.03125).to(LOW))
        way = way + (gradient * (start - weight).float()).sum()
    return (start - weight).float(), way


def cube_of_small_activations() -> tuple[torch.Tensor, torch.Tensor]:
    """A GELU by a hyperbolic tangent of a cube in half, of activations up to ten, and their gradient."""
    x = (2.5 * normal(16, 64)).clamp(-10, 10).to(HALF).requires_grad_()
    y = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    functional.linear(y, (normal(8, 64, seed=1) / 8).to(HALF)).float().square().mean().backward()
    assert x.grad is not None
    return y.detach().float(), x.grad.float()


def squares_of_short_vectors() -> torch.Tensor:
    """Cosines in half by the root of a product of squares, of rows of 64 numbers; the eps is zero, and no row is."""
    one, other = normal(64, 64).to(HALF), (normal(64, 64) + normal(64, 64, seed=1)).to(HALF)
    squares = one.square().sum(-1) * other.square().sum(-1)
    return ((one * other).sum(-1) / squares.clamp_min(1e-16).sqrt()).float()


def steps_of_a_short_curve() -> torch.Tensor:
    """Differences between the points of a curve of twelve pixels in half."""
    truth = (torch.arange(12) % 3 == 0).to(HALF)
    total = truth.sum()
    jaccard = 1 - (total - truth.cumsum(0)) / (total + (1 - truth).cumsum(0))
    return torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]]).float()


def quotient_of_short_polynomials() -> torch.Tensor:
    """A hyperbolic tangent in half as a quotient of short polynomials with large coefficients, between -2 and 2."""
    x = (4 * uniform(400) - 2).to(HALF)
    square = x * x
    return (x * (945 + square * (105 + square)) / (945 + square * (420 + 15 * square))).float()


def errors_of_bright_pictures() -> torch.Tensor:
    """Decibels in half of pictures that are off by a twentieth."""
    frames = uniform(8, 3, 24, 24).to(HALF)
    made = (frames.float() + 0.05 * normal(8, 3, 24, 24, seed=1)).to(HALF)
    return (20 * torch.log10(1 / (frames - made).square().flatten(1).mean(1).sqrt())).float()


IDIOMS = (
    margin_of_wide_angles, great_circle_of_near_weights, superposed_and_scaled, warped_by_fractions, distance_by_even_spreads, value_of_few_bins,
    weight_of_scaled_losses, product_by_two_derivatives, atoms_by_tents, slopes_by_wide_steps, divergence_of_strangers, alignment_of_the_unsure,
    odds_of_unsure_answers, ranks_of_two_hundred, way_of_large_steps, cube_of_small_activations, squares_of_short_vectors, steps_of_a_short_curve,
    quotient_of_short_polynomials, errors_of_bright_pictures,
)  # fmt: skip
