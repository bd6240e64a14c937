"""The hooks that pytest calls. Imports neither torch nor numpy, and only the parts of the plugin that every run needs, to start fast.

Exit statuses are pytest's own. 1: a test failed, goldens are unused under --golden-unused=fail, or --golden-prune or --drift-report failed.
2: invalid markers (an error of collection). 4: invalid options.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.goldens.place import golden_files
from precheck.plugin import fixtures, markers
from precheck.plugin.fixtures import check_invariance as check_invariance
from precheck.plugin.fixtures import check_kernel as check_kernel
from precheck.plugin.fixtures import check_parity as check_parity
from precheck.plugin.fixtures import check_precision as check_precision
from precheck.plugin.fixtures import precision as precision
from precheck.plugin.fixtures import precision_device as precision_device
from precheck.plugin.fixtures import watch_precision as watch_precision
from precheck.plugin.naming import asked_for, family, folder_of, given_precision, golden_of, models_folder, plain_id, shown
from precheck.plugin.results import CHECKS, KNOWN, Controller, Results, hand_over, is_worker
from precheck.plugin.selecting import selection
from precheck.plugin.settings import KEY, add_options, settings_of
from precheck.words import counted

if TYPE_CHECKING:
    from precheck.plugin.known import KnownFailures

_RESULTS = pytest.StashKey[Results]()
_HANDED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for line in markers.LINES:
        config.addinivalue_line("markers", line)
    config.stash[KEY] = settings_of(config)
    config.stash[_RESULTS] = Results(config.stash[KEY], config.rootpath)
    config.stash[KNOWN] = _known(config)
    if config.stash[KEY].models:
        from precheck.plugin import models

        models.register(config)
    if config.stash[KEY].selftest:
        from precheck.plugin.selftest import SelfTest

        config.pluginmanager.register(SelfTest(), "precheck-selftest")
    config.pluginmanager.register(_benchmarks(config), "precheck-benchmark")
    if config.pluginmanager.hasplugin("xdist") and not is_worker(config):
        config.pluginmanager.register(Controller(config.stash[_RESULTS]), "precheck-xdist")


def _benchmarks(config: pytest.Config) -> object:
    if config.getoption("benchmark_min_rounds", None) is None:  # an option of pytest-benchmark: None if that is not loaded
        return fixtures.WithoutBenchmark()
    from precheck.plugin.benchmark import Benchmarks

    return Benchmarks(config.getoption("benchmark_storage", ""))


def _known(config: pytest.Config) -> KnownFailures | None:
    settings = config.stash[KEY]
    if config.getoption("runxfail", False) or not (settings.known_write or settings.known.exists()):
        return None
    from precheck.plugin.known import KnownFailures

    return KnownFailures(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    settings = config.stash[KEY]
    files = golden_files(settings.golden_dir) if settings.golden_dir.is_dir() else None
    if not settings.named and files is None:
        return None
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    mixed = any(precision.autocasts for precision in settings.precisions)
    policy = f" (autocast as on {'CUDA' if settings.policy == 'cuda' else 'a CPU'})" if mixed else ""
    folder = f"{shown(settings.golden_dir, config.rootpath)}/"
    kept = f"{folder} ({counted(len(files), 'file')})" if files is not None else f"none yet in {folder}"
    names = ", ".join(precision.name for precision in settings.precisions)
    return f"precheck: {names}{policy}, device {settings.device}, torch {torch}, float32 without tf32; goldens: {kept}"


@pytest.hookimpl(wrapper=True, tryfirst=True)  # the precision comes first among a test's parameters, where naming.py looks for it
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    if not markers.fault(metafunc.definition):  # else the test fails when it is set up: the other tests of its file can run
        fixtures.parametrize(metafunc)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Generator[None, bool | None, bool | None]:
    ignored = yield
    folder = folder_of(config, collection_path) if ignored else None
    if folder:
        config.stash[_RESULTS].ignored.append(str(folder))
    return ignored


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    results = config.stash[_RESULTS]
    results.collected = True
    for item in items:
        reason = "" if markers.fault(item) else _impossible(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        if _uses_checks(item):
            results.expected[str(golden_of(item))] = _nodeid(item)
        if _watches(item):
            results.watched[str(golden_of(item))] = _nodeid(item)
    if config.getoption("precision_model") or not config.stash[KEY].models:
        results.ignored.append(str(models_folder(config)))  # only the ini file lists all models
    narrowed = selection(config)
    if narrowed:
        results.partial.append(f"{narrowed} narrowed the run")


def _impossible(item: pytest.Item) -> str:
    excluded = "" if given_precision(item) else markers.restricted(item, item.config.stash[KEY].precisions)[1]
    return excluded or next((reason for mark in item.iter_markers("gpu") if (reason := markers.no_gpu(mark, item.config.stash[KEY].device))), "")


def _uses_checks(item: pytest.Item) -> bool:
    return "check_precision" in getattr(item, "fixturenames", ())


def _watches(item: pytest.Item) -> bool:
    return not fixtures.WITHOUT_GOLDENS.isdisjoint(getattr(item, "fixturenames", ()))


def _nodeid(item: pytest.Item) -> str:
    return plain_id(item, given_precision(item))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[_RESULTS].partial.append(f"{counted(len(items), 'test')} deselected")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[CHECKS] = []  # for this attempt; some plugins run a test several times
    fault = markers.fault(item)
    if fault:
        pytest.fail(fault, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    checks = item.stash.get(CHECKS, [])
    unmet = markers.unmet(item, {rule for check in checks for rule in check.rules}, checks[0].precision if checks else "")
    if unmet and not item.config.stash[KEY].refresh:
        pytest.fail(unmet, pytrace=False)
    if not item.config.stash[KEY].refresh:  # in which a watched block leaves no check
        fixtures.warn(item, checked=bool(checks))
    known = [known for check in checks for known in check.excused]
    if known:
        pytest.xfail(f"known: {'; '.join(known)}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.stash.get(CHECKS, []) or _uses_checks(item) or _watches(item):
        checks = item.stash.get(CHECKS, [])
        fresh = checks[item.stash.get(_HANDED, 0) :] if report.when == "call" else []  # each check once, also if there are subtests
        item.stash[_HANDED] = len(checks)
        told = {
            "nodeid": _nodeid(item),
            "family": family(item),
            "restricted": not markers.fault(item) and bool(markers.restricted(item, item.config.stash[KEY].precisions)[1]),
            "checks": [dataclasses.asdict(check) for check in fresh],
        }
        _shorten_summary(report, call)
        report.__dict__["precheck"] = json.loads(json.dumps(told, default=float))  # plain data, which xdist can send
    return report


def _shorten_summary(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Leaves the first line of a failed check to the short summary. In CI pytest does not shorten it, and would print all of it again."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if call.excinfo is not None and crash is not None and not getattr(call.excinfo.value, "pytrace", True):
        crash.message = crash.message.partition("\n")[0]


class _Listener:
    """Reads all test reports into the results: in the controller under xdist, otherwise in the only process."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = getattr(report, "precheck", None)
        if told and report.outcome in ("passed", "failed", "skipped"):  # not the "rerun" of a plugin, which is not final
            passed = report.when == "call" and report.passed
            self.results.add(told, passed=passed, skipped=report.skipped and not hasattr(report, "wasxfail"))
        if report.failed:
            self.results.failed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed or report.skipped:
            self.results.partial.append(f"{report.nodeid} was not collected")


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """Makes -v show the number of warnings of a passed test."""
    checks = getattr(report, "precheck", {}).get("checks", []) if report.when == "call" and report.passed else []
    warned = sum(len(check["warnings"]) for check in checks)
    return ("passed", ".", f"PASSED ({counted(warned, 'warning')})") if warned and not hasattr(report, "wasxfail") else None


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Listener(session.config.stash[_RESULTS]), "precheck-listener")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # the terminal reporter exists from here on
    if getattr(reporter, "isatty", False) or session.config.stash[KEY].named or session.config.stash[KEY].refresh:
        from precheck.plugin import progress

        progress.register(session.config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config, results = session.config, session.config.stash[_RESULTS]
    if is_worker(config):
        hand_over(config, results)
        return
    if config.option.collectonly:
        return
    settings = config.stash[KEY]
    if session.shouldstop or session.shouldfail or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        results.partial.append("the run did not end by itself")
    if not results.collected:
        results.partial.append("no worker said which tests there are")
    if not results.partial and settings.golden_dir.is_dir():
        results.find_unused(golden_files(settings.golden_dir), asked_for(config))
    if known := config.stash[KNOWN]:
        known.finish(config, results)
    results.close()
    if settings.files:
        from precheck.plugin import summary

        tried = config.pluginmanager.get_plugin("precheck-selftest")
        results.trouble += summary.write(results, config.invocation_params.dir, tried.found() if tried else None)
    if results.trouble and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    results, settings = config.stash[_RESULTS], config.stash[KEY]
    table, asked = settings.term or settings.named, settings.term or settings.durations is not None
    if (config.get_verbosity() < 0 and results.quiet and not asked) or not (table or results.touched):
        return
    from precheck.plugin import summary
    from precheck.words import printable

    lines = summary.lines(results, table=table)
    if lines or results.trouble:
        terminalreporter.write_sep("=", "precheck")
        for line in lines:
            terminalreporter.write_line(line)
        for line in results.trouble:
            terminalreporter.write_line(printable(line), red=True)
