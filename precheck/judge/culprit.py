"""Which op is behind what a module boundary shows."""

from __future__ import annotations

import dataclasses
import math

from precheck.findings import Finding
from precheck.judge import causes
from precheck.judge.events import Suspect
from precheck.judge.lineage import SUMS, placed, via
from precheck.judge.ops import finding_of
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.source import shortened

_KIN = {
    "overflow": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
    "nan": {"overflow", "nan", "vanished-constant", "underflow", "cancellation", "amplified-rounding"},
}  # fmt: skip
"""Of what is not finite at a boundary, the mechanisms that can have made it so. Anything can have made a drift."""


GROWN = 4.0
"""Times that an op makes the error larger from which it amplifies what came in, two bits: the rounding that came in is the cause. Where it
adds less than a fourth, what came in is the cause as well."""
Function = tuple[str, int, int]
"""A function's file, first and last line."""


def explained(finding: Finding, observation: Observation, suspects: list[Suspect], function: Function | None = None) -> Finding:
    """`finding`, an error at a boundary, with the op and line behind it; as it is if none stands out. `function`: whose result it is about."""
    fitting = [each for each in suspects if each.severity == "error" and _fits(finding, each) and _of(each.operation, function)]
    if fitting:
        first = finding_of(fitting[0])
        cause = f"{first.rule}: {first.message}"
        module = finding.module or (first.module if function is not None else "")
        return dataclasses.replace(finding, op=first.op, module=module, source=first.source, via=first.via, cause=cause, cause_rule=first.rule)
    operation, value = _steepest(finding, observation, function) or (None, None)
    if operation is None or value is None:
        return finding
    grown = f"{operation.drift_in:.2g} of its norm off before it, {value.drift:.2g} after it"
    rounding = causes.entered(operation.drifting) if _handed(operation, value) else None
    if rounding is not None and rounding is not operation and rounding.blamed and not (rounding.plain or rounding.converts):
        cause = f"{placed(rounding)}: its rounding is what {placed(operation)} shows: {grown}"
        return dataclasses.replace(finding, op=rounding.title, source=shortened(rounding.blamed), via=via(rounding), cause=cause)
    source, cause = shortened(operation.blamed), f"{placed(operation)}: {grown}"
    return dataclasses.replace(finding, op=operation.title, source=source, via=via(operation), cause=cause)


def _handed(operation: Operation, value: Value) -> bool:
    """Whether an op shows a rounding that came in. A difference that is stored low itself cancels here, and has to be taken in float32 here."""
    grown = value.drift / (operation.drift_in or math.inf)
    return not (operation.base in SUMS and value.low) and not 1 + 1 / GROWN < grown < GROWN


def _fits(finding: Finding, suspect: Suspect) -> bool:
    """A cause comes before its effect, and is of its kind."""
    if finding.rule in _KIN and suspect.rule not in _KIN[finding.rule]:
        return False
    if finding.rule == "gradient-underflow":
        return suspect.rule == "gradient-underflow"
    return suspect.operation.phase in ("forward", "data") or suspect.operation.phase == finding.phase


def _steepest(finding: Finding, observation: Observation, function: Function | None) -> tuple[Operation, Value] | None:
    """The op, up to the end of the module that is blamed, that added most to the drift there was."""
    inside = [operation for operation in observation.operations if operation.phase == finding.phase and operation.step <= max(1, finding.step)]
    if function is not None:
        own = [operation for operation in inside if _of(operation, function)]
    else:
        own = [operation for operation in inside if not finding.module or _within(operation.module, finding.module)]
    candidates = [(operation, value) for operation in own or inside for value in operation.outputs[:1] if value.maker is operation and value.roundoff]
    best = max(candidates, key=lambda each: each[1].drift - each[0].drift_in, default=None)
    return best if best is not None and best[1].drift > 2 * best[1].roundoff else None


def _of(operation: Operation, function: Function | None) -> bool:
    """Whether the user's line of an op is one of that function."""
    if function is None:
        return True
    file, first, last = function
    path, _, line = operation.blamed.rpartition(":")
    return path == file and first <= int(line) <= last


def _within(module: str, blamed: str) -> bool:
    return module == blamed or module.startswith(f"{blamed}.")
