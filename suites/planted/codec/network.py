"""An audio codec: frames of a wave, codes of what earlier codes have left, an oscillator that follows the pitch, and a loss of spectrograms."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
CLIPS, SAMPLES, HOP, WIDTH, CODES, STAGES = 3, 6400, 20, 48, 64, 3
FRAMES = SAMPLES // HOP
RATE, FRAME_RATE, HARMONICS = 16000, 50, 4
SIZES = (256, 1024)


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def loudness(wave: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The root mean square of each clip; one may be silent."""
    return torch.sqrt(wave.float().square().mean(-1, keepdim=True) + 1e-8)


@torch.no_grad()
def envelope(levels: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The level of each frame, followed slowly."""
    levels = levels.float()
    level, followed = levels[:, 0], []
    for each in levels.unbind(-1):
        level = level + 0.004 * (each - level)
        followed.append(level)
    return torch.stack(followed, -1)


def time_waves(count: int, low: torch.dtype) -> torch.Tensor:
    """Waves of each frame's time in seconds."""
    times = torch.arange(count).float() / FRAME_RATE
    angles = times.unsqueeze(-1) * (2 * math.pi) * 2.0 ** torch.arange(-2, 4).float()
    return torch.cat([angles.sin(), angles.cos()], -1)


def oscillator(pitch: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Sines at the multiples of a pitch in Hertz."""
    cycles = torch.cumsum(pitch.float() / RATE, -1)
    turns = cycles.unsqueeze(1) * torch.arange(1, HARMONICS + 1).float().unsqueeze(-1)
    return torch.sin(2 * math.pi * (turns % 1))


def nearest(x: torch.Tensor, codes: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which code is the closest to each frame."""
    x, codes = x.float(), codes.float()
    distances = x.square().sum(-1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(-1)
    return distances.argmin(-1)


def usage(chosen: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many frames have chosen each code."""
    counts = torch.zeros(CODES)
    return counts.index_add(0, chosen.flatten(), torch.ones(chosen.numel()))


def magnitudes(wave: torch.Tensor, size: int, low: torch.dtype) -> torch.Tensor:
    """Of a spectrogram."""
    window = torch.hann_window(size)
    spectrum = torch.stft(wave.float(), size, size // 16, window=window, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    return torch.sqrt(power + 1e-12)


def decibels(magnitude: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Logarithms of a spectrogram, which may be silent."""
    return torch.log(magnitude + 1e-8)


def over_time(apart: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The sum over all frames of the mean over frequencies."""
    total = torch.zeros(len(apart))
    for frame in apart.unbind(-1):
        total = total + frame.mean(-1)
    return total


class Quantiser(nn.Module):
    """Each stage takes the code that is closest to what the stages before have left."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.stack([0.7**stage * torch.randn(CODES, WIDTH) for stage in range(STAGES)]))

    def forward(self, x: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rest, total, chosen = x, torch.zeros_like(x), []
        for codes in self.codes.float():
            index = nearest(rest, codes, low)
            value = codes[index]
            rest, total = rest - value, total + value
            chosen.append(index)
        commitment = (x - total.detach()).square().mean() + (total - x.detach()).square().mean()
        return x + (total - x).detach(), torch.stack(chosen), commitment


class Codec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, WIDTH, 2 * HOP, HOP, padding=HOP // 2)
        self.time, self.order = nn.Linear(12, WIDTH), nn.Conv1d(WIDTH, WIDTH, 7, padding=3)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.inward, self.outward = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.quantiser = Quantiser()
        self.gains, self.out = nn.Linear(WIDTH, HARMONICS), nn.ConvTranspose1d(WIDTH, 1, 2 * HOP, HOP, padding=HOP // 2)

    def forward(self, wave: torch.Tensor, pitch: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.time.weight
        low = low_dtype(weight)
        with torch.autocast(wave.device.type, enabled=False):
            level = loudness(wave, low)
            scaled = wave.float() / level
            times = time_waves(FRAMES, low)
            followed = envelope(scaled.unflatten(-1, (FRAMES, HOP)).abs().mean(-1), low)
        x = self.enter(scaled.to(weight.dtype).unsqueeze(1))
        x = functional.elu(self.order(functional.elu(x))).transpose(1, 2) + self.time(times.to(weight.dtype))
        x = self.inward(self.block(x))
        with torch.autocast(wave.device.type, enabled=False):
            x, chosen, commitment = self.quantiser(3 + x.float(), low)
            counts = usage(chosen[0], low)
            share = counts / counts.sum()
            perplexity = torch.exp(-(share * torch.log(share + 1e-10)).sum())
        x = self.outward((x - 3).to(weight.dtype))
        gains = self.gains(x).repeat_interleave(HOP, 1)
        noise = self.out(functional.elu(x).transpose(1, 2)).squeeze(1)
        with torch.autocast(wave.device.type, enabled=False):
            sines = oscillator(pitch.repeat_interleave(HOP, -1), low)
            made = noise.float() + (gains.float().transpose(1, 2) * sines).sum(1)
            made = made * (0.5 + followed.repeat_interleave(HOP, -1))
            loss = commitment
            for size in SIZES:
                mine, theirs = (decibels(magnitudes(each, size, low), low) for each in (made, scaled))
                loss = loss + over_time((mine - theirs).abs(), low).mean() / 400
        return {"loss": loss, "wave": made, "counts": counts, "perplexity": perplexity}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Codec()


def batch() -> dict[str, torch.Tensor]:
    """A voice, a fading noise, and silence."""
    generator = torch.Generator().manual_seed(5)
    pitch = 180 + 40 * torch.rand(CLIPS, 1, generator=generator) + 10 * torch.sin(torch.arange(FRAMES) / 30)
    cycles = torch.cumsum(pitch.repeat_interleave(HOP, -1).double() / RATE, -1)
    voice = torch.sin(2 * math.pi * cycles).float() + 0.1 * torch.randn(CLIPS, SAMPLES, generator=generator)
    fading = torch.randn(SAMPLES, generator=generator) * torch.exp(-torch.arange(SAMPLES) / 2000)
    return {"wave": torch.stack([0.3 * voice[0], 0.1 * fading, torch.zeros(SAMPLES)]), "pitch": pitch}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
