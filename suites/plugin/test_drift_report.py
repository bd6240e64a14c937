"""--drift-report, --drift-top and their ini twins: the table at the end, and the JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from projects import HEALTHY, OVERFLOWS, Project

import precheck
from precheck.findings import SCHEMA

MANY = """
    import pytest

    @pytest.mark.parametrize("r", [0.5, 2.5, 1.5])
    def test_it(check_precision, r):
        check_precision(r, {})
"""
HEADINGS = "*r  allowed  drift  precision   tensor           test"


def rows(result: pytest.RunResult) -> list[float]:
    return [float(line.split()[0]) for line in result.outlines if "output of layer" in line and "::" in line and not line.startswith("3 checks")]


class TestTerm:
    """--drift-report=term."""

    def test_is_on_where_a_precision_is_named_and_off_elsewhere(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY)
        result = told.runpytest_inprocess("--precision=bf16")
        result.stdout.fnmatch_lines([HEADINGS, "*2.50*3.00*1%*bf16-mixed*output of layer*test_it[[]bf16-mixed-2.5]"])
        assert rows(result) == [2.5, 1.5, 0.5], "worst first"
        assert rows(told.runpytest_inprocess()) == []

    def test_follows_no_failure_unless_asked(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY.replace("{})", '{"bf16-mixed": [("error", "overflow")] if r > 3 else []})').replace("2.5", "3.5"))
        assert rows(told.runpytest_inprocess("--precision=bf16")) == []
        assert rows(told.runpytest_inprocess("--precision=bf16", "--drift-report=term")) == [3.5, 1.5, 0.5]

    def test_asks_for_it_under_float32_and_even_when_quiet(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY)
        assert rows(told.runpytest_inprocess("--drift-report=term", "-q")) == [2.5, 1.5, 0.5]
        told.makeini("[pytest]\ndrift_report = term\n")
        assert rows(told.runpytest_inprocess()) == [2.5, 1.5, 0.5]


@pytest.mark.parametrize(("top", "shown"), [("1", 1), ("2", 2), ("0", 3)])
def test_drift_top_cuts_the_table_and_says_how_much_is_left(told: pytest.Pytester, top: str, shown: int) -> None:
    told.makepyfile(MANY)
    result = told.runpytest_inprocess("--drift-report=term", f"--drift-top={top}")
    assert rows(result) == [2.5, 1.5, 0.5][:shown]
    told.makeini(f"[pytest]\ndrift_top = {top}\ndrift_report = term\n")
    assert rows(told.runpytest_inprocess()) == [2.5, 1.5, 0.5][:shown]
    assert len(rows(told.runpytest_inprocess("--drift-top=3"))) == 3, "the command line wins"
    left = [line for line in result.outlines if "more tensors, none of them worse" in line]
    assert [line.split()[0] for line in left] == ([str(3 - shown)] if shown < 3 else [])


class TestJson:
    """--drift-report=json:PATH."""

    def test_holds_every_check_with_its_whole_report(self, pytester: pytest.Pytester, project: Project) -> None:
        project(HEALTHY, OVERFLOWS)
        result = pytester.runpytest_inprocess("--precision=bf16,16-mixed", "--drift-report=json:out/drift.json", "--drift-report=term")
        assert result.ret == 1
        content = json.loads((pytester.path / "out" / "drift.json").read_text(encoding="utf8"))
        assert (content["schema"], content["precheck"]) == (SCHEMA, precheck.__version__)
        assert content["torch"].startswith("2.")
        tests = {test["nodeid"]: test for test in content["tests"]}
        assert set(tests) == {f"test_it.py::test_{name}[{under}]" for name in ("healthy", "overflows") for under in ("bf16-mixed", "16-mixed")}
        failed = tests["test_it.py::test_overflows[16-mixed]"]
        assert failed["precision"] == failed["report"]["precision"] == "16-mixed"
        assert failed["report"]["findings"][0]["rule"] == "overflow"
        assert failed["report"]["boundaries"][0]["r"] == "inf", "JSON has no word for infinity, so it is written as a string"
        assert tests["test_it.py::test_healthy[bf16-mixed]"]["report"]["findings"] == []
        assert [path.name for path in (pytester.path / "out").iterdir()] == ["drift.json"]

    def test_says_why_a_check_has_no_report(self, pytester: pytest.Pytester, project: Project) -> None:
        project(HEALTHY, record=False)
        pytester.runpytest_inprocess("--drift-report=json:drift.json")
        (test,) = json.loads((pytester.path / "drift.json").read_text(encoding="utf8"))["tests"]
        assert test["error"].startswith("no golden for this test at golden/")
        assert test["precision"] == "32-true"

    def test_is_relative_to_where_pytest_was_started(self, told: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        told.makeini("[pytest]\ndrift_report = json:drift.json\n")
        told.makepyfile(MANY)
        (told.path / "sub").mkdir()
        monkeypatch.chdir(told.path / "sub")
        assert told.runpytest_inprocess("..").ret == 0
        assert len(json.loads((told.path / "sub" / "drift.json").read_text(encoding="utf8"))["tests"]) == 3

    def test_where_it_cannot_be_written_is_one_line_and_exit_code_1(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY)
        (told.path / "file").write_text("in the way", encoding="utf8")
        result = told.runpytest_inprocess("-q", "--drift-report=json:file/drift.json")
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines(["--drift-report=json:*drift.json cannot be written: *"])
        assert result.ret == 1
        assert "Traceback" not in result.stdout.str() + result.stderr.str()

    def test_nothing_half_written_is_left_where_it_cannot_be_put_in_place(self, told: pytest.Pytester) -> None:
        told.makepyfile("import pathlib\ndef test_it(check_precision):\n    pathlib.Path('drift.json').mkdir()\n    check_precision(1.0, {})\n")
        result = told.runpytest_inprocess("--drift-report=json:drift.json")
        result.stdout.fnmatch_lines(["--drift-report=json:*drift.json cannot be written: *"])
        assert not list(told.path.glob(".*.tmp"))

    def test_a_folder_is_refused_before_anything_runs(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY)
        result = told.runpytest_inprocess("--drift-report=json:.")
        result.stderr.fnmatch_lines(["*--drift-report=json:.: . is a folder; name a file, as in json:drift.json"])
        assert result.ret == pytest.ExitCode.USAGE_ERROR

    def test_an_older_file_is_replaced_whole(self, told: pytest.Pytester) -> None:
        told.makepyfile(MANY)
        path = Path(told.path / "drift.json")
        path.write_text("x" * 100_000, encoding="utf8")
        told.runpytest_inprocess("--drift-report=json:drift.json")
        assert json.loads(path.read_text(encoding="utf8"))["schema"] == SCHEMA
