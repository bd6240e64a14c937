"""Writes a session as one HTML page that needs no network, with data, style and code inside.

Names of tests, modules and tensors may contain anything, so they are never used as markup. Each check is JSON without any "<", in a script element
of a type that browsers do not run. The page's code inserts text only. The content security policy in the page's head allows only the page's own
code, by its digest, and no requests.

Imports neither torch nor numpy. Needs jinja2 (extra `report`) to write a page.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from precheck.findings import RULES, Row
from precheck.formats import BF16, E4M3FN, E5M2, FORMATS, FP16, FP32, ONE_ROUNDING
from precheck.report import sensitivity
from precheck.report.changes import between, headline, left_out
from precheck.report.excerpts import excerpt
from precheck.report.facts import excused_keys, followed, in_words
from precheck.report.recipe_table import by_recipe
from precheck.report.session import Session, report_of
from precheck.report.verdicts import line, short, totals, whole
from precheck.words import LONGEST, cut, one_line, op_words

SCRIPTS = (
    "text", "data", "panels", "theme", "scale", "axis", "sheet", "stretch", "plot", "chart", "grid", "tables",
    "findings", "modules", "dtypes", "layers", "ranges", "binadeplot", "binades", "steps", "lossplot", "losses", "scaleplot", "scaler",
    "sizeplot", "sizes", "updates", "checks", "main",
)  # fmt: skip
"""The files of the page's code in the order of their concatenation. They share one scope."""
COMPARED = ("text", "data", "panels", "theme", "grid", "changes")
_OPS = ("op", "phase", "module", "source", "dtype", "calls", "drift", "inherited", "nonfinite", "zeros", "flips", "opaque", "first")
_WORDS = frozenset({"op", "phase", "module", "source", "dtype", "opaque", "tensor", "kind", "shape", "nodeid", "precision", "words"})
_ROWS = ("tensor", "kind", "step", "shape", "dtype", "r", "allowed", "drift", "floor", "relative", "nonfinite")
RANGED = (FP16, BF16, E4M3FN, E5M2)
"""Formats whose ranges the page draws, in this order."""
COLUMNS = ("tensor", "kind", "step", "dtype", "elements", "least", "zeros", "nonfinite", "op", "phase", "module", "source")


def page(session: Session) -> str:
    """The page of a session. Needs jinja2."""
    start = Path(session.get("start", ""))
    lines = [line(test) for test in session["tests"]]
    summary = {"checks": lines, "roundings": _roundings(), "formats": _formats(), "ranges": ranges()}
    recipes = by_recipe(session["tests"])
    checks = [_check(test, start) | ({"recipes": table} if table else {}) for test, table in zip(session["tests"], recipes, strict=True)]
    words: dict[str, Any] = {"title": "drift report", "totals": totals([each["verdict"] for each in lines]), "versions": made_by(session)}
    words |= {"selftest": _selftest(session.get("selftest"))}
    return rendered("page.html", SCRIPTS, summary, checks, **words)


def compared(before: Session, now: Session) -> str:
    """The page of what changed between two sessions: a table of the changes, worst first. Needs jinja2."""
    changes = between(before, now)
    versions = list(dict.fromkeys(filter(None, (made_by(before), made_by(now)))))
    rows = [dataclasses.asdict(change) | {"factor": change.factor if change.factor < math.inf else "inf"} for change in changes]
    summary = {"changes": columns(rows, ("kind", "nodeid", "precision", "words", "factor", "count"))}
    counts = " and ".join(f"{len(session['tests'])} {when}" for session, when in ((before, "before"), (now, "now")))
    words = {"headline": headline(changes), "left_out": left_out(before, now, changes), "totals": [("", f"checks: {counts}")]}
    return rendered("changes.html", COMPARED, summary, title="what changed", versions=" → ".join(versions), **words)


def rendered(template: str, scripts: Iterable[str], summary: Any, checks: Iterable[Any] = (), **words: Any) -> str:
    """Renders a template with the code of `scripts`. The code finds its data in the elements `summary` and `check-0`, ….

    Needs jinja2.
    """
    import jinja2
    from markupsafe import Markup

    folder = files("precheck.report") / "page"
    style = (folder / "page.css").read_text(encoding="utf8")
    code = "\n".join(['"use strict";', *((folder / f"{name}.js").read_text(encoding="utf8") for name in scripts)])
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf8"))
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader).get_template(template).render(
        **words,
        summary=Markup(_json(summary)),
        checks=[Markup(_json(check)) for check in checks],
        style=Markup(style),
        code=Markup(code),
        digests={"script": _digest(code), "style": _digest(style)},
    )  # fmt: skip


def made_by(session: Session) -> str:
    """The versions of precheck and torch that wrote a session, as far as it says."""
    return " · ".join(f"{name} {_shown(session[name])}" for name in ("precheck", "torch") if session.get(name))


def _selftest(checks: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    """The table of the self-test, with a row for each check and a column for each fault. None where no faults were planted."""
    if checks is None:
        return None
    names = sensitivity.faults(checks)
    rows = [{"check": _shown(sensitivity.named(each)), "precision": each["precision"], "cells": sensitivity.cells(each, names)} for each in checks]
    deaf = [
        {"check": _shown(sensitivity.named(each)), "precision": each["precision"], "missed": [(_shown(what), _shown(cure)) for what, cure in missed]}
        for each, missed in sensitivity.insensitive(checks)
    ]
    told = [_shown(reason) for reason in sensitivity.reasons(checks)]
    return {"headline": sensitivity.headline(checks), "faults": [*map(_shown, names)], "rows": rows, "deaf": deaf, "reasons": told}


def _shown(words: str) -> str:
    return cut(one_line(words), 4 * LONGEST)


def _json(value: Any) -> str:
    """ASCII JSON without characters that start a tag, a comment or an entity in HTML."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf8")).digest()).decode("ascii")


def _roundings() -> dict[str, float]:
    """For each low dtype, the relative L2 error that the page draws as one rounding."""
    return {f.dtype_name: ONE_ROUNDING * f.unit_roundoff for f in FORMATS.values() if f.dtype_name and f.unit_roundoff > FP32.unit_roundoff}


def _formats() -> dict[str, list[int]]:
    """For each low dtype, its precision in bits and its least exponent. The page computes from them which updates each binade loses."""
    return {f.dtype_name: [f.precision, f.min_exponent] for f in FORMATS.values() if f.dtype_name and f.unit_roundoff > FP32.unit_roundoff}


def _check(test: dict[str, Any], start: Path) -> dict[str, Any]:
    report = whole(test)
    if report is None:
        return {}
    culprits, histograms, made = _Culprits(report["ops"]), Histograms(report), report_of(report)
    excused = excused_keys(report["facts"])
    return {
        "findings": [_finding(finding, made.boundaries, culprits, histograms, start) for finding in report["findings"]],
        "ops": columns(map(_in_words, report["ops"]), _OPS),
        "rows": columns([row | {"shape": "×".join(map(str, row["shape"]))} for row in report["boundaries"]], _ROWS)
        | {"determined": [int(row.determined) for row in made.boundaries], "binades": list(map(histograms.of_row, report["boundaries"]))}
        | {"excused": [int((row.kind, row.tensor, row.step) in excused) for row in made.boundaries]},
        "losses": [[loss[name] for name in ("step", "low", "reference", "floor", "source")] for loss in report["losses"]],
        "exponents": columns(map(_in_words, report["exponents"]), COLUMNS) | {"scale": [each["scale"] for each in report["exponents"]]},
        "counts": [each["counts"] for each in report["exponents"]],
        "updates": report["updates"],
        "scaler": _scaler(report["scaler"], report["ops"]),
        "cure": report["cure"],
        "layers": report["facts"].get("layers", []),
        "followed": followed(made),
        "facts": in_words(made),
        "tolerated": test.get("tolerated", {}),
    }


def _finding(finding: dict[str, Any], boundaries: Sequence[Row], culprits: _Culprits, histograms: Histograms, start: Path) -> dict[str, Any]:
    """A finding with the rule's meaning and remedy, lines of source, and the indices of its op and tensor in the tables."""
    cure = RULES.get(finding["cause_rule"] or finding["rule"])
    rule = RULES.get(finding["rule"])
    rows = [index for index, row in enumerate(boundaries) if finding["tensor"] and row.tensor == finding["tensor"]]
    at_op, at_row = culprits.of(finding), max(rows, key=lambda index: boundaries[index].r / boundaries[index].allowed, default=-1)
    return _in_words(finding) | {
        "meaning": rule.meant(finding["severity"]) if rule else "",
        "remedy": finding.get("advice") or (cure.remedy if cure else ""),
        "excerpt": excerpt(finding["source"], start),
        "at_op": at_op,
        "at_row": at_row,
        "at_binades": histograms.of_finding(finding, at_op, at_row),
    }


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """A row or finding whose op has the name that people know."""
    return row | {"op": op_words(row["op"])}


def _scaler(scaler: dict[str, Any], ops: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The scaler with its history in short form (runs of equal scales, and the skipped steps), and the index of the tightest op, or -1."""
    if not scaler.get("history"):
        return scaler
    runs = [[scale, len(list(steps))] for scale, steps in itertools.groupby(scale for scale, _ in scaler["history"])]
    skipped = [place for place, (_, skip) in enumerate(scaler["history"]) if skip]
    named = [place for place, row in enumerate(ops) if f"{row['op']} at {row['source']}" == scaler.get("tightest")]
    at_op = max(named, key=lambda place: ops[place]["phase"] == "backward", default=-1)
    return scaler | {"history": {"runs": runs, "skipped": skipped}, "at_op": at_op}


class _Culprits:
    """Finds the row of a finding's op in the table of ops: by op and line, then by module and phase, since the module may be that of a boundary."""

    def __init__(self, ops: Sequence[dict[str, Any]]) -> None:
        self.by_line: dict[tuple[str, str], list[int]] = {}
        self.ops = ops
        for index, row in enumerate(ops):
            self.by_line.setdefault((row["op"], row["source"]), []).append(index)

    def of(self, finding: dict[str, Any]) -> int:
        """The index of the row. -1 if the finding names no op, or the table does not have it."""
        found = self.by_line.get((finding["op"], finding["source"]), [])
        if finding["via"]:  # a line of a package; the table has its full path
            found = [at for at, row in enumerate(self.ops) if row["op"] == finding["op"] and row["source"].endswith(f"/{finding['via']}")]
        return max(found, key=lambda index: sum(self.ops[index][name] == finding[name] for name in ("module", "phase")), default=-1)


def columns(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Turns rows into columns. A column of words becomes a list of distinct words and indices into it."""
    every = list(rows)
    found: dict[str, Any] = {}
    for name in names:
        values = [row[name] for row in every]
        if name in _WORDS:
            words = {word: index for index, word in enumerate(dict.fromkeys(values))}
            found[name] = {"words": list(words), "at": [words[value] for value in values]}
        else:
            found[name] = [short(value) for value in values]
    return found


def ranges() -> list[dict[str, Any]]:
    """For each format the exponents of its smallest subnormal, smallest normal and largest number, and the largest number."""
    return [
        {
            "dtype": fmt.dtype_name,
            "subnormal": math.frexp(fmt.min_subnormal)[1] - 1,
            "normal": fmt.min_exponent,
            "largest": math.frexp(fmt.max)[1] - 1,
            "max": fmt.max,
        }
        for fmt in RANGED
    ]


class Histograms:
    """The histograms of a report, found by tensor or by op."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = report["exponents"]
        self.ops: Sequence[dict[str, Any]] = report["ops"]
        self.boundaries: Sequence[dict[str, Any]] = report["boundaries"]
        self.tensors: dict[tuple[str, str, int], int] = {}
        self.results: dict[tuple[str, ...], int] = {}
        for place, row in enumerate(self.rows):
            if row["kind"] == "op":
                self.results.setdefault(_op(row), place)
            else:
                self.tensors[_tensor(row)] = place

    def of_row(self, row: dict[str, Any]) -> int:
        """The index of a tensor's histogram; -1 if there is none."""
        return self.tensors.get(_tensor(row), -1)

    def of_finding(self, finding: dict[str, Any], at_op: int, at_row: int) -> int:
        """The index of the histogram of the finding's tensor, or else of its parameter's gradient or its op's result. -1 if there is none."""
        found = self.of_row(self.boundaries[at_row]) if at_row >= 0 else -1
        if found < 0 and finding["tensor"]:
            wanted = finding["tensor"], "parameter-gradient"
            found = next((place for key, place in self.tensors.items() if key[:2] == wanted), -1)
        return self.results.get(_op(self.ops[at_op]), -1) if found < 0 <= at_op else found


def _tensor(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["tensor"], row["kind"], row["step"]


def _op(row: dict[str, Any]) -> tuple[str, ...]:
    return row["op"], row["phase"], row["module"], row["source"]
