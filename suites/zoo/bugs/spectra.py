"""Signals and windows: spectra, kernels that resample, and sums over many places."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def voiced(samples: int) -> torch.Tensor:
    """A tone and its overtones, as loud as 16-bit audio that nobody has scaled."""
    time = torch.arange(float(samples)) / 16000
    return 20000 * sum(torch.sin(2 * math.pi * 220 * k * time) / k for k in range(1, 5)) + 30 * normal(samples)


def mel_bands(dtype: torch.dtype) -> torch.Tensor:
    """The power of each frequency of frames of speech, summed into bands, then its logarithm."""
    frames = (voiced(4000) / 400).unfold(0, 400, 160) * torch.hann_window(400)
    angles = 2 * math.pi * torch.outer(torch.arange(400.0), torch.arange(64.0)) / 400
    real, imaginary = frames.to(dtype) @ angles.cos().to(dtype), frames.to(dtype) @ angles.sin().to(dtype)
    power = real * real + imaginary * imaginary  # culprit: mel-power
    bands = functional.avg_pool1d(power.float(), 4)
    return (bands + 1e-6).log()


def resampled(dtype: torch.dtype) -> torch.Tensor:
    """A windowed sinc that makes 147 samples of each 160. Its arguments are made in the format of what it resamples."""
    old, new, width = 160, 147, 6
    taps = torch.arange(-2 * width, 2 * width + old, dtype=dtype)
    kernels = []
    for place in range(0, new, 21):
        t = (taps / old - place / new) * new  # culprit: sinc-of-waveform
        t = t.clamp(-width, width) * math.pi  # culprit: sinc-of-waveform
        window = torch.cos(t / width / 2) ** 2
        kernels.append(torch.where(t == 0, torch.ones_like(t), torch.sin(t) / t) * window * new / old)
    wave = normal(1, 1, 184)
    return functional.conv1d(wave, torch.stack(kernels)[:, None].float())


def pooled(dtype: torch.dtype) -> torch.Tensor:
    """The mean over a window of 90 tiles of 64 by 64, added up row by row, in the image's format."""
    image, total = uniform(3, 64, 64).to(HALF), torch.zeros(3, 64, dtype=dtype)
    for _ in range(90):
        for row in range(64):
            total = total + image[:, row].to(dtype)  # culprit: large-window
    return total.float().sum(1) / (90 * 64 * 64)


def shares_of_a_long_row(dtype: torch.dtype) -> torch.Tensor:
    """A softmax over 8192 scores, chunk by chunk: the running sum of the exponentials is kept in the scores' format."""
    scores = (0.2 * normal(4, 8192)).to(HALF)
    top = scores.amax(1, keepdim=True)
    total = torch.zeros(4, dtype=dtype)
    for chunk in scores.split(8, dim=1):
        total = total + (chunk - top).exp().sum(1).to(dtype)  # culprit: row-total
    return (scores - top).float().exp() / total.float()[:, None]


BUGS = (
    Bug("mel-power", "LIHANG-HONG/birdclef2023-2nd-place-solution#2", ("overflow",), "aten.mul.Tensor", lambda: mel_bands(HALF),
        lambda: mel_bands(WIDE)),
    Bug("sinc-of-waveform", "pytorch/audio#1514", ("amplified-rounding", "cancellation"),
        "aten.sub.Tensor", lambda: resampled(LOW), lambda: resampled(WIDE)),
    Bug("large-window", "ROCm/MIOpen#2109", ("absorption", "accumulated-drift"), "aten.add.Tensor", lambda: pooled(HALF), lambda: pooled(WIDE)),
    Bug("row-total", "sonos/tract#2587", ("absorption", "accumulated-drift"), "aten.add.Tensor", lambda: shares_of_a_long_row(HALF),
        lambda: shares_of_a_long_row(WIDE)),
)  # fmt: skip
