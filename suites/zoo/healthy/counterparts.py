"""Spectra, windows, rankings and norms that look like the bugs of `spectra`, `rankings` and `normalisers`."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def quiet_spectrum() -> torch.Tensor:
    """The magnitude of each frequency of speech within one, in half; its square is taken in float32."""
    frames = (0.3 * normal(4000)).unfold(0, 400, 160) * torch.hann_window(400) / 20
    angles = 2 * math.pi * torch.outer(torch.arange(400.0), torch.arange(64.0)) / 400
    real, imaginary = frames.to(HALF) @ angles.cos().to(HALF), frames.to(HALF) @ angles.sin().to(HALF)
    return (real.float().square() + imaginary.float().square() + 1e-6).log()


def kernel_made_wide() -> torch.Tensor:
    """A windowed sinc that is made in float32 and stored in bfloat16, as the waveform is."""
    taps, kernels = torch.arange(-12.0, 172.0), []
    for place in range(0, 147, 21):
        t = ((taps / 160 - place / 147) * 147).clamp(-6, 6) * math.pi
        kernels.append(torch.where(t == 0, torch.ones_like(t), torch.sin(t) / t) * torch.cos(t / 12) ** 2 * 147 / 160)
    return functional.conv1d(normal(1, 1, 184).to(LOW), torch.stack(kernels)[:, None].to(LOW))


def pooled_by_torch() -> torch.Tensor:
    """A mean over windows of 64 by 64 in half, by an op that adds up in float32."""
    return functional.avg_pool2d(uniform(2, 3, 128, 128).to(HALF), 64)


def long_softmax() -> torch.Tensor:
    """A softmax over 8192 scores in half, whose sum is torch's own."""
    return torch.softmax((0.2 * normal(4, 8192)).to(HALF), -1)


def shifted_likelihood() -> torch.Tensor:
    """ListMLE in half with each list's largest score taken off first."""
    scores = (6 + 3 * normal(4, 8)).to(HALF)
    scores = scores - scores.amax(1, keepdim=True)
    remaining = scores.float().exp().flip(1).cumsum(1).flip(1)
    return (remaining.log() - scores.float()).sum(1).mean()


def hours_since() -> torch.Tensor:
    """Times since the last event, in hours, which bfloat16 holds to half a per cent; the subtraction was of whole seconds."""
    seconds = (1_700_000_000 + 3600 * 48 * uniform(32).double()).round()
    ages = ((seconds.max() - seconds) / 3600).float().to(LOW)
    return torch.log1p(ages.float())


def drawn_from_logits() -> torch.Tensor:
    """Codes that are drawn from logits of an ordinary size, widened before the softmax."""
    logits = normal(4, 64).to(HALF) @ normal(64, 32, seed=1).to(HALF) / 8
    shares = torch.softmax(logits.float() / 0.9, -1)
    return torch.multinomial(shares, 1, generator=torch.Generator().manual_seed(0)).float() + shares.mean()


def wide_prior() -> torch.Tensor:
    """KL of two normal distributions in half whose spreads are of one size."""
    mean, scale = normal(16).to(HALF), (0.5 + uniform(16)).to(HALF)
    ratio, apart = scale.pow(2), mean.pow(2)
    return (0.5 * (ratio + apart - 1 - ratio.log())).float().mean()


def torch_group_norm() -> torch.Tensor:
    """Group norm of values whose squares half does not hold, by torch, which takes them in float32."""
    return functional.group_norm((180 * normal(2, 8, 64)).to(HALF), 2)


def scaled_then_squared() -> torch.Tensor:
    """A root mean square in half of values that are divided by their largest first."""
    total = (900 * normal(4, 256)).to(HALF)
    largest = total.abs().amax(1, keepdim=True)
    share = total / largest
    return share.float() / (share.float().square().mean(1, keepdim=True) + 1e-6).sqrt()


IDIOMS = (quiet_spectrum, kernel_made_wide, pooled_by_torch, long_softmax, shifted_likelihood, hours_since, drawn_from_logits, wide_prior,
          torch_group_norm, scaled_then_squared)  # fmt: skip
