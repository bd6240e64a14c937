"""The hooks that pytest calls. Imports neither torch nor numpy, so a project that does not use precheck pays nothing.

Exit statuses are pytest's own: 1 if a test failed, or goldens are unused under --golden-unused=fail, or --golden-prune or
--drift-report could not do what was asked; 4 for options or markers that mean nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from precheck.goldens.place import golden_files
from precheck.plugin import markers, xdist
from precheck.plugin.fixtures import check_precision as check_precision
from precheck.plugin.fixtures import precision as precision
from precheck.plugin.fixtures import precision_device as precision_device
from precheck.plugin.ledger import CHECKS, Check, Ledger
from precheck.plugin.naming import golden_of, shown
from precheck.plugin.settings import KEY, add_options, selection, settings_of

_LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for line in markers.LINES:
        config.addinivalue_line("markers", line)
    config.stash[KEY] = settings_of(config)
    config.stash[_LEDGER] = Ledger(config.stash[KEY], config.rootpath)
    if config.pluginmanager.hasplugin("xdist") and not xdist.is_worker(config):
        config.pluginmanager.register(xdist.Controller(config.stash[_LEDGER]), "precheck-xdist")


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
    policy = f" ({'CUDA' if settings.precisions[0].policy == 'cuda' else 'the CPU'}'s autocast op policy)" if mixed else ""
    kept = f"{shown(settings.golden_dir, config.rootpath)}/ ({len(files)} files)" if files is not None else "none yet"
    names = ", ".join(precision.name for precision in settings.precisions)
    return f"precheck: {names}{policy}, device {settings.device}, torch {torch}, tf32 off in references; goldens: {kept}"


@pytest.hookimpl(tryfirst=True)  # so that the precision comes first among a test's parameters, where naming.py looks for it
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "precision" not in metafunc.fixturenames or _given_otherwise(metafunc):
        return
    settings = metafunc.config.stash[KEY]
    wanted = list(settings.precisions)
    reason = ""
    if not settings.refresh:
        try:
            wanted, reason = markers.restricted(metafunc.definition, settings.precisions)
        except markers.MarkerError as error:
            pytest.fail(f"{metafunc.definition.nodeid}: {error}", pytrace=False)
    skipped = [pytest.param(settings.precisions[0], marks=pytest.mark.skip(reason=reason))] if reason else []
    names = [each.name for each in wanted] or [settings.precisions[0].name]
    metafunc.parametrize("precision", [*wanted, *skipped], ids=names, indirect=True, scope="session")


def _given_otherwise(metafunc: pytest.Metafunc) -> bool:
    """By the test's own parametrize, or by a fixture of that name that is the user's."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
        if "precision" in ([name.strip() for name in names.split(",")] if isinstance(names, str) else names):
            return True
    definitions = metafunc._arg2fixturedefs.get("precision", ())
    return bool(definitions) and definitions[-1].func.__module__ != precision.__module__


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        try:
            _apply_markers(item)
        except markers.MarkerError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        item.stash[CHECKS] = []
    ledger = config.stash[_LEDGER]
    ledger.expected |= {str(golden_of(item)): item.nodeid for item in items if "check_precision" in getattr(item, "fixturenames", ())}
    narrowed = selection(config)
    if narrowed:
        ledger.partial.append(f"{narrowed} narrowed the run")


def _apply_markers(item: pytest.Item) -> None:
    checks = "check_precision" in getattr(item, "fixturenames", ())
    wishes = markers.expectations(item)
    if (wishes.expected or wishes.allowed) and not checks:
        raise markers.MarkerError("expect_finding and allow_finding are about check_precision, which this test does not use")
    if "precision" not in getattr(item, "fixturenames", ()):
        _, reason = markers.restricted(item, item.config.stash[KEY].precisions)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    for mark in item.iter_markers("gpu"):
        reason = markers.no_gpu(mark)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[_LEDGER].partial.append(f"{len(items)} test(s) were deselected")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    found = {rule for check in item.stash.get(CHECKS, []) for rule in check.rules}
    missing = sorted(markers.expectations(item).expected - found)
    if missing and not item.config.stash[KEY].refresh:
        pytest.fail(f"expected {missing[0]}, and check_precision found {', '.join(sorted(found)) or 'nothing'}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and item.stash.get(CHECKS, []):
        report.__dict__["precheck"] = [dataclasses.asdict(check) for check in item.stash[CHECKS]]  # xdist carries what is plain
    return report


class _Listener:
    """Reads test reports where they all arrive."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ledger.checks += [Check(**check) for check in getattr(report, "precheck", ())]
        if report.failed:
            self.ledger.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.ledger.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed or report.skipped:
            self.ledger.partial.append(f"{report.nodeid} was not collected")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Listener(session.config.stash[_LEDGER]), "precheck-listener")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config, ledger = session.config, session.config.stash[_LEDGER]
    if xdist.is_worker(config):
        xdist.hand_over(config, ledger)
        return
    settings = config.stash[KEY]
    if session.shouldstop or session.shouldfail or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        ledger.partial.append("the run did not end by itself")
    if config.args_source is config.ArgsSource.ARGS:
        ledger.partial.append("only a part of the tests was asked for")
    if not ledger.partial and not config.option.collectonly and settings.golden_dir.is_dir():
        ledger.find_unused(golden_files(settings.golden_dir))
    ledger.close()
    if ledger.trouble and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ledger, settings = config.stash[_LEDGER], config.stash[KEY]
    if config.option.collectonly or (config.get_verbosity() < 0 and ledger.quiet and not settings.term):
        return
    lines = ledger.lines(table=settings.term or settings.named)
    if lines:
        terminalreporter.write_sep("=", "precheck")
        for line in lines:
            terminalreporter.write_line(line)
