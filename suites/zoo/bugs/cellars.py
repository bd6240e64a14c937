"""Cellars: chances and likelihoods in float32 that are beyond it, or nearer to one than it tells."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
EXACT = "32-true"


class Forecast(nn.Module):
    """A step of a weather model: a mean and a spread for each grid point."""

    def __init__(self, least: float) -> None:
        super().__init__()
        torch.manual_seed(3201)
        self.least, self.mean, self.spread = least, nn.Linear(12, 6), nn.Linear(12, 6)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spread = functional.softplus(self.spread(state))  # culprit: spread-that-was-softened
        return self.mean(state), spread.clamp_min(self.least)


def forecast(least: float) -> torch.Tensor:
    """The log likelihood of a forecast some of whose spreads have become tiny. It is infinite."""
    model = Forecast(least)
    with torch.no_grad():
        model.spread.bias[2] = -120.0
        mean, spread = model(normal(20, 12, seed=3202))
        error = (normal(20, 6, seed=3203) - mean) / spread
        return (0.5 * error.square() + torch.log(spread)).mean(0)


def shares_of_groups(shifted: bool) -> torch.Tensor:
    """The share of each group in points that lie in the middle of tight groups of seventy dimensions."""
    size, spread = 70, 1e-5
    centres = normal(3, size, seed=3211) * 1e-4
    points = centres[(3 * uniform(24, seed=3212)).long()] + spread * 0.1 * normal(24, size, seed=3213)
    far = ((points[:, None] - centres) / spread).square().sum(-1)
    chance = -0.5 * far - size * torch.log(torch.tensor(spread)) - torch.log(torch.tensor(3.0))
    if shifted:
        most = chance.amax(-1, keepdim=True)
        whole = most + torch.log(torch.exp(chance - most).sum(-1, keepdim=True))
    else:
        whole = torch.log(torch.exp(chance).sum(-1, keepdim=True))  # culprit: points-at-the-middle
    return torch.exp(chance - whole)


def tail(logs: torch.Tensor, shape: float, exact: bool) -> torch.Tensor:
    """Quantiles of a generalized Pareto distribution, of logarithms of chances."""
    if exact:
        left = torch.log(-torch.expm1(logs))
    else:
        left = torch.log1p(-torch.exp(logs))  # culprit: tail-in-logarithms
    return torch.expm1(-shape * left) / shape


def quantiles(exact: bool) -> torch.Tensor:
    """Quantiles of chances within a hundred-millionth of one."""
    return tail(-torch.logspace(-10, -1, 40), 0.3, exact)


class Attention(nn.Module):
    """A decoder's attention of old: the energies of a small network, and a softmax by hand."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        torch.manual_seed(3231)
        self.shifted, self.state, self.word, self.energy = shifted, nn.Linear(12, 24), nn.Linear(16, 24), nn.Linear(24, 1, bias=False)

    def forward(self, state: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        energies = self.energy(torch.relu(self.state(state) + self.word(words))).squeeze(-1)
        if self.shifted:
            energies = energies - energies.amax(0, keepdim=True)
        raised = torch.exp(energies)  # culprit: words-of-an-old-attention
        return ((raised / raised.sum(0, keepdim=True))[:, None] * words).sum(0)


def attended(shifted: bool) -> torch.Tensor:
    """What a translator sees of a sentence whose energies have gathered to a hundred and more."""
    model = Attention(shifted)
    with torch.no_grad():
        model.energy.weight.abs_().mul_(90)
        return model(normal(12, seed=3232), 2 * normal(20, 16, seed=3233))


def drawn(places: torch.Tensor, chances: torch.Tensor, spins: torch.Tensor) -> torch.Tensor:
    """Draws places by their chances, which must sum to one within 10^-8."""
    if abs(float(chances.double().sum()) - 1) > 1e-8:
        raise ValueError("probabilities do not sum to 1")
    return places[torch.searchsorted(chances.double().cumsum(0), spins.double()).clamp_max(len(places) - 1)]


def measured_qubits(normed: bool) -> torch.Tensor:
    """What a circuit of ten qubits shows at two hundred measurements. The sampler refuses its chances."""
    state = torch.complex(normal(1024, seed=3251), normal(1024, seed=3252))
    state = state / state.abs().square().sum().sqrt()
    for turn in range(6):
        state = state * torch.exp(1j * 0.3 * normal(1024, seed=3253 + turn))
        state = (state.view(32, 32).T.reshape(-1) + state.flip(0) * 1j) / 2**0.5
        state = state / torch.linalg.vector_norm(state)
    turn = torch.tensor(0.9)
    for _ in range(20):  # the squares of this sine and cosine are one less 5e-8 together, on any processor
        state = turn.cos() * state + 1j * turn.sin() * state.flip(0)
    chances = state.abs().square()  # culprit: odds-of-a-qubit
    if normed:
        chances = chances.double()
        chances = chances / chances.sum()
    return drawn(torch.arange(1024), chances, uniform(200, seed=3259)).float()


def ratios(bounded: bool) -> torch.Tensor:
    """A policy's loss by ratios of chances, where it has moved far from what it was at some actions."""
    size = 48
    mean, spread = normal(size, 4, seed=3261), torch.full((4,), 0.05)
    actions = mean + 0.05 * normal(size, 4, seed=3262)
    before = mean + 0.5 * normal(size, 4, seed=3263)
    now = torch.distributions.Normal(mean, spread).log_prob(actions).sum(-1)
    then = torch.distributions.Normal(before, spread).log_prob(actions).sum(-1)
    if bounded:
        now, then = now.clamp(-20, 20), then.clamp(-20, 20)
    ratio = torch.exp(now - then)  # culprit: ratio-of-two-policies
    gain = normal(size, seed=3264)
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


BUGS = (
    Bug("spread-that-was-softened", "mllam/neural-lam#537", ("underflow", "overflow", "nan"), "aten.softplus.default",
        lambda: forecast(0.0), lambda: forecast(1e-6), precision=EXACT),
    Bug("points-at-the-middle", "rust-ml/linfa#443", ("overflow",), "aten.exp.default",
        lambda: shares_of_groups(shifted=False), lambda: shares_of_groups(shifted=True), precision=EXACT,
        expected_miss="the exponentials, of 806 and more, are beyond float64 too, so the reference has the same infinities"),
    Bug("tail-in-logarithms", "stan-dev/posterior#463", ("amplified-rounding", "cancellation", "overflow"), "aten.exp.default",
        lambda: quantiles(exact=False), lambda: quantiles(exact=True), precision=EXACT),
    Bug("words-of-an-old-attention", "mila-iqia/blocks#727", ("overflow",), "aten.exp.default",
        lambda: attended(shifted=False), lambda: attended(shifted=True), precision=EXACT),
    Bug("odds-of-a-qubit", "qiboteam/qibo#459", ("local-drift", "decision-flip"), "aten.pow.Tensor_Scalar",
        lambda: measured_qubits(normed=False), lambda: measured_qubits(normed=True), precision=EXACT, raises=ValueError,
        expected_miss="each chance is right to a few roundings of float32; their sum is one within 10^-6, and the sampler wants it within 10^-8"),
    Bug("ratio-of-two-policies", "Unity-Technologies/ml-agents#4870", ("overflow",), "aten.exp.default",
        lambda: ratios(bounded=False), lambda: ratios(bounded=True), precision=EXACT),
)  # fmt: skip
