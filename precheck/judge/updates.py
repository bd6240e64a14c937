"""Updates that the optimizer meant and the weights did not get.

Displacement D = <moved, meant> / <meant, meant> over the whole run, `meant` being the float32 reference's move. Rounding to
nearest that swallows small updates gives D near 0; stochastic rounding and Kahan summation, which swallow as many single
steps, give D near 1, since what is lost once arrives later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from precheck import formats
from precheck.findings import Finding
from precheck.judge.drift import Comparison
from precheck.judge.events import Suspect
from precheck.judge.extent import module_of
from precheck.observe.operations import Observation, Update
from precheck.observe.records import Record
from precheck.observe.sketch import WIDTH, inner

LOST = 0.5
"""Pure bfloat16 at the learning rates where training suffers measured 0.00 (norm weights) and 0.20 (matrices); healthy
optimizers 0.81 and more. Half is the middle."""
_LEAST_CERTAINTY = 0.4  # stochastic rounding of few elements over few steps may move nothing by luck; this much is forgiven


@dataclasses.dataclass(frozen=True, slots=True)
class Displacement:
    """How much of the meant move of a parameter arrived; `uncertainty` is four standard deviations of the estimate."""

    record: Record
    reference: Record
    arrived: float
    uncertainty: float

    @property
    def lost(self) -> bool:
        return self.arrived + self.uncertainty < LOST


def displacements(rows: Iterable[Comparison]) -> list[Displacement]:
    """One a parameter stored in a low format, at the last step it was seen.

    Left out are those whose gradient is zero but for rounding (a bias before a norm): what was meant is float32's own rounding.
    """
    rows = list(rows)
    aimless = {row.record.name for row in rows if row.record.kind == "parameter-gradient" and row.undetermined}
    last: dict[str, Comparison] = {}
    for row in rows:
        stored_low = row.record.dtype in ("bfloat16", "float16") and row.record.name not in aimless
        if row.record.kind == "update" and stored_low and row.reference.norm > 0 and not row.record.nonfinite:
            last[row.record.name] = row
    return [_displacement(row) for row in last.values()]


def _displacement(row: Comparison) -> Displacement:
    moved, meant = row.record, row.reference
    arrived = inner(moved.sketch, meant.sketch) / inner(meant.sketch, meant.sketch)
    sketching = (moved.norm / meant.norm) * math.sqrt(1 / WIDTH)  # standard deviation of <a, b> from sketches is |a||b|/sqrt(k)
    spacing = formats.of_dtype(moved.dtype).epsilon * moved.weight_norm
    stochastic = math.sqrt(spacing / (meant.norm * moved.numel)) if meant.norm else 0.0
    return Displacement(moved, meant, arrived, 4 * sketching + min(4 * stochastic, _LEAST_CERTAINTY))


def lost(rows: Iterable[Comparison]) -> list[Finding]:
    """One finding that names the worst parameter and counts the others."""
    every = displacements(rows)
    found = sorted((d for d in every if d.lost), key=lambda d: d.arrived)
    if not found:
        return []
    worst = found[0]
    return [
        Finding(
            "lost-update",
            "error",
            f"{worst.record.name}: {worst.arrived:.0%} of the update of {worst.record.step} step(s) arrived in {worst.record.dtype}; "
            f"{_numbers(worst)}; {len(found)} of {len(every)} parameters lost more than half",
            phase="optimizer", module=module_of(worst.record.name, "update"), step=worst.record.step, tensor=worst.record.name,
            measured=worst.arrived, limit=LOST,
        )
    ]  # fmt: skip


def _numbers(displacement: Displacement) -> str:
    fmt = formats.of_dtype(displacement.record.dtype)
    count = math.sqrt(displacement.record.numel)
    weight, update = displacement.record.weight_norm / count, displacement.reference.norm / count
    return f"weights are about {weight:.3g}, where {fmt.name} rounds away less than {fmt.ulp(weight) / 2:.2g}; the update is about {update:.2g}"


AIMLESS = 0.5
"""Drift of a gradient from which it is not the same gradient any more: what a step makes of it is not lost but never was."""


def unarrived(observation: Observation) -> list[Suspect]:
    """lost-update, of a watched run: parameters whose steps did not arrive, by the worse witness for the fault.

    EDQ asks step by step, the displacement over all steps; stochastic rounding and Kahan summation satisfy the second.
    """
    found = []
    for update in observation.updates:
        best = update_share(update) + _luck(update)
        if update.wanted and not update.held and update.gradient_drift < AIMLESS and best < LOST:
            found.append(update)
    if not found:
        return []
    worst = min(found, key=update_share)
    share, fmt = max(0.0, update_share(worst)), formats.of_dtype(worst.dtype)
    weight = worst.size / math.sqrt(max(1, worst.sampled))
    step = math.sqrt(worst.wanted / max(1, worst.sampled * worst.steps))
    text = (f"{worst.parameter or 'a parameter'}: {share:.0%} of the update of {worst.steps} step(s) arrived in {worst.dtype}; weights are about "
            f"{weight:.3g}, where {fmt.name} rounds away less than {fmt.ulp(weight) / 2:.2g}; a step is about {step:.2g}; "
            f"{len(found)} of {len(observation.updates)} parameters lost more than half")  # fmt: skip
    operation = dataclasses.replace(worst.operation, module=module_of(worst.parameter, "update"))
    return [Suspect("lost-update", operation, text, share, LOST)]


def update_share(update: Update) -> float:
    return max(update.edq, update.arrived)


def _luck(update: Update) -> float:
    """Four standard deviations of what stochastic rounding of so few elements over so few steps may do."""
    step = math.sqrt(update.wanted / max(1, update.sampled * update.steps))
    spacing = formats.of_dtype(update.dtype).epsilon * update.size / math.sqrt(max(1, update.sampled))
    return min(4 * math.sqrt(spacing / (step * update.sampled * update.steps)), _LEAST_CERTAINTY) if step else _LEAST_CERTAINTY
