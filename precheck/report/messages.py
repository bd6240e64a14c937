"""Makes docs/messages.md: reads all messages of all rules from their source code, and lists them with the rules' remedies.

Imports neither torch nor numpy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from precheck import rules
from precheck.findings import RULES, RuleInfo
from precheck.report.markdown import grid

NAME = "messages.md"
_MADE = "<!-- made by python -m precheck rules --messages --write docs -->"
_INTRODUCTION = """Each finding begins with the name of a rule, then says where, then one of these messages. The example is a whole message, as
the program on the rule's page prints it. ‹…› stands for a number, a name or a place, and a row that begins with a comma or a semicolon is the end of
another. Numbers have units: % is a share of the tensor's norm unless another is named; a *rounding* is one unit roundoff of the format; *r* is the
error divided by the error that correct rounding explains. The [glossary](glossary.md) has the words.

The messages about [kernels](#kernels-what-is-wrong) and about [pairs](#pairs-what-differs) are at the end of the page: several rules share them."""
_NO_WORDS = ("Limit", "exempts", "TypeError", "NotImplementedError")
"""Calls whose texts users do not see, or see elsewhere."""
_READABLE = {
    "placed": "op at line", "label": "tensor", "share": "share", "percents": "share", "digits": "number", "count": "count",
    "of_norm": "share of its norm", "one_line": "name", "power": "power of two", "widened": "where to widen",
}  # fmt: skip
"""Functions that messages call, and the words that stand for their results."""
_PLAIN = {
    name: word
    for word, names in {
        "number": "beyond abs scalar got exact", "number here": "became", "number in the reference": "was", "largest number": "held peak amax",
        "limit": "HALF_MAX roundoff reach", "error": "off drift less", "float32": "wide", "own error": "own", "factor": "middle spread gain grown",
        "share": "dead lost zeroed blur apart clipped", "line": "shortened source", "tensor": "the", "reason": "why",
        "what follows": "then", "Inf or NaN": "nan nans", "shape": "tuple", "names": "join", "dimension": "dim",
        "count": "unmasked clips many enough decays moved wholes_moved strange empty numel zeros taken additions found",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Names in the code that say little by themselves, and the words that stand for them."""

_ELSEWHERE = {
    "Messages that several rules share": ("rules/rule.py",),
    "Kernels: what is wrong": (
        "kernels/trial_result.py", "kernels/bench.py", "kernels/nonfinite.py", "kernels/reference_check.py", "kernels/protocol.py",
        "kernels/reporting.py",
    ),
    "Kernels: why it is of this class": ("kernels/causes.py", "kernels/lower_intermediates.py"),
    "Pairs: what differs": ("pairs/verdicts.py", "pairs/reporting.py", "pairs/recorded_side.py"),
    "Pairs: what explains it": ("pairs/transformations.py",),
}
"""Messages outside the rules' folders, for judges that give the verdicts of several rules."""


def page() -> str:
    lines = [_MADE, "", "# Messages", "", _INTRODUCTION, ""]
    for rule in RULES.values():
        lines += _section(rule, _folder() / rule.name.replace("-", "_"))
    for title, files in _ELSEWHERE.items():
        messages = dict.fromkeys((_cell(text),) for file in files for text in texts(_folder().parent / file))
        lines += [f"## {title}", "", *grid(("message",), [*messages]), ""]
    return "\n".join(lines)


def _folder() -> Path:
    return Path(rules.__path__[0])


def _section(rule: RuleInfo, folder: Path) -> list[str]:
    messages = [*texts(folder / "rule.py")] if (folder / "rule.py").exists() else []
    meaning, remedy = _cell(rule.meaning), f"{_cell(rule.remedy)}. [More](rules/{rule.name}.md)"
    head = [f"## `{rule.name}`", "", f"**Fires when**: {meaning}.", "", f"**What to do**: {remedy}", "", *_example(rule, folder)]
    return [*head, *grid(("message",), [(_cell(text),) for text in messages]), ""] if messages else head


def _example(rule: RuleInfo, folder: Path) -> list[str]:
    """The rule's message in the output of its example, if there is one."""
    printed = (folder / "example.txt").read_text(encoding="utf8") if (folder / "example.txt").exists() else ""
    lines = (line.removeprefix("error: ").removeprefix("warning: ").removeprefix("note: ") for line in printed.splitlines())
    found = next((line for line in lines if line.startswith(f"{rule.name}: ")), "")
    return [f"**Example**: `{found}`", ""] if found else []


def texts(file: Path) -> Iterator[str]:
    """The texts in a module that a user may see, in the order of their lines."""
    tree = _Constants().visit(ast.parse(file.read_text(encoding="utf8")))
    aside = {id(part) for node in ast.walk(tree) if _is_aside(node) for part in ast.walk(node)}
    aside |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node}
    found = [node for node in ast.walk(tree) if id(node) not in aside and isinstance(node, (ast.JoinedStr, ast.Constant))]
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
        text = _shown(node)
        if len(text.split()) > 2:
            yield text


class _Constants(ast.NodeTransformer):
    """Puts a module's constant texts into the messages that contain them."""

    def __init__(self) -> None:
        self.known: dict[str, ast.expr] = {}

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for each in node.body:
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and isinstance(getattr(each.value, "value", None), str):
                self.known[each.targets[0].id] = each.value
        return self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        return self.known.get(node.value.id, node) if isinstance(node.value, ast.Name) else node


def _is_aside(node: ast.AST) -> bool:
    """Whether a node holds no text for users: a docstring, a comparison, a key, or an argument of a function in `_NO_WORDS`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _NO_WORDS
    return isinstance(node, (ast.Compare, ast.Subscript)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _shown(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = node.values if isinstance(node, ast.JoinedStr) else ()
    return "".join(_place(part.value) if isinstance(part, ast.FormattedValue) else _shown(part) for part in parts)


def _place(expression: ast.expr) -> str:
    """The text for a placeholder of a message. A count includes the noun."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "counted":
        return f"‹number› {ast.literal_eval(expression.args[1])}s"
    return f"‹{_named(expression)}›"


def _named(expression: ast.expr) -> str:
    """The word for a placeholder: the last name in its expression, or the words for the function that it calls."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id in _READABLE:
        return _READABLE[expression.func.id]
    parts = [part for part in ast.walk(expression) if isinstance(part, (ast.Attribute, ast.Name))]
    names = [part.attr if isinstance(part, ast.Attribute) else part.id for part in parts]
    name = next((name.strip("_") for name in names if name not in ("max", "min", "len", "percent")), "number")
    return _PLAIN.get(name, name.replace("_", " "))


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").strip()
