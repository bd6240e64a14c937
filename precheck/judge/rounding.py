"""Rounding that costs more than rounding may: whole numbers, amplified errors, cancellation, kernels that accumulate low.

Neither the size of a drift nor its ratio to a noise floor tells a broken op from a healthy one (AUC 0.5 to 0.6 over 52 bugs
and 106 healthy programs). What does is four or five bits lost in one op, elements left without a digit, and that float32
itself determines the result: a twin of the shadow, disturbed by 2^-20, tells that.
"""

from __future__ import annotations

import math
from collections.abc import Set

from precheck.findings import Severity
from precheck.judge import attribution, causes, wholes
from precheck.judge.attribution import Attribution
from precheck.judge.calls import Calls
from precheck.judge.events import Suspect
from precheck.judge.excuses import Excuse, made_good, small
from precheck.judge.lineage import (
    MOVING,
    PRODUCTS,
    REDUCTIONS,
    SUMS,
    Origins,
    compensating,
    determined,
    elements,
    felt,
    percent,
    placed,
    smallest_normal,
    turns,
    zero_origin,
)  # fmt: skip
from precheck.judge.reach import averaged, exponentials, normalised, shown
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.statistics import DOUBTFUL

DEAD = 0.01
"""Share of elements without a digit. Healthy ops whose amplification is 8 or more leave at most 0.15 %; the mildest bug, 7.6 %."""
AMPLIFICATION = 16.0
"""Four bits lost in one op, jointly with `DEAD`; alone, sharp softmaxes reach 14.6."""
PLAIN = 32.0
"""Five bits lost in one op, or in one subtraction (healthy ones reach 16.2, by a scalar)."""
PLAIN_ROUNDINGS = 16.0
SUM_ROUNDINGS = 8.0
"""Drift of a difference, in unit roundoffs, below which a cancellation costs no more than a few ordinary ops do."""
GONE = 0.5
"""Half of the elements without a digit, however gradually that came about. Healthy programs reach 0.073."""
RECURRENT = 8
"""Turns of one op on its own results from which its roundings are what adds up. Where each op has one, correct rounding of a deep
network with batch norm costs as much before it is trained (0.38 of the result, and 0.41 with one rounding a module alone)."""
STARVED = 0.25
"""The same, downstream of an underflow."""
DIFFERENCES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
"""Losses that subtract within: near zero they are small differences of what they are given, as they should be."""
DECOMPOSED = frozenset({"_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_qr"})
"""Ops all results of which are results. By Davis and Kahan (1970) an eigenvector turns by what its matrix is off by over the gap to the next
eigenvalue: a thousandth of the largest is the whole of a small one."""
UNSTABLE = 0.5
"""Twin's wander over the run's drift from which float32 does not determine a value either: 2^-20/u when it does, 1 in chaos."""
FAIR = 0.05
"""Share of a tensor's norm that must have become zero for zeros to be what ails it: a fifth of what makes `WRONG` of a result."""
SHAKEN = 0.1
"""Share of dead elements from which a descendant's wander counts against a suspect."""
DIGIT = 2.0**-11
"""Relative wander that is visible beside a drift without a digit; smaller ones are the disturbance itself."""

_HEALED = "; all that it ends in here is right to a few roundings"


class Rounding:
    """One pass over a run, in order, in as many parts as it is judged in."""

    def __init__(self, origins: Origins) -> None:
        self.origins, self.observation, self.spoiled, self.readers = origins, Observation(), set[Value](), dict[Value, list[Operation]]()
        self.suspects: list[Suspect] = []  # whose harm is not known yet
        self.under: dict[Value, tuple[Suspect | None, ...]] = {}  # suspects that a value descends from; None excuses without accusing
        self.mild: set[Value] = set()  # values that descend from a small difference
        self.unstable: set[Suspect] = set()
        self.excuses: dict[Suspect, tuple[Value, list[Excuse]]] = {}  # what lets go of a suspect, by what comes of its value
        self.causes: dict[Value, Operation] = {}  # of errors that were asked about
        self.seen: set[Value] | None = None
        self.calls = Calls(self.observation, self.readers)
        self.stored: dict[tuple[str, str], Operation | None] = {}  # who stored the term of a difference, by its op and line

    def judged(self, observation: Observation, spoiled: set[Value], readers: dict[Value, list[Operation]]) -> list[Suspect]:
        """The suspects among the operations to judge, and those of earlier parts whose values have been read since."""
        self.observation, self.spoiled, self.readers, self.seen, self.causes = observation, spoiled, readers, None, {}
        self.calls, self.stored = Calls(observation, readers), {}
        for operation in observation.judged:
            above = tuple(dict.fromkeys(suspect for value in operation.inputs for suspect in self.under.get(value, ())))[:4]
            excused = self._excused(operation)
            for place, value in enumerate(operation.outputs):
                if value.maker is not operation:  # a copy
                    continue
                self.under[value] = above
                self.mild.update({value} if excused else ())
                self._whole_numbers(operation, value)
                self._borrowed_epsilon(operation, value)
                told = self.under[value] != above or any(source.nonfinite for source in operation.inputs)
                if not told and (place == 0 or operation.base in DECOMPOSED):  # other ops' later outputs are a fused kernel's statistics
                    self._amplified(operation, value, above)
            if operation.renumbered is not None and not above:
                self.suspects += wholes.renumbered(operation, operation.renumbered, self.origins.of(operation.drifting))
            self.origins.trace(operation)
        return self._settled()

    def doubt(self) -> None:
        """At the end of the run: what float32 does not determine is no error."""
        for suspect in self.unstable:
            suspect.rule, suspect.severity = "unstable-reference", "note"
            suspect.message = "float32 does not determine what follows from here either: " + suspect.message

    def keep(self, values: Set[Value]) -> None:
        """Only these can be read any more."""
        self.under = {value: above for value, above in self.under.items() if above and value in values}
        self.mild &= values
        self.observation, self.readers, self.seen, self.causes = Observation(), {}, None, {}

    def _excused(self, operation: Operation) -> bool:
        """Whether a small difference explains what comes in, which it does no more where that is right to a few roundings again."""
        known = any(value in self.mild for value in operation.inputs)
        return known and operation.drift_in > DOUBTFUL * max(value.roundoff for value in operation.inputs)

    @property
    def _shown(self) -> set[Value]:
        self.seen = shown(self.observation) if self.seen is None else self.seen
        return self.seen

    def _settled(self) -> list[Suspect]:
        """Those that nothing excuses. What is there still and unread has its fate before it."""
        found, waiting = [], []
        for suspect in self.suspects:
            value, excuses = self.excuses.get(suspect, (None, []))
            if value is not None and self.observation.undecided(value) and not self.readers.get(value):
                waiting.append(suspect)
                continue
            self.excuses.pop(suspect, None)
            if value is None or not any(excuse(suspect, value, self.readers) for excuse in excuses):
                found.append(suspect)
        self.suspects = waiting
        return found

    def _whole_numbers(self, operation: Operation, value: Value) -> None:
        suspect = None if self._local(operation, value) else wholes.moved(operation, value)
        if suspect is not None:
            self.suspects.append(suspect)
            self.under[value] = (*self.under[value], None)
            self.excuses[suspect] = value, wholes.excuses(operation)

    def _borrowed_epsilon(self, operation: Operation, value: Value) -> None:
        limit = SUM_ROUNDINGS * 2.0**-8
        if operation.own_epsilon and value.drift >= limit:
            text = f"eps {operation.own_epsilon:.3g} is the low format's own; with float32's the result differs by {100 * value.drift:.0f} %"
            self.suspects.append(Suspect("dtype-leak", operation, text, value.drift, limit))
            self.under[value] = (*self.under[value], None)

    def _amplified(self, operation: Operation, value: Value, above: tuple[Suspect | None, ...]) -> None:
        written = operation.phase in ("forward", "data") or (operation.phase == "backward" and not operation.derived)
        if value.nonfinite or not written or value.drift <= 4 * value.roundoff or not value.roundoff:
            return
        if value.wander > UNSTABLE and value.dead > SHAKEN and value.twin_drift > DIGIT:
            self.unstable.update(suspect for suspect in above if suspect is not None)
        if above or value in self.spoiled:
            return  # downstream of what is suspected already
        suspect = None if value in self.mild else self._suspect(operation, value)
        made = self.calls.judged(operation, value) if operation.call and (suspect is None or suspect.severity == "note") else None
        if made is not None:
            self.suspects.append(made)
            self.under[value], self.excuses[made] = (made,), (value, [self.calls.stays])
            return
        if value in self.mild:
            return
        if suspect is not None and operation.base in DECOMPOSED and suspect.severity == "note":
            self.under[value] = (None,)  # vectors of a cluster are any, and what is made of all of them is right
            return
        if suspect is not None and not (value.wander > UNSTABLE and value.twin_drift > DIGIT):
            self.suspects.append(suspect)
            self.under[value] = above if suspect.severity == "note" else (suspect,)  # what is made good excuses nothing that follows from it
            within = suspect.rule == "cancellation" and operation.base in PRODUCTS
            self.excuses[suspect] = value, [small if within else made_good]
        elif suspect is None and operation.base in SUMS | REDUCTIONS and self._gain(operation, value) >= AMPLIFICATION / 2:
            self.mild.add(value)  # a small difference of wide values: what it is fed with decides, not what follows

    @staticmethod
    def _gain(operation: Operation, value: Value) -> float:
        return value.drift / max(operation.drift_in, value.rounded)

    def _suspect(self, operation: Operation, value: Value) -> Suspect | None:
        gain, roundings = self._gain(operation, value), value.drift / felt(value)
        stored = any(source.kept_low for source in operation.inputs)
        starving = [source for source in operation.inputs if source.zeroed >= FAIR or (source.zeros and source.zeroed == 0)]
        starving += [source for source in self._summed_away(operation, value) if source not in starving]
        starving = [source for source in starving if source.maker is None or _flushed(*zero_origin(source)[1].outputs)]
        if operation.base in SUMS and stored and gain >= PLAIN and roundings >= SUM_ROUNDINGS and not self._intended(operation, value):
            before = max(operation.drift_in / value.roundoff, 0.42)
            text = f"a difference of near-equals: off by {value.drift / value.roundoff:.0f} roundings, its terms by {before:.1f}"
            readers = {} if value in self._shown else self.readers
            shares = [normalised(power, readers) for power in exponentials(value, readers)]
            if shares and all(shares):
                return None  # a softmax written out
            severity: Severity = "error" if shares or value in self._shown or averaged(value, self.readers) else "note"
            text += "" if severity == "error" else _HEALED
            term = max(operation.inputs, key=causes.absolute)
            cause = causes.entered(term, self.causes) if causes.kin(operation) else None
            if cause is None and not value.low:  # exact: what it is off by, its terms were off by when they were stored
                cause = self._storing(operation, term)
            if cause is not None and cause is not operation:
                text = f"its rounding is what {placed(operation)} shows, {text}"
                return Suspect(causes.kind(cause), cause, text, roundings, SUM_ROUNDINGS, severity)
            return Suspect("cancellation", operation, text, roundings, SUM_ROUNDINGS, severity)
        if starving or (value.zeroed >= FAIR and _flushed(value)):
            return self._starved(operation, value, starving)
        if self._local(operation, value):
            off = value.local or 0.0
            why = f"it accumulates in {value.dtype}" + ("" if off < UNSTABLE else ", or its kernel is wrong on this device")
            text = f"on the inputs that it has the op itself is off by {percent(off)} %: {why}"
            return Suspect("local-drift", operation, text, value.local or 0, self._accumulating(operation, value))
        given = bool(operation.parameter) and operation.base in MOVING  # weights are judged by what of the step arrived
        spread = value.dead >= GONE and elements(value) >= 8 and operation.drift_in < 1 and not given
        if operation.base in PRODUCTS and value.dead >= DEAD and gain >= PLAIN and stored and determined(operation, value):
            text = f"a product whose terms cancel: off by {100 * value.drift:.2g} %, its factors by {100 * operation.drift_in:.2g} %"
            return Suspect("cancellation", operation, text, gain, PLAIN)
        if operation.base in SUMS | REDUCTIONS | DIFFERENCES:  # what they lose beyond this is for cancellation, or to be healed, to say
            composed = operation.base in PRODUCTS and spread and gain < AMPLIFICATION / 2
            return self._gone(operation, value) if composed else None
        loses_digits = value.dead >= DEAD and gain >= AMPLIFICATION
        brought = (value.local or 0.0) < causes.HALF * value.drift  # else the op has made the error itself, and as much as it may
        if brought and operation.base not in MOVING and (loses_digits or (roundings >= PLAIN_ROUNDINGS and gain >= PLAIN)):
            told = value in self._shown or averaged(value, self.readers)  # else it is made good: log and then exp, a step small beside its weight
            severity = "error" if told else "note"
            healed = "" if severity == "error" else _HEALED
            if causes.subnormal(value) >= causes.HALF * value.drift:
                text = f"subnormal here, where {value.dtype} has few bits: off by {value.drift / value.roundoff:.0f} roundings"
                return Suspect("underflow", operation, text + healed, gain, PLAIN, severity)
            cause = causes.entered(operation.drifting, self.causes) or operation
            text = f"its rounding ({operation.drift_in:.2g} relative) is amplified {gain:.0f} times by {placed(operation)}: "
            if loses_digits:
                text += f"{100 * value.dead:.0f} % of the elements keep no digit{healed}"
                return Suspect("amplified-rounding", cause, text, value.dead, DEAD, severity)
            text += f"off by {value.drift / value.roundoff:.0f} roundings{healed}"
            return Suspect("amplified-rounding", cause, text, gain, PLAIN, severity)
        return self._gone(operation, value) if spread else None

    def _storing(self, operation: Operation, term: Value) -> Operation | None:
        """The op that stored the term of a difference, asked about once for all turns of a loop."""
        if (line := (operation.name, operation.blamed)) not in self.stored:
            self.stored[line] = Attribution(term, self.observation.operations).cause(attribution.written)
        return self.stored[line]

    @staticmethod
    def _summed_away(operation: Operation, value: Value) -> list[Value]:
        """The operand of a sum most of which is wrong, if its zeros are what it is off by and no other operand is off.

        Of n terms that became zero the norm tells little and the sum all: 2000 at 2^-11 beside a one are 2 % of it, and half.
        """
        worst = operation.drifting
        if operation.base not in REDUCTIONS or value.dead < GONE or worst is None or not worst.zeros or worst.zeroed < worst.drift / 2:
            return []
        exact = all(source is worst or source.drift <= SUM_ROUNDINGS * source.roundoff for source in operation.inputs)
        return [worst] if exact and determined(operation, value) else []

    @staticmethod
    def _gone(operation: Operation, value: Value) -> Suspect:
        text = f"{100 * value.dead:.0f} % of the elements keep no digit; no single op did it"
        if turns(value) >= RECURRENT:
            return Suspect("accumulated-drift", operation, text, value.dead, GONE)
        text += ", and correct rounding may do as much in so deep a network, which precheck.measure tells"
        return Suspect("accumulated-drift", operation, text, value.dead, GONE, severity="note")

    @staticmethod
    def _intended(operation: Operation, value: Value) -> bool:
        """Wide arithmetic on numbers that were stored low, a number less its own rounding among it: what is left is what these hold."""
        stored = [source for source in operation.inputs if source.kept_low]
        return compensating(operation) or (not value.low and all(causes.given_low(source) for source in stored))

    def _starved(self, operation: Operation, value: Value, starving: list[Value]) -> Suspect | None:
        if not starving or starving[0].maker is None or value.dead < STARVED or elements(value) < 2:
            return None
        rule, cause = zero_origin(starving[0])
        if rule != "underflow" or value.norm / math.sqrt(elements(value)) < 2.0**-14:  # fp16's smallest normal
            return None
        text = f"flushed or subnormal here; {100 * value.dead:.0f} % of {placed(operation)} keep no digit"
        return Suspect("underflow", cause, text, value.dead, STARVED)

    def _local(self, operation: Operation, value: Value) -> bool:
        known = value.local is not None and determined(operation, value)  # a sum that cancels to nothing has no digit, right as it is
        return known and (value.local or 0.0) > self._accumulating(operation, value)

    @staticmethod
    def _accumulating(operation: Operation, value: Value) -> float:
        """What a kernel may err that sums n terms in the low format: (1 + √n/2) u; beyond, it stagnates (numerics, 1.2)."""
        terms = max((elements(source) for source in operation.inputs), default=1) / max(1, elements(value))
        return max(SUM_ROUNDINGS, 1 + math.sqrt(max(1.0, terms)) / 2) * felt(value)


def _flushed(*made: Value) -> bool:
    """Whether zeros are the end of the format's doing, not a threshold's at zero that rounding moved values across."""
    return any(value.zeros and value.largest_zeroed <= smallest_normal(value) for value in made)
