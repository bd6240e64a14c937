"""Cottages: chances near nought and near one, spheres and covariances, in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
EXACT = "32-true"


def on_a_sphere(held: bool) -> torch.Tensor:
    """What draws teach an encoder about how sure it is of their direction, which it is very. Not a number."""
    sure, spins = torch.full((1000, 1), 1e5, requires_grad=True), uniform(1000, 1, seed=3701)
    along = 1 + torch.log(spins + (1 - spins) * torch.exp(-2 * sure)) / sure
    around = functional.normalize(normal(1000, 4, seed=3703), dim=-1)
    left = 1 - along**2  # culprit: draws-about-a-sure-direction
    if held:
        left = left.clamp(min=1e-10)
    drawn = torch.cat([along, torch.sqrt(left) * around], -1)  # culprit: draws-about-a-sure-direction
    (drawn * normal(1000, 5, seed=3704)).sum().backward()
    return sure.grad * 1e7


class Squashed:
    """A normal distribution whose draws are squashed between minus one and one."""

    def __init__(self, mean: torch.Tensor, spread: torch.Tensor) -> None:
        self.base = torch.distributions.Normal(mean, spread)

    def chance(self, action: torch.Tensor, raw: torch.Tensor | None = None) -> torch.Tensor:
        if raw is None:
            raw = torch.atanh(action)  # culprit: actions-squashed-and-back
        return self.base.log_prob(raw) - 2 * (0.6931472 - raw - functional.softplus(-2 * raw))


def squashed(kept: bool) -> torch.Tensor:
    """The log chance of a policy's own actions, of which some are nearly one. It is infinite."""
    mean, spread = 4 * normal(40, 3, seed=3711), 0.3 + uniform(40, 3, seed=3712)
    raw = mean + spread * normal(40, 3, seed=3713)
    return Squashed(mean, spread).chance(torch.tanh(raw), raw if kept else None).sum(-1)  # culprit: actions-squashed-and-back


def survival(values: torch.Tensor, exact: bool) -> torch.Tensor:
    """The logarithm of a normal distribution's chance to be larger, as a compressor's prior asks for it."""
    if exact:
        return torch.special.log_ndtr(-values)
    return torch.log(1 - torch.special.ndtr(values))  # culprit: what-is-left-of-a-bell


class Ordinal(nn.Module):
    """Chances of ordered classes: differences of sigmoids at growing bounds."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least, self.bounds = least, torch.tensor([-2.0, 0.0, 2.0])

    def forward(self, place: torch.Tensor) -> torch.Tensor:
        below = torch.sigmoid(self.bounds - place[:, None])
        below = torch.cat([torch.zeros_like(place)[:, None], below, torch.ones_like(place)[:, None]], -1)
        return below.diff(dim=-1).clamp_min(self.least)  # culprit: classes-in-their-order


def ordered(least: float) -> torch.Tensor:
    """The loss of ordered classes, some examples being far beyond all bounds. It is infinite."""
    place = torch.cat([normal(20, seed=3731), -40 + normal(4, seed=3732)])
    chances = Ordinal(least)(place)
    labels = (4 * uniform(24, seed=3733)).long()
    return -torch.log(chances.gather(1, labels[:, None])).squeeze(1)


def candidates(shifted: bool) -> torch.Tensor:
    """Chances of a word's forms by their weighted violations, all of which are large. They are not numbers."""
    harmony = -(60 * uniform(6, 9, seed=3741) + 120)
    if shifted:
        return harmony - torch.logsumexp(harmony, -1, keepdim=True)
    return torch.log(torch.exp(harmony) / torch.exp(harmony).sum(-1, keepdim=True))  # culprit: forms-of-a-word


def covariance(first: torch.Tensor, second: torch.Tensor, centred: bool) -> torch.Tensor:
    """The covariance of two columns of a table."""
    if centred:
        return ((first - first.mean(-1, keepdim=True)) * (second - second.mean(-1, keepdim=True))).mean(-1)
    return (first * second).mean(-1) - first.mean(-1) * second.mean(-1)  # culprit: columns-that-go-together


def together(centred: bool) -> torch.Tensor:
    """How columns of prices and of volumes go together, in a table of ten groups."""
    prices = 3000 + normal(10, 500, seed=3751)
    return covariance(prices, 9000 + 0.5 * (prices - 3000) + normal(10, 500, seed=3752), centred)


def logistic(scores: torch.Tensor, split: bool) -> torch.Tensor:
    """The chance that a federation's model gives."""
    if split:
        small = torch.exp(-scores.abs())
        return torch.where(scores > 0, 1 / (1 + small), small / (1 + small))
    raised = torch.exp(scores)  # culprit: scores-of-a-federation
    return raised / (1 + raised)


BUGS = (
    Bug("draws-about-a-sure-direction", "clementchadebec/benchmark_VAE#79", ("cancellation", "nan", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: on_a_sphere(held=False), lambda: on_a_sphere(held=True), precision=EXACT),
    Bug("actions-squashed-and-back", "google-deepmind/distrax#216", ("amplified-rounding", "overflow"), "aten.tanh.default",
        lambda: squashed(kept=False), lambda: squashed(kept=True), precision=EXACT),
    Bug("what-is-left-of-a-bell", "facebookresearch/NeuralCompression#92", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: survival(torch.linspace(-2, 9, 60), exact=False), lambda: survival(torch.linspace(-2, 9, 60), exact=True), precision=EXACT),
    Bug("classes-in-their-order", "ayrna/skordinal#64", ("cancellation", "underflow"), "aten.sub.Tensor",
        lambda: ordered(0.0), lambda: ordered(1e-15), precision=EXACT,
        expected_miss="the sigmoids of forty and of forty-two are one in float64 too, so the reference has the same zeros"),
    Bug("forms-of-a-word", "connormayer/maxent.ot#31", ("underflow",), "aten.exp.default",
        lambda: candidates(shifted=False), lambda: candidates(shifted=True), precision=EXACT),
    Bug("columns-that-go-together", "apache/pinot#9936", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: together(centred=False), lambda: together(centred=True), precision=EXACT),
    Bug("scores-of-a-federation", "FederatedAI/FATE#65", ("overflow",), "aten.exp.default",
        lambda: logistic(60 * normal(40, seed=3761), split=False), lambda: logistic(60 * normal(40, seed=3761), split=True), precision=EXACT),
)  # fmt: skip
