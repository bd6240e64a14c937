"""Makes the pages of docs/rules: for each rule its docstring, its limits and analyses, read from the code, and its example, which the tests run."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from precheck import analysis, rules
from precheck.analysis.limit import Limit
from precheck.findings import RULES, RuleInfo
from precheck.report.markdown import grid
from precheck.rules.rule import Rule
from precheck.words import sentence

_MADE = "<!-- made by python -m precheck rules --write docs/rules -->"
_GIVEN = {
    "kernels": ["`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.", ""],
    "pairs": ["`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.", ""],
}
"""Where a verdict comes from that no code of its rule gives."""


def pages() -> dict[str, str]:
    """The pages by file name: README.md and one for each rule."""
    return {"README.md": _index(), **{f"{rule.name}.md": _page(rule) for rule in RULES.values()}}


def example(rule: str) -> Path:
    """The file of a rule's example."""
    return Path(rules.__path__[0]) / rule.replace("-", "_") / "example.py"


def example_output(rule: str) -> Path:
    """The file with the output of a rule's example. suites/report/example_texts.py writes it, and a test compares it."""
    return example(rule).with_suffix(".txt")


def _index() -> str:
    rows = [(f"[`{rule.name}`]({rule.name}.md)", _cell(rule.meaning)) for rule in RULES.values()]
    return "\n".join([_MADE, "", "# Rules", "", *grid(("rule", "fires when"), rows), ""])


def _page(rule: RuleInfo) -> str:
    shown = example(rule.name).read_text(encoding="utf8").rstrip("\n")
    lines = [_MADE, "", f"# `{rule.name}`", "", sentence(rule.meaning), "", f"**Cure**: {rule.remedy}.", ""]
    lines += ["## Example", "", "```python", shown, "```", ""]
    if example_output(rule.name).is_file():
        lines += ["It prints:", "", "```text", example_output(rule.name).read_text(encoding="utf8").rstrip("\n"), "```", ""]
    module = sys.modules[rule_of(rule.name).__module__]
    lines += ["## How it is found", "", inspect.getdoc(module) or "", "", *_GIVEN.get(getattr(module, "GIVEN_BY", ""), ())]
    used = [f"- `precheck/{file}`: {summary}" for file, summary in analyses_of(rule.name)]
    code = Path(module.__file__ or "").relative_to(Path(rules.__path__[0]).parents[1]).as_posix()
    lines += [f"The code: `{code}`.{' Analyses that it uses:' if used else ''}", ""]
    return "\n".join([*lines, *used, *([""] if used else []), *_limits(rule), *_in_tests(rule)])


def _limits(rule: RuleInfo) -> list[str]:
    limits = limits_of(rule.name)
    if not limits:
        return ["It has no limits: the answer is yes or no.", ""]
    rows = [(f"`{limit.name}`", f"`{limit.value}`", limit.unit, f"`{limit.file}`", _cell(limit.origin)) for limit in limits]
    table = grid(("limit", "value", "unit", "file", "what it is, and why"), rows)
    return ["## Limits", "", "Numbers that the verdict depends on, as they are in the code:", "", *table, ""]


def _in_tests(rule: RuleInfo) -> list[str]:
    return [
        "## In a test", "", "```python",
        f'@pytest.mark.expect_finding("{rule.name}")  # fails unless it is found',
        f'@pytest.mark.allow_finding("{rule.name}", reason="…")  # passes where it is found, and lists it at the end of the run',
        "```", "", "[All rules](README.md)", "",
    ]  # fmt: skip


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One limit, as a row of a table."""

    name: str
    value: str
    unit: str
    file: str  # below precheck/
    origin: str


def rule_of(name: str) -> type[Rule]:
    return next(each for each in rules.classes() if each.about.name == name)


def limits_of(name: str) -> tuple[Row, ...]:
    """The limits that a rule lists, in the same order."""
    places = {id(limit): place for place, limit in all_limits().items()}
    return tuple(_row(limit, *places[id(limit)]) for limit in rule_of(name).limits)


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


def _row(limit: Limit, file: str, name: str) -> Row:
    return Row(name, _written(limit), limit.unit, file, _origins(limit.module)[name])


@functools.cache
def _origins(module: str) -> dict[str, str]:
    """The docstrings below the constants of a module."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    documented = ((each, below.value) for each, below in itertools.pairwise(body) if isinstance(each, ast.Assign) and isinstance(below, ast.Expr))
    return {ast.unparse(each.targets[0]): " ".join(str(ast.literal_eval(text)).split()) for each, text in documented}


def _written(value: float) -> str:
    """A number as text: 2^-20, 0.25, 16."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent < -3 else f"{value:g}"


@functools.cache
def _modules() -> tuple[ModuleType, ...]:
    walks = (pkgutil.walk_packages(package.__path__, f"{package.__name__}.") for package in (analysis, rules))
    return tuple(importlib.import_module(found.name) for found in itertools.chain(*walks) if not found.name.endswith(".example"))


def _file(module: ModuleType) -> str:
    return f"{module.__name__.removeprefix('precheck.').replace('.', '/')}.py"
