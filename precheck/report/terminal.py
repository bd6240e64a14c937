"""Writes reports as plain text: one report for a failure message, and tables of many at the end of a session.

Imports neither torch nor numpy: under xdist the controller writes what its workers measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from precheck.findings import Finding, Report, Row
from precheck.report import reasons
from precheck.report.excerpts import line_of, places
from precheck.report.facts import (
    allowances,
    coarse,
    excused,
    excused_keys,
    failing_inputs,
    followed,
    given_nan,
    hidden,
    not_needed,
    quantisers,
    unjudged,
)
from precheck.report.sensitivity import table
from precheck.report.session import Session, report_of
from precheck.words import counted, cut, digits, in_package, one_line, op_words, portion, printable, tensor_name

_PLACES = 3
"""Lines of code that are shown for a finding: the one to change, and those that show its error."""
_OPS = "drift op by op, where it grew most (worst call on each line). An op may only amplify the error of its inputs, as sin and Adam's step do:"
_ROWS = 10
"""How many rows the tables of a session have, as by default in pytest (`--drift-top`)."""


def summary(report: Report, top: int = 5) -> str:
    """The report as text. The first line is the worst finding, or says that there is none. Then come other findings, the worst
    rows and inputs that fail."""
    rows, why = worst(report, top), reasons.Reasons(report)
    told = {(row.kind, row.tensor, row.step) for row in rows if why.explained(row)}
    given = [given_nan(report)] if report.errors and given_nan(report) else []
    parts = [*_findings(report), *given, *unjudged(report, beside_findings=True), *_rows(report, rows), *excused(report, told), *coarse(report)]
    parts += [*not_needed(report), *_cure(report), *failing_inputs(report)]
    text = "\n".join([_headline(report), *parts])
    return printable(text)


def session_text(session: Session) -> str:
    """A session as text: the summary of each check with errors or warnings, then the tables that pytest prints."""
    reports = [(test, report_of(test["report"])) for test in session["tests"] if not test.get("error")]
    lost = [test for test in session["tests"] if test.get("error")]
    errors = sum(bool(report.errors) for _, report in reports)
    warned = sum(not report.errors and bool(reasons.warnings(report.findings)) for _, report in reports)
    counts = f"{counted(len(session['tests']), 'check')}: {errors} with errors" + (f", {warned} without errors and with warnings" if warned else "")
    refused = sum(bool(test.get("does_not_run")) for test in lost)
    counts += (f", {refused} of a model that does not run" if refused else "") + f", {len(lost) - refused} without a verdict"
    lines = [f"{one_line(test['nodeid'])}: {test['error']}" for test in lost]
    for test, report in reports:
        if any(finding.severity != "note" for finding in report.findings):
            lines += ["", one_line(test["nodeid"]), *(f"  {line}" for line in summary(report, top=3).splitlines())]
    entries = [(one_line(test["nodeid"]), entry(report, _ROWS)) for test, report in reports]
    tried = ["", *_selftest(session["selftest"])] if "selftest" in session else []
    return printable("\n".join([counts, *lines, "", *drift_table(entries, _ROWS), *op_table(entries, _ROWS), *tried])).strip() + "\n"


def _selftest(checks: Sequence[dict[str, Any]]) -> list[str]:
    head, *rest = table(checks)
    return [f"self-test: {head}", *rest]


def worst(report: Report, top: int) -> list[Row]:
    """The `top` rows that are closest to their limits or furthest beyond them. All rows if `top` is 0."""
    rows = sorted((row for row in report.boundaries if row.determined), key=lambda row: row.r / row.allowed, reverse=True)
    return rows[:top] if top else rows


def entry(report: Report, top: int = 10, *, ops: bool = True) -> dict[str, Any]:
    """One check as small plain data, which an xdist worker sends to its controller. `ops`: with the worst ops."""
    why = reasons.Reasons(report)
    return {
        "precision": report.precision,
        "errors": [_line(finding) for finding in report.errors],
        "warnings": [_line(finding) for finding in report.findings if finding.severity == "warning"],
        "remarks": [*filter(None, [given_nan(report)]), *unjudged(report), *coarse(report)],
        "hidden": hidden(report),
        "tensors": len(report.boundaries),
        "worst": _plain_row(why, closest) if (closest := why.closest()) else None,
        "explained": why.counted(),
        "rows": [_plain_row(why, row) for row in worst(report, top)],
        "ops": [dataclasses.asdict(row) | {"added": row.added} for row in (worst_ops(report, top) if ops else ())],
        "calls": sum(row.calls for row in report.ops) if ops else 0,
    }


def worst_ops(report: Report, top: int) -> list[Any]:
    """The `top` ops in which the error grew most, those that made Inf or NaN first. All ops if `top` is 0."""
    rows = sorted(report.ops, key=lambda row: (row.nonfinite > 0, row.added), reverse=True)
    return rows[:top] if top else rows


def op_table(entries: Sequence[tuple[str, dict[str, Any]]], top: int) -> list[str]:
    """The table of the ops in which the error grew most, in all checks, worst first. Growth does not say whose fault the error is."""
    rows = [(nodeid, each["precision"], row) for nodeid, each in entries for row in each.get("ops", ())]
    rows.sort(key=lambda item: (item[2]["nonfinite"] > 0, item[2]["added"]), reverse=True)
    shown = rows[:top] if top else rows
    if not shown:
        return []
    columns = [
        ("result", "inputs", "calls", "precision", "phase", "dtype", "op", "line", "module", "test"),
        *((_or_broken(row), portion(row["inherited"]), str(row["calls"]), precision, row["phase"], row["dtype"], op_words(row["op"]),
           in_package(row["source"]), row["module"], nodeid) for nodeid, precision, row in shown),
    ]  # fmt: skip
    calls = sum(each.get("calls", 0) for _, each in entries) - sum(row["calls"] for _, _, row in shown)
    lines = [_OPS, *_aligned(columns, right=3)]
    return [*lines, f"{calls} more calls, none of them worse"] if calls else lines


def _or_broken(row: dict[str, Any]) -> str:
    return f"{row['nonfinite']} Inf/NaN" if row["nonfinite"] else portion(row["drift"])


def drift_table(entries: Sequence[tuple[str, dict[str, Any]]], top: int) -> list[str]:
    """The table of the worst tensors of all checks, worst first. All tensors if `top` is 0."""
    rows = [(nodeid, each["precision"], row) for nodeid, each in entries for row in each["rows"]]
    rows.sort(key=lambda item: item[2]["r"] / item[2]["allowed"], reverse=True)
    shown = rows[:top] if top else rows
    if not shown:
        return []
    columns = [
        ("r", "allowed", "drift", "precision", "tensor", "test"),
        *((*_numbers(row), precision, tensor_of(row), _with_reason(nodeid, row)) for nodeid, precision, row in shown),
    ]
    left_out = sum(each["tensors"] for _, each in entries) - len(shown)
    lines = _aligned(columns, right=3)
    return [*lines, f"{left_out} more tensors, none of them worse"] if left_out else lines


def _headline(report: Report) -> str:
    if report.errors:
        return _line(report.errors[0])
    if report.verdict == "not judged":
        return "nothing was judged here"
    well, under = _no_errors(report), f" under {report.precision}" if report.precision else ""
    without = str(report.facts.get("reference", ""))
    if without.startswith("none: "):
        return f"nothing was judged{under}: {without.removeprefix('none: ')}"
    if not report.boundaries and "shadowed" in report.facts:
        reference = report.facts.get("reference", "float32")
        if not report.facts["ops"]:
            return f"{well}{under}: nothing was watched, since no op of torch ran in this process"
        if not report.facts["shadowed"]:
            lowest = "float32" if reference == "float64" else "a low format"
            more = "" if report.precision else '; watch(precision="32-true") follows float32 beside float64'
            found = quantisers(report) or "nothing to compare"
            return f"{well}{under}: {found}, none of {report.facts['ops']} ops computed in {lowest}{more}"
        return f"{well}{under}: {'; '.join(filter(None, (followed(report), quantisers(report))))}"
    if rows := report.facts.get("quantised"):
        worst = min(rows, key=lambda each: each["weight_db"])
        return f"{well}: {counted(len(rows), 'quantised layer')} compared; the coarsest weight is that of {worst['layer']}, {worst['weight_db']} dB"
    why = reasons.Reasons(report)
    row = _plain_row(why, closest) if (closest := why.closest()) else None
    nearest = f"; closest to its limit: {_with_reason(numbers(row), row)}" if row else ""
    return f"{well}{under}: {counted(len(report.boundaries), 'tensor')} compared{nearest}{reasons.in_words(why.counted().items())}"


def numbers(row: dict[str, Any]) -> str:
    return f"{tensor_of(row)}, r {digits(row['r'], 3)} of {digits(row['allowed'], 3)} allowed"


def _with_reason(words: str, row: dict[str, Any]) -> str:
    return f"{words} ({row['reason']})" if row.get("reason") else words


def _no_errors(report: Report) -> str:
    """The text "no errors", with the number of warnings and the allowed rules; behind what could not be judged for NaN in what was given."""
    warned, allowed = reasons.warnings(report.findings), allowances(report, "allowed")
    parts = ["no errors", f"{warned} warning{'' if warned == 1 else 's'}" if warned else "", f"{', '.join(allowed)} allowed" if allowed else ""]
    given = given_nan(report)
    return f"{given}; elsewhere " * bool(given) + ", ".join(filter(None, parts))


def _line(finding: Finding) -> str:
    return f"{finding.rule}: {finding.message}"


def _findings(report: Report) -> list[str]:
    lines, shown, told = [], set[str](), set[tuple[str, str]]()
    healthy = {(tensor, step) for _, tensor, step in excused_keys(report.facts)}  # which the table or a sentence gives with the reason
    for place, finding in enumerate(report.findings):
        if finding.severity == "note" and finding.rule == "accumulated-drift" and (finding.tensor, finding.step) in healthy:
            continue
        if finding.severity == "note" and finding.rule == "unstable-reference" and report.errors:
            continue  # what float32 does not determine helps nobody to mend what it does; the other forms of the report have it
        if not (place == 0 and finding.severity == "error"):
            lines.append(f"{finding.severity}: {_line(finding)}")
        if finding.severity != "note":
            lines += _code(finding, shown)
            if finding.module:
                lines.append(f"    in module {finding.module}")
            why = finding.cause, finding.remedy
            if finding.cause and why in told:
                lines.append("    by the same, with the same cure")
                continue
            told.add(why)
            if finding.cause:
                lines.append(f"    by {finding.cause}")
            lines.append(f"    cure: {finding.remedy}")
    return lines


def _code(finding: Finding, shown: set[str]) -> list[str]:
    """The lines of code that a finding names, its own first. `shown`: lines that the report has shown before."""
    named = list(dict.fromkeys([finding.source, *places(f"{finding.message} {finding.cause}")]))[:_PLACES]
    code = {place: line_of(place, Path()) for place in named if place and place not in shown}
    shown.update(code)
    return [f"    {place}  |  {one_line(cut(text))}" for place, text in code.items() if text]


def _cure(report: Report) -> list[str]:
    if report.cure:
        return ["with this the check passes (tried):", *(f"    {line}".rstrip() for line in report.cure.splitlines())]
    reason = report.facts.get("remedy")
    cured = any(finding.source for finding in report.errors)  # with a cure for this line
    return [f"to search longer for modules to keep in float32: {reason}"] if reason and not cured else []


def _rows(report: Report, rows: Sequence[Row]) -> list[str]:
    """The table of these rows, without those whose r a finding says in its text. Beside errors a table of healthy tensors alone helps nobody."""
    told = {(finding.measured, finding.limit) for finding in report.findings if f"(r = {digits(finding.measured or 0, 3)}, " in finding.message}
    rows = [row for row in rows if (row.r, row.allowed) not in told]
    if not rows or (report.errors and not any(row.failed for row in rows)):
        return []
    why = reasons.Reasons(report)
    plain = [_plain_row(why, row) for row in rows]
    table = [("r", "allowed", "drift", "dtype", "tensor"), *((*_numbers(row), row["dtype"], _with_reason(tensor_of(row), row)) for row in plain)]
    return ["worst tensors (drift: the error as a share of the tensor's norm; r: drift / what correct rounding explains):", *_aligned(table, right=3)]


def _plain_row(why: reasons.Reasons, row: Row) -> dict[str, Any]:
    return {
        "tensor": row.tensor, "kind": row.kind, "step": row.step, "dtype": row.dtype, "r": row.r, "allowed": row.allowed,
        "relative": row.relative, "nonfinite": row.nonfinite, "reason": why.reason(row),
    }  # fmt: skip


def _numbers(row: dict[str, Any]) -> tuple[str, str, str]:
    drift = f"{row['nonfinite']} Inf/NaN" if row["nonfinite"] else portion(row["relative"])
    r = f"{row['r']:.2f}" if row["r"] < 1e5 else digits(row["r"], 3)
    return r, f"{row['allowed']:.2f}", drift


def tensor_of(row: dict[str, Any]) -> str:
    """The name of a row's tensor, as `words.tensor_name` gives it."""
    return tensor_name(row["kind"], row["tensor"], row["step"])


def _aligned(table: Iterable[Sequence[str]], *, right: int) -> list[str]:
    """Aligns a table with two spaces between columns. The first `right` columns are right-aligned."""
    lines = list(table)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    flush = [str.rjust] * right + [str.ljust] * (len(widths) - right)
    rows = ("  ".join(place(cell, width) for place, cell, width in zip(flush, line, widths, strict=True)) for line in lines)
    return [f"  {one_line(row)}".rstrip() for row in rows]
