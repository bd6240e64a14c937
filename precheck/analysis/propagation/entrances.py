"""Finds the cast by which an error entered, where a change of the line that made most of the error would not mend it.

An op may compute low only because its author cast what it reads, perhaps many lines before. Widening the op takes away its own rounding and those
that follow, and leaves that of the cast. Without the cast all of these were wide, and rounded nothing. So where the cast's rounding alone puts the
result beyond its limit, no line after it mends the error, and the cast is named.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.attribution import Attribution, is_variance_of_squares
from precheck.observe.shadow.operations import Observation, Operation, Value


class Entrances:
    """Asks that of the results of a part of a run, once for each line."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.known: dict[tuple[object, ...], Operation] = {}

    def of(self, value: Value, made: Operation, excess: float) -> Operation:
        """The op whose line should be changed: `made`, which made most of a value's error, or the cast before it.

        `excess`: how many times its limit the error is. What both terms of a difference have from one cast is not enlarged by it, and a variance of
        squares should be changed in any format.
        """
        origin = made.since[1] if made.since is not None else None
        if origin is None or origin.policy or origin.line == made.blamed or value.maker is None:
            return made
        place = made.line, made.name, value.maker.line
        if place not in self.known:
            shares = Attribution(value, self.observation.operations).shares
            self.known[place] = _cast(made, {each: share for each, share in shares.items() if share and _casts(each, origin.line)}, excess) or made
        return self.known[place]


def _casts(operation: Operation, line: str) -> bool:
    """Whether an op makes numbers low on that line, which were wide before."""
    since = operation.outputs[0].since
    return since is not None and since.line == line and operation.since is None


def _cast(made: Operation, casts: dict[Operation, float], excess: float) -> Operation | None:
    if sum(casts.values()) * excess**2 <= 1:
        return None
    cast = max(casts, key=casts.__getitem__)
    common = made.base in ops.SUMS and len(made.inputs) > 1 and cast.call == made.call and causes.reads_only_from_line_of(made, cast)
    return None if common or is_variance_of_squares(made, cast) else cast
