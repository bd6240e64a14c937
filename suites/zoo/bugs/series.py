"""Series: means over a window that moves, the level and spread of one, and weights that are averaged over training."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def rolling_mean(series: torch.Tensor, window: int, running: bool) -> torch.Tensor:
    """Means over the last `window` values: of each window anew, or by one sum that values enter and leave."""
    if not running:
        return series.unfold(0, window, 1).mean(-1)
    total, out = series[:window].sum(), []
    out.append(total / window)
    for entering, leaving in zip(series[window:], series[:-window], strict=True):
        total = total + entering - leaving  # culprit: window-after-a-spike
        out.append(total / window)
    return torch.stack(out)


def smoothed(dtype: torch.dtype, running: bool, spike: float = 9.2e4) -> torch.Tensor:
    """Means of five after a spike, of numbers near 5e-5: what the sum lost while the spike was in it stays lost. Off by 100 % and more."""
    series = 5e-5 * (1 + 0.1 * normal(60))
    series[9] = spike
    return rolling_mean(series.to(dtype), 5, running)[20:]


class LevelAndSpread:
    """What a forecaster takes off a series and divides it by, learnt from pieces of it."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def learn(self, piece: torch.Tensor) -> None:
        piece = piece if self.dtype is None else piece.to(self.dtype)
        self.count += piece.numel()
        self.total = self.total.to(piece.dtype) + piece.sum()
        self.squares = self.squares.to(piece.dtype) + piece.square().sum()  # culprit: spread-of-sales

    def __call__(self, series: torch.Tensor) -> torch.Tensor:
        level = self.total / self.count
        spread = (self.squares / self.count - level.square()).clamp_min(1e-6).sqrt()  # culprit: spread-of-sales
        return (series - level.to(series.dtype)) / spread.to(series.dtype)


def forecaster_inputs(dtype: torch.dtype, counted: torch.dtype | None, most: float = 200.0) -> torch.Tensor:
    """Sales of up to two hundred in half, scaled; their squares add up to more than half holds, and every input is nought. Off by 100 %."""
    sales = (most * uniform(6, 40)).to(LOW).to(dtype)
    scaler = LevelAndSpread(counted)
    for piece in sales:
        scaler.learn(piece)
    return wider(scaler(sales))


class AveragedWeights:
    """A copy of a network that follows it slowly, weight by weight."""

    def __init__(self, network: nn.Module, decay: float, kept: torch.dtype) -> None:
        self.average, self.decay = copy.deepcopy(network).to(kept), decay

    @torch.no_grad()
    def follow(self, network: nn.Module) -> None:
        for mine, theirs in zip(self.average.parameters(), network.parameters(), strict=True):
            mine.data.copy_(mine.data * self.decay + theirs.data.to(mine.dtype) * (1 - self.decay))  # culprit: average-that-lags


def averaged(dtype: torch.dtype, kept: torch.dtype, decay: float = 0.9999, steps: int = 400) -> torch.Tensor:
    """The average of a layer in half that moves by three times its size; a step of the average is below its spacing. Off by 12 %."""
    layer = nn.Linear(8, 6, bias=False)
    with torch.no_grad():
        layer.weight.copy_(0.2 * (normal(6, 8)).to(LOW))
    layer.to(dtype)
    average = AveragedWeights(layer, decay, kept)
    goal = 0.6 * normal(6, 8, seed=1)
    with torch.no_grad():
        layer.weight.copy_(goal)
    for _ in range(steps):
        average.follow(layer)
    return wider(next(average.average.parameters()))


BUGS = (
    Bug("window-after-a-spike", "pola-rs/polars#22936", ("absorption", "cancellation", "amplified-rounding"), "aten.add.Tensor",
        lambda: smoothed(WIDE, True), lambda: smoothed(WIDE, False), precision="32-true"),
    Bug("spread-of-sales", "sktime/pytorch-forecasting#528", ("overflow", "nan"), "aten.sum.default", lambda: forecaster_inputs(HALF, None),
        lambda: forecaster_inputs(HALF, WIDE)),
    Bug("average-that-lags", "konpatp/diffae#16", ("absorption",), "aten.add.Tensor", lambda: averaged(HALF, HALF),
        lambda: averaged(HALF, WIDE)),
)  # fmt: skip
