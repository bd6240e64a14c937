"""Finds numbers that became zero or subnormal, and are not in the reference.

Their share of the tensor's norm is measured. The ops that read the tensor show whether they do harm: a mean with a few zeros is right, a division by
zero is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.output_impact import DEAD, GARBAGE
from precheck.analysis.propagation.provenance import percent, placed
from precheck.analysis.rounding.differences import LOSES_FIVE_BITS
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.function_limits import ADDED, COARSE, FUNCTION_ERRORS
from precheck.analysis.rounding.misroundings import AMPLIFIED_ROUNDINGS, FAIR, STARVED, Misrounded
from precheck.analysis.training.displacements import placed_at, worst_states
from precheck.analysis.unrepresentable.nonfinite import HARMED, Broken
from precheck.analysis.unrepresentable.zeros import LOST_TENSOR, LostTensor
from precheck.observe.shadow.operations import Operation
from precheck.rules.better_forms import in_range
from precheck.rules.rule import HEALED, Candidate, Rule
from precheck.words import of_norm

EMPTIED = Limit(0.01, "share of the elements")
"""If at least this share of an optimizer's moment becomes zero, that is reported. One element in a hundred then steps by m / eps and not by m /
√v."""

_SMALL = "numbers become subnormal or zero here"


class EmptiedState(Candidate):
    """A state of an optimizer that became zero."""


class Underflow(Rule):
    limits = (
        HARMED, LOST_TENSOR, FAIR, STARVED, DEAD, GARBAGE, LOSES_FIVE_BITS, AMPLIFIED_ROUNDINGS,
        ADDED, *FUNCTION_ERRORS, COARSE, EMPTIED,
    )  # fmt: skip

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Draws of outcomes whose probability became zero."""
        many, total = operation.impossible
        if many:
            text = (f"{many} of {total} draws chose an outcome of probability 0: some of the random numbers are zero in "
                    f"{operation.inputs[0].dtype}, and 0/0 is NaN, which argmax picks")  # fmt: skip
            yield Candidate("underflow", operation, text, many, 0)

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Broken) and fact.how == "small divisor":
            dtype = fact.operation.inputs[-1].dtype
            return f"a divisor of {fact.measured:.3g} is below {dtype}'s smallest normal number, {fact.limit:.2g}: {fact.what}"
        if isinstance(fact, LostTensor):
            lost = fact.value
            return f"{100 * lost.zeroed:.0f}% of this tensor became zero in {lost.dtype}, numbers up to {lost.largest_zeroed:.2g}"
        if isinstance(fact, Misrounded) and fact.how == "flushed":
            return f"{_SMALL}; {100 * fact.value.dead:.0f}% of the elements of {placed(fact.shown)} have no correct digit"
        if isinstance(fact, Misrounded) and fact.how == "subnormal":
            few = f"{_SMALL}, where {fact.value.dtype} has few bits: off by {of_norm(fact.value.drift)}"
            return few + (HEALED if fact.healed else "")
        return super().words(fact)

    def own_error(self, fact: OwnError) -> str:
        return f"{_SMALL} ({percent(min(fact.own, 1.0))}%)"

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        if candidate.tensor:  # a state of an optimizer
            return f"keep the optimizer's states in {wide}"
        divides = isinstance(candidate.fact, Broken) and candidate.fact.how == "small divisor"  # the fault is what the op reads, not its result
        return in_range(candidate.operation, readers, wide, "down" if divides else "up")

    def at_end(self, part: Part) -> Iterator[Candidate]:
        """Optimizer states that the format rounds to zero: the worst of each name."""
        for name, update in worst_states(part.observation.updates, lambda _, state: max(0.0, state.emptied - EMPTIED)).items():
            share = update.states[name].emptied
            text = (f"optimizer state {name} of {update.parameter or 'a parameter'} is zero for {share:.0%} of its elements, which in "
                    f"float32 are below the smallest number of {update.dtype}")  # fmt: skip
            yield EmptiedState("underflow", placed_at(update, update.states[name]), text, share, EMPTIED, tensor=update.parameter)
