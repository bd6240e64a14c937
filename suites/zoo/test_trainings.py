"""Healthy trainings are left in peace: no errors, no warnings, in any phase, and the loss falls as it should."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from healthy.trainings import TRAININGS, recurrent, scaled

import precheck
from precheck.observe.run import trains_recurrent


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.__name__)
def test_a_healthy_training_is_left_in_peace(training: Callable[[], list[float]], score: Callable[..., None]) -> None:
    if training is recurrent and not trains_recurrent(torch.bfloat16):
        pytest.skip("oneDNN has no LSTM in bfloat16 for this processor, and torch raises")
    with precheck.watch() as report:
        losses = training()
    score(SimpleNamespace(name=f"training {training.__name__}", mechanism="healthy"), control=bool(report.errors))
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    assert report.facts["covered"] > 0.9  # an op that was not followed was not judged
    assert losses[-1] < losses[0]  # else it would be no healthy training
    assert {row.phase for row in report.ops} >= {"forward", "backward"}


def test_a_scale_that_is_too_large_at_first_is_the_scalers_business(score: Callable[..., None]) -> None:
    """2^40 gives Inf in float16 until it has been halved some twenty times; each of these steps is skipped, and nothing is said."""
    with precheck.watch() as report:
        losses = scaled(2.0**40)
    score(SimpleNamespace(name="training with a large scale", mechanism="healthy"), control=bool(report.errors))
    assert sum(row.nonfinite for row in report.ops if row.phase == "backward") > 0
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()
    assert losses[-1] < losses[0]
