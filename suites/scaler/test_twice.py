"""A step that is taken twice: told where one goes through a scaler and one does not, on the same gradients; else code may step as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bugs.loops import Loop, told, watched
from torch import nn


class Prepared(torch.optim.Optimizer):
    """A trainer's wrapper: another optimizer, on the same groups, that steps by way of the scaler."""

    def __init__(self, inner: torch.optim.Optimizer, scaler: Any) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.scaler = inner, scaler

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.scaler.step(self.inner)
        self.scaler.update()


class Nested(torch.optim.SGD):
    """Does something of its own, and then what its base class does."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Repeating(torch.optim.SGD):
    """Goes twice along each gradient on purpose."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


def wrapped() -> None:
    loop = Loop()
    prepared = Prepared(loop.optimizer, loop.scaler)
    for _ in range(2):
        loop.backward()
        prepared.step()


def nested() -> None:
    for kind in (Nested, Repeating):
        loop = Loop(optimizer=lambda parameters, kind=kind: kind(parameters, lr=0.01))
        for _ in range(2):
            loop.backward()
            loop.step()


def without_a_scale() -> None:
    """The first epoch under a scale, the second without: another backward pass, whether gradients are dropped or zeroed."""
    loop = Loop()
    for keep in (True, False):
        loop.backward()
        loop.step()
        loop.optimizer.zero_grad(set_to_none=keep)
        loop.loss().backward()
        loop.optimizer.step()


def sharpness_aware() -> None:
    """Up along one gradient by hand, down along another by the scaler."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        share = 1e-3 / loop.scale
        up = [share * gradient for gradient in loop.gradients]
        with torch.no_grad():
            torch._foreach_add_(list(loop.model.parameters()), up)
        loop.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(loop.model.parameters()), up)
        loop.step()


def two_optimizers() -> None:
    """Of a shared weight, one follows the scaled loss and the other a penalty in float32."""
    loop = Loop()
    other = torch.optim.SGD(loop.model.parameters(), lr=1e-3)
    for _ in range(2):
        loop.backward()
        loop.step()
        other.zero_grad()
        loop.model.weight.square().sum().backward()
        other.step()


def two_optimizers_on_one_gradient() -> None:
    """Weights by one rule and biases by another would do; each of these has both, and steps once."""
    loop = Loop()
    other = torch.optim.SGD(loop.model.parameters(), lr=1e-3)
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.scaler.step(loop.optimizer)
    other.step()


def clipped_again() -> None:
    """A second, shorter step on what a clip has made of the gradients."""
    loop = Loop()
    loop.backward()
    loop.step()
    for gradient in loop.gradients:
        gradient.mul_(0.1)
    loop.optimizer.step()


def skipped() -> None:
    """What the scaler has not taken is taken by hand, once the gradients are made finite."""
    loop = Loop()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.model.weight.grad[0, 0] = torch.inf
    found = loop.scaler._per_optimizer_states[id(loop.optimizer)]["found_inf_per_device"]
    found[torch.device("cpu")].fill_(1.0)
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()
    nn.utils.clip_grad_value_([loop.model.weight], 1.0)
    loop.optimizer.step()


HEALTHY = (wrapped, nested, without_a_scale, sharpness_aware, two_optimizers, two_optimizers_on_one_gradient, clipped_again, skipped)


@pytest.mark.parametrize("code", HEALTHY, ids=lambda code: code.__name__)
def test_stepping_more_than_once_is_no_fault_by_itself(code: Callable[[], None]) -> None:
    report = watched(code)
    assert not [finding for finding in told(report) if "taken already" in finding.message], report.summary()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_a_scaler_that_is_switched_off_steps_all_the_same(enabled: bool, fused: bool) -> None:
    def code() -> None:
        loop = Loop(
            scaler=torch.amp.GradScaler("cpu", init_scale=16.0, enabled=enabled),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, fused=fused),
        )
        loop.backward()
        loop.step()
        loop.optimizer.step()

    (finding, *_) = told(watched(code))
    assert (finding.rule, finding.severity) == ("scaler-order", "error")


def test_nothing_is_kept_of_an_optimizer_that_is_gone() -> None:
    """Gradients are remembered by their storage's address, weakly: a new one at the same place is another."""

    def code() -> None:
        for _ in range(20):
            loop = Loop()
            loop.backward()
            loop.step()
            del loop
            fresh = Loop()
            fresh.loss().backward()
            fresh.optimizer.step()

    assert not told(watched(code))
