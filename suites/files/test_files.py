"""Files that precheck writes: whole or not at all, and never into a file that somebody's link leads to."""

from __future__ import annotations

import ast
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import precheck
from precheck.files import create, replace
from precheck.report.forms import save

PACKAGE = Path(precheck.__file__).parent
links = pytest.mark.skipif(os.name == "nt", reason="links need rights of their own there")


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace(path, b"old")
    replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_longest_name_that_a_folder_takes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("я" * 127)
    replace(path, b"new")
    assert path.read_bytes() == b"new"


def by_pid(path: Path) -> list[Path]:
    """Temporary names that can be foreseen, as they once were."""
    return [path.with_name(f".{path.name}.{os.getpid()}.tmp"), path.with_name(f".{path.name}.tmp"), path.with_name(f"{path.name}.tmp")]


@links
@pytest.mark.parametrize("write", [lambda path: replace(path, b"report"), lambda path: save("report", path)], ids=["replace", "save"])
def test_links_that_somebody_laid_lead_nowhere(write: Callable[[Path], None], tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out" / "drift.json"
    victim.write_text("precious", encoding="utf8")
    path.parent.mkdir()
    for link in (*by_pid(path), path):
        link.symlink_to(victim)
    write(path)
    assert victim.read_text(encoding="utf8") == "precious"
    assert path.read_text(encoding="utf8") == "report"
    assert not path.is_symlink()


@links
@pytest.mark.parametrize("there", ["link", "file", "nowhere"])
def test_a_temporary_name_that_is_taken_is_not_written_to(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "a.json"
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    taken = tmp_path / ".precheck.guessed.tmp"
    if there == "file":
        taken.write_text("theirs", encoding="utf8")
    else:
        taken.symlink_to(victim)
    if there == "link":
        victim.write_text("precious", encoding="utf8")
    with pytest.raises(FileExistsError):
        replace(path, b"new")
    assert not path.exists()
    assert victim.exists() == (there == "link")
    assert there != "link" or victim.read_text(encoding="utf8") == "precious"


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("write", [replace, create])
def test_a_failure_leaves_nothing(
    write: Callable[[Path, bytes], None], raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise raised

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(raised)):
        write(tmp_path / "a.py", b"new")
    assert list(tmp_path.iterdir()) == []


@links
@pytest.mark.parametrize("what", ["file", "link", "link to nowhere"])
def test_a_new_file_is_never_written_over_another(what: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "a.py"
    if what != "link to nowhere":
        victim.write_text("precious", encoding="utf8")
    if what == "file":
        path.write_text("precious", encoding="utf8")
    else:
        path.symlink_to(victim)
    with pytest.raises(FileExistsError):
        create(path, b"new")
    assert victim.exists() == (what != "link to nowhere")
    assert what == "link to nowhere" or (path.read_text(encoding="utf8"), victim.read_text(encoding="utf8")) == ("precious", "precious")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes with names")
def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    replace(path, b"new")
    reader.join()
    assert read == [b"new"]
    assert path.is_fifo()


WRITES = {"write_text", "write_bytes", "open", "mkstemp", "NamedTemporaryFile"}
OTHERWISE = {
    ("files", "write_bytes"),  # pipes and devices
    ("files", "open"),
    ("forms", "open"),  # GitHub's summary, which is added to
    ("excerpts", "open"),  # for reading
    ("__main__", "open"),  # the null device, in the place of a pipe whose reader has left
}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_everything_is_written_there(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))) if isinstance(node, ast.Call)]
    names: set[Any] = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    strange = {name for name in names & WRITES if (path.stem, name) not in OTHERWISE}
    assert not strange, f"{path.name} calls {', '.join(strange)}; files are written by precheck.files"
