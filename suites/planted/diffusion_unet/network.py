"""Diffusion of audio: a one-dimensional UNet with attention that predicts the clean waveform, trained with truncated SNR weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LENGTH, TIMESTEPS, GROUPS = 32, 2, 512, 1000, 4
STEPS = 1
optimizer = None


def kept_signal(like: torch.Tensor) -> torch.Tensor:
    """How much of the signal is left after each timestep: the cumulative product of 1 - beta."""
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, device=like.device, dtype=torch.float32)
    return torch.cumprod(1 - betas, dim=0)


def noised(wave: torch.Tensor, noise: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return kept.sqrt() * wave.float() + (1 - kept).sqrt() * noise.float()


def snr_weights(kept: torch.Tensor) -> torch.Tensor:
    """Weights of the loss of each sample, max(SNR, 1), as for progressive distillation."""
    snr = kept.float() / (1 - kept.float())
    return snr.clamp(min=1)


def averaged(errors: torch.Tensor) -> torch.Tensor:
    return errors.mean()


def embedded(timesteps: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Sinusoids of the timesteps."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=timesteps.device) / (width // 2))
    angles = timesteps.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype)


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, c, n = x.shape
    grouped = x.float().reshape(b, GROUPS, -1)
    mean = grouped.mean(-1, keepdim=True)
    variance = (grouped - mean).square().mean(-1, keepdim=True)
    normed = ((grouped - mean) * torch.rsqrt(variance + 1e-5)).view(b, c, n)
    return (normed * weight.float()[:, None] + bias.float()[:, None]).to(x.dtype)


def stretched(x: torch.Tensor, length: int) -> torch.Tensor:
    """Linear interpolation to another length, with the ends aligned."""
    place = torch.arange(length, device=x.device) * ((x.shape[-1] - 1) / (length - 1))
    left = place.floor().long().clamp(max=x.shape[-1] - 2)
    share = (place - left).to(x.dtype)
    return x[..., left] * (1 - share) + x[..., left + 1] * share


class GroupNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return group_norm(x, self.weight, self.bias)


class Residual(nn.Module):
    """Two convolutions with the timestep's embedding between them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = GroupNorm(before), GroupNorm(after)
        self.conv1, self.conv2 = nn.Conv1d(before, after, 3, padding=1), nn.Conv1d(after, after, 3, padding=1)
        self.time = nn.Linear(WIDTH, after)
        self.skip = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(time)[..., None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = GroupNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, n = x.shape
        q, k, v = self.qkv(self.norm(x).transpose(1, 2)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return x + self.out(mixed).transpose(1, 2)


class UNet(nn.Module):
    """Returns the weighted loss."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.enter = nn.Conv1d(1, WIDTH, 7, padding=3)
        nn.init.constant_(self.enter.bias, 6.0)  # trained networks have channels far from zero
        self.down1, self.down2 = Residual(WIDTH, WIDTH), Residual(WIDTH, 2 * WIDTH)
        self.shrink1, self.shrink2 = nn.Conv1d(WIDTH, WIDTH, 2, stride=2), nn.Conv1d(2 * WIDTH, 2 * WIDTH, 2, stride=2)
        self.middle, self.attention = Residual(2 * WIDTH, 2 * WIDTH), Attention(2 * WIDTH)
        self.up2, self.up1 = Residual(4 * WIDTH, WIDTH), Residual(2 * WIDTH, WIDTH)
        self.leave = nn.Conv1d(WIDTH, 1, 7, padding=3)

    def denoise(self, x: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        x = self.enter(x.to(self.enter.weight.dtype))
        time = self.time(embedded(timesteps, WIDTH, x.dtype))
        skip1 = self.down1(x, time)
        skip2 = self.down2(self.shrink1(skip1), time)
        x = self.attention(self.middle(self.shrink2(skip2), time))
        x = self.up2(torch.cat([stretched(x, skip2.shape[-1]), skip2], dim=1), time)
        x = self.up1(torch.cat([stretched(x, skip1.shape[-1]), skip1], dim=1), time)
        return self.leave(x)

    def forward(self, wave: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        kept = kept_signal(wave)[timesteps].view(-1, 1, 1)
        guess = self.denoise(noised(wave, noise, kept), timesteps)
        return averaged(snr_weights(kept) * (guess.float() - wave.float()).square())


def make() -> nn.Module:
    torch.manual_seed(0)
    return UNet()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    time = torch.linspace(0, 1, LENGTH)
    wave = torch.stack([torch.sin(2 * math.pi * f * time) for f in (3.0, 7.0, 19.0, 40.0)])[:, None]
    return wave, torch.randn(4, 1, LENGTH, generator=g), torch.tensor([40, 333, 681, 995])


def loss(output: torch.Tensor) -> torch.Tensor:
    return output
