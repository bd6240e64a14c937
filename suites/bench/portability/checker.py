"""Run in a process of its own, under one setting: records the goldens of suites/models, or checks them beside those of other settings.

It calls the tests of suites/models/test_goldens.py with an object of its own in the place of check_precision, so that what is
checked here is what they check.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from verdicts import Margin, Verdict, line, verdict_of

from precheck.checking import Checking
from precheck.goldens import file, lifecycle
from precheck.judge import boundaries
from precheck.judge.drift import Comparison
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.records import Trace
from precheck.precisions import resolve

MODELS = Path(__file__).parents[2] / "models"
FACTS, GOLDENS = "facts.json", "goldens"


class Looked(Checking):
    """A check that keeps what it saw beside the golden, before any closer look."""

    rows: list[Comparison] | None = None

    def against_golden(self, trace: Trace) -> list[Comparison] | None:
        self.rows = super().against_golden(trace)
        return self.rows


def jobs() -> Iterator[tuple[str, str, tuple[str, ...], Job]]:
    """Each test of a golden: its name, its model's, the precisions it is made for, and its job. What cannot be imported is left out."""
    for test in _goldens():
        marks = {mark.name: mark.args for mark in test.pytestmark}
        for model in marks["parametrize"][1]:
            try:
                yield test.__name__, model, marks["precision"], _job(test, model)
            except pytest.skip.Exception as why:
                print(f"left out: {test.__name__} of {model}: {why}", flush=True)


def _goldens() -> list[Any]:
    runpy.run_path(str(MODELS / "conftest.py"))
    sys.path.insert(0, str(MODELS))
    import test_goldens

    return [test_goldens.test_forward_and_gradients, test_goldens.test_three_steps]


@functools.cache
def _job(test: Callable[..., None], model: str) -> Job:
    found: list[Job] = []
    test(lambda *given, **settings: found.append(job_of(*given, **settings)), model)
    return found[0]


def record(folder: Path) -> None:
    """The goldens under this setting, in `folder`, and at last what the setting came to."""
    for test, model, _, job in jobs():
        file.write(golden_of(folder / GOLDENS, test, model), lifecycle.record(job))
        print(f"recorded {test} of {model}", flush=True)
    (folder / FACTS).write_text(json.dumps(facts()) + "\n", encoding="utf8")


def beside(folder: Path, other: Path) -> Path:
    """Where the verdicts are that one setting gave beside the goldens of another."""
    return folder / f"beside-{other.name}.jsonl"


def golden_of(folder: Path, test: str, model: str) -> Path:
    return folder / f"{test}-{model}.safetensors"


def facts() -> dict[str, Any]:
    return {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}


def check(goldens: Path, into: Path, known: dict[tuple[str, ...], Verdict]) -> None:
    """Every test under every precision beside the goldens in a folder; the verdicts are in `into` once all are there.

    `known`: verdicts of this process by test, precision and content of the golden. Beside the same golden a verdict is the same.
    """
    temporary = into.with_suffix(".part")
    with temporary.open("w", encoding="utf8") as kept:
        for test, model, precisions, job in jobs():
            golden = golden_of(goldens, test, model)
            for precision in precisions if golden.exists() else ():
                key = (test, model, precision, content(golden))
                if key not in known:
                    known[key] = checked(job, precision, golden, test, model)
                kept.write(line(known[key]))
    temporary.replace(into)


@functools.cache
def content(golden: Path) -> str:
    """Of all that a check reads, which is not where it was recorded."""
    return hashlib.blake2b(file.encode(file.Golden(file.read(golden).records, {}))).hexdigest()


def checked(job: Job, precision: str, golden: Path, test: str, model: str) -> Verdict:
    """As `precheck.check`, but for the diagnosis, which only says where in the code an error comes from.

    What torch itself refuses under a setting is an error by the name of what it raises.
    """
    looking = Looked(job, resolve(precision), file.read(golden))
    try:
        report = looking.report(str(golden))
    except RuntimeError as error:
        return Verdict(test, model, precision, 0, (type(error).__name__,), (), 0, Margin(0.0, ""))
    rows = report.boundaries if precision == "32-true" else looking.rows and boundaries.table(looking.rows)
    return verdict_of(report, test, model, golden=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of this setting")
    parser.add_argument("goldens", type=Path, nargs="*", help="folders of other settings, to check beside; without one, goldens are recorded")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    if not asked.goldens:
        record(asked.folder)
    known: dict[tuple[str, ...], Verdict] = {}
    for other in asked.goldens:
        check(other / GOLDENS, beside(asked.folder, other), known)
        print(f"checked beside {other.name}", flush=True)


if __name__ == "__main__":
    main()
