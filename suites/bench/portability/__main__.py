"""`python suites/bench/portability`: how far goldens travel between settings, and how often a healthy model is called broken."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checker import GOLDENS
from circumstances import SETTINGS, Circumstance, available, features, interpreters
from figures import EVERY, around, keep
from healthy_seeds import measure
from moved import movement
from products import furthest
from travels import REPOSITORY, ROOT, facts, held, multiplied, pairs, run_all
from verdicts import Verdict, total, travel

HERE, PAGE = Path(__file__).parent, ROOT / "docs" / "portability.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python suites/bench/portability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    settings = commands.add_parser("settings", help="goldens recorded under each setting of this processor, checked under all others")
    settings.add_argument("--python", action="append", default=[], metavar="PATH", help="an interpreter with another torch; may be repeated")
    settings.add_argument("--only-tables", action="store_true", help="of what the folder holds; run nothing")
    seeds = commands.add_parser("seeds", help="healthy models measured over seeds")
    seeds.add_argument("--checks", type=int, default=2000, help="how many in all, with those that the folder holds (default: 2000)")
    for command in (settings, seeds):
        command.add_argument("folder", type=Path, help="where goldens and verdicts are kept; a later call goes on with what it holds")
        command.add_argument("--json", type=Path, default=HERE / "results.json", help="where figures are kept (default: beside this)")
        command.add_argument("--page", type=Path, default=PAGE, help="whose tables are made anew (default: docs/portability.md)")
    asked = parser.parse_args()
    if asked.command == "seeds" and asked.checks < 1:
        parser.error(f"--checks={asked.checks}: at least one has to be made")
    try:
        around(asked.page)
        asked.others = list(interpreters(asked.python)) if asked.command == "settings" else []
    except ValueError as error:
        parser.error(str(error))
    return asked


def main() -> int:
    """0, whatever was found: the tables say it."""
    asked = arguments()
    asked.folder.mkdir(parents=True, exist_ok=True)
    made = by_settings(asked) if asked.command == "settings" else by_seeds(measure(asked.folder / "healthy.jsonl", asked.checks))
    keep(asked.json, asked.page, **{asked.command: made})
    return 0


def by_settings(asked: argparse.Namespace) -> dict[str, Any]:
    chosen, left = available(SETTINGS, features())
    print("\n".join(left), flush=True)
    folder: Path = asked.folder.resolve()
    if not asked.only_tables:
        run_all(folder, [*chosen, *asked.others])
    recorded = held(folder, [*chosen, *asked.others])
    known = [*recorded, *held(folder, [REPOSITORY])]
    return {
        "settings": [facts(folder, each) for each in known],
        "travels": [{"golden": whose, "here": here, **dataclasses.asdict(travel(*found))} for whose, here, *found in pairs(folder, recorded)],
        "sums": furthest(multiplied(folder, recorded)),
        "float32": [apart(folder, one, other) for one, other in itertools.combinations(known, 2)],
    }


def apart(folder: Path, one: Circumstance, other: Circumstance) -> dict[str, Any]:
    moved = movement(folder / one.folder / GOLDENS, folder / other.folder / GOLDENS)
    return {"one": one.name, "other": other.name, **dataclasses.asdict(moved)}


def by_seeds(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """A total of each precision, then of all."""
    groups = {name: [each for each in verdicts if each.precision == name] for name in dict.fromkeys(each.precision for each in verdicts)}
    return [
        {"precision": name, "seeds": len({each.seed for each in group}), **dataclasses.asdict(total(group))}
        for name, group in {**groups, EVERY: list(verdicts)}.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
