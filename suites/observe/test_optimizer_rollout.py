"""The ageing test: what becomes of low weights under an optimizer alone, and that nobody notices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.training import optimizer_rollout
from precheck.torch_internals import innermost_mode

BF16 = torch.bfloat16
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def another() -> Shadow:
    return Shadow(ModuleTracker(None))


def weight(start: float = 1.234375, size: int = 256, gradient: float = 1.0) -> nn.Parameter:
    """Around `start`, under gradients around `gradient`, of both signs."""
    own = nn.Parameter(torch.linspace(0.9 * start, 1.1 * start, size).to(BF16))
    own.grad = (torch.linspace(0.5, 1.5, size) * gradient * torch.tensor([1.0, -1.0]).repeat(size // 2)).to(BF16)
    return own


def stepped(make: Make, *parameters: nn.Parameter, times: int = 1) -> torch.optim.Optimizer:
    optimizer = make(list(parameters))
    for _ in range(times):
        optimizer.step()
    return optimizer


def arrived(optimizer: torch.optim.Optimizer, *parameters: nn.Parameter) -> list[optimizer_rollout.Aged | None]:
    found = optimizer_rollout.aged(optimizer, {id(each) for each in parameters}, another)
    return [found.get(id(each)) for each in parameters]


class Chance(torch.optim.Optimizer):
    """Gradient descent that rounds up or down by chance."""

    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})
        self.drawn = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for own in group["params"]:
                step = group["lr"] * own.grad.float()
                to = torch.nextafter(own, own - step.sign().to(BF16) * torch.inf)
                chance = step.abs() / (own.float() - to.float()).abs()
                own.copy_(torch.where(torch.rand(own.shape, generator=self.drawn) < chance, to, own))


class Kahan(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for own in group["params"]:
                owed = self.state[own].setdefault("owed", torch.zeros_like(own))
                owed.sub_(group["lr"] * own.grad)
                before = own.clone()
                own.add_(owed)
                owed.add_(before.sub_(own))


@pytest.mark.parametrize("make", [
    lambda them: torch.optim.SGD(them, lr=1e-4),
    lambda them: torch.optim.AdamW(them, lr=1e-4, foreach=True),
    lambda them: torch.optim.AdamW(them, lr=1e-4, foreach=False),
    lambda them: torch.optim.AdamW(them, lr=1e-4, fused=True),
    lambda them: torch.optim.RMSprop(them, lr=1e-5),
], ids=["SGD", "AdamW-foreach", "AdamW-single", "AdamW-fused", "RMSprop"])  # fmt: skip
def test_what_rounding_to_nearest_swallows_never_arrives(make: Make) -> None:
    """A step of 1e-4 on weights of 1.2, spaced 2^-7: four spacings are worth some 300 steps, and none of these moves anything."""
    own = weight()
    (aged,) = arrived(stepped(make, own), own)
    assert aged is not None
    assert aged.arrived == 0.0
    assert 100 < aged.steps <= optimizer_rollout.HORIZON


@pytest.mark.parametrize("kind", [Chance, Kahan])
def test_what_is_kept_or_left_to_chance_arrives(kind: Any) -> None:
    """Of 256 elements' 4 spacings by chance: four deviations are 4 √(1/4/256) = 12 %. A remainder owes half a spacing of four at most."""
    own = weight()
    (aged,) = arrived(stepped(kind, own), own)
    assert aged is not None
    assert aged.arrived == pytest.approx(1.0, abs=0.125)


def test_larger_steps_need_less_time() -> None:
    slow, fast = weight(), weight(gradient=10.0)
    (long,), (short,) = arrived(stepped(lambda them: torch.optim.SGD(them, lr=1e-4), slow), slow), arrived(stepped(
        lambda them: torch.optim.SGD(them, lr=1e-4), fast), fast)  # fmt: skip
    assert long is not None
    assert short is not None
    assert long.steps == pytest.approx(10 * short.steps, rel=0.1)


def test_what_would_take_too_long_is_not_aged() -> None:
    """1e-7 is an eighty-thousandth of a spacing."""
    own = weight()
    assert arrived(stepped(lambda them: torch.optim.SGD(them, lr=1e-7), own), own) == [None]


def test_several_weights_of_several_groups_are_told_apart() -> None:
    large, small, other = weight(1.0), weight(0.001), weight(1.0)
    optimizer = torch.optim.AdamW([{"params": [large, small]}, {"params": [other], "lr": 0.05}], lr=1e-4)
    optimizer.step()
    lost, healthy, fast = arrived(optimizer, large, small, other)
    assert lost is not None
    assert lost.arrived == 0.0
    assert healthy is not None  # a step of 1e-4 is many spacings of 0.001
    assert healthy.arrived > 0.9
    assert fast is not None
    assert fast.arrived > 0.9
    assert lost.steps != fast.steps


def test_nothing_of_the_users_changes() -> None:
    """Weights, gradients, states, the generator of its own and torch's: as they were, and hooks are not called."""
    own, calls = weight(), []
    optimizer = stepped(lambda them: Chance(them), own)
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    handle = optimizers.register_optimizer_step_pre_hook(lambda *_: calls.append(2))
    torch.manual_seed(0)


    def held() -> tuple[Any, ...]:
        return own.detach(), own.grad, optimizer.state_dict(), torch.get_rng_state(), optimizer.drawn.get_state(), schedule.state_dict()

    before = copy.deepcopy(held())
    try:
        assert arrived(optimizer, own) != [None]
    finally:
        handle.remove()
    assert calls == []
    for one, other in zip(before, held(), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else repr(one) == repr(other)


class Wrapping(torch.optim.Optimizer):
    """Keeps tensors of its own beside the state, which a copy would write."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})
        self.copies = [each.detach().float() for each in parameters]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each, own in zip(self.copies, self.param_groups[0]["params"], strict=True):
            each.sub_(own.grad.float() * 1e-4)
            own.copy_(each)


def test_an_optimizer_whose_copy_would_write_the_users_tensors_is_left_alone() -> None:
    own = weight()
    optimizer = stepped(lambda them: Wrapping(them), own)
    kept = optimizer.copies[0].clone()
    assert arrived(optimizer, own) == [None]
    assert torch.equal(optimizer.copies[0], kept)


@pytest.mark.parametrize("spoil", ["none", "infinite", "matrix", "closure"])
def test_what_cannot_be_aged_is_left_out(spoil: str) -> None:
    own = weight()
    optimizer = stepped(lambda them: torch.optim.SGD(them, lr=1e-4), own)
    if spoil == "none":
        own.grad = None
    elif spoil == "infinite":
        own.grad[0] = torch.inf
    elif spoil == "closure":
        optimizer = torch.optim.LBFGS([own], lr=1e-4)
    else:
        own = nn.Parameter(torch.ones(8, 8, dtype=BF16))
        own.grad = torch.ones_like(own)
        optimizer = stepped(lambda them: torch.optim.Muon(them, lr=1e-4), own)
    assert arrived(optimizer, own) == [None]


@pytest.mark.parametrize(("make", "own", "shadowed"), [
    (lambda them: torch.optim.AdamW(them, lr=2e-5), 100, 0),
    (lambda them: torch.optim.SGD(them, lr=1e-4), 100, 0),
    (Kahan, 400, 100),
], ids=["AdamW", "SGD", "Kahan"])  # fmt: skip
def test_what_goes_on_as_before_is_not_run(make: Make, own: int, shadowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of steps are asked for. Torch's optimizers lose for good what they lose; what keeps a remainder runs on, past the shadow."""
    weights, stepping, calls, inside = weight(), optimizer_rollout._Copy.step, [], []

    def step(it: Any) -> None:
        calls.append(1)
        inside.append(isinstance(innermost_mode(), Shadow))
        stepping(it)

    monkeypatch.setattr(optimizer_rollout._Copy, "step", step)
    (aged,) = arrived(stepped(make, weights), weights)
    assert aged is not None
    assert aged.steps > 150
    assert len(calls) <= own
    assert sum(inside) <= shadowed
