"""What is said of a session's checks: the section at the end of pytest's output, and the file of --drift-report=json:PATH."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from precheck.findings import SCHEMA
from precheck.plugin.ledger import Check, Ledger, counted
from precheck.plugin.naming import shown
from precheck.report.terminal import drift_table, op_table

_SHOWN_CHANGES = 3  # of one golden; all of them are in `git diff` with golden show


def lines(ledger: Ledger, *, table: bool) -> list[str]:
    """The section, less its title and what makes the session fail; empty if precheck has nothing to say."""
    entries = [(check.nodeid, check.entry) for check in ledger.checks if check.entry]
    top = ledger.settings.top
    rows = [*drift_table(entries, top), *op_table(entries, top)] if table else []
    allowed = [f"allowed: {allowed} in {check.nodeid}" for check in ledger.checks for allowed in check.allowed]
    counts = [] if ledger.settings.refresh else _counts(ledger.checks)
    return [*counts, *rows, *allowed, *_refreshed(ledger), *_unused(ledger)]


def _counts(checks: list[Check]) -> list[str]:
    told = []
    for precision in dict.fromkeys(check.precision for check in checks):
        own = [check for check in checks if check.precision == precision]
        errors, failed = sum(bool(check.error) for check in own), sum(check.failed for check in own)
        line = f"{counted(len(own), 'check')} under {precision}: {len(own) - failed - errors} passed, {failed} failed"
        told.append(line + (f", {errors} without a verdict" if errors else "") + _worst(own))
    return told


def _worst(checks: list[Check]) -> str:
    rows = [(check.entry["worst"], check.nodeid) for check in checks if check.entry and check.entry["worst"]]
    if not rows:
        return ""
    row, nodeid = max(rows, key=lambda each: each[0]["r"] / each[0]["allowed"])
    place = row["kind"] if row["tensor"] == row["kind"] else f"{row['kind']} of {row['tensor']}"
    return f"; worst r {row['r']:.3g} of {row['allowed']:.3g} allowed: {place} in {nodeid}"


def _refreshed(ledger: Ledger) -> list[str]:
    if not ledger.settings.refresh or not ledger.checks:
        return []
    counts = Counter(check.refreshed or "not recorded" for check in ledger.checks)
    told = ["goldens: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))]
    for check in ledger.checks:
        if check.refreshed in ("written", "changed"):
            told.append(f"  {check.refreshed}  {shown(Path(check.golden), ledger.root)}")
            told += [f"      {change}" for change in check.changes[:_SHOWN_CHANGES]]
            left = len(check.changes) - _SHOWN_CHANGES
            told += [f"      and {left} more"] if left > 0 else []
    return told


def _unused(ledger: Ledger) -> list[str]:
    if not ledger.unused or (ledger.settings.unused == "ignore" and not ledger.settings.prune):
        return []
    names = [f"  {shown(path, ledger.root)}" for path in ledger.unused]
    if ledger.settings.prune:
        return [f"goldens deleted, since no test uses them: {len(names)}", *names]
    return [f"goldens that no test uses: {len(names)} (delete them with pytest --golden-prune)", *names]


def write_json(ledger: Ledger, path: Path) -> str:
    """Writes every check to `path`, whole or not at all. Returns why it could not, "" if it could.

    {"schema": 2, "precheck": version, "torch": version, "tests": [{"nodeid", "precision", "report": as of Report.to_json, or
    "error": why there is none}]}.
    """
    from importlib.metadata import version

    from precheck import __version__

    tests = [
        {"nodeid": check.nodeid, "precision": check.precision, **({"error": check.error} if check.error else {"report": check.report})}
        for check in ledger.checks
        if check.error or check.report
    ]
    text = json.dumps({"schema": SCHEMA, "precheck": __version__, "torch": version("torch"), "tests": tests}, indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        return f"--drift-report=json:{path} cannot be written: {error.strerror}"
    return ""
