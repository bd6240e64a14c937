"""--precision-durations: which checks took longest, and what took the time. Tests read the form of the lines, never how long anything took."""

from __future__ import annotations

import contextvars
import re
import shutil
from pathlib import Path

import pytest

from precheck.observe.listeners import Stopwatch, doing, timed
from precheck.plugin import summary
from precheck.plugin.results import Check

PROJECT = """
import torch

class Cancels(torch.nn.Module):
    def forward(self, x):
        return (x + 30).square().mean(-1, keepdim=True) - (x + 30).mean(-1, keepdim=True) ** 2

def model(*last):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), *last)

def test_healthy(check_precision):
    check_precision(model(), torch.randn(4, 16))

def test_faulty(check_precision):
    check_precision(model(Cancels()), torch.randn(4, 16))

def test_watched(watch_precision):
    with watch_precision(net := model()):
        net(torch.randn(4, 16))

def test_pair(check_parity):
    check_parity(model(), model(), torch.randn(4, 16))
"""
PRINTS_PARTS = """
def pytest_runtest_logreport(report):
    for check in report.precheck["checks"]:
        print("parts:", sorted(check["parts"]))
"""
LEAN = ("-p", "no:hypothesispytest", "-p", "no:benchmark")  # which each worker would import
ROW = re.compile(r" +[\d.]+ s  (\S+): (.*)")


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first of these tests leaves what it has recorded."""
    return tmp_path_factory.mktemp("recorded") / "golden"


@pytest.fixture
def told(pytester: pytest.Pytester, goldens: Path) -> pytest.Pytester:
    pytester.makepyfile(test_net=PROJECT)
    if goldens.exists():
        shutil.copytree(goldens, pytester.path / "golden")
    else:
        assert pytester.runpytest_inprocess("--golden-refresh=missing").ret == 0
        shutil.copytree(pytester.path / "golden", goldens)
    return pytester


def rows(result: pytest.RunResult) -> dict[str, str]:
    """What took the time of each check that is listed, by node id."""
    title = next((place for place, line in enumerate(result.outlines) if re.fullmatch(r"\d+ checks? took [\d.]+ s; the slowest:", line)), None)
    if title is None:
        return {}
    found = [ROW.fullmatch(line) for line in result.outlines[title + 1 :]]
    return {row[1]: row[2] for row in found if row}


def test_a_quiet_run_that_passes_lists_them_too(told: pytest.Pytester) -> None:
    assert len(rows(told.runpytest_inprocess("-q", "--precision=bf16", "--precision-durations=1", "-k", "healthy"))) == 1


@pytest.mark.parametrize(("given", "shown"), [("2", 2), ("9", 4)])
def test_as_many_checks_as_asked_are_listed(told: pytest.Pytester, given: str, shown: int) -> None:
    assert len(rows(told.runpytest_inprocess("--precision=bf16", f"--precision-durations={given}"))) == shown


def test_each_kind_of_check_is_listed(told: pytest.Pytester) -> None:
    found = rows(told.runpytest_inprocess("--precision=bf16", "--precision-durations=0"))
    assert set(found) == {f"test_net.py::test_{name}[bf16-mixed]" for name in ("healthy", "faulty", "watched", "pair")}


def test_the_parts_of_a_check_are_timed(told: pytest.Pytester) -> None:
    """Which of them are listed is for the clock to say, so they are read from the test's report."""
    told.makeconftest(PRINTS_PARTS)
    checked = told.runpytest_inprocess("-s", "--precision=bf16", "-k", "faulty")
    checked.stdout.fnmatch_lines(["*parts: *'loading precheck'*'looking at every op'*'looking for a remedy'*"])
    watched = told.runpytest_inprocess("-s", "--precision=bf16", "-k", "watched")
    watched.stdout.fnmatch_lines(["*parts: *'judging the block', 'running the block beside its reference'*"])
    recorded = told.runpytest_inprocess("-s", "--golden-refresh=all", "-k", "healthy")
    recorded.stdout.fnmatch_lines(["*parts: *'recording the golden'*"])


def test_the_ini_file_asks_too_and_the_command_line_wins(told: pytest.Pytester) -> None:
    told.makeini("[pytest]\nprecision_durations = 1\n")
    assert len(rows(told.runpytest_inprocess("--precision=bf16"))) == 1
    assert len(rows(told.runpytest_inprocess("--precision=bf16", "--precision-durations=3"))) == 3


@pytest.mark.usefixtures("forked_python")
def test_xdist_tells_of_all_workers(told: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    assert len(rows(told.runpytest_inprocess("-n2", *LEAN, "--precision=bf16", "--precision-durations=0"))) == 4


@pytest.mark.parametrize("given", ["-1"])
def test_a_number_that_means_nothing_is_refused(told: pytest.Pytester, given: str) -> None:
    result = told.runpytest_inprocess(f"--precision-durations={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--precision-durations={given}; accepted is a whole number from 0 (0: all checks)"])


def test_a_part_may_end_in_another_context_than_it_began_in() -> None:
    """As a block does that a fixture of asyncio enters in one task and leaves in another."""
    stopwatch = Stopwatch()
    with timed(stopwatch):
        first, second = contextvars.copy_context(), contextvars.copy_context()
    block = first.run(doing, "watching")
    first.run(block.__enter__)
    second.run(block.__exit__, None, None, None)
    assert list(stopwatch.parts) == ["watching"]


def test_unasked_only_slow_checks_are_listed() -> None:
    checks = [Check("a", "", "bf16-mixed", seconds=14.0), Check("b", "", "bf16-mixed", seconds=75.0, parts={"noise run": 60.0, "loading": 1.0})]
    assert summary._durations(checks[:1], None) == []
    assert summary._durations(checks, None) == ["2 checks took 89 s; the slowest:", "      75 s  b: noise run 60 s, the rest 14 s"]
    assert [line.split()[2] for line in summary._durations(checks, 0)[1:]] == ["b:", "a:"]


def test_a_stopwatch_adds_up_what_differs_in_number_only() -> None:
    stopwatch = Stopwatch()
    with timed(stopwatch):
        for number in (1, 2):
            with doing(f"noise run {number} of 2"), doing("step 2 of 3"):
                pass
        with doing("looking for a remedy, trial 1 of at most 12"):
            pass
    with doing("looking at every op"):
        pass
    assert list(stopwatch.parts) == ["noise run", "looking for a remedy"]
    assert sum(stopwatch.parts.values()) <= stopwatch.seconds
