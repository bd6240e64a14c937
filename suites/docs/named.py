"""What pages name: links to files and headings, and options of commands."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

from precheck.__main__ import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "suites").rglob("README.md")])
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMANDS = (["golden", "show"], ["golden", "diff"], ["report"], ["rules"], ["kernel"], ["record"], ["watch"])
OTHERS = {
    "--junitxml": "pytest, whose help spells it --junit-xml", "--upgrade": "pip", "--extra-index-url": "pip", "--index-url": "pip",
    "--no-deps": "pip", "--target": "pip", "--nproc-per-node": "torchrun",
    "--sample": "suites/planted/score.py", "--seed": "suites/planted/score.py",
    "--harmless": "suites/architectures/changed.py", "--most": "suites/architectures/changed.py",
    "--quiet": "git diff", "--cached": "git diff",
    "--profile": "suites/bench/verdict_costs.py", "--planted": "suites/bench/verdict_costs.py",
    "--only": "suites/planted/score.py", "--through": "suites/planted/score.py", "--fetched": "suites/zoo/reseeded.py",
    "--set": "suites/kernels/benchmark.py", "--given": "suites/field/evidence.py", "--moved": "suites/field/evidence.py",
    "--lines": "suites/planted/score.py", "--train": "suites/architectures/sweep.py", "--watch": "suites/architectures/sweep.py",
    "--bodies": "suites/architectures/sweep.py", "--hook-type": "pre-commit", "--master": "examples/training_loop/train.py",
}  # fmt: skip
"""Options of other programs that pages name, and whose."""


def links(page: str) -> list[str]:
    """Where a page points to, outside its code."""
    return _LINK.findall(_CODE.sub("", _FENCED.sub("", page)))


def headings(page: str) -> set[str]:
    """As a code host makes them into anchors."""
    lines = [line.lstrip("#").strip() for line in _FENCED.sub("", page).splitlines() if re.match(r"#{1,6} ", line)]
    return {re.sub(r"[^\w\- ]", "", line.replace("`", "").lower()).replace(" ", "-") for line in lines}


def broken(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    lost = []
    for link in links(page.read_text(encoding="utf8")):
        path, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in headings(target.read_text(encoding="utf8"))):
            lost.append(link)
    return lost


def options(text: str) -> set[str]:
    return set(_OPTION.findall(text))


@cache
def known() -> frozenset[str]:
    """The options that pytest, with the plugins here, and precheck's own commands tell of when they are asked."""
    travels = (["suites/bench/portability", "settings"], ["suites/bench/portability", "seeds"])
    pytests = subprocess.run([sys.executable, "-m", "pytest", "suites/zoo", "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    programs = (["suites/bench"], *travels, ["suites/recipes/recipes.py"])
    here = (_help(*line) for line in (*programs, *(["", *command] for command in COMMANDS)))
    return frozenset().union(*map(options, (pytests, *here)))


def _help(program: str, *words: str) -> str:
    """What a script of this project, or `python -m precheck`, says to --help; in this process, which has imported torch."""
    told, asked, paths = io.StringIO(), sys.argv, sys.path
    sys.argv, sys.path = [program, *words, "--help"], [str((ROOT / program).parent), *paths]
    try:
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
            runpy.run_path(str(ROOT / program), run_name="__main__") if program else main([*words, "--help"])
    finally:
        sys.argv, sys.path = asked, paths
    assert told.getvalue().startswith("usage: "), program
    return told.getvalue()


def extras() -> set[str]:
    """What `pip install 'pytest-precheck[…]'` may ask for: by the file, since what is installed here may be older. Python 3.10 cannot read TOML."""
    section = (ROOT / "pyproject.toml").read_text(encoding="utf8").partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return set(re.findall(r"^([a-z]+) = \[", section, re.MULTILINE))


def asked(page: str) -> set[str]:
    """The extras that a page asks for, of precheck by name or of a checkout."""
    return {extra for group in re.findall(r"(?:pytest-precheck|'\.)\[([a-z,]+)\]", page) for extra in group.split(",")}
