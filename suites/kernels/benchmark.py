"""What is found of the broken kernels, who else would have seen them, and who is accused without cause.

    python suites/kernels/benchmark.py results.json            # some twenty minutes
    python suites/kernels/benchmark.py results.json --write docs/kernels.md
    python suites/kernels/benchmark.py results.json --set 13   # a set that was frozen before it was tried; up to an hour
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import database
import judges
from cases import pairs
from sets import BROKEN, NUMBERS, REWRITES

import precheck

BEGINS, ENDS = "<!-- made by suites/kernels/benchmark.py -->", "<!-- end -->"
PAIRS = 200
"""Healthy pairs of the database that are judged."""
Row = dict[str, Any]


def judged(candidate: Callable[..., Any], reference: Callable[..., Any], inputs: Any, *, budget: float, gradients: bool | str = True,
           others: bool = True) -> Row:  # fmt: skip
    """The rules of errors, or else of warnings; the seconds; what others say, where they are asked."""
    begun = time.monotonic()
    report = precheck.compare_kernels(candidate, reference, inputs, budget=budget, gradients=gradients)
    errors = [finding.rule for finding in report.errors]
    warned = [finding.rule for finding in report.findings if finding.severity == "warning"]
    row: Row = {"errors": errors, "warnings": warned, "seconds": round(time.monotonic() - begun, 1), "trials": report.facts["trials"]}
    row["others"] = judges.verdicts(candidate, reference, inputs, gradients=gradients) if others else {}
    row["text"] = [str(finding)[:400] for finding in report.findings]
    return row


def kernels(chosen: str) -> list[Row]:
    """Broken kernels and their twins."""
    rows = []
    for each in BROKEN[0].values():
        if chosen in each.name:
            for wrong in (True, False):
                row = {"name": each.name, "wrong": wrong, "rule": each.rule, "link": each.link}
                rows.append(row | judged(each.kernel(wrong), each.reference, each.inputs(), budget=10 if wrong else 6))
                _say(rows[-1])
    return rows


def healthy(chosen: str) -> list[Row]:
    """Operators of torch's database, beside their formulation in Python."""
    rows: list[Row] = []
    names = [(name, dtype) for name in database.operators_once() for dtype in database.DTYPES[:2] if chosen in name and name not in database.FAULTY]
    random.Random(1).shuffle(names)
    for name, dtype in names:
        pair = database.pair(name, dtype) if len(rows) < PAIRS else None
        if pair is not None:
            row = {"name": pair.name, "wrong": False, "rule": ""}
            rows.append(row | judged(pair.candidate, pair.reference, pair.inputs, budget=1.5, gradients=pair.gradients))
            _say(rows[-1])
    return rows


def frozen(chosen: str, number: int) -> list[Row]:
    """A set that was frozen before it was tried: broken kernels, their twins, and rewrites in three formats."""
    rows: list[Row] = []
    for each in BROKEN[number].values():
        for wrong in (True, False):
            if chosen in each.name:
                row = {"name": each.name, "wrong": wrong, "rule": each.rule, "link": each.link}
                rows.append(row | judged(each.kernel(wrong), each.reference, each.inputs(), budget=5, others=False))
                _say(rows[-1])
    for name, pair, dtype in pairs(REWRITES[number]):
        if chosen in name:
            row = {"name": name, "wrong": False, "rule": ""}
            rows.append(row | judged(pair.candidate, pair.reference, pair.inputs(dtype), budget=5, gradients=pair.gradients, others=False))
            _say(rows[-1])
    return rows


def _say(row: Row) -> None:
    good = (row["rule"] in row["errors"] + row["warnings"]) if row["wrong"] else not row["errors"]
    print("ok " if good else "BAD", "broken" if row["wrong"] else "      ", row["seconds"], row["name"], row["rule"], row["errors"], row["warnings"])
    if not good:
        print("    ", row["text"])
    sys.stdout.flush()


def table(rows: list[Row]) -> str:
    """Who finds what, and whom each accuses without cause."""
    broken = [row for row in rows if row["wrong"]]
    sound = [row for row in rows if not row["wrong"]]
    found = sum(bool(row["errors"]) or row["rule"] in row["warnings"] for row in broken)
    classed = sum(row["rule"] in row["errors"] + row["warnings"] for row in broken)
    lines = ["| judge | broken kernels found | healthy pairs accused |", "| --- | --- | --- |"]
    mistaken = sum(bool(row["errors"]) for row in sound)
    lines.append(f"| `compare_kernels` | {found} of {len(broken)} ({classed} with the right class) | {mistaken} of {len(sound)} |")
    for name in judges.JUDGES:
        caught, accused = (sum(row["others"][name] for row in some) for some in (broken, sound))
        lines.append(f"| {name} | {caught} of {len(broken)} | {accused} of {len(sound)} |")
    lines += ["", "| kernel | class | told as | seconds | also seen by |", "| --- | --- | --- | --- | --- |"]
    for row in broken:
        also = ", ".join(name for name in judges.JUDGES if row["others"][name]) or "nobody"
        told = ", ".join(row["errors"] or row["warnings"]) or "nothing"
        lines.append(f"| [{row['name']}]({row['link']}) | {row['rule']} | {told} | {row['seconds']:g} | {also} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--set", choices=("kernels", "healthy", "both", *map(str, NUMBERS)), default="both")
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.write is None:
        rows = frozen(options.only, int(options.set)) if options.set.isdigit() else []
        rows += kernels(options.only) if options.set in ("kernels", "both") else []
        rows += healthy(options.only) if options.set in ("healthy", "both") else []
        options.results.write_text(json.dumps(rows, indent=1), encoding="utf8")
        return
    page = options.write.read_text(encoding="utf8")
    before, rest = page.split(BEGINS)
    after = rest.split(ENDS)[1]
    rows = json.loads(options.results.read_text(encoding="utf8"))
    options.write.write_text(f"{before}{BEGINS}\n\n{table(rows)}\n\n{ENDS}{after}", encoding="utf8")


if __name__ == "__main__":
    main()
