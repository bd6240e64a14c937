"""The methods of scalers, optimizers and schedules are wrapped while a block is watched, and never after; nothing is kept alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from beside import shadow_now
from torch import nn

import precheck


class Scaler(torch.amp.GradScaler):
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)


OWNERS = (torch.amp.GradScaler, Scaler, torch.optim.Optimizer, torch.optim.SGD, torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.StepLR)


def methods() -> list[dict[str, Any]]:
    """All that the classes hold of their own; torch itself adds wrappers of `step` when an optimizer is first made."""
    nothing = nn.Parameter(torch.zeros(1))
    torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nothing]), 1)
    return [dict(vars(owner)) for owner in OWNERS]


def trained(scaler: Any) -> list[Any]:
    """Two steps; all that they were made with."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(weight.half().float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return [weight, optimizer, schedule, scaler]


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Scaler])
def test_methods_are_as_they_were_after_the_block(kind: Any) -> None:
    before = methods()
    with precheck.watch():
        assert methods() != before
        trained(kind("cpu", init_scale=64.0))
    assert methods() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_and_after_an_exception(error: type[BaseException]) -> None:
    def failing() -> None:
        trained(Scaler("cpu", init_scale=64.0))
        raise error

    before = methods()
    with pytest.raises(error), precheck.watch():
        failing()
    assert methods() == before


def test_and_after_torch_refuses() -> None:
    before = methods()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(AssertionError), precheck.watch() as report:
        torch.amp.GradScaler("cpu").step(optimizer)
    assert methods() == before
    assert [finding.rule for finding in report.errors] == ["scaler-order"]


def test_nested_blocks_take_off_their_own() -> None:
    before = methods()
    with precheck.watch():
        outer = methods()
        with precheck.watch():
            trained(Scaler("cpu", init_scale=64.0))
        assert methods() == outer
    assert methods() == before


def test_what_was_watched_may_go() -> None:
    with precheck.watch() as report:
        gone = [weakref.ref(each) for each in trained(Scaler("cpu", init_scale=64.0))]
    gc.collect()
    assert report.facts["shadowed"] > 0
    assert [each() for each in gone] == [None] * 4


@pytest.mark.parametrize("enabled", [True, False])
def test_methods_return_what_they_return(enabled: bool) -> None:
    scaler, weight = Scaler("cpu", init_scale=64.0, enabled=enabled), nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with precheck.watch():
        loss = scaler.scale(weight.sum())
        loss.backward()
        assert float(loss.detach()) == (256.0 if enabled else 4.0)
        assert scaler.unscale_(optimizer) is None
        assert scaler.step(optimizer, lambda: 7.0) == 7.0 if not enabled else scaler.step(optimizer) is None
        assert scaler.get_scale() == (64.0 if enabled else 1.0)
        assert scaler.state_dict().get("scale", 1.0) == scaler.get_scale()
    assert torch.equal(weight.detach(), torch.full((4,), 0.9))


def test_a_scale_that_is_asked_for_is_told_from_other_numbers() -> None:
    """A loss multiplied by the scale is scaled; a number of no gradient, or another number, is not."""
    loss = nn.Parameter(torch.ones(()))
    with precheck.watch():
        scaler, scales = torch.amp.GradScaler("cpu", init_scale=64.0), shadow_now().scales
        scaler.scale(loss)
        number = scaler.get_scale()
        assert scales.of(loss * number) == 64.0
        assert scales.of(loss * 32.0) == 1.0
        assert scales.of(loss.detach() * number) == 1.0
