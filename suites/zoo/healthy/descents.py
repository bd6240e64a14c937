"""Optimizers written by hand whose steps are rounded: states of bfloat16, signs, trust ratios, differences of gradients, climbs. Steps stay steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from bugs.bug import normal
from torch.nn import functional

from healthy.rounds import HALF, LOW, perceptron


class ByHand(torch.optim.Optimizer):
    """An optimizer whose step is a function of a weight, its gradient, its state and the number of the step."""

    def __init__(self, weights: object, rule: Callable[..., None]) -> None:
        super().__init__(weights, {"lr": 1e-2})  # type: ignore[arg-type]
        self.rule, self.turn = rule, 0

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.turn += 1
        for weight in self.param_groups[0]["params"]:
            self.rule(weight, weight.grad, self.state[weight], self.turn)


def descended(rule: Callable[..., None], weights: torch.dtype = torch.float32, steps: int = 4) -> torch.Tensor:
    """The last losses of a network in bfloat16, by autocast if its weights are float32."""
    net, losses = perceptron(12, 32, 3).to(weights), []
    optimizer = ByHand(net.parameters(), rule)
    for seed in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW, enabled=weights is torch.float32):
            out = net(normal(32, 12, seed=seed).to(weights))
        loss = functional.mse_loss(out.float(), normal(32, 3, seed=seed + 50))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def moments_in_sixteen_bits() -> torch.Tensor:
    """Adam with moments of bfloat16 and shares that it can hold apart from one: a rounding of each is a rounding of the step."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        if not state:
            state["mean"], state["square"] = (torch.zeros_like(weight, dtype=LOW) for _ in range(2))
        state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
        state["square"].mul_(0.9).addcmul_(gradient.to(LOW), gradient.to(LOW), value=0.1)
        mean, square = state["mean"] / (1 - 0.9**turn), state["square"] / (1 - 0.9**turn)
        weight.sub_(1e-2 * mean / (square.sqrt() + 1e-8))

    return descended(rule)


def count_in_sixteen_bits() -> torch.Tensor:
    """The number of a step as a tensor of bfloat16: four is four, and 0.9 to its power is nowhere near one."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        if not state:
            state["count"], state["mean"] = torch.zeros((), dtype=LOW), torch.zeros_like(weight)
        state["count"] += 1
        weight.sub_(3e-2 * state["mean"].lerp_(gradient, 0.1) / (1 - 0.9 ** state["count"]))

    return descended(rule)


def signs_of_a_mean() -> torch.Tensor:
    """Lion: where a blend of mean and gradient is about zero, rounding decides which way a weight goes."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        mean = state.setdefault("mean", torch.zeros_like(weight, dtype=LOW))
        weight.sub_(1e-3 * (0.9 * mean + 0.1 * gradient.to(LOW)).sign())
        mean.mul_(0.99).add_(gradient.to(LOW), alpha=0.01)

    return descended(rule)


def signs_that_turned() -> torch.Tensor:
    """Rprop: each weight's step grows while its gradient keeps its sign, which rounding decides for small ones; their product may be zero in half."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        size, before = state.setdefault("size", torch.full_like(weight, 1e-3)), state.get("before", torch.zeros_like(gradient))
        same = (gradient.half() * before.half()).sign()
        size.mul_(torch.where(same > 0, 1.2, torch.where(same < 0, 0.5, 1.0)))
        weight.sub_(size * gradient.sign())
        state["before"] = gradient.clone()

    return descended(rule)


def trust_of_a_layer() -> torch.Tensor:
    """LAMB on weights of bfloat16: norms of weight and step, and their ratio, in the weights' format."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        mean = state.setdefault("mean", torch.zeros_like(weight)).mul_(0.9).add_(gradient, alpha=0.1)
        step = mean / (mean.abs().max() + 1e-6) + 0.01 * weight
        weight.sub_(0.1 * (weight.norm() / step.norm().clamp_min(1e-6)).clamp(0, 10) * step)

    return descended(rule, LOW)


def secant_steps() -> torch.Tensor:
    """Barzilai and Borwein: a rate from how weights and gradients of bfloat16 have changed, differences that are exact as they are stored."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        rate = torch.tensor(0.05)
        if "weight" in state:
            moved, turned = weight - state["weight"], gradient - state["gradient"]
            rate = ((moved * moved).float().sum() / ((moved * turned).float().sum().abs() + 1e-8)).clamp(0.01, 0.2)
        state.update(weight=weight.clone(), gradient=gradient.clone())
        weight.sub_(rate.to(weight.dtype) * gradient)

    return descended(rule, LOW)


def tenths_of_squares() -> torch.Tensor:
    """Squares of gradients in half, which are scaled up before and down again after: few of them vanish, and those of nothing."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        scale = gradient.abs().max().clamp_min(1e-12)
        square = (gradient / scale).half().square()
        weight.sub_(1e-2 * gradient / (scale * (square.float() + 1e-3).sqrt()))

    return descended(rule)


def blended_places() -> torch.Tensor:
    """Schedule-free steps: three places of a weight, blended by shares of a few hundredths, beside weights of bfloat16."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        if not state:
            state["fast"], state["mean"] = weight.float().clone(), weight.float().clone()
        state["fast"].sub_(0.05 * gradient.float())
        state["mean"].lerp_(state["fast"], 1 / turn)
        weight.copy_(torch.lerp(state["fast"], state["mean"], 0.9))

    return descended(rule, LOW)


class Climbing(torch.optim.Optimizer):
    """Sharpness-aware descent: climbs along the gradient in half precision, looks again, and descends from where it was."""

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            size = torch.stack([each.grad.half().float().norm() for each in weights]).norm() + 1e-12
            climbs = [(0.05 * each.grad / size).half() for each in weights]
            for each, climb in zip(weights, climbs, strict=True):
                each.add_(climb)
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for each, climb in zip(weights, climbs, strict=True):
                each.sub_(climb).sub_(0.05 * each.grad)
        return loss.detach()


def climbs_in_half() -> torch.Tensor:
    net = perceptron(12, 32, 3)
    optimizer, losses = Climbing(net.parameters(), {}), []

    def loss(seed: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=LOW):
            out = net(normal(32, 12, seed=seed))
        found = functional.mse_loss(out.float(), normal(32, 3, seed=seed + 50))
        found.backward()
        return found

    for seed in range(3):
        optimizer.zero_grad()
        losses.append(optimizer.step(lambda seed=seed: loss(seed)))
    return torch.stack(losses)


def factors_of_a_curvature() -> torch.Tensor:
    """Shampoo with factors that are rounded to bfloat16 before their roots are taken, and damped by a thousandth of their size."""

    def root(factor: torch.Tensor) -> torch.Tensor:
        factor = factor.to(LOW).float()
        values, vectors = torch.linalg.eigh(factor + 1e-3 * factor.trace() * torch.eye(len(factor)))
        return vectors * values.clamp_min(1e-9).pow(-0.25) @ vectors.T

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        if weight.ndim < 2:
            weight.sub_(0.01 * gradient)
            return
        left = state.setdefault("left", torch.zeros(len(weight), len(weight))).mul_(0.9).add_(gradient @ gradient.T)
        right = state.setdefault("right", torch.zeros(weight.shape[1], weight.shape[1])).mul_(0.9).add_(gradient.T @ gradient)
        weight.sub_(0.01 * root(left) @ gradient @ root(right))

    return descended(rule)


def late_half_states() -> torch.Tensor:
    """Momentum of float16 weights whose gradients carry a scale of 256: a tenth of them is small, and stays a number."""

    def rule(weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], turn: int) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(weight)).mul_(0.9).add_(gradient)
        weight.sub_(momentum * (0.05 / 256))

    net, losses = perceptron(12, 32, 3).to(HALF), []
    optimizer = ByHand(net.parameters(), rule)
    for seed in range(4):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(normal(32, 12, seed=seed).half()).float(), normal(32, 3, seed=seed + 50))
        (256 * loss).backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


IDIOMS = (moments_in_sixteen_bits, count_in_sixteen_bits, signs_of_a_mean, signs_that_turned, trust_of_a_layer, secant_steps, tenths_of_squares,
          blended_places, climbs_in_half, factors_of_a_curvature, late_half_states)  # fmt: skip
