"""Classifies variable stars by their light curves: a transformer over irregular nights, with a periodogram and folded phases beside it."""

import math

import torch
from torch import nn

STARS, NIGHTS, SIZE, CLASSES = 6, 96, 32, 5
EPOCH = 2458000.5  # a Julian date
STEPS = 1


def days_since(times, low):
    """Days since the survey began. times: Julian dates in float64, [S, N]."""
    return (times - EPOCH).float()


def phases(days, periods, low):
    """Where in its period a star is, from nought to one."""
    turns = days / periods[:, None]
    return turns - turns.floor()


def trial_frequencies(low):
    """Turns a day that are tried."""
    return torch.linspace(0.5, 4.0, 64)


def periodogram(days, changes, frequencies, low):
    """How strongly each frequency is in a curve: [S, F]. changes: magnitudes less their mean."""
    angles = 2 * math.pi * frequencies[:, None] * days[:, None, :]
    real = (angles.cos() * changes[:, None, :]).mean(-1)
    imaginary = (angles.sin() * changes[:, None, :]).mean(-1)
    return (real.square() + imaginary.square()).sqrt()


def inverse_variances(errors, low):
    """The weight of each reading, one over its squared error, relative to the largest one."""
    weights = 1 / errors.square()
    return weights / weights.amax(-1, keepdim=True)


def slopes(magnitudes, days, low):
    """Magnitudes a day, from each reading to the next."""
    return (magnitudes[:, 1:] - magnitudes[:, :-1]) / (days[:, 1:] - days[:, :-1])


def scatter(magnitudes, low):
    """The variance of each curve."""
    return (magnitudes - magnitudes.mean(-1, keepdim=True)).square().mean(-1)


def fluxes(magnitudes, low):
    """Photons for each magnitude, where magnitude 25 is one."""
    return 10 ** (0.4 * (25 - magnitudes))


def misfit(flux, model, low):
    """The share of the light that a model of the star does not explain."""
    return (flux - model) / model


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(7, SIZE)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.head, self.power = nn.Linear(SIZE, CLASSES), nn.Linear(64, CLASSES)

    def forward(self, times, magnitudes, errors, periods):
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        with torch.autocast("cpu", enabled=False):
            days = days_since(times, low)
            phase = phases(days, periods, low)
            change = magnitudes - magnitudes.mean(-1, keepdim=True)
            power = periodogram(days, change, trial_frequencies(low), low)
            weight = inverse_variances(errors, low)
            slope = nn.functional.pad(slopes(magnitudes, days, low), (1, 0))
            flux = fluxes(magnitudes, low)
            model = flux.mean(-1, keepdim=True) * (1 + 0.02 * (2 * math.pi * phase).sin())
            left = misfit(flux, model, low)
            spread = scatter(magnitudes, low)
            rows = [change, (2 * math.pi * phase).cos(), (2 * math.pi * phase).sin(), weight, slope.tanh(), left, spread[:, None].expand_as(change)]
        x = self.embed(torch.stack(rows, -1))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x.mean(1)) + self.power(power)
        return {"logits": logits.float(), "power": power, "left": left, "scatter": spread}


PRECISIONS = ("bf16-mixed", "16-mixed")  # dates are inputs


def make():
    torch.manual_seed(0)
    return Classifier()


def batch():
    generator = torch.Generator().manual_seed(4)
    times = EPOCH + (0.2 + 1.6 * torch.rand(STARS, NIGHTS, generator=generator, dtype=torch.float64)).cumsum(1)
    periods = 0.3 + 2 * torch.rand(STARS, generator=generator)
    turns = 2 * math.pi * ((times - EPOCH) / periods[:, None]).float()
    magnitudes = 15.3 + 0.06 * turns.sin() + 0.004 * torch.randn(STARS, NIGHTS, generator=generator)
    return {
        "times": times,
        "magnitudes": magnitudes,
        "errors": 0.002 + 0.006 * torch.rand(STARS, NIGHTS, generator=generator),
        "periods": periods,
    }


def loss(output):
    return nn.functional.cross_entropy(output["logits"], torch.arange(STARS) % CLASSES) + output["left"].square().mean()


optimizer = None
