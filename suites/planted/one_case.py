"""One case: a network, healthy or with a bug, under one precision, through the verbs. Run as a program, it prints a line of JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from harm import harm
from networks import Network, network
from planted_bug import Harmless, Planted
from training_steps import Steps

import precheck

REPEATS = 3
"""Plain steps that are timed, for their least: a verb's cost is given over one low and one float32 step."""


def plain_seconds(code: ModuleType, precision: str) -> float:
    """One low run of the network's steps and one in float32, without precheck."""
    return sum(min(_timed(lambda name=name: Steps(code, name).run)[1] for _ in range(REPEATS)) for name in (precision, "32-true"))


def through(verb: str, code: ModuleType, precision: str) -> tuple[precheck.Report, float]:
    """The report of a verb, and its seconds."""
    return {"measure": measured, "check": checked, "watch": watched}[verb](code, precision)


def arguments(code: ModuleType) -> dict[str, Any]:
    """What the network's author would pass to `measure` and `check`."""
    torch.manual_seed(0)
    names = {"loss": "loss", "optimizer": "optimizer", "steps": "STEPS"}
    return {"model": code.make(), "inputs": code.batch()} | {key: getattr(code, name) for key, name in names.items() if getattr(code, name, None)}


def measured(code: ModuleType, precision: str) -> tuple[precheck.Report, float]:
    given = arguments(code)
    return _timed(lambda: lambda: precheck.measure(**given, precision=precision))


def checked(code: ModuleType, precision: str) -> tuple[precheck.Report, float]:
    """Against a golden of the same code's own float32 run, as the fixture `check_precision` does."""
    from precheck.goldens.lifecycle import refresh
    from precheck.measurement import job_of

    given = arguments(code)
    with tempfile.TemporaryDirectory() as folder:
        golden = Path(folder) / "golden.safetensors"
        refresh(golden, job_of(given["model"], given["inputs"], **{key: given[key] for key in ("loss", "optimizer", "steps") if key in given}))
        return _timed(lambda: lambda: precheck.check(**given, golden=golden, precision=precision))


def watched(code: ModuleType, precision: str) -> tuple[precheck.Report, float]:
    """Around the plain loop. What the loop raises is the user's; the report has been filled by then."""
    steps = Steps(code, precision)

    def watching() -> precheck.Report:
        report = precheck.Report(precision=precision)
        try:
            with precheck.watch(steps.model) as report:
                steps.run()
        except (RuntimeError, ValueError, ArithmeticError):
            if not report.errors:
                raise
        return report

    return _timed(lambda: watching)


def _timed(ready: Callable[[], Callable[[], Any]]) -> tuple[Any, float]:
    """`ready` prepares what is timed."""
    work = ready()
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def verdict(report: precheck.Report, bug: Planted | None, lines: set[int], name: str) -> dict[str, Any]:
    """What the report says, and whether it is right: about its first error the place and the rule, and about any error the place."""
    found = [(f"{error.rule}", error.cause_rule or error.rule, _line(error.source or "", name)) for error in report.errors]
    facts: dict[str, Any] = {"error": bool(found), "errors": len(found)}
    if found:
        first = report.errors[0]
        facts |= {"rule": first.rule, "source": Path(first.source or "").name, "message": first.message.splitlines()[0][:200]}
    if bug is not None and found:
        facts["line"] = found[0][2] in lines
        facts["line_in_any"] = any(line in lines for _, _, line in found)
        facts["rule_right"] = bool({*found[0][:2]} & set(bug.rules))
    return facts


def _line(source: str, name: str) -> int | None:
    """The number of a line of the network's own file."""
    path, _, number = source.rpartition(":")
    return int(number) if number.isdigit() and Path(path).stem == name else None


def case(of: Network, change: Planted | Harmless | None, precision: str, verbs: list[str]) -> dict[str, Any]:
    bug = change if isinstance(change, Planted) else None
    row: dict[str, Any] = {"network": of.name, "bug": bug.name if bug else None, "precision": precision}
    if isinstance(change, Harmless):
        row["harmless"] = change.name
    if bug is not None:
        figures = harm(of, bug, precision)
        row |= {"part": _figure(figures.part), "result": _figure(figures.result)}
    code = of.code(change)
    verbs = [verb for verb in verbs if verb in (bug.through if bug else verbs) and (verb == "watch" or not hasattr(code, "step"))]
    plain = plain_seconds(code, precision) if verbs else 0.0
    for verb in verbs:
        row[verb] = _asked(verb, code, bug, precision, of.culprits(bug) if bug else set(), plain)
    return row


def _asked(verb: str, code: ModuleType, bug: Planted | None, precision: str, lines: set[int], plain: float) -> dict[str, Any]:
    try:
        report, seconds = through(verb, code, precision)
    except Exception as error:
        return {"error": False, "raised": f"{type(error).__name__}: {error}"[:300]}
    assert code.__file__ is not None
    return verdict(report, bug, lines, Path(code.__file__).stem) | {"seconds": round(seconds, 4), "cost": round(seconds / plain, 2)}


def _figure(value: float) -> float | str:
    """JSON has no infinity."""
    return float(f"{value:.3g}") if math.isfinite(value) else "inf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("change", help="the name of a bug or of a harmless change; healthy for none")
    parser.add_argument("precision")
    parser.add_argument("--through", default="")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    precheck.measure(torch.nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out: out.sum())  # what the first call of a process costs is no case's
    of = network(chosen.network)
    change = None if chosen.change == "healthy" else of.change(chosen.change)
    print(json.dumps(case(of, change, chosen.precision, [each for each in chosen.through.split(",") if each])), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
