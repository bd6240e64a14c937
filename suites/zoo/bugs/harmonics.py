"""Harmonics and oscillators: polynomials of a high order, places on a globe, tones that turn, resamplers and modulators that run long."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Synthesis(nn.Module):
    """A field along a meridian, of polynomials of one order and all degrees up to a last one."""

    def __init__(self, order: int, last: int, lift: float) -> None:
        super().__init__()
        self.order, self.last, self.lift = order, last, lift
        self.spectrum = nn.Parameter(normal(last + 1 - order, seed=3))

    def diagonal(self, sine: torch.Tensor) -> torch.Tensor:
        """The polynomial whose degree is the order, times `lift`."""
        value = torch.full_like(sine, self.lift)
        for m in range(1, self.order + 1):
            value = value * (sine * math.sqrt((2 * m + 1) / (2 * m)))  # culprit: polynomials-of-a-high-order
        return value

    def forward(self, colatitude: torch.Tensor) -> torch.Tensor:
        x, m = torch.cos(colatitude), self.order
        now = self.diagonal(torch.sin(colatitude))
        before, rows = torch.zeros_like(now), [now]
        for degree in range(m + 1, self.last + 1):
            scale = math.sqrt((4 * degree**2 - 1) / (degree**2 - m**2))
            share = math.sqrt(((degree - 1) ** 2 - m**2) / (4 * (degree - 1) ** 2 - 1))
            before, now = now, scale * (x * now - share * before)
            rows.append(now)
        return (self.spectrum[:, None] * torch.stack(rows)).sum(0) / self.lift


def field_along_a_meridian(lift: float, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of order 120 at latitudes near 65 degrees, where the first polynomial is below what float32 holds. Nothing is left of it."""
    with torch.no_grad():
        return Synthesis(120, 330, lift).to(dtype)(torch.linspace(0.38, 0.46, 24, dtype=DOUBLE).to(dtype))


def factorial(n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(1, n + 1, dtype=dtype).prod()  # culprit: places-on-a-globe


class Globe(nn.Module):
    """Answers for places on a globe, from the harmonics of highest order of each degree."""

    def __init__(self, degrees: int, stepwise: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.degrees, self.stepwise = degrees, stepwise
        self.head = nn.Linear(degrees, 5, bias=False)

    def harmonic(self, m: int, sine: torch.Tensor, longitude: torch.Tensor) -> torch.Tensor:
        if self.stepwise:
            norm = math.sqrt(math.prod((2 * k - 1) / (2 * k) for k in range(1, m + 1)) * (2 * m + 1) / (2 * math.pi))
            return norm * sine**m * torch.cos(m * longitude)
        odd = torch.arange(1, 2 * m, 2, dtype=sine.dtype).prod()
        norm = torch.sqrt((2 * m + 1) / (2 * math.pi) / factorial(2 * m, sine.dtype))  # culprit: places-on-a-globe
        return norm * odd * sine**m * torch.cos(m * longitude)

    def forward(self, latitude: torch.Tensor, longitude: torch.Tensor) -> torch.Tensor:
        sine = torch.cos(latitude)
        return self.head(torch.stack([self.harmonic(m, sine, longitude) for m in range(1, self.degrees + 1)], -1))


def globe(stepwise: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """Of 24 degrees. The norms of those above 17 become nought, as 36 factorial is above what float32 holds. Off by 70 %."""
    latitude, longitude = 0.3 * (2 * uniform(60) - 1), 2 * math.pi * uniform(60, seed=1)
    with torch.no_grad():
        return Globe(24, stepwise).to(dtype)(latitude.to(dtype), longitude.to(dtype))


class Resonators:
    """A bank of tones. Each is a number in the plane that every sample turns by the same angle."""

    def __init__(self, angles: torch.Tensor, dtype: torch.dtype) -> None:
        self.cos, self.sin = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)  # culprit: tones-that-fade
        self.real, self.imag = torch.ones_like(self.cos), torch.zeros_like(self.cos)

    def tick(self) -> torch.Tensor:
        real = self.real * self.cos - self.imag * self.sin  # culprit: tones-that-fade
        self.imag = self.real * self.sin + self.imag * self.cos  # culprit: tones-that-fade
        self.real = real
        return self.imag


def loudness_of_tones(dtype: torch.dtype) -> torch.Tensor:
    """How loud sixteen tones are after 400 samples, which should be as loud as they began. Off by 10 %."""
    bank = Resonators(2 * math.pi * (220 + 1500 * uniform(16)) / 16_000, dtype)
    for _ in range(400):
        bank.tick()
    return torch.hypot(wider(bank.real), wider(bank.imag))


class Resampler:
    """Plays a record of one rate at another: reads between samples, at a place that moves by the ratio of the rates."""

    def __init__(self, rates: tuple[int, int], start: int, counted: bool, dtype: torch.dtype) -> None:
        self.rates, self.start, self.counted, self.dtype = rates, start, counted, dtype
        self.place, self.taken = torch.tensor(float(start), dtype=dtype), 0

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The sample before the place, told from the start, and how far the place is past it."""
        if self.counted:
            whole, rest = divmod(self.taken * self.rates[0], self.rates[1])
            self.taken += 1
            return torch.tensor(whole), torch.tensor(rest / self.rates[1], dtype=self.dtype)
        left = self.place.floor()
        share = self.place - left
        self.place = self.place + self.rates[0] / self.rates[1]  # culprit: resampler-after-minutes
        return (left - self.start).long(), share

    def play(self, record: torch.Tensor, count: int) -> torch.Tensor:
        out = []
        for _ in range(count):
            index, share = self.step()
            out.append(torch.lerp(record[index], record[index + 1], share))
        return torch.stack(out)


def played(counted: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A voice, two minutes into a stream, from 16 000 to 44 100 samples a second. It is played too fast."""
    at = torch.arange(120, dtype=DOUBLE)
    voice = (torch.sin(0.11 * at) + 0.4 * torch.sin(0.31 * at + 1)).to(dtype)
    return Resampler((16_000, 44_100), 2_000_000, counted, dtype).play(voice, 200)


class Modulator:
    """Sends symbols as turns of a carrier, each smoothed over its neighbours."""

    def __init__(self, phase: float, wraps: bool, dtype: torch.dtype) -> None:
        self.wraps = wraps
        self.phase = torch.tensor(math.remainder(phase, 2 * math.pi) if wraps else phase, dtype=dtype)
        pulse = torch.exp(-0.5 * ((torch.arange(9, dtype=DOUBLE) - 4) / 1.6) ** 2)
        self.pulse = (pulse / pulse.sum()).to(dtype)

    def send(self, symbols: torch.Tensor) -> torch.Tensor:
        smooth = torch.conv1d(symbols[None, None], self.pulse[None, None], padding=4)[0, 0]
        carrier = []
        for turn in smooth * (math.pi / 8):
            self.phase = self.phase + turn  # culprit: carrier-of-a-long-message
            if self.wraps:
                self.phase = torch.remainder(self.phase, 2 * math.pi)
            carrier.append(torch.stack([torch.cos(self.phase), torch.sin(self.phase)]))
        return torch.stack(carrier)


def sent(wraps: bool, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """After a million symbols, of which more are one than minus one, the phase has a spacing of a quarter. Off by half."""
    symbols = torch.where(uniform(96) < 0.6, 1.0, -1.0).repeat_interleave(2).to(dtype)
    return Modulator(2_097_152.0 + 1.25, wraps, dtype).send(symbols)


BUGS = (
    Bug("polynomials-of-a-high-order", "jmert/AssociatedLegendrePolynomials.jl#27", ("underflow",), "aten.mul.Tensor",
        lambda: field_along_a_meridian(1.0), lambda: field_along_a_meridian(2.0**100), module="Synthesis", precision="32-true"),
    Bug("places-on-a-globe", "MarcCoru/locationencoder#1", ("overflow",), "aten.prod.default",
        lambda: globe(False), lambda: globe(True), precision="32-true"),
    Bug("tones-that-fade", "LancePutnam/Gamma#44", ("amplified-rounding", "accumulated-drift"), "aten._to_copy.default",
        lambda: loudness_of_tones(HALF), lambda: loudness_of_tones(SINGLE)),
    Bug("resampler-after-minutes", "introlab/odas#268", ("integer-rounding", "absorption", "accumulated-drift", "amplified-rounding"),
        "aten.add.Tensor", lambda: played(False), lambda: played(True), precision="32-true"),
    Bug("carrier-of-a-long-message", "jgaeddert/liquid-dsp#3", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: sent(False), lambda: sent(True), precision="32-true"),
)  # fmt: skip
