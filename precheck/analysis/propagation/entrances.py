"""Finds the cast by which an error entered, where a change of the line that made most of the error would not mend it.

An op may compute low only because its author cast what it reads, perhaps many lines before. Widening the op takes away its own rounding and those
that follow, and leaves that of the cast. Without the cast all of these were wide, and rounded nothing. So where the cast's rounding alone puts the
result beyond its limit, no line after it mends the error, and the cast is named.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.attribution import Attribution, is_variance_of_squares
from precheck.analysis.propagation.provenance import elements
from precheck.observe.shadow.operations import Observation, Operation, Value


class Entrances:
    """Asks that of the results of a part of a run, once for each line."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.known: dict[tuple[object, ...], Operation] = {}

    def of(self, value: Value, made: Operation, excess: float) -> Operation:
        """The op whose line should be changed: `made`, which made most of a value's error, or the cast before it. `excess`: how many times its limit
        the error is."""
        origin = made.since[1] if made.since is not None else None
        if origin is None or origin.policy or origin.line == made.blamed or value.maker is None:
            return made
        place = made.line, made.name, value.maker.line
        if place not in self.known:
            shares = Attribution(value, self.observation.operations).shares
            casts = {each: share for each, share in shares.items() if share and _casts(each, origin.line)}
            enough = sum(casts.values()) * excess**2 > 1
            cast = max(casts, key=casts.__getitem__) if enough else made
            self.known[place] = cast if enough and _to_leave_out(cast, made, value.maker) else made
        return self.known[place]


def _casts(operation: Operation, line: str) -> bool:
    """Whether an op makes numbers low on that line, which were wide before."""
    since = operation.outputs[0].since
    return since is not None and since.line == line and operation.since is None


def _to_leave_out(cast: Operation, made: Operation, shown: Operation) -> bool:
    """Whether a cast is the program's choice for numbers of its own: data may be rounded, and so may what a module is given. Nor does it count if both
    terms of a difference have its rounding, which cancels, or if a variance of squares shows it, which should be changed in any format."""
    own = cast.outputs[0].call_error > 0 and (bool(cast.module) or not made.module)
    return own and not any(_cancels(each, cast) or is_variance_of_squares(each, cast) for each in (made, shown))


def _cancels(operation: Operation, cast: Operation) -> bool:
    """Whether the terms of a difference were computed from the same elements of what a cast has made."""
    if operation.base not in ops.SUMS or len(operation.inputs) < 2 or not causes.reads_only_from_line_of(operation, cast):
        return False
    behind = (each.maker for each in causes.ancestors(operation.inputs) if each.maker is not None and each.maker.number > cast.number)
    return not any(_reads_part(each) for each in (operation, *behind))


def _reads_part(operation: Operation) -> bool:
    """Whether an op that computes each element by itself reads only some elements of an input: a view of it, of which there is no record."""
    by_element = operation.base not in ops.PRODUCTS | ops.REDUCTIONS - ops.SUMS
    return by_element and elements(operation.outputs[0]) < max(map(elements, operation.inputs), default=0)
