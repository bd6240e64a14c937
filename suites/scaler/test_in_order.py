"""Loss scaling done right, as torch's documentation and people do it: no errors, no warnings."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import towers
from bugs.loops import SCALE, Loop, told, watched
from torch import nn
from torch.utils.checkpoint import checkpoint
from towers import Tower

import precheck
from precheck.observe.shadow.training.step_records import ScalerStep, ScalingEvent


def typical() -> Loop:
    loop = Loop()
    for _ in range(3):
        loop.backward()
        loop.step()
    return loop


def accumulated() -> Loop:
    loop = Loop(growth=1)
    for _ in range(3):
        loop.optimizer.zero_grad(set_to_none=False)
        for part in (slice(0, 8), slice(8, 16)):
            loop.scaler.scale(loop.loss(part) / 2).backward()
        loop.step()
    return loop


def clipped() -> Loop:
    loop = Loop(growth=2)
    for _ in range(3):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        norm = nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        assert norm.item() > 0  # logged
        if all(bool(torch.isfinite(gradient).all()) for gradient in loop.gradients):
            loop.scaler.step(loop.optimizer)
        loop.scaler.update()
    return loop


def two_losses() -> Loop:
    """Two models, losses and optimizers, one scaler; the losses share what they are made of."""
    one = Loop(growth=1)
    two = Loop(seed=5, scaler=one.scaler)
    for _ in range(3):
        one.optimizer.zero_grad()
        two.optimizer.zero_grad()
        first, second = one.loss(), two.loss()
        one.scaler.scale(2 * first + 3 * second).backward(retain_graph=True)
        one.scaler.scale(3 * first - second).backward()
        one.scaler.unscale_(one.optimizer)
        one.scaler.step(one.optimizer)
        one.scaler.step(two.optimizer)
        one.scaler.update()
    return one


def adversaries() -> Loop:
    """The generator's turn leaves gradients in the discriminator, under a scale that may have gone; they are thrown away."""
    maker, judge = Loop(growth=1, model=nn.Linear(4, 4)), Loop(seed=5)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = maker.model(maker.x)
            told_apart = judge.model(fake.detach()).float().mean() - judge.model(judge.x).float().mean()
        judge.optimizer.zero_grad()
        maker.scaler.scale(told_apart).backward()
        maker.scaler.step(judge.optimizer)
        maker.scaler.update()
        maker.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            taken_in = -judge.model(fake).float().mean()
        maker.scaler.scale(taken_in).backward()
        maker.scaler.step(maker.optimizer)
        maker.scaler.update()
    return maker


def two_scalers() -> Loop:
    one, two = Loop(scale=64.0, growth=1), Loop(seed=5, scale=4096.0, growth=1)
    for loop in (one, two, one, two):
        loop.backward()
    for loop in (one, two, one):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.step()
    return one


def disabled() -> Loop:
    loop = Loop(scaler=torch.amp.GradScaler("cpu", enabled=False))
    for _ in range(2):
        loop.backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.step()
    return loop


def resumed() -> Loop:
    first = typical()
    second = Loop(scale=2.0)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.scaler.load_state_dict(first.scaler.state_dict())
    second.backward()
    second.step()
    return second


def unscaled_by_hand() -> Loop:
    loop = Loop()
    for _ in range(2):
        loop.backward()
        share = 1.0 / loop.scaler.get_scale()
        for gradient in loop.gradients:
            gradient.mul_(share)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
    return loop


def scale_by_chance() -> Loop:
    """Numbers that coincide with the scale, which the program has read: a mean over as many elements, and rows counted."""
    loop = Loop()
    total = torch.zeros(())
    for _ in range(2):
        assert loop.scaler.get_scale() == SCALE
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = loop.model(loop.x.repeat(64, 1)).float()
        loss = out.square().mean() + out.abs().sum() / 1024
        total += loss.detach() * 1024
        loop.scaler.scale(loss).backward()
        loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.step()
    assert total.item() > 0
    return loop


def without_scaler() -> Loop:
    loop = Loop()
    for _ in range(2):
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = loop.model(loop.x)
        nn.functional.mse_loss(out.float(), loop.y).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
    return loop


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Doubled.apply(checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=False)))


def recomputed() -> Loop:
    loop = Loop(model=Recomputed(), growth=1)
    for _ in range(3):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.step()
    return loop


def burst() -> Loop:
    """A scale that is too large at first is halved until it is not; the schedule waits."""
    loop = Loop(scale=2.0**40, growth=50)
    for _ in range(40):
        loop.backward()
        loop.step()
    return loop


def long() -> Loop:
    loop = Loop(scale=2.0**16)
    for _ in range(200):
        loop.backward()
        loop.step()
    return loop


def put_together() -> Loop:
    """A result written into a fresh tensor in two goes: the gradient of each is zeroed where it was overwritten, the rest scaled."""
    loop = Loop(model=Tower(towers.put_together, into=4, out=1))
    for _ in range(3):
        loop.backward()
        loop.step()
    return loop


def flat() -> Loop:
    """Gradients are views of one buffer, as in DistributedDataParallel's buckets; each is unscaled where it lies."""
    loop = Loop(growth=1)
    parameters = list(loop.model.parameters())
    buffer = torch.zeros(sum(each.numel() for each in parameters))
    for each, part in zip(parameters, buffer.split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view_as(each)
    for _ in range(3):
        loop.optimizer.zero_grad(set_to_none=False)
        loop.scaler.scale(loop.loss()).backward()
        loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        loop.step()
    return loop


def frozen_column() -> Loop:
    """A part of a gradient is zeroed in place, so that these weights stay."""
    loop = Loop()
    for _ in range(3):
        loop.backward()
        loop.model.weight.grad[:, :1].zero_()
        loop.step()
    return loop


def epsilons() -> Loop:
    """Numbers beside which a scaled quantity is what it is: unit vectors and norms kept off zero."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        for gradient in loop.gradients:
            unit = gradient / (gradient.norm() + 1e-5)
            assert bool((unit.square() + 1e-8).sqrt().isfinite().all())
            assert bool((gradient.square().sum() + 1e-12).sqrt() > 0)
        loop.step()
    return loop


def thresholds() -> Loop:
    """A threshold that was multiplied by the scale, over a norm that Python took; and a mean of as many elements as the scale is."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        norm = torch.stack([gradient.norm() for gradient in loop.gradients]).norm()
        share = min(1.0, 0.05 * loop.scaler.get_scale() / float(norm.detach().cpu().numpy()))
        for gradient in loop.gradients:
            gradient.mul_(share)
        loop.step()
    return loop


def penalised() -> Loop:
    """A gradient penalty as it should be: what is compared with one was divided by the scale."""
    loop = Loop()
    x = loop.x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = loop.model(x).float()
    (slope,) = torch.autograd.grad(loop.scaler.scale(out.sum()), x, create_graph=True)
    penalty = ((slope / loop.scaler.get_scale()).norm(dim=1) - 1).square().mean()
    loop.scaler.scale(penalty).backward()
    loop.step()
    return loop


def scaled_again(by: float | None = None) -> Loop:
    """Gradients are divided by the scale, cut, and multiplied by it again, so that the scaler can unscale them."""
    loop = Loop()
    for _ in range(2):
        loop.backward()
        scale = loop.scaler.get_scale()
        found = [gradient / scale for gradient in loop.gradients]
        share = (0.05 / torch.stack([each.norm() for each in found]).norm()).clamp(max=1)
        for parameter, each in zip(loop.model.parameters(), found, strict=True):
            parameter.grad = each * share * (scale if by is None else by)
        loop.step()
    return loop


RECIPES = (typical, accumulated, clipped, two_losses, adversaries, two_scalers, disabled, resumed, unscaled_by_hand, scale_by_chance,
           without_scaler, recomputed, burst, long, flat,
           put_together, frozen_column, epsilons, thresholds, penalised, scaled_again)  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_it_is_left_in_peace(recipe: Callable[[], Loop]) -> None:
    made: list[Loop] = []
    report = watched(lambda: made.append(recipe()))
    assert not told(report), report.summary()
    assert report.facts["shadowed"] > 0
    assert bool(torch.isfinite(made[0].weight).all())
    assert not torch.equal(made[0].weight, Loop(model=None).weight)


SKIPPED = 2.0**36
KINDS = [({"foreach": True}, SCALE), ({"foreach": True}, SKIPPED), ({"foreach": False}, SCALE), ({"foreach": False}, SKIPPED),
         ({"fused": True}, SCALE), ({"fused": True}, SKIPPED)]  # fmt: skip


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(("way", "start"), KINDS)
def test_every_kind_of_step_is_left_in_peace(optimizer: Any, way: dict[str, bool], start: float) -> None:
    """A skipped step of a fused optimizer runs and moves nothing: that is neither a lost update nor a step on scaled gradients."""

    def code() -> None:
        loop = Loop(scale=start, optimizer=lambda parameters: optimizer(parameters, lr=0.01, **way))
        for _ in range(3):
            loop.backward()
            loop.step()

    report = watched(code)
    assert not told(report), report.summary()


def test_gradients_that_are_divided_by_the_scale_twice_are_told() -> None:
    """By hand and by the scaler, with no product by the scale between them."""
    (found,) = told(watched(lambda: scaled_again(by=1.0)))
    assert found.rule == "scaler-order"
    assert found.message.endswith("a step on gradients that are 1024 times too small because of the loss scale")


def test_what_is_kept_of_a_scaler_does_not_grow_with_the_steps_it_takes() -> None:
    """Steps in a row at one scale are one; each is counted all the same, and told in the history."""
    loop, kept = Loop(growth=1000), []
    with precheck.watch() as report:
        for step in range(30):
            loop.backward()
            loop.step()
            if step in (9, 29):
                gc.collect()
                kept.append(sum(type(each) is ScalerStep for each in gc.get_objects()))
    assert kept[0] == kept[1]
    assert report.findings == [], report.summary()
    assert (report.scaler["steps"], report.scaler["skipped"], len(report.scaler["history"])) == (30, 0, 30)


def test_a_fault_of_each_step_is_kept_a_few_times() -> None:
    loop, kept = Loop(), []
    loop.model.half()
    with precheck.watch() as report:
        for step in range(80):
            with contextlib.suppress(ValueError):  # float16 gradients are not unscaled
                loop.backward()
                loop.step()
            if step in (49, 79):
                gc.collect()
                kept.append(sum(type(each) is ScalingEvent for each in gc.get_objects()))
    assert kept[0] == kept[1]
    assert {finding.rule for finding in report.errors} >= {"scaler-order"}, report.summary()
