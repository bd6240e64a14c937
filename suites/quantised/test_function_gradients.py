"""Gradients that an autograd Function makes of codes, beside the derivative of its forward product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from float8_by_hand import E4M3, E5M2, LOW, normal
from frozen import watched
from torch import nn

Products = Callable[..., torch.Tensor]


def quantised(t: torch.Tensor, dims: int | tuple[int, ...], kind: torch.dtype = E4M3) -> tuple[torch.Tensor, torch.Tensor]:
    scale = t.float().abs().amax(dims, keepdim=True) / torch.finfo(kind).max
    return (t.float() / scale).to(kind).float(), scale


class Linear(torch.autograd.Function):
    """A linear layer in float8. `of_x` and `of_w` make the gradients, of codes and scales of their two operands."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, rows: bool, of_x: Products, of_w: Products) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.given = rows, of_x, of_w
        (qx, sx), (qw, sw) = (quantised(each, 1 if rows else (0, 1)) for each in (x, w))
        return (qx @ qw.t() * sx * sw.t()).to(LOW)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, w), g, (rows, of_x, of_w) = ctx.saved_tensors, gradients[0], ctx.given
        (qg, sg), (qw, sw) = quantised(g, 1 if rows else (0, 1), E5M2), quantised(w, 0 if rows else (0, 1))
        dx = of_x(qg, sg, qw, sw)
        (qg, sg), (qx, sx) = quantised(g, 0 if rows else (0, 1), E5M2), quantised(x, 0 if rows else (0, 1))
        return dx.to(LOW), of_w(qg.t(), sg.t(), qx, sx).to(LOW), None, None, None


def right(a: torch.Tensor, sa: torch.Tensor, b: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    return a @ b * sa * sb


def trained(rows: bool, of_x: Products = right, of_w: Products = right) -> torch.Tensor:
    """The layer between two others, as a training step has it."""
    x, before = normal(48, 64).to(LOW), nn.Parameter((normal(64, 64, seed=5) / 8).to(LOW))
    w = nn.Parameter((normal(40, 64, seed=1) / 8).to(LOW))
    y = Linear.apply(nn.functional.gelu(x @ before), w, rows, of_x, of_w)  # type: ignore[no-untyped-call]
    (y.float() - normal(48, 40, seed=7)).square().mean().backward()
    assert w.grad is not None
    return w.grad


WRONG: dict[str, Products] = {
    "first forgotten": lambda a, sa, b, sb: a @ b * sb,
    "second forgotten": lambda a, sa, b, sb: a @ b * sa,
    "both forgotten": lambda a, sa, b, sb: a @ b,
    "first not dequantised": lambda a, sa, b, sb: a @ (b * sb),
    "second not dequantised": lambda a, sa, b, sb: a * sa @ b,
    "divided": lambda a, sa, b, sb: a @ b * sa / sb,
    "multiplied twice": lambda a, sa, b, sb: a @ b * sa * sb * sb,
}


@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "rows"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_scale_that_is_wrong_in_a_backward_pass_is_found(wrong: Products, rows: bool) -> None:
    """In the gradient of the input and in that of the weight, each alone."""
    for given in ({"of_x": wrong}, {"of_w": wrong}):
        error = watched(lambda _, given=given: trained(rows, **given), True).errors[0]  # type: ignore[misc]
        assert error.rule == "wrong-scale"
        assert error.phase == "backward"


def test_a_gradient_of_something_else_is_found() -> None:
    error = watched(lambda _: trained(True, of_x=lambda a, sa, b, sb: (a @ b * sa * sb).flip(0)), True).errors[0]
    assert "the derivative of the forward product gives another gradient of the input: what is returned here is off by 1" in error.message


def constant(a: torch.Tensor, sa: torch.Tensor, b: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    return right(a, sa, b, sb) * 0.3


@pytest.mark.parametrize("given", [right, constant], ids=["as it is", "times a constant"])
def test_gradients_that_only_rounding_changes_are_left_in_peace(given: Products) -> None:
    """So is a factor that the program means."""
    for rows in (False, True):
        assert not watched(lambda _, rows=rows: trained(rows, given, given), False).findings  # type: ignore[misc]


class OfCodes(torch.autograd.Function):
    """A product of codes, whose scales are multiplied by outside: its gradients are in the unit of the codes."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (a, b), g = ctx.saved_tensors, gradients[0]
        return g @ b, g.t() @ a


def test_gradients_of_codes_have_no_scale() -> None:
    def program(_: bool) -> torch.Tensor:
        x, w = normal(32, 64).requires_grad_(), (normal(40, 64, seed=1) / 8).requires_grad_()
        codes = []
        for each in (x, w):
            scale = each.detach().abs().amax() / 7
            scaled = each / scale
            codes.append((scaled + (scaled.round() - scaled).detach(), scale))
        (a, sa), (b, sb) = codes
        (OfCodes.apply(a, b) * (sa * sb)).square().mean().backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        return w.grad

    assert not watched(program, False).findings


def test_functions_are_as_they_were_after_a_block() -> None:
    bound, before = Linear.apply, dict(vars(torch.autograd.function.Function.__mro__[1]))
    watched(lambda _: bound(normal(16, 32), normal(16, 32), True, right, right), False)  # type: ignore[no-untyped-call]
    assert dict(vars(torch.autograd.function.Function.__mro__[1])) == before
