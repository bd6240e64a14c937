"""Finds Python numbers that the format rounds to zero, or to the number from which they should keep values away."""

from __future__ import annotations

from collections.abc import Iterator

from precheck import formats, ops
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.propagation.output_impact import ROUNDINGS
from precheck.analysis.propagation.provenance import elements, percent, placed, reached_bound
from precheck.analysis.rounding.differences import LOSES_FIVE_BITS, RECURRENT
from precheck.analysis.rounding.function_errors import OwnError, coarse_number
from precheck.analysis.rounding.function_limits import FUNCTION_ERRORS
from precheck.analysis.rounding.misroundings import FELT, Misrounded
from precheck.analysis.rounding.recurrence import INDEPENDENT, RepeatedFactor
from precheck.analysis.unrepresentable.nonfinite import HARMED, Broken
from precheck.analysis.unrepresentable.zeros import Missed
from precheck.observe.shadow.op_notes import LostBound
from precheck.observe.shadow.operations import Operation
from precheck.rules.advice import widened
from precheck.rules.better_forms import better_form, later
from precheck.rules.rule import Candidate, Rule, repeated
from precheck.words import digits


class VanishedConstant(Rule):
    limits = (HARMED, LOSES_FIVE_BITS, ROUNDINGS, FELT, RECURRENT, INDEPENDENT, *FUNCTION_ERRORS)

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Bounds that the format of a comparison rounds onto the numbers that are compared with them, and clamps whose bounds it makes one number."""
        if operation.lost_bound is not None and part.spoiled.isdisjoint(operation.inputs):
            yield _compared(operation, operation.lost_bound)
        held = _emptied(operation)
        if held is not None and operation.phase == "forward" and part.spoiled.isdisjoint(operation.inputs):
            yield _cut(operation, held)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Broken) and fact.how == "failed guard":
            return f"its bound should keep numbers off the pole of {fact.where}, and is itself rounded onto it: {fact.what}"
        if isinstance(fact, Missed):
            return f"{self._constant(fact)} and guards nothing; {fact.then}"
        if isinstance(fact, RepeatedFactor):
            return f"{self._constant(fact)}, and {repeated(fact)}"
        if isinstance(fact, Misrounded):
            return f"{self._constant(fact)}: {placed(fact.shown)} is {percent(fact.value.drift)}% off"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        lost = candidate.operation.lost_bound
        if lost is not None:  # a bound that is stored low stays what it is when the comparison widens it
            stored = any(value.low and elements(value) == 1 for value in candidate.operation.inputs)
            itself = f", and do not store {lost.bound:.6g} in {lost.dtype} before" if stored else ""
            return f"compare in {wide}: {widened(candidate.operation, wide)}{itself}"
        made = next((value for value in candidate.operation.outputs if value.low), None)
        if made is None:
            return super().advice(candidate, readers, wide)
        if reached_bound(candidate.operation) is not None or _emptied(candidate.operation) is not None:
            return widened(candidate.operation, wide)
        if candidate.operation.in_optimizer:  # as a rule its squares of gradients vanish too, and no eps makes up for that
            return widened(candidate.operation, wide)
        held = formats.of_dtype(made.dtype)
        steep = any(reader.base in ops.RECIPROCALS | ops.LOGARITHMS for reader in later(candidate.operation, readers, 1))
        least = held.min_normal if steep else held.min_subnormal  # the result or the gradient grows to 1 / constant, which has to be finite
        added = f", or {held.unit_roundoff:.0e} of what it is added to" if candidate.operation.base in ops.ADDITIONS else ""
        formula = next((better_form(each.maker, readers) for each in candidate.operation.inputs if each.maker is not None), "")
        ways = formula, f"give a constant that {made.dtype} holds (at least {least:.0e}{added})", widened(candidate.operation, wide)
        return "; or ".join(filter(None, ways))

    def own_error(self, fact: OwnError) -> str:
        number, held = coarse_number(fact.operation) or (0.0, 0.0)
        return f"{number:g} is {digits(held, 3)} in {fact.operation.outputs[0].dtype}" if held else self._constant(fact)

    @staticmethod
    def _constant(fact: Fact) -> str:
        """What the format makes of the constant, in words."""
        made = fact.operation.outputs[0]
        bound = reached_bound(fact.operation)
        if bound is not None:
            return f"{bound[0]:.6g} is {bound[1]:g} in {made.dtype}"
        return f"{min(abs(each) for each in fact.operation.scalars if each):.3g} is zero in {made.dtype}"


def _emptied(operation: Operation) -> float | None:
    """The one number that a low clamp can return, if the format rounds both of its bounds to it. None if the bounds stay apart.

    Float32 has numbers between the bounds, and the clamp leaves them as they are. The format has none, so every number becomes this one.
    """
    made = next((value for value in operation.outputs if value.low), None)
    if operation.base != "clamp" or made is None or len(operation.scalars) != 2 or not made.drift:
        return None
    (low, high), held = operation.scalars, formats.of_dtype(made.dtype)
    return held.round(low) if low < high and held.round(low) == held.round(high) else None


def _cut(operation: Operation, held: float) -> Candidate:
    """The candidate for a clamp whose bounds are one number in its format."""
    made, (low, high) = operation.outputs[0], operation.scalars
    text = f"{low:.6g} and {high:.6g} are both {held:g} in {made.dtype}, so that this makes {held:g} of every number"
    return Candidate("vanished-constant", operation, text, elements(made), 0.0)


def _compared(operation: Operation, lost: LostBound) -> Candidate:
    """The candidate for a bound that the format of a comparison rounds onto the numbers that are compared with it."""
    text = (f"{lost.bound:.6g} is {lost.held:g} in {lost.dtype}, in which these numbers are compared: all {lost.total} answers are alike, and "
            f"{lost.count} of them differ from the reference")  # fmt: skip
    return Candidate("vanished-constant", operation, text, lost.count, 0.0)
