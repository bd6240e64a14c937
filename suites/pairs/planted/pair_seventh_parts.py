"""The seventh batch, second part: dilated filters, forecasts by patches, products of eight bits.

One pair was replaced, which could not run: an exported graph that has float32 fixed in it, since the code asks for it, runs in no other format.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W, HEADS, SIZE = 24, 3, 8


class Dilated(nn.Module):
    def __init__(self, rate: int, **ways: Any) -> None:
        super().__init__()
        self.ways, self.rate, self.filter = ways, rate, nn.Conv2d(6, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.rate + (1 if self.ways.get("wider") else 0)
        padded = F.pad(x, (rate,) * 4, mode="reflect" if self.ways.get("mirrored") else "constant")
        weight, bias = self.filter.weight, self.filter.bias
        if self.ways.get("form") == "windows":
            windows = F.unfold(padded, 3, dilation=rate)
            return (weight.flatten(1).to(windows.dtype) @ windows).unflatten(-1, x.shape[2:]) + bias[:, None, None].to(windows.dtype)
        return F.conv2d(padded, weight, bias, dilation=rate)


class Segmenter(nn.Module):
    """Branches that see further and further, joined, and made larger."""

    def __init__(self, at: int = 1, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.ways, self.stem = ways, nn.Conv2d(3, 6, 3, 2, 1)
        self.branches = nn.ModuleList(Dilated(rate, **(ways if number == at else form)) for number, rate in enumerate((1, 2, 3)))
        self.project, self.norm, self.head = nn.Conv2d(15, 8, 1), nn.GroupNorm(8, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        parts = [branch(x) for branch in self.branches]
        joined = torch.cat(parts[::-1] if self.ways.get("order") else parts, 1)
        bias = None if self.ways.get("no_bias") else self.project.bias
        y = F.silu(self.norm(F.conv2d(joined, self.project.weight, bias)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=bool(self.ways.get("corners")))
        return self.head(y)


def segmenter(last: bool = False, exported: bool = False, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other, image = spread(Segmenter()), Segmenter(**ways), torch.randn(2, 3, 12, 16)
    other.load_state_dict(model.state_dict())
    labels = torch.randint(0, 4, (2, 12, 16))
    if last:
        other = other.to(memory_format=torch.channels_last)
    made = torch.export.export(other, (image,)) if exported else other
    return model, made, image, {"loss": lambda out: F.cross_entropy(out.float(), labels)}


class Forecaster(nn.Module):
    """Each series is normalised by itself, cut into patches that overlap, and its forecast is put back on its own scale."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.gain, self.shift = ways, nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.embed, self.place = nn.Linear(8, W), nn.Parameter(torch.zeros(5, W))
        self.norm, self.qkv, self.out, self.head = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(5 * W, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, other = self.ways, self.ways.get("form") == "other"
        wide = x.float()
        mean = wide.mean(1, keepdim=True).detach()
        if other:
            spread_ = ((wide - mean).square().sum(1, keepdim=True) / (x.shape[1] - (1 if ways.get("corrected") else 0)) + 1e-5).sqrt()
        else:
            spread_ = (wide.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        spread_ = (spread_.mean(-1, keepdim=True) if ways.get("one") else spread_).detach()
        level = ((wide - mean) / spread_).to(x.dtype) * self.gain.to(x.dtype) + self.shift.to(x.dtype)
        if other:
            patches = level.mT[..., torch.arange(5)[:, None] * 4 + torch.arange(8)]
        else:
            patches = level.mT.unfold(-1, 8, 4)
        y = self.embed(patches) + self.place.to(patches.dtype)
        q, k, v = self.qkv(self.norm(y)).unflatten(-1, (3, HEADS, SIZE)).permute(3, 0, 1, 4, 2, 5)
        if other:
            scores = torch.einsum("bchid,bchjd->bchij", q, k).float() / math.sqrt(SIZE)
            made = torch.einsum("bchij,bchjd->bchid", scores.softmax(-1).to(v.dtype), v)
        else:
            made = F.scaled_dot_product_attention(q, k, v)
        y = y + self.out(made.transpose(2, 3).flatten(3))
        y = self.head((y.mT if ways.get("columns") else y).flatten(2)).float().mT
        if not ways.get("left"):
            y = (y - self.shift.float()) / (self.gain.float() + 1e-10)
        return y * spread_ + (0 if ways.get("centred") else mean)


def forecaster(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Forecaster()), Forecaster(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    x = 3 * torch.randn(2, 24, 3).cumsum(1) + 5
    return model, other, x, MEAN


class Eight(nn.Module):
    """A linear layer whose weights are whole numbers with a scale for each row; what comes in is coded for each token, and a gradient passes."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.bias = ways, nn.Parameter(torch.zeros(W))
        self.register_buffer("codes", torch.zeros(W, W))
        self.register_buffer("scale", torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, wide = self.ways, x.float()
        step = wide.detach().abs().amax(None if ways.get("whole") else -1, keepdim=True).clamp(min=1e-6) / (127 if not ways.get("seven") else 7)
        coded = (wide / step).round() * (step if ways.get("form") != "other" else 1)
        share = wide if ways.get("form") != "other" else wide / step
        coded = coded.detach() if ways.get("cut") else share + (coded - share).detach()
        scale, codes = self.scale.float(), self.codes.float()
        if ways.get("columns"):
            y = coded @ (codes * scale).mT
        elif ways.get("form") == "other":
            y = coded @ codes.mT * step * scale
        else:
            y = coded @ (codes * scale[:, None]).mT
        return (y + self.bias.float() * (scale if ways.get("bias") else 1)).to(x.dtype)


class Eights(nn.Module):
    def __init__(self, at: int = 0, **ways: Any) -> None:
        super().__init__()
        form = {"form": ways.get("form")}
        self.embed, self.head = nn.Linear(7, W), nn.Linear(W, 5)
        self.first, self.second = (Eight(**(ways if number == at else form)) for number in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(F.gelu(self.first(F.gelu(self.embed(x))))))


def eights(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Eights())
    for layer in (model.first, model.second):
        layer.codes.copy_(torch.randint(-127, 128, (W, W)).float())
        layer.scale.copy_(torch.rand(W) * 0.004 + 0.001)
    other = Eights(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(6, 7), MEAN


healthy("segments", "windows for filters", lambda: segmenter(form="windows"))
healthy("segments", "channels last", lambda: segmenter(last=True))
healthy("segments", "exported", lambda: segmenter(exported=True))
healthy("segments", "no bias before a norm of each channel", lambda: segmenter(no_bias=True))
broken("segments", "another rate of dilation", lambda: segmenter(wider=True), "branches.1")
broken("segments", "mirrored at the border", lambda: segmenter(mirrored=True, at=2), "branches.2")
broken("segments", "branches joined in the other order", lambda: segmenter(order=True), "", "project")
broken("segments", "corners aligned", lambda: segmenter(corners=True), "", "head")
healthy("forecast", "patches by index, einsum", forecaster)
broken("forecast", "another correction of the deviation", lambda: forecaster(corrected=True), "", "embed")
broken("forecast", "one deviation for all series", lambda: forecaster(one=True), "", "embed")
broken("forecast", "patches and columns read the other way", lambda: forecaster(columns=True), "", "head")
broken("forecast", "gain and shift not undone", lambda: forecaster(left=True), "")
broken("forecast", "the mean not added again", lambda: forecaster(centred=True), "")
healthy("eight bits", "products of whole numbers", eights)
broken("eight bits", "one step for all tokens", lambda: eights(whole=True), "first")
broken("eight bits", "scales of columns", lambda: eights(columns=True, form=None, at=1), "second")
broken("eight bits", "the bias scaled too", lambda: eights(bias=True), "first")
broken("eight bits", "four bits of what comes in", lambda: eights(seven=True, at=1), "second")
broken("eight bits", "no gradient through the codes", lambda: eights(cut=True), "first", "embed", "")
