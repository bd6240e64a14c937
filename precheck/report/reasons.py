"""Says in a few words beside its r why a tensor beyond its limit does not fail a check.

Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from precheck.findings import Finding, Report, Row
from precheck.report.facts import allowances, excused_keys, unstable_keys

UNSTABLE = "float32 and float64 differ as much"
ROUNDINGS = "the roundings on the way there add up to as much"
UNTOLD = "nobody can tell: noise of one rounding turns it into Inf or NaN"
EITHER = f"{ROUNDINGS}, or {UNSTABLE}"
"""For a report that does not say which of the two."""
LATER = "later steps of float32 itself may differ as much"
UNSAID = "the report gives no reason"
_SEVERAL = ("accumulated-drift", "unstable-reference")
"""Rules whose finding stands for all tensors of its kind."""


class Reasons:
    """The reasons for the tensors of a report."""

    def __init__(self, report: Report) -> None:
        self.report, self.excused, self.unstable = report, excused_keys(report.facts), unstable_keys(report.facts)

    def explained(self, row: Row) -> str:
        """Why a closer look found a tensor beyond its limit healthy. "" for other tensors."""
        key = row.kind, row.tensor, row.step
        if not row.failed or key not in self.excused:
            return ""
        if "unstable" not in self.report.facts:
            return f"explained: {EITHER}"
        return f"explained: {UNSTABLE if key in self.unstable else ROUNDINGS}"

    def reason(self, row: Row) -> str:
        """Why this tensor does not fail the check. "" if it is within its limit, or if the check fails."""
        if not row.failed or (self.report.errors and not self.explained(row)):
            return ""
        return self.explained(row) or self._found(row) or UNSAID

    def _found(self, row: Row) -> str:
        """The reason given by the finding that names the tensor, or else by the first finding that stands for several."""
        own = [finding for finding in self.report.findings if finding.tensor == row.tensor and finding.measured is not None]
        others = [finding for finding in self.report.findings if finding.rule in _SEVERAL and finding not in own]
        allowed = allowances(self.report, "allowed")
        for finding in [*own, *others]:
            if finding.severity == "warning":
                return f"a warning: {UNSTABLE if finding.rule == 'unstable-reference' else finding.rule}"
            if finding.severity == "note" and finding.rule == "unstable-reference":
                return UNTOLD
            if finding.rule in allowed:
                return f"allowed: {allowed[finding.rule]}"
        return f"explained: {LATER}" if self.report.precision == "32-true" and row.step > 1 else ""

    def closest(self) -> Row | None:
        """The tensor that is closest to its limit or furthest beyond it, without those that a closer look explained."""
        rows = (row for row in self.report.boundaries if row.determined and not self.explained(row))
        return max(rows, key=lambda row: row.r / row.allowed, default=None)

    def counted(self) -> dict[str, int]:
        """For each reason, the number of tensors beyond their limits that it explains."""
        return dict(Counter(words for row in self.report.boundaries if row.determined and (words := self.explained(row))))


def in_words(counts: Iterable[tuple[str, int]]) -> str:
    """ "; 3 more beyond their limits, explained: float32 and float64 differ as much", for the result of `counted`."""
    return "".join(f"; {count} more beyond {'its limit' if count == 1 else 'their limits'}, {words}" for words, count in counts)


def warnings(findings: Iterable[Finding]) -> int:
    return sum(finding.severity == "warning" for finding in findings)
