"""--golden-refresh, --golden-dir, --golden-unused, --golden-prune: what is written, kept, named, deleted, and what is refused."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from projects import HEALTHY, OVERFLOWS, Project

TWO = """
@pytest.mark.parametrize("width", [4, 6])
class TestSizes:
    def test_one(self, check_precision, width):
        torch.manual_seed(0)
        check_precision(torch.nn.Linear(8, width), data())
        check_precision(torch.nn.Linear(8, width, bias=False), data())
"""


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf8")


def test_a_missing_golden_fails_and_names_the_command_that_records_it(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY, record=False)
    result = pytester.runpytest_inprocess("--precision=bf16")
    assert result.ret == 1
    text = result.stdout.str()
    found = re.search(r"no golden for this test at golden/test_it/test_healthy\.safetensors; record it with: (pytest .*)", text)
    assert found, text
    assert "Traceback" not in text
    assert not golden.exists(), "a golden is never created implicitly"
    assert pytester.runpytest_inprocess(*shlex.split(found[1])[1:]).ret == 0
    assert pytester.runpytest_inprocess("--precision=bf16").ret == 0


def test_one_file_a_call_shared_by_all_precisions(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY, TWO)
    names = sorted(files(golden))
    assert len(names) == 5
    assert names[-1] == "test_it/test_healthy.safetensors"
    assert all("true" not in name and "mixed" not in name for name in names)
    result = pytester.runpytest_inprocess("--precision=bf16,16-mixed,bf16-true")
    result.assert_outcomes(passed=9)
    assert len(files(golden)) == 5


def test_missing_writes_what_is_not_there_and_nothing_else(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY)
    before = files(golden)
    pytester.makepyfile(test_more=Path(pytester.path / "test_it.py").read_text(encoding="utf8").replace("make()", "make(seed=3)"))
    result = pytester.runpytest_inprocess("--golden-refresh=missing")
    result.stdout.fnmatch_lines(["goldens: 1 kept, 1 written", "  written  golden/test_more/test_healthy.safetensors"])
    result.stdout.no_fnmatch_line("*checks under*")
    after = files(golden)
    assert {name: after[name] for name in before} == before
    assert len(after) == 2


@pytest.mark.parametrize("option", ["--golden-refresh", "--golden-refresh=changed"])
def test_changed_rewrites_what_moved_and_says_by_how_much(pytester: pytest.Pytester, project: Project, option: str) -> None:
    golden = project(HEALTHY, TWO)
    before = files(golden)
    rewrite(pytester.path / "test_it.py", "check_precision(make(), data()", "check_precision(make(seed=3), data()")
    stale = pytester.runpytest_inprocess("--precision=32-true,bf16")
    stale.stdout.fnmatch_lines(["golden-stale: the golden is out of date: *the weights are not those recorded*"])
    stale.stdout.no_fnmatch_line("*with this the check passes*")
    result = pytester.runpytest_inprocess(option)
    result.stdout.fnmatch_lines(
        ["goldens: 1 changed, 4 unchanged", "  changed  golden/test_it/test_healthy.safetensors", "      *moved by * of its norm*"]
    )
    assert result.ret == 0
    after = files(golden)
    assert [name for name in after if after[name] != before[name]] == ["test_it/test_healthy.safetensors"]
    assert pytester.runpytest_inprocess().ret == 0


def test_all_records_even_what_has_not_moved(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY)
    path = golden / "test_it" / "test_healthy.safetensors"
    whole = path.read_bytes()
    path.write_bytes(b"nonsense")
    result = pytester.runpytest_inprocess("--golden-refresh=all")
    result.stdout.fnmatch_lines(["goldens: 1 changed"])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--golden-refresh", "--precision=bf16"), "*--golden-refresh records in float32, and --precision=bf16 asks for another; leave*"),
        (("--golden-refresh=some",), "*--golden-refresh: 'some' is none of missing, changed, all; before a path, write --golden-refresh=changed"),
        (("--golden-unused=maybe",), "*argument --golden-unused: invalid choice: 'maybe'*warn*fail*ignore*"),
        (("--golden-prune", "-k", "healthy"), "*--golden-prune deletes what no test uses, so it needs every test; leave -k out"),
        (("--golden-prune", "-m", "gpu"), "*so it needs every test; leave -m out"),
        (("--golden-prune", "--deselect", "test_it.py::test_healthy"), "*so it needs every test; leave --deselect out"),
        (("--golden-prune", "--lf"), "*so it needs every test; leave --lf out"),
        (("--golden-prune", "--collect-only"), "*so it needs every test; leave --collect-only out"),
        (("--golden-prune", "test_it.py::test_healthy"), "*so it needs every test; leave the node id test_it.py::test_healthy out"),
        (("--golden-prune", "test_it.py"), "*so it needs every test; leave the path test_it.py out"),
        (("--drift-report=pdf",), "*--drift-report=pdf: accepted are term, json:PATH, markdown:PATH, md:PATH, sarif:PATH, html:PATH"),
        (("--drift-report=json",), "*--drift-report=json names no file (if the path is a variable, is it set?); accepted is json:PATH"),
        (("--drift-top=-1",), "*--drift-top=-1; accepted is a whole number from 0 (0: all rows)"),
        (("--precision-device=tpu",), "*--precision-device=tpu; accepted are auto, cpu, cuda, cuda:N"),
        (("--precision-device=cuda:7",), "*--precision-device=cuda:7: torch * sees * CUDA device* here; use auto or cpu"),
    ],
)
def test_options_that_contradict_or_mean_nothing(pytester: pytest.Pytester, project: Project, options: tuple[str, ...], message: str) -> None:
    golden = project(HEALTHY, record=False)
    result = pytester.runpytest_inprocess(*options)
    result.stderr.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not golden.exists()


def test_golden_dir_and_its_ini_twin(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    pytester.makeini("[pytest]\ngolden_dir = kept/here\n")
    assert pytester.runpytest_inprocess("--golden-refresh").ret == 0
    assert (pytester.path / "kept/here/test_it/test_healthy.safetensors").is_file()
    assert pytester.runpytest_inprocess("--golden-refresh", "--golden-dir=elsewhere").ret == 0
    assert (pytester.path / "elsewhere/test_it/test_healthy.safetensors").is_file()
    assert pytester.runpytest_inprocess("--golden-dir=elsewhere").ret == 0


def test_a_single_testpath_is_left_out_of_the_folder(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY, record=False)
    (pytester.path / "checks").mkdir()
    (pytester.path / "test_it.py").rename(pytester.path / "checks" / "test_it.py")
    pytester.makeini("[pytest]\ntestpaths = checks\n")
    assert pytester.runpytest_inprocess("--golden-refresh").ret == 0
    assert list(files(golden)) == ["test_it/test_healthy.safetensors"]


class TestUnused:
    """A golden whose test is gone."""

    @pytest.fixture
    def leftover(self, project: Project) -> Path:
        golden = project(HEALTHY, TWO)
        left = golden / "test_gone" / "test_old.safetensors"
        left.parent.mkdir()
        left.write_bytes((golden / "test_it" / "test_healthy.safetensors").read_bytes())
        return left

    def test_is_named_at_the_end_and_kept(self, pytester: pytest.Pytester, leftover: Path) -> None:
        result = pytester.runpytest_inprocess()
        result.stdout.fnmatch_lines(
            ["goldens that no test uses: 1 (delete them with pytest --golden-prune)", "  golden/test_gone/test_old.safetensors"]
        )
        assert result.ret == 0
        assert leftover.exists()

    def test_fails_the_session_where_that_is_asked_for(self, pytester: pytest.Pytester, leftover: Path) -> None:
        result = pytester.runpytest_inprocess("--golden-unused=fail")
        result.stdout.fnmatch_lines(["1 golden that no test uses (golden_unused = fail)*"])
        result.assert_outcomes(passed=3)
        assert result.ret == 1
        pytester.makeini("[pytest]\ngolden_unused = fail\n")
        assert pytester.runpytest_inprocess().ret == 1

    def test_is_not_mentioned_where_that_is_asked_for(self, pytester: pytest.Pytester, leftover: Path) -> None:
        result = pytester.runpytest_inprocess("--golden-unused=ignore")
        result.stdout.no_fnmatch_line("*no test uses*")

    @pytest.mark.parametrize("options", [("-k", "healthy"), ("test_it.py::test_healthy",), ("test_it.py",), ("--collect-only",)])
    def test_nothing_is_said_of_it_where_not_all_tests_ran(self, pytester: pytest.Pytester, leftover: Path, options: tuple[str, ...]) -> None:
        result = pytester.runpytest_inprocess("--golden-unused=fail", *options)
        result.stdout.no_fnmatch_line("*no test uses*")
        assert result.ret == 0

    def test_a_skipped_tests_golden_is_not_one(self, pytester: pytest.Pytester, leftover: Path) -> None:
        leftover.unlink()
        pytester.makeconftest("import pytest\ndef pytest_collection_modifyitems(items):\n    [i.add_marker(pytest.mark.skip()) for i in items]")
        result = pytester.runpytest_inprocess("--golden-unused=fail")
        result.assert_outcomes(skipped=3)
        assert result.ret == 0

    def test_prune_deletes_it_alone(self, pytester: pytest.Pytester, leftover: Path) -> None:
        result = pytester.runpytest_inprocess("--golden-prune")
        result.stdout.fnmatch_lines(["goldens deleted, since no test uses them: 1", "  golden/test_gone/test_old.safetensors"])
        assert result.ret == 0
        assert not leftover.exists()
        assert len(files(leftover.parent.parent)) == 5

    def test_prune_deletes_nothing_after_a_failure(self, pytester: pytest.Pytester, leftover: Path) -> None:
        pytester.makepyfile(test_bad="def test_bad(): assert 0")
        result = pytester.runpytest_inprocess("--golden-prune")
        result.stdout.fnmatch_lines(["--golden-prune deleted nothing: 1 test failed"])
        assert result.ret == 1
        assert leftover.exists()

    def test_prune_deletes_nothing_where_a_module_was_not_collected(self, pytester: pytest.Pytester, leftover: Path) -> None:
        pytester.makepyfile(test_optional="import pytest\npytest.importorskip('not_there')")
        result = pytester.runpytest_inprocess("--golden-prune")
        result.stdout.fnmatch_lines(["--golden-prune deleted nothing: test_optional.py was not collected"])
        assert result.ret == 1
        assert leftover.exists()


def test_a_second_call_that_is_gone_leaves_an_unused_golden(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(TWO)
    rewrite(pytester.path / "test_it.py", "        check_precision(torch.nn.Linear(8, width, bias=False), data())", "")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(["goldens that no test uses: 2 *"])
    assert len(files(golden)) == 4


@pytest.mark.parametrize("damage", [lambda whole: whole[:200], lambda whole: b"", lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])])
def test_a_damaged_golden_fails_with_one_message(pytester: pytest.Pytester, project: Project, damage: object) -> None:
    golden = project(HEALTHY) / "test_it" / "test_healthy.safetensors"
    golden.write_bytes(damage(golden.read_bytes()))  # type: ignore[operator]
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.stdout.fnmatch_lines(["golden *test_healthy.safetensors is damaged*record it again with pytest --golden-refresh=changed"])
    assert result.ret == 1
    assert "Traceback" not in result.stdout.str()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user whom the file system can refuse")
def test_a_read_only_folder_fails_with_one_message(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY, record=False)
    golden.mkdir()
    golden.chmod(0o500)
    result = pytester.runpytest_inprocess("--golden-refresh")
    golden.chmod(0o700)
    result.stdout.fnmatch_lines(["golden *cannot be written: Permission denied"])
    assert result.ret == 1


def test_a_nan_in_float32_is_refused(pytester: pytest.Pytester, project: Project) -> None:
    golden = project("def test_nan(check_precision):\n    check_precision(lambda x: x / 0 * 0, data())\n", record=False)
    result = pytester.runpytest_inprocess("--golden-refresh")
    result.stdout.fnmatch_lines(["golden *is refused: in float32 the output in step 1 holds 32 NaN in 32 elements; mend the model*"])
    assert not golden.exists()


def test_a_tests_own_failure_leaves_its_golden_alone(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(OVERFLOWS)
    before = files(golden)
    assert pytester.runpytest_inprocess("--precision=16-mixed").ret == 1
    assert files(golden) == before
