"""The figures as they are kept in results.json, and as tables between two marks of docs/portability.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from precheck.analysis.noise_floor.noise import REASSOCIATED

BEGIN, END = "<!-- figures: made by python suites/bench/portability -->\n", "<!-- end of figures -->\n"
EVERY = "all together"


def load(path: Path) -> dict[str, Any]:
    """What was measured so far: by subcommand."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    return found


def keep(path: Path, page: Path, **fresh: Any) -> None:
    """Newer figures take the place of older ones of the same subcommand; the page shows all. Raises ValueError where it has no marks."""
    before, after = around(page)
    figures = {**load(path), **fresh}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf8")
    page.write_text(f"{before}{BEGIN}\n{tables(figures)}\n{END}{after}", encoding="utf8")


def around(page: Path) -> tuple[str, str]:
    """What stands before and after the two marks."""
    text = page.read_text(encoding="utf8") if page.is_file() else ""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} has no place for the figures; it needs the lines {BEGIN.strip()} and {END.strip()}")
    return before, after


def tables(figures: dict[str, Any]) -> str:
    found, made = figures.get("settings"), []
    if found:
        made = [_settings(found["settings"]), _travels(found["travels"]), _float32(found["float32"]), _sums(found["sums"])]
    return "\n".join([*made, *([_seeds(figures["seeds"])] if "seeds" in figures else [])])


def _settings(settings: Sequence[dict[str, Any]]) -> str:
    head = ("setting", "what is set", "torch", "vectors of torch's own kernels", "threads")
    return "### Settings\n\n" + _table(head, ([each[name] for name in ("name", "set", "torch", "capability", "threads")] for each in settings))


def _travels(travels: Sequence[dict[str, Any]]) -> str:
    """A row a setting in which checks were made, and one of all: counts are added up, of margins the greatest is taken."""
    head = (
        "checked under", "checks", "verdicts changed", "measured: beside its own golden", "beside another's", "there alone", "rise of r/allowed",
        "r/allowed", "at",
    )  # fmt: skip
    places = list(dict.fromkeys(each["here"] for each in travels))
    groups = {name: [each for each in travels if each["here"] == name] for name in places} | {EVERY: list(travels)}
    return "### Goldens of one setting checked under another\n\n" + _table(head, (_travel(name, group) for name, group in groups.items()))


def _travel(name: str, group: Sequence[dict[str, Any]]) -> list[Any]:
    checks, changed, own, measured, more = (sum(each[count] for each in group) for count in ("checks", "changed", "own", "measured", "more"))
    closest = max(group, key=lambda each: float(each["margin"]))
    shift = max(each["shift"] for each in group)
    return [name, checks, changed, f"{own / checks:.1%}", f"{measured / checks:.1%}", more, f"{shift:.2f}", f"{closest['margin']:.2f}", closest["at"]]


def _float32(movements: Sequence[dict[str, Any]]) -> str:
    """Beside the first setting, a row each; and the greatest of all pairs."""
    head = ("between", "and", "tensors", "same bits", "r: median", "p99", "most", "roundoff", "at", "r/allowed", "goldens rewritten", "updates moved")
    first = movements[0]["one"]
    return "### float32 itself\n\n" + _table(head, [*(_row(each) for each in movements if each["one"] == first), _all(movements)])


def _row(each: dict[str, Any]) -> list[Any]:
    ends = [f"{each[name]:.2g}" for name in ("median", "p99", "r")]
    same, rewritten = f"{each['same'] / each['tensors']:.0%}", f"{each['rewritten']} of {each['goldens']}"
    furthest = [*ends, _roundoff(each["r"]), each["at"]]
    return [each["one"], each["other"], each["tensors"], same, *furthest, f"{each['margin']:.2g}", rewritten, each["stale"]]


def _all(movements: Sequence[dict[str, Any]]) -> list[Any]:
    worst = max(movements, key=lambda each: float(each["r"]))
    sums = {name: sum(each[name] for each in movements) for name in ("tensors", "same", "stale", "goldens", "rewritten")}
    most = {name: max(each[name] for each in movements) for name in ("median", "p99", "margin")}
    return _row({**worst, **sums, **most, "one": EVERY, "other": f"{len(movements)} pairs"})


def _sums(sums: Sequence[dict[str, Any]]) -> str:
    head = ("terms", "r", "roundoff", "between", "and")
    rows = ([each["terms"], f"{each['r']:.2g}", _roundoff(each["r"]), each["one"], each["other"]] for each in sums)
    return "### Sums of so many terms\n\n" + _table(head, rows)


def _roundoff(r: float) -> str:
    """That explains an r by itself."""
    return f"2^{math.log2(REASSOCIATED * r):.1f}" if r else "0"


def _seeds(totals: Sequence[dict[str, Any]]) -> str:
    head = ("precision", "checks", "seeds", "errors", "warnings", "r/allowed", "at", "took a closer look", "r/allowed", "at")
    rows = (
        [*(each[name] for name in ("precision", "checks", "seeds", "failed", "warned")), f"{each['margin']:.2f}", each["at"], each["closer"],
         f"{each['closest']:.2f}", each["closest_at"]] for each in totals
    )  # fmt: skip
    return "### Healthy models over seeds\n\n" + _table(head, rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in each)} |\n" for each in lines)
