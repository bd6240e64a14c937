"""Consistency training of small pictures, after Song and Dhariwal: neighbours on a schedule of noise, a teacher, pseudo-Huber distances."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PICTURES, SIDE, CHANNELS, LEVELS, BINS = 8, 12, 24, 1280, 8
LEAST, MOST, DATA, RHO = 0.002, 80.0, 0.5, 7.0
STEPS = 2


def schedule(low):
    """Karras' levels of noise, from the least to the most: [LEVELS]."""
    ramp = torch.arange(LEVELS).float() / (LEVELS - 1)
    return (LEAST ** (1 / RHO) + ramp * (MOST ** (1 / RHO) - LEAST ** (1 / RHO))) ** RHO


def steps_between(sigmas, low):
    """From each level to the next."""
    return sigmas[1:] - sigmas[:-1]


def preferred(sigmas, low):
    """How often each level is drawn: a lognormal's share between neighbours."""
    edge = torch.erf((sigmas.log() + 1.1) / (2.0 * math.sqrt(2)))
    share = edge[1:] - edge[:-1]
    return share / share.sum()


def uniform(seed, count):
    """Numbers between nought and one, the same in every run."""
    return ((torch.arange(count) + seed) * 0.6180339887).float().frac()


def drawn(share, seed, low):
    """Levels drawn by a running sum of their shares."""
    return torch.searchsorted(share.cumsum(0), uniform(seed, PICTURES)).clamp_max(LEVELS - 2)


def scalings(sigma, low):
    """What the input keeps and what the network adds, so that at the least noise the input is kept whole."""
    beyond = sigma - LEAST
    return DATA**2 / (beyond.square() + DATA**2), DATA * beyond / (sigma.square() + DATA**2).sqrt(), 1 / (sigma.square() + DATA**2).sqrt()


def told(sigma, low):
    """The level as waves of its logarithm, in thousandths."""
    angle = (250 * sigma.log())[:, None] * 2.0 ** -torch.arange(8).float()
    return torch.cat([angle.sin(), angle.cos()], -1)


def noised(pictures, noise, sigma, low):
    return pictures + noise * sigma[:, None, None, None]


def centred(bytes_, low):
    return bytes_.float() / 127.5 - 1


def distance(one, other, low):
    """Pseudo-Huber: a square near nought, a length far away."""
    core = 0.00054 * math.sqrt(SIDE * SIDE)
    return ((one - other).square().flatten(1).sum(-1) + core**2).sqrt() - core


def worth(gap, low):
    """Neighbours that are close weigh more."""
    return 1 / gap


def averaged(before, value, low):
    """A moving average over about a thousand steps."""
    return before + (value - before) * 0.001


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 1, 3, padding=1)
        self.middle = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.level, self.norm = nn.Linear(16, CHANNELS), nn.GroupNorm(4, CHANNELS)

    def forward(self, x, level):
        x = F.silu(self.enter(x) + self.level(level)[:, :, None, None])
        return self.leave(F.silu(self.norm(x + self.middle(x))))


class Consistency(nn.Module):
    def __init__(self):
        super().__init__()
        self.denoiser = Denoiser()
        self.usual = torch.linspace(0.5, 4.0, BINS)

    def cleaned(self, x, sigma, low):
        with torch.autocast("cpu", enabled=False):
            keep, add, shrink = scalings(sigma, low)
            waves = told(sigma, low)
        seen = (x * shrink[:, None, None, None]).to(low)
        return keep[:, None, None, None] * x + add[:, None, None, None] * self.denoiser(seen, waves.to(low)).float()

    def forward(self, bytes_, noise):
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else self.denoiser.level.weight.dtype
        with torch.autocast("cpu", enabled=False):
            sigmas = schedule(low)
            level = drawn(preferred(sigmas, low), 5, low)
            less, more, gap = sigmas[level], sigmas[level + 1], steps_between(sigmas, low)[level]
            pictures = centred(bytes_, low)
            wild = noise.float() / 1000
            cloudy, clearer = noised(pictures, wild, more, low), noised(pictures, wild, less, low)
        with torch.no_grad():
            teacher = self.cleaned(clearer, less, low)
        student = self.cleaned(cloudy, more, low)
        with torch.autocast("cpu", enabled=False):
            off, weight = distance(student, teacher, low), worth(gap, low)
            bins = (level * BINS // LEVELS).clamp_max(BINS - 1)
            with torch.no_grad():
                means = torch.zeros(BINS).index_add_(0, bins, off.detach().float()) / torch.bincount(bins, minlength=BINS).clamp_min(1)
                self.usual = averaged(self.usual, torch.where(means > 0, means, self.usual.float()), low)
            total = (weight.clamp_max(500) * off / self.usual.float()[bins]).mean() / 10
        return {"clean": student, "usual": self.usual.float(), "loss": total.float()}


def make():
    torch.manual_seed(0)
    return Consistency()


def batch():
    generator = torch.Generator().manual_seed(12)
    return {
        "bytes_": torch.randint(256, (PICTURES, 1, SIDE, SIDE), generator=generator),
        "noise": (torch.randn(PICTURES, 1, SIDE, SIDE, generator=generator) * 1000).long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.RAdam(params, lr=1e-2)
