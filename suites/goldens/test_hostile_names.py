"""Names out of a golden that somebody forged are shown without what acts on a terminal, each in its own line."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from samples import golden, record

from precheck.__main__ import main
from precheck.goldens.file import Golden, GoldenRecord, decode, encode
from precheck.goldens.lifecycle import refresh
from precheck.goldens.show import describe, difference, show
from precheck.measurement import job_of
from precheck.rules.golden_stale import rule as staleness
from precheck.words import one_line

HOSTILE = {
    "escape": "\x1b[2J",
    "title": "\x1b]0;pwn\x07",
    "eight-bit": "\x9b31m",
    "bell": "\x07",
    "backspace": "ok\b\bno",
    "bidi": "a\u202egpj.exe",
    "isolate": "\u2066a\u2069",
    "return": "good\rbad",
    "newline": "a\nrm -rf",
    "separator": "a\u2028b\u2029c\x85d",
    "unseen": "\u200b\ufeff\u00ad",
    "half": "\ud800",
}
ACTS = set("\x1b\x07\x9b\b\r\x85\u00ad\u200b\u2028\u2029\u202e\u2066\u2069\ufeff\ud800")


def plain(text: str) -> bool:
    return not ACTS & set(text) and text.encode("utf8").decode("utf8") == text


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def bad(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def forged(bad: str, **facts: object) -> Golden:
    return golden(record(f"head{bad}", dtype=f"float32{bad}", **facts), device=f"cpu{bad}", **{f"key{bad}": bad})


def test_a_name_is_one_line(bad: str) -> None:
    assert plain(one_line(bad))
    assert len(one_line(bad).splitlines()) == 1


def test_show_prints_none_of_it(bad: str) -> None:
    shown, usual = (show(decode(encode(forged(each)), f"a{each}"), f"a{each}") for each in (bad, "x"))
    assert plain(shown)
    assert len(shown.splitlines()) == len(usual.splitlines())


def test_a_difference_prints_none_of_it(bad: str) -> None:
    told = describe(difference(forged(bad), forged(bad, seed=1)))
    told += "\n" + describe(difference(golden(optimizer=bad), golden(optimizer=f"{bad}{bad}")))
    told += "\n" + describe(difference(golden(record("a")), golden(record("a", dtype=bad))))
    assert plain(told)
    assert len(told.splitlines()) == 3


def test_the_command_prints_none_of_it(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(encode(forged(bad)))
    assert main(["golden", "show", str(path)]) == 0
    assert plain(capsys.readouterr().out)


def test_why_a_golden_is_refused_is_one_line(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(encode(forged(bad, amax=-1.0)))
    assert main(["golden", "show", str(path)]) == 2
    error = capsys.readouterr().err
    assert plain(error)
    assert len(error.splitlines()) == 1


def test_what_is_said_of_a_stale_golden_keeps_to_its_line(bad: str) -> None:
    here = record("input", kind="input")
    (finding,) = staleness.inputs({f"input{bad}": record(f"input{bad}", kind="input")}, {"input": here})
    assert len(finding.message.splitlines()) == 1
    (finding,) = staleness.settings(
        {"loss": True, "optimizer": bad, "steps": 1, "seed": 0}, {"loss": True, "optimizer": "SGD", "steps": 1, "seed": 0}
    )
    assert len(finding.message.splitlines()) == 1
    assert plain(finding.message)


@pytest.mark.usefixtures("forked_python")
def test_a_check_against_such_a_golden_says_none_of_it(tmp_path: Path) -> None:
    bad = "".join(HOSTILE.values())
    (tmp_path / "test_it.py").write_text(
        "import torch\ndef test_it(check_precision):\n    torch.manual_seed(0)\n    check_precision(torch.nn.Linear(4, 4), torch.ones(2, 4))\n",
        encoding="utf8",
    )
    path = tmp_path / "golden" / "test_it" / "test_it.safetensors"
    torch.manual_seed(0)
    assert refresh(path, job_of(torch.nn.Linear(4, 4), torch.ones(2, 4))).status == "written"
    held = decode(path.read_bytes(), "x")
    records = [GoldenRecord(dataclasses.replace(each.record, name=bad + each.record.name), each.floors) for each in held.records]
    path.write_bytes(encode(Golden(records, {**held.provenance, "device": bad, "weights": "other"})))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", "--precision=bf16-mixed"]
    folders = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
    said = subprocess.run(command, cwd=tmp_path, env=folders, capture_output=True, check=False, encoding="utf8").stdout
    assert "golden-stale" in said
    assert plain(said)
    assert "\nrm" not in said
