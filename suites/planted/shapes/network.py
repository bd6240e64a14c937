"""Diffusion of point clouds, after Karras and others: levels of noise, scales for in and out, edges to neighbours, distances of Chamfer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CLOUDS, POINTS, NEAR, DIM = 4, 64, 6, 32
SMALLEST, LARGEST, SPREAD = 0.002, 320.0, 0.5
STEPS = 1


def levels(count, low):
    """From much noise to little, evenly in seventh roots."""
    along = torch.arange(count).float() / (count - 1)
    return (LARGEST ** (1 / 7) + along * (SMALLEST ** (1 / 7) - LARGEST ** (1 / 7))) ** 7


def unit(millimetres, low):
    """A cloud around its middle, in lengths of its own spread."""
    metres = millimetres.float() / 1000
    off = metres - metres.mean(1, keepdim=True)
    return SPREAD * off / off.square().mean((1, 2), keepdim=True).sqrt()


def scales(sigma, low):
    """What is kept of the noisy cloud, and how the network's input and output are scaled."""
    total = sigma.square() + SPREAD**2
    return SPREAD**2 / total, sigma * SPREAD * total.rsqrt(), total.rsqrt()


def importance(sigma, low):
    """By which each level's error is weighed."""
    return (sigma.square() + SPREAD**2) / (sigma * SPREAD).square()


def waves(sigma, low):
    """Of the logarithm of the noise."""
    angle = 2 * math.pi * (sigma.log() / 4)[:, None] * 2.0 ** torch.arange(8).float()
    return torch.cat([angle.sin(), angle.cos()], -1)


def squared(one, other, low):
    """Squares of all distances: [B, N, M]."""
    return (one[:, :, None] - other[:, None]).square().sum(-1)


def nearest(points, low):
    """Which points are neighbours: [B, N, K]."""
    return squared(points, points, low).topk(NEAR, largest=False).indices


def farthest(points, count, low):
    """Begins with the first point, and always takes the one farthest from all that it has."""
    chosen = torch.zeros(len(points), 1, dtype=torch.long)
    for _ in range(count - 1):
        taken = points.gather(1, chosen[..., None].expand(-1, -1, 3))
        gap = squared(points, taken, low).amin(-1)
        chosen = torch.cat([chosen, gap.argmax(-1, keepdim=True)], 1)
    return chosen


def chamfer(one, other, low):
    """How far the points of each cloud are from the other cloud."""
    square = squared(one, other, low)
    return square.amin(2).mean(1) + square.amin(1).mean(1)


def errors(cleaned, clean, low):
    """Mean squares of each cloud."""
    return (cleaned - clean).square().mean((1, 2))


def gaps(sigma, following, low):
    """By how much the noise falls."""
    return following - sigma


def heun(x, slope, gap, low):
    """From one level to the next."""
    return x + gap[:, None, None] * slope


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.time = nn.Linear(3, DIM), nn.Linear(16, DIM)
        self.edge, self.turn = nn.Linear(2 * DIM, DIM), nn.Linear(2 * DIM, DIM)
        self.whole, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 3)

    def forward(self, x, near, time):
        hidden = F.gelu(self.enter(x)) + self.time(time)[:, None]
        for layer in (self.edge, self.turn):
            around = torch.gather(hidden[:, None].expand(-1, POINTS, -1, -1), 2, near[..., None].expand(-1, -1, -1, DIM))
            pairs = torch.cat([hidden[:, :, None].expand_as(around), around - hidden[:, :, None]], -1)
            hidden = hidden + F.gelu(layer(pairs)).mean(2)
        return self.out(hidden + self.whole(hidden.mean(1, keepdim=True)))


class Shapes(nn.Module):
    def __init__(self):
        super().__init__()
        self.denoiser = Denoiser()

    def forward(self, millimetres, step, noise):
        dtype = self.denoiser.out.weight.dtype
        low = self.denoiser.enter(torch.zeros(1, 3, dtype=dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            clean = unit(millimetres, low)
            ladder = levels(160, low)
            sigma, following = ladder[step], ladder[step + 1]
            noisy = clean + sigma[:, None, None] * noise.float() / 10_000
            keep, out, into = scales(sigma, low)
            near, time = nearest(clean, low), waves(sigma, low)
            corners = farthest(clean, 8, low)
        guess = self.denoiser((noisy * into[:, None, None]).to(dtype), near, time.to(dtype)).float()
        with torch.autocast("cpu", enabled=False):
            cleaned = noisy * keep[:, None, None] + guess * out[:, None, None]
            weight = importance(sigma, low)
            error = weight * errors(cleaned, clean, low)
            stepped = heun(noisy, (noisy - cleaned) / sigma[:, None, None], gaps(sigma, following, low), low)
            shape = chamfer(cleaned, clean, low)
            held = (cleaned - clean).gather(1, corners[..., None].expand(-1, -1, 3)).square().mean()
        return {"stepped": stepped, "shape": shape, "loss": error.mean() + shape.mean() + held}


def make():
    torch.manual_seed(0)
    return Shapes()


def batch():
    generator = torch.Generator().manual_seed(5)
    round_ = F.normalize(torch.randn(CLOUDS, POINTS, 3, generator=generator), dim=-1) * torch.tensor([400.0, 250.0, 300.0])
    return {
        "millimetres": (round_ + torch.tensor([31_000.0, -24_000.0, 6_000.0])).round().long(),
        "step": torch.tensor([1, 57, 97, 157]),
        "noise": (torch.randn(CLOUDS, POINTS, 3, generator=generator) * 10_000).round().long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
