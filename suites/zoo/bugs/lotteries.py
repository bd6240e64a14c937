"""Lotteries: coins in half precision, particles drawn again, sticks that are broken, states of a brain, reads of a genome, bounds far off."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def coins(likely: torch.Tensor, seed: int) -> torch.Tensor:
    """True as often as `likely` says: sixteen random bits are below that share of all their values."""
    bits = torch.randint(0, 2**16, likely.shape, generator=torch.Generator().manual_seed(seed))
    every = torch.tensor(2.0**16, dtype=likely.dtype)  # culprit: coins-in-half
    return bits < likely * every  # culprit: coins-in-half


class Spiking(nn.Module):
    """Cells that fire by chance, the more often the more they are driven."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(81)
        self.wide, self.drive, self.read = wide, nn.Linear(12, 48), nn.Linear(48, 4)

    def forward(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        likely = torch.sigmoid(self.drive(x))
        fired = coins(wider(likely) if self.wide else likely, seed)
        return self.read(fired.to(x.dtype))


def fired(wide: bool, kind: torch.dtype = HALF) -> torch.Tensor:
    """What is read from cells that fire by chance, on average over eight drives. All cells always fire."""
    cells = Spiking(wide).to(kind)
    return torch.stack([wider(cells(normal(6, 12, seed=each).to(kind), each)).detach() for each in range(8)]).mean(0)


class Particles:
    """Guesses at where a robot is, with weights; those of little weight are given up for others."""

    def __init__(self, many: int, kind: torch.dtype) -> None:
        self.places = torch.linspace(-1, 1, many).to(kind)
        weight = torch.exp(-2 * (torch.linspace(-1, 1, many) - 0.5).square())
        self.weights = (weight / weight.sum()).to(kind)

    def drawn(self, by_turns: bool, start: float = 0.5) -> torch.Tensor:
        """One of each share of the whole weight: the places of those that are kept."""
        many = len(self.weights)
        reached = wider(self.weights).cumsum(0)
        share = (reached[-1] / many).to(self.weights.dtype)
        if by_turns:
            mark, marks = start * share, []
            for _ in range(many):
                marks.append(mark)
                mark = mark + share  # culprit: particles-drawn-by-turns
            at = torch.stack(marks)
        else:
            at = (start + torch.arange(many)) * wider(share)
        kept = torch.searchsorted(reached, wider(at).contiguous()).clamp_max(many - 1)
        return self.places[kept]


def particles(by_turns: bool, many: int = 450) -> torch.Tensor:
    """Where half of the particles are that are drawn again, from the left. The last are off by a sixteenth."""
    kept = wider(Particles(many, HALF).drawn(by_turns))
    return torch.stack([kept.mean(), kept[many // 4], kept[many // 2], kept[-many // 20]])


class Sticks(nn.Module):
    """Shares of a stick from which a part of what is left is broken off, again and again."""

    def __init__(self, many: int, level: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(level + 0.05 * normal(many, seed=82))

    def forward(self, by_logarithm: bool) -> torch.Tensor:
        part = torch.sigmoid(self.logits)
        if by_logarithm:
            wide = wider(self.logits)
            left = nn.functional.logsigmoid(-wide).cumsum(0).exp() / torch.sigmoid(-wide)
            return left * torch.sigmoid(wide)
        left = (1 - part).cumprod(0)  # culprit: sticks-that-are-broken
        return part * torch.cat([torch.ones_like(left[:1]), left[:-1]])


def sticks(by_logarithm: bool, level: float = -5.7, many: int = 300) -> torch.Tensor:
    """The weights of three hundred parts of a mixture, of which each is a little smaller than the last. Off by a tenth."""
    shares = wider(Sticks(many, level).to(LOW)(by_logarithm).detach())
    return torch.stack([shares[: many // 3].sum(), shares[many // 3 :].sum(), shares[-1]])


class Brain(nn.Module):
    """Which of three states a brain is in, from how often many of its cells fire in each moment."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.register_buffer("rates", 2 + 10 * uniform(3, cells, seed=83))
        self.register_buffer("change", 0.9 * torch.eye(3) + 0.1 / 3)

    def told(self, counts: torch.Tensor) -> torch.Tensor:
        counts = counts[:, None]
        return (counts * self.rates.log() - self.rates - torch.lgamma(counts + 1)).sum(-1)

    def forward(self, counts: torch.Tensor, by_logarithm: bool) -> torch.Tensor:
        seen, start = [], torch.full((3,), 1 / 3)
        if by_logarithm:
            reached, told = start.log(), self.told(counts)
            for each in told:
                reached = (reached[:, None] + self.change.log()).logsumexp(0) + each
                reached = reached - reached.logsumexp(0)
                seen.append(reached.exp())
            return torch.stack(seen)
        told = self.told(counts).exp()  # culprit: states-of-a-brain
        for each in told:
            start = (start @ self.change) * each
            start = start / start.sum()
            seen.append(start)
        return torch.stack(seen)


def states(by_logarithm: bool, cells: int = 60, moments: int = 12) -> torch.Tensor:
    """How likely each state is at a dozen moments. NaN."""
    brain = Brain(cells)
    counts = torch.poisson(brain.rates[torch.arange(moments) // 4], generator=torch.Generator().manual_seed(84))
    return brain(counts, by_logarithm)


class Reads:
    """How likely some of many reads of a genome show a mutation."""

    def __init__(self, many: float, kind: torch.dtype) -> None:
        self.many = torch.tensor(many, dtype=kind)

    def told(self, seen: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        many, rest = self.many, self.many - seen
        ways = torch.lgamma(many + 1) - torch.lgamma(seen + 1) - torch.lgamma(rest + 1)  # culprit: reads-of-a-genome
        return ways + seen * share.log() + rest * torch.log1p(-share)  # culprit: reads-of-a-genome


def reads(kind: torch.dtype, many: float = 5e6) -> torch.Tensor:
    """Log-likelihoods of the shares that a mutation may have, of which four thousand copies were seen. Garbage."""
    share = torch.linspace(0.97, 1.03, 5).double() * 7.7e-4
    seen = torch.tensor(many * 7.7e-4).round().to(kind)
    return Reads(many, kind).told(seen, share.to(kind))


class Bounded:
    """A normal law of which only a range is kept."""

    def __init__(self, mean: torch.Tensor, low: float, high: float) -> None:
        self.mean, self.low, self.high = mean, low - mean, high - mean

    def density(self, x: torch.Tensor, by_tail: bool) -> torch.Tensor:
        peak = -(x - self.mean).square() / 2 - 0.5 * torch.log(torch.tensor(2 * torch.pi))
        if by_tail:
            near, far = torch.special.log_ndtr(-self.low), torch.special.log_ndtr(-self.high)
            kept = near + torch.log1p(-(far - near).exp())
            return (peak - kept).exp()
        kept = torch.special.ndtr(self.high) - torch.special.ndtr(self.low)  # culprit: bounds-far-from-the-mean
        return peak.exp() / kept


def densities(by_tail: bool, far: float = 14.9) -> torch.Tensor:
    """How likely delays within bounds are, which four servers with other delays were found to have. Infinite."""
    means = torch.tensor([-1.0, 0.0, 3.0, 8.0])
    return Bounded(means, far, far + 5).density(torch.tensor(far + 0.05), by_tail)


BUGS = (
    Bug("coins-in-half", "jax-ml/jax#28039", ("overflow",), "aten._to_copy.default",
        lambda: fired(False), lambda: fired(True)),
    Bug("particles-drawn-by-turns", "mrc-ide/dust#238", ("integer-rounding", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: particles(True), lambda: particles(False)),
    Bug("sticks-that-are-broken", "", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.rsub.Scalar",
        lambda: sticks(False), lambda: sticks(True), module="Sticks"),
    Bug("states-of-a-brain", "flatironinstitute/nemos#447", ("underflow", "nan"), "aten.exp.default",
        lambda: states(False), lambda: states(True), module="Brain", precision="32-true"),
    Bug("reads-of-a-genome", "pyro-ppl/pyro#1706", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: reads(SINGLE), lambda: reads(DOUBLE), precision="32-true"),
    Bug("bounds-far-from-the-mean", "tensorflow/probability#1214", ("cancellation", "overflow"), "aten.sub.Tensor",
        lambda: densities(False), lambda: densities(True), precision="32-true"),
)  # fmt: skip
