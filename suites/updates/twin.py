"""A small training, low and watched, and the float32 twin that gets the same gradients: what of the move arrived is known apart from precheck."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import precheck
from precheck.findings import Finding, Report

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Gradients = list[list[torch.Tensor]]
STEPS = 4
BF16 = torch.bfloat16
START = 1.234375
ENOUGH, TOO_LITTLE = 0.02, 1e-4
"""Steps from START, where bf16 numbers are 2^-7 = 0.0078 apart: more than two spacings, and a fortieth of the half of one."""


@dataclasses.dataclass(frozen=True)
class Way:
    """An optimizer of torch.optim and one of its implementations."""

    kind: type[torch.optim.Optimizer]
    options: dict[str, Any]

    def make(self, rate: float) -> Make:
        more = {"max_iter": 1} if self.kind is torch.optim.LBFGS else {}
        return lambda parameters: self.kind(parameters, lr=rate, **self.options, **more)  # type: ignore[call-arg]

    def fits(self, parameter: torch.Tensor) -> bool:
        return self.kind is not torch.optim.Muon or parameter.dim() == 2

    def __str__(self) -> str:
        return "-".join([self.kind.__name__, *(name if chosen else "single" for name, chosen in self.options.items())])


def ways() -> Iterator[Way]:
    """Every optimizer that torch has for dense gradients: one tensor at a time, foreach and fused, as far as it has them."""
    for kind in vars(torch.optim).values():
        dense = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in (torch.optim.Optimizer, torch.optim.SparseAdam)
        if dense:
            known = inspect.signature(kind).parameters
            found = [Way(kind, options) for options in ({"foreach": False}, {"foreach": True}, {"fused": True}) if set(options) <= set(known)]
            yield from found or [Way(kind, {})]


class Model(nn.Module):
    """Norm weights of one, biases of zero, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.norm(x))
        return out


def model(dtype: torch.dtype) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model().to(dtype)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(own: Model, way: Way, rate: float, given: Gradients | None = None, *, autocast: torch.dtype | None = None) -> Gradients:
    """Takes STEPS steps, with the gradients of a regression or those given; the gradients."""
    chosen = [parameter for parameter in own.parameters() if way.fits(parameter)]
    optimizer, seen, dtype = way.make(rate)(chosen), [], own.linear.weight.dtype
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.zeros(())
            if given is None:
                with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                    out = own(normal(32, 16, seed=step).to(dtype))
                loss = (out.float() - normal(32, 16, seed=100 + step)).square().mean()
                loss.backward()
            else:
                for parameter, gradient in zip(chosen, given[step], strict=True):
                    parameter.grad = gradient.to(parameter.dtype)
            seen.append([parameter.grad.clone() for parameter in chosen if parameter.grad is not None])
            return loss.detach()

        if way.kind is torch.optim.LBFGS:
            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            optimizer.step()
    return seen


def arrivals(way: Way, dtype: torch.dtype, rate: float) -> tuple[Report, dict[str, float]]:
    """The report on a watched low training, and for each parameter the share of the twin's move that arrived: nan if that is not finite."""
    own, start = model(dtype), model(dtype).float()
    with precheck.watch(own) as report:
        gradients = trained(own, way, rate)
    twin = model(dtype).float()
    trained(twin, way, rate, gradients)
    shares = {}
    for (name, low), exact, first in zip(own.named_parameters(), twin.parameters(), start.parameters(), strict=True):
        moved, meant = low.detach().double() - first.detach(), exact.detach().double() - first.detach()
        if bool(meant.any()):
            shares[name] = float((moved * meant).sum() / meant.square().sum())
    return report, shares


def lost(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == "lost-update"]


def told(report: Report) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in report.findings if finding.severity != "note"]


def weight(size: int = 64) -> nn.Parameter:
    return nn.Parameter(torch.full((size,), START, dtype=BF16))


def moved(parameter: torch.Tensor) -> bool:
    return bool((parameter.detach() != START).any())


def watched(code: Callable[[], Any]) -> Report:
    with precheck.watch() as report:
        code()
    return report
