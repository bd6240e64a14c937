"""Reads and writes the file of known failures: TOML with one table for each fault, in an order that branches can merge.

precheck rewrites the file, so comments in it are lost; `reason` is kept. Imports neither torch nor numpy.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from precheck.files import replace
from precheck.findings import RULES
from precheck.judge.known_failures import NEVER, Family, Known
from precheck.precisions import PRECISIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest depends on it for these versions of Python

HEAD = """\
# Failures of precision checks that are known: they do not fail a run until they get worse, or `until` has passed.
# Written by pytest --known-failures-write, and tightened by runs in which one is mended. Comments do not last; `reason` and `until` do.
"""
_FIELDS: dict[str, tuple[type, ...]] = {
    "test": (str,), "precision": (str,), "check": (int,), "rule": (str,), "at": (str,), "measured": (float, int), "until": (datetime.date,),
    "reason": (str,), "beyond": (dict,),
}  # fmt: skip
_NEEDED = ("test", "precision", "rule", "at")
_WORDS = {str: "a text in quotes", int: "a whole number", float: "a number", datetime.date: "a date, as in 2027-01-31", dict: "a table"}


class Check(NamedTuple):
    """Identifies a check: test, precision, and `number`, which counts the calls of check_precision in the test from 1."""

    test: str
    precision: str
    number: int = 1


Failures = dict[Check, list[Known]]


class KnownError(ValueError):
    """A file of known failures cannot be read or written. The message says why, and what to do."""


def read(path: Path) -> Failures:
    """Reads the failures in the file at `path`. Empty if there is no file. Raises KnownError."""
    try:
        content = tomllib.loads(path.read_bytes().decode("utf8", "surrogateescape").replace("\r\n", "\n"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KnownError(f"{path} cannot be read: {error.strerror or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise KnownError(f"{path} is no TOML ({error}); was a merge left half done? Mend it by hand, or take it from the last commit") from None
    strange = [name for name in content if name != "failure"]
    if strange or not isinstance(content.get("failure", []), list):
        raise KnownError(f"{path}: there is no key {strange[0] if strange else 'failure'!r} here; failures are tables [[failure]]")
    failures: Failures = {}
    for number, table in enumerate(content.get("failure", ()), 1):
        where = f"{path}: failure {number}" + (f" ({table['test']})" if isinstance(table, dict) and isinstance(table.get("test"), str) else "")
        check, known = _entry(table, where)
        same = failures.setdefault(check, [])
        if any((known.rule, known.place) == (each.rule, each.place) for each in same):
            raise KnownError(f"{where}: {known.rule} at {known.place} under {check.precision} is there twice; keep one of the two")
        same.append(known)
    return failures


def _entry(table: Any, where: str) -> tuple[Check, Known]:
    if not isinstance(table, dict):
        raise KnownError(f"{where}: accepted is a table [[failure]] with {', '.join(_FIELDS)}")
    for name, value in table.items():
        if name not in _FIELDS:
            raise KnownError(f"{where}: there is no key {name!r}; there are {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[name]) or isinstance(value, (bool, datetime.datetime)):
            raise KnownError(f"{where}: {name} = {value}; accepted is {_WORDS[_FIELDS[name][0]]}")
    missing = [name for name in _NEEDED if not table.get(name)]
    if missing:
        raise KnownError(f"{where}: there is no {missing[0]}; each failure has {', '.join(_NEEDED)}")
    _accepted("precision", table["precision"], PRECISIONS, where)
    _accepted("rule", table["rule"], [rule for rule in RULES if rule not in NEVER], where)
    check = Check(table["test"], table["precision"], table.get("check", 1))
    if check.number < 1:
        raise KnownError(f"{where}: check = {check.number}; accepted is a whole number from 1")
    beyond = {name: _family(value, f"{where}: beyond {name!r}") for name, value in table.get("beyond", {}).items()}
    return check, Known(table["rule"], table["at"], table.get("measured"), table.get("until"), table.get("reason", ""), beyond)


def _accepted(name: str, value: str, accepted: Sequence[str] | Mapping[str, Any], where: str) -> None:
    if value not in accepted:
        hint = "; refresh the golden instead" if value in NEVER else f"; there are {', '.join(accepted)}"
        raise KnownError(f"{where}: {name} = {value!r} is not accepted{hint}")


def _family(value: Any, where: str) -> Family:
    table = value if isinstance(value, dict) else {"times": value}
    times, modules = table.get("times"), table.get("modules", 1)
    if table.keys() - {"times", "modules"} or not isinstance(times, (int, float)) or not isinstance(modules, int):
        raise KnownError(f"{where} = {value}; accepted are a number, or {{ times = 2.5, modules = 12 }}")
    return Family(float(times), modules)


def write(path: Path, failures: Failures) -> None:
    """Writes the file atomically, or deletes it if no failure is left. Raises KnownError."""
    try:
        if failures:
            replace(path.resolve(), text(failures).encode("utf8", "surrogateescape"))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise KnownError(f"{path} cannot be written: {error.strerror or error}") from None


def text(failures: Failures) -> str:
    """The content of the file, sorted by test, precision and check. Failures of one check keep the order of its report."""
    tables = [_text(check, known) for check in sorted(failures) for known in failures[check]]
    return "\n".join([HEAD, *tables])


def _text(check: Check, known: Known) -> str:
    fields = {
        "test": check.test, "precision": check.precision, "check": check.number if check.number > 1 else None, "rule": known.rule, "at": known.place,
        "measured": known.measured, "until": known.until, "reason": known.reason,
    }  # fmt: skip
    lines = ["[[failure]]", *(f"{name} = {_value(value)}" for name, value in fields.items() if value is not None)]
    if known.beyond:
        lines += ["[failure.beyond]  # places beyond their limits, and how many times that they are", *map(_family_text, known.beyond.items())]
    return "\n".join(lines) + "\n"


def _family_text(item: tuple[str, Family]) -> str:
    name, family = item
    times = _value(family.times)
    return f"{_value(name)} = " + (times if family.modules == 1 else f"{{ times = {times}, modules = {family.modules} }}")


def _value(value: str | float | datetime.date) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return value.isoformat() if isinstance(value, datetime.date) else f"{value:g}" if isinstance(value, float) else str(value)
