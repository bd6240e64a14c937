"""`--precheck-selftest`: repeats each passed check with planted faults, and fails a test whose check could not have failed.

A check is a call of `check_precision`, `check_parity` or `check_invariance`, or of `precheck.check` itself in a test or its fixtures.
Registered only with the option.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.observe.listeners import judging
from precheck.plugin.markers import Expectations
from precheck.plugin.naming import plain_id
from precheck.plugin.results import is_worker
from precheck.precisions import Precision
from precheck.report.sensitivity import fails, failure, table

if TYPE_CHECKING:
    from precheck.findings import Report
    from precheck.observe.job import Job
    from precheck.selftests.checks import Outcome

_FOUND = pytest.StashKey[list[dict[str, Any]]]()
_PLAIN = pytest.StashKey["_Plain"]()
_READY = pytest.StashKey[list[dict[str, Any]]]()


def store(item: pytest.Item, verb: str, number: int, precision: Precision, wishes: Expectations, tried: Callable[..., list[Outcome]]) -> None:
    """Stores whether a passed check could have failed. `tried` plants the faults, and takes `tolerated`. A test that expects an error needs none."""
    from precheck.selftests import checks, kernels, pairs

    faults = {"check_kernel": kernels, "check_parity": pairs, "check_invariance": pairs}.get(verb, checks).FAULTS
    _keep(item, verb, number, precision, checks.expected(min(wishes.expected), faults) if wishes.expected else tried(tolerated=wishes.allowed))


def _keep(item: pytest.Item, verb: str, call: int, precision: Precision, outcomes: list[Outcome]) -> None:
    found = {
        "nodeid": plain_id(item, precision.name), "line": (item.location[1] or 0) + 1, "call": call,
        "verb": verb, "precision": precision.name,
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
    }  # fmt: skip
    item.stash.setdefault(_FOUND, []).append(found)
    item.user_properties += [  # one pair for each check of a test
        ("precheck_selftest_caught", ",".join(each.fault for each in outcomes if each.status == "caught")),
        ("precheck_selftest_unnoticed", ",".join(each.fault for each in outcomes if each.status in ("unnoticed", "allowed"))),
    ]


class _Plain:
    """Self-tests each call of `precheck.check` that finds no errors, whatever the test does with its report."""

    def __init__(self, item: pytest.Item) -> None:
        self.item, self.calls = item, 0

    def __call__(self, job: Job, precision: Precision, golden: str | Path, report: Report) -> None:
        from precheck.selftests.checks import selftested

        self.calls += 1
        if not report.errors:
            settings: dict[str, Any] = {"loss": job.loss, "optimizer": job.optimizer, "steps": job.steps, "seed": job.seed}
            outcomes = selftested(job.model, job.inputs, golden=golden, precision=precision, **settings)
            _keep(self.item, "precheck.check", self.calls, precision, outcomes)


class SelfTest:
    """The hooks of a run with the option."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[_FOUND] = []  # for this attempt; some plugins run a test several times
        item.stash[_PLAIN] = _Plain(item)
        with judging(item.stash[_PLAIN]):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with judging(item.stash[_PLAIN]):
            result = yield
        found = item.stash[_FOUND]
        item.stash[_READY] = found
        text = failure(found)
        if text:
            pytest.fail(text, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if _READY in item.stash:  # each check once, although a test has several reports
            found, item.stash[_READY] = item.stash[_READY], []
            report.__dict__["precheck_selftest"] = json.loads(json.dumps(found, default=float))  # plain data, which xdist can send
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome in ("passed", "failed", "skipped"):  # not the "rerun" of a plugin, which is not final
            self.checks += getattr(report, "precheck_selftest", [])

    def found(self) -> list[dict[str, Any]]:
        """The outcomes for each check, in an order that does not depend on the workers."""
        return sorted(self.checks, key=lambda check: (check["nodeid"], check["verb"], check["call"]))

    @property
    def deaf(self) -> bool:
        return any(fails(check["outcomes"]) for check in self.checks)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Makes the session fail if a check could not have failed, also if its test is marked xfail."""
        if self.deaf and not is_worker(session.config) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.collectonly or (config.get_verbosity() < 0 and not self.deaf):
            return
        terminalreporter.write_sep("=", "precheck selftest")
        for line in table(self.found()):
            terminalreporter.write_line(line)
