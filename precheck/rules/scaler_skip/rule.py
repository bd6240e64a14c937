"""Finds steps that GradScaler skips because of overflows at any loss scale, or more often than calibration and growth explain.

A scaler begins too high on purpose and halves its scale until nothing overflows: ⌈log2(S₀/S)⌉ skips, where S is the largest safe scale. Then it
doubles the scale every N steps, so one step in N + 1 is skipped. Two standard deviations more than that, and one more, are allowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from precheck.analysis.facts import Part
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.training.scaling import (
    HALF_MAX,
    OFTEN,
    count_of_calibration_steps,
    count_of_steps,
    fits_later,
    longest_run_of_skips,
    power_of_two_in_words,
    safe_scale_in_words,
    updates,
)
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.training.step_records import ScalerStep
from precheck.rules.rule import Candidate, Rule
from precheck.words import digits

IN_A_ROW = Limit(4, "skips in a row")
"""The fewest skips in a row that are reported. When the scaler tries a larger scale it doubles it, so a single step back is enough."""
FEWEST_SKIPS = Limit(3, "skips")
"""The fewest skips after which the growth may be too frequent. Fewer give no rate."""


class ScalerSkip(Rule):
    limits = (IN_A_ROW, OFTEN, FEWEST_SKIPS)

    def at_end(self, part: Part) -> Iterator[Candidate]:
        yield from skips(part.observation)


def skips(observation: Observation) -> Iterator[Candidate]:
    """Candidates for each scaler. If its scale has collapsed (`scaler-collapse`), only the ops that overflow."""
    collapsed = any(event.kind == "collapsed" for event in observation.scaling)
    for scaler in dict.fromkeys(step.scaler for step in observation.steps):
        steps = updates(observation, scaler)
        hopeless = _beyond_scaling(steps)
        yield from hopeless or ([] if collapsed else _too_many(steps))


def _beyond_scaling(steps: list[ScalerStep]) -> list[Candidate]:
    """The ops that overflow even at a scale of 1, once each. A scaler may reach a scale below 1, which avoids that but loses small gradients."""
    found: dict[str, Candidate] = {}
    for step in steps:
        back = step.backward
        if step.skipped and back.overflowed is not None and back.beyond > HALF_MAX and not fits_later(step, steps):
            text = (f"the step is skipped, as it would be at any loss scale of 1 or more: gradients here reach {digits(back.beyond, 3)}, beyond the "
                    f"largest float16, {HALF_MAX:.0f}; the first is that of {back.parameter or 'no parameter'}")  # fmt: skip
            operation = dataclasses.replace(back.overflowed, step=step.operation.step)
            found.setdefault(placed(operation), Candidate("scaler-skip", operation, text, back.beyond, HALF_MAX))
    return list(found.values())


def _too_many(steps: list[ScalerStep]) -> list[Candidate]:
    """Candidates for steps that were skipped more often than a growing scale explains."""
    lost = [step for step in steps if step.skipped and step.backward.overflowed is None and not step.backward.parameter]
    if lost:
        text = (f"{len(lost)} of {count_of_steps(steps)} steps skipped: their gradients are not finite in float32 either, "
                "so the loss or the data are at fault")  # fmt: skip
        cure = "look at the loss and the data in float32 first: the scaler is right to skip these steps"
        return [Candidate("scaler-skip", lost[0].operation, text, float(len(lost)), 0.0, "warning", advice=cure)]
    rest, interval = steps[count_of_calibration_steps(steps) :], max(1, steps[0].interval)
    if not rest:
        return [_still_coming_down(steps)]
    skipped = [step for step in rest if step.skipped and step.backward.overflowed is not None]
    expected = count_of_steps(rest) / (interval + 1)
    limit = 1 + expected + 2 * math.sqrt(expected)
    run = longest_run_of_skips(rest)
    if len(skipped) <= limit and run <= IN_A_ROW:
        return _oscillating(rest, skipped, interval)
    worst = min(skipped or rest, key=lambda step: step.backward.room)
    scales = sorted({step.scale for step in rest})
    text = (f"{len(skipped)} of {count_of_steps(rest)} steps skipped after the scale had settled, {run} in a row. A scale that grows every "
            f"{interval} steps explains {limit:.0f}; this one went between {scales[0]:g} and {scales[-1]:g}, "
            f"{safe_scale_in_words(worst.backward)}")  # fmt: skip
    return [Candidate("scaler-skip", worst.operation, text, float(len(skipped)), limit, "error" if run > IN_A_ROW else "warning")]


def _still_coming_down(steps: list[ScalerStep]) -> Candidate:
    """A note where each step was skipped for a lower scale. That is healthy, but no weight has moved, so the run says nothing of later steps.

    A skip halves the scale. So after the last skip at a scale S, as many more steps as halvings of S to the safe scale are needed for one to arrive.
    """
    worst = min(steps, key=lambda step: step.backward.room)
    room, scale, many = worst.backward.room, steps[-1].scale, count_of_steps(steps)
    needed = many + (max(1, math.ceil(math.log2(scale / room))) if 0 < room < math.inf else 1)
    text = (f"all {many} steps skipped, so no weight has moved: the scale comes down from {steps[0].scale:g}, "
            f"{safe_scale_in_words(worst.backward)}; {needed} steps would tell more")  # fmt: skip
    return Candidate("scaler-skip", worst.operation, text, float(many), OFTEN, "note", needs=needed)


def _oscillating(rest: list[ScalerStep], skipped: list[ScalerStep], interval: int) -> list[Candidate]:
    """A candidate for a scale that grows beyond what is safe again and again."""
    if len(skipped) < FEWEST_SKIPS or len(skipped) <= OFTEN * count_of_steps(rest):
        return []
    steps = "step" if interval == 1 else f"{interval} steps"
    text = (f"{len(skipped)} of {count_of_steps(rest)} steps skipped: the scale grows every {steps} beyond what is safe, "
            f"{power_of_two_in_words(skipped[0].backward.room)}, and falls back; the default growth_interval is 2000")  # fmt: skip
    cure = "let the scale grow less often (growth_interval)"
    return [Candidate("scaler-skip", skipped[0].operation, text, len(skipped) / count_of_steps(rest), OFTEN, "warning", advice=cure)]
