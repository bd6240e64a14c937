"""Where goldens lie: mirrored, inside the folder, fit for every file system, and no two tests in one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from precheck.goldens.place import golden_files, golden_path

GOLDEN = Path("golden")
RESERVED = {"con", "prn", "aux", "nul", *(f"com{n}" for n in range(10)), *(f"lpt{n}" for n in range(10))}
FORBIDDEN = set('<>:"/\\|?*') | {chr(code) for code in range(32)}  # Windows' list, which holds every other's

# Names near one another are likelier to collide than names at random.
parts = st.one_of(st.text(st.sampled_from("aAbB.~-_: é"), max_size=4), st.sampled_from(["..", "con", "NUL", "x.safetensors", "x" * 300]), st.text())
files = (
    st.tuples(st.lists(parts, min_size=1, max_size=3).map("/".join), st.sampled_from(["", ".py"]))
    .map("".join)
    .filter(lambda file: PurePosixPath(file).name)
)
names = st.one_of(
    st.text(st.sampled_from("aAtX.:[]/-~"), max_size=8), st.lists(parts, min_size=1, max_size=3).map("::".join), st.text(min_size=90, max_size=130)
)


@pytest.mark.parametrize(
    ("file", "name", "path"),
    [
        ("suites/models/test_llama.py", "test_train", "models/test_llama/test_train.safetensors"),
        ("suites/test_a.py", "test_x::inner", "test_a/test_x.inner.safetensors"),
        ("suites/v1.5/test_a.py", "test_x", "v1.5/test_a/test_x.safetensors"),
        ("elsewhere/test_a.py", "test_x", "~/elsewhere/test_a/test_x.safetensors"),
        ("suites.py", "test_x", "~/suites/test_x.safetensors"),
    ],
)
def test_the_folder_mirrors_that_of_the_tests(file: str, name: str, path: str) -> None:
    assert golden_path(GOLDEN, file, name, under="suites") == GOLDEN / path


def test_with_no_one_folder_of_tests_the_whole_path_is_kept() -> None:
    assert golden_path(GOLDEN, "suites/test_a.py", "test_x") == GOLDEN / "suites" / "test_a" / "test_x.safetensors"


def test_a_name_that_was_changed_can_still_be_read_in_its_file() -> None:
    name = golden_path(GOLDEN, "test_a.py", "TestX::test_y[a/b-3]").name
    assert name.startswith("TestX.test_y-a-b-3~")


def test_a_path_is_the_same_for_ever() -> None:
    """Golden files are found again by later versions: the hash of a name is part of the format."""
    assert golden_path(GOLDEN, "test_a.py", "test_y[0.5]").name == "test_y-0.5.safetensors"
    assert golden_path(GOLDEN, "test_a.py", "test_y[0.5 K]").name == "test_y-0.5-K~cbb75c91d0.safetensors"


@settings(deadline=None)
@given(st.tuples(files, names, files, names), st.sampled_from(["", "a", "suites"]))
@example(("a.py", "a::b", "a.py", "a.b"), "")
@example(("a.py", "a::B", "a.py", "a.B"), "")
@example(("a.py", "t[A]", "a.py", "t[a]"), "")
@example(("a.py", "t", "A.py", "t"), "")
@example(("a", "t", "a.py", "t"), "")
@example(("a.txt", "t", "a.txt.py", "t"), "")
@example(("a/b.py", "t", "~/a/b.py", "t"), "a")
@example(("b.py", "t", "a/~/b.py", "t"), "a")
@example(("x.py", "b", "x/b.safetensors.py", "t"), "")
@example(("a.py", "é", "a.py", "e\u0301"), "")
def test_different_tests_have_different_paths_whatever_the_case(tests: tuple[str, str, str, str], under: str) -> None:
    file, name, other_file, other_name = tests
    assume((PurePosixPath(file), name) != (PurePosixPath(other_file), other_name))
    a, b = golden_path(GOLDEN, file, name, under=under), golden_path(GOLDEN, other_file, other_name, under=under)
    assert str(a).casefold() != str(b).casefold()
    assert a not in b.parents, "a file cannot be a folder too"


@settings(deadline=None)
@given(files, names, st.sampled_from(["", "a", "suites"]))
@example("../../etc/test_a.py", "../../x", "")
@example("/etc/test_a.py", "/x", "")
@example("con.py", "com1", "")
@example("con.x/aux.py", "nul::a", "")
@example(".a/-b./c.py", ".t", "")
@example("\ud800.py", "\udfff", "")
def test_every_path_stays_inside_and_fits_every_file_system(file: str, name: str, under: str) -> None:
    path = golden_path(GOLDEN, file, name, under=under)
    assert path.parts[0] == "golden"
    assert path.suffix == ".safetensors"
    assert len(path.parts) >= 3, "a file's goldens have a folder of their own"
    for part in path.parts:
        assert part not in ("..", ".", "")
        assert len(part) <= 120
        assert part.isascii(), "characters above ASCII come back in another form from some file systems"
        assert not FORBIDDEN & set(part)
        assert part[-1] not in ". ", "Windows drops these"
        assert part[0] not in ".-", "hidden, or an option to a command"
        assert part.casefold().split(".")[0] not in RESERVED


def test_golden_files_are_those_below_the_folder_in_order_without_what_a_crash_left(tmp_path: Path) -> None:
    kept = [tmp_path / "a" / "b.safetensors", tmp_path / "a" / "c" / "a.safetensors", tmp_path / "b.safetensors"]
    for path in (*reversed(kept), tmp_path / "a" / ".b.safetensors.12.ab.tmp", tmp_path / "a" / ".b.safetensors", tmp_path / "notes.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "folder.safetensors").mkdir()
    assert golden_files(tmp_path) == kept
    assert golden_files(tmp_path / "absent") == []


def test_it_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, precheck.goldens.place; assert not {'torch', 'numpy'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)
