"""The seventh batch, third part: patches that are hidden, mixtures, flows in time, a Gaussian process as a head."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn
from torch.utils.checkpoint import checkpoint

W, KEPT, PATCHES, PIXELS = 16, 4, 9, 12
LOSS: dict[str, Any] = {"loss": lambda out: out}


class Mixer(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.norm, self.across, self.along = nn.LayerNorm(W), nn.Linear(length, length), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.across(self.norm(x).mT).mT
        return y + F.gelu(self.along(y))


class Hidden(nn.Module):
    """A masked autoencoder: some patches are seen, the others are guessed. `order` says which come first; they are the ones that are seen."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.embed, self.places = ways, nn.Linear(PIXELS, W), nn.Parameter(torch.randn(PATCHES, W))
        self.encoder, self.decoder, self.token = Mixer(KEPT), Mixer(PATCHES), nn.Parameter(torch.randn(W))
        self.late, self.guess = nn.Parameter(torch.randn(PATCHES, W)), nn.Linear(W, PIXELS)

    def lost(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The loss of each row."""
        ways, kept = self.ways, order[:, :KEPT, None]
        tokens = self.embed(x) + self.places.to(x.dtype)
        seen = tokens.gather(1, kept.expand(-1, -1, W))
        y = checkpoint(self.encoder, seen, use_reentrant=False) if ways.get("saved") else self.encoder(seen)
        if ways.get("form") == "other":
            blank = self.token.to(y.dtype).expand(len(x), PATCHES, W)
            full = blank.scatter(1, kept.expand(-1, -1, W), y)
        else:
            full = torch.cat([y, self.token.to(y.dtype).expand(len(x), PATCHES - KEPT, W)], 1)
            back = order if ways.get("unturned") else order.argsort(1)
            full = full.gather(1, back[..., None].expand(-1, -1, W))
        late = self.late.to(full.dtype)
        full = full + (torch.where((order.argsort(1) < KEPT)[..., None], late, 0) if ways.get("unplaced") else late)
        guessed, wanted = self.guess(self.decoder(full)).float(), x.float()
        if not ways.get("plain"):
            wanted = (wanted - wanted.mean(-1, keepdim=True)) / (wanted.var(-1, keepdim=True) + 1e-6).sqrt()
        off = (guessed - wanted).square().mean(-1)
        counted = torch.ones_like(off) if ways.get("visible") else (order.argsort(1) >= KEPT).float()
        return (off * counted).sum(1) / counted.sum(1)

    def forward(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        parts = self.ways.get("parts", len(x))
        lost = [self.lost(some, first).sum() for some, first in zip(x.split(parts), order.split(parts), strict=True)]
        return torch.stack(lost).sum() / len(x)


def hidden(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Hidden()), Hidden(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    order = torch.rand(5, PATCHES).argsort(1)
    return model, other, (torch.randn(5, PATCHES, PIXELS), order), LOSS


class Density(nn.Module):
    """A mixture of four Gaussians in three dimensions, whose parameters depend on what is known."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.body, self.share, self.middle, self.width = ways, nn.Linear(6, W), nn.Linear(W, 4), nn.Linear(W, 12), nn.Linear(W, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ways, z = self.ways, torch.tanh(self.body(x))
        shares, middle, width = self.share(z).float(), self.middle(z).float().unflatten(-1, (4, 3)), self.width(z).float().unflatten(-1, (4, 3))
        shares = shares if ways.get("bare") else shares.log_softmax(-1)
        apart = y.float()[:, None] - middle
        if ways.get("variance"):
            width = width / 2
        if ways.get("form") == "other":
            logs = -0.5 * (apart.square() * (-2 * width).exp()) - width - 0.5 * math.log(2 * math.pi)
        else:
            logs = torch.distributions.Normal(middle, width.exp()).log_prob(y.float()[:, None])
        if ways.get("apart"):
            return -(shares[..., None] + logs).logsumexp(1).sum(-1).mean()
        each = shares + logs.sum(-1)
        if ways.get("form") == "other":
            total = each[:, 0]
            for part in range(1, 4):
                total = torch.logaddexp(total, each[:, part])
            return -total.mean()
        return -each.logsumexp(-1).mean()


def density(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Density()), Density(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(12, 6), torch.randn(12, 3)), LOSS


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, W), nn.Linear(W, 6)

    def forward(self, t: float, y: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(torch.cat([y, torch.full_like(y[:, :1], t)], -1))))


class Flow(nn.Module):
    """A field is followed from 0 to 1 in four steps of Runge and Kutta's."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.field, self.head = ways, Field(), nn.Linear(6, 3)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        ways, step = self.ways, 0.25
        for number in range(4):
            t = 0.0 if ways.get("still") else number * step
            one = self.field(t, y)
            two = self.field(t + step / 2, y + step / 2 * one)
            three = self.field(t + step / 2, y + step / 2 * two)
            four = self.field(t + step, y + (step / 2 if ways.get("half") else step) * three)
            if ways.get("even"):
                y = y + step / 4 * (one + two + three + four)
            elif ways.get("form") == "other":
                weights = torch.tensor([1.0, 2.0, 2.0, 1.0]) * (step / 6)
                y = y + torch.einsum("s,sbd->bd", weights.to(y.dtype), torch.stack([one, two, three, four]))
            else:
                y = y + step / 6 * (one + 2 * (two + three) + four)
        return self.head(y)


def flow(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Flow()), Flow(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(5, 6), MEAN


class Process(nn.Module):
    """The negative logarithm of the likelihood of numbers at features."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.features = ways, nn.Sequential(nn.Linear(4, W), nn.Tanh(), nn.Linear(W, 3))
        self.noise = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ways, points, wanted = self.ways, self.features(x).float(), y.float()
        near = (-0.5 * (points[:, None] - points).square().sum(-1)).exp()
        noise = self.noise.float().exp() if not ways.get("deviation") else (self.noise.float() / 2).exp()
        near = near + noise * torch.eye(len(x))
        with torch.autocast("cpu", enabled=False):
            if ways.get("form") == "other":
                fit, size = wanted @ torch.linalg.solve(near, wanted), torch.linalg.slogdet(near)[1]
            else:
                root = torch.linalg.cholesky(near)
                fit = torch.linalg.solve_triangular(root, wanted[:, None], upper=False).square().sum()
                size = 2 * root.diagonal().log().sum()
        return 0.5 * fit + (1 if ways.get("whole") else 0.5) * size + 0.5 * len(x) * math.log(2 * math.pi)


def process(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Process()), Process(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randn(9, 4), torch.randn(9)), LOSS


healthy("hidden patches", "stored at their places", hidden)
healthy("hidden patches", "two rows at a time", lambda: hidden(parts=2))
healthy("hidden patches", "one row at a time, recomputed", lambda: hidden(parts=1, saved=True, form=None))
broken("hidden patches", "a loss of all patches", lambda: hidden(visible=True), "")
broken("hidden patches", "put back by the order itself", lambda: hidden(unturned=True, form=None), "", "decoder")
broken("hidden patches", "no places of what is guessed", lambda: hidden(unplaced=True), "", "decoder")
broken("hidden patches", "targets as they are", lambda: hidden(plain=True), "")
healthy("mixture", "one by one", density)
healthy("mixture", "after three steps of AdamW", lambda: (*density()[:3], {**LOSS, "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2), "steps": 3}))
broken("mixture", "shares that do not add up to one", lambda: density(bare=True), "")
broken("mixture", "variances for deviations", lambda: density(variance=True), "")
broken("mixture", "a mixture for each dimension", lambda: density(apart=True), "")
healthy("following a field", "stages in one product", flow)
broken("following a field", "stages weighed alike", lambda: flow(even=True), "")
broken("following a field", "half a step for the last stage", lambda: flow(half=True), "", "field")
broken("following a field", "a time that stands still", lambda: flow(still=True), "", "field", "field.first")
healthy("process", "a solution for a root", process)
broken("process", "deviations for variances", lambda: process(deviation=True), "")
broken("process", "the whole logarithm of the volume", lambda: process(whole=True), "")
