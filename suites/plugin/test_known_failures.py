"""--known-failures: old failures leave a run green, new ones do not, and what is mended is forgotten where the run may write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from projects import FAKED_LIGHT, OVERFLOWS, Project

RUN = ("--precision=bf16,16-mixed",)
WRITE = "--known-failures-write"
TWO = """
def test_old(check_precision):
    check_precision({r}, {{"16-mixed": {old}}})

def test_other(check_precision):
    check_precision(1.0, {{"bf16-mixed": {other}}})
"""
OVERFLOW = '[("error", "overflow")]'
DRIFT = '[("error", "accumulated-drift")]'


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


def checks(told: pytest.Pytester, *, r: float = 9.0, old: str = DRIFT, other: str = "[]") -> None:
    told.makepyfile(test_it=TWO.format(r=r, old=old, other=other))


def known(told: pytest.Pytester) -> str:
    path = told.path / "precision-known.toml"
    return path.read_text(encoding="utf8") if path.exists() else ""


@pytest.fixture
def project_told(told: pytest.Pytester) -> pytest.Pytester:
    """One check fails, is known to, and so the run passes."""
    checks(told)
    assert told.runpytest_inprocess(*RUN).ret == 1
    result = told.runpytest_inprocess(*RUN, WRITE)
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(
        ["precision-known.toml written; to be committed:", "  recorded   accumulated-drift at forward in test_it.py::test_old under 16-mixed"]
    )
    assert result.ret == 0
    return told


def amend(told: pytest.Pytester, old: str, new: str) -> None:
    path = told.path / "precision-known.toml"
    text = path.read_text(encoding="utf8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf8")


def test_an_old_failure_is_expected_counted_and_named(project_told: pytest.Pytester) -> None:
    before = known(project_told)
    amend(project_told, 'reason = ""', 'reason = "see #12"\nuntil = 2999-12-31')
    result = project_told.runpytest_inprocess(*RUN, "-rx", "--junitxml=junit.xml", "--drift-report=json:drift.json")
    result.assert_outcomes(passed=3, xfailed=1)
    assert result.ret == 0
    name = "accumulated-drift at forward, until 2999-12-31: see #12"
    result.stdout.fnmatch_lines([
        "2 checks under 16-mixed: 1 passed, 0 failed, 1 known to fail; worst r *", f"known: {name} in test_it.py::test_old[[]16-mixed[]]",
        f"XFAIL test_it.py::test_old[[]16-mixed[]] - known: {name}",
    ])  # fmt: skip
    assert 'type="pytest.xfail"' in (project_told.path / "junit.xml").read_text(encoding="utf8")
    tests = json.loads((project_told.path / "drift.json").read_text(encoding="utf8"))["tests"]
    (failing,) = [test for test in tests if test["report"]["findings"]]
    assert (failing["failed"], failing["tolerated"]) == (False, {"accumulated-drift": "known to fail"})
    assert known(project_told) != before, "what the user wrote is still there"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"r": 14.0}, "worse than known by precision-known.toml: forward layer is 4.67 times its limit, where 3 is known"),
        ({"old": f"{DRIFT} + {OVERFLOW}"}, "worse than known by *: overflow at forward is new; known is accumulated-drift at forward"),
        ({"old": OVERFLOW}, "worse than known by *: overflow at forward is new; known is accumulated-drift at forward"),
    ],
)
def test_what_is_worse_fails_and_says_how(project_told: pytest.Pytester, change: dict[str, object], line: str) -> None:
    before = known(project_told)
    checks(project_told, **change)  # type: ignore[arg-type]
    result = project_told.runpytest_inprocess(*RUN)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines([line, "*: told of layer under 16-mixed*", "to see this again: pytest --precision=16-mixed *"])
    assert result.ret == 1
    assert known(project_told) == before


def test_a_new_failure_elsewhere_fails(project_told: pytest.Pytester) -> None:
    checks(project_told, other=OVERFLOW)
    result = project_told.runpytest_inprocess(*RUN)
    result.assert_outcomes(passed=2, xfailed=1, failed=1)
    result.stdout.no_fnmatch_line("*worse than known*")
    assert result.ret == 1


def test_an_expired_failure_fails_with_its_date(project_told: pytest.Pytester) -> None:
    amend(project_told, "[failure.beyond]", "until = 2020-01-31\n[failure.beyond]")
    for options in ((), (WRITE,)):
        result = project_told.runpytest_inprocess(*RUN, *options)
        result.assert_outcomes(passed=3, failed=1)
        result.stdout.fnmatch_lines(["worse than known by *: accumulated-drift at forward was known until 2020-01-31, which has passed; mend it, *"])
    assert "until = 2020-01-31" in known(project_told), "recording again is no way to put a date off"


class TestMended:
    """A failure that is known and not there."""

    LINE = "  mended     accumulated-drift at forward in test_it.py::test_old under 16-mixed"

    def test_is_forgotten(self, project_told: pytest.Pytester) -> None:
        checks(project_told, r=1.0, old="[]")
        result = project_told.runpytest_inprocess(*RUN)
        result.stdout.fnmatch_lines(["precision-known.toml deleted, since nothing is known any more; to be committed:", self.LINE])
        assert result.ret == 0
        assert known(project_told) == ""
        checks(project_told)
        assert project_told.runpytest_inprocess(*RUN).ret == 1

    @pytest.mark.parametrize("name", ["CI", "BUILD_NUMBER"])
    def test_is_told_in_ci_and_the_file_left_alone(self, project_told: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv(name, "1")
        before = known(project_told)
        checks(project_told, r=1.0, old="[]")
        result = project_told.runpytest_inprocess(*RUN, "-q")
        command = "run pytest --known-failures-write, and commit the file:"
        result.stdout.fnmatch_lines([f"precision-known.toml can be tightened, which runs in CI leave to others; {command}", self.LINE])
        assert result.ret == 0
        assert known(project_told) == before
        project_told.runpytest_inprocess(*RUN, WRITE).stdout.fnmatch_lines([self.LINE])
        assert known(project_told) == ""

    def test_is_told_where_the_file_cannot_be_written(self, project_told: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        before = known(project_told)
        monkeypatch.setattr("os.access", lambda path, mode: False)
        checks(project_told, r=1.0, old="[]")
        result = project_told.runpytest_inprocess(*RUN)
        result.stdout.fnmatch_lines(["precision-known.toml can be tightened, and cannot be written here; run *", self.LINE])
        assert result.ret == 0
        assert known(project_told) == before

    def test_of_two_is_forgotten_alone_and_the_other_may_come_back_no_further(self, project_told: pytest.Pytester) -> None:
        checks(project_told, other=OVERFLOW)
        project_told.runpytest_inprocess(*RUN, WRITE)
        checks(project_told, r=5.0, other="[]")
        result = project_told.runpytest_inprocess(*RUN)
        result.stdout.fnmatch_lines([
            "precision-known.toml written; to be committed:", "  tightened  accumulated-drift at forward in test_it.py::test_old under 16-mixed",
            "  mended     overflow at forward in test_it.py::test_other under bf16-mixed",
        ])  # fmt: skip
        checks(project_told, r=9.0)
        assert project_told.runpytest_inprocess(*RUN).ret == 1


class TestPartialRuns:
    """Entries of tests that did not run are as they were."""

    @pytest.fixture
    def both(self, project_told: pytest.Pytester) -> pytest.Pytester:
        checks(project_told, other=OVERFLOW)
        project_told.runpytest_inprocess(*RUN, WRITE).assert_outcomes(passed=2, xfailed=2)
        return project_told

    @pytest.mark.parametrize("options", [("-k", "other"), ("test_it.py::test_other",), ("--precision=bf16",), ("--deselect", "test_it.py::test_old")])
    @pytest.mark.parametrize("write", [(), (WRITE,)])
    def test_keep_what_did_not_run(self, both: pytest.Pytester, options: tuple[str, ...], write: tuple[str, ...]) -> None:
        checks(both, old="[]", r=1.0, other="[]")
        result = both.runpytest_inprocess(*(RUN if "--precision=bf16" not in options else ()), *options, *write)
        assert result.ret == 0
        assert "test_old" in known(both)
        assert "test_other" not in known(both)

    def test_keep_what_a_stop_left_out(self, both: pytest.Pytester) -> None:
        checks(both, old=OVERFLOW, other="[]")
        result = both.runpytest_inprocess(*RUN, "-x", "-p", "no:randomly")
        assert result.ret == 1
        before = known(both)
        assert "test_old" in before

    @pytest.mark.parametrize("body", ["pytest.skip('not here')", "raise ValueError", "raise KeyboardInterrupt"])
    def test_keep_what_ended_before_its_check(self, both: pytest.Pytester, body: str) -> None:
        both.makepyfile(test_it=f"import pytest\ndef test_old(check_precision):\n    {body}\ndef test_other(check_precision): pass")
        before = known(both)
        both.runpytest_inprocess(*RUN, no_reraise_ctrlc=True)
        assert [line for line in known(both).splitlines() if "test_old" in line] == [line for line in before.splitlines() if "test_old" in line]

    def test_a_test_that_is_gone_is_named_and_taken_out_on_request(self, both: pytest.Pytester) -> None:
        both.makepyfile(test_it="def test_new(check_precision): check_precision(1.0, {})")
        before = known(both)
        both.runpytest_inprocess(*RUN, "-k", "new").stdout.no_fnmatch_line("*not there*")
        result = both.runpytest_inprocess(*RUN)
        result.stdout.fnmatch_lines([
            "known failures of checks that no longer exist: 2 (take them out with pytest --known-failures-write)",
            "  test_it.py::test_old under 16-mixed",
        ])  # fmt: skip
        assert known(both) == before
        assert both.runpytest_inprocess(*RUN, WRITE).ret == 0
        assert known(both) == ""

    @pytest.mark.usefixtures("forked_python")
    def test_workers_judge_and_the_controller_writes(self, both: pytest.Pytester) -> None:
        pytest.importorskip("xdist")
        lean = ("-n2", "-p", "no:hypothesispytest", "-p", "no:benchmark")
        both.makeconftest(FAKED_LIGHT + LIGHT_EXCESS)
        same = both.runpytest_subprocess(*RUN, *lean)
        same.assert_outcomes(passed=2, xfailed=2)
        checks(both, r=14.0, other="[]")
        result = both.runpytest_subprocess(*RUN, *lean)
        result.assert_outcomes(passed=3, failed=1)
        result.stdout.fnmatch_lines(["worse than known by *: forward layer is 4.67 times its limit, where 3 is known"])
        result.stdout.fnmatch_lines(["  mended     overflow at forward in test_it.py::test_other under bf16-mixed"])
        assert "test_old" in known(both)
        assert "test_other" not in known(both)


LIGHT_EXCESS = """
from precheck.judge.known_failures import Fault, Reach, Observed

def seen(report):
    beyond = {"forward layer": Reach(row.r / 3, 1.5, clear=row.r > 4.5) for row in report.boundaries if row.r > 2}
    return Observed(tuple(Fault(f.rule, "forward", f.measured) for f in report.errors), beyond)

sys.modules["precheck.judge.beyond_limits"] = types.SimpleNamespace(errors_and_places=seen)
"""


def test_each_check_of_a_test_is_known_on_its_own_and_the_test_goes_on(told: pytest.Pytester) -> None:
    first, second = "check_precision(9.0, {'16-mixed': [('error', 'nan')]})", "check_precision(9.0, {'16-mixed': [('error', 'overflow')]})"
    told.makepyfile(test_it=f"def test_it(check_precision):\n    {first}\n    {second}\n")
    told.runpytest_inprocess("--precision=16-mixed", WRITE).assert_outcomes(xfailed=1)
    assert known(told).count("[[failure]]") == 2
    assert "check = 2" in known(told)
    told.makepyfile(test_it=f"def test_it(check_precision):\n    {first}\n    check_precision(1.0, {{}})\n    assert 0, 'its own'\n")
    result = told.runpytest_inprocess("--precision=16-mixed")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * AssertionError: its own", "  mended     overflow at forward in test_it.py::test_it under 16-mixed, check 2"])


def test_runxfail_knows_of_nothing(project_told: pytest.Pytester) -> None:
    before = known(project_told)
    assert project_told.runpytest_inprocess(*RUN, "--runxfail").ret == 1
    assert known(project_told) == before


def test_a_stale_golden_cannot_be_known(told: pytest.Pytester) -> None:
    checks(told, old='[("error", "golden-stale")]')
    result = told.runpytest_inprocess(*RUN, WRITE)
    result.assert_outcomes(passed=3, failed=1)
    assert known(told) == ""


def test_what_markers_allow_is_not_recorded(told: pytest.Pytester) -> None:
    told.makepyfile("import pytest\n@pytest.mark.allow_finding('nan', reason='x')\ndef test_it(check_precision):\n"
                    "    check_precision(9.0, {'16-mixed': [('error', 'nan')]})\n")  # fmt: skip
    told.runpytest_inprocess("--precision=16-mixed", WRITE).assert_outcomes(passed=1)
    assert known(told) == ""


def test_another_file_by_option_and_by_ini(told: pytest.Pytester) -> None:
    checks(told)
    (told.path / "kept").mkdir()
    assert told.runpytest_inprocess(*RUN, WRITE, "--known-failures=kept/known.toml").ret == 0
    assert (told.path / "kept" / "known.toml").exists()
    assert known(told) == ""
    assert told.runpytest_inprocess(*RUN, "--known-failures=kept/known.toml").ret == 0
    assert told.runpytest_inprocess(*RUN).ret == 1
    told.makeini("[pytest]\nprecision_known = kept/known.toml\n")
    assert told.runpytest_inprocess(*RUN).ret == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((WRITE, "--golden-refresh"), "*--known-failures-write records checks that fail, and --golden-refresh makes none; refresh first*"),
        ((WRITE, "--runxfail"), "*--known-failures-write records what fails as known, and --runxfail knows of nothing; leave one of them out"),
        (("--known-failures=gone.toml",), "*--known-failures=gone.toml: there is no such file; record one with --known-failures-write, or *"),
        (("--known-failures=folder", WRITE), "*--known-failures=folder: that is a folder; name a file, as in precision-known.toml"),
        (("--known-failures=broken.toml",), "*broken.toml: failure 1 (*): there is no key 'untill'; there are test, precision, *"),
    ],
)
def test_options_that_contradict_or_mean_nothing(told: pytest.Pytester, options: tuple[str, ...], message: str) -> None:
    (told.path / "folder").mkdir()
    (told.path / "broken.toml").write_text('[[failure]]\ntest = "a.py::b"\nuntill = 3\n', encoding="utf8")
    result = told.runpytest_inprocess(*options)
    result.stderr.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_file_broken_during_the_run_is_not_overwritten(project_told: pytest.Pytester) -> None:
    checks(project_told, r=1.0, old="[]")
    with (project_told.path / "test_it.py").open("a", encoding="utf8") as file:
        file.write("\ndef test_last(): open('precision-known.toml', 'w').write('<<<<<<< ours')\n")
    result = project_told.runpytest_inprocess(*RUN)
    result.stdout.fnmatch_lines(["*precision-known.toml is no TOML *; was a merge left half done? *"])
    assert result.ret == 1
    assert known(project_told) == "<<<<<<< ours"


def test_a_real_failure_is_known_mended_and_forgotten(pytester: pytest.Pytester, project: Project) -> None:
    project(OVERFLOWS)
    options = ("--precision=16-true,16-mixed",)
    assert pytester.runpytest_inprocess(*options, WRITE).ret == 0
    text = known(pytester)
    assert re.findall(r'^at = "(.*)"', text, re.M) == ["forward wide", "forward"]
    assert '"forward wide" = inf' in text
    pytester.runpytest_inprocess(*options).assert_outcomes(xfailed=2)
    file = pytester.path / "test_it.py"
    file.write_text(file.read_text(encoding="utf8").replace("self.wide(x * 1e5) / 1e5", "self.wide(x)"), encoding="utf8")
    pytester.runpytest_inprocess("--golden-refresh")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(passed=2)
    assert not Path(pytester.path / "precision-known.toml").exists()


def test_a_model_without_a_test_file_is_known_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(models="import torch\ndef make(): return {'model': lambda x: x * 1e5, 'inputs': torch.randn(4, 8)}")
    options = ("--precision=16-true", "--precision-model=models:make")
    pytester.runpytest_inprocess(*options, WRITE).assert_outcomes(xfailed=1)
    assert 'test = "precision-model::models:make"' in known(pytester)
    pytester.runpytest_inprocess(*options).assert_outcomes(xfailed=1)
    pytester.makepyfile(test_it="def test_it(check_precision): pass")
    pytester.runpytest_inprocess().stdout.no_fnmatch_line("*not there*")
