"""Reads the lines of source code around a finding, as they are when the report is written."""

from __future__ import annotations

import linecache
import re
import tokenize
from pathlib import Path
from typing import Any

AROUND = 3  # lines before and after
WIDEST = 240  # characters of a line
_PLACE = re.compile(r"[^\s'\"`(),;]+\.py:\d{1,9}\b")
MOST_DIGITS = 9  # of a line's number: no file has a thousand million lines


def excerpt(source: str, start: Path) -> dict[str, Any]:
    """For "models/gpt.py:88", the lines around line 88: {"first": 85, "line": 88, "lines": [...]}; empty if they cannot be read.

    A relative path is below `start`. Only Python files are opened, since a report from elsewhere may name any file.
    """
    path, line = file_and_line(source)
    lines = _typed(path) or (_lines(start / path) if path.endswith(".py") else [])
    if not 0 < line <= len(lines):
        return {}
    first = max(1, line - AROUND)
    return {"first": first, "line": line, "lines": [text[:WIDEST] for text in lines[first - 1 : line + AROUND]]}


def places(words: str) -> list[str]:
    """The lines of Python files that a text names, each once: "models/gpt.py:88"."""
    return list(dict.fromkeys(_PLACE.findall(words)))


def line_of(place: str, start: Path) -> str:
    """The text of a line, "models/gpt.py:88", without its indentation; "" if it cannot be read. A relative path is below `start`."""
    around = excerpt(place, start)
    return around["lines"][around["line"] - around["first"]].strip() if around else ""


def file_and_line(source: str) -> tuple[str, int]:
    """The path and the line of "models/gpt.py:88"; "" and 0 for a text without a line."""
    path, _, number = source.rpartition(":")
    return (path, int(number)) if path and number.isdecimal() and len(number) <= MOST_DIGITS else ("", 0)


def _typed(name: str) -> list[str]:
    """The lines of code that has no file, such as a cell of a notebook, which Python keeps for its tracebacks: it has no time of modification."""
    kept = linecache.cache.get(name, ())
    return [text.rstrip("\n") for text in kept[2]] if len(kept) == 4 and kept[1] is None else []


def _lines(path: Path) -> list[str]:
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            return file.read().splitlines()
    except (OSError, SyntaxError, ValueError):  # the file is gone or no text; the report then shows no excerpt
        return []
