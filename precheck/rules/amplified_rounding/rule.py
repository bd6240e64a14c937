"""Finds a rounding that a later op amplifies so much that the result loses its digits.

For each op the relative error of its result is divided by that of its inputs. A high quotient counts if float32 itself determines the result, and
if the readers of the result show the error. The op that made most of the input's error is blamed.
"""

from __future__ import annotations

from collections.abc import Iterator

from precheck import ops
from precheck.analysis.decisions.branches import BRANCHES, MISLED, WRONG_ANSWERS
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.attribution import own_error
from precheck.analysis.propagation.causes import MADE_BY_OP, amplified_input
from precheck.analysis.propagation.output_impact import CANCELLED, DEAD, FEWEST_SUMS, GARBAGE, PART, ROUNDINGS
from precheck.analysis.propagation.provenance import elements, percent, placed
from precheck.analysis.rounding.differences import ALIKE, LOSES_FIVE_BITS, RECURRENT
from precheck.analysis.rounding.errors import DIGIT, SHAKEN, UNSTABLE
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.function_limits import ADDED, FUNCTION_ERRORS
from precheck.analysis.rounding.misroundings import AMPLIFICATION, AMPLIFIED_ROUNDINGS, FELT, Misrounded
from precheck.analysis.rounding.recurrence import INDEPENDENT, RepeatedFactor
from precheck.analysis.rounding.steep_functions import TIMES_FEWER, Exponent, Steep
from precheck.analysis.unrepresentable.nonfinite import Broken
from precheck.observe.shadow.operations import Operation
from precheck.rules.advice import kept
from precheck.rules.better_forms import better_form
from precheck.rules.rule import HEALED, Candidate, Rule, repeated
from precheck.words import digits, of_norm, percents, portion, short

MISSING_NUMBERS = Limit(8, "numbers")
"""The fewest numbers of the reference that lie more than eight unit roundoffs beyond the end of the run's tail. Rounding moves no number so far. By
chance, one or two numbers of a draw may lie there."""


class AmplifiedRounding(Rule):
    limits = (
        DEAD, AMPLIFICATION, LOSES_FIVE_BITS, ALIKE, AMPLIFIED_ROUNDINGS, FELT, UNSTABLE, SHAKEN, DIGIT, ROUNDINGS, MISLED, WRONG_ANSWERS,
        BRANCHES, PART, GARBAGE, ADDED, *FUNCTION_ERRORS,
        TIMES_FEWER, INDEPENDENT, RECURRENT, MISSING_NUMBERS, CANCELLED, FEWEST_SUMS,
    )  # fmt: skip

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Tails of distributions that a low sampler cuts off."""
        tail = operation.tail
        if tail is not None and tail.beyond >= MISSING_NUMBERS:
            dtype = next((value.dtype for value in tail.drawn.outputs), "a low format")
            text = (f"the tail of this draw is cut off: {placed(operation)} makes numbers up to {digits(tail.end, 3)} of it in {dtype}, and in "
                    f"float32 {tail.beyond} of {tail.total} numbers lie beyond that, up to {digits(tail.farthest, 3)}")  # fmt: skip
            yield Candidate("amplified-rounding", tail.drawn, text, tail.beyond, MISSING_NUMBERS)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Exponent):
            made = fact.operation.outputs[0]
            picked = f", of which {fact.taken} numbers are read," if fact.taken < elements(made) else ""
            return (f"stores the exponent of {placed(fact.shown)} in {made.dtype}, which puts the result {percent(fact.off)}% off. The exponent "
                    f"has shape {list(made.shape)}{picked} and is {percent(fact.own)}% off: so few numbers cost nothing in float32")  # fmt: skip
        if isinstance(fact, Steep):
            return _steep(fact)
        if isinstance(fact, RepeatedFactor):
            return f"rounds a factor (by {percents(fact.own)}) that {repeated(fact)}"
        if not isinstance(fact, Misrounded) or fact.how not in ("digits lost", "amplified"):
            return super().words(fact)
        value = fact.value
        times = fact.gain * (fact.shown.drift_in / _amplified(fact.shown) if fact.shown.drift_in else 1.0)
        text = f"{_rounding(fact)} is amplified {short(times)} times by {placed(fact.shown)}: "
        lost = f"{100 * value.dead:.0f}% of the elements have no correct digit"
        text += lost if fact.how == "digits lost" else f"off by {of_norm(value.drift)}"
        return text + (HEALED if fact.healed else "")

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        fact = candidate.fact
        if isinstance(fact, Broken) and fact.how == "beyond its edge":
            bounds = "min=1" if fact.operation.base == "acosh" else "-1, 1"
            bounded = f"call .clamp({bounds}) on what it reads, which a rounding of any format may put there"
            return "; or ".join(filter(None, (bounded, better_form(candidate.operation, readers))))
        shown = fact.shown if isinstance(fact, (Exponent, Steep, RepeatedFactor, Misrounded, OwnError)) else candidate.operation
        return "; or ".join(filter(None, (better_form(candidate.operation, readers), kept(candidate.operation, shown, wide))))

    def own_error(self, fact: OwnError) -> str:
        rounded = fact.operation.outputs[0].dtype
        if fact.turns:
            return f"{fact.turns} turns of a loop round to {rounded} here ({percents(fact.own)} each), and later turns enlarge what they lose"
        if fact.shown.base in ops.MOVING - ops.CONCATENATIONS:
            return (f"a rounding to {rounded} here ({percents(fact.own)}) is {short(fact.off / fact.own)} times as large in the part that "
                    f"{placed(fact.shown)} takes")  # fmt: skip
        until = "up to" if fact.shown.base in ops.CONCATENATIONS else "by"
        return f"a rounding to {rounded} here ({percents(fact.own)}) is amplified {short(fact.off / fact.own)} times {until} {placed(fact.shown)}"


def _rounding(fact: Misrounded) -> str:
    """The error that an op amplifies. It is called the rounding of the blamed op only if no op between the two has enlarged it."""
    own, read = own_error(fact.operation, fact.operation.outputs[0]), _amplified(fact.shown)
    if own < MADE_BY_OP * read:
        return f"its rounding leads to an error of {portion(read)}, which"
    return f"its rounding ({of_norm(own) if own > 1 else percents(own)})"


def _amplified(operation: Operation) -> float:
    """The error of the input whose error an op amplifies."""
    source = amplified_input(operation) if operation.amplifies is not None else None
    return operation.drift_in if source is None else source.drift


def _steep(fact: Steep) -> str:
    """The message on a steep function that amplifies a cast, or a table that the model's conversion rounds."""
    what = (f"this computes with a tensor that the conversion of the model to {fact.dtype} has rounded ({percents(fact.own)}), which" if fact.table
            else f"a rounding to {fact.dtype} here ({percents(fact.own)})")  # fmt: skip
    if fact.chained:
        return (f"{what} is amplified {short(fact.off / fact.own)} times, by a difference of nearly equal numbers and then by {placed(fact.shown)}, "
                f"whose result is off by {of_norm(fact.off)}, most of it by this one rounding")  # fmt: skip
    cure = "; keep that tensor in float32: override _apply, or compute it again after the conversion" if fact.table else ""
    return (f"{what} is amplified {short(fact.off / fact.own)} times by {placed(fact.shown)}, whose result is {digits(fact.measured, 3)} unit "
            f"roundoffs off, most of it by this one rounding{cure}")  # fmt: skip
