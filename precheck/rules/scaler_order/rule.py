"""Finds values with different loss scales in one op, and scalers that do not fit their steps.

A loss scale is a factor of the loss, its gradients and all values made from them, until they are unscaled. A wrong order of calls shows as factors
that do not match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from precheck.analysis.facts import Part
from precheck.analysis.limit import Limit
from precheck.analysis.training.scaling import OFTEN, count_of_steps
from precheck.findings import Severity
from precheck.observe.shadow.training.step_records import ScalerStep, ScalingEvent
from precheck.rules.rule import Candidate, Rule
from precheck.words import percents

AHEAD = Limit(3, "skipped steps")
"""The fewest skipped steps in which a schedule went on. A scaler that starts too high skips one or two, which does not matter to the schedule."""
FURTHER = Limit(0.05, "share of the highest learning rate, summed over steps")
"""The smallest change of the learning rate in these steps that is reported: no training shows a twentieth of its highest rate. Six steps of a
schedule of 10 000 are 4e-7, and three of a warm-up of 1000 are 0.003. Three of a warm-up of 8 are 0.38."""


class ScalerOrder(Rule):
    limits = (AHEAD, FURTHER, OFTEN)

    def at_end(self, part: Part) -> Iterator[Candidate]:
        for event in part.observation.scaling:
            if event.kind != "collapsed" and (event.kind != "scheduled" or (event.factor >= AHEAD and event.other >= FURTHER)):
                yield _order(event)
        yield from _begun_anew(part.observation.steps)


def _begun_anew(steps: list[ScalerStep]) -> list[Candidate]:
    """Steps that a new scaler skipped although an earlier one had found a safe scale for the same optimizer, as with a new scaler in each epoch.

    The safe scale is that of the last step taken, or half of that of a skipped one. A new scaler that begins above it has to find it again. Scalers
    that alternate, each for its own loss, do not count: they were made before any of them stepped.
    """
    lost: list[tuple[ScalerStep, float]] = []
    for optimizer in dict.fromkeys(step.optimizer for step in steps):
        first = former = None
        for step in (each for each in steps if each.optimizer == optimizer):
            if first is None or former is None or step.scaler != former.scaler:
                anew = first is not None and step.made is not None and step.made.number >= first.operation.number
                first, found = step, math.inf
                if anew and former is not None:
                    found = former.scale / 2 if former.skipped else former.scale  # with torch's default backoff
            if step.skipped and step.scale > found:
                lost.append((step, found))
            former = step
    if not lost:
        return []
    (worst, found), many = lost[0], len(lost)
    text = (f"a new GradScaler starts at {worst.scale:g}, although the one before it had settled at {found:g}: "
            f"{many} of {count_of_steps(steps)} steps are skipped until it has come down again")  # fmt: skip
    severity: Severity = "error" if many > max(1.0, OFTEN * count_of_steps(steps)) else "warning"
    cure = "make one scaler for the whole training"
    return [Candidate("scaler-order", worst.made or worst.operation, text, many / count_of_steps(steps), OFTEN, severity, advice=cure)]


def _order(event: ScalingEvent) -> Candidate:
    text, cure = _told(event)
    severity: Severity = "warning" if event.kind == "read" or (event.kind == "rescaled" and not event.text) else "error"
    return Candidate("scaler-order", event.operation, text, event.factor, event.other, severity, advice=cure)


def _told(event: ScalingEvent) -> tuple[str, str]:
    """The message on an event, and its cure."""
    scale, scaled, other = _scale_text(event.factor), _scaled(event.factor), _scaled(event.other)
    if event.kind == "applied" and event.factor < 1:
        once = "divide gradients by the scale once, by hand or in scaler.step"
        multiplied = "call backward() on what scaler.scale(loss) returns; a backward pass of your own must multiply by the gradient that comes in"
        cure = f"{multiplied}; and {once}" if event.text else f"{once}, and call scaler.update() only after every optimizer's step"
        return f"a step on gradients that are {1 / event.factor:g} times too small because of the loss scale", cure
    told = {
        ("mixed", "number"): (f"a number that is not scaled is added to one that {scaled}", "divide the scaled one by scaler.get_scale() first"),
        ("mixed", "function"): (f"an exponential is taken of a number that {scaled}", "divide that number by scaler.get_scale() first"),
        ("mixed", "backward"): (
            f"this backward pass gives a gradient that is not scaled, and it is added to one that {scaled if event.factor != 1 else other}",
            "multiply the gradient that this backward pass gives by the one that comes in"),
        ("compared", "backward"): (
            f"a backward pass cuts a gradient at a fixed number, or compares it with one. The gradient {scaled}, so that decides what is cut",
            "cut gradients after scaler.unscale_(optimizer), or cut the derivative before the incoming gradient multiplies it"),
        ("mixed", ""): (f"a number that {scaled} is added to one that {other}", "pass every loss through scaler.scale, or call unscale_ first"),
        ("compared", ""): (f"a number that {scaled} is compared with, or clipped by, one that {other}", "call scaler.unscale_(optimizer) first"),
        ("applied", ""): (
            f"a step on gradients still scaled by {scale}", "call scaler.step(optimizer), and scaler.update() only after every optimizer's step"),
        ("rescaled", ""): (
            f"a number that {scaled} is divided by another scale, {_scale_text(event.other)}", "read the scale before scaler.update()"),
        ("read", ""): (f"Python reads a number that is scaled by {scale}", "divide it by scaler.get_scale() first"),
        ("half", ""): (
            f"{event.factor:.0f} parameters are float16, and a GradScaler unscales float32 gradients only",
            "keep weights in float32, and use autocast"),
        ("repeated", ""): (
            "this step has been taken already, on the same gradients", "scaler.step(optimizer) calls optimizer.step(): call only one of the two"),
        ("fresh", ""): (
            "the optimizer was resumed from a checkpoint and this scaler was not", "restore the scaler with scaler.load_state_dict"),
        ("scheduled", ""): (
            f"the learning rate schedule went on {event.factor:.0f} times although the scaler had skipped the step. The rate moved by "
            f"{percents(event.other)} of the highest, and no weight did",
            "call scheduler.step() only where scaler.update() has not made scaler.get_scale() smaller"),
    }  # fmt: skip
    raised = f"the scaler raised ({event.text})", "for each step call backward(), unscale_ once for each optimizer, step, then update()"
    return told.get((event.kind, event.text)) or told.get((event.kind, ""), raised)


def _scale_text(factor: float) -> str:
    """A factor in words: 1024, 1/1024."""
    return f"1/{1 / factor:g}" if 0 < factor < 1 else f"{factor:g}"


def _scaled(factor: float) -> str:
    """What the loss scale does to a number, in words that follow "a number that"."""
    if factor == 1:
        return "is not scaled"
    return f"is {1 / factor:g} times too small because of the loss scale" if 0 < factor < 1 else f"is still multiplied by a loss scale of {factor:g}"
