"""A patch forecaster of meter readings: calendar features from Unix time, instance normalisation, quantiles, and the stock that is left.

Readings and times are whole numbers, as meters give them.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
SERIES, CONTEXT, HORIZON, PATCH, WIDTH = 8, 336, 48, 12, 48
QUANTILES = (0.1, 0.5, 0.9)
HOUR, DAY, WEEK, YEAR = 3600, 86400, 604800, 31557600


def calendar(times: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Where in the day, the week and the year each time lies, as points on circles."""
    shares = [(times % period).float() / period for period in (DAY, WEEK, YEAR)]
    turns = 2 * math.pi * torch.stack(shares, -1)
    return torch.cat([turns.sin(), turns.cos()], -1).to(like.dtype)


def normalised(readings: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every series without its own mean, over its own deviation."""
    values = readings.float()
    mean = values.mean(-1, keepdim=True)
    deviation = (values - mean).square().mean(-1, keepdim=True).sqrt() + 1e-5
    return ((values - mean) / deviation).to(like.dtype), mean.float(), deviation.float()


def denormalised(forecast: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """The forecast in the units of the readings."""
    forecast = forecast.float()
    return (forecast * deviation.unsqueeze(-1).to(forecast.dtype) + mean.unsqueeze(-1).to(forecast.dtype)).float()


def stocks(start: torch.Tensor, demand: torch.Tensor) -> torch.Tensor:
    """What is left after each hour of a demand."""
    left = start.to(torch.float32)
    levels = []
    for hourly in demand.unbind(1):
        left = left - hourly
        levels.append(left)
    return torch.stack(levels, 1).float()


def quantile_loss(forecast: torch.Tensor, target: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The pinball loss over the sum of what was read, so that large meters do not outweigh small ones."""
    with torch.autocast(like.device.type, enabled=False):
        error = target.float().unsqueeze(-1) - forecast
        levels = torch.tensor(QUANTILES, dtype=error.dtype, device=error.device)
        pinball = torch.maximum(levels * error, (levels - 1) * error).sum((1, 2))
        total = target.float().sum(1)
        return (1000 * pinball / total.float()).mean()


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.meter = nn.Linear(4, WIDTH)
        self.clock = nn.Linear(6, WIDTH)
        self.patches = nn.Linear(PATCH, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(CONTEXT // PATCH * WIDTH, HORIZON * len(QUANTILES))
        self.demand = nn.Linear(CONTEXT // PATCH * WIDTH, HORIZON)

    def forward(
        self, readings: torch.Tensor, times: torch.Tensor, about: torch.Tensor, target: torch.Tensor, stock: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        meter = self.meter(about)
        clock = self.clock(calendar(times[:, ::PATCH], meter)) + meter.unsqueeze(1)
        values, mean, deviation = normalised(readings, clock)
        hidden = self.patches(values.unflatten(1, (-1, PATCH))) + clock
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = hidden.flatten(1)
        forecast = denormalised(self.head(hidden).unflatten(1, (HORIZON, -1)), mean, deviation)
        demand = 4 * functional.softplus(self.demand(hidden).float()).to(clock.dtype)
        left = stocks(stock, demand)
        return forecast, left, quantile_loss(forecast, target, clock)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Forecaster()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    start = 1_700_000_000 + torch.randint(YEAR, (SERIES, 1), generator=generator)
    times = start + HOUR * torch.arange(CONTEXT + HORIZON)
    level = torch.randint(8_000, 30_000, (SERIES, 1), generator=generator)
    daily = 25 * torch.sin(2 * math.pi * (times % DAY) / DAY)
    readings = (level + daily + 8 * torch.randn(times.shape, generator=generator)).round().long()
    stock = torch.randint(3000, 6000, (SERIES,), generator=generator)
    about = torch.randn(SERIES, 4, generator=generator)
    return {"readings": readings[:, :CONTEXT], "times": times[:, :CONTEXT], "about": about, "target": readings[:, CONTEXT:], "stock": stock}


def loss(output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return output[2] + 1e-4 * functional.relu(100 - output[1]).mean() + 1e-4 * output[1].mean()


optimizer = None
