"""Which versions uv would install of this project. All is asked when the first test of this folder begins, and read where it is needed: uv waits for
the package index for ten seconds or more, and has next to nothing to compute."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from walkthrough import blocks

ROOT = Path(__file__).parents[2]
INDEX = "https://pypi.org/simple/"
SLOW = "PRECHECK_SLOW" in os.environ
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf8"))
ASKED = PYTHONS if SLOW else [PYTHONS[0], PYTHONS[-1]]
"""A package drops the oldest Python first, and comes to the newest last."""
OLDEST = PYTHONS if SLOW else PYTHONS[:1]


def commands(page: str) -> list[str]:
    """What `pip install` is given in the shell lines of a page of this project's own."""
    shown = blocks((ROOT / page).read_text(encoding="utf8"))
    lines = [line for block in shown if block.kind == "" for line in block.text.splitlines()]
    return [part.strip().removeprefix("pip install ") for line in lines for part in line.split("&&") if part.strip().startswith("pip install ")]


README = [each for each in commands("README.md") if "-e" in each]
EXTRAS = sorted({f"--extra={name}" for command in README for name in command.partition("[")[2].partition("]")[0].split(",")})
Question = tuple[str, str]
"""Whose project, "readme" or "own", and the Python."""


class Answers:
    """What uv answers to the questions."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self.asked = {each: _asked(*each) for each in questions} if importlib.util.find_spec("uv") else {}
        self.said: dict[Question, tuple[str, str]] = {}

    def versions(self, whose: str, python: str) -> dict[str, str]:
        """Waits for the answer. All that either of the README's commands asks for, or a user's own project, without our constraints."""
        process = self.asked[whose, python]
        if (whose, python) not in self.said:
            self.said[whose, python] = process.communicate()
        out, errors = self.said[whose, python]
        assert process.returncode == 0, errors
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", out, re.MULTILINE))

    def stop(self) -> None:
        """Ends what nobody waits for any more."""
        for process in self.asked.values():
            with process:  # closes its pipes, too
                process.kill()


def _asked(whose: str, python: str) -> subprocess.Popen[str]:
    import uv

    arguments: Sequence[str] = ["--constraint", "constraints.txt", *EXTRAS] if whose == "readme" else []
    target = ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    options = ["--no-config", "--quiet", "--only-binary", ":all:", "--index-url", INDEX, *target, *arguments]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    command = [uv.find_uv_bin(), "pip", "compile", "pyproject.toml", *options]
    return subprocess.Popen(command, cwd=ROOT, env=plain, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
