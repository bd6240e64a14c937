"""Fast Hadamard transforms are followed in every form in which they are written, and what is added to codes must be in their unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks_by_hand import hadamard
from float8_by_hand import E4M3, LOW, channels, normal, rows
from fourth_recipes import butterfly
from torch import nn

import precheck

Transform = Callable[[torch.Tensor], torch.Tensor]


def two_buffers(x: torch.Tensor) -> torch.Tensor:
    """As QuaRot writes it: from one buffer into another, and back."""
    given = x.clone().reshape(-1, x.shape[-1], 1)
    made = given.clone()
    while given.shape[1] > 1:
        given = given.view(given.shape[0], given.shape[1] // 2, 2, given.shape[2])
        made = made.view(given.shape)
        made[:, :, 0, :] = given[:, :, 0, :] + given[:, :, 1, :]
        made[:, :, 1, :] = given[:, :, 0, :] - given[:, :, 1, :]
        made = made.view(given.shape[0], given.shape[1], -1)
        given, made = made, given
    return given.view(x.shape) / torch.tensor(x.shape[-1]).sqrt()


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Slices of one buffer, a stage after another."""
    made, step = x.clone(), 1
    while step < x.shape[-1]:
        for start in range(0, x.shape[-1], 2 * step):
            middle, end = start + step, start + 2 * step
            total, rest = made[..., start:middle] + made[..., middle:end], made[..., start:middle] - made[..., middle:end]
            made[..., start:middle], made[..., middle:end] = total, rest
        step *= 2
    return made * x.shape[-1] ** -0.5


def halves(x: torch.Tensor) -> torch.Tensor:
    """By recursion, from halves."""
    if x.shape[-1] == 1:
        return x
    size = x.shape[-1] // 2
    first, second = x[..., :size], x[..., size:]
    return torch.cat([halves(first + second), halves(first - second)], -1) / 2**0.5


def signed(x: torch.Tensor) -> torch.Tensor:
    return butterfly(x * torch.sign(normal(x.shape[-1], seed=8)))


def by_blocks(x: torch.Tensor) -> torch.Tensor:
    return butterfly(x.reshape(-1, 16)).view(x.shape)


def product(first: Transform, second: Transform) -> precheck.Report:
    x, w = normal(32, 64), channels()
    with precheck.watch() as report:
        (qx, sx), (qw, sw) = rows(first(x)), rows(second(w))
        torch.softmax((qx.float() @ qw.float().t()) * sx * sw.t() / 8, -1).to(LOW)
    return report


FORMS = (butterfly, two_buffers, in_place, halves, signed, by_blocks)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_operands_turned_by_different_transforms_are_found_and_by_the_same_are_not(form: Transform) -> None:
    other = by_blocks if form is not by_blocks else butterfly
    (error,) = product(form, other).errors
    assert error.rule == "wrong-scale"
    assert re.search(
        r"the operands of this product were rotated by Hadamard matrices at .*\.py:\d+ and .*\.py:\d+, which do not cancel", error.message
    )
    assert not product(form, form).findings


def test_a_transform_and_the_same_as_a_matrix_cancel() -> None:
    assert not product(butterfly, lambda x: x @ hadamard(64)).findings
    assert not product(in_place, two_buffers).findings
    assert product(butterfly, lambda x: x @ (torch.sign(normal(64, 1, seed=8)) * hadamard(64))).errors


@pytest.mark.parametrize("form", [butterfly, two_buffers, in_place, halves], ids=lambda form: form.__name__)
def test_what_only_looks_like_a_transform_is_left_in_peace(form: Transform) -> None:
    """Sums without their differences, beside a transform."""
    assert not product(lambda x: torch.cat([x[:, :32] + x[:, 32:], x[:, :32]], 1), form).findings


class Backward(torch.autograd.Function):
    """A weight gradient whose operands are turned along the batch by a fast transform: both, or the gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, both: bool) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.both = both
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x, w), g = ctx.saved_tensors, gradients[0]
        given = x.t().contiguous()
        (qg, sg), (qx, sx) = rows(butterfly(g.t().contiguous())), rows(butterfly(given) if ctx.both else given)
        return g @ w, qg.float() @ qx.float().t() * sg * sx.t(), None


@pytest.mark.parametrize("mixes", [False, True])
def test_in_a_backward_pass_one_turned_operand_is_found_also_if_the_model_mixes_so_itself(mixes: bool) -> None:
    for both in (True, False):
        w = (normal(48, 32, seed=1) / 6).requires_grad_()
        with precheck.watch() as report:
            x = normal(64, 32)
            y = Backward.apply(butterfly(x).abs() if mixes else x, w, both)
            (y * normal(64, 48, seed=2)).sum().backward()
        assert len(report.errors) == (not both)


def biased(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, *, fused: bool) -> precheck.Report:
    """A bias that is added to the sums of codes, before their scales."""
    with precheck.watch() as report:
        (qx, sx), (qw, sw) = rows(x), rows(w)
        sums = nn.functional.linear(qx.float(), qw.float(), bias) if fused else qx.float() @ qw.float().t() + bias
        torch.relu(sums * sx * sw.t()).to(LOW)
    return report


@pytest.mark.parametrize("fused", [False, True])
def test_a_term_must_be_in_the_unit_of_the_codes(fused: bool) -> None:
    x, w, bias = normal(32, 64), channels(), normal(64, seed=5) * 300
    (error,) = biased(x, w, bias, fused=fused).errors
    assert re.search(r"a term was added to a product of the codes of .* before it was multiplied by this scale, so the scale multiplies the term "
                     r"too: without any rounding the result is off by \d+%", error.message)  # fmt: skip
    assert not biased(x, w, bias.round(), fused=fused).findings  # whole numbers may be in the codes' unit
    mask = torch.where(torch.arange(64) > 50, -1e9 + 0.5, 0.0)
    assert not biased(x, w, mask, fused=fused).findings


def small_scales(smallest: float) -> precheck.Report:
    """Scales of small blocks in e4m3, with a smallest one."""
    blocks = (channels() * 0.004).view(64, 4, 16)
    with precheck.watch() as report:
        scale = (blocks.abs().amax(-1, keepdim=True) / 6).to(E4M3).float().clamp(min=smallest)
        torch.relu(normal(8, 64) @ (torch.round(blocks / scale) * scale).view(64, 64).t()).to(LOW)
    return report


def test_scales_that_become_zero_are_found_unless_they_get_a_smallest_one_of_the_format() -> None:
    (error,) = small_scales(1e-30).errors
    assert error.rule == "clipping"
    assert re.search(r"\d+% of these scales become 0 by this cast, .* they make \d+% of the norm of all scales", error.message)
    assert not small_scales(2.0**-9).findings


def zeros(guard: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> precheck.Report:
    x = normal(16, 64) * torch.where(torch.arange(16)[:, None] == 3, 0.0, 1.0)
    with precheck.watch() as report:
        scale = x.abs().amax(1, keepdim=True) / 448
        torch.relu(guard((x / scale).to(E4M3).float() * scale, scale)).to(LOW)
    return report


def test_rows_of_zeros_under_a_scale_of_zero_are_found_unless_their_nan_is_replaced() -> None:
    (error,) = zeros(lambda x, scale: x).errors
    assert "6.2% of the numbers are NaN, since they and their scale are 0, and 0 / 0 is NaN" in error.message
    assert not zeros(lambda x, scale: torch.nan_to_num(x)).findings
    assert not zeros(lambda x, scale: torch.where(scale > 0, x, torch.zeros(()))).findings


def test_a_scale_too_small_for_its_inverse_is_no_scale_of_zeros() -> None:
    """1e-39 / 448 is a number of float32, and its inverse is none: ROCm/TransformerEngine#737."""
    x = normal(16, 64).masked_fill(normal(16, 64, seed=1) < -1, 0) * torch.where(torch.arange(16)[:, None] == 3, 1e-39, 1.0)
    with precheck.watch(precision="32-true") as report:
        scales = 448 / x.abs().amax(1, keepdim=True)
        torch.relu((x * scales).to(E4M3).float() / scales)
    assert {each.rule for each in report.errors} <= {"underflow", "overflow", "wrong-scale"}
    assert report.errors[0].rule == "underflow"
    assert not any("0 / 0" in each.message for each in report.errors)


def whole_tensor(times: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> precheck.Report:
    """A weight under one scale, whose product is dequantised."""
    w = channels()
    with precheck.watch() as report:
        by = 448 / w.abs().amax()
        torch.softmax(times(normal(8, 64) @ (w * by).to(E4M3).float().t(), by), -1).to(LOW)
    return report


def test_one_scale_that_is_multiplied_by_where_it_had_to_be_divided_by() -> None:
    (error,) = whole_tensor(lambda y, by: y * by).errors
    assert re.search(
        r"the scale of the codes of .* is used the wrong way round, .* which is that scale squared", error.message
    )
    assert not whole_tensor(lambda y, by: y / by).findings
    assert not whole_tensor(lambda y, by: y / (by * 8)).findings  # with the temperature of attention
