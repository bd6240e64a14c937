"""Sound: oscillators that run on, a filter in whole numbers, features within autocast, a norm over all that was heard so far."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Oscillators:
    """Voices of a synthesiser: a phase in turns each, which a period of 256 frames moves on."""

    def __init__(self, frequencies: torch.Tensor, wrapped: bool) -> None:
        self.phase, self.step, self.wrapped = torch.zeros_like(frequencies), frequencies / 44100, wrapped

    def period(self) -> torch.Tensor:
        frames = torch.arange(256, dtype=self.phase.dtype)
        wave = torch.sin(2 * math.pi * (self.phase[:, None] + self.step[:, None] * frames))
        self.phase = self.phase + 256 * self.step  # culprit: voices-that-part
        if self.wrapped:
            self.phase = self.phase - self.phase.floor()
        return wave


def chord(dtype: torch.dtype, wrapped: bool, periods: int = 500) -> torch.Tensor:
    """The last period of three voices an octave apart, after three seconds. Off by 5 %."""
    voices = Oscillators(torch.tensor([440.0, 880.0, 1760.0], dtype=dtype), wrapped)
    for _ in range(periods - 1):
        voices.period()
    return voices.period()


def low_pass(corners: torch.Tensor, bits: int) -> tuple[torch.Tensor, ...]:
    """Coefficients of filters of second order, kept as whole numbers of that many bits behind the point."""
    angle = 2 * math.pi * corners / 48000
    lift = 1 + torch.sin(angle) / math.sqrt(2)
    b = torch.sin(angle / 2).square() / lift
    exact = torch.stack([b, 2 * b, b, -2 * torch.cos(angle) / lift, (2 - lift) / lift])
    codes = torch.round(exact * 2**bits).to(torch.int32)  # culprit: silence-below-fifty-hertz
    return tuple((codes.to(corners.dtype) / 2**bits).unbind())


def filtered(dtype: torch.dtype, bits: int, lowest: float = 30.0, samples: int = 400) -> torch.Tensor:
    """What low passes make of a wave that begins: with 15 bits the lowest are nearly silent. Off by 50 %."""
    b0, b1, b2, a1, a2 = low_pass(lowest * torch.tensor([1.0, 1.5, 2.0], dtype=dtype), bits)
    time = torch.arange(samples, dtype=dtype)
    x = torch.sin(2 * math.pi * lowest / 48000 * time)
    out, x1, x2, y1, y2 = [], *([torch.zeros(3, dtype=dtype)] * 4)
    for now in x:
        y = b0 * now + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2
        x1, x2, y1, y2 = now.expand(3), x1, y, y1
        out.append(y)
    return torch.stack(out)


def heard(dtype: torch.dtype, single: bool, loudness: float = 2e-4) -> torch.Tensor:
    """Log-mel features of a far voice, made within the region that autocast covers: a bank of filters is a product. Off by 27 %."""
    time = torch.arange(4000, dtype=torch.float64) / 16000
    wave = loudness * sum(torch.sin(2 * math.pi * f * time * (1 + 0.1 * time)) / f**0.5 for f in (120, 240, 700, 1900, 3100))
    wave = (wave + 0.1 * loudness * normal(4000).double() / 20).to(WIDE if dtype is HALF else dtype)
    bank = (1 - (torch.arange(129)[:, None] - torch.arange(4, 124, 6)[None]).abs() / 8).clamp(min=0).to(wave.dtype)
    with torch.autocast("cpu", dtype=HALF, enabled=dtype is HALF):
        spectrum = torch.fft.rfft(wave.unfold(0, 256, 128) * torch.hann_window(256, dtype=wave.dtype))
        power = spectrum.real.square() + spectrum.imag.square()
        with torch.autocast("cpu", enabled=dtype is HALF and not single, dtype=HALF):
            mel = power @ bank  # culprit: bank-of-filters-within-autocast
        return torch.log(wider(mel).clamp(min=1e-10))


class CumulativeNorm(torch.nn.Module):
    """Each frame less the mean of all frames so far, over their spread, as a network does that may not look ahead."""

    def __init__(self, widened: bool) -> None:
        super().__init__()
        self.widened = widened

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, x = x.dtype, wider(x) if self.widened else x
        sums, squares = x.sum(0).cumsum(0), x.square().sum(0).cumsum(0)
        count = torch.arange(len(x), len(x) * (x.shape[1] + 1), len(x), dtype=x.dtype)
        mean = sums / count
        variance = (squares - 2 * mean * sums) / count + mean.square()  # culprit: norm-of-all-so-far
        return ((x - mean) / torch.sqrt(variance + 1e-8)).to(kept)


def separated(dtype: torch.dtype, widened: bool, level: float = 1.5) -> torch.Tensor:
    """Frames of an encoder whose channels are near one and a half, normalised. Off by 14 %."""
    x = (level + 0.3 * normal(24, 120)).to(LOW).to(dtype)
    return CumulativeNorm(widened)(x)


BUGS = (
    Bug("voices-that-part", "LMMS/lmms#2047", ("amplified-rounding", "accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: chord(WIDE, False), lambda: chord(WIDE, True), precision="32-true"),
    Bug("silence-below-fifty-hertz", "adafruit/circuitpython#11269", ("underflow", "wrong-scale", "biased-rounding"),
        "aten._to_copy.default", lambda: filtered(WIDE, 15), lambda: filtered(WIDE, 28), precision="32-true",
        expected_miss="a number that is rounded to a whole one and read again is taken for the user's wish, though a row of three becomes nought"),
    Bug("bank-of-filters-within-autocast", "espnet/espnet#2257", ("underflow",), "aten._to_copy.default", lambda: heard(HALF, False),
        lambda: heard(HALF, True)),
    Bug("norm-of-all-so-far", "asteroid-team/asteroid#252", ("cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: separated(LOW, False), lambda: separated(LOW, True), module="CumulativeNorm"),
)  # fmt: skip
