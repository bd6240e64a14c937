"""Metrics of a validation, and forecasts on their way back to physical units."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Pearson:
    """A metric of correlation that a training framework has cast along with the model: its five states are sums over all batches."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.seen, self.mean_x, self.mean_y, self.spread_x, self.spread_y, self.both = torch.zeros(6, dtype=dtype)

    def update(self, x: torch.Tensor, y: torch.Tensor) -> None:
        x, y = x.to(self.seen.dtype), y.to(self.seen.dtype)
        count = self.seen + len(x)
        mean_x = (self.seen * self.mean_x + x.sum()) / count  # culprit: metric-states
        mean_y = (self.seen * self.mean_y + y.sum()) / count  # culprit: metric-states
        self.spread_x += ((x - mean_x) * (x - self.mean_x)).sum()  # culprit: metric-states
        self.spread_y += ((y - mean_y) * (y - self.mean_y)).sum()  # culprit: metric-states
        self.both += ((x - mean_x) * (y - self.mean_y)).sum()  # culprit: metric-states
        self.seen, self.mean_x, self.mean_y = count, mean_x, mean_y

    def compute(self) -> torch.Tensor:
        spread_x, spread_y, both = (each / (self.seen - 1) for each in (self.spread_x, self.spread_y, self.both))
        return both / (spread_x * spread_y).sqrt()


def correlation(dtype: torch.dtype, batches: int = 100) -> torch.Tensor:
    """Of temperatures in kelvins: 400 of them add up to more than half precision holds."""
    metric, x = Pearson(dtype), normal(batches, 4)
    y = 0.2 * x + normal(batches, 4, seed=1)
    for one, other in zip(x, y, strict=True):
        metric.update(280 + 10 * one, 280 + 10 * other)
    return metric.compute()


def mean_error(wide: bool) -> torch.Tensor:
    """The mean error of a whole validation set, as one sum over 100000 predictions, divided by their number."""
    truth = normal(100_000)
    told = (truth + 0.9 * normal(100_000, seed=1)).half()
    told, truth = (told.float(), truth) if wide else (told, truth.half())
    return torch.sum(torch.abs(told - truth)) / len(truth)  # culprit: validation-error


class Weather(nn.Module):
    """A step of a forecast, back in kelvins and pascals: denormalised in half precision, then widened for the file."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.step = wide, nn.Parameter(torch.eye(3))
        self.units = {0: (278.0, 21.0), 1: (96_000.0, 9_500.0), 2: (0.1, 5.0)}

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        told = state @ self.step
        told = told.float() if self.wide else told.clone()
        for channel, (mean, deviation) in self.units.items():
            told[:, channel] = told[:, channel] * deviation + mean  # culprit: late-widening
        return told.float()


def weather(wide: bool) -> dict[str, Any]:
    return {"model": Weather(wide), "inputs": (normal(32, 3),), "precision": "16-true"}


def fields(wide: bool) -> torch.Tensor:
    return Weather(wide).half()(normal(32, 3).half())


class Forecast(nn.Module):
    """Sales near a million that vary by a few hundred: the forecast is unscaled in float32, and cast to the model's dtype again."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept, self.head = kept, nn.Parameter(0.2 * normal(16, 4))

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        level, spread = past.mean(-1, keepdim=True), past.std(-1, keepdim=True)
        told = ((past - level) / spread).to(self.head.dtype) @ self.head
        unscaled = told.float() * spread + level
        return unscaled if self.kept else unscaled.to(self.head.dtype)  # culprit: unscaled-forecast


def forecast(kept: bool) -> torch.Tensor:
    """How much more than last week is to be sold."""
    past = 1_000_000 + 300 * normal(8, 16, seed=1)
    return Forecast(kept).to(LOW)(past).float() - past[:, -1:]


BUGS = (
    Bug("metric-states", "Lightning-AI/torchmetrics#1561", ("cancellation", "absorption", "overflow", "nan"), "aten.sub.Tensor or aten.add_.Tensor",
        lambda: correlation(HALF), lambda: correlation(WIDE)),
    Bug("validation-error", "datamol-io/graphium#406", ("overflow",), "aten.sum.default", lambda: mean_error(False), lambda: mean_error(True)),
    Bug("late-widening", "ecmwf/WeatherGenerator#2046", ("overflow",), "aten.add.Tensor", lambda: fields(False), lambda: fields(True),
        module="Weather", measured=weather),
    Bug("unscaled-forecast", "amazon-science/chronos-forecasting#532", ("amplified-rounding", "cancellation", "absorption"),
        "aten._to_copy.default", lambda: forecast(False), lambda: forecast(True), module="Forecast"),
)  # fmt: skip
