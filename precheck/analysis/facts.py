"""What an analysis finds in a watched run: facts, each about one op and under the name of the mechanism that it shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from precheck.analysis.provenance import Origins
from precheck.findings import Severity
from precheck.observe.shadow.operations import Observation, Operation, Value

Readers = dict[Value, list[Operation]]


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Fact:
    """Something that should not be so. The rule named `mechanism` words it."""

    mechanism: str
    operation: Operation  # where the cause entered
    measured: float
    limit: float
    severity: Severity = "error"


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """The part of a watched run that is judged now; the whole of it, if it is short."""

    observation: Observation
    readers: Readers
    spoiled: Set[Value]  # what follows from Inf and NaN that did harm
    origins: Origins
    facts: Mapping[str, Sequence[Fact]]  # by mechanism
