"""Updates that the optimizer meant and the weights did not get.

Displacement D = <moved, meant> / <meant, meant> over the whole run, `meant` being the float32 reference's move. Rounding to
nearest that swallows small updates gives D near 0; stochastic rounding and Kahan summation, which swallow as many single
steps, give D near 1, since what is lost once arrives later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from precheck import formats
from precheck.findings import Finding
from precheck.judge.drift import Comparison
from precheck.judge.events import Suspect
from precheck.judge.extent import module_of
from precheck.observe.records import Record
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.steps import Update
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
    """One a parameter stored in a low format, at the last step it was seen; of those stored wide, one that did not move by a bit.

    Left out are those whose gradient is zero but for rounding (a bias before a norm): what was meant is float32's own rounding. The run's is
    then another gradient altogether; where it is the reference's, there is something to arrive, however much rounding might have done.
    """
    rows = list(rows)
    aimless = {row.record.name for row in rows if row.record.kind == "parameter-gradient" and row.undetermined and row.relative >= AIMLESS}
    last: dict[str, Comparison] = {}
    for row in rows:
        judged = (row.record.dtype in ("bfloat16", "float16") or row.record.norm == 0) and row.record.name not in aimless
        if row.record.kind == "update" and judged and row.reference.norm > 0 and not row.record.nonfinite:
            last[row.record.name] = row
    return [_displacement(row) for row in last.values()]


def _displacement(row: Comparison) -> Displacement:
    moved, meant = row.record, row.reference
    arrived = inner(moved.sketch, meant.sketch) / inner(meant.sketch, meant.sketch)
    sketching = (moved.norm / meant.norm) * math.sqrt(1 / WIDTH)  # standard deviation of <a, b> from sketches is |a||b|/sqrt(k)
    spacing = formats.of_dtype(moved.dtype).epsilon * moved.weight_norm
    stochastic = math.sqrt(spacing / (meant.norm * moved.numel)) if meant.norm else 0.0
    return Displacement(moved, meant, arrived, 4 * sketching + min(4 * stochastic, _LEAST_CERTAINTY))


def lost(every: Sequence[Displacement], aged: Mapping[str, tuple[float, int]] = MappingProxyType({})) -> list[Finding]:
    """Of `displacements` one finding, that names the worst parameter and counts the others.

    `aged`: by parameter, what the optimizer alone brings home on a few of its elements, and after how many steps.
    """
    found = sorted((d for d in every if d.lost and aged.get(d.record.name, (0.0, 0))[0] < LOST), key=lambda d: d.arrived)
    if not found:
        return []
    worst = found[0].record
    count = math.sqrt(worst.numel)
    numbers = Numbers(worst.dtype, worst.weight_norm / count, found[0].reference.norm / count / worst.step)
    told = [(d.record.name, max(0.0, d.arrived)) for d in found]
    squares = [(d.record.shape, d.arrived * d.reference.norm**2, d.reference.norm**2) for d in every]
    return [
        Finding(
            "lost-update", "error", _text(told, squares, worst.step, numbers, _horizon(aged.get(worst.name))), phase="optimizer",
            module=module_of(worst.name, "update"), step=worst.step, tensor=worst.name, measured=found[0].arrived, limit=LOST,
        )
    ]  # fmt: skip


BEYOND = 2.0
"""Times the dead zone from which a step, both as root mean squares, is not rounded away: what it comes to is in elements that move by at least
as much, and a weight has to be more than twice the others' size to swallow that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """Of a parameter, root mean squares of its elements and of what a step means to change them by; its learning rate, if known."""

    dtype: str
    weight: float
    step: float
    rate: float = 0.0

    def __str__(self) -> str:
        """The dead zone in numbers, and the rate that would leave it; or that the steps are beyond it, and something else has kept the weights."""
        fmt = formats.of_dtype(self.dtype)
        down, up = fmt.half_ulp(self.weight)
        zone = f"{up:.2g}" if up == down else f"{up:.2g} up, {down:.2g} down"
        text = f"weights are about {self.weight:.3g}, where {fmt.name} rounds away less than {zone}; a step is about {self.step:.2g}"
        if self.step >= BEYOND * max(down, up):
            return f"{text}, so rounding does not explain it: does the optimizer write these weights?"
        enough = self.rate * down / self.step if self.step else 0.0
        return text if not self.rate or enough <= self.rate else f"{text} (lr {self.rate:.2g}; it would take {enough:.1g})"


def _text(
    found: Sequence[tuple[str, float]], every: Sequence[tuple[tuple[int, ...], float, float]], steps: int, numbers: Numbers, further: str = ""
) -> str:
    """The words of a lost update.

    `found` are names and arrived shares, the worst first; `every` all shapes, with ⟨moved, meant⟩ and ⟨meant, meant⟩.
    """
    (name, share), others = found[0], found[1 : 1 + NAMED]
    more = ", …" if len(found) > 1 + NAMED else ""
    listed = " (" + ", ".join(f"{other or 'unnamed'} {part:.0%}" for other, part in others) + f"{more})" if others else ""
    return (
        f"{name or 'a parameter'}: {share:.0%} of the update of {steps} step(s) arrived in {numbers.dtype}{further}; {numbers}; "
        f"{len(found)} of {len(every)} parameters lost more than half{listed}{_kinds(every)}"
    )


def _kinds(every: Sequence[tuple[tuple[int, ...], float, float]]) -> str:
    """What arrived in vectors (norms, biases) and in matrices, each together; nothing where there is but one kind."""
    parts = []
    for kind, chosen in (("vectors", [each for each in every if len(each[0]) < 2]), ("matrices", [each for each in every if len(each[0]) > 1])):
        meant = sum(each[2] for each in chosen)
        if meant:
            parts.append(f"{kind} {max(0.0, sum(each[1] for each in chosen) / meant):.0%}")
    return f"; together, {', '.join(parts)}" if len(parts) > 1 else ""


def _horizon(aged: tuple[float, int] | None) -> str:
    return "" if aged is None else f", and {max(0.0, aged[0]):.0%} would after {aged[1]}"


NAMED = 3
"""Further parameters that a message lists: which kinds are hit (norms, biases, matrices) shows in the first few."""
AIMLESS = 0.5
"""Drift of a gradient from which it is not the same gradient any more: what a step makes of it is not lost but never was."""


def unarrived(observation: Observation) -> list[Suspect]:
    """lost-update, of a watched run: parameters whose steps did not arrive, by the best witness for their health.

    EDQ asks step by step, the displacement over all steps, which stochastic rounding and Kahan summation satisfy; where few
    steps do not tell, the optimizer alone, grown old.
    """
    found = sorted((update for update in observation.updates if _is_lost(update)), key=update_share)
    if not found:
        return []
    worst = found[0]
    count = math.sqrt(max(1, worst.sampled))
    numbers = Numbers(worst.dtype, worst.size / count, math.sqrt(worst.wanted / worst.steps) / count, worst.rate)
    further = f" ({worst.moved} of {worst.sampled} elements moved)" + _horizon((worst.aged, worst.horizon) if worst.aged is not None else None)
    told = [(update.parameter, max(0.0, update_share(update))) for update in found]
    squares = [(update.shape, update.common, update.wanted) for update in observation.updates]
    text = _text(told, squares, worst.steps, numbers, further)
    return [Suspect("lost-update", _placed(worst), text, told[0][1], LOST, tensor=worst.parameter)]


def _sizes(update: Update) -> dict[str, Any]:
    """What a weight is, what a step means to change it by, and the longest step, down and up, that its format rounds away there."""
    count = math.sqrt(max(1, update.sampled))
    weight = update.size / count
    return {
        "weight": weight,
        "step": math.sqrt(update.wanted / max(1, update.steps)) / count,
        "dead_zone": list(formats.of_dtype(update.dtype).half_ulp(weight)),
    }


STALLED_STEPS = 8
"""Steps from which a state that stands still is called so; as for other accumulators (`absorption.UPDATES`)."""
INTENDED = 2.0
"""Unit roundoffs of a state that it was meant to move by, from which its format could have shown it."""
EMPTIED = 0.01
"""Share of a moment that is flushed to zero. One element in a hundred then steps by m / eps instead of m / √v."""


def stalled(observation: Observation) -> list[Suspect]:
    """Moments that stand still although they were meant to move, and those that the format holds as zero: the worst of each name."""
    still: dict[str, tuple[float, Update]] = {}
    empty: dict[str, tuple[float, Update]] = {}
    for update in observation.updates:
        u = formats.of_dtype(update.dtype).unit_roundoff
        for name, state in update.states.items():
            enough = state.steps >= STALLED_STEPS and state.intended >= INTENDED * u and update.gradient_drift < AIMLESS
            if enough and state.arrived < min(LOST, still.get(name, (LOST,))[0]):
                still[name] = state.arrived, update
            if state.emptied > max(EMPTIED, empty.get(name, (0.0,))[0]):
                empty[name] = state.emptied, update
    return [
        *(_stalled(name, update, max(0.0, share)) for name, (share, update) in still.items()),
        *(_emptied(name, update, share) for name, (share, update) in empty.items()),
    ]


def _stalled(name: str, update: Update, share: float) -> Suspect:
    of, moved = update.parameter or "a parameter", update.states[name].moved
    text = (f"{name} of {of}: {share:.0%} of what {update.states[name].steps} steps meant to change it by arrived ({moved:.0%} of its elements "
            f"moved): an average with small weights stands still in a format of few digits")  # fmt: skip
    return Suspect("lost-update", _placed(update), text, share, LOST, tensor=update.parameter)


def _emptied(name: str, update: Update, share: float) -> Suspect:
    of = update.parameter or "a parameter"
    text = f"{name} of {of} is zero for {share:.0%} of its elements, whose averages are below the smallest number of {update.dtype}"
    return Suspect("underflow", _placed(update), text, share, EMPTIED, tensor=update.parameter)


def _placed(update: Update) -> Operation:
    return dataclasses.replace(update.operation, module=module_of(update.parameter, "update") or update.operation.module)


def _is_lost(update: Update) -> bool:
    """Rounding by chance lets 1 ± luck arrive. Where that does not reach down to what did, it is not what happened."""
    share = update_share(update)
    if not update.wanted or update.gradient_drift >= AIMLESS or share >= LOST:
        return False
    if update.aged is not None:
        return True
    return not update.held and (share + _luck(update) < 1 or share + _LEAST_CERTAINTY < LOST)


def update_share(update: Update) -> float:
    """What arrived, by the best of three accounts; of what is held in a remainder, what the remainder will give back."""
    if update.held and update.aged is not None:
        return update.aged
    return max(update.edq, update.arrived, update.aged or 0.0)


def table(observation: Observation) -> list[dict[str, Any]]:
    """A row for each low-format parameter that was stepped, for `Report.updates`: sizes are root mean squares of its elements."""
    return [
        {"parameter": each.parameter, "dtype": each.dtype, "steps": each.steps, "edq": each.edq, "arrived": each.arrived, "moved": each.moved,
         "sampled": each.sampled, "absorbed": each.absorbed, "lost_mass": each.mass, "rate": each.rate, "held": each.held, "aged": each.aged,
         "horizon": each.horizon, **_sizes(each)}
        for each in observation.updates
    ]  # fmt: skip


def _luck(update: Update) -> float:
    """Four standard deviations of what stochastic rounding of so few elements over so few steps may do."""
    step = math.sqrt(update.wanted / max(1, update.sampled * update.steps))
    spacing = formats.of_dtype(update.dtype).epsilon * update.size / math.sqrt(max(1, update.sampled))
    return 4 * math.sqrt(spacing / (step * update.sampled * update.steps)) if step else math.inf
