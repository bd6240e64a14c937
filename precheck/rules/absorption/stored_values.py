"""What an addition adds to: a value that was stored before, or one that was just computed."""

from __future__ import annotations

from precheck import ops
from precheck.analysis.facts import Readers
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.provenance import elements, is_alias
from precheck.observe.shadow.operations import Operation, Value


def written_back(operation: Operation, value: Value, readers: Readers) -> bool:
    """Whether a stored weight is overwritten with itself and something that is computed without it, and nothing keeps the wide sum: neither a master
    copy, nor a weight that is only scaled or cut anew, nor a sum with random draws, which may round it at random."""
    target, total = operation.inputs[0], operation.inputs[1]
    origin = causes.before_copies(target).maker
    held = bool(operation.parameter) and (origin is None or origin.base in ops.CONSTANTS)
    while held and not total.alive and len(readers.get(total, ())) == 1 and total.maker is not None:
        terms = [each for each in total.maker.inputs if elements(each) == elements(value)]
        if len(terms) != 1:
            without = [each for each in terms if target not in causes.ancestors([each])]
            drawn = total.maker.drawn or any(each.maker is not None and each.maker.base in ops.DRAWN for each in causes.ancestors(without))
            return total.maker.base in ops.SUMS and 0 < len(without) < len(terms) and not drawn
        total = terms[0]
    return False


def accumulates(first: Operation) -> bool:
    """Whether the first of several additions adds to a stored value, or to one that was scaled as an average is: `average.mul_(0.9).add_(new)`."""
    held = first.inputs[0].maker if first.inputs else None
    return (held is not None and held.base == "mul") or not first.inputs or stored(first)


def stored(operation: Operation) -> bool:
    """Whether an addition's target was stored before, as a state or a weight is. A block's input is not, if what is added is computed from it."""
    target = causes.before_copies(operation.inputs[0])
    return (target.maker is None or target.maker.base in ops.CONSTANTS) and target not in causes.ancestors(operation.inputs[1:])


def kept(operation: Operation, value: Value, readers: Readers) -> bool:
    """Whether an op adds in place to a stored value, or adds to a whole weight and the sum is used as a weight."""
    if operation.in_place:
        return stored(operation)
    whole = any(source.maker is None and elements(source) == elements(value) for source in operation.inputs)
    return bool(operation.parameter) and whole and all(_weighs(reader, value) for reader in readers.get(value, ()) if reader.phase == "forward")


def _weighs(reader: Operation, value: Value) -> bool:
    return is_alias(reader, value) or reader.base in ops.MOVING or (reader.base in ops.PRODUCTS and reader.inputs[-1] is value)
