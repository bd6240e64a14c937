"""A rule as the judge sees it: its findings in a watched run, in a run beside its reference, and about what other rules have found."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import ClassVar

from precheck import ops
from precheck.analysis import boundaries
from precheck.analysis.calls import OwnError
from precheck.analysis.drift import Comparison
from precheck.analysis.facts import Fact, Part
from precheck.analysis.labels import label, module_of, phase_of
from precheck.analysis.limit import Limit
from precheck.analysis.nonfinite import Broken
from precheck.analysis.provenance import percent, placed
from precheck.analysis.recurrence import Repeated
from precheck.analysis.rounding import Misrounded
from precheck.analysis.zeros import Missed
from precheck.findings import Finding, Severity
from precheck.findings import Rule as About
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Operation, Value
from precheck.precisions import Precision
from precheck.words import of_norm, percents


@dataclasses.dataclass(slots=True, eq=False)
class Candidate:
    """A fault in a watched run, and the op it is blamed on. It becomes a finding if no other rule has a better word on it."""

    rule: str
    operation: Operation
    message: str
    measured: float
    limit: float
    severity: Severity = "error"
    tensor: str = ""  # the parameter that it is about, where it is about one
    fact: Fact | None = None  # that it was made of
    needs: int = 0  # steps that would tell, where those of the run are too few for a verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A run under a precision beside its reference, boundary by boundary."""

    seen: Trace
    reference: Trace
    rows: Sequence[Comparison]
    precision: Precision
    explained: Collection[str] = ()  # keys of rows that rounding inside modules explains after all
    unstable: Collection[str] = ()  # keys of rows that float32 itself gets wrong


class Rule:
    """One rule at work on one run. A subclass in each folder says what it does."""

    about: ClassVar[About]
    limits: ClassVar[tuple[Limit, ...]] = ()

    def among(self, part: Part) -> Iterable[Candidate]:
        """Of the operations that are judged now. Unless a rule says otherwise: what the analysis found of its mechanism, in its words."""
        return [self.candidate(fact) for fact in part.facts.get(self.about.name, ())]

    def at_end(self, part: Part) -> Iterable[Candidate]:
        """Of a whole run, once it has ended; `part` is its last."""
        return ()

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """All rules' candidates, once the run has ended. `undetermined`: facts on values that float32 does not determine."""
        return found

    def keep(self, values: Set[Value]) -> None:
        """Only these values can be read any more."""

    def beside(self, run: Compared) -> Iterable[Finding]:
        """Of a run beside its reference."""
        return ()

    def words(self, fact: Fact) -> str:
        """The message on a fact of this rule's mechanism. These are for facts that several rules have."""
        if isinstance(fact, Missed):
            return f"{fact.zero.largest_zeroed:.3g} in the reference became zero here; {fact.then}"
        if isinstance(fact, Broken):  # moved onto a pole
            return f"this rounding gives {fact.where} a number that it has no finite result for: {fact.what}"
        if isinstance(fact, OwnError):
            return fact.found + self.own_error(fact)
        if isinstance(fact, Misrounded):  # a difference, of terms that were rounded before it
            return f"its rounding shows at {placed(fact.shown)}, {difference(fact)}"
        raise TypeError(f"{self.about.name} has no words for a {type(fact).__name__}")

    def own_error(self, fact: OwnError) -> str:
        """The end of the message on the error that a function makes."""
        raise NotImplementedError

    def candidate(self, fact: Fact) -> Candidate:
        return Candidate(self.about.name, fact.operation, self.words(fact), fact.measured, fact.limit, fact.severity, fact=fact)


def at(record: Record, rule: str, severity: Severity, message: str, *, measured: float | None = None, limit: float | None = None) -> Finding:
    """A finding on a boundary."""
    return Finding(
        rule, severity, message, phase=phase_of(record.kind), module=module_of(record.name, record.kind), step=record.step, tensor=record.name,
        measured=measured, limit=limit,
    )  # fmt: skip


def broken_boundary(rule: Rule, run: Compared) -> Iterator[Finding]:
    """The first boundary that is not finite, if it is of this rule."""
    found = boundaries.broken(run.seen, run.reference, run.rows, run.precision)
    if found is not None and found.mechanism == rule.about.name:
        record, held = found.record, run.precision.compute
        text = (f"{label(record.kind, record.name)}: {found.what} under {run.precision} in step {record.step}, where the reference is finite with "
                f"magnitudes up to {found.reference.amax:.4g} ({held.name} holds up to {held.max:.4g})")  # fmt: skip
        yield at(record, found.mechanism, "error", text, measured=float(found.excess), limit=0.0)


HEALED = "; every result computed from it here is right to a few roundings"


def difference(fact: Misrounded) -> str:
    """A difference of near-equals, in words."""
    value = fact.value
    what = "a sum whose few terms cancel" if fact.shown.base in ops.REDUCTIONS else "a difference of nearly equal numbers"
    text = f"{what}: off by {of_norm(value.drift)}, its terms by {percents(max(fact.shown.drift_in, 0.42 * value.roundoff))}"
    return text + (HEALED if fact.healed else "")


def repeated(fact: Repeated) -> str:
    """What becomes of a factor that scales a state in each turn of a loop, in words."""
    return f"scales the state of a loop in {fact.turns} turns, which ends {percent(fact.off)} % off at {placed(fact.shown)}"
