"""Loss scaling: quantities under different scales that met, and scalers whose steps, schedules and states went apart.

Every rule follows from what a loss scale is: a factor that the loss, its gradients and all that is made of them carry until it
is divided out. No list of calls is kept; the wrong order of calls shows as factors that do not match.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from precheck import formats
from precheck.findings import Severity
from precheck.judge.events import Suspect
from precheck.judge.lineage import placed
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.source import shortened
from precheck.observe.shadow.steps import Backward, ScalerStep, ScalingEvent

AHEAD = 3
"""Skipped steps that a schedule went on through. A scaler that starts too high skips once or twice and the schedule never notices."""
FURTHER = 0.05
"""Sum of what the learning rate moved in these, each in shares of the rate: a twentieth of it is seen in no training. Of a schedule of 10 000
steps six are 4e-7, of a warm-up of 8 three are nearly all."""


def faults(observation: Observation) -> list[Suspect]:
    """scaler-order, scaler-collapse and scaler-skip."""
    collapses = [event for event in observation.scaling if event.kind == "collapsed"]
    found = list(skips(observation, collapsed=bool(collapses)))
    if collapses:
        told = next((event for event in collapses if _writes_nan(event.factor)), collapses[0])
        found.append(_collapsed(told, observation.steps))
    for event in observation.scaling:
        if event.kind != "collapsed" and (event.kind != "scheduled" or (event.factor >= AHEAD and event.other >= FURTHER)):
            found.append(_order(event))
    return found + _begun_anew(observation.steps)


def _collapsed(event: ScalingEvent, steps: list[ScalerStep]) -> Suspect:
    """A scale below 1: an error, but a warning where float16 gradients alone explain it and steps go through again."""
    scale = event.factor
    skipped = [step for step in steps if step.skipped and step.scale != 1]  # a scale of 1 leaves no trace on what carries it
    worst = max(skipped, key=lambda step: step.backward.beyond, default=None)
    explained = worst is not None and all(step.backward.overflowed is not None for step in skipped) and worst.backward.beyond > HALF_MAX
    text = f"the loss scale fell to {scale:.3g}: "
    if _writes_nan(scale):
        way = "divides by it" if scale == 0 else "multiplies by its reciprocal, which is Inf"
        return Suspect("scaler-collapse", event.operation, f"{text}the next step {way}, and writes NaN into the weights without a word", scale, 1.0)
    if worst is None or not explained:
        text += "steps are skipped at any scale, so the gradients are not finite for another reason"
        return Suspect("scaler-collapse", event.operation, text, scale, 1.0)
    text += f"float16 holds no gradients of {worst.backward.beyond:.3g} at a scale of 1 either, {_safe(worst.backward)}"
    lived = all(_held(step, steps) for step in skipped)
    return Suspect("scaler-collapse", event.operation, text, scale, 1.0, "warning" if lived else "error")


def _held(skipped: ScalerStep, steps: list[ScalerStep]) -> bool:
    """Whether the scaler went on to a scale, below 1 perhaps, at which what overflowed fits, and a step was taken there."""
    beyond, number = skipped.backward.beyond, skipped.operation.number
    later = (step for step in steps if step.scaler == skipped.scaler and not step.skipped and step.last > number)
    return any(step.scale * beyond <= HALF_MAX for step in later)


def _writes_nan(scale: float) -> bool:
    """Whether the reciprocal, which unscales, is Inf in float32."""
    return scale == 0 or 1 / scale > formats.FP32.max


def _begun_anew(steps: list[ScalerStep]) -> list[Suspect]:
    """Steps skipped by scalers that were made while another had found what is safe for the same optimizer: in each epoch, or each step.

    What was found is the scale of the last step that was taken, or half of one that was skipped. A new scaler that begins above
    it has to find it again. Two that take turns, each for a loss of its own, were made before either of them stepped.
    """
    lost: list[tuple[ScalerStep, float]] = []
    for optimizer in dict.fromkeys(step.optimizer for step in steps):
        first = former = None
        for step in (each for each in steps if each.optimizer == optimizer):
            if first is None or former is None or step.scaler != former.scaler:
                anew = first is not None and step.made is not None and step.made.number >= first.operation.number
                first, found = step, _next(former) if anew and former is not None else math.inf
            if step.skipped and step.scale > found:
                lost.append((step, found))
            former = step
    if not lost:
        return []
    (worst, found), many = lost[0], len(lost)
    text = (f"a scaler made anew begins at {worst.scale:g}, where the one before it had come to {found:g}, and has to find that again: "
            f"{many} of {_count(steps)} steps skipped; make one scaler for the whole training")  # fmt: skip
    severity: Severity = "error" if many > max(1.0, OFTEN * _count(steps)) else "warning"
    return [Suspect("scaler-order", worst.made or worst.operation, text, many / _count(steps), OFTEN, severity)]


def _count(steps: list[ScalerStep]) -> int:
    return sum(step.times for step in steps)


def _next(step: ScalerStep) -> float:
    """The scale that a scaler of torch's own backoff tries after a step."""
    return step.scale / 2 if step.skipped else step.scale


HALF_MAX = formats.FP16.max
IN_A_ROW = 4
"""Skips one after another from which the scale is not being probed: growth is by two, so one step back is enough after it."""


def skips(observation: Observation, *, collapsed: bool = False) -> list[Suspect]:
    """scaler-skip: steps skipped for what no loss scale mends, and more often than calibration and growth explain.

    A scaler begins too high on purpose and halves until nothing overflows: ⌈log2(S₀/S)⌉ skips, S being the largest safe scale.
    From there it doubles every N steps, so one step in N + 1 is skipped; two standard deviations of that, and one more, are let
    pass. Where the scale has `collapsed`, that says it all but for the op.
    """
    found: list[Suspect] = []
    for scaler in dict.fromkeys(step.scaler for step in observation.steps):
        steps = _updates(observation, scaler)
        hopeless = _beyond_scaling(steps)
        found += hopeless or ([] if collapsed else _too_many(steps))
    return found


def _updates(observation: Observation, scaler: int) -> list[ScalerStep]:
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


def _beyond_scaling(steps: list[ScalerStep]) -> list[Suspect]:
    """What overflows at a scale of 1 too, once for each op. A scale below 1, which a scaler may come to, mends it at the cost of small gradients."""
    found: dict[str, Suspect] = {}
    for step in steps:
        back = step.backward
        if step.skipped and back.overflowed is not None and back.beyond > HALF_MAX and not _held(step, steps):
            text = (f"the step is skipped, and would be at any loss scale from 1 up: this makes gradients of {back.beyond:.3g}, beyond the largest "
                    f"float16, {HALF_MAX:.0f}; the first to become so is that of {back.parameter or 'no parameter'}")  # fmt: skip
            operation = dataclasses.replace(back.overflowed, step=step.operation.step)
            found.setdefault(placed(operation), Suspect("scaler-skip", operation, text, back.beyond, HALF_MAX))
    return list(found.values())


OFTEN = 0.05
"""Share of steps that growth itself may cost, one in N + 1: at the default N of 2000 it is 0.05 %. Scalers made anew may cost no more."""


def _too_many(steps: list[ScalerStep]) -> list[Suspect]:
    lost = [step for step in steps if step.skipped and step.backward.overflowed is None and not step.backward.parameter]
    if lost:
        text = (f"skipped: what {len(lost)} of {_count(steps)} steps were to apply is not finite in float32 either, "
                "so the loss or its data are at fault")  # fmt: skip
        return [Suspect("scaler-skip", lost[0].operation, text, float(len(lost)), 0.0, "warning")]
    burst = _burst(steps)
    rest, interval = steps[burst:], max(1, steps[0].interval)
    skipped = [step for step in rest if step.skipped and step.backward.overflowed is not None]
    expected = _count(rest) / (interval + 1)
    limit = 1 + expected + 2 * math.sqrt(expected)
    run = _longest(rest)
    if len(skipped) <= limit and run <= IN_A_ROW:
        return _oscillating(rest, skipped, interval)
    worst = min(skipped or rest, key=lambda step: step.backward.room)
    scales = sorted({step.scale for step in rest})
    text = (f"{len(skipped)} of {_count(rest)} steps skipped after calibration, {run} in a row, where growth every {interval} steps explains "
            f"{limit:.0f}; the scale went between {scales[0]:g} and {scales[-1]:g}, {_safe(worst.backward)}")  # fmt: skip
    return [Suspect("scaler-skip", worst.operation, text, float(len(skipped)), limit, "error" if run > IN_A_ROW else "warning")]


def _oscillating(rest: list[ScalerStep], skipped: list[ScalerStep], interval: int) -> list[Suspect]:
    if len(skipped) < 3 or len(skipped) <= OFTEN * _count(rest):
        return []
    text = (f"{len(skipped)} of {_count(rest)} steps skipped: the scale grows every {interval} steps beyond what is safe, "
            f"{power(skipped[0].backward.room)}, and falls back; the default growth_interval is 2000")  # fmt: skip
    return [Suspect("scaler-skip", skipped[0].operation, text, len(skipped) / _count(rest), OFTEN, "warning")]


def _burst(steps: list[ScalerStep]) -> int:
    """How many steps of the beginning are calibration: as many skips as bring the first scale down to what is safe."""
    count = next((place for place, step in enumerate(steps) if not step.skipped), len(steps))
    safe = min((step.backward.room for step in steps[:count]), default=math.inf)
    return min(count, max(0, math.ceil(math.log2(steps[0].scale / safe))) + 1) if 0 < safe < math.inf else count


def _longest(steps: list[ScalerStep]) -> int:
    longest = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        longest = max(longest, run)
    return longest


def _safe(back: Backward) -> str:
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
    safe = min(step.backward.room for step in steps)
    tightest = min(steps, key=lambda step: step.backward.room).backward.at
    return {
        "scale": steps[-1].scale,
        "steps": _count(steps),
        "skipped": sum(step.skipped for step in steps),
        "calibration": _burst(steps),
        "interval": steps[0].interval,
        "safe": safe if math.isfinite(safe) else None,
        "tightest": f"{tightest.title} at {shortened(tightest.source)}" if tightest is not None else "",
        "history": [[step.scale, step.skipped] for step in steps for _ in range(step.times)],
    }


def _order(event: ScalingEvent) -> Suspect:
    scale, other, severity = _told(event.factor), _told(event.other), "error"
    if event.kind == "mixed":
        text = f"a quantity scaled by {scale} is added to one scaled by {other}: pass every loss through scaler.scale, or unscale_ first"
    elif event.kind == "compared":
        text = f"a quantity scaled by {scale} is compared with, or clipped by, one scaled by {other}: call scaler.unscale_(optimizer) first"
    elif event.kind == "applied":
        text = f"a step on gradients still scaled by {scale}: use scaler.step(optimizer), and scaler.update() only after every optimizer's step"
    elif event.kind == "rescaled":
        text = f"a quantity scaled by {scale} is divided by another scale, {other}: read the scale before scaler.update()"
        severity = "warning"
    elif event.kind == "read":
        text, severity = f"Python reads a number that is scaled by {scale}", "warning"
    elif event.kind == "half":
        text = f"{event.factor:.0f} parameters are float16, and a GradScaler unscales float32 gradients only: keep weights in float32, use autocast"
    elif event.kind == "repeated":
        text = "this step has been taken already, on the same gradients: scaler.step(optimizer) calls optimizer.step(), so call only one of them"
    elif event.kind == "fresh":
        text = "the optimizer was resumed from a checkpoint and this scaler was not: restore it with scaler.load_state_dict"
    elif event.kind == "scheduled":
        text = f"the schedule went on {event.factor:.0f} times although the scaler had skipped the step: step it only after a step that was taken"
    else:
        text = f"the scaler refuses ({event.text}): unscale_ once an optimizer and step, after the last backward, and update() after every step"
    chosen: Severity = "warning" if severity == "warning" else "error"
    return Suspect("scaler-order", event.operation, text, event.factor, event.other, chosen)


def _told(factor: float) -> str:
    """A factor as people say it: 1024, 1/1024."""
    return f"1/{1 / factor:g}" if 0 < factor < 1 else f"{factor:g}"
