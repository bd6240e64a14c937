"""Sums of a scaled gradient and one that is not scaled, in loops whose step is skipped, or that have no step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bugs.loops import Loop, line_of, marked, told, watched

HUGE = 2.0**40
"""A loss scale under which gradients in float16 overflow, so that the scaler skips the step."""


class Shrinking(torch.autograd.Function):
    """Hands the loss through, and adds to the gradient of the predictions, so that they stay small."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, predicted: torch.Tensor, upstream: bool) -> torch.Tensor:
        ctx.save_for_backward(predicted)
        ctx.upstream = upstream
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (predicted,) = ctx.saved_tensors
        return gradient, predicted * 0.01 * (gradient if ctx.upstream else 1), None  # at fault


def shrunk(wrong: bool, *, steps: int = 0) -> Loop:
    loop = Loop()
    for _ in range(steps or 1):
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            predicted = loop.model(loop.x).float()
        loss = (predicted - loop.y).square().mean()
        loop.scaler.scale(Shrinking.apply(loss, predicted, not wrong)).backward()
        if steps:
            loop.step()
    return loop


def penalised(wrong: bool) -> Loop:
    """The gradient of a penalty beside that of the loss. The first step is skipped."""
    loop = Loop(scale=HUGE)
    loop.backward()
    penalty = sum(weight.square().sum() for weight in loop.model.parameters())
    (penalty if wrong else loop.scaler.scale(penalty)).backward()  # type: ignore[arg-type]
    loop.step()
    return loop


@pytest.mark.parametrize("steps", [0, 2])
def test_a_backward_pass_of_the_user_that_drops_the_loss_scale_is_named_without_a_step_too(steps: int) -> None:
    report = watched(lambda wrong: shrunk(wrong, steps=steps), True)
    (finding,) = told(report)
    assert (finding.rule, finding.severity) == ("scaler-order", "error")
    assert "gives a gradient that is not scaled" in finding.message
    assert line_of(finding) in marked(Shrinking)


@pytest.mark.parametrize("steps", [0, 2])
def test_one_that_multiplies_by_what_comes_from_above_is_left_in_peace(steps: int) -> None:
    report = watched(lambda wrong: shrunk(wrong, steps=steps), False)
    assert not told(report), report.summary()


def test_a_sum_that_a_skipped_step_would_have_applied_is_an_error() -> None:
    report = watched(penalised, True)
    assert report.scaler["skipped"] == 1
    assert "scaler-order" in [finding.rule for finding in report.errors], report.summary()


def test_a_skipped_step_of_one_scale_is_left_in_peace() -> None:
    report = watched(penalised, False)
    assert report.scaler["skipped"] == 1
    assert "scaler-order" not in [finding.rule for finding in report.findings], report.summary()
