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
from precheck.report.schema import fault

Session: TypeAlias = dict[str, Any]
"""What the JSON file holds, as Python reads it: infinite and undefined numbers are strings."""
READABLE = (2, SCHEMA)
"""Versions that can be read: of 2, what it does not have stays empty."""
_T = TypeVar("_T", Finding, Row, Loss, Binades, "Op")
DEEPEST = 64
"""Levels of lists and objects in a file that is read. What precheck writes has ten; Python's own writer ends at about a thousand."""


class SessionError(ValueError):
    """A file cannot be read as a session. The message says what is wrong with it, and how to make one that can be read."""


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

    Raises SessionError. What is returned is as report.schema.json says, and every form can be written of it.
    """
    anew = f"write one with pytest --drift-report=json:{path.name}"
    try:
        content = json.loads(path.read_text(encoding="utf8"), parse_constant=_no_number, parse_float=_finite)
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}; {anew}") from None
    except (ValueError, RecursionError) as error:
        raise SessionError(f"{path} is not JSON ({error}); {anew}") from None
    whole = isinstance(content, dict) and isinstance(content.get("tests"), list)
    if not whole and not (isinstance(content, dict) and isinstance(content.get("findings"), list)):
        raise SessionError(f"{path} is JSON, but no report of precheck's; {anew}")
    if content.get("schema") not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise SessionError(f"{path} is of schema {content.get('schema')!r:.40}; precheck {__version__} reads schema {known}: write it anew")
    name = "session" if whole else "report"
    content = _completed(content) if content["schema"] != SCHEMA else content
    told = fault(name, content) or _too_deep(content) or _unknown_rule(content["tests"] if whole else [{"report": content}])
    if told:
        raise SessionError(f"{path} is damaged: {told}; {anew}")
    return content if whole else {"schema": SCHEMA, "tests": [{"nodeid": path.stem, "precision": content["precision"], "report": content}]}


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number there")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits:.40} is more than a float64 holds")
    return value


def _completed(content: dict[str, Any]) -> dict[str, Any]:
    """A file of an earlier schema as one of today's: what it does not have is empty."""
    if "tests" not in content:
        return {"losses": [], "exponents": [], **content, "schema": SCHEMA}
    tests = [
        {**test, "report": _completed(test["report"])} if isinstance(test, dict) and isinstance(test.get("report"), dict) else test
        for test in content["tests"]
    ]
    return {**content, "schema": SCHEMA, "tests": tests}


def _too_deep(content: Any) -> str:
    """What is free to hold anything may still be nested no deeper than can be written again."""
    level = [content]
    for _ in range(DEEPEST):
        level = [each for held in level for each in (held.values() if isinstance(held, dict) else held) if isinstance(each, (dict, list))]
    return f"it is nested more than {DEEPEST} levels deep" if level else ""


def _unknown_rule(tests: Iterable[Mapping[str, Any]]) -> str:
    """The catalogue has the words for each rule, and grows with versions, so that the schema does not fix it."""
    findings = (finding for test in tests if "report" in test for finding in test["report"]["findings"])
    odd = next((name for each in findings for name in (each["rule"], each["cause_rule"] or each["rule"]) if name not in RULES), None)
    return f"a finding's rule is {odd[:40]!r}, which precheck {__version__} does not know" if odd is not None else ""


def report_of(plain: Mapping[str, Any]) -> Report:
    """The report that `Report.to_json` wrote, with `Op`s for its ops; fields of a later version are left out."""
    report = Report(**{name: plain[name] for name in ("precision", "updates", "scaler", "cure", "facts")})
    report.findings = [_made(Finding, each) for each in plain["findings"]]
    report.boundaries = [_made(Row, each) for each in plain["boundaries"]]
    report.ops = [_made(Op, each) for each in plain["ops"]]
    report.losses = [_made(Loss, each) for each in plain["losses"]]
    report.exponents = [_made(Binades, each) for each in plain["exponents"]]
    return report


def _made(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    return kind(**{field.name: _value(str(field.type), plain[field.name]) for field in dataclasses.fields(kind) if field.name in plain})


def _value(kind: str, value: Any) -> Any:
    """As the field's annotation says. Numbers that JSON has no word for come as strings, tuples as lists."""
    if kind.startswith("float") and value is not None:
        return float(value)
    return tuple(value) if isinstance(value, list) else value
