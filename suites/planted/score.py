"""The scorer: every network and bug under every precision, each case in a process of its own.

    python suites/planted/score.py [--only llama/rope-low] [--through measure,watch,check] [--jobs 1] [--lines FILE] [--write README.md]

Without a verb (--through ''), it prints the harm alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from networks import HERE, cases, network
from score_table import page, table

TIME_LIMIT = 300
"""Seconds a case may take: a plain step of any network takes less than a tenth of one, so this is a hang."""
BEGIN, END = "<!-- made by score.py: begin -->", "<!-- made by score.py: end -->"


def scored(key: tuple[str, str, str], verbs: str) -> dict[str, Any]:
    """The row of a case, whatever becomes of its process."""
    row: dict[str, Any] = {"network": key[0], "bug": None if key[1] == "healthy" else key[1], "precision": key[2]}
    if any(each.name == key[1] for each in network(key[0]).harmless):
        row |= {"bug": None, "harmless": key[1]}
    command = [sys.executable, str(HERE / "one_case.py"), *key, "--through", verbs]
    paths = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT, env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths}
        )
    except subprocess.TimeoutExpired:
        return row | {"failed": f"no end within {TIME_LIMIT} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return row | {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    return dict(json.loads(lines[-1]))


def chosen(only: str) -> list[tuple[str, str, str]]:
    """The cases whose NETWORK/BUG/PRECISION begins so."""
    keys = [(of.name, bug.name if bug else "healthy", precision) for of, bug, precision in cases() if of.name.startswith(only.split("/")[0])]
    return [key for key in keys if f"{'/'.join(key)}/".startswith(only.rstrip("/") + "/" if "/" in only else only)]


def written(path: Path, made: str) -> None:
    """Puts the table between its marks in a page."""
    text = path.read_text(encoding="utf8")
    head, rest = text.split(BEGIN, 1)
    path.write_text(f"{head}{BEGIN}\n{made}\n{END}{rest.split(END, 1)[1]}", encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="NETWORK, NETWORK/BUG or NETWORK/BUG/PRECISION (BUG is 'healthy' for none)")
    parser.add_argument("--through", default="measure,watch")
    parser.add_argument("--sample", type=int, help="how many cases, drawn at random (default: all)")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lines", type=Path, default=Path("planted.jsonl"), help="the file of JSON lines, one a case")
    parser.add_argument("--from-lines", action="store_true", help="run nothing; make the table from that file")
    parser.add_argument("--write", type=Path, help="a page with the marks between which the table goes")
    given = parser.parse_args()
    if given.from_lines:
        rows = [json.loads(line) for line in given.lines.read_text(encoding="utf8").splitlines()]
    else:
        rows, keys = [], chosen(given.only)
        if given.sample is not None:
            keys = random.Random(given.seed).sample(keys, min(given.sample, len(keys)))
        with ThreadPoolExecutor(given.jobs) as pool, given.lines.open("w", encoding="utf8") as file:
            for row in pool.map(lambda key: scored(key, given.through), keys):
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                print(json.dumps(row), file=sys.stderr, flush=True)
    made = table(rows)
    print(made)
    if given.write:
        written(given.write, page(rows))


if __name__ == "__main__":
    main()
