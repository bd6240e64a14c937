"""A session: every check of one pytest run with its report, in plain data. docs/report.md describes it, report.schema.json fixes it.

Imports neither torch nor numpy: under xdist the controller writes what its workers measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from precheck import __version__
from precheck.findings import SCHEMA, Finding, Report, Row

Session: TypeAlias = dict[str, Any]
"""What the JSON file holds, as Python reads it: infinite and undefined numbers are strings."""
_T = TypeVar("_T", Finding, Row, "Op")


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


def session(tests: Iterable[Mapping[str, Any]], *, root: Path, start: Path) -> Session:
    """Of checks as docs/report.md has them. `root` is the project's folder, `start` the one that sources are relative to."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    places = {"root": root.as_posix(), "start": start.as_posix()}
    return {"schema": SCHEMA, "precheck": __version__, "torch": torch, **places, "tests": [dict(test) for test in tests]}


def text(session: Session) -> str:
    """The session as JSON."""
    return json.dumps(session, indent=1)


def report_of(plain: Mapping[str, Any]) -> Report:
    """The report that `Report.to_json` wrote, with `Op`s for its ops; fields of a later version are left out."""
    report = Report(**{field.name: plain[field.name] for field in dataclasses.fields(Report) if field.name in plain})
    report.findings = [_made(Finding, each) for each in plain["findings"]]
    report.boundaries = [_made(Row, each) for each in plain["boundaries"]]
    report.ops = [_made(Op, each) for each in plain["ops"]]
    return report


def _made(kind: type[_T], plain: Mapping[str, Any]) -> _T:
    return kind(**{field.name: _value(field.type, plain[field.name]) for field in dataclasses.fields(kind) if field.name in plain})


def _value(kind: Any, value: Any) -> Any:
    """Numbers that JSON has no word for come as strings, tuples as lists."""
    if isinstance(value, str) and "float" in str(kind):
        return float(value)
    return tuple(value) if isinstance(value, list) else value
