"""Probabilities and what is made of them, in single precision: measured phases, squashed actions, answers of a quiz, plans of transport."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

SINGLE = "32-true"


def likelihoods(outcomes: torch.Tensor, phases: torch.Tensor, logarithms: bool) -> torch.Tensor:
    """The phase that is likeliest after each episode of two outcomes, as a grid of phases has it."""
    ones = torch.cos(phases / 2).square()
    likely, best = torch.zeros_like(phases) if logarithms else torch.ones_like(phases), []
    for outcome in outcomes.tolist():
        seen = ones if outcome else 1 - ones
        likely = likely + seen.log() if logarithms else likely * seen  # culprit: many-episodes
        best.append(phases[likely.argmax()])  # culprit: many-episodes
    return torch.stack(best)


def measured_phase(logarithms: bool) -> torch.Tensor:
    phases = torch.linspace(0.02, math.pi - 0.02, 300)
    return likelihoods(uniform(500) < math.cos(1.2 / 2) ** 2, phases, logarithms)


class SquashedGaussian:
    """Actions of a robot: normal numbers that a hyperbolic tangent has squashed into the range of its joints."""

    low, high, small = -2.0, 2.0, 1e-6

    def __init__(self, mean: torch.Tensor, spread: torch.Tensor) -> None:
        self.normal = torch.distributions.Normal(mean, spread, validate_args=False)

    def squash(self, raw: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(raw) + 1) / 2 * (self.high - self.low) + self.low

    def unsquash(self, values: torch.Tensor) -> torch.Tensor:
        normed = (values - self.low) / (self.high - self.low) * 2 - 1
        return torch.atanh(normed.clamp(-1 + self.small, 1 - self.small))  # culprit: replayed-actions

    def log_prob(self, raw: torch.Tensor) -> torch.Tensor:
        return (self.normal.log_prob(raw).clamp(-100, 100) - torch.log(1 - torch.tanh(raw) ** 2 + self.small)).sum(-1)


def replayed(raw_kept: bool) -> torch.Tensor:
    """How much likelier a policy that has hardly moved makes two hundred actions of a buffer than when they were taken."""
    mean, spread = 5.6 + 0.9 * uniform(200, 6), torch.full((200, 6), 0.04)
    policy, raw = SquashedGaussian(mean, spread), mean + 0.04 * normal(200, 6, seed=1)
    taken = policy.log_prob(raw)
    buffer = raw if raw_kept else policy.squash(raw)  # culprit: replayed-actions
    moved = SquashedGaussian(mean + 0.002, spread)
    return torch.exp(moved.log_prob(buffer if raw_kept else moved.unsquash(buffer)) - taken)  # culprit: replayed-actions


def normalised_probability(log_probabilities: torch.Tensor, gold: torch.Tensor, stable: bool) -> torch.Tensor:
    """The share of the right choice in the probability of all choices."""
    if stable:
        log_probabilities = log_probabilities - log_probabilities.max(-1, keepdim=True).values
    probabilities = log_probabilities.exp()  # culprit: long-answers
    return (probabilities / probabilities.sum(-1, keepdim=True)).gather(-1, gold[:, None])[:, 0]  # culprit: long-answers


def quiz(stable: bool) -> torch.Tensor:
    """Sixty questions whose four answers have forty to ninety tokens each, of one and a half nats."""
    tokens, logits = 40 + (50 * uniform(60, 1)).long(), 1.5 + 0.2 * normal(60, 1, seed=1)
    answers = -tokens * logits + 1.5 * normal(60, 4, seed=2)
    return normalised_probability(answers, torch.arange(60) % 4, stable)


def sinkhorn_plan(one: torch.Tensor, other: torch.Tensor, regularisation: float, logarithms: bool) -> torch.Tensor:
    """A plan that carries one cloud of points to the other; rows and columns are made to sum to one in turn."""
    cost = torch.cdist(one, other)
    logits = -cost / (regularisation * cost.mean() + 1e-16)
    if logarithms:
        for _ in range(60):
            logits = logits - logits.logsumexp(1, keepdim=True)
            logits = logits - logits.logsumexp(0, keepdim=True)
        return logits.exp()
    plan = torch.exp(logits)  # culprit: far-from-all
    for _ in range(60):
        plan = plan / plan.sum(1, keepdim=True)  # culprit: far-from-all
        plan = plan / plan.sum(0, keepdim=True)  # culprit: far-from-all
    return plan


def carried(logarithms: bool) -> torch.Tensor:
    """Forty points carried to normal noise; a few of them lie apart."""
    one, other = normal(40, 2), normal(40, 2, seed=1)
    one[::10] = one[::10] + 4
    return sinkhorn_plan(one, other, 0.02, logarithms) @ other


BUGS = (
    Bug("many-episodes", "QuanEstimation/QuanEstimation.jl#140", ("accumulated-drift", "underflow", "decision-flip"), "aten.mul.Tensor",
        lambda: measured_phase(False), lambda: measured_phase(True), precision=SINGLE),
    Bug("replayed-actions", "ray-project/ray#14878", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: replayed(False),
        lambda: replayed(True), precision=SINGLE,
        wrong_line="the logarithm of 1 - tanh² has few digits here as well; it cancels in the ratio, and is blamed since the ratio is wrong"),
    Bug("long-answers", "huggingface/lighteval#1376", ("underflow", "nan"), "aten.exp.default", lambda: quiz(False), lambda: quiz(True),
        precision=SINGLE),
    Bug("far-from-all", "bayesflow-org/bayesflow#531", ("accumulated-drift", "underflow", "nan"), "aten.div.Tensor", lambda: carried(False),
        lambda: carried(True), precision=SINGLE),
)  # fmt: skip
