"""What became of the faults that `--precheck-selftest` planted, in words: the failure of one test, the table of a session.

Reads plain data (outcomes of `precheck.selftest` as dicts), and imports neither torch nor numpy: under xdist the controller words
what its workers found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from precheck.report.words import one_line

CELLS = {"caught": "caught", "unnoticed": "UNNOTICED", "allowed": "allowed", "same": "same", "inapplicable": "-"}


def fails(outcomes: Sequence[dict[str, Any]]) -> bool:
    """Whether a check could not have failed: a fault went unnoticed, or markers let through all that is noticed."""
    statuses = {each["status"] for each in outcomes}
    return "unnoticed" in statuses or ("allowed" in statuses and "caught" not in statuses)


def failure(checks: Sequence[dict[str, Any]]) -> str:
    """The text of a test whose checks, or some of them, could not have failed; "" for others. The first line stands alone."""
    told = []
    for check in checks:
        if fails(check["outcomes"]):
            which = f" (call {check['call']} of {len(checks)})" if len(checks) > 1 else ""
            told += _failed(check["outcomes"], f"this check{which}", check["precision"])
    return "\n".join(told)


def _failed(outcomes: Sequence[dict[str, Any]], check: str, precision: str) -> list[str]:
    missed = [each for each in outcomes if each["status"] == "unnoticed"]
    allowed = [each for each in outcomes if each["status"] == "allowed"]
    planted = sum(each["status"] in ("caught", "unnoticed", "allowed") for each in outcomes)
    names = ", ".join(each["fault"] for each in missed)
    if missed:
        lines = [f"selftest: {len(missed)} of {planted} faults planted into {check} went unnoticed under {precision}: {names}"]
    else:
        lines = [f"selftest: none of {planted} faults planted into {check} fails it under {precision}: markers allow all that is noticed"]
    for each in missed:
        lines += [f"  {each['fault']}: {one_line(each['text'])}", f"    cure: {each['advice']}"]
    for each in allowed:
        lines += [f"  {each['fault']}: {one_line(each['text'])}", f"    noticed as {each['rule']}, which allow_finding lets through at any size"]
    return lines


def table(checks: Sequence[dict[str, Any]]) -> list[str]:
    """A row a check, a column a fault; then what is behind cells that are neither caught nor unnoticed, each reason once."""
    if not checks:
        return ["no check_precision that passed, so that no fault was planted"]
    every = [each for check in checks for each in check["outcomes"]]
    counts = Counter(each["status"] for each in every)
    planted = counts["caught"] + counts["unnoticed"] + counts["allowed"]
    deaf = sum(fails(check["outcomes"]) for check in checks)
    head = f"{counts['caught']} of {planted} faults caught in {len(checks)} check{'' if len(checks) == 1 else 's'}"
    head += f"; {deaf} of these could not have failed" if deaf else ""
    names = list(dict.fromkeys(each["fault"] for each in every))
    rows = [(*names, "precision", "check")]
    for check in checks:
        found = {each["fault"]: _cell(each) for each in check["outcomes"]}
        rows.append((*(found.get(name, "-") for name in names), check["precision"], _named(check)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [head, *(f"  {line}" for line in lines), *_reasons(every)]


def _named(check: dict[str, Any]) -> str:
    return one_line(check["nodeid"]) + (f" (call {check['call']})" if check["call"] > 1 else "")


def _cell(each: dict[str, Any]) -> str:
    """With the size of a drift, the one fault that is as small as the check's own limits allow."""
    word = CELLS[each["status"]]
    return f"{word} ({100 * each['size']:.2g} %)" if each["fault"] == "drift" and each["size"] else word


def _reasons(every: Sequence[dict[str, Any]]) -> list[str]:
    told: Counter[tuple[str, str, str]] = Counter()
    for each in every:
        raised = each["status"] == "caught" and ": " in each["rule"]  # by the user's own code, which no rule has a name for
        if raised or each["status"] in ("inapplicable", "same", "allowed"):
            told[CELLS[each["status"]], each["fault"], one_line(f"{each['text']}; the run raises {each['rule']}" if raised else each["text"])] += 1
    return [f"  {cell}  {fault}: {text}" + (f" ({count} checks)" if count > 1 else "") for (cell, fault, text), count in sorted(told.items())]
