"""Remembers checks that passed, in pytest's cache, so that a check of the same code and the same numbers is not judged again.

A judge runs every op twice and makes noise runs. Most tests of a CI run are of code that has not changed since they passed. For them one low run is
enough, which shows that its numbers are the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from precheck.plugin.settings import KEY
from precheck.precisions import Precision

if TYPE_CHECKING:
    from precheck.findings import Report
    from precheck.observe.job import Job
    from precheck.shared_runs.unchanged import Passed

_MOST = 1 << 22
"""Characters of a report that is kept."""


def remembered(
    item: pytest.Item, number: int, precision: Precision, asked: Callable[[], Job], golden: Path | None, settings: dict[str, Any],
    judge: Callable[[], Report],
) -> Report:  # fmt: skip
    """The report on check number `number` of a test: the one of an earlier run if the check would pass again, else that of `judge`.

    `asked` makes the check's job, and raises what `judge` raises. `settings` are those that decide on a verdict, beside the job. Reports with errors
    are not kept: a failure is always looked into.
    """
    cache = getattr(item.config, "cache", None)
    if not applies(item.config, precision) or cache is None:
        return judge()
    from precheck.observe.recording.digest import noted
    from precheck.shared_runs import unchanged

    place = f"precheck/{hashlib.sha256(f'{item.nodeid} {precision.name} {number}'.encode('utf8', 'surrogatepass')).hexdigest()}"
    job = asked()
    now = unchanged.given(job, precision, golden, {**settings, "folder": str(Path.cwd())})  # to which a report's lines are relative
    known = _read(cache.get(place, None))
    if now and known is not None and known[0].again(job, precision, now):
        return known[1]
    with noted() as wish:
        report = judge()
    numbers = wish.numbers
    if now and numbers is not None and not report.errors:
        plain = report.to_json()
        if len(plain) <= _MOST:
            today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            kept = {"passed": dataclasses.asdict(unchanged.passed(numbers, now)), "report": json.loads(plain), "day": today}
            cache.set(place, json.dumps(kept))  # as ASCII, since names and paths may hold half a character
    return report


def applies(config: pytest.Config, precision: Precision) -> bool:
    """Whether checks are remembered: of a low format, in a run that neither plants faults nor records failures."""
    settings = config.stash[KEY]
    return precision.is_low and not (settings.fresh or settings.selftest or settings.known_write)


def _read(kept: Any) -> tuple[Passed, Report] | None:
    """What was kept of a check, and its report. None where there is nothing, or nothing that this version can read."""
    from precheck.report.facts import UNCHANGED
    from precheck.report.session import report_of
    from precheck.shared_runs import unchanged

    try:
        entry = json.loads(kept)
        report = report_of(entry["report"])
        report.facts[UNCHANGED] = entry["day"]
        return unchanged.Passed(**entry["passed"]), report
    except (TypeError, KeyError, ValueError):
        return None
