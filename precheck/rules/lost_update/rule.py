"""Finds updates that the optimizer intended, but that did not arrive in the weights or in its own moments.

The move of each low-precision weight over all steps is compared with the move of its shadow, which gives the share that arrived. With stochastic
rounding and Kahan summation all of it arrives in the end, so they are healthy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set

from precheck import formats
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.labels import module_of
from precheck.analysis.training.displacements import (
    AIMLESS,
    BEYOND,
    FORGIVEN,
    INTENDED,
    LOST_UPDATE,
    ONLY_ROUNDING,
    UPDATES,
    Displacement,
    displacements,
    is_lost,
    placed_at,
    rounded_away,
    update_share,
    worst_states,
)
from precheck.findings import Finding
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.training.step_records import OptimizerState, Update
from precheck.rules.rule import Candidate, Compared, Rule
from precheck.rules.underflow.rule import EmptiedState
from precheck.words import counted, percents


class LostUpdate(Rule):
    limits = (LOST_UPDATE, FORGIVEN, AIMLESS, ONLY_ROUNDING, UPDATES, INTENDED, BEYOND)

    def at_end(self, part: Part) -> Iterator[Candidate]:
        yield from _unarrived(part.observation)
        yield from list(_undecayed(part.observation)) or _multiplied(part.observation)
        yield from _stalled(part.observation)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Reports an absorbed addition once: as a lost update if it is a hand-written step, and as `absorption` if it is a moving average that stands
        still, which is also multiplied by its decay. Where an optimizer's state became zero, `underflow` reports the step."""
        steps = {each.operation.source for each in found if each.rule == "lost-update" and isinstance(each, Unarrived)}
        kept = [each for each in found if each.rule != "absorption" or each.operation.source not in steps]
        emptied = {each.operation.blamed for each in found if isinstance(each, EmptiedState)}
        kept = [each for each in kept if not (each.rule == "absorption" and each.operation.in_optimizer and each.operation.blamed in emptied)]
        sums = {each.operation.source for each in kept if each.rule == "absorption"}
        return [each for each in kept if not isinstance(each, Undecayed) or each.operation.source not in sums]

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        return candidate.advice or "" if wide == "float32" else f"keep a master copy of the weights in {wide}, or use Kahan summation"

    def beside(self, run: Compared) -> list[Finding]:
        return lost_updates(displacements(run.rows, run.low.aged), run.low.aged)


class Unarrived(Candidate):
    """A parameter whose steps did not arrive."""


class Undecayed(Candidate):
    """A parameter that products with a number close to one did not change."""


def lost_updates(every: Sequence[Displacement], aged: Mapping[str, tuple[float, int]]) -> list[Finding]:
    """One finding for all displacements. It names the worst parameter and counts the others.

    `aged`: for each parameter, the share that arrives if the optimizer runs alone on a few elements, and after how many steps.
    """
    found = sorted((d for d in every if d.lost and aged.get(d.record.name, (0.0, 0))[0] < LOST_UPDATE), key=lambda d: d.arrived)
    if not found:
        return []
    worst = found[0].record
    count = math.sqrt(worst.numel)
    numbers = StepSizes(worst.dtype, worst.weight_norm / count, found[0].reference.norm / count / worst.step)
    text = message_on(worst.name, found[0].arrived, worst.step, numbers, aged.get(worst.name), len(found), len(every))
    return [
        Finding(
            "lost-update", "error", text, phase="optimizer", module=module_of(worst.name, "update"), step=worst.step, tensor=worst.name,
            measured=found[0].arrived, limit=LOST_UPDATE, advice=numbers.cure,
        )
    ]  # fmt: skip


def _unarrived(observation: Observation) -> list[Candidate]:
    """Parameters of a watched run whose steps did not arrive, by the largest of several measures.

    EDQ judges step by step. Here the displacement over all steps is judged, for which stochastic rounding and Kahan summation are healthy. If the run
    has too few steps, the optimizer alone is run for more.
    """
    found = sorted((update for update in observation.updates if is_lost(update)), key=update_share)
    if not found:
        return []
    worst = found[0]
    numbers, share = StepSizes(worst.dtype, worst.weight, worst.step, worst.rate), max(0.0, update_share(worst))
    aged = (worst.aged, worst.horizon) if worst.aged is not None else None
    text = message_on(worst.parameter, share, worst.steps, numbers, aged, len(found), len(observation.updates))
    return [Unarrived("lost-update", placed_at(worst), text, share, LOST_UPDATE, tensor=worst.parameter, advice=numbers.cure)]


def _undecayed(observation: Observation) -> Iterator[Candidate]:
    """The weight furthest from its intended value, among those with a zero gradient that weight decay should make smaller, and does not.

    Decay multiplies by 1 - lr · weight_decay. If it changes the weight by less than half a spacing, it never arrives, however many steps there are.
    Over a few steps the intended change may be too small for the format. An unused weight has no gradient, and no optimizer decays it.
    """
    lost = [each for each in observation.decays if each.steps >= UPDATES and _meant(each) >= INTENDED * each.roundoff and is_lost(each)]
    worst = max(lost, key=_meant, default=None)
    if worst is not None:
        share = max(0.0, update_share(worst))
        text = (f"{worst.parameter or 'a parameter'}: {share:.0%} of its weight decay arrived. Its gradient is zero, so decay alone should make it "
                f"{percents(_meant(worst))} smaller in {worst.steps} steps. One step is {_meant(worst) / worst.steps:.2g} of a weight, and "
                f"{worst.dtype} drops what is below {worst.roundoff:.2g}; {len(lost)} of {len(observation.decays)} such parameters lost their "
                "decay")  # fmt: skip
        yield Unarrived("lost-update", placed_at(worst), text, share, LOST_UPDATE, tensor=worst.parameter)


def _multiplied(observation: Observation) -> Iterator[Candidate]:
    """Weights that were repeatedly multiplied by a number close to one, and did not change. The steps of their gradients may have arrived.

    An optimizer's decay counts only if the user set it, and not if it is the default of its class, as in AdamW.
    """
    enough = {number: each for number, each in observation.unchanged_products.items() if each.times >= UPDATES
              and each.intended >= INTENDED * formats.of_dtype(each.dtype).unit_roundoff}  # fmt: skip
    if not enough:
        return
    number, worst = max(enough.items(), key=lambda each: each[1].intended)
    name = observation.parameters.get(number, "")
    if worst.averages:
        text = (f"{name or 'a weight'}: {worst.times} updates of a moving average should have replaced {percents(worst.intended)} of it, but no "
                f"product with its decay changed a bit: {worst.dtype} rounds each to the old number; {len(enough)} such weights in all")  # fmt: skip
    else:
        text = (f"{name or 'a parameter'}: {worst.times} products with a number close to 1, as in weight decay, should have changed it by "
                f"{percents(worst.intended)}, but changed no bit: {worst.dtype} rounds each product to the old weight; {len(enough)} such parameters "
                "in all")  # fmt: skip
    advice = AVERAGE if worst.averages else ""
    operation = dataclasses.replace(worst.operation, phase="optimizer")
    yield Undecayed("lost-update", operation, text, 0.0, LOST_UPDATE, tensor=name, advice=advice)


def _meant(update: Update) -> float:
    """The intended change of a parameter by steps in one direction, relative to the parameter."""
    return math.sqrt(update.wanted * update.steps) / update.size if update.size else 0.0


def _stalled(observation: Observation) -> Iterator[Candidate]:
    """Moments that stand still although they should move: the worst of each name."""

    def missing(update: Update, state: OptimizerState) -> float:
        enough = state.steps >= UPDATES and state.intended >= INTENDED * update.roundoff and update.gradient_drift < AIMLESS
        return max(0.0, LOST_UPDATE - state.arrived) if enough else 0.0

    for name, update in worst_states(observation.updates, missing).items():
        state = update.states[name]
        share = max(0.0, state.arrived)
        of = update.parameter or "a parameter"
        text = (f"optimizer state {name} of {of}: {share:.0%} of the change that {state.steps} steps intended arrived: a running "
                f"average with small steps stands still in {update.dtype}")  # fmt: skip
        yield Candidate("lost-update", placed_at(update, state), text, share, LOST_UPDATE, tensor=update.parameter)


UNEXPLAINED = "look in the optimizer's step: it may add 0, as after a division by Inf, or write to copies of these weights"
"""The cure where rounding does not explain that an update is lost, so that master weights would lose it too."""

AVERAGE = "keep the average in float32, whatever the format of the weights that it follows"
"""The cure for a moving average of weights. Master weights of the model are no cure for it, since its copy is converted by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSizes:
    """Root mean squares of a parameter's elements and of its intended step, and its learning rate, if known."""

    dtype: str
    weight: float
    step: float
    rate: float = 0.0

    @property
    def explained(self) -> bool:
        """Whether rounding may explain that the step is lost."""
        return rounded_away(self.dtype, self.weight, self.step)

    @property
    def cure(self) -> str:
        return "" if self.explained else UNEXPLAINED

    def __str__(self) -> str:
        """The dead zone in numbers, and the learning rate that would leave it. If the steps are beyond it, the text says that something else has kept
        the weights."""
        fmt = formats.of_dtype(self.dtype)
        down, up = fmt.half_ulp(self.weight)
        zone = f"{up:.2g}" if up == down else f"{min(up, down):.2g} to {max(up, down):.2g}"
        text = f"at weights of about {self.weight:.3g}, {self.dtype} drops changes smaller than {zone}, and a step is about {self.step:.2g}"
        if not self.explained:
            return f"{text}, so rounding does not explain it: does the optimizer write these weights?"
        enough = self.rate * down / self.step if self.step else 0.0
        return text if not self.rate or enough <= self.rate else f"{text} (lr {self.rate:.2g}; an lr of {enough:.1g} would arrive)"


def message_on(name: str, share: float, steps: int, numbers: StepSizes, aged: tuple[float, int] | None, lost: int, of: int) -> str:
    """The message on the worst parameter. `share`: what arrived of its update. `aged`: what would arrive if the optimizer alone stepped on, and after
    how many steps, if that was tried. `lost`: how many `of` all parameters lost more than half."""
    later = f", and {max(0.0, aged[0]):.0%} would arrive after {counted(aged[1], 'step')}" if aged is not None and aged[1] > steps else ""
    return (f"{name or 'a parameter'}: {max(0.0, share):.0%} of the update of {counted(steps, 'step')} arrived{later}: {numbers}; "
            f"{lost} of {counted(of, 'parameter')} lost more than half")  # fmt: skip
