"""A terminal to run pytest in, and what is on its screen after each thing that was written."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

_PIECE = re.compile(r"\x1b\[(?P<number>\d*)(?:;\d+)*(?P<act>[A-Za-z])|(?P<plain>[^\x1b\n\r]+)|(?P<control>[\n\r])")


def written(*options: str, cwd: Path, columns: int = 100, rows: int = 24, **environment: str) -> tuple[str, int]:
    """What `pytest *options`, run in a terminal of that size in a process of its own, writes to it; and its exit status."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER", "TERM", "COLUMNS", "LINES", "NO_COLOR")}
    process, end = pty.fork()
    if not process:
        os.chdir(cwd)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvpe(sys.executable, [sys.executable, "-m", "pytest", *options], kept | {"TERM": "xterm"} | environment)
    parts = []
    while part := _read(end):
        parts.append(part)
    os.close(end)
    return b"".join(parts).decode(), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _read(end: int) -> bytes:
    try:
        return os.read(end, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def screens(text: str, rows: int = 24) -> Iterator[list[str]]:
    """The screen, line by line, after each piece that was written: words, a line's end, a command. Colours are left out."""
    lines, row, column = [""] * rows, 0, 0
    for piece in _PIECE.finditer(text):
        number, act = int(piece["number"] or 1), piece["act"]
        if plain := piece["plain"]:
            lines[row] = lines[row].ljust(column)[:column] + plain + lines[row][column + len(plain) :]
            column += len(plain)
        elif piece["control"] == "\r":
            column = 0
        elif piece["control"] == "\n" and row + 1 < rows:
            row += 1
        elif piece["control"] == "\n":
            lines = [*lines[1:], ""]
        elif act == "K":
            lines[row] = lines[row][:column]
        elif act in ("A", "C"):
            row, column = (max(0, row - number), column) if act == "A" else (row, column + number)
        elif act != "m":
            raise AssertionError(f"{piece[0]!r} is no command that this terminal knows")
        yield [line.rstrip() for line in lines]
