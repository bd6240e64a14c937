"""`python -m precheck report`: every form again from JSON, what changed between two, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import HOSTILE, check, finding, hostile, of, op, row, without_verdict

from precheck.__main__ import main
from precheck.report.changes import plain, term
from precheck.report.forms import FORMS, Form
from precheck.report.session import Session, text


def kept(path: Path, session: Session) -> str:
    path.write_text(text(session), encoding="utf8")
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    return kept(tmp_path / "bad.json", of(check(finding(), rows=(row(r=9.0),), ops=(op(),)), without_verdict()))


@pytest.fixture
def good(tmp_path: Path) -> str:
    return kept(tmp_path / "good.json", of(check(rows=(row(),))))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_is_made_from_json(form: Form, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if form.missing:
        pytest.skip(form.missing)
    expected = form.text(json.loads(Path(bad).read_text(encoding="utf8")))
    assert main(["report", bad, f"--format={form.name}"]) == 0
    assert capsys.readouterr() == (expected.removesuffix("\n") + "\n", "")
    out = tmp_path / "sub" / "out"
    assert main(["report", bad, "--format", form.name, "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    assert out.read_text(encoding="utf8") == expected


def test_by_default_it_is_text_as_pytest_prints_it(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", bad]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["2 checks: 1 with errors, 1 without a verdict", "tests/test_gpt.py::test_new: no golden for this test"]
    assert "  overflow: output of wide: 3 of 8 elements are Inf" in lines
    assert any(line.split() == ["9.00", "3.00", "9%", "16-mixed", "output", "of", "wide", "tests/test_gpt.py::test_it"] for line in lines)
    assert any("aten.mul.Tensor  models/gpt.py:88" in line for line in lines)


def test_of_two_what_changed_is_told_and_worse_ends_with_1(bad: str, good: str, capsys: pytest.CaptureFixture[str]) -> None:
    sessions = [json.loads(Path(path).read_text(encoding="utf8")) for path in (good, bad)]
    assert main(["report", good, bad]) == 1
    assert capsys.readouterr().out == term(*sessions)
    assert main(["report", bad, good, "--format=json"]) == 0
    assert capsys.readouterr().out == plain(*reversed(sessions))
    assert main(["report", bad, bad]) == 0
    assert capsys.readouterr().out == term(sessions[1], sessions[1])


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.comparer], ids=lambda form: form.name)
def test_the_exit_status_is_the_same_in_every_form(form: Form, bad: str, good: str, tmp_path: Path) -> None:
    assert main(["report", good, bad, "--format", form.name, "-o", str(tmp_path / "out")]) == 1
    assert main(["report", bad, good, "--format", form.name, "-o", str(tmp_path / "out")]) == 0


def test_a_form_of_one_report_is_not_asked_for_two(bad: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(FORMS, "sarif", Form("sarif", "precheck.report.sarif:text"))
    assert main(["report", bad, bad, "--format=sarif"]) == 2
    assert capsys.readouterr().err == "--format=sarif shows one report, and there are two; what changed is told as term, json, markdown, html\n"


def test_a_form_whose_library_is_not_there_says_what_to_type(bad: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(FORMS, "sarif", Form("sarif", "nowhere:text", needs="no_such_module"))
    assert main(["report", bad, "--format=sarif"]) == 2
    assert capsys.readouterr().err == "sarif needs no_such_module; install it with: pip install no_such_module\n"


def test_trouble_is_one_line_on_stderr_and_ends_with_2(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent.json"
    for arguments in ([str(absent)], [bad, str(absent)], [str(absent), bad]):
        assert main(["report", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"{absent} cannot be read: ")
        assert err.count("\n") == 1
    assert main(["report", bad, "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path} cannot be written: ")
    assert not list(tmp_path.parent.glob(".*.tmp"))


@pytest.mark.parametrize("arguments", [["report"], ["report", "a", "b", "c"], ["report", "a", "--format=pdf"], ["reprot", "a"]])
def test_a_command_that_is_none_ends_with_2_and_says_what_there_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m precheck" in capsys.readouterr().err


def test_help_names_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "-h"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit status: 0 shown, 1 B has an error that A has not, or no verdict where A has one, 2 not readable or not writable." in said


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_act_on_nothing_in_the_terminal(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No control characters but line ends, and nothing that turns the direction of writing."""
    path = kept(tmp_path / "a.json", hostile(name))
    assert main(["report", path]) == 0
    assert not set(capsys.readouterr().out) & {*map(chr, range(10)), *map(chr, range(11, 32)), "\x7f", "\u202e", "\u2066", "\u200b", "\ud800"}


def test_the_command_loads_no_torch(bad: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = ['report', {bad!r}, '--format=markdown']\n"
        "try:\n    runpy.run_module('precheck', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules, 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
