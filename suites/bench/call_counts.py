"""`python suites/bench/call_counts.py`: what a passing `measure` does, in counts that no busy machine changes.

For each planted network: the runs by kind, the aten calls of each kind over those of one low and one float32 step, and the calls of Python and C
functions for each shadowed op, by what they are for. cProfile counts the latter. Before Python 3.12 results of the user's functions are then not
recorded, which leaves out about a tenth.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from planted_costs import PLANTED, kind
from torch.autograd.profiler import profile

import precheck
from precheck.observe import run as runs

SIX = ("llama", "vae", "graph", "kan", "forecaster", "cells")
CENTRES: dict[str, tuple[tuple[str, str], ...]] = {
    "dispatch in all": (("profiling.py", "plain"),),
    "the op itself": (("mode.py", "run"),),
    "place and record": (("call.py", "described"), ("mode.py", "record")),
    "inputs with record": (("call.py", "prepare"),),
    "replay": (("call.py", "_replayed"),),
    "comparison": (("measuring.py", "measure"), ("measuring.py", "measure_cast")),
    "shadows kept": (("cells.py", "keep"), ("cells.py", "share")),
    "sums": (("accumulation.py", "after"), ("accumulation.py", "stored")),
    "functions again": (("function_replay.py", "before"), ("function_replay.py", "after")),
    "quantisers": (("codes.py", "after"), ("codes.py", "after_view")),
    "boundaries": (("recorder.py", "add"), ("recorder.py", "learn")),
    "noise runs": (("measurement.py", "_noise_run"),),
    "rules": (("watched_runs.py", "candidates"),),
}
"""The functions of each cost centre. A centre includes what its functions call, so some lie in others."""


def aten(work: Callable[[], Any]) -> int:
    """How many aten ops it runs, those inside other ops counted too."""
    with profile(use_kineto=False) as seen:
        work()
    return len(seen.function_events)


def in_runs(given: dict[str, Any], precision: str) -> tuple[Counter[str], Counter[str]]:
    """The runs of a measurement by kind, and their aten calls."""
    made, calls, plain = Counter[str](), Counter[str](), runs._ran

    def told(job: Any, setting: Any) -> Any:
        results: list[Any] = []
        calls[kind(setting)] += aten(lambda: results.append(plain(job, setting)))
        made[kind(setting)] += 1
        return results[0]

    runs._ran = told
    try:
        precheck.measure(**given, precision=precision)
    finally:
        runs._ran = plain
    return made, calls


def by_centre(given: dict[str, Any], precision: str) -> tuple[int, dict[str, float]]:
    """The shadowed ops of a measurement, and its calls for each of them by centre."""
    counted = cProfile.Profile(itertools.count().__next__, 1.0)  # a clock that counts how often it is read: twice a call
    report = counted.runcall(precheck.measure, **given, precision=precision)
    shadowed, found = report.facts["shadowed"], pstats.Stats(counted).stats  # type: ignore[attr-defined]
    spent = {(path.rpartition("/")[2], name): within for (path, _, name), (_, _, _, within, _) in found.items() if "/precheck/" in path}
    centres = {centre: sum(spent.get(each, 0) for each in functions) / 2 / shadowed for centre, functions in CENTRES.items()}
    return shadowed, {"all": sum(each[1] for each in found.values()) / shadowed} | centres


def row(code: ModuleType, name: str, precision: str) -> None:
    from one_case import arguments
    from training_steps import Steps

    plain = sum(aten(Steps(code, each).run) for each in (precision, "32-true"))
    made, calls = in_runs(arguments(code), precision)
    shadowed, centres = by_centre(arguments(code), precision)
    told = ", ".join(f"{each} {made[each]} x: {calls[each] / plain:.2f}" for each in made)
    print(f"{name} {precision}: aten {plain}, in all {sum(calls.values()) / plain:.2f} ({told})")
    print(f"  calls for each of {shadowed} shadowed ops: " + ", ".join(f"{each} {count:.0f}" for each, count in centres.items()), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python suites/bench/call_counts.py", description=__doc__)
    parser.add_argument("names", nargs="*", default=SIX, help=f"networks of suites/planted (default: {', '.join(SIX)})")
    parser.add_argument("--precision", default="bf16-mixed")
    asked = parser.parse_args()
    sys.path.insert(0, str(PLANTED))
    from networks import network
    from one_case import arguments

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in asked.names:
        code = network(name).code()
        precheck.measure(**arguments(code), precision=asked.precision)
        row(code, name, asked.precision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
