"""Judges the rounding error of single ops: amplified errors, differences of nearly equal numbers, kernels that accumulate low, flushed numbers.

Neither an error's size nor its ratio to a noise floor separates a broken op from a healthy one (AUC below 0.6 over 52 bugs and 106 healthy programs).
Three things together do: one op loses four or five bits, elements have no correct digit left, and float32 determines the result (a disturbed shadow).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

from precheck import formats, ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution, causes, output_impact, provenance
from precheck.analysis.propagation.accumulators import standing_still
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.propagation.entrances import Entrances
from precheck.analysis.propagation.output_impact import DEAD, GARBAGE, ROUNDINGS
from precheck.analysis.propagation.provenance import determined, effective_roundoff, elements, given_back, iterations, rms, underflowed, zero_origin
from precheck.analysis.propagation.walks import FAR, NEARBY
from precheck.analysis.rounding import differences, written_steps
from precheck.analysis.rounding.differences import LOSES_FIVE_BITS, RECURRENT, Storing, amplification, difference_before
from precheck.analysis.rounding.exemptions import abated, as_stored, softmax_written_out
from precheck.analysis.rounding.function_errors import outside
from precheck.analysis.rounding.function_limits import ADDED, kernel_limit
from precheck.analysis.rounding.remainders import stored_low
from precheck.analysis.unrepresentable import zeros
from precheck.findings import Severity
from precheck.observe.shadow.operations import Observation, Operation, Value

AMPLIFICATION = Limit(16.0, "times")
"""An op with this amplification loses four bits. It counts together with `DEAD`, since sharp softmaxes reach 14.6."""
AMPLIFIED_ROUNDINGS = Limit(16.0, "unit roundoffs")
"""The smallest error that counts together with `LOSES_FIVE_BITS`. Any op may have it, so it is twice that of a sum."""
FELT = Limit(2.0**-6, "relative error")
"""A norm whose elements have correct digits shows its input's rounding from this error on: four unit roundoffs of bfloat16. Its mean is float32's."""
STARVED = Limit(0.25, "share of the elements")
"""An underflow does harm if so many elements of a later result have no correct digit."""
FAIR = Limit(0.05, "share of the norm")
"""Zeros explain an error from this share of the norm on: a fifth of what `nonfinite.HARMED` calls wrong."""

How = Literal["a difference", "picked", "undone", "a product", "flushed", "accumulated", "subnormal", "digits lost", "amplified", "gradual"]
_RULE: dict[How, str] = {
    "a difference": "cancellation", "picked": "cancellation", "undone": "cancellation", "a product": "cancellation", "flushed": "underflow",
    "subnormal": "underflow", "accumulated": "local-drift", "digits lost": "amplified-rounding", "amplified": "amplified-rounding",
    "gradual": "accumulated-drift",
}  # fmt: skip
Wanted = Callable[[Operation], bool]


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Misrounded(Fact):
    """An error of a result that rounding does not explain, and how it was made."""

    how: How
    shown: Operation  # the op with this result; the cause may be an earlier op
    value: Value
    gain: float = 1.0  # the factor by which the op amplifies the error
    lines: frozenset[str] = frozenset()  # of "gradual": where an accumulator that stands still brought the error in

    @property
    def healed(self) -> bool:
        """Whether all results made from it are right nevertheless."""
        return self.severity == "note"


class Misroundings:
    """Finds the errors in a part of a run that rounding does not explain."""

    def __init__(self, observation: Observation, readers: Readers) -> None:
        self.observation, self.readers = observation, readers
        self.ends: dict[bool, set[Value]] = {}  # answers of `_shown`
        self.causes: dict[Value, Operation] = {}  # cached causes of errors
        self.stored: dict[tuple[object, ...], Storing] = {}  # answers of `_storing`, by the difference's op and line
        self.resting: dict[tuple[str, str], bool] = {}  # whether the turns of a loop heal the errors of a line
        self.entrances = Entrances(observation)
        self.behind: dict[object, Operation | None] = {}  # answers of `_behind` that a walk gave, by line

    def _shown(self, *, infinite: bool = False) -> set[Value]:
        """The values whose errors a wrong end of the run shows. `infinite`: also an end with Inf or NaN, which shows that a number became zero."""
        if infinite not in self.ends:
            self.ends[infinite] = output_impact.behind_wrong_ends(self.observation, infinite=infinite)
        return self.ends[infinite]

    @functools.cached_property
    def unread(self) -> set[Value]:
        """Values that the program drops."""
        return output_impact.dropped_values(self.observation)

    def fact(self, operation: Operation, value: Value) -> Misrounded | None:
        """The fact on the error of this op's result, if rounding does not explain it, on the line that should be changed."""
        fact = self._first(operation, value)
        if fact is not None and not fact.healed and fact.how in ("a difference", "digits lost", "amplified"):
            made, limit = fact.operation, ROUNDINGS * effective_roundoff(value)
            fact.operation = self.entrances.of(value, made, value.drift, limit)
            fact.rule = causes.rule_for(fact.operation) if fact.operation is not made and fact.how == "a difference" else fact.rule
        return fact

    def _first(self, operation: Operation, value: Value) -> Misrounded | None:
        """The first check that holds decides."""
        gain, roundings = amplification(operation, value), value.drift / effective_roundoff(value)
        if operation.base in ops.SUMS and value.low and self._undone(operation, value):
            return self._fact("undone", operation, value, roundings, ADDED, gain=gain)
        normal = causes.subnormal_error(value) < causes.MADE_BY_OP * value.drift  # else the format has no number as small as the result
        far = normal and roundings >= ROUNDINGS
        together = differences.amplified_in_all(operation, value, self.causes) if far else 0.0
        if together >= LOSES_FIVE_BITS and not as_stored(operation, value, stored_low(operation)):
            return self._difference(operation, value, roundings, together)
        if far and gain >= LOSES_FIVE_BITS and differences.wide_without_correct_digit(operation, value):
            if cause := differences.op_that_lost_digits(operation, self.observation, self.readers):
                return self._fact("a difference", operation, value, roundings, ROUNDINGS, cause=cause, severity=self._severity(value))
        if lost := differences.sum_picked_from(operation, value, self.readers):
            cause, severity = self._stored(lost[0]), self._severity(value)
            return self._fact("picked", operation, value, lost[1], LOSES_FIVE_BITS, cause=cause, severity=severity, gain=lost[1])
        if starving := self._lost_inputs(operation, value):
            return self._flushed(operation, value, starving)
        if self.made_by_kernel(operation, value):
            harm: Severity = "note" if self.healed(value) else "error"
            return self._fact("accumulated", operation, value, value.local or 0.0, kernel_limit(operation, value), severity=harm)
        return self._lost_digits(operation, value, gain, roundings)

    def _lost_digits(self, operation: Operation, value: Value, gain: float, roundings: float) -> Misrounded | None:
        """The fact on an error that is neither a difference's, nor that of zeros among the inputs, nor a kernel's own."""
        stored = any(source.kept_low for source in operation.inputs)
        spread = value.dead >= GARBAGE and elements(value) >= 8 and operation.drift_in < 1 and value.norm > 0  # of zeros no digit can be lost
        if operation.base in ops.PRODUCTS and value.dead >= DEAD and gain >= LOSES_FIVE_BITS and stored and determined(value):
            return self._fact("a product", operation, value, gain, LOSES_FIVE_BITS)
        if operation.base in ops.SUMS | ops.REDUCTIONS | ops.DIFFERENCES:  # other losses of these ops are judged above
            composed = operation.base in ops.PRODUCTS and spread and gain < AMPLIFICATION / 2
            return self._gradual(operation, value) if composed else None
        loses_digits = value.dead >= DEAD and gain >= AMPLIFICATION
        brought = (value.local or 0.0) < causes.MADE_BY_OP * value.drift and value.norm > 0  # else the op itself made it, within its limit
        plainly = roundings >= AMPLIFIED_ROUNDINGS and gain >= LOSES_FIVE_BITS and (operation.base not in ops.CENTRED or value.drift >= FELT)
        handed_on = operation.base in ops.MOVING | ops.CHOSEN and not causes.stores_subnormal(operation, value)
        if brought and not (handed_on or written_steps.normalises(operation)) and (loses_digits or plainly):
            return self._amplifying(operation, value, gain, loses_digits=loses_digits)
        if spread and causes.subnormal_error(value) >= causes.MADE_BY_OP * value.drift:  # its inputs have their digits; its wide spacing lost them
            return self._fact("subnormal", operation, value, value.dead, GARBAGE, severity=self._severity(value, below=True))
        return self._gradual(operation, value) if spread else None

    @staticmethod
    def _fact(
        how: How, operation: Operation, value: Value, measured: float, limit: float,
        *, cause: Operation | None = None, severity: Severity = "error", gain: float = 1.0,
    ) -> Misrounded:  # fmt: skip
        where = cause or operation  # the terms of a difference may have been rounded elsewhere
        rule = causes.rule_for(where) if how == "a difference" and where is not operation else _RULE[how]
        return Misrounded(
            rule=rule, operation=where, measured=measured, limit=limit, severity=severity, how=how, shown=operation, value=value, gain=gain,
        )  # fmt: skip

    def _undone(self, operation: Operation, value: Value) -> bool:
        """Whether a sum undoes a difference, z + (q - z), and returns q with a larger error than q has, since the difference was rounded.

        In Kahan summation such a sum is no result. The program subtracts it from the right one, and adds the remainder elsewhere.
        """
        kept = given_back(operation)
        if kept is None or value.drift <= max(ADDED * effective_roundoff(value), 2 * kept.drift):
            return False
        consumers = (reader for reader in self.readers.get(value, ()) if reader.base in ops.SUMS)
        return not any(causes.before_copies(kept) is causes.before_copies(source) for reader in consumers for source in reader.inputs)

    def _difference(self, operation: Operation, value: Value, roundings: float, gain: float) -> Misrounded | None:
        """The fact on a difference of nearly equal numbers. Its terms may have been rounded much earlier."""
        powers = () if value in self._shown() else output_impact.exponentials(value, self.readers)
        shares = [output_impact.is_softmax_exponential(power, self.readers) for power in powers]
        if softmax_written_out(shares):
            return None
        severity: Severity = "error" if shares else self._severity(value)
        term = causes.worst_term(operation)
        cause = causes.rounding_shown(operation, term, self.causes) if causes.shares_operand(operation) else None
        if cause is None and value.low and differences.of_shared_error(operation, term):
            cause = differences.stored_elsewhere(operation, self.observation.functions)
        elif cause is None:  # a difference of nearly equal numbers is exact: its error is that of its stored terms
            stored, most, _ = self._storing(operation, term)
            if stored is not None and not (value.low or most):
                return None  # boundaries show what many lines make together
            cause = (self._handed_in(operation, term) or self._before(operation, term)) if value.low else stored
        cause = None if cause is not None and attribution.is_variance_of_squares(operation, cause) else cause
        return self._fact("a difference", operation, value, roundings, ROUNDINGS, cause=cause, severity=severity, gain=gain)

    def _before(self, operation: Operation, term: Value) -> Operation | None:
        """The earlier difference that made the term of this one, if it amplified the error more. The amplifications of both multiply. If it is of
        parts of one tensor, its digits were lost when that tensor was stored."""
        first = difference_before(term, self.causes)
        first, made = (first, None) if first is not None else differences.difference_of_parts(term)
        more = first is not None and amplification(first, first.outputs[0]) >= amplification(operation, operation.outputs[0])
        return (made or first) if more else None

    def _amplifying(self, operation: Operation, value: Value, gain: float, *, loses_digits: bool) -> Misrounded | None:
        """The fact on an op that amplifies the error of its input. A note if later ops heal it: exp after log, a step small beside its weight."""
        below = max(causes.subnormal_error(value), value.zeroed if underflowed(value) else 0.0) >= causes.MADE_BY_OP * value.drift
        severity: Severity = "note" if self.healed(value) else self._severity(value, below=below and value.zeroed < FAIR)  # see `nonfinite`
        if below:
            judged = value.zeroed >= (FAIR if operation.phase == "backward" else zeros.LOST_TENSOR)  # a flood, or a gradient that wants a loss scale
            read = value.alive or self.readers.get(value)
            return self._fact("subnormal", operation, value, gain, LOSES_FIVE_BITS) if severity == "error" and read and not judged else None
        cause = outside(self._stored(self._behind(operation) or operation), operation, value, self.observation)
        if not loses_digits:
            return self._fact("amplified", operation, value, gain, LOSES_FIVE_BITS, cause=cause, severity=severity, gain=gain)
        if severity == "error" and (flushes := zeros.underflow_behind(cause, value)):
            return self._fact("flushed", operation, value, value.dead, DEAD, cause=flushes)
        return self._fact("digits lost", operation, value, value.dead, DEAD, cause=cause, severity=severity, gain=gain)

    def _behind(self, operation: Operation) -> Operation | None:
        """The op whose rounding an op amplifies: the last op that made half of the error, or the last line with a part in it, whichever is later.
        Earlier ones may have cancelled (`abated`). An exponential's relative error is its exponent's absolute one. An exponent further off than that
        errs behind a mask: the line that made it is blamed, or if that is wide and rounded nothing, the line that stored most of it."""
        source = causes.amplified_input(operation)
        if source is None:
            return None
        if operation.base in ops.EXPONENTIALS and provenance.absolute_error(source) > attribution.GROWN * operation.outputs[0].drift:
            exponent = causes.before_copies(source)
            stored = None if exponent.low or len(self.stored) >= NEARBY else self._storing(operation, source)
            return stored.operation if stored is not None and stored.most else exponent.maker
        cause = causes.error_source(source, self.causes)
        arrived = attribution.makes_most(cause, source.drift) and not abated(cause, source)
        if arrived or len(self.stored) >= NEARBY:  # each walk goes back over the whole run
            return cause
        found = attribution.later(cause, self._storing(operation, source, bool).operation)  # one walk for a loop: the first iteration's answer
        return self.behind.setdefault((operation.name, operation.line), found)

    def healed(self, value: Value, most: int = NEARBY) -> bool:
        """Whether all that is made from a wrong value is right. A mean of elements without a digit is a statistic of wrong numbers, and is not."""
        healed = output_impact.healed(value, self.readers, self.observation.parameter_gradients, most)
        return healed and not output_impact.wrong_when_averaged(value, self.readers, self.unread)

    def _severity(self, value: Value, *, below: bool = False) -> Severity:
        """`below`: the value's numbers are subnormal, and may become zero."""
        return "error" if value in self._shown(infinite=below) or output_impact.wrong_when_averaged(value, self.readers, self.unread) else "note"

    def _storing(self, operation: Operation, term: Value, wanted: Wanted = attribution.written) -> Storing:
        """The `wanted` op that stored the term of a difference. Found once for a loop."""
        if (line := (operation.name, operation.blamed, wanted)) not in self.stored:
            made = Attribution(term, self.observation.operations)
            cause = made.cause(wanted)
            self.stored[line] = differences.storing(cause, made, self.observation.functions)
        return self.stored[line]

    def _stored(self, cause: Operation) -> Operation:
        """Returns `cause` unless it is in float32. For a difference in float32, which is exact, returns the op that stored its term low. For any op
        in float32, returns the op of a torch module if that stored most of the error."""
        made = cause.outputs[0]
        if made.low or not cause.inputs or attribution.own_error(cause, made) >= causes.MADE_BY_OP * made.drift:
            return cause
        term = causes.worst_term(cause) if cause.base in ops.SUMS else max(cause.inputs, key=attribution.drift)
        most = self._storing(cause, term, bool).operation
        if most is not None and not attribution.written(most):
            return most
        return (self._storing(cause, term).operation if causes.terms_cancel(cause) else None) or cause

    def _handed_in(self, operation: Operation, term: Value) -> Operation | None:
        """The op of another function, or of a loop, that made most of a term's error, since nearly equal numbers are subtracted exactly (Sterbenz).
        Or a cast after which nothing else is computed (`differences.only_cast`). If one function does both otherwise, or both terms were computed
        from what the other one computed, the subtraction should be changed."""
        stored, most, spared = self._storing(operation, term)
        if stored is None or (most and differences.subtracts_loop_state(operation, stored, term)):
            return stored
        alone = attribution.makes_most(stored, term.drift) and not causes.reads_only_from_line_of(operation, stored)
        apart = not attribution.same_function(stored, operation, self.observation.functions)
        apart = apart or differences.only_cast(stored, operation, self.readers)
        return stored if apart and (alone or (causes.casts_wide(stored) and spared)) else None

    def _lost_inputs(self, operation: Operation, value: Value) -> list[Value]:
        """The inputs with underflowed zeros that may explain the error of the result. Zeros that are nothing of the norm do so only at a pole."""
        pole = operation.base in ops.POLES
        found = [source for source in operation.inputs if source.zeroed >= FAIR or (pole and source.zeros and source.zeroed == 0)]
        found += [source for source in zeros.lost_terms(operation, value) if source not in found]
        return [source for source in found if source.maker is None or underflowed(*zero_origin(source)[1].outputs)]

    def _gradual(self, operation: Operation, value: Value) -> Misrounded:
        """The fact on an error that no single op makes. A note for a network, where correct rounding may do as much, an error for a loop's state."""
        line = operation.name, operation.blamed
        repeats = iterations(value) >= RECURRENT
        if repeats and line not in self.resting:
            self.resting[line] = self.healed(value, FAR)
        severity: Severity = "error" if repeats and not self.resting[line] else "note"
        made = max(causes.before_joins(value), key=provenance.absolute_error).maker  # a join has computed nothing
        fact = self._fact("gradual", operation, value, value.dead, GARBAGE, cause=made, severity=severity)
        return dataclasses.replace(fact, lines=standing_still(value))

    def _flushed(self, operation: Operation, value: Value, starving: list[Value]) -> Misrounded | None:
        """The fact on underflowed zeros that make a result wrong. None if the result has its digits, or is itself too small."""
        if starving[0].maker is None or value.dead < STARVED or elements(value) < 2:
            return None
        rule, cause = zero_origin(starving[0])
        large = rule == "underflow" and rms(value) >= formats.FP16.min_normal
        return self._fact("flushed", operation, value, value.dead, STARVED, cause=cause) if large else None

    def made_by_kernel(self, operation: Operation, value: Value) -> bool:
        """Whether the error of the op's own kernel is larger than that of a correct sum in the low format. What a factorization leaves when it gives
        up is no result."""
        gave_up = operation.packet in ops.REPORTING and operation.flips is not None and bool(operation.flips.changed)
        known = not gave_up and value.local is not None and determined(value)  # a right sum may cancel to zero
        return known and (value.local or 0.0) > kernel_limit(operation, value)
