"""Who keeps elsewhere what a low weight cannot hold has lost nothing, from the first step on: masters, remainders, chance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from twin import lost, normal

import precheck

BF16, RATE = torch.bfloat16, 1e-4


class Stepper(torch.optim.Optimizer):
    """Gradient descent, each weight by `one`; `state` starts empty."""

    def __init__(self, parameters: Any, rate: float = RATE) -> None:
        super().__init__(parameters, {"lr": rate})
        self.drawn = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                self.one(weight, group["lr"], self.state[weight])

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        weight.sub_(rate * weight.grad)


class Master(Stepper):
    """A float32 master in the optimizer's state, as apex, TransformerEngine and Megatron keep it."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        master = state.setdefault("master_param", weight.detach().float().clone())
        master.sub_(rate * weight.grad.float())
        weight.copy_(master)


class Wrapper(Stepper):
    """An optimizer of float32 copies inside another, as DeepSpeed and fairseq do it; the copies may be one flat tensor."""

    def __init__(self, parameters: Any, rate: float = RATE, flat: bool = False) -> None:
        super().__init__(parameters, rate)
        self.low = self.param_groups[0]["params"]
        copies = [weight.detach().float().flatten() for weight in self.low]
        self.flat, self.masters = flat, [nn.Parameter(copy) for copy in ([torch.cat(copies)] if flat else copies)]
        self.inner = torch.optim.AdamW(self.masters, lr=rate)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        gradients = [weight.grad.float().flatten() for weight in self.low]
        for master, gradient in zip(self.masters, [torch.cat(gradients)] if self.flat else gradients, strict=True):
            master.grad = gradient
        self.inner.step()
        sizes = [weight.numel() for weight in self.low]
        for weight, part in zip(self.low, torch.cat([master.detach() for master in self.masters]).split(sizes), strict=True):
            weight.copy_(part.view_as(weight))


class Flat(Wrapper):
    def __init__(self, parameters: Any, rate: float = RATE) -> None:
        super().__init__(parameters, rate, flat=True)


class LowBits(Stepper):
    """The sixteen bits that bf16 drops, kept as integers: apex' store_param_remainders."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        low = state.setdefault("low", torch.zeros_like(weight, dtype=torch.int16))
        whole = (weight.view(torch.int16).int() << 16) | (low.int() & 0xFFFF)
        bits = (whole.view(torch.float32) - rate * weight.grad.float()).view(torch.int32)
        low.copy_((bits & 0xFFFF).short())
        weight.copy_((bits >> 16).short().view(BF16))


class Kahan(Stepper):
    """A remainder in bf16, as torchao, optimi and Zamirai et al. 2020 keep it."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        owed = state.setdefault("compensation", torch.zeros_like(weight))
        owed.sub_(rate * weight.grad)
        before = weight.clone()
        weight.add_(owed)
        owed.add_(before.sub_(weight))


class Borrowed(Stepper):
    """Kahan's remainder again, worked out in the memory of the gradient, as pytorch_optimizer does."""

    def __init__(self, parameters: Any, rate: float = 1.5e-3) -> None:
        super().__init__(parameters, rate)

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        owed = state.setdefault("compensation", torch.zeros_like(weight))
        owed.sub_(rate * weight.grad)
        weight.grad.copy_(weight)
        weight.add_(owed)
        owed.add_(weight.grad.sub_(weight))


class Aside(Stepper):
    """Kahan's remainder in a list of the optimizer's own, where `state` knows nothing of it."""

    def __init__(self, parameters: Any, rate: float = RATE) -> None:
        super().__init__(parameters, rate)
        self.owed: dict[Any, torch.Tensor] = {}

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        owed = self.owed.setdefault(weight, torch.zeros_like(weight))
        owed.sub_(rate * weight.grad)
        before = weight.clone()
        weight.add_(owed)
        owed.add_(before.sub_(weight))


class Chance(Stepper):
    """Rounds up or down by chance, by noise on the bits."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        bits = (weight.float() - rate * weight.grad.float()).view(torch.int32)
        noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, generator=self.drawn)
        weight.copy_(((bits + noise) & ~0xFFFF).view(torch.float32))


class Dice(Stepper):
    """The same by arithmetic: to the neighbour, with the chance of the way to it."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        step = rate * weight.grad.float()
        to = torch.nextafter(weight, weight - step.sign().to(BF16) * torch.inf)
        chance = step.abs() / (weight.float() - to.float()).abs()
        weight.copy_(torch.where(torch.rand(weight.shape, generator=self.drawn) < chance, to, weight))


KEEPERS = pytest.mark.parametrize("kind", [
    Master, Wrapper, Flat, LowBits, Kahan, Aside, Chance, Dice,
])  # fmt: skip


def lossless(kind: type[Stepper], steps: int) -> precheck.Report:
    """64 weights of 1.234375 under gradients around one."""
    weight = nn.Parameter(torch.full((64,), 1.234375, dtype=BF16))
    optimizer = kind([weight])
    with precheck.watch() as report:
        for _ in range(steps):
            optimizer.zero_grad()
            (weight * torch.linspace(0.5, 1.5, 64, dtype=BF16)).sum().backward()
            optimizer.step()
    return report


@KEEPERS
@pytest.mark.parametrize("steps", [1, 4, 20])
def test_what_is_kept_is_not_lost(kind: type[Stepper], steps: int) -> None:
    """1e-4 is a fortieth of what bf16 sees there: no weight that is rounded to nearest moves."""
    report = lossless(kind, steps)
    assert not report.errors, report.summary()


def test_what_is_not_kept_is_lost() -> None:
    assert lost(lossless(Stepper, 4))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4))


def regression(kind: type[Stepper], *, steps: int = 4, inside: bool = False) -> precheck.Report:
    """Of a network made bf16 before the block, or inside it."""
    model = network() if inside else network().to(BF16)
    with precheck.watch() as report:
        model = model.to(BF16)
        optimizer = kind(model.parameters())
        for step in range(steps):
            model.zero_grad()
            (model(normal(64, 16, seed=step).to(BF16)).float() - normal(64, 4, seed=50 + step)).square().mean().backward()
            optimizer.step()
    return report


@KEEPERS
def test_networks_too(kind: type[Stepper]) -> None:
    report = regression(kind)
    assert not report.errors, report.summary()


@KEEPERS
def test_a_network_made_low_inside_the_block(kind: type[Stepper]) -> None:
    report = regression(kind, inside=True)
    assert not report.errors, report.summary()


@pytest.mark.parametrize("inside", [True, False])
def test_networks_that_lose(inside: bool) -> None:
    (finding,) = lost(regression(Stepper, inside=inside))
    assert "1.weight" in finding.message or "2." in finding.message


@pytest.mark.parametrize("steps", [2, 3, 20])
def test_a_remainder_made_in_the_memory_of_the_gradient_is_kept(steps: int) -> None:
    """The ageing test would step on with what is left there. Of one step alone nobody can tell: the remainder comes by way of the gradient."""
    report = lossless(Borrowed, steps)
    assert not report.errors, report.summary()


class Scratched(Stepper):
    """Works in the memory of the gradient too, and keeps nothing."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        weight.sub_(weight.grad.mul_(rate))


@pytest.mark.parametrize("steps", [1, 4, 20])
def test_who_writes_over_gradients_and_keeps_nothing_has_lost_it(steps: int) -> None:
    assert [finding.rule for finding in lossless(Scratched, steps).errors] == ["lost-update"]


class WideKahan(Stepper):
    """Kahan's remainder in bf16 beside a momentum in float32, made like the weight and of nothing that is in it."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        moment = state.setdefault("momentum", torch.zeros_like(weight, dtype=torch.float32))
        moment.mul_(0.9).add_(weight.grad.float())
        owed = state.setdefault("compensation", torch.zeros_like(weight))
        wanted = owed.float() - rate * moment
        before = weight.float()
        weight.copy_(before + wanted)
        owed.copy_(wanted - (weight.float() - before))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_wide_momentum_is_no_master(steps: int) -> None:
    """Its first step counts, so that the remainder is compared with all that is owed."""
    report = lossless(WideKahan, steps)
    assert not report.errors, report.summary()
    (row,) = report.updates
    assert (row["steps"], row["held"]) == (steps, True)


class Heavy(Stepper):
    """A momentum that happens to be as large as what the weight lacks, which keeps nothing."""

    def one(self, weight: Any, rate: float, state: dict[str, Any]) -> None:
        moment = state.setdefault("momentum", torch.zeros_like(weight))
        moment.mul_(0.9).add_(rate * weight.grad)
        weight.sub_(moment)


@pytest.mark.parametrize("steps", [1, 2, 4, 20])
def test_a_momentum_is_no_remainder(steps: int) -> None:
    """On w², whose gradient's drift is that of w, and by a rate that is in the momentum already."""
    weight = nn.Parameter(torch.full((64,), 1.234375, dtype=BF16))
    optimizer = Heavy([weight])
    with precheck.watch() as report:
        for _ in range(steps):
            optimizer.zero_grad()
            (weight.float().square().sum() / 2).backward()
            optimizer.step()
    assert lost(report), report.summary()
