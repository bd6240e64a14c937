"""Networks in bfloat16 and half that look as if they overflowed, vanished or chose by a rounding, and that are right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn

HALF, LOW = torch.float16, torch.bfloat16


def tones_that_are_brought_back() -> torch.Tensor:
    """Tones that turn in half, each of which is scaled to a length of one whenever it has turned."""
    angles = 2 * math.pi * (220 + 1500 * uniform(16)) / 16_000
    cos, sin = torch.cos(angles), torch.sin(angles)
    real, imag = torch.ones(16), torch.zeros(16)
    for _ in range(60):
        real, imag = real * cos - imag * sin, real * sin + imag * cos
        length = torch.hypot(real, imag)
        real, imag = real / length, imag / length
    return torch.hypot(real, imag).to(HALF)


def plan_of_a_soft_match() -> torch.Tensor:
    """A plan between words by exponentials of at most six, in half."""
    torch.manual_seed(3)
    project = nn.Linear(10, 8).to(HALF)
    with torch.no_grad():
        mine, theirs = (nn.functional.normalize(project(normal(n, 10, seed=n).to(HALF)), dim=-1) for n in (10, 12))
        plan = torch.exp(-3 * (1 - mine @ theirs.T))
        rows, columns = torch.ones(10, 1, dtype=HALF), torch.ones(1, 12, dtype=HALF)
        for _ in range(6):
            rows = 0.1 / (plan * columns).sum(1, keepdim=True)
            columns = (1 / 12) / (plan * rows).sum(0, keepdim=True)
        return rows * plan * columns


def score_of_a_bad_generator() -> torch.Tensor:
    """Traces of covariances that were kept in half, of features that differ by half."""
    a, b = normal(300, 6), 1.5 * normal(300, 6, seed=1)
    first, second = ((each.T @ each / 300).to(HALF).float() for each in (a, b))
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    return first.diagonal().sum() + second.diagonal().sum() - 2 * torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()


def middles_of_small_clusters() -> torch.Tensor:
    """Sums of twenty points and counts of them, in half."""
    points = torch.tensor([[0.8, 0.3], [-0.5, 0.9], [0.2, -1.1]]).repeat(20, 1) + 0.1 * normal(60, 2)
    points = points.to(HALF)
    nearest = torch.arange(60) % 3
    sums = torch.zeros(3, 2, dtype=HALF).index_add_(0, nearest, points)
    members = torch.zeros(3, dtype=HALF).index_add_(0, nearest, torch.ones(60, dtype=HALF))
    return sums / members[:, None]


def best_forty_of_many_tokens() -> torch.Tensor:
    """All tokens that are as good as the fortieth: a tie in bfloat16 lets one more in, which has little weight."""
    torch.manual_seed(5)
    head = nn.Linear(16, 400).to(LOW)
    with torch.no_grad():
        logits = head((0.4 * normal(20, 16)).to(LOW))
        return torch.softmax(logits.float().masked_fill(logits < logits.topk(40, -1).values[:, -1:], -torch.inf), -1)


def flow_of_actions_in_eighths() -> torch.Tensor:
    """A flow's share in bfloat16, which holds it, times a thousand."""
    torch.manual_seed(6)
    time, leave = nn.Linear(32, 24).to(LOW), nn.Linear(24, 6).to(LOW)
    share = (torch.arange(1, 8) / 8).to(LOW)
    angle = share.float()[:, None] * 1000 * torch.exp(-0.25 * torch.arange(16))
    with torch.no_grad():
        return leave(torch.tanh(time(torch.cat([torch.cos(angle), torch.sin(angle)], -1).to(LOW))))


def prior_of_a_wide_voice() -> torch.Tensor:
    """A loss by exponentials of at most four, in half, with a mask."""
    torch.manual_seed(7)
    text, sound = nn.Linear(12, 16).to(HALF), nn.Linear(20, 16).to(HALF)
    mask = (torch.arange(40) < 30).to(HALF)
    with torch.no_grad():
        mean, log_scale = text(normal(40, 12).to(HALF)).chunk(2, -1)
        middle, log_spread = sound(normal(40, 20, seed=1).to(HALF)).chunk(2, -1)
        loss = log_scale - log_spread - 0.5 + 0.5 * (middle - mean).square() * torch.exp(-2 * log_scale)
        return (loss * mask[:, None]).sum(-1) / 8


def weights_of_atoms_by_plain_exponentials() -> torch.Tensor:
    """Exponentials of scores below three in half, without their maximum taken away."""
    torch.manual_seed(8)
    embed, score = nn.Linear(6, 24).to(HALF), nn.Linear(24, 1).to(HALF)
    molecule = torch.arange(60) // 5
    with torch.no_grad():
        hidden = torch.relu(embed(normal(60, 6).to(HALF)))
        weight = torch.exp(3 * torch.tanh(score(hidden).squeeze(-1)))
        total = torch.zeros(12, dtype=HALF).index_add(0, molecule, weight)
        return torch.zeros(12, 24, dtype=HALF).index_add(0, molecule, (weight / total[molecule])[:, None] * hidden)


def noise_above_a_half() -> torch.Tensor:
    """Draws in half that are moved off nought before their logarithm."""
    torch.manual_seed(9)
    scores = nn.Linear(8, 20).to(HALF)
    with torch.no_grad():
        draw = torch.rand(100, 20, dtype=HALF, generator=torch.Generator().manual_seed(0))
        return scores(normal(100, 8).to(HALF)) - torch.log(-torch.log(draw * 0.9 + 0.05))


def rows_with_a_mild_outlier() -> torch.Tensor:
    """Mean squares in half of rows whose largest activation is sixty."""
    torch.manual_seed(10)
    up, down = nn.Linear(32, 64, bias=False).to(HALF), nn.Linear(64, 32, bias=False).to(HALF)
    x = normal(20, 32).to(HALF)
    x[0, 5] = 60
    with torch.no_grad():
        seen = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return down(nn.functional.silu(up(seen)))


IDIOMS = (
    tones_that_are_brought_back, plan_of_a_soft_match, score_of_a_bad_generator, middles_of_small_clusters, best_forty_of_many_tokens,
    flow_of_actions_in_eighths, prior_of_a_wide_voice, weights_of_atoms_by_plain_exponentials, noise_above_a_half, rows_with_a_mild_outlier,
)  # fmt: skip
