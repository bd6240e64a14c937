"""A loss that is NaN for good: what torch makes of the scale and then of the weights, and what is said of it.

The scale halves with each skip. From 2^16 it is below 1 after 17, and 0 after 166: 2^-149 is float32's smallest number, and half of
that rounds to even, to 0. Its reciprocal is Inf twenty steps sooner: 2^128 is beyond float32.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bugs.loops import Loop, line_of, told, watched

from precheck.findings import Report

START = 2.0**16
BELOW_ONE, INFINITE, ZERO = 17, 16 + 128, 166
"""Skips from `START` after which the scale is below 1, its reciprocal is Inf in float32, it is 0."""


def spoilt(steps: int, **facts: Any) -> Loop:
    """A loop whose loss has been NaN from the first step on."""
    loop = Loop(**({"scale": START} | facts))
    for _ in range(steps):
        loop.optimizer.zero_grad()
        loop.scaler.scale(loop.loss() * math.nan).backward()
        loop.step()
    return loop


def healthy(loop: Loop) -> Loop:
    loop.backward()
    loop.step()
    return loop


def report_of(steps: int) -> Report:
    return watched(lambda: healthy(spoilt(steps)))


@pytest.mark.parametrize(("skips", "scale"), [(16, 1.0), (BELOW_ONE, 0.5), (ZERO - 1, 2.0**-149), (ZERO, 0.0), (ZERO + 3, 0.0)])
def test_torch_halves_the_scale_down_to_zero(skips: int, scale: float) -> None:
    assert spoilt(skips).scaler.get_scale() == scale


KINDS = [(kind, way) for kind in (torch.optim.SGD, torch.optim.AdamW) for way in ({"foreach": False}, {"foreach": True}, {"fused": True})]


@pytest.mark.parametrize(("kind", "way"), KINDS)
@pytest.mark.parametrize("skips", [BELOW_ONE, INFINITE - 1, INFINITE, ZERO])
def test_torch_writes_what_is_not_finite_into_the_weights(kind: Any, way: dict[str, bool], skips: int) -> None:
    """Not in the steps that are skipped, but in the first one after that is sound, and without a word: 0 x Inf, and of a fused
    optimizer, which divides where others multiply by the reciprocal, 0/0.
    """
    finite = skips < (ZERO if way.get("fused") else INFINITE)
    loop = spoilt(skips, optimizer=lambda parameters: kind(parameters, lr=0.01, **way))
    assert bool(loop.weight.isfinite().all())
    healthy(loop)
    assert bool(loop.weight.isfinite().all()) == finite


def test_a_scale_of_one_is_no_collapse() -> None:
    report = report_of(BELOW_ONE - 1)
    assert not report.errors, report.summary()


def test_sixteen_steps_that_are_not_finite_in_float32_either_are_told() -> None:
    assert told(report_of(BELOW_ONE - 1))


@pytest.mark.parametrize(("skips", "scale"), [(BELOW_ONE, 0.5), (INFINITE, 2.0**-128), (ZERO, 0.0)])
def test_below_one_is_an_error_on_the_line_of_the_step(skips: int, scale: float) -> None:
    report = report_of(skips)
    (finding,) = (each for each in report.errors if each.rule == "scaler-collapse")
    assert {each.rule for each in report.errors} <= {"scaler-collapse", "gradient-underflow", "nan"}  # of the sound step at such a scale
    assert (finding.rule, finding.phase, finding.limit) == ("scaler-collapse", "scaler", 1.0)
    assert line_of(finding)[0].name == "loops.py"
    assert "the loss scale fell to " in finding.message
    assert finding.remedy
    assert report.scaler["scale"] == scale
    assert report.scaler["skipped"] == skips


@pytest.mark.parametrize("skips", [INFINITE, ZERO])
def test_what_was_written_into_the_weights_is_said(skips: int) -> None:
    finding = next(each for each in report_of(skips).errors if each.rule == "scaler-collapse")
    assert "NaN into the weights" in finding.message


def test_a_block_that_begins_at_zero_is_told_what_the_step_writes() -> None:
    loop = spoilt(ZERO)
    report = watched(lambda: healthy(loop))
    (finding,) = report.errors
    assert (finding.rule, finding.measured, finding.limit) == ("scaler-collapse", 0.0, 1.0)
    assert "fell to 0: the next step divides by it, and silently writes NaN into the weights" in finding.message
    assert bool(loop.weight.isnan().all())


def test_a_scale_that_begins_below_one_and_holds_is_what_the_user_chose() -> None:
    """Gradients are finite, no step is skipped, nothing has fallen."""
    report = watched(lambda: [healthy(loop) for loop in [Loop(scale=0.5)] for _ in range(3)])
    assert "scaler-collapse" not in {finding.rule for finding in report.findings}, report.summary()


def test_a_root_of_zero_collapses_and_its_mended_twin_does_not() -> None:
    """0 · Inf in every step; 1e-8 under the root makes it finite."""

    def code(guard: float) -> None:
        loop = Loop(scale=8.0)
        for _ in range(6):
            loop.optimizer.zero_grad()
            unused = 0 * loop.model.weight
            loop.scaler.scale(loop.loss() + (unused.square() + guard).sqrt().sum()).backward()
            loop.step()

    assert [finding.rule for finding in watched(code, 0.0).errors] == ["scaler-collapse"]
    assert not told(watched(code, 1e-8))


def steep(floor: bool) -> Report:
    """Gradients of 1e5: too large for half at a scale of 1, and not at 1/4."""
    loop = Loop(scale=8.0, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-5))

    def code() -> None:
        for _ in range(12):
            loop.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = loop.model(loop.x)
                loss = ((out - (4000 * loop.y).half()).float() ** 2).sum() * 4
            loop.scaler.scale(loss).backward()
            loop.step()
            if floor and loop.scaler.get_scale() < 1:
                loop.scaler.update(new_scale=1.0)

    return watched(code)


def test_a_scale_below_one_that_holds_is_told_and_is_no_error() -> None:
    report = steep(floor=False)
    assert not report.errors, report.summary()
    (finding,) = (each for each in told(report) if each.rule == "scaler-collapse")
    assert (finding.severity, finding.phase) == ("warning", "scaler")
    assert "fell to 0.5: float16 cannot hold gradients of" in finding.message
    assert "even at a scale of 1, and the largest safe one is 2^-" in finding.message
    assert [skipped for _, skipped in report.scaler["history"]][-5:] == [False] * 5


def test_a_scale_that_may_not_go_below_one_skips_every_step() -> None:
    report = steep(floor=True)
    assert {"overflow", "scaler-skip", "scaler-collapse"} <= {finding.rule for finding in report.errors}, report.summary()
    (finding,) = (each for each in report.errors if each.rule == "scaler-skip")
    assert "skipped, as it would be at any loss scale of 1 or more" in finding.message
    assert all(skipped for _, skipped in report.scaler["history"])
