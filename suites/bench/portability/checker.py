"""Run in a process of its own, under one setting: records goldens of suites/models and suites/planted, or checks beside those of other settings.

It calls the tests of suites/models/test_goldens.py with an object of its own in the place of check_precision, so that what is
checked here is what they check. The networks of suites/planted are checked as test_planted_networks.py measures them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import hashlib
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from verdicts import Margin, Verdict, line, verdict_of

from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.checking import Checking
from precheck.findings import Report
from precheck.goldens import file, lifecycle
from precheck.judge import compared_runs
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.records import Trace
from precheck.precisions import Precision, resolve
from precheck.shared_runs.evidence import Evidence

MODELS, NETWORKS = (Path(__file__).parents[2] / name for name in ("models", "planted"))
LONG = ("federated", "lstm", "pretraining", "rectified", "sharded", "soft_actor", "style_gan")
"""Networks that are left out: one of 240 steps in Python, and six that loops of their own train."""
FACTS, GOLDENS = "facts.json", "goldens"


class Runs:
    """The runs of one job under one precision, each made once: they are the same beside every golden that samples the same records."""

    def __init__(self) -> None:
        self.evidence: dict[Any, Evidence] = {}
        self.reports: dict[Any, Report] = {}
        self.references: dict[Any, Trace] = {}


class Looked(Checking):
    """A check as `precheck.check` makes it, which shares its runs with checks beside other goldens, and keeps what it saw beside this one."""

    rows: list[ComparedTensor] | None = None

    def __init__(self, job: Job, precision: Precision, golden: file.Golden, runs: Runs) -> None:
        super().__init__(job, precision, golden, depth="ops")
        self.runs, self.asked = runs, (self.job.sampled, self.functions)

    def seen(self) -> Evidence:
        return _once(self.runs.evidence, self.asked, super().seen)

    def measured(self, seen: Evidence, *, brief: bool = False) -> Report:
        return copy.deepcopy(_once(self.runs.reports, (self.asked, brief), lambda: super(Looked, self).measured(seen, brief=brief)))

    def reference(self) -> Trace:
        return _once(self.runs.references, self.job.sampled, super().reference)

    def against_golden(self, trace: Trace) -> list[ComparedTensor] | None:
        self.rows = super().against_golden(trace)
        return self.rows


def _once(kept: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key not in kept:
        kept[key] = make()
    return kept[key]


def jobs() -> Iterator[tuple[str, str, tuple[str, ...], Job]]:
    """Each test of a golden: its name, its model's, the precisions it is made for, and its job. What cannot be imported is left out.

    The networks of suites/planted come after the models: they have functions of their own, whose results a golden holds too.
    """
    for test in _goldens():
        marks = {mark.name: mark.args for mark in test.pytestmark}
        for model in marks["parametrize"][1]:
            try:
                yield test.__name__, model, marks["precision"], _job(test, model)
            except pytest.skip.Exception as why:
                print(f"left out: {test.__name__} of {model}: {why}", flush=True)
    sys.path.insert(0, str(NETWORKS))
    from networks import names, network
    from one_case import arguments

    for name in (each for each in names() if each not in LONG):
        yield "network", name, ("32-true", *network(name).precisions), job_of(**arguments(network(name).code()))


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


def check(folder: Path, others: Sequence[Path]) -> None:
    """Every test under every precision, in the setting of `folder`, beside the goldens of each other folder; what is kept is there once all is.

    Beside goldens with the same content a verdict is the same, and is made once.
    """
    parts = {other: beside(folder, other).with_suffix(".part") for other in others}
    with contextlib.ExitStack() as stack:
        kept = {other: stack.enter_context(part.open("w", encoding="utf8")) for other, part in parts.items()}
        for test, model, precisions, job in jobs():
            goldens = {other: golden_of(other / GOLDENS, test, model) for other in others}
            there = {other: golden for other, golden in goldens.items() if golden.exists()}
            for precision in precisions:
                for other, verdict in compared(job, precision, there, test, model):
                    kept[other].write(line(verdict))
            print(f"checked {test} of {model} beside {len(there)} goldens", flush=True)
    for other, part in parts.items():
        part.replace(beside(folder, other))


def compared(job: Job, precision: str, goldens: Mapping[Path, Path], test: str, model: str) -> Iterator[tuple[Path, Verdict]]:
    """One test under one precision, beside each golden."""
    runs, known = Runs(), dict[str, Verdict]()
    for other, golden in goldens.items():
        if content(golden) not in known:
            known[content(golden)] = checked(job, precision, golden, test, model, runs)
        yield other, known[content(golden)]


@functools.cache
def content(golden: Path) -> str:
    """Of all that a check reads, which is not where it was recorded."""
    return hashlib.blake2b(file.encode(file.Golden(file.read(golden).records, {}))).hexdigest()


def checked(job: Job, precision: str, golden: Path, test: str, model: str, runs: Runs | None = None) -> Verdict:
    """As `precheck.check`, but for the diagnosis, which only says where in the code an error comes from.

    What torch itself refuses under a setting is an error by the name of what it raises.
    """
    looking = Looked(job, resolve(precision), file.read(golden), runs or Runs())
    try:
        report = looking.report(str(golden))
    except RuntimeError as error:
        return Verdict(test, model, precision, 0, (type(error).__name__,), (), 0, Margin(0.0, ""))
    rows = report.boundaries if precision == "32-true" else looking.rows and compared_runs.table(looking.rows)
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
    else:
        check(asked.folder, asked.goldens)


if __name__ == "__main__":
    main()
