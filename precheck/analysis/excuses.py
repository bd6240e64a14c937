"""Excuses for a misrounding: the ops that read its value heal the error, or the value's inputs make it right. Each is a function in the ledger."""

from __future__ import annotations

from collections.abc import Callable

from precheck import ops
from precheck.analysis import causes
from precheck.analysis.choices import blurred
from precheck.analysis.exemption import exempts
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.output_impact import NEAR, ROUNDINGS, dominated, ends_wrong, measured, thrown_off
from precheck.analysis.provenance import DRAWN, FINEST, MOVING, REDUCTIONS, SUMS, effective_roundoff
from precheck.observe.shadow.additions import takes_back
from precheck.observe.shadow.operations import Operation, Value

SCALED = ops.MULTIPLYING
"""Products. They may be whole because their scale is, and not because they count something."""
Excuse = Callable[[Fact, Value, Readers], bool]


@exempts("integer-rounding", reason="draws lie on a grid of their format, so that multiples of them may be whole and count nothing", needed_by=())
def drawn(fact: Fact, value: Value, readers: Readers) -> bool:
    """A multiple of what was drawn at random."""
    sources = fact.operation.inputs
    return bool(sources) and all(source.maker is not None and source.maker.base in DRAWN for source in sources)


@exempts("integer-rounding", reason="a table that nobody reads harms nobody", needed_by=("absolute-keys (mended)",))
def unread(fact: Fact, value: Value, readers: Readers) -> bool:
    """A buffer that was rounded with its module, and that no forward pass has read."""
    return not readers.get(value)


@exempts(
    "integer-rounding", reason="a count beyond 2^24 in float32 is off by a rounding of float32, which nobody feels until something makes it larger",
    needed_by=("pixels_of_many_pictures",),
)  # fmt: skip
def unfelt(fact: Fact, value: Value, readers: Readers) -> bool:
    """Whole numbers in float32, which nothing that computes with them is off by, nor makes other integers of."""
    if value.roundoff >= FINEST or _numbered(value, readers):
        return False
    waiting, seen = [value], {value}
    while waiting and len(seen) < NEAR:
        for reader in readers.get(waiting.pop(0), ()):
            if any(made.drift >= ROUNDINGS * effective_roundoff(made) for made in reader.outputs):
                return False
            fresh = [made for made in reader.outputs if made not in seen] if reader.base in MOVING else []
            seen.update(fresh)
            waiting += fresh
    return True


@exempts("cancellation", reason="what follows adds it to larger things: no result and no number that Python reads is half wrong", needed_by=())
def small(fact: Fact, value: Value, readers: Readers) -> bool:
    """A layer's small result beside which others are large."""
    return not ends_wrong(value, readers)


@exempts(
    "integer-rounding", reason="pixels and products that happen to be whole are measures, of which one rounding is one rounding",
    needed_by=("hoisted-zero (mended)", "raw_intensities"),
)  # fmt: skip
def scaled(fact: Fact, value: Value, readers: Readers) -> bool:
    """Whole numbers that are measures: one rounding is one rounding. What is made an integer in the end, and another one, is none."""
    return not _numbered(value, readers) and measured(value, readers, weighed=fact.operation.base not in SCALED)


@exempts(
    "integer-rounding", reason="a count that is added to a measure, which the format has rounded too, costs what that costs",
    needed_by=("overlap_of_masks",),
)  # fmt: skip
def added(fact: Fact, value: Value, readers: Readers) -> bool:
    """A count that is only added to numbers that count nothing and have been rounded like it."""
    consumers = [reader for reader in readers.get(value, ()) if reader.phase == "forward"]
    counted = fact.operation.base not in REDUCTIONS or _numbered(value, readers)
    return bool(consumers) and not counted and all(_beside_measures(reader, value) for reader in consumers)


def _beside_measures(reader: Operation, count: Value) -> bool:
    """Whether a count is added to rounded numbers that are not whole (`wholes_moved` is 0), and the sum is right up to a few roundings."""
    rounded = any(other.low and other.drift > 0 and not other.wholes_moved for other in reader.inputs if other is not count)
    return reader.base in SUMS and rounded and all(made.drift < ROUNDINGS * effective_roundoff(made) for made in reader.outputs)


def _numbered(value: Value, readers: Readers) -> bool:
    """Whether something made from the value is cast to integers, and these differ from the right ones."""
    waiting, seen = [value], {value}
    while waiting and len(seen) < NEAR:
        for reader in readers.get(waiting.pop(0), ()):
            if reader.renumbered is not None:
                return True
            fresh = [made for made in reader.outputs if made not in seen]
            seen.update(fresh)
            waiting += fresh
    return False


@exempts(
    "cancellation", "amplified-rounding", "underflow", "accumulated-drift",
    reason="beside what is added to it its error is none, and what is only compared is a decision, which is judged as one", needed_by=(),
)  # fmt: skip
def made_good(fact: Fact, value: Value, readers: Readers) -> bool:
    """A small difference to which something large is added, or that is only compared. A weight's step without a digit is not made good."""
    consumers = readers.get(value, ())
    if any((reader.parameter or reader.in_optimizer) and thrown_off(reader, value) for reader in consumers):
        return False  # a weight is stepped again and again
    made = [(reader, result) for reader in consumers for result in reader.outputs if result is not value]
    only_compared = bool(consumers) and not value.alive and not any(reader.outputs or reader.reads or blurred(reader) for reader in consumers)
    return only_compared or (bool(made) and all(dominated(reader, result) for reader, result in made))


@exempts(
    "cancellation", reason="what is subtracted from all scores of a row is divided out again by the row's sum: its error with it",
    needed_by=("softmax_written_out",),
)  # fmt: skip
def softmax_written_out(shares: list[bool]) -> bool:
    """A softmax written out. `shares`: of each exponential of the difference, whether it is divided by a sum of them."""
    return bool(shares) and all(shares)


@exempts(
    "cancellation", "amplified-rounding", "absorption",
    reason="a number less its own rounding is that rounding, and a difference in float32 of numbers that were given low is what they hold",
    needed_by=("compensated_total", "gradient_differences", "running_moments", "textbook_compensation"),
)  # fmt: skip
def as_stored(operation: Operation, value: Value) -> bool:
    """Wide arithmetic on numbers that were given low, a number less its own rounding among it."""
    stored = [source for source in operation.inputs if source.kept_low]
    given = not value.low and all(causes.given_low(source) for source in stored)
    return takes_back(operation) or (given and not causes.stored_too_soon(operation, value))
