"""Ptychography by a small U-Net, after PtychoNN and PtyRAD: a stage moves a sample under a probe, a camera counts photons, defocus in nanometres."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1


@dataclass(frozen=True)
class Optics:
    side: int = 24
    wavelength: float = 0.532  # micrometres
    pixel: float = 1.6  # micrometres
    tick: float = 1 / 32  # of a pixel
    channels: int = 12


def shifts(ticks, optics):
    """How far the stage is from where it began, in pixels. The encoder counts ticks from the end of its rail."""
    return (ticks - ticks[:, :1]).float() * optics.tick


def drift(clock, rate):
    """What the sample has moved by itself since the first shot. The clock has milliseconds since midnight."""
    return (clock - clock[:, :1]).float() / 1000 * rate


def frequencies(optics):
    """Squares of spatial frequencies, in cycles per micrometre."""
    each = torch.fft.fftfreq(optics.side) / optics.pixel
    return each[:, None].square() + each.square()


def delay(defocus, squared, optics):
    """The phase that each frequency gains beside the middle, over a distance in nanometres."""
    wave = 1 / optics.wavelength
    along = torch.sqrt(wave * wave - squared)
    slower = -squared / (along + wave)
    return 2 * math.pi * (defocus.float() / 1000)[:, None, None] * slower


def aberration(strength, squared):
    """Spherical aberration of the objective, as Zernike has it."""
    radius = squared / squared.max()
    return strength[:, None, None] * (20 * radius**3 - 30 * radius**2 + 12 * radius - 1)


def propagated(field, phase):
    """The wave at the camera."""
    return torch.fft.ifft2(torch.fft.fft2(field) * torch.polar(torch.ones_like(phase), phase))


def amplitude(counts):
    """Anscombe's root: counts whose noise is the same everywhere."""
    return 2 * torch.sqrt(counts.float() + 0.375)


def contrast(counts, flat):
    """What the sample takes from the light."""
    return counts.float() / flat.float() - 1


def deviance(rate, counts):
    """Twice the loss of likelihood of Poisson's law, beside a perfect rate."""
    counts = counts.float().clamp_min(1)
    over = (rate - counts) / counts
    return 2 * counts * (over - torch.log1p(over))


def wrapped(phase):
    """What is left of a phase without whole turns."""
    turns = phase / (2 * math.pi)
    return turns - turns.round()


def unwrapped(phase):
    """A phase whose turns are put back, along each row."""
    steps = torch.diff(phase, dim=-1)
    steps = steps - 2 * math.pi * torch.round(steps / (2 * math.pi))
    return phase[..., :1] + F.pad(steps.cumsum(-1), (1, 0))


def sharpness(intensity):
    """The spread of the light beside its mean: it is largest in focus."""
    mean = intensity.mean((-2, -1))
    return (intensity - mean[:, None, None]).square().mean((-2, -1)) / mean.square()


def aligned(first, second):
    """The correlation of two shots by their phases alone."""
    cross = torch.fft.fft2(first) * torch.fft.fft2(second).conj()
    size = cross.abs()
    return torch.fft.ifft2(cross / (size + 1e-6)).real


def absorbed(counts, flat):
    """The share of all photons that the sample takes."""
    sent, come = flat.flatten(1).sum(1).float(), counts.flatten(1).sum(1).float()
    return (sent - come) / sent


def levelled(phase):
    """A phase without its slope along the rows."""
    place = torch.arange(phase.shape[-1]).float()
    place = place - place.mean()
    slope = (phase * place).sum(-1, keepdim=True) / place.square().sum()
    return phase - phase.mean(-1, keepdim=True) - slope * place


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.norm = nn.GroupNorm(3, after)

    def forward(self, picture):
        return F.silu(self.second(F.silu(self.norm(self.first(picture)))))


class Hologram(nn.Module):
    def __init__(self, optics):
        super().__init__()
        width = optics.channels
        self.optics = optics
        self.down, self.inner, self.up = Block(2, width), Block(width, width), Block(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)
        self.lens = nn.Parameter(torch.full((1,), 0.4))

    def pictures(self, counts, flat):
        pair = torch.stack((contrast(counts, flat), amplitude(counts) / 400 - 1), 1)
        pair = pair.to(self.head.weight.dtype)
        outer = self.down(pair)
        inner = F.interpolate(self.inner(F.avg_pool2d(outer, 2)), scale_factor=2.0)
        return self.head(self.up(torch.cat((outer, inner), 1))).float()

    def forward(self, counts, flat, ticks, clock, defocus, angle):
        optics = self.optics
        thick, dark = self.pictures(counts, flat).unbind(1)
        ramp = angle.float()[:, None, None] * torch.arange(optics.side).float() / 8
        phase = ramp + 0.3 * torch.tanh(thick)
        field = torch.polar(1 - 0.3 * torch.sigmoid(dark), phase)
        squared = frequencies(optics)
        turned = delay(defocus, squared, optics) + aberration(self.lens.float().expand(len(counts)), squared)
        seen = propagated(field, turned)
        light = seen.real.square() + seen.imag.square()
        rate = light * (counts.sum((1, 2)).float() / light.sum((1, 2)))[:, None, None]
        return {
            "deviance": deviance(rate, counts),
            "sharp": sharpness(light),
            "taken": absorbed(counts, flat),
            "turns": wrapped(ramp * 40),
            "flat": levelled(unwrapped(phase)),
            "match": aligned(light[:-1], light[1:]),
            "moved": shifts(ticks, optics) + drift(clock, 0.002),
        }


def loss(output):
    fit = output["deviance"].mean() / 1000 + output["flat"].square().mean() - 0.1 * output["sharp"].mean()
    return fit + 1e-3 * output["match"].square().mean() + 1e-4 * (output["moved"].square().mean() + output["turns"].square().mean())


def make():
    torch.manual_seed(0)
    return Hologram(Optics())


def batch():
    generator = torch.Generator().manual_seed(28)
    shots, side = 4, Optics.side
    flat = torch.randint(41_000, 43_000, (shots, side, side), generator=generator)
    taken = torch.randint(9_400, 10_400, (shots, side, side), generator=generator)
    counts = flat * taken // 10_000
    counts[:, 8, 9:11] = counts[:, 8, 9:11] * 17 // 10
    return {
        "counts": counts,
        "flat": flat,
        "ticks": 52_000 + torch.randint(0, 900, (shots, 6), generator=generator),
        "clock": 41_000_000 + torch.randint(0, 40_000, (shots, 6), generator=generator).sort(1).values,
        "defocus": torch.randint(30_000, 90_000, (shots,), generator=generator),
        "angle": torch.randint(5, 9, (shots,), generator=generator),
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-4)
