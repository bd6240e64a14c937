"""Choices that differ from the reference: scores that the format makes equal or blurs, and more flips than rounding explains.

A watched run compares the choices of each row with those that the shadow's scores give. A measurement counts the decisions that differ, and compares
that with how many differ between float32 and its noise runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from precheck import ops
from precheck.analysis import causes, choices, decisions
from precheck.analysis.choices import BLUR, BLURRED, ROWS
from precheck.analysis.decisions import CHANCE, Place
from precheck.analysis.decisions import SHARE as OF_DECISIONS
from precheck.analysis.facts import Part
from precheck.analysis.limit import Limit
from precheck.analysis.noise import FAIL
from precheck.analysis.provenance import Origins, elements, placed
from precheck.findings import Finding, Severity
from precheck.observe.shadow.op_notes import Skew
from precheck.observe.shadow.operations import Flips, Operation
from precheck.precisions import Precision
from precheck.rules.decision_flip.about import ABOUT
from precheck.rules.rule import Candidate, Rule

SHARE = Limit(0.005, "share of the rows", "whose top-k changed through ties, at least: healthy programs changed 1 row of 32 at most")
SWAPPED = Limit(
    1 / 8, "share of what a row chooses",
    """that ties must swap to matter: one of eight experts, beams or candidates. Of twenty neighbours, of fifty tokens to draw from or of the units of
    a sparse code a tie swaps the last, and what is made of all of them is as it was.""",
)  # fmt: skip


MOST = Limit(0.5, "share of what a row chooses", "that ties must swap where few rows choose: more than half of it is no tie at the end of a row")

SKEWED = Limit(
    8.0, "unit roundoffs",
    """of the distance between the distributions that two cumulative sums draw from. Probabilities that are rounded once, and added up in float32,
    make a quarter of one, or half of one where their sum falls short.""",
)  # fmt: skip


class DecisionFlip(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (ROWS, SHARE, SWAPPED, MOST, BLURRED, BLUR, OF_DECISIONS, CHANCE, FAIL, SKEWED)

    def among(self, part: Part) -> Iterator[Candidate]:
        """A choice among scores that the format made equal, or whose differences it made noise; draws by sums that stand still."""
        for operation in part.observation.judged:
            flips, skew = operation.flips, operation.skew
            if skew is not None and _its_own(skew) and part.spoiled.isdisjoint(operation.inputs):
                yield _skewed(operation, skew)
            if flips is None or operation.phase == "backward" or not operation.inputs or (flips.changed < ROWS and not _replaced(operation, flips)):
                continue
            if not part.spoiled.isdisjoint(operation.outputs) or (operation.base in ops.ORDERED and not choices.ordered_by_place(operation)):
                continue
            if operation.inputs[0].low and (flips.ties >= ROWS or _replaced(operation, flips)) and flips.ties / flips.total >= SHARE:
                yield _tied(operation, flips)
            elif choices.blurred(operation):
                yield _blurred(operation, flips, part.origins)


def _replaced(operation: Operation, flips: Flips) -> bool:
    """Whether few rows, even one, change so many of their choices that luck is no reason: five choices, and half of the row's, because scores are
    equal and differ by less than rounding. One row that takes its last of eight from a tie is luck."""
    chosen = elements(operation.outputs[0]) / max(1, flips.total) if operation.outputs else 0.0
    many = flips.ties * flips.swapped * chosen >= ROWS and flips.swapped >= MOST
    return many and flips.blur >= BLUR * operation.inputs[0].roundoff


def _its_own(skew: Skew) -> bool:
    """Whether a cumulative sum skews what is drawn by it. Two distributions whose terms differ by some share of themselves differ by half of that
    at most. So much was wrong before the sum, and its own line is named."""
    return skew.apart > max(SKEWED * skew.roundoff, skew.summed.drift_in)


def _skewed(operation: Operation, skew: Skew) -> Candidate:
    limit, dtype = SKEWED * skew.roundoff, skew.summed.outputs[0].dtype
    text = (f"{placed(operation)} draws from this cumulative sum, and {100 * skew.apart:.2g} % of its draws differ (limit {100 * limit:.2g} %): "
            f"{skew.empty} of {skew.steps} steps have no width in {dtype}, and are never drawn")  # fmt: skip
    return Candidate("decision-flip", skew.summed, text, skew.apart, limit)


def _tied(operation: Operation, flips: Flips) -> Candidate:
    """Of a full sort the op is named that stored the scores, as it is there that the format took their order."""
    text = f"{_changed(flips)}, {100 * flips.ties / flips.total:.1f} % because {operation.inputs[0].dtype} makes distinct scores equal"
    cause = (causes.moved(operation.inputs[0]).maker if operation.base in ops.ORDERED else None) or operation
    text = f"what is stored here decides {placed(operation)}: {text}" if cause is not operation else text
    severity: Severity = "error" if flips.swapped >= SWAPPED else "note"
    return Candidate("decision-flip", cause, text, flips.ties / flips.total, SHARE, severity)


def _blurred(operation: Operation, flips: Flips, origins: Origins) -> Candidate:
    """Noise that the cast of a weight brought in can be kept out by not casting it, and is an error. What computing brings in may be all that the
    differences ever were, as in a model that has learnt nothing yet, and is a warning."""
    scores = operation.inputs[0]
    text = (f"{_changed(flips)}: the error is {100 * flips.blur:.2g} % of the difference between the scores, where one rounding is "
            f"{100 * scores.rounded:.1g} %")  # fmt: skip
    cause = origins.of(scores) or operation
    text = f"the rounding here decides {placed(operation)}: {text}" if cause is not operation else text
    severity: Severity = "error" if cause.base == "_to_copy" and cause.parameter else "warning"
    return Candidate("decision-flip", cause, text, flips.blur / scores.roundoff, BLUR, severity)


def _changed(flips: Flips) -> str:
    return f"{100 * flips.changed / flips.total:.1f} % of {flips.total} rows choose differently from the reference"


def flipped(suspects: Iterable[Place], precision: Precision) -> list[Finding]:
    """The first place with too many flips, as an error; those after it may follow from it."""
    first = next((place for place in suspects if place.too_many(precision)), None)
    if first is None:
        return []
    where = f"in {first.call}" if first.call else "in the model's own forward"
    return [
        Finding(
            "decision-flip", "error",
            f"{first.op} {where}: {first.flipped} of {first.total} decisions ({first.flipped / first.total:.1%}) differ under "
            f"{precision} from those in float32, where correct rounding explains {first.expected / first.samples:.2g}",
            op=first.op, module=first.call.split("#")[0], measured=float(first.flipped), limit=float(decisions.most(first.expected, first.samples)),
        )
    ]  # fmt: skip
