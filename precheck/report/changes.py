"""Compares two sessions: lists changes of verdicts, findings and tensors' r, worst first, and writes them as text, Markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Literal, cast

from precheck.findings import Finding, Report, Row
from precheck.report.markdown import code, grid
from precheck.report.session import Session, report_of
from precheck.words import digits, one_line, tensor_name

Kind = Literal["no verdict", "error", "warning", "further", "gone", "new", "verdict", "mended", "nearer"]
ORDER: tuple[Kind, ...] = ("no verdict", "error", "warning", "further", "gone", "new", "verdict", "mended", "nearer")
"""Kinds of changes, worst first. `gone` and `new` are about checks, `mended` about errors and warnings that are gone, `further` and `nearer` about
tensors."""
WORSE = frozenset({"no verdict", "error"})
"""Kinds of changes for which `python -m precheck report A B` exits with status 1."""
MOVED = 1.5
"""A change of r by this factor is listed. It is the factor between a tensor's limits for a warning (2) and for an error (3)."""
MOST = 100
"""The most rows of the Markdown table. A row has about 500 characters at most, and GitHub accepts comments of 65 536."""
_TENSORS = 3  # the most tensors listed for a check
_GRAVITY = {"error": 0, "warning": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One difference between the sessions. `factor` is that between a tensor's two r; for other changes it is 1."""

    kind: Kind
    nodeid: str
    precision: str
    words: str
    factor: float = 1.0
    count: int = 1  # how many changes this entry stands for


def between(before: Session, now: Session) -> list[Change]:
    """The changes, worst first. Within a kind, tensors are sorted by how far they moved, all else by the order of the tests."""
    earlier, later = _by_name(before), _by_name(now)
    found = [change for name in dict.fromkeys([*later, *earlier]) for change in _of_check(*name[:2], earlier.get(name), later.get(name))]
    return sorted(found, key=lambda change: (ORDER.index(change.kind), -_distance(change.factor)))


def _distance(factor: float) -> float:
    return max(factor, 1 / factor if factor else float("inf"))


def term(before: Session, now: Session) -> str:
    """The changes as text, one line for each."""
    changes = between(before, now)
    lines = [f"  {each.kind:10}  {one_line(f'{_place(each)}: {each.words}')}" for each in changes]
    left = [f"  {sentence}" for sentence in left_out(before, now, changes)]
    return "\n".join([headline(changes), *lines, *(["left out:", *left] if left else [])]) + "\n"


def markdown(before: Session, now: Session) -> str:
    """The changes as a Markdown table of at most `MOST` rows."""
    changes = between(before, now)
    rows = [(each.kind, code(each.nodeid), code(each.precision), code(each.words)) for each in changes[:MOST]]
    left = [f"\n{len(changes) - MOST} more changes, none of them worse."] if len(changes) > MOST else []
    left += [f"\nLeft out: {' '.join(sentences)}"] if (sentences := left_out(before, now, changes)) else []
    return "\n".join([f"## precheck: {headline(changes)}\n", *(grid(("", "check", "precision", "what"), rows) if rows else []), *left, ""])


def plain(before: Session, now: Session) -> str:
    """The changes as JSON: a list of `kind nodeid precision words factor count`."""
    changes = [dataclasses.asdict(each) | {"factor": each.factor if each.factor < float("inf") else "inf"} for each in between(before, now)]
    return json.dumps({"changes": changes}, indent=1) + "\n"


def headline(changes: list[Change]) -> str:
    """The number of changes of each kind, worst first."""
    names = ("without a verdict", "new errors", "new warnings", "tensors further off", "checks gone", "checks new", "with a verdict again",
             "findings gone", "tensors nearer")  # fmt: skip
    counts = [sum(change.count for change in changes if change.kind == kind) for kind in ORDER]
    return ", ".join(f"{name}: {count}" for count, name in zip(counts, names, strict=True) if count) or "nothing changed"


def left_out(before: Session, now: Session, changes: list[Change]) -> list[str]:
    """Sentences on what the list of changes leaves out: small changes, and things that are not compared."""
    earlier, later = _by_name(before), _by_name(now)
    both = [name for name in later if name in earlier]
    if not both:
        return []
    changed = {(change.nodeid, change.precision) for change in changes}
    same = sum(name[:2] not in changed for name in both)
    tensors = sum(_common(earlier[name], later[name]) for name in both) - sum(each.count for each in changes if each.kind in ("further", "nearer"))
    quiet = [sum(_quiet(test) for test in tests.values()) for tests in (earlier, later)]
    sentences = [
        (same, f"Checks of both sessions without a change: {same} of {len(both)}."),
        (tensors, f"Tensors whose r moved by less than a factor of {MOVED}, or stayed below 1, within what rounding explains: {tensors}."),
        (sum(quiet), f"Notes, and findings that a test expects or allows: {quiet[0]} before, {quiet[1]} now."),
        (1, "Ops, losses, loss scales, updates and exponents, which are not compared; the report of each session shows them."),
    ]
    return [words for count, words in sentences if count]


def _common(before: dict[str, Any], now: dict[str, Any]) -> int:
    keys = [{(row["kind"], row["tensor"], row["step"]) for row in test.get("report", {}).get("boundaries", ())} for test in (before, now)]
    return len(keys[0] & keys[1])


def _quiet(test: dict[str, Any]) -> int:
    findings = test.get("report", {}).get("findings", ())
    return sum(finding["severity"] not in _GRAVITY or finding["rule"] in test.get("tolerated", {}) for finding in findings)


def _place(change: Change) -> str:
    return f"{change.nodeid} under {change.precision}" if change.precision and change.precision not in change.nodeid else change.nodeid


def _by_name(session: Session) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The checks of a session by test, precision, and number of the check within these."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for test in session["tests"]:
        number = 0
        while (test["nodeid"], test["precision"], number) in found:
            number += 1
        found[test["nodeid"], test["precision"], number] = test
    return found


def _of_check(nodeid: str, precision: str, before: dict[str, Any] | None, now: dict[str, Any] | None) -> Iterator[Change]:
    if now is None:
        yield Change("gone", nodeid, precision, "is not checked any more")
        return
    if now.get("error"):
        if before is None or not before.get("error"):
            yield Change("no verdict", nodeid, precision, now["error"])
        return
    if before is None:
        yield Change("new", nodeid, precision, "was not checked before")
    elif before.get("error"):
        yield Change("verdict", nodeid, precision, f"was without: {before['error']}")
    earlier = Report() if before is None or before.get("error") else report_of(before["report"])
    later = report_of(now["report"])
    for kind, words in _findings(_grave(earlier, before or {}), _grave(later, now)):
        yield Change(kind, nodeid, precision, words)
    for kind, words, factor, count in _tensors(earlier, later):
        yield Change(kind, nodeid, precision, words, factor, count)


def _grave(report: Report, test: dict[str, Any]) -> dict[tuple[str, ...], Finding]:
    """The errors and warnings that the test neither expects nor allows. Keys contain no line numbers. Of equal ones the most severe is kept."""
    found: dict[tuple[str, ...], Finding] = {}
    for finding in report.findings:
        if finding.severity in _GRAVITY and finding.rule not in test.get("tolerated", {}):
            key = (finding.rule, finding.module, finding.op, finding.phase, finding.tensor, finding.source.rpartition(":")[0])
            found.setdefault(key, finding)
    return found


def _findings(before: dict[tuple[str, ...], Finding], now: dict[tuple[str, ...], Finding]) -> Iterator[tuple[Kind, str]]:
    for key, finding in now.items():
        was = before.get(key)
        if was is None or _GRAVITY[finding.severity] < _GRAVITY[was.severity]:
            place = f" at {finding.source}" if finding.source else ""
            yield ("error" if finding.severity == "error" else "warning"), f"{finding.rule}: {finding.message}{place}"
    for key, finding in before.items():
        later = now.get(key)
        if later is None or _GRAVITY[later.severity] > _GRAVITY[finding.severity]:
            yield "mended", f"{finding.severity} {finding.rule}: {finding.message}" + (" (a warning is left)" if later else "")


def _tensors(before: Report, now: Report) -> Iterator[tuple[Kind, str, float, int]]:
    """Changes of the tensors whose r moved most. All r below 1 count as equal, since they are within the noise floor."""
    earlier = {(row.kind, row.tensor, row.step): row for row in before.boundaries}
    pairs = [(earlier[key], row) for row in now.boundaries if (key := (row.kind, row.tensor, row.step)) in earlier]
    moved = [(factor, was, row) for was, row in pairs if not 1 / MOVED < (factor := _factor(was, row)) < MOVED]
    for kind, some in ("further", [each for each in moved if each[0] > 1]), ("nearer", [each for each in moved if each[0] < 1]):
        some.sort(key=lambda each: -_distance(each[0]))
        for factor, was, row in some[:_TENSORS]:
            name = tensor_name(row.kind, row.tensor, row.step)
            yield cast(Kind, kind), f"{name}: r {digits(was.r, 3)} -> {digits(row.r, 3)} of {digits(row.allowed, 3)} allowed", factor, 1
        if some[_TENSORS:]:
            yield cast(Kind, kind), f"and {len(some) - _TENSORS} more tensors, which moved less", 1.0, len(some) - _TENSORS


def _factor(before: Row, now: Row) -> float:
    a, b = (max(1.0, row.r) if row.r == row.r else float("inf") for row in (before, now))
    return 1.0 if a == b else b / a
