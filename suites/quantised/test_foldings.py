"""Factors that are folded into a norm and the layers that read it: all readers must have them, and what is no folding is left in peace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from casts_by_hand import to_int8
from float8_by_hand import LOW, normal
from torch import nn

import precheck


class Mixture(nn.Module):
    """A norm, a router and two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.exp2(2 * normal(64, seed=1)))
        self.router, self.one, self.other = nn.Linear(64, 2), nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.norm
        chosen = torch.softmax(self.router(h), -1)
        return (eight_bits(h, self.one) * chosen[:, :1] + eight_bits(h, self.other) * chosen[:, 1:]).to(LOW)


def eight_bits(h: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    weight = layer.weight.detach()
    given, scale = h.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(-1, keepdim=True) / 127
    return torch.round(h / given) @ torch.round(weight / scale).t() * given * scale.t()


def smoothed(readers: int, how: str) -> precheck.Report:
    """Folds what SmoothQuant does into the norm and the first so many of its readers, in place, and runs the model."""
    torch.manual_seed(0)
    with torch.no_grad(), precheck.watch() as report:
        model, x = Mixture(), normal(16, 64)
        layers = [model.one, model.other, model.router]
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * model.norm
        greatest, weights = h.abs().amax(0), torch.stack([layer.weight.abs().amax(0) for layer in layers]).amax(0)
        smooth = greatest.pow(0.5) / weights.clamp(min=1e-5).pow(0.5)
        if how == "inverse":
            model.norm.mul_(smooth.reciprocal())
        else:
            model.norm.div_(smooth)
        for layer in layers[:readers]:
            layer.weight.mul_(smooth.view(1, -1))
        model(x)
    return report


@pytest.mark.parametrize("how", ["quotient", "inverse"])
def test_all_readers_of_a_smoothed_norm_are_smoothed(how: str) -> None:
    assert not smoothed(3, how).findings


@pytest.mark.parametrize("how", ["quotient", "inverse"])
def test_a_reader_that_is_not_smoothed_is_found(how: str) -> None:
    (error,) = smoothed(2, how).errors
    assert error.rule == "wrong-scale"
    assert "the channels of this input were divided by factors. The weight of another layer multiplies by them again" in error.message
    line = Path(__file__).read_text(encoding="utf8").splitlines()[int(error.source.rpartition(":")[2]) - 1]
    assert line.strip() == "chosen = torch.softmax(self.router(h), -1)"


def standardised() -> torch.Tensor:
    """Features over their spread go through a network, whose output is multiplied by the same spread."""
    x, first, last = normal(32, 16) * torch.exp2(normal(16, seed=1)), normal(16, 64, seed=2) / 4, normal(64, 16, seed=3) / 8
    spread = x.std(0)
    return (torch.tanh(x / spread @ first) @ last * spread).to(LOW)


def largest_is_one() -> torch.Tensor:
    """The same with the greatest magnitude of each channel, in int8 inside."""
    x, first, last = normal(32, 16) * torch.exp2(normal(16, seed=1)), normal(16, 64, seed=2) / 4, normal(64, 16, seed=3) / 8
    greatest = x.abs().amax(0)
    held = torch.tanh(x / greatest @ first)
    sx, sw = held.abs().amax(1, keepdim=True) / 127, last.abs().amax(0, keepdim=True) / 127
    return (torch.round(held / sx) @ torch.round(last / sw) * sx * sw * greatest).to(LOW)


def multiplied_by_inverses() -> torch.Tensor:
    """Quantised by the inverse of a scale, dequantised by the scale, and the result quantised again for another product."""
    x, w = normal(32, 64), normal(48, 64, seed=1)
    scale = x.abs().amax(0) / 127
    again = torch.round(x * scale.reciprocal()) * scale
    sx, sw = again.abs().amax(1, keepdim=True) / 127, w.abs().amax(1, keepdim=True) / 127
    return torch.softmax(torch.round(again / sx) @ torch.round(w / sw).t() * sx * sw.t() / 8, -1).to(LOW)


def scale_in_the_weight() -> torch.Tensor:
    """The scale of an input's channels is folded into the weight beforehand."""
    x, w = normal(32, 64), normal(48, 64, seed=1)
    scale = x.abs().amax(0) / 127
    held = w * scale
    sw = held.abs().amax(1, keepdim=True) / 127
    return torch.softmax(torch.round(x / scale) @ torch.round(held / sw).t() * sw.t() / 8, -1).to(LOW)


def with_a_bias() -> torch.Tensor:
    """A layer is smoothed before ReLU, its bias too."""
    x, up, bias, down = normal(16, 32), normal(64, 32, seed=1) / 6, normal(64, seed=2), normal(32, 64, seed=3) / 8
    smooth = (x @ up.t() + bias).relu().abs().amax(0).sqrt() + 0.1
    held, weight = nn.functional.linear(x, up / smooth[:, None], bias / smooth).relu(), down * smooth
    sx, sw = held.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1, keepdim=True) / 127
    return torch.softmax(torch.round(held / sx) @ torch.round(weight / sw).t() * sx * sw.t(), -1).to(LOW)


@pytest.mark.parametrize("program", [standardised, largest_is_one, multiplied_by_inverses, scale_in_the_weight, with_a_bias])
def test_factors_that_are_meant_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings


def with_divided_channels(*, skip: bool, paired: bool = True) -> torch.Tensor:
    """A norm that is divided by factors, and a layer of codes that multiplies by them. `skip`: whether what is added behind the layer is multiplied
    again. `paired`: whether the weight has the factors."""
    x, w, gain, shift = normal(16, 32), normal(32, 32, seed=1) / 6, 1 + 0.3 * normal(32, seed=2), normal(32, seed=4)
    factors = torch.exp2(1.5 * normal(32, seed=3))
    h = nn.functional.layer_norm(x, (32,), gain / factors, shift / factors)
    codes, scale = to_int8(w * factors if paired else w, 1)
    return (h @ (codes.float() * scale).t() + (h * factors if skip else h)).to(LOW)


@pytest.mark.parametrize("skip", [True, False])
def test_what_is_added_to_divided_channels_is_divided_too(skip: bool) -> None:
    with precheck.watch() as report:
        with_divided_channels(skip=skip)
    assert bool(report.findings) != skip
    for error in report.findings:
        assert error.rule == "wrong-scale"
        assert "the channels of one term of this sum were divided by factors, which a weight multiplies by again" in error.message


def test_a_division_that_nothing_takes_back_may_be_meant() -> None:
    with precheck.watch() as report:
        with_divided_channels(skip=False, paired=False)
    assert not report.findings
