"""The twenty-ninth batch, seventh part: products of features, values of actions, a squashed policy.

The issues: products that vanish (DeepCoNN 1), products as a vector (tensorflow-DeepFM 78), a mean over the batch (PacktPublishing's
Deep-Reinforcement-Learning-Hands-On 6), a mean of values (Simple-DQN-Pytorch 1), the two branches (deep-rl-tensorflow 6), tanh twice (Hands-on-RL
44), a sum that is missing (tianshou 40), the limit of actions (spinningup 314), variances for spreads (stable-baselines 1060), no correction
(Mighty 117).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import TOP, W, ported
from pair_twentyninth import family
from torch import nn


class Products(nn.Module):
    """Sums of products of two features."""

    def __init__(self, wrong: str = "", pairs: bool = False) -> None:
        super().__init__()
        self.wrong, self.pairs, self.scale = wrong, pairs, nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, wrong = x * self.scale, self.wrong
        if self.pairs:
            one, two = torch.triu_indices(x.shape[1], x.shape[1], offset=0 if wrong == "itself" else 1)
            made = (x[:, one] * x[:, two]).sum(1)
            return made if wrong == "vector" else made.sum(-1, keepdim=True)
        made = x.sum(1).square() - x.square().sum(1)
        return (made if wrong == "half" else 0.5 * made).sum(-1, keepdim=True)


class Crossed(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.weight = wrong, nn.Linear(9 * W, 9 * W)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = (x if self.wrong == "first" else first) * self.weight(x)
        return y if self.wrong == "residual" else y + x


class Clicks(nn.Module):
    def __init__(self, pairs: bool = False, wrong: str = "", cross: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.words, self.lines, self.pair = top, nn.Embedding(20, W), nn.Embedding(20, 1), Products(wrong, pairs)
        self.cross, self.deep, self.out = nn.ModuleList([Crossed(), Crossed(cross)]), nn.Linear(9 * W, W), nn.Linear(9 * W + W, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, top = self.words(tokens), self.top
        flat = y = x.flatten(1)
        for layer in self.cross:
            y = layer(flat, y)
        deep = F.relu(self.deep(y if top == "chain" else flat))
        lines = self.lines(tokens)
        line = lines.mean(1) if top == "mean" else lines.sum(1)
        return self.out(torch.cat([y, deep], -1)) + line + self.pair(x.detach() if top == "cut" else x).mean(-1, keepdim=True)


PAIR, CROSS = ("pair",), ("cross.1",)
family("products of features", "pairs by number", lambda pairs=True, **bad: ported(Clicks(), Clicks(pairs, **bad), WORDS), {
    "not halved": ({"wrong": "half", "pairs": False}, PAIR, ""), "products with itself": ({"wrong": "itself"}, PAIR, ""),
    "products as a vector": ({"wrong": "vector"}, PAIR, ""), "the last for the first": ({"cross": "first"}, CROSS, ""),
    "a mean of lines": ({"top": "mean"}, TOP, ""), "products that do not teach": ({"top": "cut"}, TOP, ""),
})  # fmt: skip


class Values(nn.Module):
    """The value of a state and what each of four actions adds to the mean."""

    def __init__(self, wrong: str = "", joined: bool = False) -> None:
        super().__init__()
        self.wrong, self.joined, self.value, self.more = wrong, joined, nn.Linear(W, 1), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong = self.wrong
        if self.joined:
            weight, bias = torch.cat([self.value.weight, self.more.weight]), torch.cat([self.value.bias, self.more.bias])
            value, more = F.linear(x, weight, bias).split([1, 4], -1)
        else:
            value, more = self.value(x), self.more(x)
        mean = more.mean() if wrong == "batch" else value.mean() if wrong == "value" else more.mean(-1, keepdim=True)
        mean = more.amax(-1, keepdim=True) if wrong == "largest" else mean
        return more - mean if wrong == "alone" else value + more - mean


class Squashed(nn.Module):
    """Actions of a normal distribution, squashed, and the logarithm of their density. `noise` is given."""

    def __init__(self, wrong: str = "", soft: bool = False, whole: bool = False) -> None:
        super().__init__()
        self.whole, self.wrong, self.soft, self.mean, self.log = whole, wrong, soft, nn.Linear(W, 3), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wrong, mean, log = self.wrong, self.mean(x), self.log(x)
        log = log.clamp(-1, 1) if wrong == "clamp" else -2 + 1.5 * (log.tanh() + 1)
        raw = mean + noise * (log / 2 if wrong == "variance" else log).exp()
        if self.whole:
            density = torch.distributions.Normal(mean, log.exp(), validate_args=False).log_prob(raw)
        else:
            density = -0.5 * noise.square() - log - 0.5 * math.log(2 * math.pi)
        if wrong == "twice":
            density = density - (1 - raw.tanh().tanh().square()).log()
        elif wrong != "plain":
            density = density - (2 * (math.log(2) - raw - F.softplus(-2 * raw)) if self.soft else -2 * raw.cosh().log())
        density = density if wrong == "limit" else density - math.log(2.0)
        density = density.mean(-1, keepdim=True) if wrong == "mean" else density.sum(-1, keepdim=True)
        return 2 * raw.tanh(), density


class Actor(nn.Module):
    """A network with a body, values of four actions, and a policy whose entropy counts."""

    def __init__(self, written: bool = False, values: str = "", policy: str = "", top: str = "", whole: bool = False) -> None:
        super().__init__()
        self.top, self.body = top, nn.Sequential(nn.Linear(6, W), nn.ReLU(), nn.Linear(W, W))
        self.values, self.policy = Values(values, written), Squashed(policy, written, whole)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.body(x))
        made, density = self.policy(y.detach() if self.top == "cut" else y, noise)
        values = self.values(y)
        best = values.amax(-1) if self.top == "best" else values.mean(-1)
        return made, (best[:, None] + 0.2 * density if self.top == "sign" else best[:, None] - 0.2 * density), values


def gained(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return out[0].float().square().mean() + out[1].float().mean() + out[2].float().square().mean()


VALUES, POLICY = ("values",), ("policy",)
family("values of actions", "one product for both", lambda **bad: ported(
    Actor(), Actor(True, **bad), (numbers(5, 6), numbers(5, 3).flip(0)), loss=gained), {
    "a mean over the batch": ({"values": "batch"}, VALUES, ""), "a mean of values": ({"values": "value"}, VALUES, ""),
    "no value": ({"values": "alone"}, VALUES, ""),
    "tanh twice": ({"policy": "twice"}, POLICY, ""), "no correction": ({"policy": "plain"}, POLICY, ""),
    "the limit forgotten": ({"policy": "limit"}, POLICY, ""), "variances for spreads": ({"policy": "variance"}, POLICY, ""),
    "a mean for a sum": ({"policy": "mean"}, POLICY, ""), "a policy that does not teach": ({"top": "cut"}, TOP, ""),
    "the entropy's sign": ({"top": "sign"}, TOP, ""),
}, a_distribution_of_torch={"whole": True})  # fmt: skip
