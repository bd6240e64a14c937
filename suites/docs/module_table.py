"""docs/modules.md: a line for every module of the house, read from its docstring. Imports nothing of precheck.

python suites/docs/module_table.py      # writes docs/modules.md
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "precheck"
PAGE = ROOT / "docs" / "modules.md"
HEAD = """<!-- made by python suites/docs/module_table.py -->
# Modules

A line for every module, taken from its docstring. [Architecture](architecture.md) says how they work together. Each folder of
`rules` has the same files, so it has one line here.
"""
FOLDERS = (
    "", "shared_runs", "selftests", "torch_support", "formats", "ops", "recipes", "observe", "observe/models", "observe/recording",
    "observe/decisions", "observe/timing", "observe/shadow",
    "observe/shadow/replaying", "observe/shadow/comparing", "observe/shadow/memory", "observe/shadow/places",
    "observe/shadow/probes", "observe/shadow/training", "observe/shadow/quantisers", "observe/shadow/quantisers/scales",
    "observe/shadow/distributed", "analysis", "analysis/propagation", "analysis/rounding", "analysis/unrepresentable", "analysis/decisions",
    "analysis/training", "analysis/noise_floor", "analysis/quantisation", "rules", "judge",
    "goldens", "pairs", "kernels", "input_search", "strategies", "report", "plugin",
)  # fmt: skip
"""In the order in which imports run; the verbs, which stand in the package itself, come first."""


def page() -> str:
    """The page, as Markdown."""
    return HEAD + "".join(_section(folder) for folder in FOLDERS)


def folders() -> set[str]:
    """The folders that have modules, less those of single rules."""
    found = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    return {"" if each == "." else each for each in found if not each.startswith("rules/")}


def said(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _section(folder: str) -> str:
    rows = [(f"`{path.stem}`", said(path)) for path in sorted((PACKAGE / folder).glob("*.py")) if path.name != "__init__.py"]
    if folder == "rules":
        rows += [(f"`{path.parent.name}`", said(path)) for path in sorted((PACKAGE / folder).glob("*/rule.py"))]
    lines = "".join(f"| {name} | {words} |\n" for name, words in rows)
    return f"\n## `precheck{'/' * bool(folder)}{folder}`\n\n{said(PACKAGE / folder / '__init__.py')}\n\n| module | what it is |\n|---|---|\n{lines}"


def main() -> None:
    PAGE.write_text(page(), encoding="utf8")
    sys.stdout.write("docs/modules.md\n")


if __name__ == "__main__":
    main()
