"""A test of a rule as a scenario: a few lines of torch, and the finding that they should give.

    def rotated():
        positions = torch.arange(300).bfloat16()  # fault
        return positions.sin()

    finds(rotated, "integer-rounding")

The line that ends in `# fault` is the one to blame. A failure says what was found instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import precheck
from precheck.findings import Finding, Report


def finds(program: Callable[[], Any], rule: str, *, severity: str = "error", raises: type[Exception] | None = None, says: str = "") -> Finding:
    """The one finding of `program`, of that rule and severity, at its marked line, with the words that it `says`."""
    report, line = watched(program, raises), _marked(program)
    wanted = f"{severity} {rule} at line {line[0]}, {line[1]}"
    assert len(report.findings) == 1, f"{program.__name__}: expected {wanted}; {_told(report)}"
    (finding,) = report.findings
    path, _, number = finding.source.rpartition(":")
    at_line = number == str(line[0]) and Path(path).name == Path(inspect.getfile(program)).name
    assert (finding.rule, finding.severity, at_line) == (rule, severity, True), f"{program.__name__}: expected {wanted}; {_told(report)}"
    assert says in finding.message, f"{program.__name__}: expected the words {says!r}; {_told(report)}"
    return finding


def passes(program: Callable[[], Any], *, raises: type[Exception] | None = None, wide: bool = False) -> None:
    """Nothing is found in `program`, and something in it was compared with the reference, or nothing if all in it is `wide`."""
    report = watched(program, raises)
    assert bool(report.facts["shadowed"]) != wide, f"{program.__name__}: {report.facts['shadowed']} ops were compared with the reference"
    assert not report.findings, f"{program.__name__}: expected no finding; {_told(report)}"


def watched(program: Callable[[], Any], raises: type[Exception] | None = None) -> Report:
    """The report on a program, whose result is alive to the end, as a user's is. `raises`: it has to end by that exception."""
    ended, kept, report = None, None, Report()
    try:
        with precheck.watch() as report:
            kept = program()
    except Exception as error:
        if type(error) is not raises:
            raise
        ended = raises
    assert ended is raises, f"{program.__name__}: expected {raises}, and it returned {kept}"
    return report


def _marked(program: Callable[[], Any]) -> tuple[int, str]:
    lines, first = inspect.getsourcelines(program)
    (found,) = [(first + place, text.strip()) for place, text in enumerate(lines) if text.rstrip().endswith("# fault")]
    return found


def _told(report: Report) -> str:
    return "found was:\n" + report.summary() if report.findings else "nothing was found"
