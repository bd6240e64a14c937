"""Which goldens may be called unused, by what was asked for: folders, files, ignored paths, skipped tests; and what pruning spares."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from projects import HEALTHY, Project

from precheck.goldens.place import golden_path

ONE = "def test_one(check_precision):\n    check_precision(1.0, {})\n"


@pytest.fixture
def tree(told: pytest.Pytester) -> pytest.Pytester:
    """Tests in a/test_x.py and b/test_y.py, a golden of each, and beside each golden one that no test uses."""
    told.makeini("[pytest]\n")
    for folder, name in (("a", "test_x"), ("b", "test_y")):
        (told.path / folder).mkdir()
        (told.path / folder / f"{name}.py").write_text(ONE, encoding="utf8")
        golden(told, f"{folder}/{name}/test_one")
        golden(told, f"{folder}/{name}/test_left")
    golden(told, "c/test_gone/test_left")
    return told


def golden(pytester: pytest.Pytester, name: str) -> Path:
    path = pytester.path / "golden" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def unused(result: pytest.RunResult) -> list[str]:
    lines = result.outlines
    start = next((place for place, line in enumerate(lines) if line.startswith("goldens that no test uses")), len(lines))
    return [line.strip().removeprefix("golden/").removesuffix(".safetensors") for line in lines[start + 1 :] if line.startswith("  golden/")]


A, B, C = "a/test_x/test_left", "b/test_y/test_left", "c/test_gone/test_left"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), [A, B, C]),
        ((".",), [A, B, C]),
        (("a", "b"), [A, B]),
        (("a",), [A]),
        (("b/test_y.py",), [B]),
        (("a", "b/test_y.py::test_one"), []),
        (("--ignore=a",), [B, C]),
        (("--ignore-glob=*_y.py",), [A, C]),
        (("--deselect=a/test_x.py::test_one",), []),
        (("-k", "one"), []),
        (("--setup-only",), []),
        (("--lf",), []),
    ],
)
def test_what_is_judged_follows_what_was_asked_for(tree: pytest.Pytester, arguments: tuple[str, ...], found: list[str]) -> None:
    assert unused(tree.runpytest_inprocess(*arguments)) == found


def test_only_what_lies_below_is_judged_from_a_folder_inside(tree: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.path / "a")
    assert unused(tree.runpytest_inprocess()) == [A]
    assert unused(tree.runpytest_inprocess("../b")) == [B]
    assert unused(tree.runpytest_inprocess("..")) == [A, B, C]


def test_a_single_testpath_is_all_but_what_lies_elsewhere(told: pytest.Pytester) -> None:
    told.makeini("[pytest]\ntestpaths = checks\n")
    (told.path / "checks").mkdir()
    (told.path / "checks" / "test_x.py").write_text(ONE, encoding="utf8")
    for name in ("test_x/test_one", "test_x/test_left", "test_gone/test_left", "~/examples/test_e/test_one"):
        golden(told, name)
    for arguments in ((), ("checks",)):
        assert unused(told.runpytest_inprocess(*arguments)) == ["test_gone/test_left", "test_x/test_left"]
    assert unused(told.runpytest_inprocess("checks/test_x.py")) == ["test_x/test_left"]


@pytest.mark.parametrize(
    "conftest",
    ["collect_ignore = ['test_x.py']", "def pytest_ignore_collect(collection_path): return collection_path.name == 'test_x.py' or None"],
)
def test_goldens_of_tests_that_pytest_was_told_to_ignore_are_left_alone(tree: pytest.Pytester, conftest: str) -> None:
    (tree.path / "a" / "conftest.py").write_text(conftest, encoding="utf8")
    assert unused(tree.runpytest_inprocess()) == [B, C]


def test_goldens_of_a_skipped_test_are_left_alone_whatever_its_parameters_would_be(told: pytest.Pytester) -> None:
    told.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize("device", [])
        def test_devices(check_precision, device):
            check_precision(1.0, {})

        @pytest.mark.skip(reason="slow")
        def test_slow(check_precision):
            check_precision(1.0, {})
            check_precision(1.0, {})

        def test_here(check_precision):
            pytest.skip("not today")

        @pytest.mark.skip
        class TestGroup:
            def test_deep(self, check_precision): pass
        """
    )
    deep = golden_path(told.path / "golden", "test_it.py", "TestGroup::test_deep[cuda:0]")
    golden(told, deep.relative_to(told.path / "golden").with_suffix("").as_posix())
    for name in ("test_devices-cuda0", "test_devices-cuda1~0123456789", "test_slow", "test_slow+2", "test_here+2", "test_other"):
        golden(told, f"test_it/{name}")
    assert unused(told.runpytest_inprocess()) == ["test_it/test_other"]


def test_a_test_for_other_precisions_keeps_its_golden_and_is_no_obstacle_to_pruning(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY, '@pytest.mark.precision("bf16-mixed")\ndef test_low(check_precision):\n    check_precision(make(1), data())\n')
    left = golden / "test_it" / "test_left.safetensors"
    shutil.copy(golden / "test_it" / "test_low.safetensors", left)
    result = pytester.runpytest_inprocess("--golden-prune")
    result.assert_outcomes(passed=1, skipped=1)
    assert not left.exists()
    assert (golden / "test_it" / "test_low.safetensors").exists()


def test_an_xfailed_test_keeps_its_goldens_and_is_no_obstacle_to_pruning(pytester: pytest.Pytester, project: Project) -> None:
    folder = project(HEALTHY, "@pytest.mark.xfail\ndef test_known(check_precision):\n    check_precision(make(1), data())\n    assert 0\n")
    left, second = folder / "test_left.safetensors", folder / "test_it" / "test_known+2.safetensors"
    for path in (left, second):
        shutil.copy(folder / "test_it" / "test_healthy.safetensors", path)
    result = pytester.runpytest_inprocess("--golden-prune")
    result.assert_outcomes(passed=1, xfailed=1)
    assert (left.exists(), second.exists()) == (False, True)


def test_later_goldens_of_a_test_that_failed_before_it_came_to_them_are_left_alone(told: pytest.Pytester) -> None:
    fails = "check_precision(9.0, {'32-true': [('error', 'nan')]})"
    told.makepyfile(test_it=f"def test_one(check_precision):\n    {fails}\n    check_precision(1.0, {{}})\n")
    golden(told, "test_it/test_one")
    golden(told, "test_it/test_one+2")
    golden(told, "test_it/test_left")
    assert unused(told.runpytest_inprocess()) == ["test_it/test_left"]


def test_pruning_is_refused_where_a_test_was_skipped(told: pytest.Pytester) -> None:
    skipped = "import pytest\n@pytest.mark.skip(reason='x')\ndef test_two({}): pass\n"
    told.makepyfile(test_it=ONE + skipped.format("check_precision"), test_other=skipped.format(""))
    left = golden(told, "test_it/test_left")
    result = told.runpytest_inprocess("--golden-prune")
    result.stdout.fnmatch_lines(["--golden-prune deleted nothing: test_it.py::test_two[[]32-true] was skipped"])
    assert result.ret == 1
    assert left.exists()


def test_pruning_is_refused_where_no_test_was_found(told: pytest.Pytester) -> None:
    left = golden(told, "test_it/test_left")
    result = told.runpytest_inprocess("--golden-prune")
    result.stdout.fnmatch_lines(["--golden-prune deleted nothing: *"])
    assert result.ret == 1
    assert left.exists()


def test_pruning_spares_what_is_no_golden(pytester: pytest.Pytester, project: Project) -> None:
    folder = project(HEALTHY)
    weights, left = folder / "weights.safetensors", folder / "test_left.safetensors"
    weights.write_bytes(b"somebody's model")
    shutil.copy(folder / "test_it" / "test_healthy.safetensors", left)
    result = pytester.runpytest_inprocess("--golden-prune")
    result.stdout.fnmatch_lines(
        [
            "goldens deleted, since no test uses them: 1", "  golden/test_left.safetensors",
            "--golden-prune did not delete golden/weights.safetensors: it cannot be read as a golden",
        ]
    )  # fmt: skip
    assert result.ret == 1
    assert weights.exists()
    assert not left.exists()


def test_refresh_and_prune_go_together(pytester: pytest.Pytester, project: Project) -> None:
    folder = project(HEALTHY)
    old = (folder / "test_it").rename(folder / "test_before")
    result = pytester.runpytest_inprocess("--golden-refresh", "--golden-prune")
    result.stdout.fnmatch_lines(["goldens: 1 written", "*golden/test_it/test_healthy*", "goldens deleted*: 1", "*golden/test_before/test_healthy*"])
    assert result.ret == 0
    assert not (old / "test_healthy.safetensors").exists()


def test_a_file_in_place_of_the_golden_folder_is_refused(told: pytest.Pytester) -> None:
    told.makepyfile(test_it=ONE)
    result = told.runpytest_inprocess("--golden-dir=test_it.py")
    result.stderr.fnmatch_lines(["*--golden-dir=test_it.py: that is a file; goldens need a folder of their own, such as golden"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("folder", [".", "..", ""])
def test_a_golden_folder_that_holds_the_project_is_refused(told: pytest.Pytester, folder: str) -> None:
    told.makepyfile(ONE)
    result = told.runpytest_inprocess(f"--golden-dir={folder}")
    result.stderr.fnmatch_lines(["*--golden-dir=* holds the whole project; goldens need a folder of their own, such as golden"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_refresh_ignores_the_precision_of_the_ini_file(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    pytester.makeini("[pytest]\nprecision = bf16-mixed\n")
    result = pytester.runpytest_inprocess("--golden-refresh", "-v")
    result.stdout.fnmatch_lines(["*test_healthy[[]32-true] PASSED*", "goldens: 1 written"])
    pytester.runpytest_inprocess("-v").stdout.fnmatch_lines(["*test_healthy[[]bf16-mixed] PASSED*"])
