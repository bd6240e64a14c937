"""Writes the section of precheck at the end of pytest's output, and the files of --drift-report.

Modules that format reports are imported only when there is one, which keeps the start of pytest fast.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from precheck.plugin.naming import shown
from precheck.plugin.results import Check, Results
from precheck.words import counted, digits, one_line, printable

_SLOW = 15.0  # a check that takes longer, in seconds, is listed even if nobody asks
_SHOWN_CHANGES = 3  # of each golden; `git diff` with golden show lists all


def lines(results: Results, *, table: bool) -> list[str]:
    """The lines of the section, without its title and without failures of the session. Empty if there is nothing to report."""
    checks, top = results.checks, results.settings.top
    asked, judged = results.settings.term, [check for check in checks if not check.excused]
    # Who sees a failure does not ask how close the other checks came to their limits.
    rows = _tables(checks if asked else judged, top) if asked or (table and all(check.passed for check in judged)) else []
    counts = [] if results.settings.refresh else [*_counts(checks), *_unchanged(checks), *_warned(checks, top), *_remarks(checks)]
    allowed = [f"allowed: {allowed} in {check.nodeid}" for check in checks for allowed in check.allowed]
    allowed += [f"known: {known} in {check.nodeid}" for check in checks for known in check.excused]
    allowed += _not_needed(checks)
    ends = [*results.known, *_alone(checks), *_refreshed(results), *_unused(results)]
    refused = [f"{check.nodeid}: {one_line(check.error)}" for check in checks if check.does_not_run]
    told = [*counts, *refused, *rows, *allowed, *ends, *_durations(checks, results.settings.durations)]
    return [printable(line) for line in told]


def _tables(checks: list[Check], top: int) -> list[str]:
    """The worst tensors and ops."""
    from precheck.report.terminal import drift_table, op_table

    entries = [(check.nodeid, check.entry) for check in checks if check.entry]
    return [*drift_table(entries, top), *op_table(entries, top)]


def _counts(checks: list[Check]) -> list[str]:
    told = []
    for precision in dict.fromkeys(check.precision for check in checks):
        own = [check for check in checks if check.precision == precision]
        errors, failed, known = (sum(map(bool, column)) for column in zip(*((c.error, c.failed, c.excused) for c in own), strict=True))
        warned = sum(check.passed and bool(check.warnings) for check in own)
        line = f"{counted(len(own), 'check')} under {precision}: {len(own) - failed - errors - known} passed"
        line += (f" ({warned} of them with warnings)" if warned else "") + f", {failed} failed"
        line += f", {known} known to fail" if known else ""
        refused = sum(check.does_not_run for check in own)
        line += f", {refused} of a model that does not run" if refused else ""
        told.append(line + (f", {errors - refused} without a verdict" if errors > refused else "") + _worst(own))
    return told


def _unchanged(checks: list[Check]) -> list[str]:
    """A line on checks that were not judged again."""
    many = sum(bool(check.unchanged) for check in checks)
    told = f"not judged again: {counted(many, 'check')} that passed before, with the same code, numbers and settings (--precision-fresh judges all)"
    return [told] if many else []


def _warned(checks: list[Check], top: int) -> list[str]:
    """A line for each check that passed with warnings, with its first warning and the number of others. At most `top` lines."""
    warned = [check for check in checks if check.passed and check.warnings]
    shown = warned[:top] if top else warned
    told = []
    for check in shown:
        more = f"; {counted(len(check.warnings) - 1, 'more warning')}" if check.warnings[1:] else ""
        told.append(f"passed with {counted(len(check.warnings), 'warning')}: {check.nodeid}: {one_line(check.warnings[0])}{more}")
    return [*told, *([f"{counted(len(warned) - len(shown), 'more check')} passed with warnings"] if warned[len(shown) :] else [])]


def _remarks(checks: list[Check]) -> list[str]:
    """A line for each thing that was not judged or that the precision is too coarse for, with its first test and the number of others."""
    tests: dict[str, list[str]] = {}
    for check in checks:
        for line in [*check.entry["remarks"], *_hidden(check, checks)] if check.entry else ():
            tests.setdefault(line, []).append(check.nodeid)
    return [f"{line} in {found[0]}" + (f" and {counted(len(found) - 1, 'more check')}" if found[1:] else "") for line, found in tests.items()]


def _hidden(check: Check, checks: list[Check]) -> list[str]:
    """What the precision of a check of two models hides, unless the same test compares them in float32 too."""
    told = check.entry["hidden"] if check.entry else ""
    return [told] if told and not any(each.golden == check.golden and each.precision in ("32-true", "64-true") for each in checks) else []


def _durations(checks: list[Check], most: int | None) -> list[str]:
    """The checks that took longest, and what took their time: as many as `most`, all for 0, and the slow ones for None."""
    ranked = sorted(checks, key=lambda check: -check.seconds)
    shown = [check for check in ranked if check.seconds > _SLOW] if most is None else ranked[: most or None]
    if not shown:
        return []
    whole = sum(check.seconds for check in checks)
    return [f"{counted(len(checks), 'check')} took {_seconds(whole)}; the slowest:", *map(_duration, shown)]


def _duration(check: Check) -> str:
    parts = sorted(check.parts.items(), key=lambda item: -item[1])
    parts.append(("the rest", check.seconds - sum(check.parts.values())))
    long = ", ".join(f"{part} {_seconds(seconds)}" for part, seconds in parts if seconds >= 0.05 * check.seconds)
    return f"  {_seconds(check.seconds):>8}  {check.nodeid}: {long}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _worst(checks: list[Check]) -> str:
    entries = [(check.entry, check.nodeid) for check in checks if check.entry]
    rows = [(entry["worst"], nodeid, entry["errors"]) for entry, nodeid in entries if entry["worst"]]
    if not entries:
        return ""
    from precheck.report.reasons import in_words
    from precheck.report.terminal import tensor_of

    explained: Counter[str] = Counter()
    for entry, _ in entries:
        explained.update(entry["explained"])
    said = ""
    if rows:
        row, nodeid, errors = max(rows, key=lambda each: each[0]["r"] / each[0]["allowed"])
        why = f" ({row['reason']})" if row["reason"] else ""
        told = any(f"(r = {digits(row['r'], 3)}, " in error for error in errors)  # in the text of the failure
        numbers = "" if told else f" r {digits(row['r'], 3)} of {digits(row['allowed'], 3)} allowed"
        said = f"; worst{numbers}{why}: {tensor_of(row)} in {nodeid}"
    return said + in_words(explained.items())


def _not_needed(checks: list[Check]) -> list[str]:
    """A line for each allowance that no check of its test needed under any precision of the run."""
    if not any(check.not_needed for check in checks):
        return []
    from precheck.report.facts import idle

    needed = {(check.golden, rule) for check in checks for rule in check.rules if rule not in check.not_needed}
    told = {
        (check.golden, rule): idle(rule, why, f"in {check.nodeid}")
        for check in checks
        for rule, why in check.not_needed.items()
        if (check.golden, rule) not in needed
    }
    return list(told.values())


def _alone(checks: list[Check]) -> list[str]:
    """A line on models without goldens, with the command that records them."""
    nodeids = dict.fromkeys(check.alone for check in checks if check.alone)
    if not nodeids:
        return []
    command = " ".join(["pytest --golden-refresh=missing", *(f'"{nodeid}"' for nodeid in nodeids)])
    return [f"no golden for {counted(len(nodeids), 'model')}, compared with float32 in the same process only; to record: {command}"]


def _refreshed(results: Results) -> list[str]:
    checks = [check for check in results.checks if not check.watched]
    if not results.settings.refresh or not checks:
        return []
    counts = Counter(check.refreshed or "not recorded" for check in checks)
    told = ["goldens: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))]
    for check in checks:
        if check.refreshed in ("written", "changed"):
            told.append(f"  {check.refreshed}  {shown(Path(check.golden), results.root)}")
            told += [f"      {change}" for change in check.changes[:_SHOWN_CHANGES]]
            left = len(check.changes) - _SHOWN_CHANGES
            told += [f"      and {left} more"] if left > 0 else []
    return told


def _unused(results: Results) -> list[str]:
    if not results.unused or (results.settings.unused == "ignore" and not results.settings.prune):
        return []
    names = [f"  {shown(path, results.root)}" for path in results.unused]
    if results.settings.prune:
        return [f"goldens deleted, since no test uses them: {len(names)}", *names]
    return [f"goldens that no test uses: {len(names)} (delete them with pytest --golden-prune)", *names]


def write(results: Results, start: Path, selftest: list[dict[str, Any]] | None = None) -> list[str]:
    """Writes the files of --drift-report. Sources in them are relative to `start`. Returns a line for each file that cannot be written.

    `selftest` has the outcomes of planted faults, as in a session.
    """
    if not results.settings.files:
        return []
    from precheck.report import forms
    from precheck.report.session import session

    tests = [
        {
            "nodeid": check.nodeid, "line": check.line, "precision": check.precision, "failed": check.failed, "tolerated": check.tolerated,
            **({"again": check.again} if check.again else {}),
            **({"does_not_run": True} if check.does_not_run else {}),
            **({"error": check.error} if check.error else {"report": check.report}),
        }
        for check in results.checks
        if check.error or check.report
    ]  # fmt: skip
    told = []
    for form, path in results.settings.files:
        try:
            forms.write(form, session(tests, root=results.root, start=start, selftest=selftest), path)
        except OSError as error:
            told.append(f"--drift-report={form.name}:{path} cannot be written: {error.strerror}")
    return told
