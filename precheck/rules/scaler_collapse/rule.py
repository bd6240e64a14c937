"""Finds loss scales that fall below 1, or with which no gradients are finite."""

from __future__ import annotations

from collections.abc import Iterator

from precheck import formats
from precheck.analysis.facts import Part
from precheck.analysis.training.scaling import HALF_MAX, fits_later, safe_scale_in_words
from precheck.findings import Finding
from precheck.observe.shadow.training.step_records import ScalerStep, ScalingEvent
from precheck.rules.rule import Candidate, Compared, Rule
from precheck.words import digits


class ScalerCollapse(Rule):
    limits = ()  # a scale holds the gradients or it does not

    def at_end(self, part: Part) -> Iterator[Candidate]:
        collapses = [event for event in part.observation.scaling if event.kind == "collapsed"]
        if collapses:
            collapse = next((event for event in collapses if _writes_nan(event.factor)), collapses[0])
            yield _collapsed(collapse, part.observation.steps)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """An error if GradScaler halved its scale down to 1 and gradients are still not finite, while float32's are."""
        expected = (record for record in run.reference.records.values() if record.kind in ("loss", "parameter-gradient"))
        if run.low.collapsed and not any(record.nonfinite for record in expected):
            text = f"gradients are not finite at any loss scale from 65536 down to 1 under {run.precision}"
            yield Finding("scaler-collapse", "error", text, phase="scaler", measured=1.0, limit=1.0)


def _collapsed(event: ScalingEvent, steps: list[ScalerStep]) -> Candidate:
    """The candidate for a scale below 1. A warning if float16 gradients alone explain it and later steps are not skipped, otherwise an error."""
    scale = event.factor
    skipped = [step for step in steps if step.skipped and step.scale != 1]  # a scale of 1 cannot be seen in scaled values
    worst = max(skipped, key=lambda step: step.backward.beyond, default=None)
    explained = worst is not None and all(step.backward.overflowed is not None for step in skipped) and worst.backward.beyond > HALF_MAX
    text = f"the loss scale fell to {scale:g}: "
    if _writes_nan(scale):
        way = "divides by it" if scale == 0 else "multiplies by its reciprocal, which is Inf"
        return Candidate("scaler-collapse", event.operation, f"{text}the next step {way}, and silently writes NaN into the weights", scale, 1.0)
    if worst is None or not explained:
        text += "steps are skipped at any scale, so the gradients are not finite for another reason"
        return Candidate("scaler-collapse", event.operation, text, scale, 1.0)
    text += f"float16 cannot hold gradients of {digits(worst.backward.beyond, 3)} even at a scale of 1, {safe_scale_in_words(worst.backward)}"
    lived = all(fits_later(step, steps) for step in skipped)
    return Candidate("scaler-collapse", event.operation, text, scale, 1.0, "warning" if lived else "error")


def _writes_nan(scale: float) -> bool:
    """Whether the scale's reciprocal, by which gradients are unscaled, is Inf in float32."""
    return scale == 0 or 1 / scale > formats.FP32.max
