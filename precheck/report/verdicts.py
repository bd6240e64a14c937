"""The verdicts of a session's checks, as the HTML page lists and counts them.

Imports neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from precheck.findings import Finding, Report, Row
from precheck.report.facts import COARSE, excused_keys
from precheck.report.reasons import Reasons

VERDICTS = (
    ("error", "error", "with errors"),
    ("refused", "error", "of a model that does not run"),
    ("none", "error", "without a verdict"),
    ("warning", "warning", "passed with warnings"),
    ("good", "good", "without errors or warnings"),
)
"""The possible verdicts, worst first: the name in the data, the CSS class, and the words for a count."""
_DIGITS = 4  # kept of a float; the page shows three
_ROW = [field.name for field in dataclasses.fields(Row)]
_FINDING = dataclasses.asdict(Finding("", "note", ""))


def totals(verdicts: Sequence[str]) -> list[tuple[str, str]]:
    """The number of checks of each verdict in words, worst first, each with its CSS class."""
    if not verdicts:
        return [("soft", "no checks")]
    counts = [(kind, words, sum(each == verdict for each in verdicts)) for verdict, kind, words in VERDICTS]
    return [("", f"{len(verdicts)} check{'s' if len(verdicts) > 1 else ''}"), *((kind, f"{count} {words}") for kind, words, count in counts if count)]


def line(test: dict[str, Any]) -> dict[str, Any]:
    """A check as a line of the list: its verdict, its numbers of findings, and the row closest to its limit or furthest beyond it."""
    report = whole(test)
    entry: dict[str, Any] = {"nodeid": test["nodeid"], "precision": test["precision"]}
    if report is None:
        return entry | {"verdict": "refused" if test.get("does_not_run") else "none", "error": test["error"]}
    standing = [finding for finding in report["findings"] if finding["rule"] not in test.get("tolerated", {})]
    counts = {severity: sum(finding["severity"] == severity for finding in standing) for severity in ("error", "warning", "note")}
    counts["allowed"] = len(report["findings"]) - len(standing)
    verdict = next((severity for severity in ("error", "warning") if counts[severity]), "good")
    excused = excused_keys(report["facts"])
    rows = [row for row in report["boundaries"] if determined(row) and (row["kind"], row["tensor"], row["step"]) not in excused]
    worst = max(rows, key=excess, default=None)
    entry |= {"verdict": verdict, "counts": counts}
    return entry | {"worst": worst and {name: short(worst[name]) for name in ("tensor", "kind", "r", "allowed")} | _reason(report, worst)}


def _reason(report: dict[str, Any], worst: dict[str, Any]) -> dict[str, str]:
    """Why a tensor beyond its limit does not fail the check. Empty if it is within."""
    findings = [Finding(**{field.name: finding[field.name] for field in dataclasses.fields(Finding)}) for finding in report["findings"]]
    row = Row(**{name: worst[name] for name in _ROW} | {"r": float(worst["r"]), "allowed": float(worst["allowed"])})
    words = Reasons(Report(precision=report["precision"], findings=findings, facts=report["facts"])).reason(row)
    return {"reason": words} if words else {}


def whole(test: dict[str, Any]) -> dict[str, Any] | None:
    """A check's report, with defaults for fields that an older report lacks. None if the check has no report."""
    if "report" not in test:
        return None
    report: dict[str, Any] = dataclasses.asdict(Report()) | test["report"]
    report["findings"] = [_FINDING | finding for finding in report["findings"]]
    return report


def passed(report: dict[str, Any]) -> Report:
    """The part of a report that its facts in words need: facts, loss scale, tensors that pass on a closer look or far off."""
    excused = excused_keys(report["facts"])
    failed = any(finding["severity"] == "error" for finding in report["findings"])
    least = math.inf if failed else COARSE
    rows = [row for row in report["boundaries"] if (row["kind"], row["tensor"], row["step"]) in excused or float(row["relative"]) >= least]
    named = [Row(**{name: row[name] for name in _ROW} | {name: float(row[name]) for name in ("r", "allowed", "relative")}) for row in rows]
    return Report(precision=report["precision"], facts=report["facts"], scaler=report["scaler"], boundaries=named)


def excess(row: dict[str, Any]) -> float:
    return float(row["r"]) / float(row["allowed"])


def determined(row: dict[str, Any]) -> bool:
    """Whether a tensor is more than rounding error, as in `Row.determined`."""
    relative = float(row["relative"])
    return bool(row["nonfinite"]) or relative <= 0.5 * float(row["r"]) or relative == 0


def short(value: Any) -> Any:
    """Rounds a float to the digits that the page needs. Numbers that would round to infinity stay as they are."""
    rounded = float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
    return value if rounded in (float("inf"), float("-inf")) else rounded
