"""Satellites from radar ranges: Kepler's equation by Newton's method, eccentric orbits, and a network that learns what drag does to them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CRAFT, TIMES, DIM = 6, 40, 32
MU = 398_600.4
STEPS = 1


def since(seconds, epoch, low):
    """Seconds since the elements were measured: [B, T]."""
    return (seconds - epoch[:, None]).float()


def motion(axis, low):
    """Radians a second, from the axis in kilometres."""
    return (MU / axis.float().pow(3)).sqrt()


def mean_anomaly(rate, elapsed, start, low):
    """Within a turn."""
    return torch.remainder(start[:, None].float() / 1000 + rate[:, None] * elapsed, 2 * math.pi)


def kepler(anomaly, eccentric, low):
    """E from M = E - e sin E."""
    guess = anomaly + eccentric * anomaly.sin()
    for _ in range(6):
        guess = guess - (guess - eccentric * guess.sin() - anomaly) / (1 - eccentric * guess.cos())
    return guess


def minor(eccentric, low):
    """The short axis over the long one."""
    return (1 - eccentric.square()).sqrt()


def places(axis, eccentric, turn, low):
    """In the plane of the orbit, in kilometres from the Earth's middle: [B, T, 2]."""
    along = axis[:, None] * (turn.cos() - eccentric)
    return torch.stack([along, axis[:, None] * minor(eccentric, low) * turn.sin()], -1)


def ranges(place, low):
    """Kilometres from the middle."""
    return place.square().sum(-1).sqrt()


def residuals(seen, range_, low):
    """What was measured, in metres, less what the elements say, in kilometres."""
    return seen.float() / 1000 - range_


def density(range_, low):
    """Of the air, beside that at 400 kilometres."""
    return (-(range_ - 6778).clamp_min(0) / 58).exp()


def waves(anomaly, low):
    """Of the place in the orbit."""
    angle = anomaly[..., None] * torch.arange(1, 5).float()
    return torch.cat([angle.sin(), angle.cos()], -1)


class Orbits(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(10, DIM)
        self.body = nn.GRU(DIM, DIM, batch_first=True)
        self.out, self.noise = nn.Linear(DIM, 1), nn.Linear(DIM, 1)

    def forward(self, seconds, epoch, axis, thousandths, start, seen):
        weight = self.enter.weight.dtype
        low = self.enter(torch.zeros(1, 10, dtype=weight)).dtype
        with torch.autocast("cpu", enabled=False):
            eccentric = (thousandths.float() / 10_000)[:, None]
            elapsed = since(seconds, epoch, low)
            anomaly = mean_anomaly(motion(axis, low), elapsed, start, low)
            turn = kepler(anomaly, eccentric, low)
            range_ = ranges(places(axis.float(), eccentric, turn, low), low)
            missed = residuals(seen, range_, low)
            facts = torch.cat([waves(anomaly, low), density(range_, low)[..., None], missed[..., None] / 20], -1)
        hidden, _ = self.body(F.silu(self.enter(facts.to(weight))))
        drag, spread = self.out(hidden).float()[..., 0], self.noise(hidden).float()[..., 0]
        with torch.autocast("cpu", enabled=False):
            error = missed / 20 - drag
            told = (error.square() * (-2 * spread).exp() / 2 + spread).mean()
        return {"drag": drag, "missed": missed, "loss": told}


def make():
    torch.manual_seed(0)
    return Orbits()


def batch():
    generator = torch.Generator().manual_seed(3)
    epoch = 1_700_000_000 + torch.randint(100_000, (CRAFT,), generator=generator)
    axis = torch.tensor([26_560, 24_400, 42_164, 7178, 60_900, 12_270])
    thousandths = torch.tensor([7401, 7282, 9310, 122, 8807, 4103])
    start = torch.randint(6283, (CRAFT,), generator=generator)
    seconds = epoch[:, None] + torch.randint(60, 1500, (CRAFT, TIMES), generator=generator).cumsum(-1)
    eccentric = (thousandths.double() / 10_000)[:, None]
    rate = (MU / axis.double() ** 3).sqrt()[:, None]
    anomaly = start[:, None].double() / 1000 + rate * (seconds - epoch[:, None])
    turn = anomaly.clone()
    for _ in range(200):
        turn = turn - (turn - eccentric * turn.sin() - anomaly) / (1 - 0.98 * eccentric * turn.cos())
    range_ = axis[:, None] * (1 - eccentric * turn.cos())
    drift = 25 * torch.randn(CRAFT, TIMES, generator=generator, dtype=torch.float64)
    return {
        "seconds": seconds,
        "epoch": epoch,
        "axis": axis,
        "thousandths": thousandths,
        "start": start,
        "seen": ((range_ + drift) * 1000).round().long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
