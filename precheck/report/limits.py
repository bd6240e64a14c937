"""The limits of each rule with their derivations, read from the source of precheck.judge: what judges is what is documented.

A limit is a number in capitals with a string below it. A rule's are those that the functions which make its findings read, and
those that call these in one file, with all that they call; what makes only other rules' findings is left out. No file is
imported, so torch is not either.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from precheck.findings import RULES

JUDGE = Path(__file__).resolve().parent.parent / "judge"
_Name = tuple[str, str]  # file's stem, name in it
YARDSTICK = (("boundaries", "UNSTABLE"), ("noise", "WARN"), ("noise", "FAIL"), ("noise", "REASSOCIATED"))
"""Limits of every rule that judges r, which reach it through the numbers of a row."""
SETTLED_LATER = {"unstable-reference": tuple(("rounding", name) for name in ("AMPLIFICATION", "UNSTABLE", "SHAKEN", "DIGIT"))}
"""Limits that decide while the run goes on, of a rule whose findings are made at its end."""
_BY_R = frozenset({"accumulated-drift", "unstable-reference", "golden-mismatch"})


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One constant: in which file of precheck/judge, what it is, and why."""

    file: str
    name: str
    value: str
    why: str


@dataclasses.dataclass(slots=True)
class _Module:
    """A file of precheck/judge: what it says of itself, its constants and functions, and what names in it stand for elsewhere."""

    summary: str
    constants: dict[str, Limit]
    functions: dict[str, ast.FunctionDef]
    imported: dict[str, _Name]


@functools.cache
def limits_of(rule: str) -> tuple[Limit, ...]:
    """In the order of the files and of their lines."""
    modules = _modules()
    reached = set[_Name](YARDSTICK) if rule in _BY_R else set[_Name]()
    for file, module in modules.items():
        makers = {(file, name) for name, function in module.functions.items() if rule in _rules(function)}
        callers = {(file, name) for name, function in module.functions.items() if makers & _uses(file, _statements(function, rule))}
        reached |= _closure(makers | callers, rule)
    reached |= set(SETTLED_LATER.get(rule, ()))
    return tuple(limit for file, module in modules.items() for name, limit in module.constants.items() if (file, name) in reached)


def files_of(rule: str) -> list[tuple[str, str]]:
    """The files whose functions make findings of this rule, each with the first paragraph of what it says of itself."""
    made = [(file, module) for file, module in _modules().items() if any(rule in _rules(each) for each in module.functions.values())]
    return [(file, module.summary) for file, module in made]


def _closure(names: Iterable[_Name], rule: str) -> set[_Name]:
    """These, and all that the functions among them use, but for functions that make findings of other rules only."""
    modules, found, left = _modules(), set[_Name](), [(name, True) for name in names]
    while left:
        (file, name), asked = left.pop()
        function = modules[file].functions.get(name) if file in modules else None
        others = _rules(function) if function and not asked else set()
        if (file, name) not in found and (not others or rule in others):
            found.add((file, name))
            left += [(used, False) for used in _uses(file, _statements(function, rule))] if function else []
    return found


def _statements(function: ast.FunctionDef, rule: str) -> Iterator[ast.AST]:
    """All nodes of a function but those of statements that make findings of other rules only."""
    left: list[ast.AST] = [function]
    while left:
        node = left.pop()
        made = node.body if isinstance(node, ast.If) else [node] if isinstance(node, ast.stmt) and not hasattr(node, "body") else []
        rules = {each for part in made for each in _rules(part)}
        if not rules or rule in rules:
            yield node
            left += ast.iter_child_nodes(node)
        elif isinstance(node, ast.If):
            left += node.orelse


@functools.cache
def _rules(node: ast.AST) -> set[str]:
    """The rules that it names, unless it only asks for them."""
    asked = {id(each) for compared in ast.walk(node) if isinstance(compared, ast.Compare) for each in ast.walk(compared)}
    strings = (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in asked)
    return {str(each.value) for each in strings} & RULES.keys()


@functools.cache
def _modules() -> dict[str, _Module]:
    return {path.stem: _module(path.stem, ast.parse(path.read_text(encoding="utf8"))) for path in sorted(JUDGE.glob("*.py"))}


def _module(file: str, tree: ast.Module) -> _Module:
    summary = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    constants = {limit.name: limit for limit in _constants(file, tree)}
    return _Module(summary, constants, {each.name: each for each in _functions(tree)}, dict(_imports(tree)))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef))


def _imports(tree: ast.Module) -> Iterator[tuple[str, _Name]]:
    """Names that stand for files of precheck.judge, ("noise", ("noise", "")), or for something in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "precheck.judge":
            yield from ((alias.asname or alias.name, (alias.name, "")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("precheck.judge."):
            yield from ((alias.asname or alias.name, (str(node.module).rpartition(".")[2], alias.name)) for alias in node.names)


def _uses(file: str, nodes: Iterable[ast.AST]) -> set[_Name]:
    """Names of precheck.judge that code in this file uses."""
    imported, found = _modules()[file].imported, set[_Name]()
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(imported.get(node.id, (file, node.id)))
        elif isinstance(node, ast.Attribute):
            home = imported.get(node.value.id, (file, "")) if isinstance(node.value, ast.Name) else (file, "")
            found.add((file if home[1] else home[0], node.attr))
    return found


def _constants(file: str, tree: ast.Module) -> Iterator[Limit]:
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(below, ast.Expr)):
            continue
        name, why = node.targets[0].id, below.value
        if name.isupper() and not name.startswith("_") and isinstance(why, ast.Constant) and isinstance(why.value, str) and _plain(node.value):
            yield Limit(file, name, ast.unparse(node.value).replace("**", "^"), " ".join(inspect.cleandoc(why.value).split()))


def _plain(value: ast.expr) -> bool:
    """Whether it is a number, and not a table or a set of ops."""
    return all(isinstance(node, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)) for node in ast.walk(value))
