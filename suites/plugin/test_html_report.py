"""--drift-report=html:PATH: what pytest writes and says. What the page shows is in suites/report."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from projects import FAKED_LIGHT, HEALTHY, OVERFLOWS, Project

MANY = """
    import pytest

    @pytest.mark.parametrize("r", [0.5, 2.5, 1.5])
    def test_it(check_precision, r):
        check_precision(r, {"bf16-mixed": [("error", "overflow")] if r == 2.5 else []})
"""


def data(path: Path, name: str) -> Any:
    """One of the data elements of a page."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', path.read_text(encoding="utf8"), re.DOTALL)
    assert found, f"no {name} in {path.name}"
    return json.loads(found[1])


def test_holds_every_check_with_its_findings_and_source(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, OVERFLOWS)
    result = pytester.runpytest_inprocess("--precision=bf16,16-mixed", "--drift-report=html:out/drift.html")
    result.assert_outcomes(passed=3, failed=1)
    assert result.ret == 1
    path = pytester.path / "out" / "drift.html"
    assert [each.name for each in path.parent.iterdir()] == ["drift.html"]
    checks = data(path, "summary")["checks"]
    assert {check["nodeid"]: check["counts"]["error"] for check in checks} == {
        "test_it.py::test_healthy[bf16-mixed]": 0, "test_it.py::test_overflows[bf16-mixed]": 0,
        "test_it.py::test_healthy[16-mixed]": 0, "test_it.py::test_overflows[16-mixed]": 1,
    }  # fmt: skip
    failed = next(number for number, check in enumerate(checks) if check["counts"]["error"])
    told = data(path, f"check-{failed}")
    assert told["findings"][0]["rule"] == "overflow"
    assert "self.wide(x * 1e5) / 1e5" in "".join(told["findings"][0]["excerpt"]["lines"])
    ops = told["ops"]["op"]
    assert ops["words"][ops["at"][told["findings"][0]["at_op"]]] == told["findings"][0]["op"]
    assert all(data(path, f"check-{number}")["ops"]["drift"] for number in range(4)), "every op's drift, of checks that pass too"


def test_stands_beside_the_other_forms_and_in_the_ini_file(told: pytest.Pytester) -> None:
    told.makeini("[pytest]\ndrift_report =\n    html:drift.html\n    json:drift.json\n    term\n")
    told.makepyfile(MANY)
    result = told.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(passed=2, failed=1)
    assert len(data(told.path / "drift.html", "summary")["checks"]) == len(json.loads((told.path / "drift.json").read_text())["tests"]) == 3


@pytest.mark.usefixtures("forked_python")
def test_is_one_page_of_all_workers(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(FAKED_LIGHT)
    pytester.makepyfile(test_a=MANY, test_b=MANY)
    lean = ["-p", "xdist", "-p", "no:hypothesispytest", "-p", "no:benchmark", "-n", "2"]
    result = pytester.runpytest_subprocess("--precision=bf16", *lean, "--drift-report=html:drift.html")
    result.assert_outcomes(passed=4, failed=2)
    checks = data(pytester.path / "drift.html", "summary")["checks"]
    assert len({check["nodeid"] for check in checks}) == 6
    assert sum(check["counts"]["error"] for check in checks) == 2


@pytest.mark.parametrize("name", ["</script><b>", "a\nb", 'q"u\'o', "x" * 300, "\u202eturned"])
def test_a_test_of_any_name_is_in_it(told: pytest.Pytester, name: str) -> None:
    told.makepyfile(
        f"import pytest\n@pytest.mark.parametrize('r', [1.0], ids=[{name!r}])\ndef test_it(check_precision, r):\n    check_precision(r, {{}})\n"
    )
    result = told.runpytest_inprocess("--drift-report=html:drift.html")
    result.assert_outcomes(passed=1)
    (check,) = data(told.path / "drift.html", "summary")["checks"]
    assert check["nodeid"].startswith("test_a_test_of_any_name_is_in_it.py::test_it[")
    assert check["worst"]["r"] == 1.0


def test_without_its_extra_says_what_to_type(told: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "jinja2" else find(name, *rest))
    told.makepyfile(MANY)
    result = told.runpytest_inprocess("--drift-report=html:drift.html")
    result.stderr.fnmatch_lines(["*--drift-report=html:drift.html: html needs jinja2; install it with: pip install jinja2"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told.runpytest_inprocess("--drift-report=json:drift.json").ret == 0, "the other forms do not need it"


def test_where_it_cannot_be_written_is_one_line_and_exit_code_1(told: pytest.Pytester) -> None:
    told.makepyfile("def test_it(check_precision):\n    check_precision(1.0, {})\n")
    (told.path / "file").write_text("in the way", encoding="utf8")
    result = told.runpytest_inprocess("-q", "--drift-report=html:file/drift.html")
    result.stdout.fnmatch_lines(["--drift-report=html:*drift.html cannot be written: *"])
    assert result.ret == 1


def test_a_folder_is_refused_before_anything_runs(told: pytest.Pytester) -> None:
    told.makepyfile(MANY)
    result = told.runpytest_inprocess("--drift-report=html:.")
    result.stderr.fnmatch_lines(["*--drift-report=html:.: . is a folder; name a file, as in html:drift.html"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
