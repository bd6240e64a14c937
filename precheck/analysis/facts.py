"""Defines `Fact`, what an analysis finds about one op of a watched run, and `Part`, what rules get to judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from precheck.analysis.propagation.provenance import Origins
from precheck.findings import Severity
from precheck.observe.shadow.operations import Observation, Operation, Value

Readers = dict[Value, list[Operation]]


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Fact:
    """A possible fault."""

    rule: str  # the name of the rule that reports it
    operation: Operation  # the op where the cause entered
    measured: float
    limit: float
    severity: Severity = "error"


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """The part of a watched run that is judged now. A short run is one part."""

    observation: Observation
    readers: Readers
    spoiled: Set[Value]  # values that follow from harmful Inf and NaN
    origins: Origins
    facts: Mapping[str, Sequence[Fact]]  # by rule
