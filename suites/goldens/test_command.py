"""`python -m precheck golden`: what it prints, how it ends, and that git can use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from samples import everything, golden, record

from precheck import __version__
from precheck.__main__ import main
from precheck.goldens.file import write
from precheck.goldens.show import show


def test_show_prints_the_golden_without_the_folder_it_lies_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.safetensors"
    write(path, everything())
    assert main(["golden", "show", str(path)]) == 0
    assert capsys.readouterr() == (show(everything(), "a.safetensors"), "")


def test_diff_of_the_same_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write(a, everything())
    write(b, everything())
    assert main(["golden", "diff", str(a), str(b)]) == 0
    assert capsys.readouterr() == (f"no tensor of {b} moved from {a}\n", "")


def test_diff_tells_of_another_version_and_still_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write(a, golden())
    write(b, golden(torch="2.14.0"))
    assert main(["golden", "diff", str(a), str(b)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["recorded otherwise:", "torch: 2.13.0 -> 2.14.0"]


def test_diff_prints_what_moved_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write(a, golden(record("head")))
    write(b, golden(record("head", seed=1)))
    assert main(["golden", "diff", str(a), str(b)]) == 1
    assert capsys.readouterr().out.startswith("output of head: moved by ")


@pytest.mark.parametrize("act", [["show", "{}"], ["diff", "{}", "{}"]])
def test_trouble_is_one_line_on_stderr_and_ends_with_2(act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent.safetensors"
    assert main(["golden", *(word.format(absent) for word in act)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"no golden at {absent}; record it with pytest --golden-refresh=missing\n"


@pytest.mark.parametrize("arguments", [[], ["golden"], ["golden", "shw", "a"], ["golden", "diff", "a"]])
def test_a_command_that_is_none_ends_with_2_and_says_what_there_is(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m precheck" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["-h"], "golden"), (["golden", "-h"], "1 different, 2 not readable"), (["golden", "show", "-h"], "git"), (["golden", "diff", "-h"], "worst")],
)
def test_help_helps(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert said in capsys.readouterr().out


def test_the_command_loads_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, golden(record()))
    code = (
        "import runpy, sys\n"
        f"sys.argv[1:] = ['golden', 'diff', {str(path)!r}, {str(path)!r}]\n"
        "try:\n    runpy.run_module('precheck', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules, 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_name_that_the_terminal_cannot_write_is_spelt_out(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, golden(record("маска")))
    command = [sys.executable, "-X", "utf8=0", "-m", "precheck", "golden", "show", str(path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True, text=True)
    assert "\\u043c\\u0430" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="has no pipes that break so")
def test_a_reader_that_leaves_early_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, golden(*(record(f"layer.{number}") for number in range(2000))))  # more than a pipe holds
    shown = subprocess.Popen([sys.executable, "-m", "precheck", "golden", "show", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout
    assert shown.stderr
    with shown.stdout, shown.stderr:
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == b""
    assert shown.wait() == 0


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git here")
def test_git_shows_the_tensor_that_moved(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's would lead to another repository

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=tmp_path, env=plain, capture_output=True, check=True, text=True).stdout

    git("init", "-q")
    git("config", "diff.precheck.textconv", f'"{Path(sys.executable).as_posix()}" -m precheck golden show')
    (tmp_path / ".gitattributes").write_text("*.safetensors diff=precheck\n", encoding="utf8")
    write(tmp_path / "a.safetensors", golden(record("a"), record("b"), record("c")))
    git("add", ".")
    write(tmp_path / "a.safetensors", golden(record("a"), record("b", seed=1), record("c")))
    changed = [line for line in git("diff").splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line.split()[:2] for line in changed] == [["-output", "b"], ["+output", "b"]]


WITHOUT = """
import runpy, sys
for name in ("torch", "numpy", "safetensors", "jinja2", "hypothesis", "pytest"):
    sys.modules[name] = None
sys.argv[1:] = {arguments!r}
runpy.run_module("precheck", run_name="__main__")
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["golden", "show", "--help"], ["report", "--help"], ["rules"]])
def test_help_needs_no_other_package(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(arguments=arguments)], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_golden_without_what_reads_it_says_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, golden(record()))
    code = WITHOUT.format(arguments=["golden", "show", str(path)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert done.stderr == "goldens are read with numpy, which is not installed here; install it with: pip install numpy\n"


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"precheck {__version__}\n"
