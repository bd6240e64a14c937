"""Defines `Rule`, the base class of rules. A rule makes candidates from a watched run, and findings from a run compared with its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import ClassVar

from precheck import ops
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.labels import label, module_of, phase_of
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor import boundaries
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.analysis.propagation.provenance import percent, placed
from precheck.analysis.rounding.function_errors import OwnError
from precheck.analysis.rounding.misroundings import Misrounded
from precheck.analysis.rounding.recurrence import RepeatedFactor
from precheck.analysis.unrepresentable.exceptions import Decided
from precheck.analysis.unrepresentable.nonfinite import Broken
from precheck.analysis.unrepresentable.zeros import Missed
from precheck.findings import Finding, RuleInfo, Severity
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Operation, Value
from precheck.precisions import Precision
from precheck.rules import catalogue
from precheck.words import digits, of_norm, percents


@dataclasses.dataclass(slots=True, eq=False)
class Candidate:
    """A fault in a watched run, and the op that is blamed. It becomes a finding if no other rule explains the fault better."""

    rule: str
    operation: Operation
    message: str
    measured: float
    limit: float
    severity: Severity = "error"
    tensor: str = ""  # the name of the parameter, if it is about one
    fact: Fact | None = None  # the fact from which it was made
    needs: int = 0  # how many steps a verdict needs, if those of the run are too few
    advice: str = ""  # what to change on the line


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A run under a precision, its reference, and the comparison of each boundary."""

    low: Trace
    reference: Trace
    rows: Sequence[ComparedTensor]
    precision: Precision
    explained: Collection[str] = ()  # keys of rows that closer runs explain
    unstable: Collection[str] = ()  # keys of rows for which float32 is no valid reference
    unasked: int = 0  # rows beyond their limits that are not among `rows`, since there is an error before them


class Rule:
    """One rule, applied to one run. Each rule's folder has a subclass, and says what the rule is about."""

    about: ClassVar[RuleInfo]
    limits: ClassVar[tuple[Limit, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.about = catalogue()[cls.__module__.split(".")[2].replace("_", "-")]

    def among(self, part: Part) -> Iterator[Candidate]:
        """Candidates from the operations that are judged now: one for each fact of this rule, and those that `noted` gives."""
        yield from map(self.candidate, part.facts.get(self.about.name, ()))
        if type(self).noted is not Rule.noted:
            for operation in part.observation.judged:
                yield from self.noted(operation, part)

    def noted(self, operation: Operation, part: Part) -> Iterable[Candidate]:
        """Candidates from the notes that the shadow made on one of these operations, such as `operation.absorbed`."""
        return ()

    def at_end(self, part: Part) -> Iterable[Candidate]:
        """Candidates from the whole run, when it has ended. `part`: its last part."""
        return ()

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """The candidates of all rules, as this rule leaves them at the end of the run. `undetermined`: facts on values that float32 does not
        determine."""
        return found

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        """What to change on the line of a candidate, in terms of its code. `wide`: the format of the reference, "float32" or "float64". This default
        returns the advice that came with the candidate, or else the rule's remedy for that format."""
        return (candidate.advice or self.about.remedy).replace("float32", wide)

    def keep(self, values: Set[Value]) -> None:
        """Forgets all other values, which no later op can read."""

    def beside(self, run: Compared) -> Iterable[Finding]:
        """Findings from a run that is compared with its reference."""
        return ()

    def words(self, fact: Fact) -> str:
        """The message on a fact that names this rule. This default is for facts that several rules report."""
        if isinstance(fact, Missed):
            made = fact.zero.maker
            if made is None or made is fact.operation or fact.operation.outputs[0].zeros:
                return f"{fact.zero.largest_zeroed:.3g} in the reference became zero here; {fact.then}"
            return f"by this rounding {fact.zero.largest_zeroed:.3g} in the reference became zero at {placed(made)}; {fact.then}"
        if isinstance(fact, Broken) and fact.how == "beyond its edge":
            return f"roundings have put a number beyond the end of this function's domain: {fact.what}"
        if isinstance(fact, Broken):  # a rounding moved an argument onto a pole
            return f"this rounding moves a number to where {fact.where} has no finite result: {fact.what}"
        if isinstance(fact, Decided):
            return f"by this rounding {placed(fact.comparison)} gives another answer than in the reference, and the code raised {fact.raised}"
        if isinstance(fact, OwnError):
            return fact.found + self.own_error(fact)
        if isinstance(fact, Misrounded):  # a difference whose terms were rounded before
            return f"its rounding error grows at {placed(fact.shown)}, {difference(fact)}"
        raise TypeError(f"{self.about.name} has no words for a {type(fact).__name__}")

    def own_error(self, fact: OwnError) -> str:
        """The end of the message on the own error of a function."""
        raise NotImplementedError

    def candidate(self, fact: Fact) -> Candidate:
        return Candidate(self.about.name, fact.operation, self.words(fact), fact.measured, fact.limit, fact.severity, fact=fact)


def at(record: Record, rule: str, severity: Severity, message: str, *, measured: float | None = None, limit: float | None = None) -> Finding:
    """A finding on the tensor of a record."""
    return Finding(
        rule, severity, message, phase=phase_of(record.kind), module=module_of(record.name, record.kind), step=record.step, tensor=record.name,
        measured=measured, limit=limit,
    )  # fmt: skip


def broken_boundary(rule: Rule, run: Compared) -> Iterator[Finding]:
    """A finding on the first boundary that is not finite, if this is the rule for it."""
    found = boundaries.first_broken(run.low, run.reference, run.rows, run.precision)
    if found is not None and found.rule == rule.about.name:
        record, held = found.record, run.precision.compute
        text = (f"{label(record.kind, record.name)}: {found.what} under {run.precision} in step {record.step}, where the reference is finite with "
                f"magnitudes up to {digits(found.reference.amax)} ({held.name} holds up to {digits(held.max, 5)})")  # fmt: skip
        yield at(record, found.rule, "error", text, measured=float(found.excess), limit=0.0)


HEALED = "; no result of this run is wrong because of it"


def adds(operation: Operation) -> bool:
    """Whether an op whose terms cancel adds them up."""
    return operation.base in ops.REDUCTIONS or operation.base.strip("_") == "add"


def difference(fact: Misrounded) -> str:
    """The message on a difference of nearly equal numbers."""
    value = fact.value
    what = "a sum whose terms cancel" if adds(fact.shown) else "a difference of nearly equal numbers"
    text = f"{what}: off by {of_norm(value.drift)}, its terms by {percents(max(fact.shown.drift_in, value.rounded))}"
    return text + (HEALED if fact.healed else "")


def repeated(fact: RepeatedFactor) -> str:
    """The message on a rounded factor that scales a state in each iteration of a loop."""
    return f"scales the state of a loop in {fact.iterations} iterations, which ends {percent(fact.off)}% off at {placed(fact.shown)}"
