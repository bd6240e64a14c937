"""Finds choices that differ from the reference: because the format makes scores equal, or hides their differences, or more often than rounding
explains.

In a watched run the choices of each row are compared with those from the shadow's scores. A measurement counts the decisions that differ, and
compares the count with that of the noise runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from precheck import ops
from precheck.analysis import chance
from precheck.analysis.decisions import choices, flips
from precheck.analysis.decisions.branches import BRANCHES
from precheck.analysis.decisions.choices import BLUR, BLURRED, CHANGED_ROWS
from precheck.analysis.decisions.flips import FLIPPED_SHARE, Place
from precheck.analysis.facts import Part, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.noise import FAIL
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.provenance import Origins, elements, placed, rms, zero_origin
from precheck.analysis.unrepresentable import nonfinite
from precheck.findings import Finding, Severity
from precheck.observe.shadow.op_notes import Flips, Skew
from precheck.observe.shadow.operations import Operation, Value
from precheck.precisions import Precision
from precheck.rules.advice import widened
from precheck.rules.rule import Candidate, Rule
from precheck.words import module_words, op_words, percents

TIED_ROWS = Limit(0.005, "share of the rows")
"""The smallest share of rows whose top-k changed because of ties. In healthy programs at most 1 of 32 rows changed."""
SWAPPED = Limit(1 / 8, "share of what a row chooses")
"""The smallest share of a row's choice that ties must swap to do harm: one of eight experts, beams or candidates. Among twenty neighbours, fifty
tokens to draw from, or the units of a sparse code, a tie swaps the last one, and the result stays the same."""


MOST = Limit(0.5, "share of what a row chooses")
"""If only few rows choose, ties must swap at least this share. If more than half of a choice is swapped, it is not a tie at the end of the row."""

SKEWED = Limit(8.0, "unit roundoffs")
"""The largest distance between two distributions that are drawn from by cumulative sums. Probabilities that are rounded once and summed in float32
make a quarter of a unit roundoff, or half of one if their sum is less than one."""


class DecisionFlip(Rule):
    limits = (
        CHANGED_ROWS, TIED_ROWS, SWAPPED, MOST, BLURRED, BLUR, FLIPPED_SHARE, chance.CHANCE, FAIL, SKEWED, choices.CLEAR, BRANCHES,
    )  # fmt: skip

    def among(self, part: Part) -> Iterator[Candidate]:
        """Comparisons of whole numbers that the format moved, and what `noted` gives."""
        for operation, count in choices.misjudged(part.observation):
            if part.spoiled.isdisjoint(operation.inputs):
                yield _misjudged(operation, count, nonfinite.op_that_moved_argument(operation, part.observation) or operation)
        yield from super().among(part)

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Choices among scores that the format made equal, or whose differences it hides, guards that let rounding noise through, and draws from
        cumulative sums that stand still."""
        if part.spoiled.isdisjoint(operation.inputs):
            if operation.skew is not None and _its_own(operation.skew):
                yield _skewed(operation, operation.skew)
            if (divided := choices.divided_by(operation, part.readers)) is not None:
                yield _let_through(operation, divided)
        if operation.flips is not None and _meant(operation, operation.flips) and part.spoiled.isdisjoint(operation.outputs):
            yield from _choice(operation, operation.flips, part.origins)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        operation = candidate.operation  # the comparison or choice, or what stored its operands low
        decides = operation.flips is not None or operation.base in ops.COMPARED
        return f"compare in {wide}: {widened(operation, wide)}" if decides else widened(operation, wide) + _other_side(operation, readers, wide)


def _other_side(operation: Operation, readers: Readers, wide: str) -> str:
    """The advice on what rounded whole numbers are compared with, if it is beyond what the format holds, too. Both sides of a comparison have to
    leave the format: as long as one stands still, nothing shows that the other will."""
    result = operation.outputs[0] if operation.outputs else None
    for reader in readers.get(result, ()) if result is not None else ():
        other = next((value for value in reader.inputs if value is not result and reader.base in ops.COMPARED), None)
        if other is not None and other.maker is not None and other.low and rms(other) * other.roundoff >= 1:
            return f"; keep what {placed(reader)} compares it with in {wide} too"
    return ""


def _meant(operation: Operation, flips: Flips) -> bool:
    """Whether enough rows choose differently, and the program uses these choices."""
    if operation.phase == "backward" or not operation.inputs or (flips.changed < CHANGED_ROWS and not _replaced(operation, flips)):
        return False
    return not choices.by_value(operation) and (operation.base not in ops.ORDERED or choices.ordered_by_place(operation))


def _choice(operation: Operation, flips: Flips, origins: Origins) -> Iterator[Candidate]:
    """The candidate for a choice among scores that the format made equal, or whose differences rounding hides."""
    stored = choices.made_equal(operation.inputs[0])
    if stored is not None and (flips.ties >= CHANGED_ROWS or _replaced(operation, flips)) and flips.ties / flips.total >= TIED_ROWS:
        if not any(map(_chosen_by_ties, operation.inputs)):
            yield _tied(operation, flips, stored)
    elif choices.blurred(operation):
        yield _blurred(operation, flips, origins)


def _chosen_by_ties(bound: Value) -> bool:
    """Whether a bound is the end of a choice among equal scores, which is told already."""
    maker = causes.before_copies(bound).maker
    if maker is None or maker.base not in ops.EXTREMES or choices.by_value(maker):
        return False
    return maker.flips is not None and maker.flips.ties >= CHANGED_ROWS


def _replaced(operation: Operation, flips: Flips) -> bool:
    """Whether few rows, even one, change so many choices that chance does not explain it: five choices, and half of the row's, since scores are equal
    that differ by less than rounding. If one row takes the last of eight choices from a tie, that is chance."""
    chosen = elements(operation.outputs[0]) / max(1, flips.total) if operation.outputs else 0.0
    many = flips.ties * flips.swapped * chosen >= CHANGED_ROWS and flips.swapped >= MOST
    return many and choices.hides_differences(operation)


def _its_own(skew: Skew) -> bool:
    """Whether the cumulative sum itself makes the draws wrong. If the terms of two distributions differ by a relative error, the distributions differ
    by at most half of it. So much was wrong before the sum. If it is more, the line of the sum is named."""
    return skew.apart > max(SKEWED * skew.roundoff, skew.summed.drift_in)


def _skewed(operation: Operation, skew: Skew) -> Candidate:
    limit, dtype = SKEWED * skew.roundoff, skew.summed.outputs[0].dtype
    text = (f"{placed(operation)} draws from this cumulative sum, and {100 * skew.apart:.2g}% of its draws differ (limit {100 * limit:.2g}%): "
            f"{skew.empty} of {skew.steps} outcomes add nothing to the sum in {dtype}, so they are never drawn")  # fmt: skip
    return Candidate("decision-flip", skew.summed, text, skew.apart, limit)


def _let_through(operation: Operation, divided: Operation) -> Candidate:
    """The candidate for a guard that lets rounding noise through, where the reference's number is near zero."""
    seen = operation.let_through
    assert seen is not None
    text = (f"this guard keeps out numbers up to {seen.bound:.2g}, but {seen.count} of {seen.total} numbers that pass it are rounding noise: one is "
            f"{seen.became:.2g} here and {seen.was:.2g} in the reference. {placed(divided)} divides by them")  # fmt: skip
    return Candidate("decision-flip", operation, text, seen.apart, choices.CLEAR)


def _misjudged(operation: Operation, count: int, cause: Operation) -> Candidate:
    """The candidate for whole numbers that the format moved, so that comparisons of them give other answers."""
    text = f"its rounding changes whole numbers that {placed(operation)} compares, and {count} of its answers differ"
    return Candidate("decision-flip", cause, text, count, BRANCHES)


def _tied(operation: Operation, flips: Flips, stored: Value) -> Candidate:
    """The candidate for equal scores. For a full sort, and for wide scores, it names the op that stored them low, since they lost their order there.
    Scores that underflowed to zero are equal from there on, and a wider format of the choice does not separate them."""
    share = "" if flips.total == 1 else f"{percents(flips.ties / flips.total)} "
    text = f"{_changed(flips)}, {share}because {stored.dtype} makes distinct scores equal"
    earlier = operation.base in ops.ORDERED or not operation.inputs[0].low
    cause = ((causes.before_copies(stored).maker or stored.maker) if earlier else None) or operation
    rule, flushing = zero_origin(operation.inputs[0]) if 2 * flips.flushed > flips.ties else ("", operation)
    cause, becomes = (flushing, "becomes zero") if rule == "underflow" else (cause, "is stored")
    text = f"what {becomes} here decides {placed(operation)}: {text}" if cause is not operation else text
    severity: Severity = "error" if flips.swapped >= SWAPPED else "note"
    return Candidate("decision-flip", cause, text, flips.ties / flips.total, TIED_ROWS, severity)


def _blurred(operation: Operation, flips: Flips, origins: Origins) -> Candidate:
    """The candidate for scores whose differences rounding hides. An error if the noise comes from the cast of a weight, which can be avoided. A
    warning if it comes from computing, since the true differences may be as small, as in an untrained model."""
    scores = operation.inputs[0]
    share = f"{100 * flips.blur:.2g}% of the difference between the scores" if math.isfinite(flips.blur) else "beyond any difference of the scores"
    text = f"{_changed(flips)}: the error is {share}, where one rounding is {100 * scores.rounded:.1g}%"
    cause = origins.of(scores) or operation
    text = f"the rounding here decides {placed(operation)}: {text}" if cause is not operation else text
    severity: Severity = "error" if cause.base == "_to_copy" and cause.parameter else "warning"
    return Candidate("decision-flip", cause, text, flips.blur / scores.roundoff, BLUR, severity)


def _changed(flips: Flips) -> str:
    one = flips.total == 1
    who = "the one row chooses" if one else f"{percents(flips.changed / flips.total)} of {flips.total} rows choose"
    return f"{who} differently from the reference"


def flipped(suspects: Iterable[Place], precision: Precision) -> list[Finding]:
    """An error on the first place with too many flips. Later flips may follow from it."""
    first = next((place for place in suspects if place.too_many(precision)), None)
    if first is None:
        return []
    where = f"in {module_words(first.call)}" if first.call else "in the model's own forward"
    return [
        Finding(
            "decision-flip", "error",
            f"{op_words(first.op)} {where}: {first.flipped} of {first.total} decisions ({percents(first.flipped / first.total)}) differ under "
            f"{precision} from those in float32, where correct rounding explains {first.expected / first.samples:.2g}",
            op=first.op, module=first.call.split("#")[0], measured=float(first.flipped),
            limit=float(flips.most_by_chance(first.expected, first.samples)),
        )
    ]  # fmt: skip
