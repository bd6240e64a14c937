"""A forked Python is as one that was started: its words, paths, files, environment and status; and what it cannot be is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("processes are forked on Linux", allow_module_level=True)
STARTED = sys.executable
SAYS = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "torch": "torch" in sys.modules, "name": __name__, "folder": os.getcwd(), "read": sys.stdin.read(),
    "variable": os.environ.get("VARIABLE"), "terminal": sys.stdout.isatty(), "file": globals().get("__file__"),
}))
print("an error", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path, forked_python: None) -> Path:
    (tmp_path / "says.py").write_text(SAYS, encoding="utf8")
    return tmp_path


def said(program: str, folder: Path, *words: str, **variables: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": "/elsewhere"} | variables
    done = subprocess.run([program, *words], cwd=folder, env=environment, input="given", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "an error\n")
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("words", [("-c", SAYS), ("-m", "says"), ("-msays",), ("-u", "-c", SAYS), ("says.py",)], ids=lambda words: words[0])
def test_it_is_what_python_is_and_has_imported_torch(folder: Path, words: tuple[str, ...]) -> None:
    forked = said(sys.executable, folder, *words, "one", "--two", VARIABLE="value")
    started = said(STARTED, folder, *words, "one", "--two", VARIABLE="value")
    assert forked["variable"] == "value"
    assert forked.pop("torch")
    assert not started.pop("torch")
    assert forked == started


def test_other_threads_and_other_options_need_a_start(folder: Path) -> None:
    assert not said(sys.executable, folder, "says.py", OMP_NUM_THREADS="3")["torch"]
    assert not said(sys.executable, folder, "-P", "says.py")["torch"]


def test_an_exception_ends_with_status_1(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "print(1); 1 / 0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "1\n")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_two_run_at_once_and_draw_different_random_numbers(folder: Path) -> None:
    code = "import random, sys; print(random.random(), flush=True); sys.stdin.read()"
    first, second = (subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2))
    assert first.stdout is not None
    assert second.stdout is not None
    assert first.stdout.readline() != second.stdout.readline()
    for each in (second, first):
        each.communicate()
        assert each.returncode == 0


def test_workers_of_xdist_are_forked_too(pytester: pytest.Pytester, forked_python: None) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile("import sys\n\ndef test_it(worker_id):\n    assert worker_id == 'gw0'\n    assert 'torch' in sys.modules\n")
    options = ("-n1", "-p", "no:precheck", "-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)
