"""Writes a session as GitHub-flavoured Markdown: for $GITHUB_STEP_SUMMARY, a pull request's comment, an artefact.

Text from users (names of tests, modules and tensors, lines) is escaped, so that it is never markup.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from precheck.findings import Finding, Loss, OpRow, Report, Row
from precheck.report import reasons, sensitivity
from precheck.report.facts import coarse, excused
from precheck.report.reasons import Reasons, warnings
from precheck.report.session import Session, report_of
from precheck.report.terminal import worst, worst_ops
from precheck.words import LONGEST, call_words, cut, one_line, op_words, portion, printable

CAP = 60_000
"""The most bytes of the text. GitHub accepts comments of up to 65 536 characters, and step summaries of up to 1 MiB."""
_ROWS = 5  # the most rows of a check's tables
_MARKS = {"error": "❌", "warning": "⚠️", "note": "ℹ️"}


def text(session: Session, cap: int = CAP) -> str:
    """The session as Markdown: failed checks with their findings and worst rows, then a table of all checks. Has at most `cap` bytes."""
    checks = [_Check(test) for test in session["tests"]]
    checks.sort(key=lambda check: check.rank)
    counts = _counts(checks)
    versions = ", ".join(f"{name} {session[name]}" for name in ("precheck", "torch") if session.get(name))
    parts = [f"## precheck: {counts}\n", *(_section(check) for check in checks if check.rank < 3)]
    end = _table(checks) + _selftest(session) + (f"\n{_prose(versions)}\n" if versions else "")
    return _capped(parts, end, cap)


class _Check:
    """A check of a session. Its `rank` is 0 without a verdict, 1 if it failed, 2 with warnings, 3 if it passed."""

    def __init__(self, test: dict[str, Any]) -> None:
        self.name, self.precision, self.error = test["nodeid"], test["precision"], test.get("error", "")
        self.again = test.get("again", "")
        self.does_not_run = bool(test.get("does_not_run"))
        self.tolerated: dict[str, str] = test.get("tolerated", {})
        self.report = Report(precision=self.precision) if self.error else report_of(test["report"])
        severities = {finding.severity for finding in self.report.findings if finding.rule not in self.tolerated}
        self.rank = 0 if self.error else 1 if "error" in severities else 2 if "warning" in severities else 3

    @property
    def warnings(self) -> int:
        return warnings(finding for finding in self.report.findings if finding.rule not in self.tolerated)

    @property
    def let(self) -> bool:
        """Whether it passed with errors that are known, expected or allowed."""
        return self.rank > 1 and any(finding.severity == "error" for finding in self.report.findings)

    @property
    def mark(self) -> str:
        return ("❌", "❌", "⚠️", "☑️" if self.let else "✅")[self.rank]


def _counts(checks: Sequence[_Check]) -> str:
    failed, lost, warned = (sum(check.rank == rank for check in checks) for rank in (1, 0, 2))
    refused = sum(check.does_not_run for check in checks)
    noun = "check" if len(checks) == 1 else "checks"
    text = f"{failed} of {len(checks)} {noun} failed" if failed else f"{len(checks) - lost} of {len(checks)} {noun} passed"
    text += f", {warned} {'passed' if failed else 'of them'} with warnings" if warned else ""
    let = sum(check.let for check in checks)
    text += f", {let} {'passed' if failed else 'of them'} with errors that are known or allowed" if let else ""
    text += f", {refused} of a model that does not run" if refused else ""
    return text + (f", {lost - refused} without a verdict" if lost > refused else "")


def _section(check: _Check) -> str:
    passed = f", passed with {warned} warning{'' if warned == 1 else 's'}" if (warned := check.warnings) and check.rank == 2 else ""
    lines = [f"### {check.mark} {code(check.name)} under {_prose(check.precision) or 'its own precision'}{passed}", ""]
    if check.error:
        return "\n".join([*lines, _block(check.error), "", *_again(check)])
    for finding in check.report.findings:
        if finding.severity != "note":
            lines += [*_finding(finding, check.tolerated.get(finding.rule, "")), ""]
    if check.report.cure:
        lines += ["With this the check passes (tried):", "", _block(check.report.cure, "python"), ""]
    lines += _again(check)
    lines += [line for sentence in [*excused(check.report), *coarse(check.report)] for line in (_prose(sentence), "")]
    lines += _losses(check.report)
    return "\n".join([*lines, *_worst_rows(check.report), *_worst_ops(check.report)])


def _again(check: _Check) -> list[str]:
    """The command that repeats a check alone."""
    return [f"To see this again: {code(check.again)}", ""] if check.again else []


def _finding(finding: Finding, tolerated: str) -> list[str]:
    place = [code(finding.source)] if finding.source else []
    place += [f"module {code(finding.module)}"] if finding.module else []
    place += [code(op_words(finding.op))] if finding.op else []
    lines = [f"- {_MARKS[finding.severity]} **{finding.rule}**" + (f" ({_prose(tolerated)})" if tolerated else "") + ": " + _prose(finding.message)]
    lines += ["  - at " + ", ".join(place)] if place else []
    lines += [f"  - by {_prose(finding.cause)}"] if finding.cause else []
    return [*lines, f"  - cure: {_prose(finding.remedy)}"]


def _losses(report: Report) -> list[str]:
    """Describes the loss that is furthest from the reference's. A loss that is finite in only one of the two is furthest."""
    if not report.losses:
        return []
    worst = max(report.losses, key=_apart)
    text = f"loss in step {worst.step}: {worst.low:.6g}, in the reference {worst.reference:.6g}"
    if math.isfinite(_apart(worst)):
        text += f", {100 * _apart(worst):.2g}% apart"
    if worst.floor is not None and worst.reference and math.isfinite(worst.floor):
        text += f" (rounding explains {100 * worst.floor / abs(worst.reference):.2g}%)"
    return [_prose(text + (f"; the furthest of {len(report.losses)}" if report.losses[1:] else "")), ""]


def _apart(loss: Loss) -> float:
    """The relative error of a loss. Infinite if only one of the two is finite."""
    if loss.low == loss.reference or (math.isnan(loss.low) and math.isnan(loss.reference)):
        return 0.0
    distance = abs(loss.low - loss.reference)
    return distance / abs(loss.reference) if loss.reference and math.isfinite(distance) and math.isfinite(loss.reference) else math.inf


def _worst_rows(report: Report) -> list[str]:
    rows, why = worst(report, _ROWS), Reasons(report)
    numbers = [(_or_broken(row, f"{row.r:.2f}"), f"{row.allowed:.2f}") for row in rows]
    names = [call_words(row.tensor) for row in rows]
    places = [(code(name) + call, row.kind, row.dtype, str(row.step), _prose(why.reason(row))) for row, (name, call) in zip(rows, names, strict=True)]
    table = [(*cells, *place) for cells, place in zip(numbers, places, strict=True)]
    head = ("r", "allowed", "tensor", "kind", "dtype", "step", "why it is no error")
    some = any(cells[-1] for cells in table)
    title = "worst tensors (r: the error, divided by what correct rounding explains)"
    return _folded(title, head if some else head[:-1], table if some else [cells[:-1] for cells in table])


def _or_broken(row: Row | OpRow, shown: str) -> str:
    return f"{row.nonfinite} Inf/NaN" if row.nonfinite else shown


def _worst_ops(report: Report) -> list[str]:
    head = ("grew by", "calls", "op", "line", "module", "dtype")
    rows = ((row, _or_broken(row, portion(row.added))) for row in worst_ops(report, _ROWS))
    table = [(added, str(row.calls), code(op_words(row.op)), code(row.source), code(row.module), row.dtype) for row, added in rows]
    return _folded("ops in which drift grew most, as a share of the norm of their results", head, table)


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *grid(head, rows), "", "</details>", ""] if rows else []


def _table(checks: Sequence[_Check]) -> str:
    rows = [(check.mark, code(check.name), _prose(check.precision), _closest(check), ", ".join(_rules(check))) for check in checks]
    return "\n".join([*grid(("", "check", "precision", "worst r", "findings"), rows), ""]) if rows else "No checks.\n"


def _selftest(session: Session) -> str:
    """The faults that each check caught, and the checks that could not have failed. "" where no faults were planted."""
    if "selftest" not in session:
        return ""
    tried = session["selftest"]
    names = sensitivity.faults(tried)
    lines = [f"\n### Self-test: {_prose(sensitivity.headline(tried))}", ""]
    for check, missed in sensitivity.insensitive(tried):
        lines += [f"- ❌ {code(sensitivity.named(check))} under {_prose(check['precision'])} could not have failed"]
        lines += [line for what, cure in missed for line in (f"  - {_prose(what)}", f"    - cure: {_prose(cure)}")]
    rows = [(code(sensitivity.named(check)), _prose(check["precision"]), *map(_prose, sensitivity.cells(check, names))) for check in tried]
    lines += ["", *grid(("check", "precision", *map(_prose, names)), rows), ""] if rows else []
    items = [f"- {_prose(line)}" for line in sensitivity.reasons(tried)]
    why = ["<details><summary>what was not planted, or cannot be told</summary>", "", *items, "", "</details>"] if items else []
    return "\n".join([*lines, *why, ""])


def _closest(check: _Check) -> str:
    why = Reasons(check.report)
    row = why.closest()
    said = f" ({_prose(reason)})" if row and (reason := why.reason(row)) else ""
    return (f"{row.r:.2f} of {row.allowed:.2f}{said}" if row else "") + _prose(reasons.in_words(why.counted().items()))


def _rules(check: _Check) -> list[str]:
    if check.error:
        return ["does not run" if check.does_not_run else "no verdict"]
    found = dict.fromkeys(each.rule for each in check.report.findings if each.severity != "note")
    return [f"{rule} ({_prose(check.tolerated[rule])})" if rule in check.tolerated else rule for rule in found]


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table. Its cells are Markdown already."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def code(name: str) -> str:
    """A name as a code span that also works in a table. "" for an empty name."""
    if not name:
        return ""
    shown = cut(one_line(name))
    shown = re.sub(r"\\(?=\\*\|)", r"\\ ", shown).replace("|", r"\|")  # a backslash before a pipe would be read with it
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{fence} {shown} {fence}" if "`" in shown or not shown.strip() else f"{fence}{shown}{fence}"


def _prose(words: str) -> str:
    """Escapes all characters that have a meaning in Markdown, HTML or on GitHub."""
    shown = " ".join(cut(printable(words), 10 * LONGEST).split())
    return re.sub(r"([\\`*_\[\]<>#|~&$]|:(?=\S)|(?<=[wW])\.)", r"\\\1", shown).replace("@", "@&#8203;")  # no user is mentioned


def _block(content: str, language: str = "text") -> str:
    shown = cut(printable(content), 40 * LONGEST)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"


def _capped(parts: Sequence[str], end: str, cap: int) -> str:
    """Joins as many parts as fit, and the table if it fits too. Mentions what is left out."""
    kept: list[str] = []
    room = cap - 200  # leaves room for the note on what is left out
    for place, part in enumerate([*parts, end]):
        room -= len(part.encode("utf8", "backslashreplace")) + 1
        if room < 0:
            left = len(parts) - place
            what = f"the details of {left} more checks and the table of all" if left > 0 else "the table of all checks"
            return "\n".join([*kept, f"Left out, as the report would pass {cap} bytes: {what}. `--drift-report=json:PATH` has the whole.\n"])
        kept.append(part)
    return "\n".join(kept)
