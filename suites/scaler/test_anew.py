"""Scalers one after another: which of them begin again for no reason."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from bugs.loops import Loop, told, watched
from torch import nn
from torch.amp import GradScaler

HIGH = 2.0**20  # four to five times above what is safe


def loop_from(scale: float = HIGH, seed: int = 0) -> Loop:
    """A loop whose gradients stay as large as they are."""
    loop = Loop(scale=scale, seed=seed, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6))
    loop.y *= 100
    return loop


def trained(loop: Loop, steps: int = 8) -> Loop:
    for _ in range(steps):
        loop.backward()
        loop.step()
    return loop


def restored() -> None:
    loop = trained(loop_from())
    state = loop.scaler.state_dict()
    loop.scaler = GradScaler("cpu", init_scale=HIGH)
    loop.scaler.load_state_dict(state)
    trained(loop)


def begun_where_it_is_safe() -> None:
    loop = trained(loop_from(64.0))
    loop.scaler = GradScaler("cpu", init_scale=64.0)
    trained(loop)


def begun_where_the_last_came_to() -> None:
    loop = trained(loop_from())
    loop.scaler = GradScaler("cpu", init_scale=loop.scaler.get_scale())
    trained(loop)


def models_one_after_another() -> None:
    for fold in range(3):
        trained(loop_from(seed=fold))


def two_that_take_turns() -> None:
    """One for each of two losses, the second of which needs a lower scale."""
    loop = loop_from()
    scalers = loop.scaler, GradScaler("cpu", init_scale=HIGH)
    for step in range(24):
        loop.scaler = scalers[step % 2]
        loop.optimizer.zero_grad()
        loop.scaler.scale(loop.loss() * (1 + 3 * (step % 2))).backward()
        loop.step()


def folds_from_one_start() -> None:
    """What an optimizer that keeps moments has to restore is empty before its first step: no checkpoint is resumed."""
    loop = Loop(scale=64.0, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9))
    start = copy.deepcopy(loop.optimizer.state_dict())
    for _ in range(2):
        loop.optimizer.load_state_dict(start)
        loop.scaler = GradScaler("cpu", init_scale=64.0)
        trained(loop, 2)


def rolled_back() -> None:
    """The best weights are restored, with their moments, under a scaler that has been calibrated meanwhile."""
    loop = Loop(scale=64.0, optimizer=torch.optim.Adam)
    best = copy.deepcopy(trained(loop, 2).optimizer.state_dict())
    trained(loop, 2).optimizer.load_state_dict(best)
    trained(loop, 2)


def long_schedule() -> None:
    """Six skips at the start of ten thousand steps: the learning rate is what it was."""
    loop = loop_from(2.0**22)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, 10_000)
    loop.optimizer.step()  # without gradients it moves nothing; torch warns of a schedule that steps before its optimizer
    for _ in range(10):
        trained(loop, 1)
        schedule.step()


def warm_up_from_zero() -> None:
    """Six skips in a warm-up of a thousand steps that begins at zero: each step doubles the rate or nearly so, and all are 0.6 % of its height."""
    loop = loop_from(2.0**22)
    schedule = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: min(1.0, step / 1000))
    loop.optimizer.step()
    for _ in range(10):
        trained(loop, 1)
        schedule.step()


def fused_through_skips() -> None:
    """torch takes back the step that a fused optimizer counted: the reference's counter goes back too."""
    loop = Loop(scale=2.0**30, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.05, fused=True))
    trained(loop, 24)


def two_models_at_once() -> None:
    """Each with its scaler: both go backward before either steps, and the first one's update is none of the second's business."""
    one, two = loop_from(seed=0), loop_from(seed=3)
    for _ in range(10):
        one.backward()
        two.backward()
        one.step()
        two.step()


def clipped_under_the_scale() -> None:
    """Thresholds times the scale, as gradients are."""
    loop = loop_from(1024.0)
    for _ in range(3):
        loop.backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.5 * loop.scaler.get_scale())
        nn.utils.clip_grad_value_(loop.model.parameters(), 0.05 * loop.scaler.get_scale())
        loop.step()


@pytest.mark.parametrize("code", [
    restored, begun_where_it_is_safe, begun_where_the_last_came_to, models_one_after_another, two_that_take_turns, folds_from_one_start,
    rolled_back, long_schedule, warm_up_from_zero, fused_through_skips, two_models_at_once, clipped_under_the_scale,
])  # fmt: skip
def test_in_peace(code: Callable[[], None]) -> None:
    report = watched(code)
    assert not told(report), report.summary()


def again(skips: int, steps: int) -> None:
    loop = trained(loop_from(), steps)
    loop.scaler = GradScaler("cpu", init_scale=loop.scaler.get_scale() * 2**skips)
    trained(loop)


@pytest.mark.parametrize(("skips", "steps", "severity"), [(1, 8, "warning"), (2, 8, "error"), (2, 40, "warning")])
def test_how_grave(skips: int, steps: int, severity: str) -> None:
    """A step is nothing, and neither are two of forty-eight; two of sixteen are more than growth ever costs."""
    (finding,) = told(watched(lambda: again(skips, steps)))
    assert (finding.rule, finding.severity) == ("scaler-order", severity)
    assert f"{skips} of {steps + 8} steps are skipped" in finding.message


def test_what_an_own_scaler_had_found_before_the_block_is_not_known() -> None:
    loop = trained(loop_from())
    later = GradScaler("cpu", init_scale=HIGH)

    def code() -> None:
        loop.scaler = later
        trained(loop)

    assert not told(watched(code))


def test_the_line_is_where_it_was_made() -> None:
    (finding,) = told(watched(lambda: again(3, 8)))
    assert finding.source.endswith(f"test_anew.py:{again.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_checkpoint_is_resumed_whether_it_keeps_moments_or_not(kind: Callable[..., torch.optim.Optimizer]) -> None:
    def code() -> None:
        def make(parameters: object) -> torch.optim.Optimizer:
            return kind(parameters, lr=1e-3)

        state = trained(Loop(scale=16.0, optimizer=make), 2).optimizer.state_dict()
        resumed = Loop(scale=16.0, optimizer=make)
        resumed.optimizer.load_state_dict(state)
        trained(resumed, 2)

    (finding,) = told(watched(code))
    assert "restore the scaler with scaler.load_state_dict" in finding.remedy
