"""`python suites/bench/planted_costs.py`: what a passing `measure` of each planted network costs, and which of its runs take the time. Beside it:
what it costs to find that the same check would pass again, as `pytest` does where nothing has changed.

Processor time, the least of three measurements, over the least of one low and one float32 run of the network's steps. Both in one process
and on one thread, so that a busy machine disturbs the ratio little. The networks are those of suites/planted, without bugs.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import precheck
from precheck.measurement import job_of
from precheck.observe import run as runs
from precheck.observe.recording.digest import noted
from precheck.observe.setting import Setting
from precheck.shared_runs import unchanged

PLANTED = Path(__file__).resolve().parents[1] / "planted"
REPEATS = 3


def seconds(work: Callable[[], Any]) -> float:
    """Of this process, not of the clock."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def kind(setting: Setting) -> str:
    """Which run of a measurement it is."""
    if setting.shadow is not None:
        return "low, every op"
    if setting.precision is not None:
        return "low"
    return "noise" if setting.disturbance is not None else "reference"


def measured(given: Callable[[], dict[str, Any]], precision: str) -> tuple[float, dict[str, float]]:
    """Seconds of the quickest of a few measurements, and of its runs by kind."""
    best: tuple[float, dict[str, float]] = float("inf"), {}
    plain = runs._ran
    for _ in range(REPEATS):
        parts: collections.Counter[str] = collections.Counter()

        def told(job: Any, setting: Setting, parts: collections.Counter[str] = parts) -> Any:
            begun = time.process_time()
            try:
                return plain(job, setting)
            finally:
                parts[kind(setting)] += time.process_time() - begun  # type: ignore[assignment]

        arguments = given()
        runs._ran = told
        try:
            took = seconds(lambda arguments=arguments: precheck.measure(**arguments, precision=precision))
        finally:
            runs._ran = plain
        best = min(best, (took, dict(parts)), key=lambda each: each[0])
    return best


def again(given: Callable[[], dict[str, Any]], precision: str) -> float:
    """Seconds of the quickest of a few comparisons with a run that passed."""
    chosen, best = precheck.PRECISIONS[precision], float("inf")
    with noted() as wish:
        precheck.measure(**given(), precision=precision)
    assert wish.numbers is not None
    known = unchanged.passed(wish.numbers, unchanged.given(job_of(**given()), chosen, None, {}))

    def compared(arguments: dict[str, Any]) -> None:
        job = job_of(**arguments)
        assert known.again(job, chosen, unchanged.given(job, chosen, None, {}))

    for _ in range(REPEATS):
        arguments = given()
        best = min(best, seconds(lambda arguments=arguments: compared(arguments)))
    return best


def row(code: ModuleType, name: str, precision: str) -> tuple[float, float]:
    """Prints what one network costs; gives the ratios."""
    from one_case import arguments
    from training_steps import Steps

    plain = sum(min(seconds(Steps(code, each).run) for _ in range(2 * REPEATS)) for each in (precision, "32-true"))
    took, parts = measured(lambda: arguments(code), precision)
    shares = ", ".join(f"{name} {part * 1e3:.0f}" for name, part in parts.items())
    twice = again(lambda: arguments(code), precision) / plain
    print(f"{name:<16} {precision:<11} {took / plain:6.1f} {twice:6.2f}  {plain * 1e3:7.1f} ms {took * 1e3:8.1f} ms  ({shares})", flush=True)
    return took / plain, twice


def main() -> int:
    """0, whatever it costs."""
    parser = argparse.ArgumentParser(prog="python suites/bench/planted_costs.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    parser.add_argument("--precision", default="", help="one of them alone (default: all that a network is healthy under)")
    asked = parser.parse_args()
    sys.path.insert(0, str(PLANTED))
    from networks import names, network

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ratios = []
    for name in asked.names or names():
        found = network(name)
        code = found.code()
        if hasattr(code, "step"):
            continue  # whose loop `measure` is not asked about
        ratios += [row(code, name, each) for each in found.precisions if asked.precision in ("", each)]
    for what, found in zip(("measured", "passed before"), zip(*ratios, strict=True), strict=True):
        ordered = sorted(found)
        p90 = ordered[round(0.9 * (len(ordered) - 1))]
        print(f"{what}: median {statistics.median(ordered):.2f}, p90 {p90:.2f}, worst {ordered[-1]:.2f} of {len(ordered)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
