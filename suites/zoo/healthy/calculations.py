"""Calculations in float32 throughout, as textbooks have them: filters, fits, solvers and samplers whose roundings stay small beside what they give."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional


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


def regression_by_weights() -> torch.Tensor:
    """Logistic regression by Newton's steps: weights p (1 - p), and a solver for a small symmetric matrix."""
    x = torch.cat([torch.ones(80, 1), normal(80, 4)], 1)
    y = (uniform(80, seed=1) < torch.sigmoid(x @ torch.tensor([0.2, 1.0, -1.0, 0.5, 0.0]))).float()
    weights = torch.zeros(5)
    for _ in range(6):
        chance = torch.sigmoid(x @ weights)
        hessian = (x * (chance * (1 - chance))[:, None]).T @ x + 1e-3 * torch.eye(5)
        weights = weights + torch.linalg.solve(hessian, x.T @ (y - chance) - 1e-3 * weights)
    return weights


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


def parts_that_are_not_negative() -> torch.Tensor:
    """A factorisation by multiplicative updates, each over a sum of positive terms."""
    data = uniform(20, 4) @ uniform(4, 24, seed=1)
    left, right = 0.1 + uniform(20, 4, seed=2), 0.1 + uniform(4, 24, seed=3)
    for _ in range(40):
        right = right * (left.T @ data) / (left.T @ left @ right + 1e-9)
        left = left * (data @ right.T) / (left @ right @ right.T + 1e-9)
    return left @ right


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


def conjugate_directions() -> torch.Tensor:
    """Conjugate gradients for a grid's Laplacian plus one, until the residual is a millionth of what it was."""
    wanted = normal(16, 16)

    def product(x: torch.Tensor) -> torch.Tensor:
        wide = functional.pad(x, (1, 1, 1, 1))
        return 5 * x - wide[2:, 1:-1] - wide[:-2, 1:-1] - wide[1:-1, 2:] - wide[1:-1, :-2]

    x, residual = torch.zeros_like(wanted), wanted
    way, size = residual, residual.square().sum()
    first = size
    for _ in range(40):
        image = product(way)
        step = size / (way * image).sum()
        x, residual = x + step * way, residual - step * image
        before, size = size, residual.square().sum()
        if size < 1e-12 * first:
            break
        way = residual + size / before * way
    return x


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


def surface_of_a_process() -> torch.Tensor:
    """A Gaussian process: squared exponentials, a nugget of a hundredth, a Cholesky factor, and means and spreads of what is asked."""
    known, asked = 4 * uniform(20, 1), torch.linspace(0, 4, 30)[:, None]
    value = torch.sin(2 * known[:, 0]) + 0.1 * normal(20)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-0.5 * ((a - b.T) / 0.6).square())

    factor = torch.linalg.cholesky(kernel(known, known) + 1e-2 * torch.eye(20))
    between = kernel(asked, known)
    mean = between @ torch.cholesky_solve(value[:, None], factor)
    spread = 1.01 - torch.linalg.solve_triangular(factor, between.T, upper=False).square().sum(0)
    return torch.stack([mean[:, 0], spread.clamp_min(0).sqrt()])


def sparse_weights_by_splitting() -> torch.Tensor:
    """The lasso by ADMM: one factor, soft thresholds, and a dual that adds up what is left."""
    x, truth = normal(40, 12), torch.tensor([2.0, -1.5, 0, 0, 1, 0, 0, 0, 0, 0.5, 0, 0])
    y = x @ truth + 0.1 * normal(40, seed=1)
    factor, sparse, dual = torch.linalg.cholesky(x.T @ x + 5 * torch.eye(12)), torch.zeros(12), torch.zeros(12)
    for _ in range(40):
        dense = torch.cholesky_solve((x.T @ y + 5 * (sparse - dual))[:, None], factor)[:, 0]
        sparse = functional.softshrink(dense + dual, 0.4)
        dual = dual + dense - sparse
    return sparse


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


def cloud_that_is_laid_on_another() -> torch.Tensor:
    """Iterated closest points: neighbours by distances, and turns by singular vectors of centred clouds."""
    cloud = normal(40, 3) * torch.tensor([3.0, 2.0, 1.0])
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, -0.2, 0.1], [0.2, 0.0, -0.1], [-0.1, 0.1, 0.0]]))
    other, moved = cloud @ turn.T + torch.tensor([0.2, -0.1, 0.3]), cloud
    for _ in range(8):
        near = other[torch.cdist(moved, other).argmin(1)]
        middle, goal = moved.mean(0), near.mean(0)
        left, _, right = torch.linalg.svd((moved - middle).T @ (near - goal))
        sign = torch.diag(torch.tensor([1.0, 1.0, float(torch.sign(torch.linalg.det(left @ right)))]))
        moved = (moved - middle) @ (left @ sign @ right) + goal
    return moved


def values_of_a_maze() -> torch.Tensor:
    """Value iteration over a maze of 36 places until nothing changes by more than a hundred-thousandth."""
    moves = torch.stack([torch.roll(torch.arange(36), shift) for shift in (1, -1, 6, -6)])
    reward = torch.where(torch.arange(36) == 20, 1.0, -0.02) - (uniform(36) < 0.15).float()
    value = torch.zeros(36)
    for _ in range(120):
        sure = reward[moves] + 0.9 * value[moves]
        new = (0.8 * sure + 0.2 * sure.mean(0)).amax(0)
        if (new - value).abs().max() < 1e-5:
            break
        value = new
    return value


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
    volatility_of_returns, regression_by_weights, clusters_by_expectation, parts_that_are_not_negative, map_of_neighbours, conjugate_directions,
    curvature_from_differences, surface_of_a_process, sparse_weights_by_splitting, chain_with_a_leap, sequences_side_by_side,
    cloud_that_is_laid_on_another, values_of_a_maze, steps_of_least_squares,
)  # fmt: skip
EXACT = tuple(each.__name__ for each in IDIOMS)
