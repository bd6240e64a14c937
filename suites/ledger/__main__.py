"""Makes docs/limits-and-exemptions.md: what becomes of the zoo's verdicts where a limit is halved or doubled, or an exemption taken out.

    python suites/ledger docs/limits-and-exemptions.md
    python suites/ledger docs/limits-and-exemptions.md COHERENT MOST

The second form makes the rows of these names, and of what the page does not have yet. It keeps all other rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from programs import ALL, IDIOMS, Program, corpus

from precheck.analysis.ledger import LEDGER, without
from precheck.analysis.limit import Limit
from precheck.report.markdown import grid
from precheck.report.rules import all_limits

Errors = dict[str, frozenset[tuple[str, str]]]
Rows = dict[str, tuple[str, ...]]


def main(out: Path, names: Sequence[str] = ()) -> None:
    """Writes the page. With `names`, only their rows and missing ones are made again."""
    kept = _kept(out, names) if names else {}
    programs = corpus()
    before = judged(programs)
    healthy = {each.name for each in programs if not each.faulty}
    lines = ["<!-- made by python suites/ledger -->", "", "# Limits and exemptions, one by one", ""]
    older = " Rows are made again one by one: some are from an earlier, smaller corpus, or from up to 60 programs that reach the limit." * bool(kept)
    lines += [_counted(programs, before) + older, "", "## Exemptions", ""]
    lines += ["Each is healthy code that a rule would accuse. Without the exemption these programs are accused:", ""]
    lines += grid(("exemption", "rules", "reason", "accused without it"), list(_exemptions(programs, before, kept)))
    lines += ["", "## Limits", "", "A limit that is moved by a factor of two either way changes so many verdicts: healthy programs that are accused,",
              "bugs that are missed, and programs whose error has another rule or line.", ""]  # fmt: skip
    lines += grid(("limit", "value", "halved", "doubled"), list(_limits(programs, before, healthy, kept)))
    out.write_text("\n".join(lines) + "\n", encoding="utf8")


def _kept(page: Path, names: Sequence[str]) -> Rows:
    """By its first cell, each row of the page that has been made and is of none of the `names`."""
    cells = [tuple(line.strip("| ").split(" | ")) for line in page.read_text(encoding="utf8").splitlines() if line.startswith("| ")]
    return {row[0]: row for row in cells if row[0].split(" ")[0].strip("`") not in names and "not moved yet" not in row}


def judged(programs: Sequence[Program]) -> Errors:
    """The errors of each program."""
    return {each.name: each.errors() for each in programs}


def _counted(programs: Sequence[Program], before: Errors) -> str:
    bugs = [each for each in programs if each.faulty]
    found = sum(bool(before[each.name]) for each in bugs)
    of_bugs, of_healthy = len(ALL), len(ALL) + len(IDIOMS)
    return (f"From {len(bugs)} of the {of_bugs} bugs of `suites/zoo` ({found} found) and {len(programs) - len(bugs)} of its {of_healthy} healthy "
            "programs, each watched once and judged again for each row. The others are long runs, which are judged in parts. Rules on a run beside "
            "its reference are not asked here.")  # fmt: skip


def _exemptions(programs: Sequence[Program], before: Errors, kept: Rows) -> Iterator[tuple[str, ...]]:
    for entry in LEDGER.values():
        if entry.name in kept:
            yield entry.name, ", ".join(entry.rules), entry.reason, kept[entry.name][-1]
            continue
        with without(entry.name):
            after = judged(programs)
        accused = [each.name for each in programs if not each.faulty and after[each.name] and not before[each.name]]
        other = sum(after[each.name] != before[each.name] for each in programs) - len(accused)
        listed = ", ".join(accused[:6]) + (f" and {len(accused) - 6} more" if len(accused) > 6 else "")
        yield entry.name, ", ".join(entry.rules), entry.reason, f"{listed or 'none'}; {other} others change" if other else listed or "none"


def _limits(programs: Sequence[Program], before: Errors, healthy: set[str], kept: Rows) -> Iterator[tuple[str, ...]]:
    for (file, name), limit in all_limits().items():
        label, value = f"`{name}` ({file})", f"{limit:g} {limit.unit}"
        if label in kept and kept[label][1] == value:
            yield label, value, *kept[label][2:]
            continue
        changes = []
        for factor in (0.5, 2.0):
            with moved(limit, limit * factor):
                changes.append(_changes(before, judged(programs), healthy))
        yield label, value, *changes


@contextmanager
def moved(limit: Limit, value: float) -> Iterator[None]:
    """In the block the limit has another value, wherever it is read."""
    places = [(module, name) for module in list(sys.modules.values()) if getattr(module, "__name__", "").startswith("precheck.")
              for name, each in list(vars(module).items()) if each is limit]  # fmt: skip
    for module, name in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, limit)


def _changes(before: Errors, after: Errors, healthy: set[str]) -> str:
    accused = sum(bool(after[name]) and not before[name] for name in healthy)
    missed = sum(bool(errors) and not after[name] for name, errors in before.items() if name not in healthy)
    found = sum(not errors and bool(after[name]) for name, errors in before.items() if name not in healthy)
    other = sum(bool(errors) and bool(after[name]) and errors != after[name] for name, errors in before.items())
    words = ((accused, "accused"), (missed, "missed"), (found, "more found"), (other, "otherwise"))
    return ", ".join(f"{count} {word}" for count, word in words if count) or "–"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python suites/ledger", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the page to write; takes hours without names")
    parser.add_argument("names", nargs="*", help="limits and exemptions whose rows are made again")
    asked = parser.parse_args()
    main(asked.page, asked.names)
