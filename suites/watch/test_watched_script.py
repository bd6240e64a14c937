"""`python -m precheck watch` runs a script as Python would, and says what `watch` saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.optim.optimizer import _global_optimizer_post_hooks

from precheck.__main__ import main

SCRIPT = """
import sys

import helper
import torch


def train(rate):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(8):
        try:
            (model(helper.batch()).float() - 1).square().mean().backward()
            optimizer.step()
        except Exception:
            print("caught")
        optimizer.zero_grad()
        print("step", step)


if __name__ == "__main__":
    train(float(sys.argv[1]))
    {end}
"""
HELPER = """
import torch


def batch():
    return torch.randn(8, 16).bfloat16()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that trains in bfloat16, at a rate that is its argument, and imports a module beside it."""
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf8")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(end="pass"), encoding="utf8")
    return path


def test_a_script_is_run_with_its_arguments_and_judged(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, path = list(sys.argv), list(sys.path)
    assert main(["watch", str(script), "1e-4"]) == 1
    told = capsys.readouterr().out
    assert told.count("step ") >= 8
    assert "lost-update: step at " in told
    assert "train.py:15: 1.weight: 0% of the update of 8 steps arrived" in told
    assert "cure: keep float32 master weights" in told
    assert (sys.argv, sys.path) == (arguments, path)


def test_a_healthy_script_ends_with_0(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(script), "1e-2"]) == 0
    assert "no errors: " in capsys.readouterr().out


def test_steps_end_the_script_whatever_it_catches(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--steps", "6", str(script), "1e-4"]) == 1
    told = capsys.readouterr().out
    assert "step 4" in told
    assert "step 5" not in told
    assert "caught" not in told
    assert "of the update of 6 steps arrived" in told
    assert not _global_optimizer_post_hooks


def test_a_precision_is_applied_to_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "sums.py"
    script.write_text("import torch\nprint((torch.ones(4, 4) @ torch.ones(4, 4)).dtype)\n", encoding="utf8")
    assert main(["watch", "--precision", "bf16-mixed", str(script)]) == 0
    assert "torch.bfloat16" in capsys.readouterr().out


def test_a_module_is_run(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(script.parent)
    assert main(["watch", "--steps", "1", "-m", "train", "1e-2"]) == 0
    assert "compared with float32" in capsys.readouterr().out


def test_the_report_is_written(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["watch", "--out", str(out), str(script), "1e-4"]) == 1
    assert [finding["rule"] for finding in json.loads(out.read_text(encoding="utf8"))["findings"]] == ["lost-update"]
    capsys.readouterr()
    assert main(["report", str(out)]) == 0
    assert "lost-update" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_printed_nonetheless(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").mkdir()
    assert main(["watch", "--out", str(tmp_path / "taken"), str(script), "1e-4"]) == 2
    told = capsys.readouterr().out
    assert "lost-update: step at " in told
    assert f"{tmp_path / 'taken'} cannot be written: " in told


ENDS = [
    ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('no data')", 1), ("raise ValueError('no data')", 1), ("raise KeyboardInterrupt", 130),
]  # fmt: skip


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_the_script_s_own_end_counts(end: str, status: int, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.format(end=end), encoding="utf8")
    assert main(["watch", str(script), "1e-2"]) == status
    told = capsys.readouterr()
    assert ("no data" in told.err) == ("no data" in end)
    assert "compared with float32" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "nothing.py is no file; write the path of a Python file, or -m and a module's name"),
        (["-m", "nothing_here.train"], "there is no module nothing_here.train; write the name that python -m takes"),
        (["--steps", "0", "{script}"], "--steps=0: write a whole number from 1"),
        (["--precision", "bf61", "{script}"], "bf61"),
        (["--precision", "bf16-true", "{script}"], "cast it there (model.to(torch.bfloat16)) and watch() it as it is"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line(arguments: list[str], message: str, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *(each.format(script=script) for each in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("forked_python")
def test_from_a_shell(script: Path) -> None:
    command = [sys.executable, "-m", "precheck", "watch", "--steps", "5", "train.py", "1e-4"]
    ended = subprocess.run(command, cwd=script.parent, env={**os.environ, "CI": "true"}, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "lost-update: step at train.py:15: 1.weight" in ended.stdout
