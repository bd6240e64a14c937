"""The scorer's rows as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from harm import LEAST

VERBS = ("measure", "check", "watch")
Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """What the verbs came to, the bugs they missed, the healthy networks they accused, and each bug's harm."""
    return "\n".join([*_told(rows), "", *_each([row for row in rows if "failed" not in row and row["bug"]])])


def page(rows: list[Row]) -> str:
    """The same for a page: each network in a row instead of each bug."""
    return "\n".join([*_told(rows), "", *_networks([row for row in rows if "failed" not in row])])


def _told(rows: list[Row]) -> list[str]:
    broken = [row for row in rows if "failed" in row]
    whole = [row for row in rows if "failed" not in row]
    bugs, healthy = [row for row in whole if row["bug"]], [row for row in whole if not row["bug"]]
    lines = ["| verb | bugs found | of them, harm seen in the result | of them, harm diluted | first error on its line | its rule right "
             "| healthy accused | cost: median | p90 | worst |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [_verb(verb, bugs, healthy) for verb in VERBS if any(verb in row for row in whole)]
    for verb in VERBS:
        missed = [row for row in bugs if verb in row and not row[verb]["error"]]
        lines += _listed(f"Missed by {verb}", (f"{_name(row)} ({_harm(row)})" for row in missed))
        elsewhere = [row for row in bugs if verb in row and row[verb]["error"] and not row[verb].get("line")]
        lines += _listed(f"First error of {verb} on another line", (f"{_name(row)} ({row[verb]['rule']})" for row in elsewhere))
        accused = [row for row in healthy if verb in row and row[verb]["error"]]
        lines += _listed(f"Healthy, and accused by {verb}", (f"{_name(row)} ({row[verb]['rule']})" for row in accused))
        raised = [row for row in whole if verb in row and "raised" in row[verb]]
        lines += _listed(f"Raised under {verb}", (f"{_name(row)} ({row[verb]['raised']})" for row in raised))
    lines += _listed("Harm too small to count as a bug", (f"{_name(row)} ({_harm(row)})" for row in bugs if _number(row["part"]) < LEAST))
    lines += _listed("No row", (f"{_name(row)} ({row['failed']})" for row in broken))
    return lines


def _networks(rows: list[Row]) -> list[str]:
    """Of each verb and network the bugs found, and those whose first error is on their line."""
    verbs = [verb for verb in VERBS if any(verb in row for row in rows)]
    head = ["network", *(cell for verb in verbs for cell in (f"{verb}: healthy accused", "bugs found", "first error on its line"))]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in dict.fromkeys(row["network"] for row in rows):
        cells = [name]
        for verb in verbs:
            own = [row for row in rows if row["network"] == name and verb in row]
            bugs, healthy = [row for row in own if row["bug"]], [row for row in own if not row["bug"]]
            asked = ((healthy, "error"), (bugs, "error"), (bugs, "line"))
            accused, found, lined = (sum(bool(row[verb].get(fact)) for row in some) for some, fact in asked)
            cells += [f"{accused} of {len(healthy)}", f"{found} of {len(bugs)}", f"{lined} of {len(bugs)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _verb(verb: str, bugs: list[Row], healthy: list[Row]) -> str:
    asked, well = [row for row in bugs if verb in row], [row for row in healthy if verb in row]
    found = [row for row in asked if row[verb]["error"]]
    seen, diluted = [row for row in asked if _number(row["result"]) >= LEAST], [row for row in asked if _number(row["result"]) < LEAST]
    costs = sorted(row[verb]["cost"] for row in [*asked, *well] if "cost" in row[verb])
    cells = [
        verb, _share(found, asked), _share([row for row in seen if row in found], seen), _share([row for row in diluted if row in found], diluted),
        _share([row for row in found if row[verb].get("line")], found), _share([row for row in found if row[verb].get("rule_right")], found),
        _share([row for row in well if row[verb]["error"]], well),
    ]  # fmt: skip
    if costs:
        cells += [f"{value:.1f}" for value in (statistics.median(costs), costs[round(0.9 * (len(costs) - 1))], costs[-1])]
    return f"| {' | '.join(cells)} |"


def _each(bugs: list[Row]) -> list[str]:
    if not bugs:
        return []
    verbs = [verb for verb in VERBS if any(verb in row for row in bugs)]
    head = ["case", "harm in its part", "in the result", *(f"{verb}: first error" for verb in verbs)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in bugs:
        cells = [_name(row), f"{row['part']}", f"{row['result']}", *(_said(row.get(verb)) for verb in verbs)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _said(facts: Row | None) -> str:
    if facts is None:
        return ""
    if not facts["error"]:
        return "raised" if "raised" in facts else "missed"
    return facts["rule"] + ("" if facts.get("line") else ", other line" if not facts.get("line_in_any") else ", line in a later error")


def _listed(title: str, items: Iterable[str]) -> list[str]:
    found = list(items)
    return ["", f"{title} ({len(found)}): {'; '.join(found)}."] if found else []


def _name(row: Row) -> str:
    return f"{row['network']}/{row['bug'] or row.get('harmless') or 'healthy'} {row['precision']}"


def _harm(row: Row) -> str:
    return f"{row['part']} in its part, {row['result']} in the result"


def _number(value: float | str) -> float:
    return float(value)


def _share(part: list[Row], whole: list[Row]) -> str:
    return f"{len(part)} of {len(whole)}" + (f" ({100 * len(part) / len(whole):.0f} %)" if whole else "")
