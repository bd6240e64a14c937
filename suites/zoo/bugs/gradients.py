"""Gradients that do not come, and gradients that come as zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform


class Casts:
    """One low copy of each weight, whatever the grad mode was when it was made."""

    def __init__(self, mode_aware: bool) -> None:
        self.mode_aware, self.copies = mode_aware, {}

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        key = (id(weight), self.mode_aware and torch.is_grad_enabled())
        if key not in self.copies:
            self.copies[key] = weight.to(torch.bfloat16)  # culprit: cast-cache
        return self.copies[key]


def recycled(mode_aware: bool) -> torch.Tensor:
    """A layer run once without autograd to make its own input, then again with it: the cached cast leads nowhere."""
    weight, bias, casts = nn.Parameter(normal(6, 6) / 3), nn.Parameter(torch.zeros(6)), Casts(mode_aware)
    x = normal(4, 6, seed=1).to(torch.bfloat16)
    with torch.no_grad():
        x = functional.linear(x, casts.of(weight))
    (functional.linear(x, casts.of(weight)).float() + bias).square().sum().backward()
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


class Head(nn.Module):
    """Keeps the low copy that validation made, and trains on with it."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.low = keeps, None
        self.weight, self.scale = nn.Parameter(normal(5, 8) / 3), nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.low is None or not self.keeps:
            self.low = self.weight.to(x.dtype)  # culprit: validated-first
        return functional.linear(x, self.low).float() * self.scale


def validated(keeps: bool) -> torch.Tensor:
    model = nn.Sequential(Head(keeps))
    x = normal(6, 8, seed=1).to(torch.bfloat16)
    with torch.no_grad():
        model(x)
    functional.cross_entropy(model(x), torch.arange(6) % 5).backward()
    gradient = model[0].weight.grad
    return torch.zeros(5, 8) if gradient is None else gradient


def faint_loss(scale: float) -> torch.Tensor:
    """float16 autocast without a loss scale, on a small loss."""
    model = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(normal(1, 8))
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(1e-3 * normal(32, 8, seed=1))  # culprit: faint-loss
    (scale * 1e-3 * (out.float() - 0.02).square().mean()).backward()  # culprit: faint-loss
    return model.weight.grad / scale


def pixels(scale: float) -> torch.Tensor:
    """A mean over many pixels and channels, backpropagated through half weights: each gets 1e-5 of a small difference."""
    model = nn.Linear(16, 16, bias=False).half()
    with torch.no_grad():
        model.weight.copy_(normal(16, 16) / 4)
    image = 1e-4 * normal(2000, 16, seed=1)
    out = model(image.half())  # culprit: mean-of-pixels
    (scale * (out.float() - image).square().mean()).backward()  # culprit: mean-of-pixels
    return model.weight.grad.float() / scale


class Gram(torch.autograd.Function):
    """A hand-written product whose backward pass chooses a dtype of its own, where the forward pass's reaches further."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.dtype = dtype
        low = x.bfloat16()
        return (low.T @ low).float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,), low = ctx.saved_tensors, (gradient + gradient.T).to(ctx.dtype)  # culprit: narrower-backward
        return (x.to(ctx.dtype) @ low).float(), None


def gram_gradient(dtype: torch.dtype) -> torch.Tensor:
    """Nothing steps: the gradient, widened again, is what the user gets."""
    x = (40 * normal(64, 8)).requires_grad_()
    Gram.apply(x, dtype).square().sum().backward()
    return x.grad


def trajectory(cached: bool) -> torch.Tensor:
    """A field that a solver asks 300 times. Its weights are cast once, and the 300 gradients of a cast are added up in bfloat16."""
    field, x = nn.Linear(12, 12), normal(24, 12, seed=3)
    with torch.no_grad():
        field.weight.copy_(normal(12, 12, seed=1) / 4)
        field.bias.zero_()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
        for _ in range(300):
            x = x + 0.01 * torch.tanh(field(x))  # culprit: solver-gradients
    functional.mse_loss(x, normal(24, 12, seed=2)).backward()
    return field.weight.grad


def widened_each_turn(each: bool) -> torch.Tensor:
    """A rate that is kept in bfloat16 and widened in each of 300 turns, which hands 300 gradients to what is low."""
    rate, state = (0.1 * uniform(64)).to(torch.bfloat16).requires_grad_(), uniform(64, seed=1)
    wide = rate.float()
    for _ in range(300):
        state = state - 0.01 * (rate.float() if each else wide) * state  # culprit: widened-each-turn
    state.square().sum().backward()
    return rate.grad


BUGS = (
    Bug("solver-gradients", "", ("accumulated-drift",), "aten.add.Tensor", lambda: trajectory(True), lambda: trajectory(False), phase="backward",
        module="Linear"),
    Bug("widened-each-turn", "", ("accumulated-drift",), "aten.add.Tensor", lambda: widened_each_turn(True), lambda: widened_each_turn(False),
        phase="backward"),
    Bug("cast-cache", "pytorch/pytorch#65766", ("missing-gradient",), "aten._to_copy.default", lambda: recycled(False), lambda: recycled(True)),
    Bug("validated-first", "NVIDIA/apex#132", ("missing-gradient",), "aten._to_copy.default", lambda: validated(True), lambda: validated(False),
        module="0"),
    Bug("faint-loss", "engichang1467/Open-Rig3R#35", ("gradient-underflow",), "aten.mm.default", lambda: faint_loss(1.0),
        lambda: faint_loss(2.0**16), phase="backward", module="Linear"),
    Bug("mean-of-pixels", "", ("gradient-underflow",), "aten._to_copy.default", lambda: pixels(1.0), lambda: pixels(2.0**14), phase="backward"),
    Bug("narrower-backward", "pytorch/pytorch#87979", ("overflow",), "aten._to_copy.default", lambda: gram_gradient(torch.float16),
        lambda: gram_gradient(torch.bfloat16), phase="backward"),
)  # fmt: skip
