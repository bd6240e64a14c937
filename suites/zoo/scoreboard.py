"""What the zoo's tests noted, case by case, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Case = dict[str, Any]
WATCHED = ("found", "rule", "line", "accused")
HEADS = ("bugs", "found", "right rule", "right line", "twins accused")


def share(cases: Iterable[Case], fact: str) -> str:
    """How many of the cases that were asked for a fact have it: "51/52"; a dash where none was asked."""
    asked = [case[fact] for case in cases if fact in case]
    return f"{sum(asked)}/{len(asked)}" if asked else "-"


class Scoreboard:
    """Facts by case. `found`, `rule`, `line`, `accused` are of watch(), `measure_…` of measure(), `control` of watch() on
    healthy code, `<rival>|bug`, `|twin` and `|control` of what a user has otherwise.
    """

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def add(self, facts: Case) -> None:
        self.cases.setdefault(facts["name"], {}).update(facts)

    def lines(self) -> list[str]:
        bugs = [case for case in self.cases.values() if "found" in case or "accused" in case]
        controls = [case for case in self.cases.values() if "control" in case]
        lines = self._watched(bugs) if bugs else []
        models = [case for case in self.cases.values() if "measure_found" in case or "measure_accused" in case]
        if models:
            lines.append(f"measure(): {share(models, 'measure_found')} bugs found, {share(models, 'measure_accused')} twins and controls accused")
        if controls:
            lines.append(f"controls accused by watch(): {share(controls, 'control')}")
        return [*lines, *self._rivals()]

    def _rivals(self) -> list[str]:
        """A row for each thing that a user has without precheck, in the order in which they came."""
        names = list(dict.fromkeys(fact.partition("|")[0] for case in self.cases.values() for fact in case if "|" in fact))
        if not names:
            return []
        kinds = {"bug": "bugs found", "twin": "twins accused", "control": "controls accused"}
        width, cases = max(map(len, [*names, "without precheck"])), list(self.cases.values())
        head = f"{'without precheck':{width}}" + "".join(f"{head:>18}" for head in kinds.values())
        rows = [f"{name:{width}}" + "".join(f"{share(cases, f'{name}|{kind}'):>18}" for kind in kinds) for name in names]
        return [head, *rows, *([] if any("pytest-torch" in name for name in names) else ["pytest-torch: not installed"])]

    def _watched(self, bugs: list[Case]) -> list[str]:
        by: dict[str, list[Case]] = {}
        for bug in bugs:
            by.setdefault(bug["mechanism"], []).append(bug)
        width = max(map(len, [*by, "watch(), by mechanism"]))
        lines = [f"{'watch(), by mechanism':{width}}" + "".join(f"{head:>15}" for head in HEADS)]
        for name, some in [*sorted(by.items()), ("with a public issue", [bug for bug in bugs if bug["link"]]), ("all", bugs)]:
            lines.append(f"{name:{width}}{len(some):15}" + "".join(f"{share(some, fact):>15}" for fact in WATCHED))
        missed = sorted(bug["name"] for bug in bugs if bug.get("found") is False)
        return [*lines, f"missed: {', '.join(missed)}"] if missed else lines
