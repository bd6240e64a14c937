"""Measures which share of the optimizer's intended updates arrives in the weights.

The displacement is D = <moved, meant> / <meant, meant> over the whole run, where `meant` is the float32 reference's move. Rounding to nearest that
swallows small updates gives D near 0. Stochastic rounding and Kahan summation swallow as many single steps, but give D near 1, since lost parts
arrive later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from precheck import formats
from precheck.analysis.labels import module_of
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.observe.recording.sketch import WIDTH, inner
from precheck.observe.records import Record
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.training.step_records import OptimizerState, Update

_UNAGED: Mapping[str, tuple[float, int]] = {}
LOST_UPDATE = Limit(0.5, "share of the intended update")
"""An update is lost if a smaller share of it arrives. With pure bfloat16, at learning rates where training suffers, 0.00 (norm weights) and 0.20
(matrices) arrived. With healthy optimizers 0.81 and more did. Half is between them."""
FORGIVEN = Limit(0.4, "share of the intended update")
"""The largest share that is forgiven as chance. Stochastic rounding of few elements over few steps may move nothing."""
UPDATES = Limit(8, "updates")
"""The fewest updates after which the share that arrived is reported, or a value stands still. After fewer, stochastic rounding may give any share."""
INTENDED = Limit(2.0, "unit roundoffs")
"""The smallest intended change that counts, relative to what is changed: an accumulator, a state, a weight that decays. The format could have shown
it. (The remainder of a Kahan summation is nothing but rounding error, and in the reference it does not move.)"""
AIMLESS = Limit(0.5, "relative error")
"""If a gradient is further from float32's, it is another gradient. The step made from it is not lost: it was never the intended one."""
ONLY_ROUNDING = Limit(2.0**6, "times")
"""If a gradient is this many times larger than float32's, it is nothing but rounding. A gradient that is zero in exact arithmetic is as large as the
format's roundoff, 2^13 (float16) or 2^16 (bfloat16) times float32's. The limit is about half of these digits. Gradients that only changed direction,
since inputs were rounded, kept their size within a factor of 1.5."""

BEYOND = Limit(2.0, "ratio of step to dead zone, as root mean squares")
"""A step of at least this size is not rounded away. Most of it is in elements that move by at least as much, and only a weight of more than twice the
others' size could absorb that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Displacement:
    """The share of a parameter's intended move that arrived. `uncertainty` is four standard deviations of the estimate."""

    record: Record
    reference: Record
    arrived: float
    uncertainty: float

    @property
    def lost(self) -> bool:
        return self.arrived + self.uncertainty < LOST_UPDATE


def displacements(rows: Iterable[ComparedTensor], aged: Mapping[str, tuple[float, int]] = _UNAGED) -> list[Displacement]:
    """The displacement of each parameter that is stored low, at the last recorded step, and of each wide one that did not move at all.

    Parameters whose gradient is zero up to rounding (a bias before a norm) are left out, since the reference's step is its own rounding error. They
    are recognised by a gradient that differs altogether from the reference's. If it has the reference's size but another direction, because inputs
    were rounded, the reference's step is no standard. Then the share counts that the optimizer alone makes arrive of the run's own steps (`aged`).
    So it is if a weight moved as far as it should, but not to the same place, in steps that its format holds: Adam moves a weight by the sign of its
    gradient, and the signs of small gradients are chance.
    """
    rows = list(rows)
    unlike = [row for row in rows if row.record.kind == "parameter-gradient" and row.undetermined and row.relative >= AIMLESS]
    turned = {row.record.name for row in unlike if row.record.norm < ONLY_ROUNDING * row.reference.norm and row.record.name in aged}
    aimless = {row.record.name for row in unlike} - turned
    last: dict[str, ComparedTensor] = {}
    for row in rows:
        judged = (row.record.low or row.record.norm == 0) and row.record.name not in aimless
        if row.record.kind == "update" and judged and row.reference.norm > 0 and not row.record.nonfinite:
            last[row.record.name] = row
    elsewhere = {name for name, row in last.items() if _moved_elsewhere(row)}
    turned |= elsewhere & set(aged)
    alone = {name: Displacement(row.record, row.reference, aged[name][0], 0.0) for name, row in last.items() if name in turned}
    return [alone.get(name) or _displacement(row) for name, row in last.items() if name in alone or name not in elsewhere]


def _displacement(row: ComparedTensor) -> Displacement:
    """What arrived of a parameter's move, estimated from sketches."""
    moved, meant = row.record, row.reference
    arrived = inner(moved.sketch, meant.sketch) / inner(meant.sketch, meant.sketch)
    sketching = (moved.norm / meant.norm) * math.sqrt(1 / WIDTH)  # standard deviation of <a, b> from sketches is |a||b|/sqrt(k)
    spacing = formats.of_dtype(moved.dtype).epsilon * moved.weight_norm
    stochastic = math.sqrt(spacing / (meant.norm * moved.numel)) if meant.norm else 0.0
    return Displacement(moved, meant, arrived, 4 * sketching + min(4 * stochastic, FORGIVEN))


def _moved_elsewhere(row: ComparedTensor) -> bool:
    """Whether a weight moved as far as it should, and by chance hardly to where it should: half of what moved was not meant. Where a part of the
    elements does not move, all that moves was meant. A weight that moves back does not do so by chance."""
    moved, meant, count = row.record, row.reference, math.sqrt(row.record.numel)
    found, far = _displacement(row), moved.norm / meant.norm
    chance = found.lost and found.arrived + found.uncertainty >= 0 and far**2 - found.arrived >= LOST_UPDATE and LOST_UPDATE <= far <= 1 / LOST_UPDATE
    return chance and not rounded_away(moved.dtype, moved.weight_norm / count, meant.norm / count / moved.step)


def worst_states(updates: Iterable[Update], badness: Callable[[Update, OptimizerState], float]) -> dict[str, Update]:
    """For each name of an optimizer's states, such as `exp_avg_sq`, the parameter whose state is worst. A state with a badness of 0 is healthy."""
    worst: dict[str, tuple[float, Update]] = {}
    for update in updates:
        for name, state in update.states.items():
            bad = badness(update, state)
            if bad > (worst[name][0] if name in worst else 0.0):
                worst[name] = bad, update
    return {name: update for name, (_, update) in worst.items()}


def rounded_away(dtype: str, weight: float, step: float) -> bool:
    """Whether rounding may explain that a step is lost. Sizes are root mean squares of elements."""
    return step < BEYOND * max(formats.of_dtype(dtype).half_ulp(weight))


def is_lost(update: Update) -> bool:
    """Whether an update is lost. Stochastic rounding makes a share of 1 ± luck arrive. Less than that is no effect of stochastic rounding."""
    share = update_share(update)
    drift = update.gradient_drift if update.moved else update.first_drift  # where nothing moved, the loss itself makes later gradients wrong
    if not update.wanted or drift >= AIMLESS or share >= LOST_UPDATE:
        return False
    if update.mass < LOST_UPDATE and not rounded_away(update.dtype, update.weight, update.step):
        return False  # the weight has moved, and not to where it should: its gradient is to blame
    if update.aged is not None:
        return True
    return not update.held and (share + _luck(update) < 1 or share + FORGIVEN < LOST_UPDATE)


def update_share(update: Update) -> float:
    """The share that arrived, as the largest of three measures. If the optimizer keeps a remainder, the share that arrives with it later."""
    if update.held and update.aged is not None:
        return update.aged
    return max(update.edq, update.arrived, update.aged or 0.0)


def _sizes(update: Update) -> dict[str, Any]:
    """The size of a weight, of an intended step, and of the longest steps down and up that the format rounds away."""
    return {"weight": update.weight, "step": update.step, "dead_zone": list(formats.of_dtype(update.dtype).half_ulp(update.weight))}


def table(observation: Observation) -> list[dict[str, Any]]:
    """Rows for `Report.updates`, one for each low-format parameter with steps. Sizes are root mean squares of elements."""
    return [
        {"parameter": each.parameter, "dtype": each.dtype, "steps": each.steps, "edq": each.edq, "arrived": each.arrived, "moved": each.moved,
         "sampled": each.sampled, "absorbed": each.absorbed, "lost_mass": each.mass, "rate": each.rate, "held": each.held, "aged": each.aged,
         "horizon": each.horizon, "lost": is_lost(each), **_sizes(each)}
        for each in observation.updates
    ]  # fmt: skip


def _luck(update: Update) -> float:
    """Four standard deviations of the effect of stochastic rounding, for this number of elements and steps."""
    spacing = formats.of_dtype(update.dtype).epsilon * update.weight
    return 4 * math.sqrt(spacing / (update.step * update.sampled * update.steps)) if update.step else math.inf


def placed_at(update: Update, state: OptimizerState | None = None) -> Operation:
    """The op of an update, with the line that wrote the weight, or this state of its optimizer, and the module that holds the weight."""
    wrote = state.wrote if state is not None and state.wrote else update.wrote
    found = dataclasses.replace(update.operation, module=module_of(update.parameter, "update") or update.operation.module)
    return dataclasses.replace(found, source=wrote, caller="") if wrote not in ("", found.blamed) else found
