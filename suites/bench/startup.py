"""What pytest's start costs a project that does not use the plugin: whole runs of an empty project, with it and without."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from budgets import Result
from ratios import Call

BUDGET = 0.020
PAIRS = 5  # starts with and without it, a round: one start differs from the next by more than the plugin costs
ALONE = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider")  # what they cost is not ours


class Children:
    """The processor time of processes that a call starts: of two starts that differ by milliseconds, what else runs would decide."""

    def seconds(self, call: Call) -> float:
        before = _spent()
        call()
        return _spent() - before


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # in microseconds, where os.times counts hundredths of a second
    return usage.ru_utime + usage.ru_stime


def startup(folder: Path, rounds: int) -> Result:
    """Seconds of processor time that the plugin adds to `pytest --collect-only` in `folder`, which also takes the bytecode."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # an installed package is compiled once
    settings = {**given, "PYTHONPYCACHEPREFIX": str(folder / ".bytecode")}

    def start(*options: str) -> None:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *ALONE, *options]
        done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
        if done.returncode != 5:  # nothing collected
            raise RuntimeError(f"pytest ended with {done.returncode} in an empty project: {done.stdout}{done.stderr}")

    start()  # writes the bytecode
    clock = Children()
    more = [clock.seconds(start) - clock.seconds(lambda: start("-p", "no:precheck")) for _ in range(PAIRS * rounds)]
    return Result("start of pytest where unused: seconds more", "any", 0, statistics.median(more), BUDGET)
