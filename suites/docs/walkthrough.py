"""A page of docs that is carried out: its files written, its changes made, its commands run, and what they say held against the page.

A fenced block is told by the words behind its fence:

- `python gpt.py`: a file with this content;
- `diff gpt.py`: a change of one, as of `diff -u` without the numbers;
- `console`: lines that begin with `$ ` are commands, what follows is what they say;
- any other is not carried out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(?P<kind>\S*)[ \t]*(?P<name>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")
_SECONDS = re.compile(r"in \d+\.\d+s( \(\d+:\d+:\d+\))?")
LEFT_OUT = "…"
NEAR = 1.3
"""Measured numbers, those with a point, may be off by this factor, since kernels round in other places on another processor: r is a quotient of two
norms, and its floor comes from as few as two noise runs. Numbers without a point are counts and limits, and are the same everywhere."""


@dataclass(frozen=True)
class Block:
    kind: str
    name: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    return [Block(found["kind"], found["name"], found["text"], page.count("\n", 0, found.start()) + 1) for found in _BLOCK.finditer(page)]


@dataclass(frozen=True)
class Spoken:
    """What a command said, and what the page says that it says."""

    command: str
    line: int
    expected: str
    said: str
    status: int

    def difference(self) -> str:
        """Empty where the page is right; else the first line of it that is not there, and all that was said."""
        missed = unsaid(self.expected, self.said)
        return "" if missed is None else f"line {self.line}: $ {self.command}\nhas not said\n{missed}\nbut\n{self.said}"


def carry_out(block: Block, folder: Path) -> list[Spoken]:
    if block.kind == "diff":
        change(folder / block.name, block.text)
    elif block.name:
        path = folder / block.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf8")
    elif block.kind == "console":
        return [_run(command, expected, block.line, folder) for command, expected in commands(block.text)]
    return []


def commands(text: str) -> list[tuple[str, str]]:
    """Each with the lines that follow it."""
    pieces = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not pieces[0].strip(), "a console block begins with a command"
    return [(command, expected) for command, _, expected in (piece.partition("\n") for piece in pieces[1:])]


def change(path: Path, text: str) -> None:
    """Lines that begin with a blank or - are there, once; those with a blank or + take their place."""
    lines = text.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
    before = path.read_text(encoding="utf8")
    assert before.count(old) == 1, f"{path.name} has {before.count(old)} times\n{old}"
    path.write_text(before.replace(old, new), encoding="utf8")


def _run(command: str, expected: str, line: int, folder: Path) -> Spoken:
    words = shlex.split(command)
    program = {"pytest": [sys.executable, "-m", "pytest"], "python": [sys.executable]}[words[0]]
    patient = surroundings(COLUMNS="80", PYTEST_ADDOPTS=f"-o remedy_trials=12 {LEAN}")  # as many as there are, however busy the machine is
    ended = subprocess.run([*program, *words[1:]], cwd=folder, env=patient, capture_output=True, text=True, check=False)
    return Spoken(command, line, expected, ended.stdout + ended.stderr, ended.returncode)


LEAN = "-p no:hypothesispytest"
"""For `PYTEST_ADDOPTS`: hypothesis' plugin imports all of it at the end of each run, which takes as long as torch does, and no project here draws."""


def surroundings(**more: str) -> dict[str, str]:
    """The environment, without what changes how a pytest in it behaves or prints."""
    ours = ("CI", "BUILD_NUMBER", "COLUMNS", "FORCE_COLOR", "PY_COLORS", "GITHUB_STEP_SUMMARY")
    return {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("PYTEST_")} | more


_SLOWEST = re.compile(r"^\d+ checks? took .*; the slowest:\n(?: +.*\n)*", re.MULTILINE)
"""The table of slow checks, which only a slow machine prints."""


def unsaid(expected: str, said: str) -> str | None:
    """The first line of a page that a command has not said; None if it has said all.

    `…` as a line of its own stands for any lines, within a line for any text. Rules of = and _ may be of any length, blanks of any number, and
    seconds anything.
    """
    heard = [_plain(line) for line in (said if "the slowest:" in expected else _SLOWEST.sub("", said)).splitlines() if line.strip()]
    at, skipping = 0, False
    for line in (line for line in expected.splitlines() if line.strip()):
        if line.strip() == LEFT_OUT:
            skipping = True
            continue
        last = len(heard) if skipping else min(at + 1, len(heard))
        found = next((place for place in range(at, last) if alike(_plain(line), heard[place])), None)
        if found is None:
            return line
        at, skipping = found + 1, False
    return None if skipping or at == len(heard) else f"(the end; there is more: {heard[at]})"


def _plain(line: str) -> str:
    ruled = re.sub(r"={3,}|_{3,}", lambda rule: rule[0][:3], _SECONDS.sub("in a while", line))
    return re.sub(r"[ \t]+", " ", ruled).strip()


def alike(shown: str, heard: str) -> bool:
    """The same words, and numbers as near as `NEAR` asks."""
    words = [re.escape(part) for part in _NUMBER.sub("\0", shown).replace(LEFT_OUT, "\1").split("\0")]
    pattern = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)".join(words).replace("\1", ".*?")
    match = re.fullmatch(pattern, heard)
    return match is not None and all(near(one, other) for one, other in zip(_NUMBER.findall(shown), match.groups(), strict=True))


def near(shown: str, heard: str) -> bool:
    if shown.isdecimal():
        return shown == heard
    one, other = float(shown), float(heard)
    return one == other or max(one, other) <= NEAR * min(one, other)
