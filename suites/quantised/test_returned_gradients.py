"""Gradients that Functions return whose forward pass is no product: casts, convolutions, layers that are fused. A scale must cancel in them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from float8_by_hand import E4M3, E5M2, normal
from frozen import watched
from torch import nn

Gradient = tuple[torch.Tensor, torch.Tensor]
Used = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rounded(t: torch.Tensor, kind: torch.dtype = E5M2) -> Gradient:
    scale = t.abs().amax().clamp(min=1e-12) / torch.finfo(kind).max
    return (t / scale).to(kind).float(), scale


class Cast(torch.autograd.Function):
    """Nothing in the forward pass, and a gradient in e5m2 in the backward pass, as torchao has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, used: Used) -> torch.Tensor:
        ctx.used = used
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.used(*rounded(gradients[0])), None


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, used: Used) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.used = used
        return nn.functional.conv2d(x, w, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w = ctx.saved_tensors
        codes, scale = rounded(gradients[0])
        one = torch.ones(())
        dx = ctx.used(torch.nn.grad.conv2d_input(x.shape, w, codes, padding=1), scale)
        return dx, torch.nn.grad.conv2d_weight(x, w.shape, ctx.used(codes, one) * scale, padding=1), None


class Fused(torch.autograd.Function):
    """Two layers in one Function. The gradient between them is in e5m2, and the weight in e4m3."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, used: Used) -> torch.Tensor:
        (qx, sx), (qw, sw) = rounded(x, E4M3), rounded(w, E4M3)
        between = qx @ qw.t() * sx * sw
        ctx.save_for_backward(x, w, v, between)
        ctx.used = used
        return torch.relu(between) @ v.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w, v, between = ctx.saved_tensors
        wide = gradients[0] @ v * (between > 0)
        (qg, sg), (qw, sw) = rounded(wide), rounded(w, E4M3)
        return ctx.used(qg @ qw * sg, sw), wide.t() @ x, gradients[0].t() @ torch.relu(between), None


def cast(used: Used) -> torch.Tensor:
    x, w = normal(32, 64).requires_grad_(), normal(48, 64, seed=1) / 8
    return gradient(Cast.apply(x @ w.t(), used), x)  # type: ignore[no-untyped-call]


def convolution(used: Used) -> torch.Tensor:
    x, w = normal(2, 8, 10, 10).requires_grad_(), normal(12, 8, 3, 3, seed=1) / 8
    return gradient(Convolution.apply(x, w, used), x)  # type: ignore[no-untyped-call]


def fused(used: Used) -> torch.Tensor:
    x, w, v = normal(32, 64).requires_grad_(), normal(48, 64, seed=1) / 8, normal(40, 48, seed=5) / 8
    return gradient(Fused.apply(x, w, v, used), x)  # type: ignore[no-untyped-call]


def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (nn.functional.silu(y) * normal(*y.shape, seed=3)).sum().backward()
    assert x.grad is not None
    return x.grad


def times(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return codes * scale


programs = pytest.mark.parametrize("program", [cast, convolution, fused])


@programs
def test_a_scale_that_is_forgotten_is_found_where_the_gradient_is_made(program: Callable[[Used], torch.Tensor]) -> None:
    error = watched(lambda wrong: program(lambda codes, scale: codes if wrong else codes * scale), True).errors[0]
    assert (error.rule, error.phase) == ("wrong-scale", "backward")
    assert "a scale is missing here" in error.message


@programs
def test_a_gradient_without_scales_is_left_in_peace(program: Callable[[Used], torch.Tensor]) -> None:
    assert not watched(lambda _: program(times), False).findings


@programs
def test_a_factor_of_a_gradient_may_be_meant(program: Callable[[Used], torch.Tensor]) -> None:
    assert not watched(lambda _: program(lambda codes, scale: codes * scale * -0.3), False).findings


class Sent(torch.autograd.Function):
    """Codes of a gradient go back as they are. Their scale is kept for the Function before."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        ctx.scales = scales
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        codes, scale = rounded(gradients[0])
        ctx.scales.append(scale)
        return codes, None


class Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        ctx.scales = scales
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.scales.pop(), None


def test_codes_may_go_from_one_function_to_another() -> None:
    """As tokens of experts do that travel in float8 in both directions."""

    def program(_: bool) -> torch.Tensor:
        x, scales = normal(32, 64).requires_grad_(), list[torch.Tensor]()
        travelled = Sent.apply(Received.apply(x, scales).flip(0), scales)  # type: ignore[no-untyped-call]
        return gradient(travelled @ normal(64, 48, seed=1), x)

    assert not watched(program, False).findings


def test_a_scale_may_be_taken_out_by_the_optimizer() -> None:
    def program(_: bool) -> torch.Tensor:
        x, scales = normal(32, 64).requires_grad_(), list[torch.Tensor]()
        made = gradient(Sent.apply(x, scales) @ normal(64, 48, seed=1), x)  # type: ignore[no-untyped-call]
        return x.detach() - 0.1 * made * scales.pop()

    assert not watched(program, False).findings


class Learned(torch.autograd.Function):
    """A learned step in float8. Its gradient is a sum of codes, in whose unit it is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        codes = (x / scale).clamp(-448, 448).to(E4M3).float()
        ctx.save_for_backward(x, scale, codes)
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, scale, codes = ctx.saved_tensors
        g = gradients[0]
        return g, (g * (codes - x / scale)).sum().view(scale.shape) + (g * codes).mean()


def test_the_gradient_of_a_step_is_in_the_unit_of_codes() -> None:
    def program(_: bool) -> torch.Tensor:
        x = normal(32, 64).requires_grad_()
        scale = nn.Parameter(x.detach().abs().amax() / 448)
        y = Learned.apply(x, scale)  # type: ignore[no-untyped-call]
        (y @ normal(64, 48, seed=1)).square().mean().backward()
        assert scale.grad is not None
        return scale.grad

    assert not watched(program, False).findings
