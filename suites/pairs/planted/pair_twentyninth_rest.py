"""The twenty-ninth batch, sixth part: pixels after pixels, cells with filters, forecasts.

The issues: the middle of a mask (j-min/PixelCNN 3), a mask turned round (iaf-vae 4), a branch after its gate (Conditional-PixelCNN-decoder 6), states
exchanged (nni 2842), the state that is read (SRN-DeblurNet 7), a spread that is not divided by (PyPOTS 453), an order of scale and shift
(Spatio-temporal-Diffusion-Point-Processes 9), a norm that is not undone (RevIN 2).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, ported
from pair_twentyninth import SECOND, family
from torch import nn


class Stacks(nn.Module):
    """Rows above and cells to the left, each with a gate. The rows tell the cells before their gate."""

    def __init__(self, first: bool = False, wrong: str = "", cut: bool = False) -> None:
        super().__init__()
        self.first, self.wrong, self.cut = first, wrong, cut
        self.above, self.left = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 16, (1, 3), padding=(0, 1))
        self.told, self.out = nn.Conv2d(16, 16, 1), nn.Conv2d(8, 8, 1)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        return b.tanh() * a.sigmoid() if self.wrong == "halves" else a.tanh() * b.sigmoid()

    def filtered(self, v: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wrong, taps = self.wrong, (1 if self.first or self.wrong == "strict" else 2) + (1 if self.wrong == "middle" else 0)
        if self.cut:
            high = F.conv2d(F.pad(v, (1, 1, 1, 0)), self.above.weight[:, :, :2], self.above.bias)
            row = F.conv2d(F.pad(h, (1, taps - 2)), self.left.weight[..., :taps], self.left.bias)
            return high, row
        rows = torch.tensor([1.0, 1.0, 0.0])[:, None].to(v.dtype)
        cells = (torch.arange(3) < taps).to(v.dtype)
        cells = cells.flip(0) if wrong == "turned" else cells
        high = F.conv2d(v, self.above.weight * rows, self.above.bias, padding=1)
        return high, F.conv2d(h, self.left.weight * cells, self.left.bias, padding=(0, 1))

    def forward(self, v: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high, row = self.filtered(v, h)
        lower = F.pad(high, (0, 0, 1, -1))
        told = self.told(lower if self.wrong != "same" else high)
        if self.wrong == "after":
            a = self.gated(lower)
            told = self.told(torch.cat([a, a], 1))
        made = self.out(self.gated(row + told))
        return self.gated(high), made if self.first else h + made


class Pixels(nn.Module):
    def __init__(self, cut: bool = False, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.top, self.into, self.last = top, nn.Conv2d(2, 8, 1), nn.Conv2d(8, 6, 1)
        self.layers = nn.ModuleList([Stacks(n == 0, wrong if n == 1 else "", cut) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = h = self.into(x)
        for number, layer in enumerate(self.layers):
            v, h = layer(h if self.top == "one" and number == 1 else v, h)
        return self.last(v + h if self.top == "both" else F.relu(h))


family("pixels after pixels", "filters that are cut", lambda cut=True, top="", wrong="": ported(
    Pixels(), Pixels(cut, top, wrong), numbers(2, 2, 5, 6)), {
    "the next cell is seen": ({"wrong": "middle", "cut": False}, SECOND, ""), "the cell itself is not seen": ({"wrong": "strict"}, SECOND, ""),
    "a mask turned round": ({"wrong": "turned", "cut": False}, SECOND, ""), "told after the gate": ({"wrong": "after"}, SECOND, ""),
    "halves of a gate exchanged": ({"wrong": "halves"}, SECOND, ""), "told by the same row": ({"wrong": "same"}, SECOND, ""),
    "cells for rows": ({"top": "one"}, TOP, ""),
})  # fmt: skip


class Filtering(nn.Module):
    """A cell with filters for products, whose memory tells the gates cell by cell."""

    def __init__(self, wrong: str = "", fused: bool = False) -> None:
        super().__init__()
        self.wrong, self.fused, self.conv, self.peep = wrong, fused, nn.Conv2d(11, 32, 3, padding=1), nn.Parameter(torch.zeros(3, 8, 1, 1))

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wrong = self.wrong
        if self.fused:
            weight = self.conv.weight
            made = F.conv2d(x, weight[:, :3], self.conv.bias, padding=1) + F.conv2d(h, weight[:, 3:], padding=1)
        else:
            made = self.conv(torch.cat([x, h], 1))
        i, f, o, g = made.chunk(4, 1)
        if wrong == "order":
            f, i, o, g = made.chunk(4, 1)
        i, f = (i + self.peep[0] * c).sigmoid(), (f + self.peep[1] * c + (1 if wrong == "bias" else 0)).sigmoid()
        new = f * c + i * (g.sigmoid() if wrong == "sigmoid" else g.tanh())
        o = (o + self.peep[2] * (c if wrong == "old" else new)).sigmoid()
        return o * (new if wrong == "linear" else new.tanh()), new


class Radar(nn.Module):
    """Pictures in a row; the memory of the first layer's cell is read by the last filter."""

    def __init__(self, fused: bool = False, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.fused, self.top, self.first, self.second, self.between = fused, top, Filtering("", fused), Filtering(wrong, fused), nn.Conv2d(8, 3, 1)
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero, top, made = x.new_zeros(len(x), 8, *x.shape[3:]), self.top, []
        h, c, g, d = zero, zero, zero, zero
        for n in range(x.shape[1]):
            h, c = self.first(x[:, n], *((c, h) if top == "states" else (h, c)))
            g, d = self.second(self.between(c if top == "between" else h), g.detach() if top == "cut" else g, d)
            made.append(g if top == "hidden" else d)
        if self.fused:
            return self.last(torch.stack(made, 1).flatten(0, 1)).unflatten(0, x.shape[:2])
        return torch.stack([self.last(each) for each in made], 1)


CELL = ("second",)
family("cells with filters", "two filters for one", lambda **bad: ported(Radar(), Radar(True, **bad), numbers(2, 4, 3, 5, 5)), {
    "gates in another order": ({"wrong": "order"}, CELL, ""), "the memory before": ({"wrong": "old"}, CELL, ""),
    "what is written by a sigmoid": ({"wrong": "sigmoid"}, CELL, ""), "states exchanged": ({"top": "states"}, TOP, ""),
    "the state for the memory": ({"top": "hidden"}, TOP, ""), "a state that is cut off": ({"top": "cut"}, TOP, ""),
})  # fmt: skip


class Undone(nn.Module):
    """The mean and the spread of a series are taken away, and given back to the forecast."""

    def __init__(self, wrong: str = "", back: str = "") -> None:
        super().__init__()
        self.wrong, self.back, self.gain, self.bias = wrong, back, nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def taken(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = x.mean(1, keepdim=True).detach(), (x.var(1, correction=1 if self.wrong == "one" else 0, keepdim=True) + 1e-5).sqrt().detach()
        y = x - mean if self.wrong == "spread" else (x - mean) / spread
        return y * self.gain + self.bias, mean, spread

    def given(self, y: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        y = y / (self.gain + 1e-10) - self.bias if self.back == "order" else (y - self.bias) / (self.gain + 1e-10)
        return (y + mean) * spread if self.back == "shift" else y * spread + mean


class Forecast(nn.Module):
    """A trend by means of five, and the rest; each has a product of its own over time."""

    def __init__(self, summed: bool = False, taps: bool = False, top: str = "", wrong: str = "", back: str = "") -> None:
        super().__init__()
        self.taps, self.summed, self.top, self.norm = taps, summed, top, Undone(wrong, back)
        self.trend, self.rest, self.mix = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(3, 3)

    def smooth(self, x: torch.Tensor) -> torch.Tensor:
        if self.top == "zeros":
            return F.avg_pool1d(x.mT, 5, 1, 2).mT
        padded = torch.cat([x[:, :1].expand(-1, 2, -1), x, x[:, -1:].expand(-1, 2, -1)], 1)
        if self.taps:
            return F.conv1d(padded.mT, torch.full((3, 1, 5), 0.2, dtype=x.dtype), groups=3).mT
        if self.summed:
            return sum(padded[:, n : n + x.shape[1]] for n in range(5)) / 5  # type: ignore[no-any-return]
        return F.avg_pool1d(padded.mT, 5, 1).mT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, mean, spread = self.norm.taken(x)
        trend, top = self.smooth(y), self.top
        rest = y if top == "whole" else y - trend
        made = self.mix(self.trend(trend.mT).mT + self.rest(rest.mT).mT)
        made = made.mT.reshape(made.shape) if top == "axes" else made
        return made if top == "kept" else self.norm.given(made, mean, spread)


NORM = ("norm",)
SERIES = numbers(3, 12, 3) * torch.tensor([0.5, 2.0, 1.5]) + torch.tensor([1.0, -2.0, 0.5])
family("forecasts of what is left", "sums of five", lambda **bad: ported(Forecast(), Forecast(True, **bad), SERIES), {
    "a spread that is not divided by": ({"wrong": "spread"}, NORM, ""), "a spread of one less": ({"wrong": "one"}, NORM, ""),
    "shift before scale": ({"back": "shift"}, NORM, ""), "a gain before a bias": ({"back": "order"}, NORM, ""),
    "a norm that is not undone": ({"top": "kept"}, TOP, ""), "zeros at the edge": ({"top": "zeros"}, TOP, ""),
    "the trend is not taken away": ({"top": "whole"}, TOP, ""),
}, a_filter={"taps": True})  # fmt: skip
