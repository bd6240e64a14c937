"""--drift-report=markdown, sarif and their kin in a pytest run: alone, under xdist, on GitHub, and with tests of odd names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from projects import FAKED, FAKED_LIGHT, HEALTHY, OVERFLOWS, PREAMBLE

from precheck.plugin import settings
from precheck.report import forms
from precheck.report.forms import ALIASES, FORMS, Form
from precheck.report.session import load, session

FILES = ("json:out/drift.json", "markdown:out/drift.md", "sarif:out/drift.sarif")
REPORTS = tuple(f"--drift-report={file}" for file in FILES)
CHECKS = """
    import pytest

    @pytest.mark.parametrize("r", [0.5, 1.5, 2.5])
    class TestGroup:
        def test_one(self, check_precision, r):
            check_precision(r, {"16-mixed": [("error", "overflow")]} if r == 2.5 else {})

    @pytest.mark.allow_finding("nan", reason="known")
    def test_allowed(check_precision):
        check_precision(9.0, {"bf16-mixed": [("error", "nan")]})
"""


@pytest.fixture(autouse=True)
def nowhere_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def checks(told: pytest.Pytester) -> pytest.Pytester:
    told.makepyfile(test_it=CHECKS)
    return told


def written(folder: Path) -> dict[str, str]:
    return {path.suffix: path.read_text(encoding="utf8") for path in (folder / "out").iterdir()}


def results(sarif: str) -> list[dict[str, Any]]:
    return list(json.loads(sarif)["runs"][0]["results"])


def test_all_forms_of_one_run(checks: pytest.Pytester) -> None:
    checks.runpytest_inprocess("--precision=bf16,16-mixed", *REPORTS).assert_outcomes(passed=7, failed=1)
    files = written(checks.path)
    assert set(files) == {".json", ".md", ".sarif"}, "and nothing half written"
    assert files[".md"].startswith("## precheck: 1 of 8 checks failed, 1 passed with errors that are known or allowed\n")
    found = {result["ruleId"]: result for result in results(files[".sarif"])}
    at_test = found["overflow"]["locations"][0]["physicalLocation"]
    assert at_test == {"artifactLocation": {"uri": "test_it.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 5}}
    assert "suppressions" not in found["overflow"]
    assert found["nan"]["suppressions"] == [{"kind": "inSource", "justification": "known"}]
    tests = load(checks.path / "out" / "drift.json")["tests"]
    assert [test["failed"] for test in tests].count(True) == 1
    assert {'pytest --precision=bf16-mixed "test_it.py::test_allowed[bf16-mixed]"'} < {test["again"] for test in tests}
    assert {json.dumps(test["tolerated"]) for test in tests} == {"{}", '{"nan": "known"}'}


@pytest.mark.usefixtures("forked_python")
def test_under_xdist_there_is_one_of_each_from_all_workers(checks: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    checks.runpytest_inprocess("-p", "no:xdist", "--precision=bf16,16-mixed", *REPORTS)
    alone = written(checks.path)
    checks.makeconftest(FAKED_LIGHT)
    spread = checks.runpytest_subprocess("-n2", "-p", "no:hypothesispytest", "-p", "no:benchmark", "--precision=bf16,16-mixed", *REPORTS)
    spread.assert_outcomes(passed=7, failed=1)
    files = written(checks.path)
    for suffix in (".md", ".json"):
        assert sorted(files[suffix].splitlines()) == sorted(alone[suffix].splitlines())
    assert sorted(map(json.dumps, results(files[".sarif"]))) == sorted(map(json.dumps, results(alone[".sarif"])))


def test_a_line_of_the_users_is_relative_to_the_project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where pytest was started in a folder of it. The line of `x * 1e5` is the one that overflows."""
    pytester.makeini("[pytest]")
    code = PREAMBLE + HEALTHY + OVERFLOWS
    (pytester.path / "sub").mkdir()
    (pytester.path / "sub" / "test_it.py").write_text(code, encoding="utf8")
    monkeypatch.chdir(pytester.path / "sub")
    assert pytester.runpytest_inprocess("--golden-refresh=missing").ret == 0
    assert pytester.runpytest_inprocess("--precision=16-mixed", "--drift-report=sarif:drift.sarif").ret == 1
    (result,) = [each for each in results((pytester.path / "sub" / "drift.sarif").read_text(encoding="utf8")) if each["level"] == "error"]
    line = code.splitlines().index("        return self.wide(x * 1e5) / 1e5") + 1
    place = {"artifactLocation": {"uri": "sub/test_it.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": line}}
    assert result["locations"][0]["physicalLocation"] == place


def test_the_summary_of_a_step_on_github_is_added_to(checks: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = checks.path / "summary.md"
    summary.write_text("# mine\n", encoding="utf8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for times in (1, 2):
        checks.runpytest_inprocess("--precision=bf16", f"--drift-report=markdown:{summary}")
        content = summary.read_text(encoding="utf8")
        assert content.startswith("# mine\n")
        assert content.count("\n## precheck: ") == times
    checks.runpytest_inprocess("--precision=bf16", "--drift-report=markdown:other.md")
    checks.runpytest_inprocess("--precision=bf16", "--drift-report=markdown:other.md")
    assert (checks.path / "other.md").read_text(encoding="utf8").count("## precheck: ") == 1, "any other file is replaced"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("markdown:", "--drift-report=markdown: names no file (if the path is a variable, is it set?); accepted is markdown:PATH"),
        ("sarif", "--drift-report=sarif names no file (if the path is a variable, is it set?); accepted is sarif:PATH"),
        ("sarif:.", "--drift-report=sarif:.: . is a folder; name a file, as in sarif:drift.sarif"),
        ("term:a.txt", "--drift-report=term:a.txt: accepted are term, json:PATH, markdown:PATH, md:PATH, sarif:PATH*"),
        ("pdf:a", "--drift-report=pdf:a: accepted are term, json:PATH, markdown:PATH, md:PATH, sarif:PATH*"),
    ],
)
def test_what_is_no_report_is_refused_before_anything_runs(checks: pytest.Pytester, report: str, said: str) -> None:
    result = checks.runpytest_inprocess(f"--drift-report={report}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


def test_markdown_has_a_short_name(checks: pytest.Pytester) -> None:
    reports = ("--drift-report=md:short.md", "--drift-report=markdown:long.md", "--drift-report=json:drift.json")
    checks.runpytest_inprocess("--precision=16-mixed", *reports)
    text = (checks.path / "short.md").read_text(encoding="utf8")
    assert text.startswith("## precheck: 1 of 4 checks failed\n")
    assert text == (checks.path / "long.md").read_text(encoding="utf8")
    refused = checks.runpytest_inprocess("--drift-report=md:")
    refused.stderr.fnmatch_lines(["*--drift-report=md: names no file (if the path is a variable, is it set?); accepted is md:PATH"])
    command = [sys.executable, "-m", "precheck", "report", checks.path / "drift.json", "--format=md"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf8")
    assert shown.stdout.startswith("## precheck: 1 of 4 checks failed\n")


def test_a_form_whose_library_is_not_there_says_what_to_type(checks: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "sarif", Form("sarif", "nowhere:text", needs="no_such_module"))
    result = checks.runpytest_inprocess("--drift-report=sarif:a.sarif")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = "*--drift-report=sarif:a.sarif: sarif needs no_such_module; install it with: pip install no_such_module"
    result.stderr.fnmatch_lines([said])


def test_only_forms_that_show_ops_ask_for_them(checks: pytest.Pytester) -> None:
    """Ops of checks that pass cost a diagnosis each; the faked check keeps how it was asked."""
    checks.makeconftest(FAKED.replace('rules = inputs.get', 'open("asked", "a").write(str(settings["ops"]))\n    rules = inputs.get'))
    for form, expected in (("sarif:a", "False"), ("markdown:a", "True"), ("json:a", "True")):
        (checks.path / "asked").unlink(missing_ok=True)
        checks.runpytest_inprocess("-k", "test_allowed", f"--drift-report={form}")
        assert (checks.path / "asked").read_text(encoding="utf8") == expected


def test_tests_of_odd_names(checks: pytest.Pytester) -> None:
    """As pytest lets them through: it escapes what is not ASCII, and control characters."""
    names = ["a|b", "`x`", "</script><script>", "a\nb", '"quoted\'', "y" * 10_000, "{{ x }}", "\u202e"]
    code = f"""
        import pytest
        @pytest.mark.parametrize("name", {names!r})
        def test_it(check_precision, name):
            check_precision(9.0, {{"bf16-mixed": [("error", "nan")]}})
    """
    checks.makepyfile(test_it=code)
    checks.runpytest_inprocess("--precision=bf16", *REPORTS).assert_outcomes(failed=len(names))
    files = written(checks.path)
    assert len(load(checks.path / "out" / "drift.json")["tests"]) == len(results(files[".sarif"])) == files[".md"].count("### ❌ `") == len(names)
    assert len(files[".md"]) < 40_000


def test_every_form_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, precheck.report.forms; assert not {'jinja2', 'precheck.report.markdown', 'precheck.report.sarif', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_help_names_every_form() -> None:
    names = [name for kind in FORMS if kind != "term" for name in (kind, *(short for short, form in ALIASES.items() if form == kind))]
    assert settings.REPORTS == ("term", *(f"{name}:PATH" for name in names))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_writes_whole_files(form: Form, tmp_path: Path) -> None:
    if form.missing:
        pytest.skip(form.missing)
    path = tmp_path / "new" / f"{'x' * 200}.out"
    forms.write(form, session((), root=tmp_path, start=tmp_path), path)
    assert path.read_text(encoding="utf8") == form.text(session((), root=tmp_path, start=tmp_path))
    assert list(path.parent.iterdir()) == [path]


ODD = {"tags": "</property><x>", "quotes": 'a"b', "lines": "a\nb", "control": "\x1b[31m\x00", "long": "y" * 10_000, "cdata": "]]>"}


@pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
def test_junit_stays_whole_whatever_a_tensor_is_called(checks: pytest.Pytester, name: str) -> None:
    checks.makeconftest(FAKED.replace('Row("layer"', f"Row({name!r}"))
    checks.runpytest_inprocess("-k", "test_allowed", "--precision=bf16", "--junitxml=junit.xml")
    (worst,) = [each for each in ElementTree.parse(checks.path / "junit.xml").iter("property") if each.get("name") == "precheck_worst_tensor"]
    assert len(worst.get("value", "")) >= min(len(name), 4)
