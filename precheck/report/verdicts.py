"""The verdicts of a session's checks, as the HTML page lists and counts them.

Imports neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from precheck.findings import Finding, Report
from precheck.report.reasons import Reasons
from precheck.report.session import report_of

VERDICTS = (
    ("error", "error", "with errors"),
    ("refused", "error", "of a model that does not run"),
    ("none", "error", "without a verdict"),
    ("warning", "warning", "passed with warnings"),
    ("good", "good", "without errors or warnings"),
)
"""The possible verdicts, worst first: the name in the data, the CSS class, and the words for a count."""
_DIGITS = 4  # kept of a float; the page shows three
_FINDING = dataclasses.asdict(Finding("", "note", ""))


def totals(verdicts: Sequence[str]) -> list[tuple[str, str]]:
    """The number of checks of each verdict in words, worst first, each with its CSS class."""
    if not verdicts:
        return [("soft", "no checks")]
    counts = [(kind, words, sum(each == verdict for each in verdicts)) for verdict, kind, words in VERDICTS]
    return [("", f"{len(verdicts)} check{'s' if len(verdicts) > 1 else ''}"), *((kind, f"{count} {words}") for kind, words, count in counts if count)]


def line(test: dict[str, Any]) -> dict[str, Any]:
    """A check as a line of the list: its verdict, its numbers of findings, and the row closest to its limit or furthest beyond it."""
    entry: dict[str, Any] = {name: test[name] for name in ("nodeid", "precision", "again") if name in test}
    plain = whole(test)
    if plain is None:
        return entry | {"verdict": "refused" if test.get("does_not_run") else "none", "error": test["error"]}
    report = report_of(plain)
    standing = [finding for finding in report.findings if finding.rule not in test.get("tolerated", {})]
    counts = {severity: sum(finding.severity == severity for finding in standing) for severity in ("error", "warning", "note")}
    counts["allowed"] = len(report.findings) - len(standing)
    verdict = next((severity for severity in ("error", "warning") if counts[severity]), "good")
    entry |= {"verdict": verdict, "counts": counts}
    why = Reasons(report)
    rows = zip(report.boundaries, plain["boundaries"], strict=True)
    judged = [(row, shown) for row, shown in rows if row.determined and (row.kind, row.tensor, row.step) not in why.excused]
    if not judged:
        return entry | {"worst": None}
    row, shown = max(judged, key=lambda each: each[0].r / each[0].allowed)
    reason = {"reason": words} if (words := why.reason(row)) else {}
    return entry | {"worst": {name: short(shown[name]) for name in ("tensor", "kind", "r", "allowed")} | reason}


def whole(test: dict[str, Any]) -> dict[str, Any] | None:
    """A check's report, with defaults for fields that an older report lacks. None if the check has no report."""
    if "report" not in test:
        return None
    report: dict[str, Any] = dataclasses.asdict(Report()) | test["report"]
    report["findings"] = [_FINDING | finding for finding in report["findings"]]
    return report


def short(value: Any) -> Any:
    """Rounds a float to the digits that the page needs. Numbers that would round to infinity stay as they are."""
    rounded = float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
    return value if rounded in (float("inf"), float("-inf")) else rounded
