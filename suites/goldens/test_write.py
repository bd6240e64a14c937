"""Writing a golden: all of it or none of it, no number that is no reference, and a reason where it cannot be."""

from __future__ import annotations

import math
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from samples import equal, everything, golden, record

from precheck.goldens.file import Golden, GoldenError, encode, read, write
from precheck.goldens.place import golden_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "er" / "a.safetensors"


def test_it_makes_the_folders_and_says_whether_it_wrote(path: Path) -> None:
    assert write(path, everything()) is True
    assert equal(read(path), everything())
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_equal_bytes_are_left_alone(path: Path) -> None:
    write(path, everything())
    before = path.stat()
    assert write(path, everything()) is False
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert write(path, golden()) is True
    assert equal(read(path), golden())


def test_infinite_outputs_as_masks_have_them_are_written_with_their_counts(path: Path) -> None:
    written = record("mask", neginf=12, posinf=1), record("input", kind="input", neginf=2), record("mask()", kind="returned", posinf=3)
    write(path, golden(*written))
    mask, given, returned = (each.record for each in read(path).records)
    assert (mask.nan, mask.posinf, mask.neginf) == (0, 1, 12)
    assert (given.neginf, returned.posinf) == (2, 3)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"nan": 3}, "the output of bad in step 2 holds 3 NaN in 32 elements"),
        ({"nan": 3, "neginf": 4}, "the output of bad in step 2 holds 3 NaN"),
        ({"kind": "returned", "nan": 2}, "what bad returns in step 2 holds 2 NaN in 32 elements"),
        ({"kind": "input", "nan": 1}, "the input of bad in step 2 holds 1 NaN in 32 elements"),
        ({"kind": "gradient", "posinf": 1}, "the gradient of bad in step 2 holds 1 +Inf in 32 elements"),
        ({"kind": "parameter-gradient", "nan": 1, "posinf": 2, "neginf": 3}, "holds 1 NaN and 2 +Inf and 3 -Inf in 32 elements"),
        ({"kind": "loss", "shape": (), "neginf": 1}, "the loss of bad in step 2 holds 1 -Inf in 1 elements"),
        ({"kind": "update", "posinf": 1}, "the update of bad in step 2 holds 1 +Inf"),
        ({"norm": math.inf}, "the output of bad in step 2 is too large for its norm to be finite (inf)"),
        ({"sketch": numpy.full(127, math.inf)}, "the output of bad in step 2 is too large"),
        ({"sketch": numpy.full(127, math.nan)}, "the output of bad in step 2 is too large"),
    ],
)
def test_what_is_no_reference_is_refused_by_name_and_the_old_file_kept(path: Path, facts: dict[str, Any], said: str) -> None:
    write(path, golden())
    before = path.read_bytes()
    with pytest.raises(GoldenError) as caught:
        write(path, golden(record("good"), record("bad", step=2, **facts), record("worse", nan=9)))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "worse" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("a file", encoding="utf8")
    with pytest.raises(GoldenError, match=r"a\.safetensors cannot be written: "):
        write(tmp_path / "deep" / "a.safetensors", golden())


def test_a_folder_in_its_place_is_an_error_of_ours(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(GoldenError, match=r"a\.safetensors cannot be written: .*directory"):
        write(path, golden())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="an administrator writes to read-only folders")
def test_a_read_only_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(GoldenError, match="cannot be written: Permission denied"):
        write(tmp_path / "a.safetensors", golden())


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), PermissionError(1, "Not permitted"), KeyboardInterrupt()], ids=repr)
def test_a_failure_at_any_point_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, raised: BaseException
) -> None:
    write(path, golden())
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        assert len(list(path.parent.iterdir())) == 2, "the new file is not yet in the old one's place"
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[call], fail)
        with pytest.raises((GoldenError, KeyboardInterrupt)) as caught:
            write(path, everything())
    if isinstance(raised, OSError):
        assert str(caught.value) == f"golden {path} cannot be written: {raised.strerror}"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_it_is_whole_and_on_disk_before_it_takes_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    synced, replaced = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        synced(descriptor)

    def replace(temporary: Path, target: Path) -> Path:
        events.append("replace")
        assert temporary.read_bytes() == encode(everything())
        assert temporary.parent == target.parent, "a rename across file systems is no rename"
        assert golden_files(path.parent) == []
        return replaced(temporary, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write(path, everything())
    assert events[:2] == ["file", "replace"]
    assert events[2:] in ([], ["folder"])


def test_a_killed_writer_leaves_the_old_golden_and_no_new_one(path: Path) -> None:
    write(path, golden())
    code = (
        "import os, pathlib, sys\n"
        "from precheck.goldens.file import read, write\n"
        "golden = read(path := pathlib.Path(sys.argv[1]))\n"
        "golden.provenance['seed'] = 1\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "write(path, golden)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert equal(read(path), golden())
    assert golden_files(path.parent) == [path]
    write(path, everything())
    assert equal(read(path), everything())


def test_writers_at_the_same_time_never_show_a_reader_half_a_golden(path: Path) -> None:
    contents = [golden(record(str(writer)), seed=writer) for writer in range(3)]
    write(path, contents[0])
    failures: list[BaseException] = []

    def writing(content: Golden) -> None:
        try:
            for _ in range(15):
                write(path, content)
        except BaseException as error:  # carried out of the thread, to where it fails the test
            failures.append(error)

    threads = [threading.Thread(target=writing, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads) or not seen:
        found = read(path)
        assert equal(found, contents[int(found.provenance["seed"])])
        seen += 1
    for thread in threads:
        thread.join()
    assert not failures
    assert list(path.parent.iterdir()) == [path]
