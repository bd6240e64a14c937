"""Goes over a run in order and finds errors that rounding does not explain, each with the op that makes it. Other analyses judge each op.

A fault explains the errors of all values that are computed from its value, so these are not reported again. Whether an excuse applies is checked when
all readers of the value are known. A copy of the shadow, disturbed by 2^-20, shows whether float32 determines a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from precheck import formats, ops
from precheck.analysis.decisions.branches import WRONG_NUMBER
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.output_impact import GARBAGE, ROUNDINGS, dominated
from precheck.analysis.propagation.provenance import Origins, absolute_error, effective_roundoff, fills_constant, rounded_bound
from precheck.analysis.rounding.differences import LOSES_FIVE_BITS, amplification
from precheck.analysis.rounding.exemptions import Exempting, beneath_all, outweighed, small
from precheck.analysis.rounding.function_errors import Calls, OwnError
from precheck.analysis.rounding.function_limits import ROUNDED
from precheck.analysis.rounding.misroundings import AMPLIFICATION, Misrounded, Misroundings
from precheck.analysis.rounding.steep_functions import Steepness
from precheck.analysis.unrepresentable import whole_numbers
from precheck.observe.shadow.comparing.statistics import DOUBTFUL
from precheck.observe.shadow.operations import Observation, Operation, Value

UNSTABLE = Limit(0.5, "ratio of errors")
"""Float32 does not determine a value if a disturbance of 2^-20 makes at least this share of the run's error. The ratio is 2^-20/u if float32
determines the value, and 1 in a chaotic computation."""
SHAKEN = Limit(0.1, "share of the elements")
"""The sensitivity of a later value counts if at least this share of its elements have no correct digit."""
DIGIT = Limit(2.0**-11, "relative error")
"""The smallest error of the disturbed copy that counts. A smaller error is the disturbance itself."""
ZERO_SUM = Limit(2.0**-20, "norm of a sum over that of its terms")
"""A sum of at most this size is zero in theory, such as that of a softmax's gradient. The disturbance of the second shadow is as large, so such a sum
is rounding error whatever its terms are."""
OPS_FROM_CONSTANT = 8
"""The most ops between a constant and the op that shows its rounding: a power, a product, a cast."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class BorrowedEpsilon(Fact):
    """An eps of the low format (`finfo.eps`) that changes a result as float32's eps would not."""

    value: Value


class Errors:
    """One pass over a run, in order and part by part."""

    def __init__(self, origins: Origins) -> None:
        self.origins, self.observation, self.readers = origins, Observation(), Readers()
        self.suspects: list[Fact] = []  # facts whose harm is not known yet
        self.explanations: dict[Value, tuple[Fact | None, ...]] = {}  # facts that explain a value's error; None: explained by something else
        self.small_differences: set[Value] = set()  # values that are made from a small difference of wide numbers
        self.zero_in_theory: set[Value] = set()  # values that are zero in theory, and what has its error from them
        self.unstable: set[Fact] = set()  # facts on values that float32 does not determine
        self.handed_on: set[Fact] = set()  # facts on errors that a function handed on, and that float32 determined there
        self.exemptions: dict[Fact, tuple[Value, list[Exempting]]] = {}
        self._begin_part(self.observation, self.readers)

    def facts(self, observation: Observation, spoiled: Set[Value], readers: Readers) -> list[Fact]:
        """The facts on the operations of this part, and those of earlier parts whose values have been read since."""
        self.observation, self.spoiled, self.readers = observation, spoiled, readers
        self._begin_part(observation, readers)
        for operation in observation.judged:
            above = inherited = tuple(dict.fromkeys(fact for value in operation.inputs for fact in self.explanations.get(value, ())))[:4]
            excused = self._excused(operation)
            self.handed_on.update(fact for value in operation.inputs if self.explanations.get(value) for fact in self._handed(value, operation))
            for place, value in enumerate(operation.outputs):
                if value.maker is not operation:  # a copy
                    continue
                above = self.explanations[value] = tuple(fact for fact in inherited if not self._is_right_again(fact, operation, value))
                self.small_differences.update({value} if excused else ())
                self._judge_whole_numbers(operation, value)
                self._judge_epsilon(operation, value)
                if place == 0 and not above:
                    self._judge_exponential(operation, value)
                explained_here = self.explanations[value] != above or any(source.nonfinite for source in operation.inputs)
                if not explained_here and (place == 0 or operation.base in ops.DECOMPOSED):  # later outputs of other ops are a kernel's statistics
                    self._judge_error(operation, value, above)
            if operation.wrapped or operation.renumbered or operation.recut or operation.recut_in_call:
                self._judge_integers(operation, above)
            self.origins.trace(operation)
        return self._settle()

    def _judge_integers(self, operation: Operation, above: tuple[Fact | None, ...]) -> None:
        """Judges numbers that become other integers. Only for these is it asked what brought in an error, which may walk over a whole loop."""
        cause = whole_numbers.renumbered_by(operation) or self._entered(operation.drifting)
        self.suspects += [] if above else whole_numbers.facts_on_casts_to_integers(operation, cause)
        self.suspects += [] if any(above) else whole_numbers.facts_on_integers_of_data(operation, cause, self.readers)

    def _entered(self, value: Value | None) -> Operation | None:
        """The op that brought in the error of numbers that become whole ones. A difference of nearly equal numbers is exact and adds none, though its
        relative error is larger than that of its terms: then it is the op that brought in that of its worst term."""
        cause = self.origins.of(value)
        while cause is not None and cause.base in ops.SUMS and cause.inputs and cause.outputs[0].low:
            term = causes.worst_term(cause)
            before = self.origins.of(term)
            if before in (None, cause) or absolute_error(cause.outputs[0]) > 2 * absolute_error(term):
                return cause
            cause = before
        return cause

    def _is_right_again(self, fact: Fact | None, operation: Operation, result: Value) -> bool:
        """Whether a fault explains nothing of a result that reads its value: something larger was added, so that the result is right again."""
        value, exemptions = self.exemptions.get(fact, (None, [])) if fact is not None else (None, [])
        return value is not None and outweighed in exemptions and value in operation.inputs and dominated(operation, result, value)

    def explained(self) -> set[Value]:
        """Values that have a fault, or are made from one that has."""
        return {value for value, above in self.explanations.items() if above}

    def keep(self, values: Set[Value]) -> None:
        """Forgets all other values, which no later op can read."""
        self.explanations = {value: above for value, above in self.explanations.items() if above and value in values}
        self.small_differences &= values
        self.zero_in_theory &= values
        self.observation, self.readers = Observation(), {}
        self._begin_part(self.observation, self.readers)

    def _begin_part(self, observation: Observation, readers: Readers) -> None:
        """Creates the analyses of this part's operations."""
        self.calls, self.misroundings = Calls(observation, readers), Misroundings(observation, readers)
        self.steepness = Steepness(observation, readers)

    def _excused(self, operation: Operation) -> bool:
        """Whether a small difference explains the error of the inputs. It does not if they are right again up to a few roundings."""
        known = any(value in self.small_differences for value in operation.inputs)
        return known and operation.drift_in > DOUBTFUL * max(map(effective_roundoff, operation.inputs))

    def _suspect(self, fact: Fact, value: Value, *exemptions: Exempting, explained_by: tuple[Fact | None, ...] | None = None) -> None:
        """Adds a fact that an exemption may still excuse. `explained_by`: what explains the error of its value from now on; None: the fact alone."""
        self.suspects.append(fact)
        self.explanations[value] = (fact,) if explained_by is None else explained_by
        if exemptions:
            self.exemptions[fact] = value, list(exemptions)

    def _settle(self) -> list[Fact]:
        """The suspects that no exemption applies to. One whose value exists and is not read yet waits for a later part."""
        found, waiting = list[Fact](), list[Fact]()
        for fact in self.suspects:
            value, exemptions = self.exemptions.get(fact, (None, []))
            if value is not None and self.observation.undecided(value) and not self.readers.get(value):
                waiting.append(fact)
                continue
            self.exemptions.pop(fact, None)
            if value is None or not any(excuse(fact, value, self.readers) for excuse in exemptions):
                found.append(fact)
        self.suspects = waiting
        return found

    def _judge_whole_numbers(self, operation: Operation, value: Value) -> None:
        fact = None if self.misroundings.made_by_kernel(operation, value) else whole_numbers.fact_on_rounded_wholes(operation, value)
        excuses = [] if fact is None else whole_numbers.exemptions_for(operation)
        if fact is not None and not (self.readers.get(value) and any(excuse(fact, value, self.readers) for excuse in excuses)):
            self._suspect(fact, value, *excuses, explained_by=(*self.explanations[value], None))  # an excused one explains nothing

    def _judge_epsilon(self, operation: Operation, value: Value) -> None:
        limit = ROUNDINGS * formats.BF16.unit_roundoff
        if operation.own_epsilon and value.drift >= limit:
            fact = BorrowedEpsilon(rule="dtype-leak", operation=operation, measured=value.drift, limit=limit, value=value)
            self._suspect(fact, value, explained_by=(*self.explanations[value], None))

    def _judge_exponential(self, operation: Operation, value: Value) -> None:
        fact = self.steepness.exponent(operation, value)
        if fact is not None and value not in self.spoiled:
            self._suspect(fact, value, outweighed)

    def _judge_error(self, operation: Operation, value: Value, above: tuple[Fact | None, ...]) -> None:
        """Judges an error of more than four unit roundoffs, and notes whether float32 determines the value."""
        kernel = operation.phase == "backward" and operation.derived  # by autograd: only its accumulation in a low format is judged
        if value.nonfinite or operation.phase not in ("forward", "data", "backward", "optimizer"):
            return
        if not value.roundoff or value.drift <= DOUBTFUL * effective_roundoff(value):
            return
        if float32_leaves_open(value) and self._zero_in_theory(operation, value):
            self.zero_in_theory.add(value)
        elif float32_leaves_open(value) and value.dead > SHAKEN:
            self.unstable.update(fact for fact in above if fact is not None and fact not in self.handed_on)
        if value in self.spoiled:
            return  # downstream of what is suspected already
        if above:
            self._judge_beside(operation, value, above)
        elif operation.phase == "optimizer":
            self._judge_in_step(operation, value)
        elif not kernel:
            self._judge_unexplained(operation, value)
        elif self.misroundings.made_by_kernel(operation, value):
            fact = self.misroundings.fact(operation, value)
            if fact is not None and fact.how == "accumulated":
                self._suspect(fact, value)

    def _judge_unexplained(self, operation: Operation, value: Value) -> None:
        """Judges an error that no earlier fact explains."""
        fact = _of_constant(self.misroundings.fact(operation, value))
        chained = fact is not None and fact.how == "a difference" and fact.gain >= LOSES_FIVE_BITS > amplification(operation, value)
        fact = fact if chained or value not in self.small_differences else None
        own = None
        if operation.call and (fact is None or (fact.healed and (_lost(value) or not self.misroundings.healed(value)))):
            own = self.calls.error(operation, value)
        if own is not None:
            self._suspect(own, value, self.calls.stays, beneath_all)
            self.unstable.update([own] if float32_leaves_open(value) else [])
            return
        if value in self.small_differences and not chained:
            self._judge_after_difference(operation, value)
            return
        steep = self.steepness.error(operation, value) if fact is None or fact.healed else None
        if steep is not None:
            self._suspect(steep, value, outweighed, explained_by=() if steep.table else (steep,))
        elif fact is not None and not float32_leaves_open(value):
            explained_by = () if fact.healed else (fact,)  # what is made good explains nothing that follows from it
            self._suspect(fact, value, small if fact.how == "a product" else outweighed, explained_by=explained_by)
        elif fact is None and operation.base in ops.SUMS | ops.REDUCTIONS and amplification(operation, value) >= AMPLIFICATION / 2:
            self.small_differences.add(value)  # a small difference has the error of its inputs, amplified, and so has all that is made from it

    def _judge_after_difference(self, operation: Operation, value: Value) -> None:
        """Judges a steep function of a small difference. What both lose together is not excused by what the difference has lost."""
        steep = self.steepness.chained(operation, value)
        if steep is not None and not self.misroundings.healed(value):
            self._suspect(steep, value, outweighed)

    def _judge_in_step(self, operation: Operation, value: Value) -> None:
        """Judges an error in an optimizer's step that no earlier fact explains: numbers that the step loses, or a share that was rounded to 1."""
        own = self.calls.error(operation, value) if operation.call else None
        fact = None if own is not None else _of_constant(self.misroundings.fact(operation, value))
        if own is not None:
            self._suspect(own, value, self.calls.stays, beneath_all)
        elif fact is not None and fact.rule == "vanished-constant":
            self._suspect(fact, value, outweighed)

    def _judge_beside(self, operation: Operation, value: Value, above: tuple[Fact | None, ...]) -> None:
        """The error that a function makes itself, if its inputs are already wrong.

        It is measured on the inputs that the call had, so it contains no earlier fault. It is reported if it makes most of the error, or if all the
        rest comes from storing the run's inputs, which no code can mend. It is not reported if a fault in the same call explains it, or something
        that has no fact.
        """
        facts = [fact for fact in above if fact is not None and fact.operation.call != operation.call]
        if not operation.call or len(facts) < len(above):
            return
        own = self.calls.error(operation, value, given=all(fact.operation.converts == "given" for fact in facts))
        if own is not None:
            self._suspect(own, value, self.calls.stays, beneath_all)

    def _handed(self, value: Value, reader: Operation) -> list[Fact]:
        """The facts on what another function has returned to `reader`, if float32 determines it there. It is wrong, however chaotic is what follows:
        the function's own error is beyond any limit."""
        call = value.maker.call if value.maker is not None else 0
        if not call or call == reader.call or float32_leaves_open(value):
            return []
        beyond, wrong = (error > ROUNDED * effective_roundoff(value) for error in (value.call_error, value.drift))
        above = [fact for fact in self.explanations[value] if fact is not None]
        here = (fact for fact in above if fact.operation.call == call and (beyond or isinstance(fact, OwnError)))
        return [*here, *(fact for fact in above if wrong and isinstance(fact, Misrounded) and fact.how == "a difference" and fact.shown.call == call)]

    def _zero_in_theory(self, operation: Operation, value: Value) -> bool:
        """Whether a value is nothing but rounding error: a sum that cancels to zero, or a value whose error comes from one."""
        cancels = operation.base in ops.SUMS | ops.REDUCTIONS and value.norm <= ZERO_SUM * max(term.norm for term in operation.inputs)
        sources = [source for source in operation.inputs if float32_leaves_open(source)]
        return cancels or (bool(sources) and self.zero_in_theory.issuperset(sources))


def _lost(value: Value) -> bool:
    """Whether nothing is left of what a function was to compute. It is wrong there, whatever larger is added to it later."""
    return value.dead >= GARBAGE and value.call_error > WRONG_NUMBER


def _of_constant(fact: Misrounded | None) -> Misrounded | None:
    """Returns the error, blamed on a Python number if it comes from one that the format rounds to 1, so that it has no effect any more.

    If a share of 0.999 is rounded to 1, its difference to 1 is lost: in 1 - β, log(p), a sum of powers.
    """
    if fact is None or fact.rule not in ("cancellation", "amplified-rounding"):
        return fact
    cause = _only_cause(causes.worst_term(fact.shown) if fact.shown.inputs else None)
    return fact if cause is None or rounded_bound(cause) is None else dataclasses.replace(fact, rule="vanished-constant", operation=cause)


def _only_cause(value: Value | None) -> Operation | None:
    """The constant that makes the whole error of a value: no other input on the way has half as much error."""
    for _ in range(OPS_FROM_CONSTANT):
        maker = None if value is None else value.maker
        if maker is None or fills_constant(maker):
            return maker
        value = maker.drifting
        if value is None or any(2 * source.drift > value.drift for source in maker.inputs if source is not value):
            return None
    return None


def float32_leaves_open(value: Value) -> bool:
    """Whether float32 does not determine a value: the second shadow, disturbed by 2^-20, is as far off as the run."""
    return value.sensitivity > UNSTABLE and value.perturbed_drift > DIGIT
