"""Optimizers whose own numbers are low: a step's number, the shares of running means, squares of gradients; weights are float32 under autocast."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Counted(torch.optim.Optimizer):
    """Adam that keeps the number of its steps as a tensor, of which it makes one size for all steps of a weight."""

    def __init__(self, weights: object, dtype: torch.dtype, read: bool = False) -> None:
        super().__init__(weights, {"lr": 1e-2})  # type: ignore[arg-type]
        self.dtype, self.read = dtype, read

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            state, rate = self.state[weight], self.param_groups[0]["lr"]
            if not state:
                state.update(count=torch.zeros((), dtype=self.dtype), mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
            state["count"] += 1
            mean, square = state["mean"].lerp_(weight.grad, 0.1), state["square"].lerp_(weight.grad.square(), 0.001)
            if self.read:
                first, second = float(1 - 0.9 ** state["count"]), float(1 - 0.999 ** state["count"])  # culprit: correction-that-python-reads
                weight.addcdiv_(mean, square.sqrt() + 1e-8, value=-rate * second**0.5 / first)
            else:
                first, second = 1 - 0.9 ** state["count"], 1 - 0.999 ** state["count"]  # culprit: correction-of-early-steps
                weight.sub_(rate * second.sqrt() / first * mean / (square.sqrt() + 1e-8))


class Shared(torch.optim.Optimizer):
    """RMSprop that keeps the share of its running mean as a tensor beside the state, for a scheduler to change."""

    def __init__(self, weights: object, dtype: torch.dtype) -> None:
        super().__init__(weights, {"lr": 1e-3})  # type: ignore[arg-type]
        self.share = torch.tensor(0.999, dtype=dtype)  # culprit: share-that-is-one

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            square = self.state[weight].setdefault("square", weight.grad.square())
            square.mul_(self.share).add_((1 - self.share) * weight.grad.square())
            weight.sub_(1e-3 * weight.grad / (square.sqrt() + 1e-8))


class Damped(torch.optim.Optimizer):
    """A diagonal natural gradient on a half precision copy of each gradient, to save memory."""

    def __init__(self, weights: object, dtype: torch.dtype) -> None:
        super().__init__(weights, {"lr": 2e-2})  # type: ignore[arg-type]
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            gradient = weight.grad.to(self.dtype)
            curvature = (gradient * gradient).float()  # culprit: curvature-in-half
            weight.sub_(2e-2 * weight.grad / (curvature.sqrt() + 1e-6))


def trained(make: Callable[[nn.Module], torch.optim.Optimizer], steps: int = 4, size: float = 1.0) -> torch.Tensor:
    """How far all weights of a small network move in a few steps under autocast."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    start, optimizer = [each.detach().clone() for each in net.parameters()], make(net)
    for seed in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", LOW):
            out = net(normal(32, 8, seed=seed))
        (size * functional.mse_loss(out.float(), normal(32, 2, seed=seed + 50))).backward()
        optimizer.step()
    return torch.cat([(each.detach() - before).flatten() for each, before in zip(net.parameters(), start, strict=True)])


def counted(dtype: torch.dtype, read: bool = False) -> torch.Tensor:
    """No weight moves: in bfloat16 0.999 is one, so that one less it is zero. A trainer makes its counters in torch's default format. Off by all."""
    return trained(lambda net: Counted(net.parameters(), dtype, read))


def shared(dtype: torch.dtype) -> torch.Tensor:
    """The running mean of squares stays what it was in the first step, since its share of 0.999 is one in bfloat16. Off by 3 % after twelve."""
    return trained(lambda net: Shared(net.parameters(), dtype), steps=12)


def damped(dtype: torch.dtype) -> torch.Tensor:
    """Gradients below a thousandth have subnormal squares in half, and those below 1e-4 have none. Their steps are much too long."""
    return trained(lambda net: Damped(net.parameters(), dtype), size=2e-3)


BUGS = (
    Bug("correction-of-early-steps", "", ("cancellation", "vanished-constant"), "aten.rsub.Scalar", lambda: counted(LOW), lambda: counted(WIDE),
        phase="optimizer"),
    Bug("correction-that-python-reads", "", ("cancellation", "vanished-constant"), "aten.rsub.Scalar", lambda: counted(LOW, True),
        lambda: counted(WIDE, True), phase="optimizer"),
    Bug("share-that-is-one", "", ("vanished-constant", "cancellation", "absorption"), "aten._to_copy.default", lambda: shared(LOW),
        lambda: shared(WIDE)),
    Bug("curvature-in-half", "", ("underflow",), "aten.mul.Tensor", lambda: damped(HALF), lambda: damped(WIDE), phase="optimizer"),
)  # fmt: skip
