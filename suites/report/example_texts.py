"""What the example of each rule prints, for the pages of the rules.

python suites/report/example_texts.py             # writes precheck/rules/*/example.txt
python suites/report/example_texts.py absorption  # of one rule, or of several
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precheck.findings import RULES
from precheck.report.rules import example, example_output

_NUMBER = re.compile(r"(?<![\w.])(?:\d[\d.]*(?:e[+-]?\d+)?|inf\b)")


def carried_out(path: Path, folder: Path) -> tuple[Any, str]:
    """The report of an example and what it prints, from a copy in a folder of the user's: lines of precheck itself are nobody's fault."""
    shutil.copy(path, folder / "example.py")
    printed, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            names = runpy.run_path("example.py")
    finally:
        os.chdir(before)
    return names["report"], printed.getvalue()


def words(text: str) -> list[str]:
    """Its lines without numbers, which another processor rounds otherwise, and without the width of columns."""
    return [" ".join(_NUMBER.sub("#", line).split()) for line in text.splitlines()]


def main(rules: Sequence[str]) -> None:
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown:
        sys.exit(f"there is no rule {', '.join(unknown)}; there are {', '.join(RULES)}")
    for rule in rules or RULES:
        with tempfile.TemporaryDirectory() as folder:
            _, printed = carried_out(example(rule), Path(folder))
        example_output(rule).write_text(printed, encoding="utf8")
        sys.stdout.write(f"{example_output(rule)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
