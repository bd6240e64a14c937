"""Finds NaN that no other rule explains.

An op gives NaN where the reference has a number, and no number before it was beyond the format's range. Where the loss, a gradient or a result is
Inf or NaN in the reference too, a warning says so, with the op that made it of finite numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from precheck import ops
from precheck.analysis.facts import Fact, Part, Readers
from precheck.analysis.labels import label
from precheck.analysis.unrepresentable.nonfinite import FILLS, HARMED, Broken
from precheck.findings import Finding
from precheck.observe.records import Record, Trace
from precheck.observe.shadow.operations import Operation
from precheck.rules.advice import widened
from precheck.rules.rule import Candidate, Compared, Rule, broken_boundary
from precheck.words import digits

_BOUND = "no wider format helps: bound what this op reads, or replace it by torch.where before the op"
_BELOW = "bound what this op reads, as by clamp(max=80), or take off its largest number first"
_REMOVE = "take the NaN out first, by torch.nan_to_num, or by leaving out those rows; a weight with NaN is to be loaded or initialised anew"
_SEEK = "no wider format helps: look for NaN in the inputs and weights, Inf - Inf, or a row that is masked entirely"


_BREAKING = ("nan", "overflow", "underflow", "vanished-constant", "wrong-scale", "scaler-collapse")


class UndefinedLoss(Candidate):
    """A loss, gradient or result that is not finite on either side."""

    @property
    def known(self) -> bool:
        """Whether the op is known to make it so."""
        return self.operation.breaks or self.operation.given_nan


class NotANumber(Rule):
    limits = (HARMED, FILLS)

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """Masks that multiply Inf or NaN by zero."""
        if not operation.unmasked or any(source.nonfinite for source in operation.inputs):
            return  # Inf or NaN of this run alone is reported where it first appeared
        if _stays(operation, part):
            text = f"a mask is multiplied by {operation.unmasked} Inf or NaN that it should remove, but 0 times Inf is NaN, in the reference too"
            yield Candidate("nan", operation, text, operation.unmasked, 0, advice="use torch.where or masked_fill")

    def at_end(self, part: Part) -> Iterator[Candidate]:
        """A loss or gradient that is not finite in the reference either: the op that made it of finite numbers."""
        lost = part.observation.undefined
        if lost is not None:
            wide, kind = "float64" if part.observation.exact else "float32", "NaN" if lost.nan else "Inf"
            where, advice = _origin(lost.operation, wide)
            missing = lost.operation.given_nan and lost.what == "result"  # which NaN may stand for in data
            text = f"the {lost.what} is {kind} in {wide} too, in step {lost.step}: {where}"
            yield UndefinedLoss("nan", lost.operation, text, 1, 0, "note" if missing else "warning", advice=advice)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Inf and NaN for which a format is at fault explain a loss that the reference has lost too. That steps were skipped for it says as much."""
        told = any(each.rule == "scaler-skip" or (each.rule in _BREAKING and each.severity == "error") for each in found)
        return [each for each in found if not (told and isinstance(each, UndefinedLoss))]

    def words(self, fact: Fact) -> str:
        if isinstance(fact, Broken) and fact.how == "not a number":
            return f"NaN, where the reference gives {digits(fact.root.beyond)} for the same inputs"
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        alone = isinstance(candidate.fact, Broken) and candidate.fact.how == "not a number"  # the op is at fault, and not what it reads
        return widened(candidate.operation, wide) if alone else super().advice(candidate, readers, wide)

    def beside(self, run: Compared) -> Iterator[Finding]:
        """The first boundary that is not finite without an overflow, and a loss or gradient that is not finite in the reference either."""
        yield from broken_boundary(self, run)
        for record in run.reference.records.values():
            if record.kind in ("loss", "parameter-gradient") and record.nonfinite:
                what = f"the {label(record.kind, record.name)} is {'NaN' if record.nan else 'Inf'} in float32 too, in step {record.step}"
                cure = "make the float32 run finite first: look for Inf - Inf, 0/0 or a row that is masked entirely"
                text = f"{what}{_since(record, run.reference)}: the check is inconclusive"
                yield Finding("nan", "warning", text, step=record.step, tensor=record.name, advice=cure)
                return


def _origin(operation: Operation, wide: str) -> tuple[str, str]:
    """Where Inf or NaN of both sides comes from, and what to do."""
    if operation.given_nan:
        return "what is read here has NaN already", _REMOVE
    if operation.breaks and operation.base in ops.EXPONENTIALS:
        return f"an exponential of finite numbers is beyond {wide} here", _BELOW
    if operation.breaks:
        return "it comes from Inf or NaN that is made of finite numbers here", _BOUND
    return "where it is made of finite numbers is not known", _SEEK


def _since(record: Record, reference: Trace) -> str:
    """The first tensor of the run with NaN, or with Inf if the record has no NaN: the op that made it so comes before this tensor. "" if it is the
    record itself."""
    first = next((each for each in reference.records.values() if (each.nan if record.nan else each.nonfinite)), record)
    return f", and {label(first.kind, first.name)} before it" if first is not record else ""


def _stays(operation: Operation, part: Part) -> bool:
    """Whether an op computes with NaN, or the user keeps it. Comparisons, selections and fills do not compute."""
    (value,) = operation.outputs
    readers = [reader for reader in part.readers.get(value, ()) if reader is not operation]
    return any(reader.outputs and reader.base not in ops.CHOOSING_OR_FILLING for reader in readers) or (value.alive and not readers)
