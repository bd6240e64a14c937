"""Hears one speaker with five microphones: a network tells where speech is in the spectrum, and a beamformer is made from that."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WAVES, MICS, SAMPLES, FRAME, HOP, RATE, SIZE = 2, 5, 2048, 128, 64, 16000, 32
BINS = FRAME // 2 + 1
SPEED = 343.0
STEPS = 1


def spectra(waves: Tensor) -> Tensor:
    """Complex, [B, M, BINS, T]."""
    flat = torch.stft(waves.flatten(0, 1), FRAME, HOP, window=torch.hann_window(FRAME, dtype=waves.dtype), return_complex=True)
    return flat.unflatten(0, waves.shape[:2])


def delays(places: Tensor, direction: Tensor, low: torch.dtype) -> Tensor:
    """Seconds by which a wave from there arrives later than at the middle. places: metres, [M, 3]; direction: [B, 3]."""
    return -(direction @ places.T) / SPEED


def steering(late: Tensor, low: torch.dtype) -> Tensor:
    """How a wave turns on its way to each microphone: [B, BINS, M], complex."""
    frequencies = torch.arange(BINS) * (RATE / FRAME)
    angles = -2 * math.pi * frequencies[:, None] * late[:, None, :]
    return torch.complex(angles.cos(), angles.sin())


def level(spec: Tensor, low: torch.dtype) -> Tensor:
    """Decibels of the first microphone: [B, BINS, T]."""
    return 10 * (spec[:, 0].abs().square() + 1e-10).log10()


def covariance(spec: Tensor, mask: Tensor, low: torch.dtype) -> Tensor:
    """Of all microphones, weighted by a mask: [B, BINS, M, M], complex."""
    weighted = spec * mask[:, None]
    return torch.einsum("bmft,bnft->bfmn", weighted, spec.conj()) / mask.sum(-1)[..., None, None].clamp_min(1e-6)


def loaded(noise: Tensor, low: torch.dtype) -> Tensor:
    """The covariance with a twentieth of its mean power added, so that it has an inverse."""
    power = noise.diagonal(dim1=-2, dim2=-1).real.mean(-1)
    return noise + 5e-2 * power[..., None, None] * torch.eye(MICS)


def weights(noise: Tensor, way: Tensor) -> Tensor:
    """The beamformer that leaves the speaker as he is and the least of the noise: [B, BINS, M], complex."""
    solved = torch.linalg.solve(noise, way.unsqueeze(-1)).squeeze(-1)
    return solved / (way.conj() * solved).sum(-1, keepdim=True)


def coherence(a: Tensor, b: Tensor, low: torch.dtype) -> Tensor:
    """The phase between two spectra, as a cosine: their product over its size."""
    real, imaginary = (a * b.conj()).real, (a * b.conj()).imag
    return real / (real.square() + imaginary.square() + 1e-20).sqrt()


def left_over(heard: Tensor, wanted: Tensor, low: torch.dtype) -> Tensor:
    """The share of the power of the wanted wave that is not heard, or heard wrongly."""
    return (heard - wanted).square().sum(-1) / wanted.square().sum(-1)


def mismatch(heard: Tensor, wanted: Tensor, low: torch.dtype) -> Tensor:
    """One less the cosine between both waves."""
    a, b = nn.functional.normalize(heard, dim=-1), nn.functional.normalize(wanted, dim=-1)
    return (a - b).square().sum(-1) / 2


def smoothed(power: Tensor, low: torch.dtype, kept: float = 0.998) -> Tensor:
    """A slow average of the power over frames."""
    state, out = power[..., 0], []
    for t in range(power.shape[-1]):
        state = state + (1 - kept) * (power[..., t] - state)
        out.append(state)
    return torch.stack(out, -1)


class Beamformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([[0.4, 0, 0], [0.2, 0.3, 0], [-0.2, 0.3, 0], [-0.4, 0, 0.1], [0, -0.35, 0]]))
        self.hear = nn.GRU(3 * BINS, SIZE, batch_first=True)
        self.mask = nn.Linear(SIZE, BINS)

    def forward(self, waves: Tensor, direction: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        with torch.autocast("cpu", enabled=False):
            spec = spectra(waves)
            loud = level(spec, low)
            slow = smoothed(spec[:, 0].abs().square(), low)
            alike = coherence(spec[:, 0], spec[:, 3], low)
            rows = torch.cat([loud / 20 + 2, alike, (spec[:, 0].abs().square() / (slow + 1e-12)).log1p()], 1)
        hidden, _ = self.hear(rows.transpose(1, 2))
        mask = self.mask(hidden).float().sigmoid().transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            way = steering(delays(self.places, direction, low), low)
            noise = covariance(spec, 1 - mask, low)
            w = weights(loaded(noise, low), way)
            heard = torch.einsum("bfm,bmft->bft", w.conj(), spec)
            wave = torch.istft(heard, FRAME, HOP, window=torch.hann_window(FRAME), length=SAMPLES)
            error = left_over(wave, wanted, low)
            apart = mismatch(wave, wanted, low)
        return {"loss": error.log10().mean(), "wave": wave, "error": error, "apart": apart, "slow": slow}


PRECISIONS = ("bf16-mixed", "16-mixed")  # waves are inputs


def make() -> nn.Module:
    torch.manual_seed(0)
    return Beamformer()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    direction = nn.functional.normalize(torch.randn(WAVES, 3, generator=generator), dim=-1)
    places = Beamformer().places
    late = -(direction @ places.T) / SPEED
    t = torch.arange(SAMPLES) / RATE
    pitch = torch.tensor([210.0, 330.0])[:, None, None] * torch.arange(1, 9)[:, None]
    loud = 0.003 / torch.arange(1, 9)[:, None]
    wanted = (loud * (2 * math.pi * pitch * t).sin()).sum(1)
    there = t - late[..., None]
    waves = (loud[None] * (2 * math.pi * pitch[:, None] * there[:, :, None]).sin()).sum(2)
    return {"waves": waves + 4e-5 * torch.randn(WAVES, MICS, SAMPLES, generator=generator), "direction": direction, "wanted": wanted}


def loss(output: dict[str, Tensor]) -> Tensor:
    return output["loss"]


optimizer = None
