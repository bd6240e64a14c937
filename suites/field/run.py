"""`python suites/field/run.py [NAMES] --lines FILE`: what precheck says of published code that its authors never saw.

Each case runs in a process of its own: `measure` and a watched loop of three steps, under each precision. The loop runs once more without
`watch`, and what it leaves has to be the same bit for bit. `--lines` writes a line of JSON for each run, and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fieldcase import Case, loaded
from trained import differing, trained

import precheck
from precheck.torch_support.autocast import cuda_policy_on_cpu

WAYS = ("watch", "measure")
PATIENCE = 400
"""Seconds that one case may take."""
PLAIN = 12
"""Runs without precheck that are made where a watched run left other bits."""


def judged(case: Case, precision: str, way: str, plain: dict[str, torch.Tensor] | str) -> dict[str, Any]:
    """One run as a line of the record. `plain`: what the loop leaves without precheck, or how it fails."""
    begun = time.perf_counter()
    line: dict[str, Any] = {"case": case.name, "package": case.package, "version": case.version(), "domain": case.domain}
    line |= {"precision": precision, "way": way}
    if isinstance(plain, str):
        return line | {"unable": plain}
    try:
        if way == "watch":
            report, left = _watched(case, precision)
            line["altered"] = altered = differing(plain, left)
            if altered:  # some code does not repeat itself, with precheck or without: what differs between plain runs tells nothing
                line["unsteady"] = sorted({name for _ in range(PLAIN) for name in differing(plain, trained(case, precision))})
                line["altered"] = [] if line["unsteady"] else altered
        else:
            report = _measured(case, precision)
        line["errors"] = [_said(finding) for finding in report.errors]
        line["warnings"] = [finding.rule for finding in report.findings if finding.severity == "warning"]
        line["opaque"] = [str(fact) for name, fact in report.facts.items() if "opaque" in name]
    except Exception as error:
        said = _plain(f"{type(error).__name__}: {error}".splitlines()[0][:200])
        line["unable" if way == "measure" and _raises_itself(case, precision) else "crash"] = said
    return line | {"seconds": round(time.perf_counter() - begun, 2)}


def _watched(case: Case, precision: str) -> tuple[precheck.Report, dict[str, torch.Tensor]]:
    reports = []

    @contextmanager
    def around(model: torch.nn.Module) -> Iterator[None]:
        with precheck.watch(model) as report:
            reports.append(report)
            yield

    left = trained(case, precision, around)
    return reports[0], left


def _measured(case: Case, precision: str) -> precheck.Report:
    made = case.made()
    stepping = {"optimizer": made.optimizer, "steps": 3} if made.optimizer else {}
    return precheck.measure(made.model, made.inputs, precision=precision, loss=made.loss, **stepping)  # type: ignore[arg-type]


def _raises_itself(case: Case, precision: str) -> bool:
    """Whether the plain loop fails in float32, or under CUDA's list of autocast ops. `measure` needs both."""
    with cuda_policy_on_cpu():
        try:
            trained(case, "32-true")
            trained(case, precision)
        except Exception:
            return True
    return False


def _said(finding: precheck.Finding) -> dict[str, str]:
    cause = f" ({finding.cause_rule}: {finding.cause})" if finding.cause else ""
    said = {"rule": finding.rule, "source": finding.source, "via": finding.via, "op": finding.op, "phase": finding.phase}
    return {name: _plain(value) for name, value in (said | {"message": finding.message.splitlines()[0] + cause}).items()}


def _plain(text: str) -> str:
    """Without folders and addresses of this machine."""
    return re.sub(r"(?:[\w.-]*/)+(?:site-packages|suites/field(?:/cases|/trainings)?)/| at 0x[0-9a-f]+", "", text)


def case_lines(case: Case) -> Iterable[dict[str, Any]]:
    """All runs of one case, in this process."""
    for precision in case.precisions:
        try:
            plain: dict[str, torch.Tensor] | str = trained(case, precision)
        except Exception as error:
            plain = _plain(f"{type(error).__name__}: {error}".splitlines()[0][:200])
        for way in WAYS[:1] if isinstance(plain, str) else WAYS:
            yield judged(case, precision, way, plain)


def said(line: dict[str, Any]) -> str:
    """A line of the record as a person reads it."""
    if "unable" in line:
        return f"{line['case']} [{line['precision']}]: does not run, with precheck or without: {line['unable']}"
    head = f"{line['case']} [{line['precision']}, {line['way']}]: "
    if "crash" in line:
        return f"{head}CRASH of precheck: {line['crash']}"
    altered = f" ALTERED {line['altered'][:3]}" if line.get("altered") else ""
    errors = "".join(f"\n    {error['rule']} at {error['via'] or error['source']}: {error['message']}" for error in line["errors"])
    return f"{head}{len(line['errors'])} errors, {len(line['warnings'])} warnings, {line['seconds']} s{altered}{errors}"


def recorded(path: Path | None) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf8").splitlines()] if path and path.exists() else []


def apart(case: Case) -> list[dict[str, Any]]:
    """All runs of one case, in a process of its own."""
    command = [sys.executable, __file__, "--here", case.name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return [{"case": case.name, "failed": f"takes more than {PATIENCE} s"}]
    lines = [json.loads(text) for text in ended.stdout.splitlines() if text.startswith('{"case"')]
    said = ended.stderr.strip().splitlines() or ended.stdout.strip().splitlines() or ["no output"]
    return lines or [{"case": case.name, "failed": said[-1]}]


def main(arguments: list[str] | None = None) -> int:
    """1 where a case ended without a verdict."""
    parser = argparse.ArgumentParser(prog="python suites/field/run.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of cases or packages (default: all)")
    parser.add_argument("--lines", type=Path, help="record, one JSON object a line")
    parser.add_argument("--here", action="store_true", help="in this process; prints the record")
    asked, failed = parser.parse_args(arguments), False
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {line["case"] for line in recorded(asked.lines)}
    for case in loaded().values():
        if asked.names and not any(name in case.name or name in case.package for name in asked.names):
            continue
        if asked.here:
            if case.name in asked.names:
                for line in case_lines(case):
                    print(json.dumps(line), flush=True)
            continue
        if not case.version():
            print(f"{case.name}: skipped, {case.package} is not installed")
            continue
        if case.name in known:
            continue
        lines = apart(case)
        for line in lines:
            print(f"{case.name}: FAILED: {line['failed']}" if "failed" in line else said(line), flush=True)
            failed |= "failed" in line
            if asked.lines and "failed" not in line:
                with asked.lines.open("a", encoding="utf8") as file:
                    file.write(json.dumps(line) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
