"""Hadamard matrices that a quantiser multiplies by must cancel: in the product of two operands, or by their transpose."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from blocks_by_hand import hadamard
from float8_by_hand import normal, rows
from layers_by_hand import model
from third_recipes import signed_turn, sizes_differ, turned, turned_on
from torch import nn

import precheck
from precheck.observe.shadow.quantisers.scales.rotations import is_hadamard


class Recipe(torch.autograd.Function):
    """A linear layer whose weight gradient is made of operands in float8, turned along the batch: both, or the gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, turns: str, dequantised: bool) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.turns, ctx.dequantised = turns, dequantised
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x, w), g, turn = ctx.saved_tensors, gradients[0], signed_turn(16)
        held = turned(g.t(), turn) if ctx.turns else g.t().contiguous()
        given = turned(x.t(), turn) if ctx.turns == "both" else x.t().contiguous()
        (qg, sg), (qx, sx) = rows(held), rows(given)
        if ctx.dequantised:
            product = ((qg.float() * sg).bfloat16() @ (qx.float() * sx).bfloat16().t()).float()
        else:
            product = qg.float() @ qx.float().t() * sg * sx.t()
        return g @ w, product, None, None


def trained(turns: str, dequantised: bool = False, mixing: torch.Tensor | None = None) -> precheck.Report:
    """One step; `mixing` is a matrix by which the model itself mixes its tokens."""
    x, w = normal(64, 32), (normal(48, 32, seed=1) / 6).requires_grad_()
    with precheck.watch() as report:
        y = Recipe.apply(x, w, turns, dequantised)
        y = y if mixing is None else mixing @ y
        (y * normal(64, 48, seed=2)).sum().backward()
    return report


@pytest.mark.parametrize("dequantised", [False, True])
def test_a_gradient_that_alone_is_turned_is_found_where_its_product_is_made(dequantised: bool) -> None:
    (error,) = trained("gradient", dequantised).errors
    assert error.rule == "wrong-scale"
    assert re.search(r"the derivative of the forward product gives another gradient of the weight: what is returned here is off by 146%, and "
                     r"rounding explains 3.\d%", error.message)  # fmt: skip
    assert not trained("both", dequantised).findings
    assert not trained("", dequantised).findings


def test_a_model_that_mixes_its_tokens_by_a_hadamard_matrix_is_left_in_peace() -> None:
    assert not trained("", mixing=signed_turn(64)).findings


def test_messages_say_where_was_turned() -> None:
    for program, said in (
        (turned_on, r"what was rotated at .*third_recipes.py:\d+ is rotated once more by the same Hadamard matrix; .* its transpose it would"),
        (sizes_differ, r"the operands of this product were rotated by Hadamard matrices at .*:\d+ and .*:\d+, which do not cancel: .* off by \d+%"),
    ):
        with precheck.watch() as report:
            program(True)
        assert re.search(said, report.errors[0].message)


class Turned(nn.Module):
    """int4 by rows, of a weight that was turned when it was packed."""

    def __init__(self, linear: nn.Linear, bug: bool) -> None:
        super().__init__()
        self.turn, self.bias, self.bug = signed_turn(linear.in_features), linear.bias, bug
        weight = linear.weight.detach() @ self.turn
        self.scale = weight.abs().amax(1, keepdim=True) / 7
        self.codes = torch.round(weight / self.scale).to(torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if self.bug else x @ self.turn) @ (self.codes.float() * self.scale).t() + self.bias


def test_a_layer_whose_weight_alone_is_turned_is_found_beside_its_original() -> None:
    made = model()
    for bug in (True, False):
        other = nn.Sequential(made[0], made[1], Turned(made[2], bug))
        report = precheck.quantised(made, other, normal(64, 128, seed=3))
        assert [error.module for error in report.errors] == ["2"] * bug
        if bug:
            said = r"2: its columns are rotated by an orthogonal matrix, such as a Hadamard matrix, and its input is not: the angles between its "
            assert re.search(said + r"rows are the weight's \(\d+%\), and its numbers are not", report.errors[0].message)


def test_what_is_a_hadamard_matrix() -> None:
    assert all(is_hadamard(signed_turn(size)) and is_hadamard(hadamard(size) * 8) for size in (2, 4, 16, 128))
    assert is_hadamard(torch.block_diag(hadamard(16), signed_turn(16)))
    assert not any(map(is_hadamard, (torch.eye(16), torch.ones(16, 16), normal(16, 16), hadamard(16).triu(), torch.zeros(4, 4))))
