"""--precheck-selftest: a test whose checks could not have failed fails; the table, exit statuses, xdist, -q."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from projects import HEALTHY, OVERFLOWS, Project

from precheck.report import schema

STEPS = '''
def test_steps(check_precision):
    check_precision(make(), data(), loss=loss, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-2), steps=2)
'''

RATE = '''
def test_rate(check_precision):
    check_precision(make(), data(), loss=loss, optimizer=lambda ps: torch.optim.AdamW(ps, lr=0.0))
'''

CONSTANT = '''
class Constant(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 16)

    def forward(self, x):
        return torch.ones_like(self.layer(x))


def test_constant(check_precision):
    torch.manual_seed(0)
    check_precision(make(), data())
    check_precision(Constant(), data())
'''

SUMMARY = "*= precheck selftest =*"
NOT_ASKED = "no check that passed, so that no fault was planted"


def cells(result: pytest.RunResult, name: str) -> list[str]:
    """What the table has for the check with that name: the faults' cells, in order, then the precision."""
    start = next(place for place, line in enumerate(result.outlines) if "= precheck selftest =" in line)
    line = next(line for line in result.outlines[start:] if line.rstrip().endswith(name))
    return re.split(r"\s{2,}", line.strip())[:-1]


def test_a_healthy_suite_passes_and_the_table_says_what_each_check_caught(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, STEPS)
    result = pytester.runpytest_inprocess("--precision=32-true,bf16-true", "--precheck-selftest")
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines([SUMMARY, "20 of 20 faults caught in 4 checks", "  lost update  skipped step  overflow  drift *zeroed *stale *check"])
    lost, skipped, overflow, drift, *outputs, precision = cells(result, "test_it.py::test_steps[bf16-true]")
    assert (lost, skipped, overflow, outputs, precision) == ("caught", "-", "caught", ["caught"] * 3, "bf16-true")
    size = re.fullmatch(r"caught \((.*)%\)", drift)
    assert size, drift
    assert 1 < float(size[1]) < 50, "a few noise floors of bfloat16 (u = 0.4%), four times over"
    assert cells(result, "test_it.py::test_healthy[32-true]")[:3] == ["-", "-", "-"]
    result.stdout.fnmatch_lines(["  -  lost update: no step is taken: pass optimizer= * (2 checks)", "  -  overflow: nothing overflows in 32-true *"])


def test_a_check_that_cannot_fail_fails_its_test_and_says_why(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, RATE, CONSTANT)
    pytester.runpytest_inprocess().assert_outcomes(passed=3)
    result = pytester.runpytest_inprocess("--precheck-selftest")
    result.assert_outcomes(passed=1, failed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "selftest: 1 of 5 faults planted into this check went unnoticed under 32-true: lost update",
            "  lost update: no parameter moves in 1 step, so that one that does not arrive changes nothing",
            "    cure: raise the learning rate above 0, or leave the optimizer out",
            "selftest: 1 of 3 faults planted into this check (call 2) went unnoticed under 32-true: stale",
            "  stale: the model's output is the one for another input (each tensor back to front), 0% away; limit: 0.*% of its norm",
            "    cure: the output hardly depends on the input: *",
            SUMMARY,
            "14 of 16 faults caught in 4 checks; 2 of these could not have failed",
            "FAILED test_it.py::test_rate[[]32-true] - Failed: selftest: 1 of 5 faults *",
        ]
    )
    assert cells(result, "test_constant[32-true] (call 2)")[5:7] == ["same", "UNNOTICED"]
    assert cells(result, "test_constant[32-true]")[5:7] == ["caught", "caught"]
    result.stdout.fnmatch_lines(["  same  shuffled: the input cannot show it: the rows of the model's output are equal *"])


@pytest.mark.usefixtures("forked_python")
def test_reports_have_it_too_also_under_xdist(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, RATE)
    forms = ("--drift-report=json:{}.json", "--drift-report=markdown:{}.md")
    files = [form.format("alone") for form in forms]
    one = pytester.runpytest_inprocess("--precheck-selftest", "-p", "no:xdist", "--junitxml=alone.xml", *files)
    (alone, names) = told(pytester, "alone")
    assert names == [("test_healthy", ""), ("test_rate", "lost update")]
    assert {each["status"] for each in alone[0]["outcomes"]} == {"caught", "inapplicable"}
    assert [alone[1][name] for name in ("call", "verb", "precision")] == [1, "check_precision", "32-true"]
    assert (pytester.path / "test_it.py").read_text("utf8").splitlines()[alone[1]["line"] - 1].startswith("def test_rate")
    assert "### Self-test: 8 of 9 faults caught in 2 checks; 1 of these could not have failed\n" in (pytester.path / "alone.md").read_text("utf8")
    cases = ElementTree.parse(pytester.path / "alone.xml").iter("testcase")
    properties = {case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")} for case in cases}
    assert properties["test_healthy[32-true]"]["precheck_selftest_caught"] == "drift,zeroed,shuffled,stale"
    assert properties["test_rate[32-true]"]["precheck_selftest_unnoticed"] == "lost update"
    pytest.importorskip("xdist")
    lean = ("-n1", "-p", "no:hypothesispytest", "-p", "no:benchmark")
    spread = pytester.runpytest_subprocess("--precheck-selftest", *lean, *(form.format("spread") for form in forms))
    assert told(pytester, "spread") == (alone, names)
    for result in (one, spread):
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines([SUMMARY, "8 of 9 faults caught in 2 checks; 1 of these could not have failed"])
    assert section(spread) == section(one)


def section(result: pytest.RunResult) -> list[str]:
    """The lines of the self-test's section, but for the one of the files that were written."""
    lines = result.outlines
    start = next(place for place, line in enumerate(lines) if "= precheck selftest =" in line) + 1
    end = next(place for place in range(start, len(lines)) if lines[place].startswith("=="))
    return lines[start:end]


def told(pytester: pytest.Pytester, name: str) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """A report's self-test, and of each check what went unnoticed."""
    found: list[dict[str, Any]] = json.loads((pytester.path / f"{name}.json").read_text("utf8"))["selftest"]
    missed = [",".join(each["fault"] for each in check["outcomes"] if each["status"] == "unnoticed") for check in found]
    return found, [(check["nodeid"].partition("::")[2].partition("[")[0], lost) for check, lost in zip(found, missed, strict=True)]


def test_without_the_option_reports_have_none(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    pytester.runpytest_inprocess("--drift-report=json:drift.json")
    assert "selftest" not in json.loads((pytester.path / "drift.json").read_text("utf8"))


PLAIN = """
from precheck.goldens.lifecycle import refresh
from precheck.measurement import job_of


def held(tmp_path, model, **settings):
    refresh(tmp_path / "it.safetensors", job_of(model, data(), **settings))
    return tmp_path / "it.safetensors"


class Constant(torch.nn.Linear):
    def forward(self, x):
        return torch.ones_like(super().forward(x))


@pytest.fixture
def checked(tmp_path):
    return precheck.check(make(), data(), golden=held(tmp_path, make()), precision="bf16-true")


def test_in_a_fixture(checked):
    assert not checked.errors


def test_plain(tmp_path):
    torch.manual_seed(0)
    model = Constant(8, 4)
    found = precheck.check(Overflows(), data(), golden=held(tmp_path, Overflows()), precision="16-mixed")
    assert found.errors, "so that nothing is planted"
    report = precheck.check(model, data(), golden=held(tmp_path, model), precision="bf16-mixed")
    assert not report.errors
    assert not precheck.check(make(), data(), golden=held(tmp_path, make(), loss=loss), loss=loss).errors


def test_both(check_precision, tmp_path):
    check_precision(make(), data())
    assert not precheck.check(make(), data(), golden=held(tmp_path, make())).errors
"""


def test_checks_that_do_not_come_from_the_fixture_are_tried_too(pytester: pytest.Pytester, project: Project) -> None:
    project(PLAIN)
    result = pytester.runpytest_inprocess("--precheck-selftest", "--drift-report=json:drift.json")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "selftest: 1 of 4 faults planted into this precheck.check (call 2) went unnoticed under bf16-mixed: stale",
            SUMMARY,
            "* faults caught in 5 checks; 1 of these could not have failed",
            "FAILED test_it.py::test_plain - Failed: selftest: 1 of 4 faults *",
        ]
    )
    found, _ = told(pytester, "drift")
    assert [(each["nodeid"].partition("::")[2], each["verb"], each["call"], each["precision"]) for each in found] == [
        ("test_both[32-true]", "check_precision", 1, "32-true"),
        ("test_both[32-true]", "precheck.check", 1, "32-true"),
        ("test_in_a_fixture", "precheck.check", 1, "bf16-true"),
        ("test_plain", "precheck.check", 2, "bf16-mixed"),
        ("test_plain", "precheck.check", 3, "32-true"),
    ]
    assert cells(result, "test_plain (precheck.check, call 2)")[6] == "UNNOTICED"
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


def test_quiet_says_nothing_where_all_is_caught(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    result = pytester.runpytest_inprocess("-q", "--precheck-selftest")
    result.stdout.no_fnmatch_line(SUMMARY)
    assert result.ret == 0
    project(RATE)
    result = pytester.runpytest_inprocess("-q", "--precheck-selftest")
    result.stdout.fnmatch_lines([SUMMARY, "4 of 5 faults *", "  UNNOTICED *"])
    assert result.ret == 1


def test_what_fails_by_itself_is_not_tried_or_not_told(pytester: pytest.Pytester, project: Project) -> None:
    later = HEALTHY.replace("test_healthy", "test_later") + "    assert False, 'of the test'\n"
    project(OVERFLOWS, later, record=False)
    pytester.runpytest_inprocess("--golden-refresh", "-q")
    result = pytester.runpytest_inprocess("--precision=16-mixed", "--precheck-selftest")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([SUMMARY, NOT_ASKED])
    result.stdout.no_fnmatch_line("*selftest: *")


def test_a_test_that_is_expected_to_fail_cannot_hide_a_deaf_check(pytester: pytest.Pytester, project: Project) -> None:
    project(RATE.replace("def test_rate", "@pytest.mark.xfail(strict=False)\ndef test_rate"))
    result = pytester.runpytest_inprocess("--precheck-selftest")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines([SUMMARY, "4 of 5 faults caught in 1 check; 1 of these could not have failed"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_test_that_demands_a_finding_has_its_fault_already(pytester: pytest.Pytester, project: Project) -> None:
    project(OVERFLOWS.replace("def test_", '@pytest.mark.expect_finding("overflow")\ndef test_'), record=False)
    pytester.runpytest_inprocess("--golden-refresh", "-q")
    result = pytester.runpytest_inprocess("--precision=16-mixed", "--precheck-selftest")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([SUMMARY, "0 of 0 faults caught in 1 check", "*the test demands overflow (expect_finding)*"])


def test_a_marker_that_lets_everything_through_leaves_a_check_that_cannot_fail(pytester: pytest.Pytester, project: Project) -> None:
    allowed = "".join(f'@pytest.mark.allow_finding("{rule}", reason="known")\n' for rule in ("accumulated-drift", "overflow"))
    one = HEALTHY.replace("def test_healthy", '@pytest.mark.allow_finding("accumulated-drift", reason="known")\ndef test_one')
    project(HEALTHY.replace("def ", f"{allowed}def ", 1), one)
    result = pytester.runpytest_inprocess("--precision=bf16", "--precheck-selftest")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "selftest: none of 5 faults planted into this check fails it under bf16-mixed: markers allow all that is noticed",
            "  drift: output of *",
            "    noticed as accumulated-drift, which allow_finding lets through at any size",
        ]
    )
    assert cells(result, "test_one[bf16-mixed]")[2] == "caught"


def test_nothing_is_planted_without_the_option(pytester: pytest.Pytester, project: Project) -> None:
    project(RATE)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*selftest*")


def test_a_suite_without_checks_is_told_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("--precheck-selftest")
    result.stdout.fnmatch_lines([SUMMARY, NOT_ASKED])
    assert result.ret == 0


def test_it_is_refused_together_with_a_refresh(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("--precheck-selftest", "--golden-refresh")
    result.stderr.fnmatch_lines(["ERROR: --precheck-selftest plants faults into checks, and --golden-refresh makes none; *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_help_says_what_it_costs(pytester: pytest.Pytester) -> None:
    text = " ".join(pytester.runpytest_inprocess("--help").stdout.str().split())
    assert re.search(r"--precheck-selftest repeat each check that passed, with faults planted .*; each costs .* about ten runs of the model", text)


PAIRS = '''
def test_port(check_parity):
    model = make()
    check_parity(model, lambda x: model(x.clone()), data())


def test_ways(check_invariance):
    check_invariance(make(), data(), ("order", "batch"))
'''

DEAF = '''
def test_deaf(check_parity):
    check_parity(Constant(), Constant(), data())
'''


def test_comparisons_are_asked_too(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, PAIRS, CONSTANT, DEAF)
    result = pytester.runpytest_inprocess("--precheck-selftest", "-k", "port or ways or deaf")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "selftest: 1 of 3 faults planted into this check went unnoticed under 32-true: stale",
            "  stale: what other returns is the result for another input (each tensor back to front), which changes it by 0%",
            SUMMARY,
            "10 of 11 faults caught in 3 checks; 1 of these could not have failed",
        ]
    )
    zeroed, shuffled, scaled, stale, precision = cells(result, "test_it.py::test_port[32-true]")
    assert (zeroed, shuffled, stale, precision) == ("caught", "caught", "caught", "32-true")
    assert re.fullmatch(r"caught \(.*%\)", scaled), scaled
    assert cells(result, "test_it.py::test_ways[32-true]")[:2] == ["caught", "caught"]


KERNELS = """
import torch


def test_kernel(check_kernel):
    check_kernel(lambda x: x * 2, lambda x: x + x, torch.randn(3, 5), trials=20)


def test_kept(check_kernel):
    check_kernel(lambda x: x * 0 + 1, lambda x: x * 0 + 1, torch.randn(3, 5), trials=20)
"""


def test_kernels_are_asked_too(pytester: pytest.Pytester, project: Project) -> None:
    project(KERNELS)
    result = pytester.runpytest_inprocess("--precheck-selftest", "--drift-report=json:drift.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "selftest: 2 of 4 faults planted into this check went unnoticed under 32-true: stale, gradient",
            "  stale: what the candidate returns is the result for other inputs (each tensor back to front), which changes it by 0%",
            SUMMARY,
            "7 of 9 faults caught in 2 checks; 1 of these could not have failed",
        ]
    )
    assert cells(result, "test_it.py::test_kernel")[:2] == ["caught", "caught"]
    text = (pytester.path / "drift.json").read_text("utf8")
    assert schema.fault("session", json.loads(text)) == ""
    assert [check["verb"] for check in json.loads(text)["selftest"]] == ["check_kernel", "check_kernel"]
