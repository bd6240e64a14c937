"""Bazaars: tastes of users, clicks, long numbers of nodes, neighbours, stamps of exposures, meters on a pod."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class AlternatingLeastSquares:
    """Tastes of users and kinds of items from what was bought; each side is solved by a few steps of conjugate gradients."""

    def __init__(self, bought: torch.Tensor, factors: int, regularization: float, checks: bool) -> None:
        self.bought, self.regularization, self.checks = bought, regularization, checks
        self.users, self.items = 0.1 * normal(bought.shape[0], factors, seed=7201), 0.1 * normal(bought.shape[1], factors, seed=7202)

    def solved(self, x: torch.Tensor, y: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
        gram = y.T @ y + self.regularization * torch.eye(y.shape[1])

        def product(p: torch.Tensor) -> torch.Tensor:
            return p @ gram + (p @ y.T * confidence) @ y

        r = (confidence + (confidence > 0)) @ y - product(x)
        p, rest = r, (r * r).sum(1, keepdim=True)  # culprit: tastes-that-fade
        going = rest >= 1e-20 if self.checks else torch.ones_like(rest, dtype=torch.bool)
        for _ in range(3):
            ap = product(p)
            curve = (p * ap).sum(1, keepdim=True)
            step = torch.where(going, rest / torch.where(going, curve, 1), 0)  # culprit: tastes-that-fade
            x, r = x + step * p, r - step * ap
            left = (r * r).sum(1, keepdim=True)
            going = going & (left >= 1e-20)
            p = r + torch.where(going, left / torch.where(going, rest, 1), 0) * p
            rest = left
        return x

    def fit(self, rounds: int) -> None:
        for _ in range(rounds):
            self.users = self.solved(self.users, self.items, self.bought)
            self.items = self.solved(self.items, self.users, self.bought.T)


def bought(checks: bool) -> torch.Tensor:
    """What thirty users would like of twelve items, of which they bought ten in all, times a thousand; regularised strongly."""
    purchases = torch.where(uniform(30, 12, seed=7203) > 0.97, uniform(30, 12, seed=7204), 0)
    model = AlternatingLeastSquares(purchases, 6, 10.0, checks)
    model.fit(7)
    return 1000 * (model.users @ model.items.T) + purchases


class FFM(nn.Module):
    """A field-aware factorization machine: each feature has a vector for each other field."""

    def __init__(self, features: int, fields: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(7211)
        self.weights = nn.Parameter(0.6 * torch.randn(features, fields, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        vectors = self.weights[x]
        both = (vectors * vectors.transpose(1, 2)).sum(-1)
        return torch.triu(both, 1).sum((1, 2))


class LogLoss:
    """The mean logarithmic loss of predictions that come in batches."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon, self.total, self.count = epsilon, torch.zeros(()), 0

    def update(self, score: torch.Tensor, clicked: torch.Tensor) -> None:
        p = 1 / (1 + torch.exp(-score))
        if self.epsilon:
            p = p.clamp(self.epsilon, 1 - self.epsilon)
        self.total = self.total - torch.where(clicked, p.log(), (1 - p).log()).sum()  # culprit: clicks-that-are-certain
        self.count += len(score)

    def compute(self) -> torch.Tensor:
        return self.total / self.count


def clicked(epsilon: float) -> torch.Tensor:
    """The loss of a machine of six fields over four batches."""
    model, metric = FFM(60, 6, 8), LogLoss(epsilon)
    with torch.no_grad():
        for batch in range(4):
            x = (60 * uniform(32, 6, seed=7212 + batch)).long()
            metric.update(2 * model(x), uniform(32, seed=7222 + batch) > 0.5)
    return metric.compute()


class Matches:
    """Which node of a query may be which of a target, and how well it fits; a row for each pair."""

    def __init__(self, query: torch.Tensor, target: torch.Tensor, fit: torch.Tensor, apart: bool) -> None:
        if apart:
            self.nodes, self.fit = torch.stack([query, target], 1), fit
        else:
            rows = torch.stack([query, target, fit], 1)  # culprit: nodes-with-long-numbers
            self.nodes, self.fit = rows[:, :2].long(), rows[:, 2]

    def best(self, query: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """How well each node of the query fits each of the target, by their numbers."""
        found = torch.zeros(len(query), len(target))
        row, column = (torch.searchsorted(known, self.nodes[:, side].contiguous()) for side, known in enumerate((query, target)))
        found[row.clamp_max(len(query) - 1), column.clamp_max(len(target) - 1)] = self.fit
        return found


def matched(apart: bool) -> torch.Tensor:
    """Six nodes of a query, by forty of a social graph, whose numbers have nine digits."""
    query, target = torch.arange(6) + 11, 481_203_977 + 3 * torch.arange(40)
    pairs = torch.cartesian_prod(query, target)
    return Matches(pairs[:, 0], pairs[:, 1], uniform(240, seed=7231), apart).best(query, target)


class GraphAttention(nn.Module):
    """Each node looks at its neighbours; what is no neighbour is masked by a low number."""

    def __init__(self, size: int, off: float) -> None:
        super().__init__()
        torch.manual_seed(7241)
        self.kernel, self.own, self.other, self.off = nn.Linear(size, size), nn.Linear(size, 1), nn.Linear(size, 1), off

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        features = self.kernel(x)
        dense = functional.leaky_relu(self.own(features) + self.other(features).T, 0.2)
        mask = torch.tensor(self.off).to(x.dtype) * (1 - adjacency)  # culprit: who-is-no-neighbour
        dense = dense + mask  # culprit: who-is-no-neighbour
        return functional.elu(torch.softmax(dense, -1) @ features)


def attended(off: float) -> torch.Tensor:
    """Two layers over twenty nodes, in half."""
    adjacency = ((uniform(20, 20, seed=7242) > 0.8) | torch.eye(20, dtype=torch.bool)).to(HALF)
    first, second, x = GraphAttention(12, off).to(HALF), GraphAttention(12, off).to(HALF), normal(20, 12, seed=7243).to(HALF)
    with torch.no_grad():
        return second(first(x, adjacency), adjacency).float()


class Header:
    """Numbers of the headers of a file's frames, each column stored as narrow as it is told."""

    def __init__(self, kinds: dict[str, torch.dtype]) -> None:
        self.kinds = kinds
        self.columns: dict[str, torch.Tensor] = {}

    def read(self, name: str, numbers: torch.Tensor) -> None:
        self.columns[name] = numbers.to(self.kinds[name])  # culprit: stamps-of-exposures

    def decay(self) -> tuple[torch.Tensor, torch.Tensor]:
        """When each frame was exposed, in seconds since the first, and how fast the beam fades, by a line through its logarithm."""
        elapsed = (self.columns["time_of_day"] - self.columns["time_of_day"][0]).float()
        log = self.columns["intensity"].log()
        centred = elapsed - elapsed.mean()
        return elapsed, (centred * log).sum() / (centred * centred).sum()


def exposed(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Twenty-four frames of a beam, eight seconds apart."""
    header = Header({"time_of_day": kind, "intensity": SINGLE})
    seconds = 7.6 * torch.arange(24, dtype=DOUBLE) + 0.1 * uniform(24, seed=7251)
    header.read("time_of_day", 1469117043.849703 + seconds)
    header.read("intensity", 5e4 * torch.exp(-0.004 * seconds + 0.01 * normal(24, seed=7252)))
    return header.decay()


class AverageMeter:
    """The mean of what it is told, each value so many times."""

    def __init__(self, kind: torch.dtype) -> None:
        self.sum, self.count = torch.zeros((), dtype=kind), torch.zeros((), dtype=kind)

    def update(self, value: torch.Tensor, n: int) -> None:
        self.sum += value * n  # culprit: accuracy-on-a-pod
        self.count += n  # culprit: accuracy-on-a-pod

    @property
    def avg(self) -> torch.Tensor:
        return self.sum / self.count


def metered(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of a classifier in bfloat16 over three hundred batches of two, of which the second half is harder; and how many it saw, in thousands."""
    torch.manual_seed(7261)
    model, meter = nn.Linear(12, 5).to(LOW), AverageMeter(kind)
    with torch.no_grad():
        for batch in range(300):
            x, label = normal(2, 12, seed=7262 + batch).to(LOW), (5 * uniform(2, seed=7572 + batch)).long()
            meter.update(functional.cross_entropy((3 if batch < 150 else 12) * model(x), label), 2)
    return meter.avg.float(), meter.count.float() / 1000


BUGS = (
    Bug("tastes-that-fade", "benfred/implicit#106", ("underflow", "nan"), "",
        lambda: bought(checks=False), lambda: bought(checks=True), precision="32-true",
        wrong_line="factors that are nought in exact arithmetic are rounding noise from the first round on, and that difference is named",
        twin_accused="what the last turn of a loop leaves counts as a result, and the project's own guard of 1e-20 lets noise of float32 pass"),
    Bug("clicks-that-are-certain", "ycjuan/libffm#12", ("cancellation", "overflow", "nan", "amplified-rounding"), "aten.rsub.Scalar",
        lambda: clicked(0.0), lambda: clicked(1e-6), precision="32-true", phase="data"),
    Bug("nodes-with-long-numbers", "digicatapult/fornax#14", ("integer-rounding",), "aten.stack.default",
        lambda: matched(apart=False), lambda: matched(apart=True), precision="32-true"),
    Bug("who-is-no-neighbour", "danielegrattarola/keras-gat#23", ("overflow", "nan"), "aten._to_copy.default",
        lambda: attended(-10e9), lambda: attended(-3e4)),
    Bug("stamps-of-exposures", "silx-kit/silx#680", ("amplified-rounding", "cancellation", "integer-rounding"), "aten._to_copy.default",
        lambda: exposed(SINGLE), lambda: exposed(DOUBLE), precision="32-true"),
    Bug("accuracy-on-a-pod", "pytorch-tpu/examples#18", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: metered(LOW), lambda: metered(SINGLE), phase="data"),
)  # fmt: skip
