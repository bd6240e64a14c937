"""Writes a session as SARIF 2.1.0, which code hosts show beside the code.

Each finding is a result at the user's line, or at its test if it has no line. A finding that its test expects or allows is
suppressed. Fingerprints do not depend on line numbers or on measured values.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections import Counter
from typing import Any
from urllib.parse import quote

from precheck import __version__
from precheck.findings import RULES, Finding, RuleInfo
from precheck.report import sensitivity
from precheck.report.excerpts import file_and_line
from precheck.report.session import Session, report_of
from precheck.words import sentence

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"
"""The name that code hosts use for the root of the repository."""
MOST = 5_000
"""The most results of a run, the most severe first. GitHub shows no more, and refuses files with more than 25 000."""
LONGEST = 4_000
"""Longer texts and names are cut to this many characters."""
PRINT = "precheckFinding/v1"
_LEVELS = {"error": 0, "warning": 1, "note": 2}
_PLACES = list(RULES)


def text(session: Session) -> str:
    """One run with the catalogue of rules, a result for each finding, and a notification for each check without a verdict."""
    return _log(session, _results(session))


def compared(before: Session, now: Session) -> str:
    """The later session with results marked `new`, `updated` or `unchanged`. Results that only the earlier one has are `absent`."""
    earlier = {result["partialFingerprints"][PRINT]: result for result in _results(before)}
    results = _results(now)
    for result in results:
        was = earlier.pop(result["partialFingerprints"][PRINT], None)
        result["baselineState"] = "new" if was is None else "unchanged" if was["message"] == result["message"] else "updated"
    return _log(now, [*results, *(result | {"baselineState": "absent"} for result in earlier.values())])


def _log(session: Session, results: list[dict[str, Any]]) -> str:
    run = {
        "tool": {"driver": {"name": "precheck", "version": session.get("precheck", __version__), "rules": [_rule(rule) for rule in RULES.values()]}},
        "invocations": [_invocation(session)],
        "columnKind": "unicodeCodePoints",
        "results": results[:MOST],
        **({"properties": {"leftOut": len(results) - MOST}} if len(results) > MOST else {}),
    }
    return json.dumps({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _results(session: Session) -> list[dict[str, Any]]:
    """All results, the most severe first. Findings with equal fingerprints are numbered."""
    tests = [test for test in session["tests"] if not test.get("error")]
    found = [(_fingerprint(finding, test, session), finding, test) for test in tests for finding in report_of(test["report"]).findings]
    found.sort(key=lambda each: _LEVELS[each[1].severity])
    seen: Counter[str] = Counter()
    results = []
    for stays, finding, test in found:
        results.append({**_result(finding, test, session), "partialFingerprints": {PRINT: f"{stays}:{seen[stays]}"}})
        seen[stays] += 1
    return results


def _rule(rule: RuleInfo) -> dict[str, Any]:
    words = f"{sentence(rule.meaning)} Cure: {rule.remedy}."
    return {
        "id": rule.name,
        "name": "".join(part.title() for part in rule.name.split("-")),
        "shortDescription": {"text": sentence(rule.meaning)},
        "fullDescription": {"text": words},
        "help": {"text": words, "markdown": f"{sentence(rule.meaning)}\n\n**Cure**: {rule.remedy}."},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["numerics", "precision"], "precision": "high"},
    }


def _invocation(session: Session) -> dict[str, Any]:
    lost = [test for test in session["tests"] if test.get("error")]
    notifications = [
        {"level": "error", "message": {"text": _cut(f"{each['nodeid']}: {each['error']}")}, "locations": [_at_test(each)]} for each in lost
    ]
    for check, missed in sensitivity.insensitive(session.get("selftest", [])):
        what = f"{sensitivity.named(check)} could not have failed under {check['precision']}"
        words = f"{what}: {'; '.join(f'{fault} ({cure})' for fault, cure in missed)}"
        notifications.append({"level": "warning", "message": {"text": _cut(words)}, "locations": [_at_test(check)]})
    return {"executionSuccessful": not lost, **({"toolExecutionNotifications": notifications} if notifications else {})}


def _result(finding: Finding, test: dict[str, Any], session: Session) -> dict[str, Any]:
    reason = test.get("tolerated", {}).get(finding.rule)
    return {
        "ruleId": finding.rule,
        "ruleIndex": _PLACES.index(finding.rule),
        "level": finding.severity,
        "message": {"text": _cut(_message(finding, test))},
        "locations": [_at_line(finding, session) or _at_test(test)],
        "relatedLocations": [{**_at_test(test), "id": 1, "message": {"text": "the test"}}],
        **({"suppressions": [{"kind": "inSource", "justification": _cut(reason)}]} if reason is not None else {}),
        "properties": _properties(finding, test),
    }


def _message(finding: Finding, test: dict[str, Any]) -> str:
    lines = [finding.message, *([f"By {finding.cause}."] if finding.cause else []), f"Cure: {finding.remedy}."]
    return "\n".join([*lines, f"In {test['nodeid']} under {test['precision']}."])


def _properties(finding: Finding, test: dict[str, Any]) -> dict[str, Any]:
    known = {
        "test": _cut(test["nodeid"]), "underPrecision": test["precision"], "phase": finding.phase, "op": finding.op, "module": _cut(finding.module),
        "via": _cut(finding.via), "tensor": _cut(finding.tensor), "step": finding.step, "measured": _number(finding.measured),
        "limit": _number(finding.limit), "ranks": list(finding.ranks),
    }  # fmt: skip
    return {name: value for name, value in known.items() if value not in ("", None, [])}


def _number(value: float | None) -> float | str | None:
    return value if value is None or abs(value) < float("inf") else str(value)


def _at_line(finding: Finding, session: Session) -> dict[str, Any] | None:
    path, line = file_and_line(finding.source)
    return _location(path, line, session, finding.module, "module") if path else None


def _at_test(test: dict[str, Any]) -> dict[str, Any]:
    return _location(test["nodeid"].partition("::")[0], test.get("line", 1), {}, test["nodeid"], "function")


def _location(path: str, line: int, session: Session, name: str, kind: str) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(path, session), "region": {"startLine": max(1, line)}}}
    return location | ({"logicalLocations": [{"fullyQualifiedName": _cut(name), "kind": kind}]} if name else {})


def _artifact(path: str, session: Session) -> dict[str, str]:
    """The location of a file, relative to the project's folder if it is in there. `path` is relative to where pytest was started."""
    root, start = session.get("root", ""), session.get("start", "")
    plain = path.replace("\\", "/") if re.match("[A-Za-z]:", root) else path  # a Windows path
    drive = re.match("[A-Za-z]:/", plain)
    whole = posixpath.normpath(plain if drive else posixpath.join(start, plain))
    if root and whole.startswith(root.rstrip("/") + "/"):
        whole = whole[len(root.rstrip("/")) + 1 :]
    if whole.startswith("/") or re.match("[A-Za-z]:/", whole):
        return {"uri": "file://" + quote(_cut("/" + whole.lstrip("/")), safe="/:")}
    return {"uri": quote(_cut(whole)), "uriBaseId": BASE}


def _fingerprint(finding: Finding, test: dict[str, Any], session: Session) -> str:
    file = _artifact(finding.source.rpartition(":")[0], session)["uri"]
    stays = (finding.rule, file, finding.module, finding.op, finding.phase, finding.tensor, test["nodeid"], test["precision"])
    return hashlib.sha256(json.dumps(stays).encode()).hexdigest()[:32]


def _cut(words: str) -> str:
    """Shortens a text, and replaces lone surrogates, which stand for undecodable bytes in file names."""
    whole = words.encode("utf8", "replace").decode("utf8")
    return whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"
