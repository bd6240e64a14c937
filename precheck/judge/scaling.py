"""Loss scaling: quantities under different scales that met, and scalers whose steps, schedules and states went apart.

Every rule follows from what a loss scale is: a factor that the loss, its gradients and all that is made of them carry until it
is divided out. No list of calls is kept; the wrong order of calls shows as factors that do not match.
"""

from __future__ import annotations

from precheck.findings import Severity
from precheck.judge.events import Suspect
from precheck.observe.operations import Observation, ScalingEvent

AHEAD = 3
"""Skipped steps that a schedule went on through. A scaler that starts too high skips once or twice and the schedule never notices."""


def faults(observation: Observation) -> list[Suspect]:
    """scaler-order and scaler-collapse."""
    found = []
    for event in observation.scaling:
        if event.kind == "collapsed":
            text = f"the loss scale fell to {event.factor:.3g}: steps are skipped at any scale, so the gradients are not finite for another reason"
            found.append(Suspect("scaler-collapse", event.operation, text, event.factor, 1.0))
        elif event.kind != "scheduled" or event.factor >= AHEAD:
            found.append(_order(event))
    return found


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
