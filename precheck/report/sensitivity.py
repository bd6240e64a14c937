"""Words the results of `--precheck-selftest`: the failure message of a test, and the table of a session.

Reads plain data (a session's `selftest`, as docs/report.md has it), and imports neither torch nor numpy: under xdist the controller
writes what its workers found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from precheck.words import one_line

CELLS = {"caught": "caught", "unnoticed": "UNNOTICED", "allowed": "allowed", "same": "same", "inapplicable": "-"}
NOTHING = "no check that passed, so that no fault was planted"


def fails(outcomes: Sequence[dict[str, Any]]) -> bool:
    """Whether a check could not have failed: a fault went unnoticed, or the test's markers allow all faults that are noticed."""
    statuses = {each["status"] for each in outcomes}
    return "unnoticed" in statuses or ("allowed" in statuses and "caught" not in statuses)


def failure(checks: Sequence[dict[str, Any]]) -> str:
    """The failure message of a test with checks that could not have failed. "" for others. The first line can be read alone."""
    lines = []
    for check in checks:
        if fails(check["outcomes"]):
            name = "this precheck.check" if check.get("verb") == "precheck.check" else "this check"
            which = f" (call {check['call']})" if len(checks) > 1 else ""
            lines += _failed(check["outcomes"], f"{name}{which}", check["precision"])
    return "\n".join(lines)


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
    """The table with a row for each check and a column for each fault, then the reasons for cells that are neither caught nor unnoticed."""
    if not checks:
        return [NOTHING]
    names = faults(checks)
    rows = [(*names, "precision", "check"), *((*cells(check, names), check["precision"], one_line(named(check))) for check in checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [headline(checks), *(f"  {line}" for line in lines), *(f"  {line}" for line in reasons(checks))]


def headline(checks: Sequence[dict[str, Any]]) -> str:
    """One line: how many faults were caught in how many checks, and how many checks could not have failed."""
    if not checks:
        return NOTHING
    counts = Counter(each["status"] for check in checks for each in check["outcomes"])
    planted = counts["caught"] + counts["unnoticed"] + counts["allowed"]
    deaf = sum(fails(check["outcomes"]) for check in checks)
    head = f"{counts['caught']} of {planted} faults caught in {len(checks)} check{'' if len(checks) == 1 else 's'}"
    return head + (f"; {deaf} of these could not have failed" if deaf else "")


def faults(checks: Sequence[dict[str, Any]]) -> list[str]:
    """The names of all faults, which are the columns of the table."""
    return list(dict.fromkeys(each["fault"] for check in checks for each in check["outcomes"]))


def cells(check: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The cells of a check's row: a word for each of these faults."""
    found = {each["fault"]: _cell(each) for each in check["outcomes"]}
    return [found.get(name, "-") for name in names]


def insensitive(checks: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[tuple[str, str]]]]:
    """The checks that could not have failed, each with the faults that went unnoticed or are allowed and what to do about them."""
    found = [check for check in checks if fails(check["outcomes"])]
    return [(check, [_missed(each) for each in check["outcomes"] if each["status"] in ("unnoticed", "allowed")]) for check in found]


def _missed(each: dict[str, Any]) -> tuple[str, str]:
    text = f"{each['fault']}: {each['text']}"
    if each["status"] == "unnoticed":
        return text, each["advice"]
    rule = each["rule"]
    return f"{text}; noticed as {rule}, which allow_finding lets through at any size", f"mend what is behind {rule}, and allow it no more"


def named(check: dict[str, Any]) -> str:
    """The name of a check: its test, and its number if the test has several."""
    name: str = check["nodeid"]
    which = ["precheck.check"] if check.get("verb") == "precheck.check" else []
    which += [f"call {check['call']}"] if check["call"] > 1 else []
    return name + (f" ({', '.join(which)})" if which else "")


def _cell(each: dict[str, Any]) -> str:
    """The word for an outcome. A drift or a scale gets its size too, since that is as small as the check's limits allow."""
    word = CELLS[each["status"]]
    return f"{word} ({100 * float(each['size']):.2g}%)" if each["fault"] in ("drift", "scaled") and each["size"] else word


def reasons(checks: Sequence[dict[str, Any]]) -> list[str]:
    """The reasons for cells that are neither caught nor unnoticed. Each is one line, and is listed once."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in (each for check in checks for each in check["outcomes"]):
        raised = each["status"] == "caught" and ": " in each["rule"]  # the user's own code raised an exception, so that there is no rule
        if raised or each["status"] in ("inapplicable", "same", "allowed"):
            counts[CELLS[each["status"]], each["fault"], one_line(f"{each['text']}; the run raises {each['rule']}" if raised else each["text"])] += 1
    return [f"{cell}  {fault}: {text}" + (f" ({count} checks)" if count > 1 else "") for (cell, fault, text), count in sorted(counts.items())]
