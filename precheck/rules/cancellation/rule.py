"""Finds differences of nearly equal numbers that were stored low.

The leading digits cancel and the rounding errors stay. The relative error of the difference is compared with that of its terms. The ops that read
the difference show whether it does harm: if all their results are right up to a few roundings, the finding is a note.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.chance import CHANCE
from precheck.analysis.decisions.branches import BRANCHES, MISLED, WRONG_ANSWERS, WRONG_NUMBER
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.propagation.attribution import GROWN
from precheck.analysis.propagation.causes import RESULTS, before_copies
from precheck.analysis.propagation.output_impact import CANCELLED, DEAD, FEWEST_SUMS, GARBAGE, PART, ROUNDINGS
from precheck.analysis.propagation.provenance import given_back, percent, placed
from precheck.analysis.rounding.differences import ALIKE, DIGITS, FEW_TERMS, LOSES_FIVE_BITS
from precheck.analysis.rounding.errors import UNSTABLE
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.function_limits import ADDED, FUNCTION_ERRORS
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.rules.advice import kept
from precheck.rules.better_forms import better_form
from precheck.rules.rule import Candidate, Rule, adds, difference


class Cancellation(Rule):
    limits = (
        LOSES_FIVE_BITS, ROUNDINGS, CHANCE, DIGITS, ALIKE, FEW_TERMS, RESULTS, DEAD, UNSTABLE, GARBAGE, WRONG_NUMBER, MISLED, WRONG_ANSWERS, BRANCHES,
        ADDED, *FUNCTION_ERRORS, GROWN, PART, CANCELLED, FEWEST_SUMS,
    )  # fmt: skip

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Misrounded) and fact.how == "undone":
            kept = given_back(fact.operation)
            now, own = percent(fact.value.drift), percent(0.0 if kept is None else kept.drift)
            if fact.operation.base in ops.SUBTRACTIONS:
                return f"subtracts what was added, as (m + d) - m does, but the sum was rounded: {now}% off, where d itself is {own}% off"
            return f"adds back what was subtracted, as z + (q - z) does, but the difference was rounded: {now}% off, where q itself is {own}% off"
        if isinstance(fact, Misrounded) and fact.how == "a product":
            off, before = 100 * fact.value.drift, 100 * fact.shown.drift_in
            return f"the terms of this product cancel: it is {off:.2g}% off, and its factors are {before:.2g}% off"
        if isinstance(fact, Misrounded) and fact.how == "picked":
            this = "this" if fact.operation.outputs[0] in map(before_copies, fact.shown.inputs) else "the sum made of this"
            return (f"{placed(fact.shown)} reads a part of {this} that is small beside the rest, whose rounding leaves it no correct digit: "
                    f"{fact.gain:.0f} times the error of the whole")  # fmt: skip
        if isinstance(fact, Misrounded) and fact.operation is fact.shown:
            return difference(fact)
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        fact, operation = candidate.fact, candidate.operation
        if isinstance(fact, Misrounded) and fact.how == "undone":
            given = "use d itself" if operation.base in ops.SUBTRACTIONS else "use q with z's gradient, by an autograd.Function"
            return f"{given}; or compute both in {wide}"
        shown = fact.shown if isinstance(fact, (Misrounded, OwnError)) else operation
        far = shown is not operation and operation.base not in ops.ADDITIONS
        verb = "add" if adds(operation) else "subtract"
        how = kept(operation, shown, wide) if far else f"compute the terms in {wide}, and {verb} them before any is rounded"
        return "; or ".join(filter(None, (better_form(operation, readers) or better_form(shown, readers), how)))

    def own_error(self, fact: OwnError) -> str:
        return f"a difference of nearly equal numbers, in {fact.operation.outputs[0].dtype}"
