"""Casts of weights that are read after the weights have moved, and copies that are kept on purpose."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding

LOW = torch.bfloat16


class Kept(nn.Module):
    """A layer and a copy of its weight, which `read` makes and reads as it likes."""

    def __init__(self, read: Callable[[Kept, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.read = nn.Parameter(torch.randn(8, 8)), read
        self.copy: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.to(LOW) - self.read(self, x)


def teacher(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """A snapshot of the weight, in low precision to save memory."""
    if layer.copy is None:
        layer.copy = layer.weight.detach().to(LOW)
    return x @ layer.copy


def unrecorded(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """The same by somebody who switches autograd off instead."""
    with torch.no_grad():
        if layer.copy is None:
            layer.copy = layer.weight.to(LOW)
        return x @ layer.copy


def untouched(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """A snapshot that forgot to detach, of which nobody takes a gradient."""
    if layer.copy is None:
        layer.copy = layer.weight.to(LOW)
    with torch.no_grad():
        return x @ layer.copy


def averaged(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """A moving average of the weight."""
    with torch.no_grad():
        if layer.copy is None:
            layer.copy = layer.weight.detach().clone()
        layer.copy.lerp_(layer.weight, 0.1)
        return x @ layer.copy.to(LOW)


def anew(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """Cast where it is used."""
    return 2 * (x @ layer.weight.to(LOW))


def cached(layer: Kept, x: torch.Tensor) -> torch.Tensor:
    """A cache that no step clears."""
    if layer.copy is None:
        layer.copy = layer.weight.to(LOW)
    return 2 * (x @ layer.copy)


def accused(model: nn.Module, x: torch.Tensor, steps: int = 3, rate: float = 0.1) -> list[Finding]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with precheck.watch(model) as report:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
            optimizer.step()
    return [finding for finding in report.findings if finding.rule == "stale-cast"]


@pytest.mark.parametrize("read", [teacher, unrecorded, untouched, averaged, anew])
def test_copies_that_are_meant_to_be_old_are_left_in_peace(read: Callable[[Kept, torch.Tensor], torch.Tensor]) -> None:
    assert not accused(Kept(read), torch.ones(4, 8).to(LOW))


def test_a_cache_that_sends_its_gradients_to_the_weight_is_the_weights() -> None:
    (finding,) = accused(Kept(cached), torch.ones(4, 8).to(LOW))
    assert finding.severity == "error"
    assert finding.op == "aten._to_copy.default"
    assert re.search(r"aten\.mm\.default at .*:\d+ still reads this cast of weight, and sends its gradients there", finding.message)
    assert re.search(r"aten\.add_\.Tensor at .*:\d+ has changed \d+% of its elements since, by \d", finding.message)
    assert not accused(Kept(cached), torch.ones(4, 8).to(LOW), rate=0.0), "a step that changes nothing"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))


@pytest.mark.parametrize("foreach", [False, True])
def test_one_autocast_about_many_steps(foreach: bool) -> None:
    layers, x = model(), torch.randn(16, 8)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2, foreach=foreach)

    def trained(cache: bool) -> list[Finding]:
        with precheck.watch(layers) as report, torch.autocast("cpu", LOW, cache_enabled=cache):
            for _ in range(3):
                optimizer.zero_grad()
                layers(x).float().square().mean().backward()
                optimizer.step()
        return report.findings

    first = trained(cache=True)[0]
    assert first.rule == "stale-cast"
    assert "autocast reuses a cast of 0.weight that it made before the weight changed" in first.message
    assert (first.op, first.module, first.step) == ("aten.addmm.default", "0", 2)
    assert not trained(cache=False)


def test_one_autocast_about_many_passes_over_weights_that_stay() -> None:
    layers, other = model(), copy.deepcopy(model())
    with precheck.watch() as report, torch.autocast("cpu", LOW):
        for _ in range(3):
            layers(torch.randn(16, 8)).float().square().mean().backward()
            with torch.no_grad():
                for mine, theirs in zip(other.parameters(), layers.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
    assert not report.findings
