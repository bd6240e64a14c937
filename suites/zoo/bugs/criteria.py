"""Losses and metrics as people write them: contrast, means of kernels, soft bounds, alignments, deviances, shares that are explained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float, masked: bool) -> torch.Tensor:
    """The contrastive loss of each pair of views: its own likeness beside that with all others."""
    out = torch.cat([first, second])
    if masked:
        likeness = wider(out) @ wider(out).T / temperature
        likeness.fill_diagonal_(-torch.inf)
        return likeness.logsumexp(-1) - (wider(out) * wider(torch.cat([second, first]))).sum(-1) / temperature
    likeness = torch.exp(out @ out.T / temperature)  # culprit: others-without-itself
    itself = torch.exp(torch.full_like(likeness[0], 1 / temperature))
    others = likeness.sum(-1) - itself  # culprit: others-without-itself
    same = torch.exp((first * second).sum(-1) / temperature)
    return -torch.log(torch.cat([same, same]) / others)


def contrast(dtype: torch.dtype, masked: bool, temperature: float = 0.1) -> torch.Tensor:
    """Losses of 24 pairs of unit vectors, whose likeness with themselves is taken away again. Off by 14 %."""
    views = [functional.normalize((normal(24, 32) + 0.8 * normal(24, 32, seed=seed)).double(), dim=-1).to(dtype) for seed in (1, 2)]
    return nt_xent(views[0], views[1], temperature, masked)


def discrepancy(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The squared distance of two samples' means in the space of a Gaussian kernel."""

    def mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(a[:, None] - b).square().sum(-1) / (2 * a.shape[-1])).mean()  # culprit: two-samples-by-kernels

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)  # culprit: two-samples-by-kernels


class Adapted(nn.Module):
    """Features of two domains, and a loss that draws them together."""

    def __init__(self, dtype: torch.dtype, widened: bool) -> None:
        super().__init__()
        self.body, self.widened = nn.Linear(12, 8, bias=False), widened
        with torch.no_grad():
            self.body.weight.copy_((normal(8, 12) / 12**0.5).to(LOW))
        self.to(dtype)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        a, b = self.body(first), self.body(second)
        return discrepancy(wider(a), wider(b)) if self.widened else discrepancy(a, b)


def domains(dtype: torch.dtype, widened: bool, apart: float = 0.06) -> torch.Tensor:
    """How far two batches are apart that are nearly alike, a hundredth of what is taken from each other. Off by 7 %."""
    first, second = normal(48, 12).to(LOW).to(dtype), (normal(48, 12, seed=1) + apart).to(LOW).to(dtype)
    return wider(Adapted(dtype, widened)(first, second))


class LogCosh(nn.Module):
    def __init__(self, split: bool) -> None:
        super().__init__()
        self.split = split

    def forward(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        away = out - target
        if self.split:
            return (away + functional.softplus(-2 * away) - 0.6931471805599453).mean()
        return torch.log((torch.exp(away) + torch.exp(-away)) / 2).mean()  # culprit: cosine-of-an-outlier


def regressed(dtype: torch.dtype, split: bool, spread: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss in half and the gradient of a layer, where one of sixty residuals is beyond eleven: both are not finite."""
    layer = nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_((spread / 8**0.5 * normal(2, 8)).to(LOW))
    layer.to(dtype)
    loss = LogCosh(split)(layer(normal(32, 8, seed=1).to(LOW).to(dtype)), normal(32, 2, seed=2).to(LOW).to(dtype))
    loss.backward()
    assert layer.weight.grad is not None
    return wider(loss), wider(layer.weight.grad)


def soft_minimum(costs: torch.Tensor, gamma: float, shifted: bool) -> torch.Tensor:
    if shifted:
        return -gamma * torch.logsumexp(-costs / gamma, 0)
    return -gamma * torch.log(torch.exp(-costs / gamma).sum(0))  # culprit: soft-alignment


def soft_dtw(first: torch.Tensor, second: torch.Tensor, gamma: float, shifted: bool) -> torch.Tensor:
    """The cost of the best alignment of two series, softly: over all ways through their table of distances."""
    table = (first[:, None] - second).square()
    rows, columns = table.shape[:2]
    far = torch.full_like(table[0, 0], 1e4)
    reached = [[far] * (columns + 1) for _ in range(rows + 1)]
    reached[0][0] = torch.zeros_like(far)
    for i in range(rows):
        for j in range(columns):
            ways = torch.stack([reached[i][j], reached[i][j + 1], reached[i + 1][j]])
            reached[i + 1][j + 1] = table[i, j] + soft_minimum(ways, gamma, shifted)
    return reached[rows][columns]


def alignments(dtype: torch.dtype, shifted: bool, gamma: float = 0.05) -> torch.Tensor:
    """Soft costs of five pairs of series of nine steps in half; beyond 0.87 no way has a power of e left, and the cost is infinite."""
    first, second = 0.7 * normal(9, 5), 0.7 * normal(9, 5, seed=1)
    return wider(soft_dtw(first.to(LOW).to(dtype), second.to(LOW).to(dtype), gamma, shifted))


def deviance(counts: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """How badly a rate explains counts, beside a rate that is equal to them (Poisson)."""
    return 2 * (counts * torch.log(counts / rate) - (counts - rate))  # culprit: deviance-of-counts


def deviances(dtype: torch.dtype, widened: bool, around: float = 0.08) -> torch.Tensor:
    """Deviances of sixty counts from a fit in bfloat16, which is within a tenth of them. Off by 15 %."""
    counts = (60 + 190 * uniform(60)).round()
    rate = (counts * (1 + around * normal(60, seed=1)).clamp(0.3, 3)).to(LOW)
    counts, rate = counts.to(dtype), rate.to(dtype)
    return deviance(wider(counts), wider(rate)) if widened else deviance(counts, rate).to(WIDE if dtype == LOW else dtype)


class ExplainedShare:
    """R squared of batches that come one by one: of the sums of targets, of their squares and of squared errors."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.count, self.sum, self.squares, self.errors = 0, *(torch.zeros(3, dtype=dtype) for _ in range(3))

    def update(self, out: torch.Tensor, target: torch.Tensor) -> None:
        self.count += len(target)
        self.errors += (target - out).square().sum(0)
        target = target.to(self.sum.dtype)
        self.sum += target.sum(0)
        self.squares += target.square().sum(0)  # culprit: share-by-sums

    def compute(self) -> torch.Tensor:
        return 1 - self.errors / (self.squares - self.sum.square() / self.count)  # culprit: share-by-sums


def explained(dtype: torch.dtype, level: float = 4000.0) -> torch.Tensor:
    """R squared of three pressures near four thousand with a spread of one, by sums in float32. Off by 18 %."""
    metric = ExplainedShare(dtype)
    for seed in range(8):
        target = level + normal(64, 3, seed=seed)
        metric.update(target + 0.3 * normal(64, 3, seed=seed + 20), target)
    return metric.compute()


BUGS = (
    Bug("others-without-itself", "Lightning-Universe/lightning-bolts#320", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: contrast(LOW, False), lambda: contrast(LOW, True)),
    Bug("two-samples-by-kernels", "gchq/coreax#855", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: domains(LOW, False),
        lambda: domains(LOW, True)),
    Bug("cosine-of-an-outlier", "Lightning-AI/torchmetrics#3488", ("overflow", "nan"), "aten.exp.default", lambda: regressed(HALF, False),
        lambda: regressed(HALF, True), module="LogCosh"),
    Bug("soft-alignment", "", ("underflow", "overflow", "nan"), "aten.sum.dim_IntList", lambda: alignments(HALF, False),
        lambda: alignments(HALF, True)),
    Bug("deviance-of-counts", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: deviances(LOW, False),
        lambda: deviances(LOW, True)),
    Bug("share-by-sums", "pytorch/ignite#3836", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: explained(WIDE),
        lambda: explained(DOUBLE), precision="32-true"),
)  # fmt: skip
