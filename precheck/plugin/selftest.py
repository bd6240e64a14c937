"""`--precheck-selftest`: each check of a test that passes is made again with faults planted, and one that could not have failed fails.

Registered only where the option is given.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator
from typing import Any

import pytest

from precheck.plugin import xdist
from precheck.plugin.markers import Expectations
from precheck.plugin.naming import plain_id
from precheck.precisions import Precision
from precheck.report.sensitivity import fails, failure, table

_FOUND = pytest.StashKey[list[dict[str, Any]]]()
_READY = pytest.StashKey[list[dict[str, Any]]]()


def tried(item: pytest.Item, call: int, precision: Precision, wishes: Expectations, model: Any, inputs: Any, **settings: Any) -> None:
    """Plants the faults into a check that passed, and keeps what became of them for the end of the test."""
    from precheck.selftest import expected, selftested

    if wishes.expected:
        outcomes = expected(min(wishes.expected))
    else:
        outcomes = selftested(model, inputs, precision=precision, tolerated=wishes.allowed, **settings)
    found = {
        "nodeid": plain_id(item, precision.name), "line": (item.location[1] or 0) + 1, "call": call,
        "verb": "check_precision", "precision": precision.name,
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
    }  # fmt: skip
    item.stash.setdefault(_FOUND, []).append(found)
    item.user_properties += [  # of several checks in a test, one after another
        ("precheck_selftest_caught", ",".join(each.fault for each in outcomes if each.status == "caught")),
        ("precheck_selftest_unnoticed", ",".join(each.fault for each in outcomes if each.status in ("unnoticed", "allowed"))),
    ]


class SelfTest:
    """Hooks of a run with the option."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[_FOUND] = []  # of this attempt; some plugins make several

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
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
        if _READY in item.stash:  # each once, whatever is reported of a test after its call
            found, item.stash[_READY] = item.stash[_READY], []
            report.__dict__["precheck_selftest"] = json.loads(json.dumps(found, default=float))  # what is plain, xdist carries
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome in ("passed", "failed", "skipped"):  # a plugin's "rerun" is not the last word
            self.checks += getattr(report, "precheck_selftest", [])

    def found(self) -> list[dict[str, Any]]:
        """What became of the faults, a check each, in an order that does not hang on which worker came first."""
        return sorted(self.checks, key=lambda check: (check["nodeid"], check["call"]))

    @property
    def deaf(self) -> bool:
        return any(fails(check["outcomes"]) for check in self.checks)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Also where the test that failed was expected to (xfail)."""
        if self.deaf and not xdist.is_worker(session.config) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.collectonly or (config.get_verbosity() < 0 and not self.deaf):
            return
        terminalreporter.write_sep("=", "precheck selftest")
        for line in table(self.found()):
            terminalreporter.write_line(line)
