"""Tuitions: steps after steep slopes, actions at their bounds, lessons that are forgotten, chances of chosen words."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

LOW, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


class Adam:
    """The usual optimizer, for one vector of parameters."""

    def __init__(self, theta: torch.Tensor, rate: float) -> None:
        self.theta, self.rate, self.step_count = theta, rate, 0
        self.first, self.second = torch.zeros_like(theta), torch.zeros_like(theta)

    def step(self, slope: torch.Tensor) -> None:
        self.step_count += 1
        self.first = 0.9 * self.first + 0.1 * slope
        self.second = 0.999 * self.second + 0.001 * slope * slope  # culprit: step-after-a-steep-slope
        first = self.first / (1 - 0.9**self.step_count)
        second = self.second / (1 - 0.999**self.step_count)
        self.theta = self.theta - self.rate * first / (second.sqrt() + 1e-8)


def fitted(kind: torch.dtype, steps: int = 30) -> torch.Tensor:
    """The means and the log-spreads of six patients' doses, from a first guess that is too sure. It stays."""
    doses = (4 + normal(6, 20, seed=341)).to(kind)
    adam = Adam(torch.stack([torch.zeros(6, dtype=kind), torch.full((6,), -27.0, dtype=kind)]), 0.2)
    for _ in range(steps):
        theta = adam.theta.detach().requires_grad_()
        away = (doses - theta[0][:, None]) * torch.exp(-theta[1])[:, None]
        (0.5 * away * away + theta[1][:, None]).mean(-1).sum().backward()
        adam.step(theta.grad)
    return adam.theta - torch.tensor([[0.0], [-27.0]])


class TanhNormal:
    """A normal distribution whose draws are squeezed between minus one and one."""

    def __init__(self, mean: torch.Tensor, spread: torch.Tensor) -> None:
        self.base = torch.distributions.Normal(mean, spread, validate_args=False)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        before = torch.atanh(action)  # culprit: actions-at-their-bounds
        return (self.base.log_prob(before) - torch.log(1 - action**2)).sum(-1)


def cloned(kind: torch.dtype) -> torch.Tensor:
    """By how much a policy should change its means to act as a teacher who often turns the wheel to the end. NaN."""
    wished = 4 + 7 * uniform(32, 3, seed=342).double()
    actions = torch.tanh(wished.to(kind))  # culprit: actions-at-their-bounds
    mean = (wished + 0.3 * normal(32, 3, seed=343)).to(kind).requires_grad_()
    (-TanhNormal(mean, torch.full_like(mean, 0.5)).log_prob(actions).mean()).backward()
    return mean.grad


class Quantised(nn.Module):
    """A linear layer whose weights have four bits, with a scale for sixteen of them."""

    def __init__(self, weight: torch.Tensor, group: int = 16) -> None:
        super().__init__()
        groups = weight.view(len(weight), -1, group)
        self.scale = groups.abs().amax(-1, keepdim=True) / 7
        self.codes = (groups / self.scale).round().clamp(-8, 7)  # culprit: lesson-that-is-forgotten

    @property
    def weight(self) -> torch.Tensor:
        return (self.codes * self.scale).flatten(1)


def taught(bits: int) -> torch.Tensor:
    """What a light lesson of rank four has changed in a layer's answers, once it is merged. It may be nothing."""
    base = Quantised(0.05 * normal(32, 64, seed=344))
    lesson = 0.004 * normal(32, 4, seed=345) @ normal(4, 64, seed=346) / 2
    merged = base.weight + lesson
    if bits == 4:
        merged = Quantised(merged).weight  # culprit: lesson-that-is-forgotten
    asked = normal(20, 64, seed=347)
    return asked @ merged.T - asked @ base.weight.T


class Policy(nn.Module):
    """A model that gives each of some words a score."""

    def __init__(self, words: int, size: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(words, size), nn.Linear(size, words)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return 9 * self.head(torch.tanh(self.embed(text)))


def chances(logits: torch.Tensor, words: torch.Tensor, careful: bool) -> torch.Tensor:
    """The logarithm of the chance of each chosen word, without a table of all of them."""
    if careful:
        logits = logits.float()
    chosen = logits.gather(-1, words[..., None])[..., 0]
    return chosen - torch.logsumexp(logits, -1)  # culprit: chances-of-chosen-words


def trained_on(careful: bool) -> torch.Tensor:
    """How much likelier each of forty-eight words is for a policy than for the one it began as. In steps."""
    text = (300 * uniform(4, 12, seed=348)).long()
    old, new = Policy(300, 24, 349).to(LOW), Policy(300, 24, 349).to(LOW)
    with torch.no_grad():
        new.head.bias += 0.06 * normal(300, seed=350).to(LOW)
        words = (old(text) + 2 * normal(4, 12, 300, seed=351)).argmax(-1)
        ratio = chances(new(text), words, careful) - chances(old(text), words, careful)  # culprit: chances-of-chosen-words
    return torch.exp(wider(ratio)) - 1


BUGS = (
    Bug("step-after-a-steep-slope", "FeRx-NLME/ferx-core#1112", ("overflow",), "aten.mul.Tensor",
        lambda: fitted(SINGLE), lambda: fitted(DOUBLE), precision="32-true"),
    Bug("actions-at-their-bounds", "rail-berkeley/hil-serl#6", ("overflow", "nan", "cancellation", "amplified-rounding"), "aten.tanh.default",
        lambda: cloned(SINGLE), lambda: cloned(DOUBLE), precision="32-true"),
    Bug("lesson-that-is-forgotten", "ARahim3/mlx-tune#15", ("absorption", "amplified-rounding", "cancellation"), "aten.round.default",
        lambda: taught(4), lambda: taught(16), precision="32-true",
        expected_miss="to round weights to four bits again after a step is taken for what its user wishes: the quantiser is right on what it gets"),
    Bug("chances-of-chosen-words", "meta-pytorch/torchforge#237", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: trained_on(careful=False), lambda: trained_on(careful=True),
        expected_miss="the difference is right to a few roundings of bfloat16, no more than that of the logits, which the precision asks for"),
)  # fmt: skip
