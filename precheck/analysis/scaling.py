"""Scalers' steps, and how they belong together: which were one update, which were calibration, what scale would have been safe."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from precheck import formats
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import placed
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.source import shortened
from precheck.observe.shadow.step_records import Backward, ScalerStep

HALF_MAX = formats.FP16.max
OFTEN = Limit(
    0.05, "share of the steps",
    "that growth itself may cost, one in N + 1: at the default N of 2000 it is 0.05 %. Scalers made anew may cost no more.",
)  # fmt: skip


def held(skipped: ScalerStep, steps: list[ScalerStep]) -> bool:
    """Whether the scaler went on to a scale, below 1 perhaps, at which what overflowed fits, and a step was taken there."""
    beyond, number = skipped.backward.beyond, skipped.operation.number
    later = (step for step in steps if step.scaler == skipped.scaler and not step.skipped and step.last > number)
    return any(step.scale * beyond <= HALF_MAX for step in later)


def count(steps: list[ScalerStep]) -> int:
    return sum(step.times for step in steps)


def updates(observation: Observation, scaler: int) -> list[ScalerStep]:
    """One step for each update of a scaler, numbered: of several optimizers' steps from one backward pass, one that was skipped."""
    merged: list[ScalerStep] = []
    for step in (each for each in observation.steps if each.scaler == scaler):
        if merged and merged[-1].backward is step.backward:
            merged[-1] = step if step.skipped else merged[-1]
        else:
            merged.append(step)
    numbers = itertools.accumulate((step.times for step in merged), initial=1)
    numbered = zip(merged, numbers, strict=False)
    return [dataclasses.replace(step, operation=dataclasses.replace(step.operation, step=number)) for step, number in numbered]


def burst(steps: list[ScalerStep]) -> int:
    """How many steps of the beginning are calibration: as many skips as bring the first scale down to what is safe.

    A step in between may pass by luck. The scaler has settled where fewer than half of the steps so far were skipped.
    """
    skips = [place for place, step in enumerate(steps) if step.skipped]
    halves = itertools.takewhile(lambda each: 2 * each[0] > count(steps[: each[1]]), enumerate(skips, start=1))
    unsettled = [place for _, place in halves]
    safe = min((steps[place].backward.room for place in unsettled), default=math.inf)
    if 0 < safe < math.inf:
        unsettled = unsettled[: max(0, math.ceil(math.log2(steps[0].scale / safe))) + 1]
    return unsettled[-1] + 1 if unsettled else 0


def longest(steps: list[ScalerStep]) -> int:
    most = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        most = max(most, run)
    return most


def safe(back: Backward) -> str:
    if back.at is None or not back.peak:
        return "and what overflows is not a float16 gradient"
    return f"and the largest safe one is {power(back.room)}, by {placed(back.at)}"


def power(scale: float) -> str:
    """A scale as the power of two that it holds."""
    return f"2^{math.floor(math.log2(scale))}"


def table(observation: Observation) -> dict[str, Any]:
    """What the scalers did, for `Report.scaler`: one scaler's figures, the busiest one's where there are several."""
    if not observation.steps:
        return {}
    busiest = max({step.scaler for step in observation.steps}, key=lambda each: sum(step.times for step in observation.steps if step.scaler == each))
    steps = [step for step in observation.steps if step.scaler == busiest]
    room = min(step.backward.room for step in steps)
    tightest = min(steps, key=lambda step: step.backward.room).backward.at
    return {
        "scale": steps[-1].scale,
        "steps": count(steps),
        "skipped": sum(step.skipped for step in steps),
        "calibration": burst(steps),
        "interval": steps[0].interval,
        "safe": room if math.isfinite(room) else None,
        "tightest": f"{tightest.title} at {shortened(tightest.source)}" if tightest is not None else "",
        "history": [[step.scale, step.skipped] for step in steps for _ in range(step.times)],
    }
