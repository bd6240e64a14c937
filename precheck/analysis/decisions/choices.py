"""Checks decisions in a watched run: choices among scores, such as top-k, comparisons of whole numbers, and guards against division by zero.

Rounding may hide the differences between scores, and rounding noise may pass a guard: a program checks whether a number is near zero, and divides by
it if not. A spread, an area or a determinant that is zero in exact arithmetic is rounding noise in the run. The noise of a coarse format may lie
above the guard's bound, and that of float32 below it. The shadow follows the run's answer and divides by its own noise, or by zero. Both results are
garbage, and a tanh or a clamp may make them equal, so that no later op shows the error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from precheck import ops
from precheck.analysis.chance import CHANCE
from precheck.analysis.decisions.branches import BRANCHES, count_of_differing_answers
from precheck.analysis.facts import Readers
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.attribution import written
from precheck.analysis.propagation.causes import before_copies
from precheck.analysis.propagation.provenance import elements
from precheck.analysis.propagation.walks import Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

CHANGED_ROWS = Limit(5, "rows")
"""The fewest rows whose choice changed. In healthy programs at most 1 of 32 rows changed."""
BLURRED = Limit(0.025, "share of the rows")
"""The smallest share of rows whose choice changed, if rounding hides the differences between their scores. It counts together with `CHANGED_ROWS`."""
BLUR = Limit(16.0, "unit roundoffs")
"""Rounding hides the differences between scores if it is at least this large relative to their spread in a row. Four bits of a choice's input are
lost then, as when all scores have a large common offset. Healthy routers and classifiers lose about one."""
BY_DIFFERENCE = ops.EXTREMES | ops.ORDERED
"""Choices that go by how scores differ."""


def hides_differences(operation: Operation) -> bool:
    """Whether the rounding of a choice's scores hides how they differ."""
    return operation.flips is not None and operation.flips.blur >= BLUR * operation.inputs[0].roundoff


def blurred(operation: Operation) -> bool:
    """Whether a choice differs from the reference because rounding hides the differences between its scores."""
    flips = operation.flips
    if flips is None or flips.changed < CHANGED_ROWS or operation.packet not in ops.EXTREMES or not operation.inputs[0].roundoff:
        return False
    return flips.changed / flips.total >= BLURRED and hides_differences(operation)


def made_equal(scores: Value) -> Value | None:
    """The low tensor in which distinct scores became equal: the scores, or what functions of one operand have made them from, as a softmax in float32
    of low logits. Equal numbers stay equal there, and two computed in float32 are equal once in 2^24 times only. None if no such tensor is low. The
    precision asks for the low result of a product or of torch's own module, and code that widens it before it chooses has done its part."""
    value = scores
    for _ in range(SEARCHED):
        maker = value.maker
        if value.low or maker is None or len(maker.inputs) != 1 or maker.base not in ops.KEEPING_TIES:
            break
        value = maker.inputs[0]
    return value if value.low and (value is scores or not _asked_for(value)) else None


def _asked_for(stored: Value) -> bool:
    """Whether the precision asks for a low tensor: a product made it, or torch's own module, and it was only moved since."""
    maker = before_copies(stored).maker
    return maker is not None and (maker.base in ops.PRODUCTS or not written(maker))


def by_value(operation: Operation) -> bool:
    """Whether a choice returned values and places, and the program uses the values alone. The places were freed, and no forward op has read them. Of
    equal scores it makes no difference then which one is chosen."""
    return operation.places is not None and not operation.used_as and operation.places.expired()


def ordered_by_place(operation: Operation) -> bool:
    """Whether rounding hides the differences between the scores of a full sort, and something reads its indices.

    Without such a blur a long row, such as a vocabulary's logits, has equal neighbours too. The order among them means nothing.
    """
    return bool(operation.used_as) and hides_differences(operation)


def misjudged(observation: Observation) -> Iterator[tuple[Operation, int]]:
    """The first comparison of each line that gives many other answers than the reference, all on whole numbers, and how many.

    Of two real numbers that differ by a rounding either may be the larger. Whole numbers are exact, so only one answer on them is right. A number of
    the reference is whole by chance as often as its spacing says, and all of a line are so by the product of these chances.
    """
    spacing, lines = 2.0**-52 if observation.exact else 2.0**-23, defaultdict[tuple[str, str], list[Operation]](list)
    for operation in observation.judged:
        if operation.base in ops.COMPARED and count_of_differing_answers(operation) and operation.phase != "backward":
            lines[operation.line].append(operation)
    for found in lines.values():
        count = sum(map(count_of_differing_answers, found))
        if count >= BRANCHES and math.prod(_whole_by_chance(operation, spacing) for operation in found) <= CHANCE:
            yield found[0], count


def _whole_by_chance(comparison: Operation, spacing: float) -> float:
    """The chance that what is compared, or a term of it, is whole by chance. Inf if rounding has moved no whole number there."""
    terms = (term for value in comparison.inputs if value.maker is not None and value.maker.base in ops.SUMS for term in value.maker.inputs)
    return min((spacing * value.peak for value in (*comparison.inputs, *terms) if value.wholes_moved), default=math.inf)


CLEAR = Limit(16.0, "times")
"""A guard failed if its comparison lets a divisor through that is this far above the bound, while the reference's is below the bound. A few roundings
of one number make no such gap."""
PASSED_ON = ops.MOVING | ops.SCATTERING | ops.FILLING | {"sqrt"}
"""Ops that move numbers, or replace some of them."""
DIVIDING = ops.RECIPROCALS | ops.LOGARITHMS | {"rsqrt"}
"""Ops with a pole where their last operand is zero."""
SEARCHED = 16
"""The most ops, or values, that a search in this file visits."""


def divided_by(guard: Operation, readers: Readers) -> Operation | None:
    """The op that divides by a number which a comparison let through, if it is noise that the reference's own comparison would reject."""
    if guard.let_through is None or guard.let_through.apart < CLEAR or not guard.inputs:
        return None
    walk = Walk(guard.inputs[:1], SEARCHED)
    for value, reader in walk.with_readers(readers):
        if reader.base in DIVIDING and reader.inputs[-1] is value and reader.phase == "forward":
            return reader
        if reader.base in PASSED_ON:
            walk.follow(made for made in reader.outputs if elements(made) >= elements(value))
    return None
