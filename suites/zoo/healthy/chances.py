"""Chances and motions: likelihoods, draws, energies and paths in float32, with networks under autocast, in half or in bfloat16."""

from __future__ import annotations

import copy

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import made, net
from healthy.guilds import trained, whole

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Process(nn.Module):
    """What is known of a function is the mean of what its points say; answers have a mean and a spread."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.answer = net(2, 32, 16), net(17, 32, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        known = self.read(torch.cat([x, y], -1)).float().mean(1, keepdim=True)
        return self.answer(torch.cat([known.expand(-1, asked.shape[1], -1), asked], -1))


def functions_from_few_points() -> torch.Tensor:
    """A conditional neural process under autocast, with a Gaussian likelihood in float32."""
    x, turn = 2 * normal(8, 16, 1), 1 + uniform(8, 1, 1, seed=1)
    y = torch.sin(turn * x)

    def loss(out: torch.Tensor) -> torch.Tensor:
        mean, spread = out[..., :1].float(), 0.1 + 0.9 * functional.softplus(out[..., 1:].float())
        return (0.5 * ((y - mean) / spread).square() + spread.log()).mean()

    return trained(Process(), (x[:, :6], y[:, :6], x), loss, "bf16-mixed")


class Codes(nn.Module):
    """Letters of a code, drawn by Gumbel's noise in float32 at a temperature, and a picture of them."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = net(20, 32, 24), net(24, 32, 20)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        likely = torch.log_softmax(self.read(x).float().unflatten(1, (4, 6)), -1)
        noise = -torch.log(-torch.log(uniform(*likely.shape, seed=4).clamp(1e-6, 1 - 1e-6)))
        drawn = torch.softmax((likely + noise) / 0.7, -1)
        return self.write(drawn.flatten(1).to(x.dtype)), likely


def letters_of_a_code() -> torch.Tensor:
    """A variational network of letters in half: entropies and reconstructions are float32."""
    data = torch.tanh(normal(24, 4) @ normal(4, 20, seed=1))

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        away = (out[0].float() - data).square().sum(1)
        return (away + 0.1 * (out[1].exp() * (out[1] + 1.7918)).sum((1, 2))).mean()

    return trained(Codes(), (data,), loss, "16-mixed")


class Doubtful(nn.Module):
    """Weights that are drawn about their means; spreads are softplus of a parameter near minus three, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.zeros(8, 12)), nn.Parameter(torch.zeros(8, 12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spread = functional.softplus(self.spread - 3)
        weight = self.mean + spread * normal(8, 12, seed=6)
        beside = 0.5 * (spread.square() + self.mean.square() - 1) - spread.log()
        return torch.relu(functional.linear(x, weight)).sum(1), beside.sum()


def weights_with_a_doubt() -> torch.Tensor:
    """Bayes by backpropagation under autocast."""
    told = normal(32, seed=1)

    def loss(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return 0.5 * (out[0].float() - told).square().sum() + 0.01 * out[1]

    return trained(Doubtful(), (normal(32, 12),), loss, "bf16-mixed")


def points_on_a_slope() -> torch.Tensor:
    """Langevin steps down an energy of a network in bfloat16: points, steps and noise are float32."""
    energy, points = net(2, 32, 1, activation=nn.SiLU).to(LOW), normal(40, 2)
    for step in range(12):
        asked = points.detach().requires_grad_()
        (slope,) = torch.autograd.grad(energy(asked.to(LOW)).float().sum() + 0.5 * asked.square().sum(), asked)
        points = points - 0.02 * slope + 0.2 * normal(40, 2, seed=step + 1)
    return points


def returns_by_their_quantiles() -> torch.Tensor:
    """A quantile critic in half: a target network in float32, Huber losses of all pairs in float32, and a scaler."""
    critic = net(6, 32, 24)
    target = copy.deepcopy(critic).requires_grad_(False)
    x, after, action, reward = normal(32, 6), normal(32, 6, seed=1), whole(3, 32, seed=2), normal(32, seed=3)
    levels = (torch.arange(8) + 0.5) / 8

    def loss(out: torch.Tensor) -> torch.Tensor:
        mine = out.float().unflatten(1, (3, 8))[torch.arange(32), action]
        with torch.no_grad():
            theirs = target(after).unflatten(1, (3, 8))
            theirs = reward[:, None] + 0.99 * theirs[torch.arange(32), theirs.mean(2).argmax(1)]
        away = theirs[:, None] - mine[:, :, None]
        huber = torch.where(away.abs() < 1, 0.5 * away.square(), away.abs() - 0.5)
        return ((levels[:, None] - (away.detach() < 0).float()).abs() * huber).mean()

    return trained(critic, (x,), loss, "16-mixed")


class SeveralHeads(nn.Module):
    """A mixture of three softmaxes, whose logarithms are added up by a log-sum-exp."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.heads, self.words = nn.Linear(16, 3), nn.Linear(16, 36), nn.Linear(12, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = torch.log_softmax(self.words(torch.tanh(self.heads(x)).unflatten(1, (3, 12))).float(), -1)
        return torch.logsumexp(each + torch.log_softmax(self.share(x).float(), -1)[..., None], 1)


def words_of_several_heads() -> torch.Tensor:
    """Log-probabilities of a mixture in float32."""
    word = whole(40, 24, seed=5)
    return trained(SeveralHeads(), (normal(24, 16),), lambda out: functional.nll_loss(out, word), "bf16-mixed")


def path_of_a_field() -> torch.Tensor:
    """Runge and Kutta's steps in float32 along a field of a network in bfloat16."""
    field, state = made(net(3, 32, 3)).to(LOW), normal(10, 3)
    with torch.no_grad():
        for _ in range(20):
            first = field(state.to(LOW)).float()
            second = field((state + 0.05 * first).to(LOW)).float()
            third = field((state + 0.05 * second).to(LOW)).float()
            last = field((state + 0.1 * third).to(LOW)).float()
            state = state + 0.1 / 6 * (first + 2 * second + 2 * third + last)
    return state


def shocks_that_breed() -> torch.Tensor:
    """The likelihood of a Hawkes process in float32: gaps are taken in float64, before powers of e."""
    gaps = -torch.log(uniform(80).clamp_min(1e-4)).double()
    rates = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([rates], 0.05)
    for _ in range(3):
        base, breed, fade = functional.softplus(rates)
        stirred, told = torch.zeros(()), []
        for gap in gaps.float():
            stirred = stirred * torch.exp(-(fade + 0.5) * gap)
            told.append(torch.log(base + breed * stirred))
            stirred = stirred + 1
        left = 1 - torch.exp(-(fade + 0.5) * (gaps.sum() - gaps.cumsum(0)).float())
        loss = base * gaps.sum().float() + breed / (fade + 0.5) * left.sum() - torch.stack(told).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rates.detach()


def ring_of_remembered_keys() -> torch.Tensor:
    """A ring of sixteen keys and values in bfloat16; a bias by distance is made of integers, and shares are float32."""
    layer = net(16, 48).to(LOW)
    keys, values, places = torch.zeros(16, 2, 8, dtype=LOW), torch.zeros(16, 2, 8, dtype=LOW), torch.full((16,), -1)
    state, slopes, out = normal(16).to(LOW), torch.tensor([0.25, 0.0625]), []
    with torch.no_grad():
        for step in range(40):
            q, k, v = layer(state).unflatten(0, (3, 2, 8))
            keys[step % 16], values[step % 16], places[step % 16] = k, v, step
            scores = torch.einsum("hd,nhd->hn", q.float(), keys.float()) / 8**0.5 - slopes[:, None] * (step - places)
            shares = torch.softmax(scores.masked_fill(places < 0, -torch.inf), -1)
            read = torch.einsum("hn,nhd->hd", shares, values.float()).flatten()
            state = functional.rms_norm(0.5 * state.float() + read + 0.3 * normal(16, seed=step), (16,)).to(LOW)
            out.append(state)
    return torch.stack(out).float()


def areas_and_calibration() -> torch.Tensor:
    """The area under a curve by ranks that are integers, and a calibration error by bins, of scores of a network in half."""
    truth = uniform(300, seed=1) < 0.4
    with torch.no_grad():
        scores = torch.sigmoid(net(6, 16, 1).to(HALF)(normal(300, 6).to(HALF)).float()).squeeze(1)
    rank = scores.argsort().argsort() + 1
    good, bad = int(truth.sum()), int((~truth).sum())
    area = (rank[truth].sum() - good * (good + 1) // 2).double() / (good * bad)
    bins = (scores * 10).long().clamp_max(9)
    count = torch.bincount(bins, minlength=10).clamp_min(1)
    sure, right = torch.bincount(bins, scores.double(), 10) / count, torch.bincount(bins, truth.double(), 10) / count
    return torch.stack([area, ((sure - right).abs() * count).sum() / 300]).float()


IDIOMS = (
    functions_from_few_points, letters_of_a_code, weights_with_a_doubt, points_on_a_slope, returns_by_their_quantiles, words_of_several_heads,
    path_of_a_field, shocks_that_breed, ring_of_remembered_keys, areas_and_calibration,
)  # fmt: skip
EXACT = ("shocks_that_breed",)
