"""Floats that a model rounds by arithmetic on their bits are judged as those that a cast rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.observe.shadow.probes.rounded_bits import bits_kept
from precheck.words import op_words

Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SHOWN = pytest.mark.parametrize("precision", [None, "32-true"])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nearest(x: torch.Tensor) -> torch.Tensor:
    """The low 13 bits rounded off, as a tensor core takes float32 in."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def cut(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & -0x10000).view(torch.float32)


class Model(nn.Module):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer, self.weight = layer, nn.Parameter(normal(64, 64, seed=1) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(x, self.weight.detach().T)


def classified(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(nearest(torch.relu(nearest(x) @ nearest(w))) @ nearest(w), -1)


def in_two_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three products of halves, which together are as right as float32."""
    x_high, w_high = nearest(x), nearest(w)
    return x_high @ w_high + x_high @ nearest(w - w_high) + nearest(x - x_high) @ w_high


def in_three_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    high = cut(w)
    middle = cut(w - high)
    return x @ high + x @ middle + x @ (w - high - middle)


def by_chance(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Noise as wide as what is cut off is added before."""
    for seed in range(6):
        x = 1.001 * x
        step = torch.ldexp(torch.ones_like(x), torch.frexp(x)[1] - 8) * x.sign()
        x = cut(x + step * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)))
    return x


def power_of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    most = x.abs().amax(-1, keepdim=True)
    return x / (most.view(torch.int32) & 0x7F800000).view(torch.float32)


def distances(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Of numbers that lie close together, far from nought."""
    x = 100 + x[:, :1]
    square = x.square().sum(-1)[:, None] + x.square().sum(-1) - 2 * nearest(x) @ nearest(x).T
    return torch.exp(-square / 18)


@SHOWN
@pytest.mark.parametrize("layer", [classified, in_two_parts, in_three_parts, by_chance, power_of_two])
def test_what_rounds_as_a_tensor_core_does_is_left_in_peace(layer: Layer, precision: str | None) -> None:
    with precheck.watch(precision=precision) as report:
        result = Model(layer)(normal(32, 64, seed=5))
    assert result.isfinite().all()
    assert not report.findings


def test_a_difference_of_products_of_rounded_numbers_is_told() -> None:
    with precheck.watch(precision="32-true") as report:
        Model(distances)(5 * normal(32, 64, seed=5))
    assert report.errors[0].rule == "cancellation"


def test_without_the_rounding_it_is_not() -> None:
    with precheck.watch(precision="32-true") as report:
        Model(lambda x, w: torch.exp(-(x[:, None, 0] - x[:, 0]).square() / 18))(100 + 5 * normal(32, 64, seed=5))
    assert not report.findings


def test_it_is_named_a_rounding_of_bits() -> None:
    assert op_words("aten.view.dtype", "float32") == "rounding of bits (aten.view)"


@SHOWN
def test_data_may_be_rounded(precision: str | None) -> None:
    with precheck.watch(precision=precision) as report:
        x = nearest(normal(32, 64, seed=5) + 100)
        apart = (x[:, None] - x).square().sum(-1)
    assert apart.isfinite().all()
    assert not report.findings


@pytest.mark.parametrize(
    ("change", "bits"),
    [
        (nearest, 11), (cut, 8), (lambda x: cut(x).to(torch.bfloat16), 8),
        (lambda x: x, 0),  # nothing is lost
        (lambda x: 2 * nearest(x), 0),  # another number
        (lambda x: nearest(x) + torch.ldexp(torch.ones_like(x), torch.frexp(x)[1] - 11) * x.sign(), 0),  # the number after the next
        (lambda x: torch.ldexp(torch.ones_like(x), torch.frexp(x)[1] - 1) * x.sign(), 0),  # a power of two
    ],
)  # fmt: skip
def test_the_bits_that_are_kept(change: Callable[[torch.Tensor], torch.Tensor], bits: int) -> None:
    x = normal(64)
    assert bits_kept(x, change(x)) == bits
    assert bits_kept(torch.zeros(4), torch.zeros(4)) == 0


def test_one_number_with_few_zero_bits_is_chance() -> None:
    one = torch.tensor([1.2345678])
    assert bits_kept(one, (one.view(torch.int32) & -0x2000).view(torch.float32)) == 0
