"""Searches for what is best: a next experiment, a step along a line, curvature, weights that matter, a split, a proposal."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, on_one_thread, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def expected_improvement(mean: torch.Tensor, spread: torch.Tensor, best: float, scaled: bool) -> torch.Tensor:
    """How much better than the best a candidate may be, over all that a Gaussian process holds possible."""
    z = (mean - best) / spread
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    if scaled:
        return spread * density * (1 + z * math.sqrt(math.pi / 2) * torch.special.erfcx(-z / math.sqrt(2)))
    chance = (1 + torch.erf(z / math.sqrt(2))) / 2  # culprit: improvement-far-from-the-best
    return spread * (density + z * chance)  # culprit: improvement-far-from-the-best


def next_experiment(scaled: bool) -> torch.Tensor:
    """Shares of 64 candidates in the choice of the next experiment, none of which is likely to be better than the best."""
    spread = 0.5 + uniform(64)
    mean = 3.0 - spread * (4.5 + 0.5 * uniform(64, seed=1))
    found = expected_improvement(mean, spread, 3.0, scaled)
    return found / found.sum()


class Backtracking:
    """Gradient descent that halves a step until the loss falls by a part of what the slope says."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, direct: bool) -> None:
        self.inputs, self.targets, self.direct = inputs, targets, direct

    def loss(self, weight: torch.Tensor) -> torch.Tensor:
        return (self.targets - self.inputs @ weight).square().sum()  # culprit: search-along-a-line

    def change(self, weight: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
        """How much the loss grows by a move."""
        if self.direct:
            along = self.inputs @ move
            return (along * (along - 2 * (self.targets - self.inputs @ weight))).sum()
        return self.loss(weight + move) - self.loss(weight)  # culprit: search-along-a-line

    def run(self, weight: torch.Tensor, turns: int) -> torch.Tensor:
        for _ in range(turns):
            gradient = -2 * self.inputs.T @ (self.targets - self.inputs @ weight)
            step = 1.0
            while self.change(weight, -step * gradient) >= -1e-4 * step * gradient.square().sum() and step > 1e-12:  # culprit: search-along-a-line
                step /= 2
            weight = weight - step * gradient
        return weight


def line_searches(direct: bool) -> torch.Tensor:
    """Weights of a fit to numbers that stand far from zero, which no weight explains."""
    inputs = normal(256, 6) * torch.tensor([1, 0.8, 0.6, 0.5, 0.4, 0.3])
    targets = inputs @ normal(6, seed=1) + 1500 * normal(256, seed=2).sign()
    targets = targets - inputs @ torch.linalg.lstsq(inputs, targets[:, None]).solution[:, 0] + inputs @ normal(6, seed=1)
    return Backtracking(inputs, targets, direct).run(torch.zeros(6), 10)


def curvature(weight: torch.Tensor, inputs: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """The product of a vector with the Hessian of a logistic loss, by the way back through the gradient."""

    def loss(at: torch.Tensor) -> torch.Tensor:
        return functional.softplus(inputs @ at).sum()

    return torch.func.vjp(torch.func.grad(loss), weight)[1](vector)[0]


def lanczos(steps: int, dtype: torch.dtype, again: bool) -> torch.Tensor:
    """The five largest curvatures of a loss by the recurrence of three terms, whose vectors are kept in a format, made orthogonal again or not."""
    inputs = normal(200, 40) * torch.logspace(0, -1.2, 40)
    weight = torch.zeros(40)
    now, before, beta = functional.normalize(normal(40, seed=1), dim=0).to(dtype), torch.zeros(40, dtype=dtype), torch.zeros((), dtype=dtype)
    alphas, betas, kept = [], [], [now]
    for _ in range(steps):
        product = curvature(weight, inputs, now.float()).to(dtype) - beta * before  # culprit: directions-of-curvature
        alpha = product @ now
        product = product - alpha * now  # culprit: directions-of-curvature
        if again:
            basis = torch.stack(kept)
            product = product - basis.T @ (basis @ product)
        beta = product.norm()
        before, now = now, product / beta
        kept.append(now)
        alphas.append(alpha.float())
        betas.append(beta.float())
    rest = torch.stack(betas[:-1])
    tridiagonal = torch.diag(torch.stack(alphas)) + torch.diag(rest, 1) + torch.diag(rest, -1)
    return torch.linalg.eigvalsh(tridiagonal).flip(0)[:5]


def squared_gradients(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The diagonal of the empirical Fisher matrix: the mean over examples of squared gradients, example by example."""
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(at: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = torch.func.functional_call(model, at, (x[None],))[0]
        return (made - y).square().mean()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, inputs, targets)
    return {name: each.to(dtype).square().mean(0) for name, each in gradients.items()}  # culprit: weights-that-matter


def importance(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """How much each weight of a small network in half matters beside the others of its layer, after a good fit."""
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 512))
    with torch.no_grad():
        for seed, each in enumerate(model.parameters()):
            each.copy_(normal(*each.shape, seed=seed) / 4)
    model.to(HALF)
    inputs = normal(64, 12, seed=9).to(HALF)
    with torch.no_grad():
        targets = model(inputs) + (0.1 * normal(64, 512, seed=10)).to(HALF)
    return tuple((each.float() / each.float().sum()) for each in squared_gradients(model, inputs, targets, dtype).values())


def leaf_values(gradients: torch.Tensor, bins: torch.Tensor, count: int, subtracted: bool) -> torch.Tensor:
    """The value of the right leaf of each split of a feature in bins, by sums of gradients and of their number."""
    sums = torch.zeros(count).index_add(0, bins, gradients)
    rows = torch.zeros(count).index_add(0, bins, torch.ones(len(bins)))
    if subtracted:
        right = (sums.sum() - sums.cumsum(0))[:-1]  # culprit: gradients-that-are-phantoms
    else:
        right = sums.flip(0).cumsum(0).flip(0)[1:]
    return -right / (rows.flip(0).cumsum(0).flip(0)[1:] + 1)


def boosted(subtracted: bool) -> torch.Tensor:
    """Values of right leaves for the last bins: few cheap houses among many dear ones."""
    bins = torch.cat([(24 * uniform(40000)).long(), 24 + (8 * uniform(160, seed=1)).long()])
    prices = torch.where(bins < 24, 3e6 * (1 + uniform(len(bins), seed=2)), 60 + 10 * uniform(len(bins), seed=3))
    return leaf_values(-prices, bins, 32, subtracted)[-8:]


class Metropolis:
    """A chain that proposes a place and takes it with the chance that its density has beside the old one."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, noise: float, paired: bool) -> None:
        self.inputs, self.targets, self.noise, self.paired = inputs, targets, noise, paired

    def log_density(self, place: torch.Tensor) -> torch.Tensor:
        residual = (self.targets - self.inputs @ place) / self.noise
        return -residual.square().sum() / 2  # culprit: density-of-a-proposal

    def log_ratio(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self.paired:
            moved = self.inputs @ (new - old) / self.noise
            return (moved * ((self.targets - self.inputs @ old) / self.noise - moved / 2)).sum()
        return self.log_density(new) - self.log_density(old)  # culprit: density-of-a-proposal

    def chances(self, old: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.log_ratio(old, old + move).clamp(max=0).exp() for move in moves])


def proposals(paired: bool) -> torch.Tensor:
    """The chances of 48 proposals under a model whose noise is far too small for the data."""
    inputs = normal(400, 4)
    targets = inputs @ normal(4, seed=1) + 2 * normal(400, seed=2)
    fit = torch.linalg.lstsq(inputs, targets[:, None]).solution[:, 0]
    chain = Metropolis(inputs, targets, 2e-3, paired)
    return chain.chances(fit, 1.2e-4 * normal(48, 4, seed=3))


BUGS = (
    Bug("improvement-far-from-the-best", "meta-pytorch/botorch#1565", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: next_experiment(False), lambda: next_experiment(True), precision="32-true"),
    Bug("search-along-a-line", "chokkan/liblbfgs#12", ("amplified-rounding", "cancellation", "decision-flip"), "aten.sum.default",
        lambda: on_one_thread(lambda: line_searches(False)), lambda: on_one_thread(lambda: line_searches(True)), precision="32-true"),
    Bug("directions-of-curvature", "noahgolmant/pytorch-hessian-eigenthings#35", ("accumulated-drift", "cancellation", "amplified-rounding"),
        "aten.mul.Tensor", lambda: lanczos(14, HALF, False), lambda: lanczos(14, WIDE, True)),
    Bug("weights-that-matter", "pytorch/ao#4352", ("underflow",), "aten.pow.Tensor_Scalar", lambda: importance(HALF), lambda: importance(WIDE)),
    Bug("gradients-that-are-phantoms", "dmlc/xgboost#8246", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: boosted(True),
        lambda: boosted(False), precision="32-true",
        expected_miss="what it returns is a slice, which no op reads, and the whole tensor is right: the lost elements are small beside the others"),
    Bug("density-of-a-proposal", "pymc-devs/pymc#4038", ("cancellation", "amplified-rounding"),
        "aten.sub.Tensor or aten.sum.default or aten.div.Tensor",
        lambda: proposals(False), lambda: proposals(True), precision="32-true"),
)  # fmt: skip
