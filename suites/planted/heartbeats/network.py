"""Heartbeats from an electrocardiogram: a filter with two poles near one, moving windows, intervals between beats, and a network that finds them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PEOPLE, SAMPLES, BEATS, DIM = 3, 128, 24, 32
RATE = 500
STEPS = 1


def volts(counts, low):
    """Millivolts from the counts of a 24-bit converter."""
    return counts.float() * 2.4e-4


def levelled(signal, low):
    """Without the voltage of the skin, which is hundreds of times the heart's."""
    return signal - signal.mean(-1, keepdim=True)


def poles(low):
    """Of a high pass at half a hertz: coefficients of Butterworth's."""
    turn = torch.tensor(math.tan(math.pi * 0.5 / RATE))
    below = 1 + math.sqrt(2) * turn + turn.square()
    return 1 / below, 2 * (turn.square() - 1) / below, (1 - math.sqrt(2) * turn + turn.square()) / below


def high_pass(signal, low):
    """A biquad in transposed direct form, sample by sample."""
    gain, first, second = poles(low)
    one, two, out = torch.zeros_like(signal[:, 0]), torch.zeros_like(signal[:, 0]), []
    for x in signal.unbind(-1):
        y = gain * x + one
        one = -2 * gain * x - first * y + two
        two = gain * x - second * y
        out.append(y)
    return torch.stack(out, -1)


def windowed(power, width, low):
    """Means of moving windows, by differences of running sums."""
    total = F.pad(power.cumsum(-1), (width, 0))
    return (total[..., width:] - total[..., :-width]) / width


def loud(power, low):
    """The logarithm of the power, which tells quiet stretches from silent ones."""
    return (power.clamp_min(0) + 1e-4).log()


def intervals(milliseconds, low):
    """Between beats, in seconds."""
    return milliseconds.diff(dim=-1).float() / 1000


def variability(between, low):
    """The root of the mean square of how much one interval differs from the next, in milliseconds."""
    return 1000 * between.diff(dim=-1).square().mean(-1).sqrt()


def deviation(between, low):
    """The spread of intervals, in milliseconds."""
    return 1000 * (between - between.mean(-1, keepdim=True)).square().mean(-1).sqrt()


def corrected(milliseconds, between, low):
    """The QT time for a heart that beats once a second, by Bazett's formula, beside the norm."""
    return milliseconds.float() / between.mean(-1).sqrt() - 420


def phase(milliseconds, low):
    """Where in a breath of 4.1 seconds each beat is."""
    angle = 2 * math.pi * (milliseconds.remainder(4100).float() / 4100)
    return torch.stack([angle.sin(), angle.cos()], -1)


def likeness(signal, shape, low):
    """How much each stretch of the signal is like a beat: correlation coefficients."""
    stretch = signal.unfold(-1, shape.shape[-1], 1)
    stretch = stretch - stretch.mean(-1, keepdim=True)
    shape = shape - shape.mean(-1, keepdim=True)
    return (stretch * shape).sum(-1) / (stretch.square().sum(-1) * shape.square().sum(-1) + 1e-9).sqrt()


class Heart(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolve = nn.Sequential(nn.Conv1d(3, DIM, 7, padding=3), nn.GELU(), nn.Conv1d(DIM, DIM, 7, padding=3), nn.GELU())
        self.shape = nn.Parameter(torch.randn(16) * 0.3)
        self.beat, self.rhythm = nn.Conv1d(DIM, 1, 1), nn.GRU(3, DIM, batch_first=True)
        self.health = nn.Sequential(nn.Linear(DIM + 3, DIM), nn.GELU(), nn.Linear(DIM, 4))

    def forward(self, counts, beats, qt, marked, ill):
        dtype = self.shape.dtype
        low = self.beat(torch.zeros(1, DIM, 1, dtype=dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            signal = levelled(volts(counts, low), low)
            clean = high_pass(signal, low)
            power = loud(windowed(clean.square(), 12, low), low)
            alike = F.pad(likeness(clean, self.shape.float(), low), (7, 8))
            between, breath = intervals(beats, low), phase(beats, low)
            facts = torch.stack([variability(between, low) / 50, deviation(between, low) / 50, corrected(qt, between, low) / 40], -1)
        seen = self.convolve(torch.stack([clean, power, alike], 1).to(dtype))
        found = self.beat(seen).float()[:, 0]
        rhythm, _ = self.rhythm(torch.cat([between[..., None], breath[:, 1:]], -1).to(dtype))
        health = self.health(torch.cat([rhythm[:, -1], facts.to(rhythm.dtype)], -1)).float()
        told = F.binary_cross_entropy_with_logits(found, marked.float())
        return {"found": found, "health": health, "loss": told + F.cross_entropy(health, ill)}


def make():
    torch.manual_seed(0)
    return Heart()


def batch():
    generator = torch.Generator().manual_seed(11)
    time = torch.arange(SAMPLES).float()
    places = torch.tensor([[20.0, 62, 104], [34, 76, 118], [10, 60, 110]])
    wave = (-0.5 * ((time - places[..., None]) / 3).square()).exp().sum(1)
    signal = 1.1 * wave + 0.02 * torch.randn(PEOPLE, SAMPLES, generator=generator) + torch.tensor([[212.0], [-187.0], [254.0]])
    gaps = 820 + 25 * torch.randn(PEOPLE, BEATS, generator=generator)
    return {
        "counts": (signal / 2.4e-4).round().long(),
        "beats": 5_400_000 + gaps.round().long().cumsum(-1),
        "qt": torch.tensor([381, 377, 390]),
        "marked": (time - places[..., None]).abs().amin(1) < 4,
        "ill": torch.tensor([0, 2, 3]),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
