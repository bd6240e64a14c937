"""Analyses the steps of loss scalers: which steps were one update, which were calibration, and which scale would have been safe."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from precheck import formats
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import placed
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.places.source import shortened
from precheck.observe.shadow.training.step_records import Backward, ScalerStep

HALF_MAX = formats.FP16.max
OFTEN = Limit(0.05, "share of the steps")
"""The largest share of steps that a growing scale may skip: one in N + 1, where N is the growth interval. With the default N of 2000 it is 0.05 %.
New scalers may skip no more."""


def fits_later(skipped: ScalerStep, steps: list[ScalerStep]) -> bool:
    """Whether the scaler later took a step at a scale, perhaps below 1, at which the skipped step's overflow fits."""
    beyond, number = skipped.backward.beyond, skipped.operation.number
    later = (step for step in steps if step.scaler == skipped.scaler and not step.skipped and step.last > number)
    return any(step.scale * beyond <= HALF_MAX for step in later)


def count_of_steps(steps: list[ScalerStep]) -> int:
    """How many steps these records stand for."""
    return sum(step.times for step in steps)


def updates(observation: Observation, scaler: int) -> list[ScalerStep]:
    """One numbered step for each update of a scaler. If several optimizers step after one backward pass, a skipped one counts."""
    merged: list[ScalerStep] = []
    for step in (each for each in observation.steps if each.scaler == scaler):
        if merged and merged[-1].backward is step.backward:
            merged[-1] = step if step.skipped else merged[-1]
        else:
            merged.append(step)
    numbers = itertools.accumulate((step.times for step in merged), initial=1)
    numbered = zip(merged, numbers, strict=False)
    return [dataclasses.replace(step, operation=dataclasses.replace(step.operation, step=number)) for step, number in numbered]


def count_of_calibration_steps(steps: list[ScalerStep]) -> int:
    """How many of the first steps are calibration: as many as the scaler skips to lower its first scale to a safe one.

    A step in between may pass by chance. The scaler has settled when fewer than half of the steps so far were skipped.
    """
    skips = [place for place, step in enumerate(steps) if step.skipped]
    halves = itertools.takewhile(lambda each: 2 * each[0] > count_of_steps(steps[: each[1]]), enumerate(skips, start=1))
    unsettled = [place for _, place in halves]
    safe = min((steps[place].backward.room for place in unsettled), default=math.inf)
    if 0 < safe < math.inf:
        unsettled = unsettled[: max(0, math.ceil(math.log2(steps[0].scale / safe))) + 1]
    return unsettled[-1] + 1 if unsettled else 0


def longest_run_of_skips(steps: list[ScalerStep]) -> int:
    """The most steps in a row that were skipped."""
    most = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        most = max(most, run)
    return most


def safe_scale_in_words(back: Backward) -> str:
    """The largest safe loss scale, and the op that sets it, in words."""
    if back.at is None or not back.peak:
        return "and what overflows is not a float16 gradient"
    return f"and the largest safe one is {power_of_two_in_words(back.room)}, by {placed(back.at)}"


def power_of_two_in_words(scale: float) -> str:
    """A scale in words, as a power of two, rounded down."""
    return f"2^{math.floor(math.log2(scale))}"


def table(observation: Observation) -> dict[str, Any]:
    """The figures of the scaler with the most steps, for `Report.scaler`."""
    if not observation.steps:
        return {}
    busiest = max({step.scaler for step in observation.steps}, key=lambda each: sum(step.times for step in observation.steps if step.scaler == each))
    steps = [step for step in observation.steps if step.scaler == busiest]
    room = min(step.backward.room for step in steps)
    tightest = min(steps, key=lambda step: step.backward.room).backward.at
    return {
        "scale": steps[-1].scale,
        "steps": count_of_steps(steps),
        "skipped": sum(step.skipped for step in steps),
        "calibration": count_of_calibration_steps(steps),
        "interval": steps[0].interval,
        "safe": room if math.isfinite(room) else None,
        "tightest": f"{tightest.title} at {shortened(tightest.source)}" if tightest is not None else "",
        "history": [[step.scale, step.skipped] for step in steps for _ in range(step.times)],
    }
