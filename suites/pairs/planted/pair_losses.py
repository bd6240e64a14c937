"""What is around networks: an autoencoder and its loss, a diffusion step, contrastive and policy losses, optimizer steps, accumulation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn


class VAE(nn.Module):
    def __init__(self, form: str = "torch", **ways: Any) -> None:
        super().__init__()
        self.form, self.ways = form, ways
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        ways = self.ways
        mean, log = self.encoder(x).chunk(2, -1)
        deviation = log.exp() if ways.get("unhalved") else (0.5 * log).exp() if self.form == "torch" else log.exp().sqrt()
        drawn = torch.randn(mean.shape).to(mean.dtype)
        given = self.decoder(mean + drawn * deviation)
        if self.form == "torch":
            rebuilt = F.binary_cross_entropy_with_logits(given.float(), x.sigmoid().float(), reduction="sum") / len(x)
            divergence = -0.5 * (1 + log - mean.square() - log.exp()).sum(-1).mean()
        else:
            rebuilt = (F.softplus(given.float()) - given.float() * x.sigmoid().float()).sum(1).mean()
            divergence = 0.5 * (mean.square() + deviation.square() - 1 - log).sum() / (len(x) if not ways.get("over_all") else log.numel())
        return {"rebuilt": given, "loss": rebuilt + ways.get("beta", 1.0) * divergence.float()}


def vae(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(VAE()), VAE("written", **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(6, 12), {"loss": lambda out: out["loss"]}


class UNet(nn.Module):
    """One level down and up, with the time of a diffusion step."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.time, self.enter, self.down = nn.Linear(8, 8), nn.Conv2d(2, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.norm, self.up, self.leave = nn.GroupNorm(ways.get("groups", 4), 16), nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, 1, 1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        angles = step[:, None].float() * torch.exp(-math.log(1000.0) * torch.arange(4) / (4 if not ways.get("ends") else 3))
        place = torch.cat([angles.cos(), angles.sin()][:: -1 if ways.get("sin_first") else 1], -1)
        first = self.enter(x) + self.time(F.silu(place).to(x.dtype))[..., None, None]
        middle = F.silu(self.norm(self.down(first)))
        if ways.get("nearest"):
            wide = F.interpolate(self.up(middle)[..., ::2, ::2], scale_factor=2)
        else:
            wide = self.up(middle)
        if ways.get("products"):
            wide = torch.einsum("bchw,cdij->bdhiwj", middle, self.up.weight).reshape(wide.shape) + self.up.bias[:, None, None]  # type: ignore[index]
        return self.leave(torch.cat([wide, first] if ways.get("swapped") else [first, wide], 1))


def unet(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(UNet(), 0.2), UNet(**ways)
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(2, 2, 8, 8), torch.tensor([3, 700])), MEAN


def towers() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return nn.Linear(10, 8), nn.Linear(6, 8), (torch.randn(7, 10), torch.randn(7, 6))


def contrastive(**ways: Any) -> Made:
    left, right, inputs = towers()

    def one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores = F.normalize(left(a).float(), dim=-1) @ F.normalize(right(b).float(), dim=-1).t() / 0.1
        target = torch.arange(len(a))
        return (F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target)) / 2

    def two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = left(a).float(), right(b).float()
        a = a if ways.get("unit") else a / a.norm(dim=-1, keepdim=True)
        b = b / b.norm(dim=-1, keepdim=True)
        scores = torch.einsum("nd,md->nm", a, b.detach() if ways.get("detached") else b) * ways.get("scale", 10.0)
        there = scores.diagonal() - scores.logsumexp(1)
        back = scores.diagonal() - scores.logsumexp(1 if ways.get("one_way") else 0)
        return -(there.mean() + back.mean()) / 2

    return one, two, inputs, {"loss": lambda out: out}


def policy(**ways: Any) -> Made:
    torch.manual_seed(0)
    net = spread(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))
    states, actions, gain = torch.randn(9, 6), torch.randint(0, 4, (9,)), torch.randn(9)
    before = torch.randn(9) * 0.1 - 1.4

    def one(states: torch.Tensor) -> torch.Tensor:
        chance = torch.distributions.Categorical(logits=net(states).float())
        ratio = (chance.log_prob(actions) - before).exp()
        return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * chance.entropy().mean()

    def two(states: torch.Tensor) -> torch.Tensor:
        logs = net(states).float().log_softmax(-1)
        chosen = logs.gather(1, actions[:, None])[:, 0]
        ratio = torch.exp(chosen - before)
        bound = ratio.clamp(1 - ways.get("low", 0.2), 1.2)
        worse = torch.where(gain > 0, torch.minimum(ratio, bound), torch.maximum(ratio, bound)) * gain
        worse = torch.maximum(ratio * gain, bound * gain) if ways.get("largest") else worse
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return -worse.mean() + (0.01 if ways.get("sign") else -0.01) * entropy

    return one, two, states, {"loss": lambda out: out}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


def accumulated(share: Callable[[int, int, int], float], **ways: Any) -> Made:
    """Microbatches of 4, 4 and 2 rows, each weighted by its share of the whole."""
    torch.manual_seed(0)
    net, x, y = spread(Net()), torch.randn(10, 6), torch.randint(0, 3, (10,))

    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x).float(), y)

    def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = list(zip(x.split(4), y.split(4), strict=True))[: -1 if ways.get("lost") else None]
        return torch.stack([F.cross_entropy(net(a).float(), b) * share(len(a), len(x), 3) for a, b in parts]).sum()

    return one, two, (x, y), {"loss": lambda out: out}


class Own(torch.autograd.Function):
    """Softplus with its own backward pass."""

    wrong = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, times: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.times = times
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient * torch.sigmoid(ctx.saved_tensors[0] * ctx.times), None


class Soft(nn.Module):
    def __init__(self, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(x)


def differentiated(times: float = 1.0) -> Made:
    torch.manual_seed(0)
    first, last = nn.Linear(6, 12), nn.Linear(12, 3)
    model = nn.ModuleDict({"first": first, "act": Soft(F.softplus), "last": last})
    other = nn.ModuleDict({"first": first, "act": Soft(lambda x: Own.apply(x, times)), "last": last})
    x = torch.randn(5, 6, requires_grad=True)
    return (_Chain(model), _Chain(other), x, MEAN)


class _Chain(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.first, self.act, self.last = parts["first"], parts["act"], parts["last"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


def stepped(**ways: Any) -> Made:
    """Weights after three steps; other's parameters have another order and names."""
    torch.manual_seed(0)
    model = spread(Net())

    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.enter = nn.Linear(12, 3), nn.Linear(6, 12)
            self.out.load_state_dict(model.two.state_dict())  # type: ignore[union-attr, operator]
            self.enter.load_state_dict(model.one.state_dict())  # type: ignore[union-attr, operator]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.enter(x)
            return self.out((2 * torch.sigmoid(2 * hidden) - 1) * ways.get("times", 1.0))

    return model, Renamed(), torch.randn(8, 6), {**MEAN, "optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "steps": 3}


healthy("vae", "the loss by logarithms of sums", vae)
broken("vae", "the variance for the deviation", lambda: vae(unhalved=True), "")
broken("vae", "the divergence over all numbers", lambda: vae(over_all=True), "")
broken("vae", "the divergence weighted", lambda: vae(beta=0.5), "", said="0.5 times")
healthy("unet", "the transposed convolution as a product", lambda: unet(products=True))
broken("unet", "other groups", lambda: unet(groups=8), "norm", said="num_groups is 8")
broken("unet", "sine before cosine", lambda: unet(sin_first=True), "")
broken("unet", "frequencies that end at their last", lambda: unet(ends=True), "")
broken("unet", "skip and upsampled swapped", lambda: unet(swapped=True), "")
broken("unet", "upsampled by nearest neighbours", lambda: unet(nearest=True), "")
healthy("contrastive", "diagonals and log-sums", contrastive)
broken("contrastive", "one tower without a gradient", lambda: contrastive(detached=True), "")
broken("contrastive", "one side not normalised", lambda: contrastive(unit=True), "")
broken("contrastive", "another temperature", lambda: contrastive(scale=5.0), "")
broken("contrastive", "one direction twice", lambda: contrastive(one_way=True), "")
healthy("policy", "the clipped ratio by sign of the gain", policy)
broken("policy", "the greater of both", lambda: policy(largest=True), "")
broken("policy", "entropy added to the loss", lambda: policy(sign=True), "")
healthy("accumulation", "shares by rows", lambda: accumulated(lambda rows, all_, parts: rows / all_))
broken("accumulation", "mean of means", lambda: accumulated(lambda rows, all_, parts: 1 / parts), "")
broken("accumulation", "divided twice", lambda: accumulated(lambda rows, all_, parts: rows / all_ / parts), "", said="0.333333 times")
broken("accumulation", "last part lost", lambda: accumulated(lambda rows, all_, parts: rows / all_, lost=True), "")
healthy("own backward", "softplus with its own gradient", differentiated)
broken("own backward", "a slope too steep", lambda: differentiated(1.5), "act")
healthy("steps", "tanh by sigmoid, after three steps", stepped)
broken("steps", "a factor below rounding's reach at first", lambda: stepped(times=0.99), "")
