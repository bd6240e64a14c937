"""Operations and values made by hand: what a watched run would have written down, without a run."""

from __future__ import annotations

from typing import Any

from precheck import formats
from precheck.findings import Finding
from precheck.judge import watched_runs
from precheck.observe.shadow.operations import Observation, Operation, Value

LOW = {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"}


def value(maker: Operation | None = None, dtype: str = "bfloat16", shape: tuple[int, ...] = (64,), **facts: Any) -> Value:
    """A value of that format, sixty-four elements of norm 8 unless told; low and stored low where the format is."""
    low = dtype in LOW
    facts = {"roundoff": formats.of_dtype(dtype).unit_roundoff if low else 0.0, "low": low, "kept_low": low, "norm": 8.0} | facts
    return Value(maker, shape, dtype, **facts)


class Graph:
    """A run, op by op. Each op stands on a line of its own, which is its number."""

    def __init__(self) -> None:
        self.observation = Observation()

    def op(self, name: str, *inputs: Value, makes: dict[str, Any] | None = None, **facts: Any) -> Value:
        """Adds an op; what it makes is a `value` with the facts of `makes`. Other `facts` are the op's own."""
        number = len(self.observation.operations) + 1
        facts = {"phase": "forward", "module": "", "source": f"model.py:{number}", "step": 1} | facts
        operation = Operation(number, name, inputs=inputs, **facts)
        made = value(operation, **(makes or {}))
        operation.outputs = (made,)
        self.observation.add(operation)
        return made

    def read(self, source: Value) -> None:
        """`.item()`."""
        self.op("_local_scalar_dense.default", source, reads=1)
        self.last.outputs = ()

    @property
    def last(self) -> Operation:
        return self.observation.operations[-1]

    def found(self) -> list[Finding]:
        return watched_runs.found(self.observation)

    def rules(self) -> list[tuple[str, int]]:
        """The rule and the line of each finding."""
        return [(finding.rule, int(finding.source.rpartition(":")[2])) for finding in self.found()]


def given(dtype: str = "bfloat16", **facts: Any) -> Value:
    """A value from outside the run."""
    return value(None, dtype, **facts)


def above(limit: float) -> float:
    return limit * (1 + 1e-6)


def below(limit: float) -> float:
    return limit * (1 - 1e-6)
