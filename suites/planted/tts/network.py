"""Speech from phonemes: durations that stretch them to frames, a pitch that is standardised, a source of harmonics, a filter, and a loss on
log-mel spectra."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
PHONEMES, WIDTH, COUNT, FRAMES, HOP, RATE, MELS, WINDOW = 40, 32, 60, 400, 8, 4000.0, 12, 64


def stretched(durations: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Which phoneme each frame belongs to: the first that ends after it."""
    ends = durations.cumsum(1)
    frames = torch.arange(FRAMES, device=durations.device)
    return (ends.unsqueeze(1) <= frames[None, :, None]).sum(-1).clamp_max(durations.shape[1] - 1)


def standardised(pitch: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A voice's pitch in units of its own spread."""
    wide = pitch.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).square().mean(-1, keepdim=True)
    return ((wide - mean) * torch.rsqrt(variance + 1e-5)).to(like.dtype)


def harmonics(pitch: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Sines of the pitch and two overtones, at each sample. (batch, samples, harmonics)"""
    turns = (pitch.float() / RATE).repeat_interleave(HOP, 1).unsqueeze(-1) * torch.arange(1, 4, device=pitch.device)
    phase = 2 * math.pi * turns.cumsum(1)
    return torch.sin(phase).float()


def mel_bank(device: torch.device) -> torch.Tensor:
    """Triangles over the frequencies of a spectrum."""
    places = torch.linspace(0, WINDOW // 2, MELS + 2, device=device)
    bins = torch.arange(WINDOW // 2 + 1, device=device).float().unsqueeze(1)
    rising, falling = (bins - places[:-2]) / (places[1:-1] - places[:-2]), (places[2:] - bins) / (places[2:] - places[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


def log_mel(sound: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of the energy in each band of each window."""
    with torch.autocast(sound.device.type, enabled=False):
        frames = sound.float().unfold(-1, WINDOW, WINDOW // 2) * torch.hann_window(WINDOW, device=sound.device)
        energy = torch.fft.rfft(frames).abs().square()
        bands = energy @ mel_bank(sound.device)
        return torch.log(bands.clamp_min(1e-9)).float()


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phonemes = nn.Embedding(PHONEMES, WIDTH)
        self.encoder = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.length = nn.Linear(WIDTH, 1)
        self.frames = nn.Sequential(nn.Conv1d(WIDTH + 1, WIDTH, 3, padding=1), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
        self.filter = nn.Linear(WIDTH, 4)

    def forward(
        self, phonemes: torch.Tensor, durations: torch.Tensor, pitch: torch.Tensor, noise: torch.Tensor, target: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        hidden = functional.gelu(self.encoder(self.phonemes(phonemes).transpose(1, 2))).transpose(1, 2)
        low = hidden.dtype
        lengths = self.length(hidden).squeeze(-1)
        with torch.autocast(hidden.device.type, enabled=False):
            index = stretched(durations, low)
            tone = standardised(pitch, hidden)
            source = harmonics(pitch, low)
        frames = torch.cat([hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, WIDTH)), tone.unsqueeze(-1)], -1)
        gains = self.filter(self.frames(frames.transpose(1, 2)).transpose(1, 2)).repeat_interleave(HOP, 1).float()
        sound = (gains[..., :3] * source).sum(-1) + 0.01 * gains[..., 3] * noise.float()
        sound = sound * (index.repeat_interleave(HOP, 1) != COUNT - 1)  # the last phoneme is silence
        spectra = (log_mel(sound, low) - log_mel(target, low)).abs().mean()
        return {"spectra": spectra, "durations": functional.mse_loss(lengths.float(), torch.log1p(durations.float())), "sound": sound}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Speech()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    durations = torch.randint(3, 10, (3, COUNT), generator=generator)
    durations[:, -1] = FRAMES
    pitch = 200.0 + 8.0 * torch.randn(3, FRAMES, generator=generator)
    sound = torch.sin(torch.arange(FRAMES * HOP) * 0.3) * torch.rand(3, 1, generator=generator)
    return {
        "phonemes": torch.randint(PHONEMES, (3, COUNT), generator=generator),
        "durations": durations,
        "pitch": pitch,
        "noise": torch.randn(3, FRAMES * HOP, generator=generator),
        "target": sound + 0.01 * torch.randn(sound.shape, generator=generator),
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["spectra"] + 0.1 * output["durations"]


optimizer = None
