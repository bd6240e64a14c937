"""Two voices out of one: a learned filter bank, a stack of dilated convolutions that makes masks, and a loss that does not ask which is which."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # waves are inputs, which a conversion of everything would round
STEPS = 1
RATE, SAMPLES, FILTERS, TAPS, HOP, WIDTH, SPEED = 8000, 4800, 32, 65, 16, 48, 0.93


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def perturbed(wave: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The wave at another speed, by linear interpolation."""
    at = torch.arange(SAMPLES, device=wave.device).float() * SPEED
    left = at.floor()
    share = (at - left).float()
    index = left.long().clamp(max=SAMPLES - 2)
    return wave[..., index] * (1 - share) + wave[..., index + 1] * share


def filters(low_hz: torch.Tensor, band_hz: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Band passes, as differences of two sincs under a window."""
    seconds = (torch.arange(1, TAPS // 2 + 1, device=low_hz.device) / RATE).float()
    high_hz = low_hz.abs() + band_hz.abs() + 50
    angles = 2 * math.pi * seconds * torch.stack([low_hz.abs(), high_hz]).unsqueeze(-1)
    below, above = (torch.sin(angles).float() / (math.pi * seconds * RATE)).unbind(0)
    middle = 2 * (high_hz - low_hz.abs()).unsqueeze(-1) / RATE
    half = (above - below) * torch.hamming_window(TAPS, periodic=False, device=low_hz.device)[TAPS // 2 + 1 :]
    return torch.cat([half.flip(-1), middle, half], -1).unsqueeze(1)


def global_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A norm over all channels and frames of a wave."""
    x = x.float()
    x = x - x.mean((1, 2), keepdim=True)
    power = x.square().sum((1, 2), keepdim=True) / x[0].numel()
    return x.float() / (power + 1e-5).sqrt().float() * weight + bias


def loudness(energy: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A level that follows the energy of frames slowly."""
    level, levels = torch.full_like(energy[:, 0], 0.8).float(), []
    for now in energy.float().unbind(1):
        level = level + 0.005 * (now - level)
        levels.append(level)
    return torch.stack(levels, 1).float()


def separation_ratio(found: torch.Tensor, true: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Decibels of what is right over what is not, whatever the scale."""
    found, true = found.float() - found.float().mean(-1, keepdim=True), true.float() - true.float().mean(-1, keepdim=True)
    share = (found * true).mean(-1, keepdim=True) / (true.square().mean(-1, keepdim=True) + 1e-8)
    right = share * true
    return 10 * torch.log10((right.square().mean(-1) + 1e-8) / ((found - right).square().mean(-1) + 1e-8)).float()


class GlobalNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width, 1)), nn.Parameter(torch.zeros(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return global_norm(x, self.weight, self.bias, low_dtype(x))


class Block(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.wide, self.norm1, self.norm2 = nn.Conv1d(WIDTH, 2 * WIDTH, 1), GlobalNorm(2 * WIDTH), GlobalNorm(2 * WIDTH)
        self.deep = nn.Conv1d(2 * WIDTH, 2 * WIDTH, 3, padding=dilation, dilation=dilation, groups=2 * WIDTH)
        self.act1, self.act2, self.out = nn.PReLU(), nn.PReLU(), nn.Conv1d(2 * WIDTH, WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(self.act1(self.wide(x)))
        return x + self.out(self.norm2(self.act2(self.deep(y))))


class Separator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        low = torch.linspace(30, 3300, FILTERS)
        self.low_hz, self.band_hz = nn.Parameter(low), nn.Parameter(torch.full((FILTERS,), 120.0))
        self.norm, self.into = GlobalNorm(FILTERS), nn.Conv1d(FILTERS, WIDTH, 1)
        self.blocks = nn.Sequential(*(Block(2**each) for each in range(4)))
        self.masks, self.back = nn.Conv1d(WIDTH, 2 * FILTERS, 1), nn.ConvTranspose1d(FILTERS, 1, TAPS, stride=HOP, padding=TAPS // 2)

    def forward(self, wave: torch.Tensor, voices: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.into.weight)
        with torch.autocast(wave.device.type, enabled=False):
            wave, voices = perturbed(wave, low), perturbed(voices, low)
            kernels = filters(self.low_hz, self.band_hz, low)
        spectrum = functional.conv1d(wave.unsqueeze(1), kernels, stride=HOP, padding=TAPS // 2)
        with torch.autocast(wave.device.type, enabled=False):
            level = loudness(spectrum.detach().float().square().sum(1), low)
        masks = torch.sigmoid(self.masks(self.blocks(self.into(self.norm(spectrum))))).unflatten(1, (2, FILTERS))
        found = self.back((masks * spectrum.unsqueeze(1)).flatten(0, 1)).view(len(wave), 2, -1)
        length = found.shape[-1]
        with torch.autocast(wave.device.type, enabled=False):
            ratio = separation_ratio(found.unsqueeze(2), voices[..., :length].unsqueeze(1), low)
            straight, crossed = ratio[:, 0, 0] + ratio[:, 1, 1], ratio[:, 0, 1] + ratio[:, 1, 0]
            loss = -torch.maximum(straight, crossed).mean() / 2
        return {"found": found, "level": level, "loss": loss}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Separator()
    with torch.no_grad():
        for block in model.blocks:
            block.wide.weight.mul_(30)
    return model


def batch() -> dict[str, torch.Tensor]:
    """Chords with vibrato; the second wave has one voice only, and the other is silent."""
    generator = torch.Generator().manual_seed(1)
    seconds = torch.arange(SAMPLES) / RATE
    pitches = 110 + 500 * torch.rand(2, 2, 5, 1, generator=generator)
    phases = 2 * math.pi * pitches * seconds + 0.5 * torch.sin(2 * math.pi * 5 * seconds)
    voices = 0.3 * torch.sin(phases).sum(2) + 0.01 * torch.randn(2, 2, SAMPLES, generator=generator)
    voices[1, 1] = 0
    return {"wave": voices.sum(1), "voices": voices}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
