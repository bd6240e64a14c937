"""A session: every check of one pytest run with its report, in plain data. docs/report.md describes it, report.schema.json fixes it.

Imports neither torch nor numpy: under xdist the controller writes what its workers measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from precheck import __version__
from precheck.findings import RULES, SCHEMA, Binades, Finding, Loss, Report, Row
from precheck.report.sensitivity import damage

Session: TypeAlias = dict[str, Any]
"""What the JSON file holds, as Python reads it: infinite and undefined numbers are strings."""
READABLE = (2, SCHEMA)
"""Versions that can be read: of 2, what it does not have stays empty."""
_T = TypeVar("_T", Finding, Row, Loss, Binades, "Op")
_SEVERITIES = ("error", "warning", "note")


class SessionError(ValueError):
    """A file cannot be read as a session. The message says what is wrong with it, and what makes one that can."""


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """A row of a report's `ops`, as docs/report.md has it."""

    op: str
    phase: str
    module: str
    source: str
    dtype: str
    calls: int
    drift: float
    inherited: float
    nonfinite: int
    zeros: int
    flips: int
    opaque: str
    first: int

    @property
    def added(self) -> float:
        return max(0.0, self.drift - self.inherited)


def session(tests: Iterable[Mapping[str, Any]], *, root: Path, start: Path, selftest: Iterable[Mapping[str, Any]] | None = None) -> Session:
    """Of checks as docs/report.md has them. `root` is the project's folder, `start` the one that sources are relative to.

    `selftest` is what became of planted faults, a mapping a check; None where none were planted.
    """
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    places = {"root": root.as_posix(), "start": start.as_posix()}
    tried = {} if selftest is None else {"selftest": [{**check, "outcomes": [_spelt(each) for each in check["outcomes"]]} for check in selftest]}
    return {"schema": SCHEMA, "precheck": __version__, "torch": torch, **places, "tests": [dict(test) for test in tests], **tried}


def _spelt(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """With words for the numbers that JSON has none for: an overflow is infinitely large."""
    return {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in outcome.items()}


def text(session: Session) -> str:
    """The session as JSON."""
    return json.dumps(session, indent=1) + "\n"


def load(path: Path) -> Session:
    """The session of a file that --drift-report=json:PATH, or `Report.to_json`, wrote; of the latter, one check named like the file.

    Raises SessionError.
    """
    try:
        content: Session = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}; write one with pytest --drift-report=json:{path.name}") from None
    except (ValueError, RecursionError) as error:
        raise SessionError(f"{path} is not JSON ({error}); write one with pytest --drift-report=json:{path.name}") from None
    whole = isinstance(content, dict) and isinstance(content.get("tests"), list)
    if not whole and not (isinstance(content, dict) and isinstance(content.get("findings"), list)):
        raise SessionError(f"{path} is JSON, but no report of precheck's; write one with pytest --drift-report=json:{path.name}")
    if content.get("schema") not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise SessionError(f"{path} is of schema {content.get('schema')!r}; precheck {__version__} reads schema {known}: write it anew")
    if not whole:
        content = {"schema": SCHEMA, "tests": [{"nodeid": path.stem, "precision": content.get("precision", ""), "report": content}]}
    for number, test in enumerate(content["tests"]):
        fault = _fault(test)
        if fault:
            raise SessionError(f"{path}: tests[{number}]: {fault}")
    damaged = damage(content.get("selftest", []))
    if damaged:
        raise SessionError(f"{path}: {damaged}")
    return content


def _fault(test: Any) -> str:
    """What keeps an entry of `tests` from being shown; "" if nothing does."""
    if not isinstance(test, dict) or not all(isinstance(test.get(name), str) for name in ("nodeid", "precision")):
        return "an entry has a nodeid and a precision, both strings"
    tolerated = test.get("tolerated", {})
    if not isinstance(test.get("line", 0), int) or not isinstance(tolerated, dict) or not all(isinstance(why, str) for why in tolerated.values()):
        return "line is a number, and tolerated gives rules their reasons"
    if isinstance(test.get("error"), str) and test["error"]:
        return ""
    try:
        report = report_of(test["report"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its report is damaged ({type(error).__name__}: {error})"
    odd = [name for finding in report.findings for name in (finding.rule, finding.cause_rule) if name and name not in RULES]
    if odd:
        return f"a finding's rule is {odd[0]!r}, which precheck {__version__} does not know"
    severities = {finding.severity for finding in report.findings} - set(_SEVERITIES)
    return f"a finding's severity is {severities.pop()!r}; there are {', '.join(_SEVERITIES)}" if severities else ""


def report_of(plain: Mapping[str, Any]) -> Report:
    """The report that `Report.to_json` wrote, with `Op`s for its ops; fields of a later version are left out.

    Raises KeyError, TypeError or ValueError if it is none.
    """
    report = Report(**{name: _typed(name, kind, plain[name]) for name, kind in _FIELDS.items()})
    report.findings = [_made(Finding, each) for each in plain["findings"]]
    report.boundaries = [_made(Row, each) for each in plain["boundaries"]]
    report.ops = [_made(Op, each) for each in plain["ops"]]
    report.losses = [_made(Loss, each) for each in plain.get("losses", ())]
    report.exponents = [_made(Binades, each) for each in plain.get("exponents", ())]
    for each in report.exponents:
        _typed("a count", int, next((count for count in each.counts if not isinstance(count, int)), 0))
    if report.ops and not report.boundaries:
        for name, kind in (("ops", int), ("shadowed", int), ("covered", (int, float))):
            _typed(f"facts.{name}", kind, report.facts.get(name))
    return report


_FIELDS: dict[str, type] = {"precision": str, "updates": list, "scaler": dict, "cure": str, "facts": dict}
_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "Severity": str, "Phase": str, "int": int, "float": (int, float), "tuple": list}


def _made(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    return kind(**{field.name: _value(field.name, str(field.type), plain[field.name]) for field in dataclasses.fields(kind) if field.name in plain})


def _value(name: str, kind: str, value: Any) -> Any:
    """As the field's annotation says. Numbers that JSON has no word for come as strings, tuples as lists."""
    if value is None and kind.endswith("| None"):
        return None
    if isinstance(value, str) and kind.startswith("float"):
        return float(value)
    typed = _typed(name, _TYPES[kind.partition("[")[0].partition(" ")[0]], value)
    return tuple(typed) if isinstance(typed, list) else typed


def _typed(name: str, kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {str(value)[:40]!r}")
    return value
