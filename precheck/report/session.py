"""A session: all checks of one pytest run with their reports as plain data. Makes, loads and validates it (docs/report.md, report.schema.json).

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
from precheck.findings import RULES, SCHEMA, Binades, Finding, Loss, OpRow, Report, Row
from precheck.report.schema import fault

Session: TypeAlias = dict[str, Any]
"""The content of the JSON file. Infinite numbers and NaN are strings in it."""
READABLE = (2, SCHEMA)
"""Schema versions that can be read. Fields that version 2 lacks stay empty."""
_T = TypeVar("_T", Finding, Row, Loss, Binades, OpRow)
DEEPEST = 64
"""The most nested levels in a file that is read. What precheck writes has ten; Python's JSON writer fails at about a thousand."""


class SessionError(ValueError):
    """A file cannot be read as a session. The message says what is wrong, and how to write one that can be read."""


def session(tests: Iterable[Mapping[str, Any]], *, root: Path, start: Path, selftest: Iterable[Mapping[str, Any]] | None = None) -> Session:
    """Makes a session from checks (docs/report.md). `root` is the project's folder; sources are relative to `start`.

    `selftest` has the outcomes of planted faults, a mapping for each check. None where no faults were planted.
    """
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    places = {"root": root.as_posix(), "start": start.as_posix()}
    tried = {} if selftest is None else {"selftest": [{**check, "outcomes": [_spelt(each) for each in check["outcomes"]]} for check in selftest]}
    return {"schema": SCHEMA, "precheck": __version__, "torch": torch, **places, "tests": [dict(test) for test in tests], **tried}


def _spelt(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces numbers that JSON cannot write by texts, such as the infinite size of an overflow."""
    return {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in outcome.items()}


def text(session: Session) -> str:
    """The session as JSON."""
    return json.dumps(session, indent=1) + "\n"


def load(path: Path) -> Session:
    """Reads a file of --drift-report=json:PATH, or of `Report.to_json`. The latter becomes a session with one check, named like the file.

    The result is valid by report.schema.json. Raises SessionError.
    """
    name = path.name if path.suffix == ".json" else "drift.json"  # who types it must not overwrite a file of another kind
    anew = f"write one with pytest --drift-report=json:{name}"
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
    damage = fault(name, content) or _too_deep(content) or _unknown_rule(content["tests"] if whole else [{"report": content}])
    if damage:
        raise SessionError(f"{path} is damaged: {damage}; {anew}")
    return content if whole else {"schema": SCHEMA, "tests": [{"nodeid": path.stem, "precision": content["precision"], "report": content}]}


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number there")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits:.40} is more than a float64 holds")
    return value


def _completed(content: dict[str, Any]) -> dict[str, Any]:
    """Converts content of an earlier schema to the present one. Missing fields are empty."""
    if "tests" not in content:
        return {"losses": [], "exponents": [], **content, "schema": SCHEMA}
    tests = [
        {**test, "report": _completed(test["report"])} if isinstance(test, dict) and isinstance(test.get("report"), dict) else test
        for test in content["tests"]
    ]
    return {**content, "schema": SCHEMA, "tests": tests}


def _too_deep(content: Any) -> str:
    """Fields with free content must not be nested deeper than JSON can be written."""
    level = [content]
    for _ in range(DEEPEST):
        level = [each for held in level for each in (held.values() if isinstance(held, dict) else held) if isinstance(each, (dict, list))]
    return f"it is nested more than {DEEPEST} levels deep" if level else ""


def _unknown_rule(tests: Iterable[Mapping[str, Any]]) -> str:
    """Finds a rule that is not in the catalogue. The schema does not list the rules, since versions add some."""
    findings = (finding for test in tests if "report" in test for finding in test["report"]["findings"])
    odd = next((name for each in findings for name in (each["rule"], each["cause_rule"] or each["rule"]) if name not in RULES), None)
    return f"a finding's rule is {odd[:40]!r}, which precheck {__version__} does not know" if odd is not None else ""


def report_of(plain: Mapping[str, Any]) -> Report:
    """Rebuilds the report that `Report.to_json` wrote, Fields of later versions are left out."""
    report = Report(**{name: plain[name] for name in ("precision", "updates", "scaler", "cure", "facts")})
    report.findings = [_made(Finding, each) for each in plain["findings"]]
    report.boundaries = [_made(Row, each) for each in plain["boundaries"]]
    report.ops = [_made(OpRow, each) for each in plain["ops"]]
    report.losses = [_made(Loss, each) for each in plain["losses"]]
    report.exponents = [_made(Binades, each) for each in plain["exponents"]]
    return report


def _made(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    return kind(**{field.name: _value(str(field.type), plain[field.name]) for field in dataclasses.fields(kind) if field.name in plain})


def _value(kind: str, value: Any) -> Any:
    """Converts a value to the type of its field: texts for infinite numbers and NaN to floats, lists to tuples."""
    if kind.startswith("float") and value is not None:
        return float(value)
    return tuple(value) if isinstance(value, list) else value
