"""A page carried out in this process, which spares each command an import of torch: its files, its code, its commands.

As walkthrough.py has it, and beside that:

- `python` without a name is run, all blocks of a page in one namespace; one that defines tests becomes a file of tests, and they pass;
- `sh` has commands, which end without an error of usage; what installs something is left out.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from walkthrough import Block, Spoken, blocks, change, commands

from precheck.__main__ import main

INSTALLS = ("pip install", "python3 -m venv", "pre-commit install")
_ENDED = {0, 1}
"""pytest passed or failed; 2 to 5 are interrupted, broken, asked in a wrong way, or without tests."""


def carried_out(path: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, before: str = "", trials: int = 0) -> Page:
    """The page carried out outside of CI: each command says what the page shows, and ends so. `trials`: how many cures a failure tries."""
    for variable in ("CI", "BUILD_NUMBER", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-o remedy_trials={trials}")  # a number, since by default as many are tried as time allows
    pytester.syspathinsert()
    page = Page(path, pytester, before).carry_out()
    differences = [difference for one in page.spoken if (difference := one.difference())]
    assert not differences, "\n\n".join(differences)
    assert [one.status for one in page.spoken] == [int(_fails(one)) for one in page.spoken]
    return page


def _fails(one: Spoken) -> bool:
    """Whether the page shows that a command ends with status 1: a test of pytest failed, or a watched script has errors."""
    watched = "precheck watch" in one.command and not one.expected.startswith("no errors")
    return watched or bool(re.search(r"\b[1-9]\d* failed", one.expected))


class Page:
    """One page at work in the folder of `pytester`. `before`: code that its blocks take for granted."""

    def __init__(self, path: Path, pytester: pytest.Pytester, before: str = "") -> None:
        self.path, self.pytester, self.before = path, pytester, before
        self.names: dict[str, Any] = {"__name__": "page"}
        self.spoken: list[Spoken] = []
        exec(before, self.names)

    def carry_out(self) -> Page:
        for block in blocks(self.path.read_text(encoding="utf8")):
            self._carried(block)
        return self

    def _carried(self, block: Block) -> None:
        if block.kind == "diff":
            change(self.pytester.path / block.name, block.text)
        elif block.name:
            file = self.pytester.path / block.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf8")
        elif block.kind == "console":
            self.spoken += [self._said(command, expected, block.line) for command, expected in commands(block.text)]
        elif block.kind == "python" and re.search(r"^def test_", block.text, re.MULTILINE):
            self._tested(block)
        elif block.kind == "python":
            exec(compile("\n" * block.line + block.text, str(self.path), "exec"), self.names)
        elif block.kind == "sh":
            for line in filter(None, block.text.splitlines()):
                self._typed(line, block.line)

    def _said(self, command: str, expected: str, line: int) -> Spoken:
        program, *words = shlex.split(command)
        if program == "python":
            done = subprocess.run([sys.executable, *words], cwd=self.pytester.path, capture_output=True, text=True, check=False)
            return Spoken(command, line, expected, done.stdout + done.stderr, done.returncode)
        assert program == "pytest", f"line {line}: {command}"
        result = self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
        return Spoken(command, line, expected, result.stdout.str(), int(result.ret))

    def _tested(self, block: Block) -> None:
        file = self.pytester.path / f"test_line_{block.line}.py"
        file.write_text(f"{self.before}\n{block.text}", encoding="utf8")
        result = self.pytester.runpytest_inprocess("-p", "no:cacheprovider", file.name)
        assert result.ret == 0, f"line {block.line}: {result.stdout.str()}"

    def _typed(self, line: str, at: int) -> None:
        line = re.sub(r"\s+#.*", "", line)
        if line.startswith(INSTALLS):
            return
        words = shlex.split(line)
        if words[0] == "pytest":
            ended = int(self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *words[1:]).ret)
        elif words[:3] == ["python", "-m", "precheck"]:
            ended = main(words[3:])
        else:
            ended = subprocess.run(["bash", "-euc", line], cwd=self.pytester.path, check=False).returncode
            assert ended == 0, f"line {at}: {line}"
        assert ended in _ENDED, f"line {at}: {line} ended with {ended}"
