"""Reads the limits of each rule, and the analyses that it uses, from the code. The rules' pages show them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType

from precheck import analysis, rules
from precheck.analysis.limit import Limit
from precheck.rules.rule import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One limit, as a row of a table."""

    name: str
    value: str
    unit: str
    file: str  # below precheck/
    origin: str


def rule_of(name: str) -> type[Rule]:
    """The class of the rule of that name."""
    return next(each for each in rules.classes() if each.about.name == name)


def limits_of(name: str) -> tuple[Row, ...]:
    """The limits that a rule lists, in the same order."""
    return tuple(_row(limit) for limit in rule_of(name).limits)


_TOOLS = frozenset({"limit", "facts", "labels", "provenance", "ledger"})
"""Modules of `analysis` that are only tools for the others."""


def analyses_of(name: str) -> list[tuple[str, str]]:
    """The analyses that a rule's code uses: for each its file below precheck/, and the first paragraph of its docstring."""
    used = {getattr(each, "__module__", "") for each in vars(sys.modules[rule_of(name).__module__]).values()}
    used |= {limit.module for limit in rule_of(name).limits}
    modules = [each for each in _modules() if each.__name__ in used and each.__name__.startswith(f"{analysis.__name__}.")]
    shown = (each for each in modules if each.__name__.rpartition(".")[2] not in _TOOLS)
    return [(_file(each), " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split())) for each in shown]


def all_limits() -> dict[tuple[str, str], Limit]:
    """All limits, by file and name."""
    return {
        (_file(module), name): value
        for module in _modules()
        for name, value in vars(module).items()
        if isinstance(value, Limit) and value.module == module.__name__
    }


def _row(limit: Limit) -> Row:
    file, name = next(place for place, each in all_limits().items() if each is limit)
    return Row(name, _written(limit), limit.unit, file, limit.origin)


def _written(value: float) -> str:
    """A number as text: 2^-20, 0.25, 16."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent < -3 else f"{value:g}"


def _modules() -> Iterator[ModuleType]:
    for package in (analysis, rules):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(".example"):
                yield importlib.import_module(found.name)


def _file(module: ModuleType) -> str:
    return f"{module.__name__.removeprefix('precheck.').replace('.', '/')}.py"
