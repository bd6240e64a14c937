"""How far an error gets: whether what the user has of a watched run shows it, or what reads it on the way makes it good.

A rounding that one op amplifies may be undone by the next: an error of a logarithm is absolute, and the exponential that follows makes
a relative error of it again; a sum of many averages it out; a step is small beside its weight. What counts is what is left where
the run ends: results, gradients, numbers that Python reads.
"""

from __future__ import annotations

from precheck.judge.lineage import SUMS, felt
from precheck.observe.shadow.operations import FRESH, Observation, Operation, Value

ROUNDINGS = 8.0
"""Drift of an end, in unit roundoffs, that a few ordinary ops cost as well: what `rounding.SUM_ROUNDINGS` is to a difference."""
DEAD = 0.01
"""Share of an end's elements without a digit from which it shows."""
COMPARED = frozenset({"gt", "lt", "ge", "le", "eq", "ne", "isnan", "isinf", "isfinite", "equal", "allclose", "isclose"})
"""Ops that give a yes or no for each element. Other results without floats, as indices are, are ends: the shadow takes them over."""
GARBAGE = 0.5
"""Half of a step without a digit is harm however large the weight is that it is added to: the weight shows it after many steps only."""


def shown(observation: Observation) -> set[Value]:
    """The values of which something that they end up in is off by more than ordinary rounding: one pass over the run, from its end.

    Ends are what no op reads, what Python reads or is made whole numbers of, gradients of parameters, and what the shadow could not
    follow. What is only compared is a decision of the run, which the shadow takes over; flips are judged by themselves.
    """
    reading = [operation for operation in observation.operations if operation.base not in FRESH]
    read = {value for operation in reading for value in operation.inputs if value not in operation.outputs}  # a copy is no reader
    found = {value for _, value in observation.made() if value not in read and _shows(value)}
    found |= {value for _, value, _ in observation.gradients.values() if _shows(value)}
    for operation in reversed(reading):
        onwards = any(value in found for value in operation.outputs)
        last = _ends(operation)
        found.update(value for value in operation.inputs if onwards or (last and _shows(value)) or _thrown_off(operation, value))
    return found


def _ends(reader: Operation) -> bool:
    return bool(reader.reads or reader.opaque or (not reader.outputs and reader.base not in COMPARED))


def _shows(value: Value) -> bool:
    return bool(value.nonfinite) or value.drift >= ROUNDINGS * felt(value) or value.dead >= DEAD


def _thrown_off(reader: Operation, step: Value) -> bool:
    """Whether it adds a step most of which is garbage to something kept."""
    return reader.in_place and reader.base in SUMS and step.dead >= GARBAGE and step is not reader.inputs[0]
