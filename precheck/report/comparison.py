"""Writes the changes between two sessions as one HTML page that needs no network."""

from __future__ import annotations

import dataclasses

from precheck.report.changes import between, headline, left_out
from precheck.report.html import columns, made_by, rendered
from precheck.report.session import Session

SCRIPTS = ("text", "data", "panels", "theme", "grid", "changes")
_COLUMNS = ("kind", "nodeid", "precision", "words", "factor", "count")


def page(before: Session, now: Session) -> str:
    """The page: a table of the changes, worst first. Needs jinja2."""
    changes = between(before, now)
    versions = list(dict.fromkeys(filter(None, (made_by(before), made_by(now)))))
    summary = {
        "changes": columns([dataclasses.asdict(change) | {"factor": _plain(change.factor)} for change in changes], _COLUMNS),
    }
    counts = " and ".join(f"{len(session['tests'])} {when}" for session, when in ((before, "before"), (now, "now")))
    words = {"headline": headline(changes), "left_out": left_out(before, now, changes), "totals": [("", f"checks: {counts}")]}
    return rendered("changes.html", SCRIPTS, summary, title="what changed", versions=" → ".join(versions), **words)


def _plain(factor: float) -> float | str:
    return factor if factor < float("inf") else "inf"
