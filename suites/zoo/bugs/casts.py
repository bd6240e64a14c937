"""Casts of weights that outlive the weights they were made of."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from bugs.bug import Bug, normal

LOW = torch.bfloat16
MECHANISM = "stale casts"


def network() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(0.3 * normal(*parameter.shape, seed=seed))
    return model


def policy(*, within_one: bool, steps: int = 6) -> torch.Tensor:
    """The losses of a few steps. One autocast about all of them serves the first step's weights to the end."""
    model, x = network(), normal(32, 16, seed=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with torch.autocast("cpu", LOW) if within_one else contextlib.nullcontext():
        for _ in range(steps):
            with torch.autocast("cpu", LOW):
                loss = model(x).float().square().mean()  # culprit: one-autocast
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)


def distance(*, within_one: bool) -> torch.Tensor:
    """How far a policy is from its reference, whose weights are swapped in for a pass: none at all, says autocast's cache."""
    model, x = network(), normal(32, 16, seed=9)
    reference = [0.8 * parameter.detach() for parameter in model.parameters()]
    with torch.no_grad(), torch.autocast("cpu", LOW) if within_one else contextlib.nullcontext():
        with torch.autocast("cpu", LOW):
            own = model(x).float()
        for parameter, other in zip(model.parameters(), reference, strict=True):
            parameter.data.copy_(other)
        with torch.autocast("cpu", LOW):
            theirs = model(x).float()  # culprit: swapped-reference
    return (own - theirs).square().mean()


class Experts(nn.Module):
    """Its weights are cast for a kernel once, and kept: their key has no part that an optimizer's step changes."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept, self.weight = kept, nn.Parameter(0.3 * normal(16, 16))
        self.low: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.low is None or not self.kept:
            self.low = self.weight.to(LOW)  # culprit: kept-experts
        return x @ self.low


def experts(*, kept: bool, steps: int = 6) -> torch.Tensor:
    model, x = Experts(kept), normal(32, 16, seed=9).to(LOW)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


BUGS = (
    Bug("one-autocast", "X-GenGroup/Flow-Factory#186", ("stale-cast",), "aten.addmm.default", lambda: policy(within_one=True),
        lambda: policy(within_one=False), module="0", step=2),
    Bug("swapped-reference", "X-GenGroup/Flow-Factory#186", ("stale-cast",), "aten.addmm.default", lambda: distance(within_one=True),
        lambda: distance(within_one=False), module="0"),
    Bug("kept-experts", "NVIDIA-NeMo/Automodel#3606", ("stale-cast",), "aten._to_copy.default", lambda: experts(kept=True),
        lambda: experts(kept=False), module="Experts"),
)  # fmt: skip
