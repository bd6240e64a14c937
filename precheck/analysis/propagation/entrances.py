"""Finds the cast by which an error entered, where a change of the line that made most of the error would not mend it.

An op may compute low only because its author cast what it reads, perhaps many lines before. Widening the op takes away its own rounding and those
that follow, and leaves that of the cast. Without the cast all of these were wide, and rounded nothing. So where the cast's rounding alone puts the
result beyond its limit, no line after it mends the error, and the cast is named.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.attribution import Attribution, is_variance_of_squares, same_function
from precheck.analysis.propagation.provenance import elements
from precheck.observe.shadow.operations import Observation, Operation, Value


class Entrances:
    """Asks that of the results of a part of a run, once for each line."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.known: dict[tuple[object, ...], Operation] = {}

    def of(self, value: Value, made: Operation, error: float, limit: float) -> Operation:
        """The op whose line should be changed: `made`, which made most of a value's error, or the cast before it. `error`, `limit`: of the value, in
        one unit."""
        origin = made.since[1] if made.since is not None else None
        if origin is None or origin.policy or origin.line == made.blamed or value.maker is None:
            return made
        place = made.line, made.name, value.maker.line
        if place not in self.known:
            shares = Attribution(value, self.observation.operations).shares
            here = {each: share for each, share in shares.items() if share and _low_by(each, origin.line)}
            share, cast = sum(here.values()), max(here, key=lambda each: (each.since is None, here[each]), default=made)
            alone = sum(part for each, part in here.items() if each.since is None) >= causes.MADE_BY_OP and self._asks_low(cast, made)
            chosen = alone or _own(cast, made)
            entered = share * error**2 > limit**2 and chosen and not any(_mends(each, cast) for each in (made, value.maker))
            self.known[place] = cast if entered else made
        return self.known[place]

    def _asks_low(self, cast: Operation, made: Operation) -> bool:
        """Whether a cast, in the same function, is all that makes an op low."""
        low = [source for source in made.inputs if source.low]
        here = same_function(cast, made, self.observation.functions)
        return here and all(source.since is not None and source.since.line == cast.blamed for source in low)


def _low_by(operation: Operation, line: str) -> bool:
    """Whether an op of that line is low by a cast of the same line."""
    since = operation.outputs[0].since
    return operation.blamed == line and since is not None and since.line == line


def _own(cast: Operation, made: Operation) -> bool:
    """Whether a program casts numbers of its own. Data may be rounded, and so may what a module is given."""
    return cast.outputs[0].call_error > 0 and (bool(cast.module) or not made.module)


def _mends(operation: Operation, cast: Operation) -> bool:
    """Whether a change of an op's line makes the rounding of a cast harmless. Both terms of a difference may have it, so that it cancels. A variance
    of squares may be computed by differences from the mean, which is right in any format."""
    return _cancels(operation, cast) or is_variance_of_squares(operation, cast)


def _cancels(operation: Operation, cast: Operation) -> bool:
    """Whether the terms of a difference were computed from the same elements of what a cast has made."""
    terms = [causes.ancestors([each]) for each in operation.inputs] if operation.base in ops.SUMS else []
    if len(terms) < 2 or not all(cast.outputs[0] in behind for behind in terms):
        return False
    between = (each.maker for each in set[Value]().union(*terms) if each.maker is not None and each.maker.number > cast.number)
    return not any(_reads_part(each) for each in (operation, *between))


def _reads_part(operation: Operation) -> bool:
    """Whether an op that computes each element by itself reads only some elements of an input: a view of it, of which there is no record."""
    by_element = operation.base not in ops.PRODUCTS | ops.REDUCTIONS - ops.SUMS
    return by_element and elements(operation.outputs[0]) < max(map(elements, operation.inputs), default=0)
