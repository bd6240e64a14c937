"""Finds results for which float32 is no valid reference: float64 contradicts it, or one rounding changes the result completely.

A run in float64 shows it, or a second shadow that is disturbed by 2^-20.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Set

from precheck.analysis.facts import Fact
from precheck.analysis.labels import label
from precheck.analysis.noise_floor.boundaries import REFERENCE_OFF
from precheck.analysis.noise_floor.drift import UNDETERMINED, ComparedTensor, Sorted, floor_share
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED, WARN
from precheck.analysis.rounding.errors import DIGIT, SHAKEN, UNSTABLE, ZERO_SUM
from precheck.findings import Finding
from precheck.rules.rule import Candidate, Compared, Rule, at
from precheck.words import digits, of_norm


class UnstableReference(Rule):
    limits = (WARN, FAIL, REASSOCIATED, REFERENCE_OFF, UNDETERMINED, UNSTABLE, SHAKEN, DIGIT, ZERO_SUM)

    def revised(self, found: list[Candidate], undetermined: Set[Fact]) -> list[Candidate]:
        """Turns candidates on values that float32 does not determine into notes."""
        return [self._doubted(each) if each.fact in undetermined else each for each in found]

    @staticmethod
    def _doubted(candidate: Candidate) -> Candidate:
        text = f"{candidate.message}; but float32 does not determine what follows either, since a relative error of 2^-20 changes that as much"
        return dataclasses.replace(candidate, rule="unstable-reference", severity="note", message=text)

    def beside(self, run: Compared) -> Iterator[Finding]:
        yield from self._vague(run)
        yield from self._unknown(run)
        unstable = Sorted.of(run.rows, run.precision, run.explained, run.unstable).unstable
        for row in (row for row in unstable[:1] if not _behind_a_leak(run, row)):
            exact = "float64, or float32 with its own decisions, disagrees with float32" if run.precision.is_low else "float32 and float64 disagree"
            text = (f"{label(row.record.kind, row.record.name)}: off by {digits(row.r, 3)} times what rounding explains under "
                    f"{run.precision}, but {exact} there about as much")  # fmt: skip
            yield at(row.record, "unstable-reference", "warning", text, measured=row.r, limit=row.allowed)

    @staticmethod
    def _unknown(run: Compared) -> Iterator[Finding]:
        """Rows beyond the limit of their last rounding alone, where noise runs have Inf or NaN and so give no floor."""
        beyond = [row for row in run.rows if row.floor_unknown and row.r > row.allowed and not row.excess_nonfinite and row.record.kind != "update"]
        for row in beyond[:1]:
            text = (f"{label(row.record.kind, row.record.name)}: off by {of_norm(row.relative)} under {run.precision}. It is unknown whether "
                    "rounding explains that: noise of the size of one rounding makes it Inf or NaN, as it would the square root of a number near zero"
                    f"{f'; {len(beyond) - 1} more tensors too' if len(beyond) > 1 else ''}")  # fmt: skip
            yield at(row.record, "unstable-reference", "note", text, measured=row.r, limit=row.allowed)

    @staticmethod
    def _vague(run: Compared) -> Iterator[Finding]:
        """A result that rounding alone may change by half. None if the loss or a gradient is not finite in the reference, which says more."""
        if any(record.kind in ("loss", "parameter-gradient") and record.nonfinite for record in run.reference.records.values()):
            return
        results = (row for row in run.rows if (row.record.is_result or row.record.kind == "loss") and not row.excess_nonfinite)
        first = next((row for row in results if row.undetermined and row.reference.norm > 0), None)
        if first is not None and run.precision.is_low:
            share = floor_share(first)
            text = (f"{label(first.record.kind, first.record.name)}: roundings under {run.precision} change it by {share:.0%} of its norm, so "
                    "nothing can be concluded: either the model is chaotic, or it returns another result on every call")  # fmt: skip
            yield Finding(
                "unstable-reference", "warning", text, step=first.record.step, tensor=first.record.name, measured=share, limit=UNDETERMINED
            )


def _behind_a_leak(run: Compared, row: ComparedTensor) -> bool:
    """Whether an output up to this tensor is stored low in a float32 run. Then its rounding makes float32 differ from float64, and `dtype-leak`
    reports it."""
    before = [*itertools.takewhile(lambda record: record.key != row.record.key, run.low.records.values()), row.record]
    return not run.precision.is_low and any(record.kind == "output" and record.low for record in before)
