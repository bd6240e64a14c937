"""torch.func: ensembles, gradients of each row, forward mode, and training through a step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from training import Left, Low, data, network, square, training


def smooth() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def trained(low: Low, model: nn.Module, lossed: Any, steps: int = 3) -> Left:
    """`lossed(model, x, y)` is the loss, made under autocast."""
    model, (x, y), left = low.cast(model), data(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        with low.autocast():
            loss = lossed(model, low.cast(x), y)
        low.step(loss.float(), optimizer)
        left[f"loss {step}"] = loss
    return Left(model, left, (lambda x: lossed(model, x, y), low.cast(x)) if not low.true else (), {})


def row_loss(model: nn.Module) -> Any:
    def of(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = functional_call(model, weights, (x[None],))
        return nn.functional.cross_entropy(out.float(), y[None])

    return of


@training("torch")
def ensemble(low: Low) -> Left:
    """Four networks at once, by vmap over their weights."""
    models = [low.cast(network()) for _ in range(4)]
    weights, buffers = stack_module_state(models)
    base, (x, y) = copy.deepcopy(models[0]).to("meta"), data()
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-2)

    def one(weights: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(base, (weights, buffers), (x,))

    for _ in range(3):
        with low.autocast():
            out = vmap(one, (0, 0, None))(weights, buffers, low.cast(x))
            loss = nn.functional.cross_entropy(out.float().flatten(0, 1), y.repeat(4))
        low.step(loss, optimizer)
    left = dict(weights) | {"loss": loss}
    return Left(None, left, (lambda x: vmap(one, (0, 0, None))(weights, buffers, x), x))


@training("torch")
def gradients_of_each_row(low: Low) -> Left:
    """Each row's gradient, clipped, then averaged, as differential privacy does."""
    model, (x, y) = low.cast(network()), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        weights = {name: each.detach() for name, each in model.named_parameters()}
        with low.autocast():
            rows = vmap(grad(row_loss(model)), (None, 0, 0))(weights, low.cast(x), y)
        norms = torch.stack([each.float().flatten(1).norm(dim=1) for each in rows.values()]).norm(dim=0)
        for name, each in model.named_parameters():
            each.grad = torch.einsum("n,n...->...", (1 / norms.clamp(min=1)), rows[name].float()).to(each.dtype) / len(x)
        optimizer.step()
    return Left(model, {"norms": norms}, (model, x))


@training("torch")
def directional_derivative(low: Low) -> Left:
    """A loss of a network's derivative in a direction, by jvp under reverse mode."""

    def lossed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, slope = jvp(model, (x,), (torch.ones_like(x),))
        return square(out) + square(slope)

    return trained(low, smooth(), lossed)


@training("torch")
def forward_gradient(low: Low) -> Left:
    """Training without a backward pass: the slope of the loss in a random direction of the weights."""
    model, (x, y) = low.cast(smooth()), data()
    for _ in range(3):
        weights = {name: each.detach().clone() for name, each in model.named_parameters()}
        towards = {name: torch.randn_like(each) for name, each in weights.items()}

        def lossed(weights: Any) -> torch.Tensor:
            with low.autocast():
                return nn.functional.cross_entropy(functional_call(model, weights, (low.cast(x),)).float(), y)

        loss, slope = jvp(lossed, (weights,), (towards,))
        with torch.no_grad():
            for name, each in model.named_parameters():
                each -= 1e-1 * (slope * towards[name]).to(each.dtype)
    return Left(model, {"loss": loss, "slope": slope}, (model, x))


@training("torch")
def dual_numbers(low: Low) -> Left:
    """Forward mode by torch.autograd.forward_ad."""
    model, (x, _) = low.cast(smooth()), data()
    x = low.cast(x)
    with torch.autograd.forward_ad.dual_level(), low.autocast():
        out = model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        value, slope = torch.autograd.forward_ad.unpack_dual(out)
        left = {"value": value.clone(), "slope": slope.clone()}  # type: ignore[union-attr]
    return Left(model, left)


@training("torch")
def linearised(low: Low) -> Left:
    model, (x, _) = low.cast(smooth()), data()
    x = low.cast(x)
    with low.autocast():
        out, slope = linearize(model, x)
        found = torch.stack([slope(torch.full_like(x, each)) for each in (0.5, 1.0)])
    return Left(model, {"out": out, "slopes": found})


@training("torch")
def jacobian_penalty(low: Low) -> Left:
    def lossed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return square(vmap(jacrev(model))(x)) + nn.functional.cross_entropy(model(x).float(), y)

    return trained(low, smooth(), lossed)


@training("torch")
def forward_jacobian_penalty(low: Low) -> Left:
    return trained(low, smooth(), lambda model, x, y: square(vmap(jacfwd(model))(x)))


@training("torch")
def curvature_of_the_weights(low: Low) -> Left:
    """A Newton step for the last bias."""
    model, (x, y) = low.cast(smooth()), data()
    others = {name: each.detach() for name, each in model.named_parameters()}

    def lossed(bias: torch.Tensor) -> torch.Tensor:
        with low.autocast():
            return nn.functional.cross_entropy(functional_call(model, others | {"2.bias": bias}, (low.cast(x),)).float(), y)

    bias = others["2.bias"]
    second, first = hessian(lossed)(bias), grad(lossed)(bias)
    step = torch.linalg.solve(second.float() + torch.eye(4), first.float())
    return Left(model, {"step": step, "second": second})


@training("torch")
def inner_loop(low: Low) -> Left:
    """MAML: the gradient through a step of gradient descent."""

    def lossed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())

        def of(weights: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(functional_call(model, weights, (x,)).float(), y)

        slopes = grad(of)(weights)
        return of({name: each - 0.1 * slopes[name] for name, each in weights.items()})

    return trained(low, smooth(), lossed)


@training("torch")
def tangent_kernel(low: Low) -> Left:
    """Of the weights, by vjp and jvp."""
    model, (x, _) = low.cast(smooth()), data()
    x, weights = low.cast(x), {name: each.detach() for name, each in model.named_parameters()}

    def of(weights: Any) -> torch.Tensor:
        with low.autocast():
            return functional_call(model, weights, (x,))

    out, back = vjp(of, weights)
    (slopes,) = back(torch.ones_like(out))
    return Left(model, {"out": out, "kernel": jvp(of, (weights,), (slopes,))[1]})
