"""`python suites/bench`: every budget as ratios measured in one run, into results.json and the table of README.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from allocator import keep
from budgets import KINDS, results
from sized import SHAPES
from startup import startup
from table import around, into, read
from waiting import waiting

from precheck.observe.timing.clocks import clock_for

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python suites/bench", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=size, default=[1, 4, 17], help="millions of parameters (default: 1 4 17)")
    parser.add_argument("--precision", choices=list(KINDS), action="append", help="default: all of them")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not (default: 5)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--json", type=Path, default=HERE / "results.json", help="where figures are kept and added to (default: beside this)")
    parser.add_argument("--page", type=Path, default=HERE / "README.md", help="whose table is made anew (default: beside this)")
    parser.add_argument("--keep-memory", action=argparse.BooleanOptionalAction, default=True, help="no turn asks the system for pages anew (default)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds={asked.rounds}: at least one has to count")
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device={asked.device}: torch {torch.__version__} sees no CUDA device here; use cpu")
    try:
        around(asked.page)
        asked.clock = clock_for(torch.device(asked.device))
        facts = machine(asked.clock.facts())
        facts["memory"] = "kept between turns" if asked.keep_memory and keep(max(asked.sizes)) else "the allocator's own way"
        asked.figures = read(asked.json, facts)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    return asked


def size(word: str) -> int:
    if word not in map(str, SHAPES):
        raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(map(str, SHAPES))}")
    return int(word)


def machine(facts: dict[str, Any]) -> dict[str, Any]:
    if facts["device"] != "cpu":
        return facts
    import cpuinfo

    return {**facts, "device": cpuinfo.get_cpu_info().get("brand_raw", "a CPU")}


def main() -> int:
    """0, whatever was missed: a clock decides nothing."""
    asked = arguments()
    clock, figures = asked.clock, asked.figures
    with tempfile.TemporaryDirectory() as folder:
        figures.add([startup(Path(folder), 3 * asked.rounds)])
    for millions in asked.sizes:
        for kind in asked.precision or KINDS:
            begun = time.monotonic()
            fresh, measured = results(millions, kind, clock, device=asked.device, rounds=asked.rounds)
            if asked.device.startswith("cuda"):
                fresh.append(waiting(millions, kind, asked.device))
            figures.add(fresh)
            figures.measured[f"{millions} M, {kind}"] = measured
            figures.write(asked.json)  # what is measured is kept, whatever comes next
            into(asked.page, figures)
            told(fresh, f"{millions} M, {kind}, {time.monotonic() - begun:.0f} s")
    return 0


def told(fresh: list[Any], title: str) -> None:
    print(title)
    for each in fresh:
        budget = "" if each.budget is None else f" of {each.budget:g} allowed{', missed' if each.missed else ''}"
        memory = "" if each.memory is None else f"; memory {each.memory:.2f}"
        print(f"  {each.what}: {each.value:.3g}{budget}{memory}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
