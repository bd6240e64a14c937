"""Norms, moments and activations in a form that subtracts: variance, similarity, correlation, tails."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

LOW, WIDE = torch.bfloat16, torch.float32
LATE = (-6.5, -7.0, -8.0, -9.0, -10.0, -12.0)


class InstanceNorm(nn.Module):
    """A variance of 262144 in half: Inf, whose root is divided by; the map comes out flat, without a NaN."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float() if self.wide else x
        var = h.var((2, 3), keepdim=True, correction=0)  # culprit: infinite-variance
        return ((h - h.mean((2, 3), keepdim=True)) * torch.rsqrt(var + 1e-5)).to(x.dtype)


def checkers(wide: bool) -> dict[str, Any]:
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2 * 2.0 - 1
    return {"model": InstanceNorm(wide), "inputs": torch.stack([512 * board, 300 * board])[None], "precision": "16-true"}


class GroupNorm(nn.Module):
    """Two passes in float32, and one constant in bfloat16: 1/sqrt(N), by which a mean is off 0.3 %, and no difference to it is zero."""

    def __init__(self, constant: torch.dtype) -> None:
        super().__init__()
        self.constant = constant

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        share = torch.tensor(float(x.shape[-1] * x.shape[-2])).rsqrt().to(self.constant).float()  # culprit: rounded-reciprocal
        return ((x * share).sum(-1, keepdim=True) * share).sum(-2, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x.float() - self.mean(x.float())
        return (centred * torch.rsqrt(self.mean(centred**2) + 1e-5)).to(x.dtype)


def grouped(constant: torch.dtype) -> torch.Tensor:
    x = normal(1, 4, 24, 32)
    x[:, 1], x[:, 3] = 6.0, -3.0
    return GroupNorm(constant)(x.to(LOW))


class Correlation(nn.Module):
    """Local correlation of two images, by windows' means of squares less squares of means: 0.0025 from numbers near 2.25."""

    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.centred = centred

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.centred:
            x, y = x.float() - x.float().mean(), y.float() - y.float().mean()
        a, b = functional.avg_pool2d(x, 5, 1), functional.avg_pool2d(y, 5, 1)
        own = functional.avg_pool2d(x * x, 5, 1) - a * a  # culprit: window-correlation
        other = functional.avg_pool2d(y * y, 5, 1) - b * b  # culprit: window-correlation
        both = functional.avg_pool2d(x * y, 5, 1) - a * b  # culprit: window-correlation
        return -(both * both / (own * other + 1e-5)).mean()


def registered(centred: bool) -> dict[str, Any]:
    x = 1.5 + 0.05 * normal(1, 1, 32, 32)
    y = 1.5 + 0.8 * (x - 1.5) + 0.02 * normal(1, 1, 32, 32, seed=1)
    return {"model": Correlation(centred), "inputs": (x.to(LOW).float(), y.to(LOW).float()), "precision": "bf16-true"}


class Similarity(nn.Module):
    """Structural similarity under autocast: five blurred maps from one convolution, in bfloat16, of which two are taken from two."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        window = torch.exp(-(torch.arange(-5.0, 6.0) ** 2) / 4.5)
        self.register_buffer("window", torch.outer(window, window)[None, None] / window.sum() ** 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=LOW, enabled=torch.is_autocast_enabled("cpu") and not self.wide):
            maps = functional.conv2d(torch.cat([a, b, a * a, b * b, a * b]), self.window)  # culprit: blurred-moments
        x, y, xx, yy, xy = maps.chunk(5)
        own, other, both = xx - x**2, yy - y**2, xy - x * y  # culprit: blurred-moments
        return ((2 * x * y + 1e-4) * (2 * both + 9e-4) / ((x**2 + y**2 + 1e-4) * (own + other + 9e-4))).mean()


def images(wide: bool) -> dict[str, Any]:
    a = torch.round(256 * (0.7 + 0.02 * normal(1, 1, 48, 48))) / 256
    b = torch.round(256 * (a + 0.02 * normal(1, 1, 48, 48, seed=1))) / 256
    return {"model": Similarity(wide), "inputs": (a, b), "precision": "bf16-mixed"}


def similar(wide: bool) -> torch.Tensor:
    with torch.autocast("cpu", dtype=LOW):
        return Similarity(wide)(*images(wide)["inputs"]).float()


class Tail(nn.Module):
    """SiLU's negative side as x (1 - sigmoid(-x)): one less one from -6.3 on, where most gates of a trained model are."""

    def __init__(self, direct: bool) -> None:
        super().__init__()
        self.direct = direct

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.direct:
            return x * torch.sigmoid(x)
        y = torch.sigmoid(x.abs())
        return x * torch.where(x < 0, 1 - y, y)  # culprit: silu-tail


def gates(direct: bool) -> dict[str, Any]:
    return {"model": Tail(direct), "inputs": torch.round(32 * normal(64)) / 64 - 7, "precision": "bf16-true"}


def candidates(dtype: torch.dtype) -> torch.Tensor:
    """Logits of 5 to 9.75 as probabilities, for a ranking: twenty candidates share five values."""
    logits = (5 + torch.arange(20) / 4).to(LOW).to(dtype)
    return torch.sigmoid(logits).float()  # culprit: shared-scores


class Expm1(torch.autograd.Function):
    """The derivative as expm1(x) + 1, which is zero from -6.3 on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, direct: bool) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.direct = direct
        return torch.expm1(x)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return upstream[0] * (torch.exp(x) if ctx.direct else torch.expm1(x) + 1), None  # culprit: expm1-slope, expm1-slope-among-others


def slopes(direct: bool, *points: float) -> torch.Tensor:
    x = torch.tensor(points).to(LOW).requires_grad_()
    Expm1.apply(x, direct).float().sum().backward()
    assert x.grad is not None
    return x.grad.float() / torch.tensor(points).exp()


BUGS = (
    Bug("infinite-variance", "ml-explore/mlx#4228", ("overflow",), "aten.var.correction",
        lambda: InstanceNorm(False)(checkers(False)["inputs"].half()), lambda: InstanceNorm(True)(checkers(True)["inputs"].half()),
        module="InstanceNorm", measured=checkers),
    Bug("rounded-reciprocal", "tenstorrent/tt-metal#53846", ("amplified-rounding",), "aten._to_copy.default", lambda: grouped(LOW),
        lambda: grouped(WIDE), module="GroupNorm"),
    Bug("window-correlation", "Project-MONAI/MONAI#1868", ("cancellation",), "aten.sub.Tensor",
        lambda: Correlation(False)(*(each.to(LOW) for each in registered(False)["inputs"])),
        lambda: Correlation(True)(*(each.to(LOW) for each in registered(True)["inputs"])), module="Correlation", measured=registered),
    Bug("blurred-moments", "Lightning-AI/torchmetrics#1290", ("cancellation",), "aten.sub.Tensor", lambda: similar(False),
        lambda: similar(True), module="Similarity", measured=images),
    Bug("silu-tail", "skyzh/tiny-llm#161", ("cancellation",), "aten.rsub.Scalar", lambda: Tail(False)(gates(False)["inputs"].to(LOW)),
        lambda: Tail(True)(gates(True)["inputs"].to(LOW)), module="Tail", measured=gates),
    Bug("shared-scores", "huggingface/sentence-transformers#3893", ("decision-flip",), "aten.sigmoid.default",
        lambda: candidates(LOW), lambda: candidates(WIDE), harm=0,
        expected_miss="each score is right to a rounding; the order among them is for later code"),
    Bug("expm1-slope", "tenstorrent/tt-metal#55726", ("cancellation",), "aten.add.Tensor", lambda: slopes(False, *LATE),
        lambda: slopes(True, *LATE), phase="backward"),
    Bug("expm1-slope-among-others", "tenstorrent/tt-metal#55726", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: slopes(False, -1.0, *LATE), lambda: slopes(True, -1.0, *LATE), phase="backward"),
)  # fmt: skip
