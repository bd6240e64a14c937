"""Calculations in float32 throughout, as textbooks have them: fits, searches and samplers whose roundings are small beside what they give."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform


def volatility_of_returns() -> torch.Tensor:
    """GARCH(1, 1): variances by a recursion, the likelihood, and three steps of Adam over its parameters."""
    returns, raw = 0.01 * normal(80) * (1 + (torch.arange(80) > 40)), torch.tensor([-9.0, -2.0, 2.0], requires_grad=True)
    optimizer = torch.optim.Adam([raw], 0.05)
    for _ in range(3):
        base, shock, kept = raw[0].exp(), torch.sigmoid(raw[1]), torch.sigmoid(raw[2])
        variance, total = returns.var(), torch.zeros(())
        for each in returns:
            total = total + 0.5 * (variance.log() + each.square() / variance)
            variance = base + (1 - kept) * shock * each.square() + kept * variance
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return raw.detach()


def clusters_by_expectation() -> torch.Tensor:
    """A mixture of three Gaussians by expectation and maximisation: shares by log-sum-exp, covariances about new means."""
    points = torch.cat([normal(30, 2, seed=seed) + 4 * normal(1, 2, seed=seed + 10) for seed in range(3)])
    means, matrices, shares = points[::30].clone(), torch.eye(2).repeat(3, 1, 1), torch.full((3,), 1 / 3)
    for _ in range(8):
        factor = torch.linalg.cholesky(matrices)
        away = torch.linalg.solve_triangular(factor, (points[:, None] - means)[..., None], upper=False).squeeze(-1)
        scores = shares.log() - 0.5 * away.square().sum(-1) - factor.diagonal(dim1=1, dim2=2).log().sum(-1)
        held = (scores - scores.logsumexp(1, keepdim=True)).exp()
        count = held.sum(0)
        means, shares = (held.T @ points) / count[:, None], count / len(points)
        away = points[:, None] - means
        matrices = torch.einsum("nk,nki,nkj->kij", held, away, away) / count[:, None, None] + 1e-3 * torch.eye(2)
    return torch.cat([means.flatten(), matrices.flatten(), shares])


def map_of_neighbours() -> torch.Tensor:
    """t-SNE of thirty points: widths by bisection, and gradients by Student's weights with momentum."""
    points = normal(30, 6) + 4 * (torch.arange(30) % 3)[:, None]
    far = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    itself, low, high = torch.eye(30, dtype=torch.bool), torch.full((30, 1), 1e-3), torch.full((30, 1), 10.0)
    for _ in range(20):
        middle = (low * high).sqrt()
        likely = torch.log_softmax((-middle * far).masked_fill(itself, -torch.inf), 1)
        entropy = -(likely.exp() * likely.masked_fill(itself, 0)).sum(1, keepdim=True)
        low, high = torch.where(entropy > math.log(8), middle, low), torch.where(entropy > math.log(8), high, middle)
    shares = likely.exp()
    shares = ((shares + shares.T) / 60).clamp_min(1e-9)
    placed, speed = 1e-2 * normal(30, 2, seed=1), torch.zeros(30, 2)
    for _ in range(30):
        weights = (1 / (1 + torch.cdist(placed, placed, compute_mode="donot_use_mm_for_euclid_dist").square())).masked_fill(itself, 0)
        pull = (shares - weights / weights.sum()) * weights
        speed = 0.5 * speed - 20 * 4 * (pull.sum(1, keepdim=True) * placed - pull @ placed)
        placed = placed + speed
    return placed


def curvature_from_differences() -> torch.Tensor:
    """L-BFGS with five pairs on a valley in eight dimensions, with a line search that halves."""
    scale = torch.logspace(0, 1.5, 8)

    def value(x: torch.Tensor) -> torch.Tensor:
        return (scale * x.square()).sum() + torch.log1p(x.square()).sum()

    def slope(x: torch.Tensor) -> torch.Tensor:
        return 2 * scale * x + 2 * x / (1 + x.square())

    x, kept = normal(8), []
    down = slope(x)
    for _ in range(12):
        way, ratios = down, []
        for step, change in reversed(kept):
            ratio = (step * way).sum() / (step * change).sum()
            ratios.append(ratio)
            way = way - ratio * change
        if kept:
            way = way * (kept[-1][0] * kept[-1][1]).sum() / kept[-1][1].square().sum()
        for (step, change), ratio in zip(kept, reversed(ratios), strict=True):
            way = way + (ratio - (change * way).sum() / (step * change).sum()) * step
        length, here = 1.0, value(x)
        while value(x - length * way) > here and length > 1e-3:
            length /= 2
        new = x - length * way
        after = slope(new)
        if (after - down).norm() < 1e-4:
            break
        kept, x, down = [*kept, (new - x, after - down)][-5:], new, after
    return x


def chain_with_a_leap() -> torch.Tensor:
    """Hamiltonian Monte Carlo on a skewed plane: ten leaps of a twelfth, and energies whose difference decides."""

    def energy(place: torch.Tensor) -> torch.Tensor:
        return 0.5 * place[..., 0].square() + 0.5 * (place[..., 1] - 0.3 * place[..., 0].square()).square()

    def slope(place: torch.Tensor) -> torch.Tensor:
        bent = place[..., 1] - 0.3 * place[..., 0].square()
        return torch.stack([place[..., 0] - 0.6 * place[..., 0] * bent, bent], -1)

    place, kept = normal(8, 2), []
    for turn in range(12):
        speed = normal(8, 2, seed=turn + 1)
        new, going = place, speed - 0.04 * slope(place)
        for _ in range(10):
            new = new + 0.08 * going
            going = going - 0.08 * slope(new)
        going = going + 0.04 * slope(new)
        change = energy(new) + 0.5 * going.square().sum(-1) - energy(place) - 0.5 * speed.square().sum(-1)
        place = torch.where((uniform(8, seed=turn + 50).log() < -change)[:, None], new, place)
        kept.append(place)
    return torch.stack(kept).mean((0, 1))


def sequences_side_by_side() -> torch.Tensor:
    """Smith and Waterman's best local alignment with softened maxima, over two short sequences, and its gradient."""
    first, second = (4 * uniform(12)).long(), (4 * uniform(10, seed=1)).long()
    score = (torch.eye(4) * 3 - 1).requires_grad_()
    table = [[torch.zeros(())] * 11 for _ in range(13)]
    for i in range(12):
        for j in range(10):
            ways = [torch.zeros(()), table[i][j] + score[first[i], second[j]], table[i][j + 1] - 1.5, table[i + 1][j] - 1.5]
            table[i + 1][j + 1] = torch.logsumexp(torch.stack(ways), 0)
    best = torch.logsumexp(torch.stack([each for row in table for each in row]), 0)
    (slope,) = torch.autograd.grad(best, score)
    return torch.cat([best.detach()[None], slope.flatten()])


def steps_of_least_squares() -> torch.Tensor:
    """Levenberg and Marquardt's steps for a decay with an offset: damping falls by three where a step helps, and rises by two where not."""
    time = torch.linspace(0, 4, 50)
    told, guess, damping = 2 * torch.exp(-1.3 * time) + 0.5 + 0.02 * normal(50), torch.tensor([1.0, 1.0, 0.0]), 1e-2
    for _ in range(15):
        fading = torch.exp(-guess[1] * time)
        left = told - guess[0] * fading - guess[2]
        slopes = torch.stack([fading, -guess[0] * time * fading, torch.ones(50)], 1)
        both = slopes.T @ slopes
        new = guess + torch.linalg.solve(both + damping * torch.diag(both.diagonal()), slopes.T @ left)
        after = told - new[0] * torch.exp(-new[1] * time) - new[2]
        better = bool(after.square().sum() < left.square().sum())
        guess, damping = (new, damping / 3) if better else (guess, damping * 2)
    return guess


IDIOMS = (
    volatility_of_returns, clusters_by_expectation, map_of_neighbours, curvature_from_differences, chain_with_a_leap,
    sequences_side_by_side, steps_of_least_squares,
)  # fmt: skip
EXACT = tuple(each.__name__ for each in IDIOMS)
