"""Figures as JSON and as a table of a README: one file a machine, to which sizes are added as they are measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from budgets import Result

BEGIN, END = "<!-- figures: made by python suites/bench -->\n", "<!-- end of figures -->\n"


@dataclasses.dataclass(slots=True)
class Figures:
    """What was measured on one machine. `measured`: the seconds and bytes behind the ratios, by size and kind."""

    machine: dict[str, Any]
    results: list[Result] = dataclasses.field(default_factory=list)
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, fresh: list[Result]) -> None:
        """Newer figures take the place of older ones of the same name."""
        known = {(each.what, each.kind, each.millions): each for each in [*self.results, *fresh]}
        self.results = list(known.values())

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf8")


def read(path: Path, machine: dict[str, Any]) -> Figures:
    """The figures in `path` to go on with, or none yet. Raises ValueError where they are another machine's."""
    if not path.exists():
        return Figures(machine)
    content = json.loads(path.read_text(encoding="utf8"))
    if content["machine"] != machine:
        raise ValueError(f"{path} is of {content['machine']}, and this is {machine}: ratios of both in one table would mislead; pass another --json")
    return Figures(machine, [Result(**each) for each in content["results"]], content["measured"])


def table(figures: Figures) -> str:
    """A row a ratio and precision, a column a size: time, then memory in brackets. What misses its budget is bold."""
    sizes = sorted({each.millions for each in figures.results if each.millions})
    head = f"| | precision | budget |{''.join(f' {size} M |' for size in sizes)}\n|---|---|---|{'---|' * len(sizes)}\n"
    rows: dict[tuple[str, str], dict[int, Result]] = {}
    for each in figures.results:
        rows.setdefault((each.what, each.kind), {})[each.millions] = each
    return head + "".join(_line(what, kind, found, sizes) for (what, kind), found in rows.items())


def _line(what: str, kind: str, found: dict[int, Result], sizes: list[int]) -> str:
    budget = next(iter(found.values())).budget
    cells = [_cell(found.get(size, found.get(0))) for size in sizes]  # what depends on no size stands under all
    return f"| {what} | {kind} | {'–' if budget is None else f'{budget:g}'} |{''.join(f' {cell} |' for cell in cells)}\n"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    value = f"{result.value:.3g}" if result.value < 1 else f"{result.value:.2f}"
    value = f"**{value}**" if result.missed else value
    return value if result.memory is None else f"{value} ({result.memory:.2f})"


def around(page: Path) -> tuple[str, str]:
    """What stands before and after the table's two marks. Raises ValueError where they are not there."""
    text = page.read_text(encoding="utf8") if page.is_file() else ""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} has no place for the figures; it needs the lines {BEGIN.strip()} and {END.strip()}")
    return before, after


def into(page: Path, figures: Figures) -> None:
    """Puts the table between its two marks. Raises ValueError where they are not there."""
    before, after = around(page)
    machine = ", ".join(f"{name} {value}" for name, value in figures.machine.items())
    page.write_text(f"{before}{BEGIN}\n{table(figures)}\nMeasured on {machine}.\n\n{END}{after}", encoding="utf8")
