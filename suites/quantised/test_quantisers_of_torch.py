"""Ops of torch that quantise, dequantise or apply scales by themselves are followed as the steps that they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # its ops are registered when it is imported
from casts_by_hand import to_float8
from float8_by_hand import E4M3, LOW, channels, normal
from frozen import watched
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, PerChannelMinMaxObserver

DECOMPOSED = torch.ops.quantized_decomposed


def channels_along_the_sum(bug: bool) -> torch.Tensor:
    """Scales of the rows are applied to columns, in training and after it."""
    w = channels()
    scale, zero = w.abs().amax(1) / 127, torch.zeros(64, dtype=torch.int32)
    dense = torch.fake_quantize_per_channel_affine(w, scale, zero, 1 if bug else 0, -128, 127)
    return (normal(8, 64) @ dense.t()).to(LOW)


def zero_point_forgotten(bug: bool) -> torch.Tensor:
    """Codes from 0 to 255 without the zero point that they need."""
    x = normal(32, 64) + 1
    low, high = x.amin(), x.amax()
    scale = (high - low) / 255
    zero = 0 if bug else int((-low / scale).round())
    return (torch.fake_quantize_per_tensor_affine(x, float(scale), zero, 0, 255) @ channels().t()).to(LOW)


def inverse_given_to_the_product(bug: bool) -> torch.Tensor:
    """torch._scaled_mm multiplies by its scales, and is given the inverse of one."""
    (qx, sx), (qw, sw) = to_float8(normal(16, 64), (0, 1)), to_float8(channels(), (0, 1))
    given = (1 / sx if bug else sx).view(()), sw.view(())
    y = torch._scaled_mm(qx, qw.t(), scale_a=given[0], scale_b=given[1], out_dtype=torch.bfloat16)
    return nn.functional.silu(y.float()).to(LOW)


def rows_of_the_product_exchanged(bug: bool) -> torch.Tensor:
    (qx, sx), (qw, sw) = to_float8(normal(16, 64), 1), to_float8(channels(), 1)
    y = torch._scaled_mm(qx, qw.t(), scale_a=sx, scale_b=(sw.roll(1, 0) if bug else sw).t(), out_dtype=torch.bfloat16)
    return nn.functional.silu(y.float()).to(LOW)


def exponent_of_the_other_block(bug: bool) -> torch.Tensor:
    """Powers of two by ldexp. Each block gets the exponent of the other one back."""
    blocks = normal(64, 2, 32) * torch.exp2(2 * normal(64, 2, 1, seed=1))
    exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True))[1]
    codes = torch.ldexp(blocks, 8 - exponent).to(E4M3)
    dense = torch.ldexp(codes.float(), (exponent.roll(1, 1) if bug else exponent) - 8)
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def scales_of_an_exported_graph(bug: bool) -> torch.Tensor:
    """The ops that torch.export writes: a weight is dequantised under the scales of its rows in the opposite order."""
    w = channels()
    scale, zero = w.abs().amax(1) / 127, torch.zeros(64, dtype=torch.int64)
    codes = DECOMPOSED.quantize_per_channel(w, scale, zero, 0, -127, 127, torch.int8)
    dense = DECOMPOSED.dequantize_per_channel(codes, scale.flip(0) if bug else scale, zero, 0, -127, 127, torch.int8)
    return (normal(8, 64) @ dense.t()).to(LOW)


FAULTS = {
    channels_along_the_sum: "clipping",
    zero_point_forgotten: "clipping",
    inverse_given_to_the_product: "wrong-scale",
    rows_of_the_product_exchanged: "wrong-scale",
    exponent_of_the_other_block: "wrong-scale",
    scales_of_an_exported_graph: "wrong-scale",
}


@pytest.mark.parametrize(("program", "rule"), FAULTS.items(), ids=lambda each: getattr(each, "__name__", each))
def test_a_fault_is_found_and_the_same_code_without_it_is_left_in_peace(program: Callable[[bool], torch.Tensor], rule: str) -> None:
    error = watched(program, True).errors[0]
    assert error.rule == rule
    assert error.source.rpartition(":")[0].endswith("test_quantisers_of_torch.py")
    assert not watched(program, False).findings


def test_training_with_fake_quantisation_is_left_in_peace() -> None:
    def program(_: bool) -> torch.Tensor:
        inputs = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        weights = FakeQuantize(observer=PerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
                               qscheme=torch.per_channel_symmetric, ch_axis=0)  # fmt: skip
        linear = nn.Linear(64, 48)
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.01)
        for step in range(4):
            optimizer.zero_grad()
            y = nn.functional.linear(inputs(normal(16, 64, seed=step).relu()), weights(linear.weight), linear.bias)
            y.square().mean().backward()
            optimizer.step()
        return y.detach()

    assert not watched(program, False).findings
