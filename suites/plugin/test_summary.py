"""The section at the end: when it is there, what its counts are, and what it leaves to pytest."""

from __future__ import annotations

import pytest
from projects import HEALTHY, Project

MIXED = """
    import pytest

    def test_good(check_precision):
        check_precision(1.0, {})

    def test_bad(check_precision):
        check_precision(1.0, {})
        check_precision(4.0, {"bf16-mixed": [("error", "accumulated-drift")]})

    def test_fails_by_itself(check_precision):
        check_precision(2.0, {})
        assert False

    def test_not_used():
        pass
"""


def test_checks_are_counted_by_their_own_verdict(told: pytest.Pytester) -> None:
    told.makepyfile(test_it=MIXED)
    result = told.runpytest_inprocess("--precision=bf16,tf32")
    result.stdout.fnmatch_lines(
        [
            "*= precheck =*",
            "4 checks under bf16-mixed: 3 passed, 1 failed; worst r 4 of 3 allowed: output of layer in test_it.py::test_bad[[]bf16-mixed]",
            "4 checks under tf32: 4 passed, 0 failed; worst r 4 of 3 allowed (the report gives no reason): output of layer in *::test_bad[[]tf32]",
        ]
    )
    result.assert_outcomes(passed=4, failed=3)


def test_a_check_without_a_verdict_is_counted_apart(told: pytest.Pytester) -> None:
    told.makepyfile("def test_it(check_precision):\n    check_precision(1.0, None)")
    result = told.runpytest_inprocess()
    result.stdout.fnmatch_lines(["1 check under 32-true: 0 passed, 0 failed, 1 without a verdict"])
    assert result.ret == 1


def test_quiet_says_nothing_where_all_is_well_and_the_rest_otherwise(told: pytest.Pytester) -> None:
    told.makepyfile(test_it="def test_good(check_precision):\n    check_precision(1.0, {})")
    told.runpytest_inprocess("-q", "--precision=bf16").stdout.no_fnmatch_line("*= precheck =*")
    told.makepyfile(test_it=MIXED)
    told.runpytest_inprocess("-q", "--precision=bf16").stdout.fnmatch_lines(["*= precheck =*", "4 checks under bf16-mixed: 3 passed, 1 failed*"])
    told.runpytest_inprocess("-q", "-k", "itself").stdout.fnmatch_lines(["*= precheck =*", "1 check under 32-true: 1 passed, 0 failed*"])


def test_quiet_says_what_was_written(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, record=False)
    pytester.runpytest_inprocess("-q", "--golden-refresh").stdout.fnmatch_lines(["goldens: 1 written", "  written  golden/test_it/*"])
    pytester.runpytest_inprocess("-q", "--golden-refresh").stdout.no_fnmatch_line("*golden*")


def test_nothing_is_said_when_tests_are_only_collected(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY)
    (golden / "left.safetensors").write_bytes(b"")
    result = pytester.runpytest_inprocess("--collect-only", "--precision=bf16", "--drift-report=json:drift.json")
    assert not (pytester.path / "drift.json").exists(), "an earlier report is not overwritten with an empty one"
    result.stdout.fnmatch_lines(["*<Function test_healthy[[]bf16-mixed]>*"])
    result.stdout.no_fnmatch_line("*= precheck =*")
    assert result.ret == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("def test_it(check_precision): check_precision(1.0, {})", pytest.ExitCode.OK),
        ("def test_it(check_precision): check_precision(9.0, {'32-true': [('error', 'nan')]})", pytest.ExitCode.TESTS_FAILED),
        ("def test_it(check_precision): check_precision(9.0, {'32-true': [('warning', 'nan')]})", pytest.ExitCode.OK),
        ("def helper(check_precision): pass", pytest.ExitCode.NO_TESTS_COLLECTED),
        ("def test_it(check_precision): raise KeyboardInterrupt", pytest.ExitCode.INTERRUPTED),
    ],
)
def test_exit_statuses_are_pytests_own(told: pytest.Pytester, code: str, status: pytest.ExitCode) -> None:
    told.makepyfile(code)
    assert told.runpytest_inprocess(no_reraise_ctrlc=True).ret == status


def test_in_ci_the_short_summary_has_the_first_line_of_a_failure(told: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    told.makepyfile(
        test_it="""
        import pytest

        def test_it(check_precision):
            check_precision(4.5, {"bf16-mixed": [("error", "overflow")]})

        def test_other(precision):
            assert not "one\\ntwo"
        """
    )
    monkeypatch.setenv("CI", "true")
    result = told.runpytest_inprocess("--precision=bf16")
    failures, _, summary = result.stdout.str().partition("short test summary info")
    again = 'to see this again: pytest --precision=bf16-mixed "'
    assert again in failures
    assert again not in summary
    assert "FAILED test_it.py::test_it[bf16-mixed] - Failed: overflow: told of layer under bf16-mixed" in summary.splitlines()[1]
    assert "one\\ntwo" in summary, "what another test says is left as it is"
