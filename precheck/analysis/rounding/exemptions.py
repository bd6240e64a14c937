"""Exemptions of a misrounding: the ops that read its value heal the error, its inputs make it right, or a quotient cancels it. Most are functions in
the ledger.
"""

from __future__ import annotations

from collections.abc import Callable

from precheck import formats, ops
from precheck.analysis import chance
from precheck.analysis.decisions.branches import misled
from precheck.analysis.decisions.choices import blurred
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.ledger import exempts
from precheck.analysis.propagation import attribution, causes
from precheck.analysis.propagation.attribution import drift
from precheck.analysis.propagation.output_impact import GARBAGE, ROUNDINGS, ends_wrong, hidden_by_larger_terms
from precheck.analysis.propagation.provenance import FINEST, absolute_error, determined, effective_roundoff, elements, rms
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.analysis.rounding.remainders import remainder_of, takes_from_codes
from precheck.analysis.unrepresentable.amounts import are_amounts, harmless_in_results
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.signed_terms import takes_back

Exempting = Callable[[Fact, Value, Readers], bool]


@exempts(
    "integer-rounding", needed_by=("jittered_crops",),
    reason="random draws are multiples of a spacing of their format, so a multiple of them may be a whole number without being a count",
)  # fmt: skip
def drawn(fact: Fact, value: Value, readers: Readers) -> bool:
    """A multiple of what was drawn at random."""
    sources = fact.operation.inputs
    return bool(sources) and all(source.maker is not None and source.maker.base in ops.DRAWN for source in sources)


@exempts("integer-rounding", reason="a table that nothing reads does no harm", needed_by=("absolute-keys (mended)",))
def unread(fact: Fact, value: Value, readers: Readers) -> bool:
    """A buffer that was rounded with its module, and that no forward pass has read."""
    return not readers.get(value)


@exempts(
    "integer-rounding", needed_by=("pixels_of_many_pictures",),
    reason="a count beyond 2^24 in float32 has one rounding of float32, which does no harm unless a later op amplifies it",
)  # fmt: skip
def float32_rounding(fact: Fact, value: Value, readers: Readers) -> bool:
    """Whole numbers in float32. Ops that read them are right to a few roundings, or wrong by another term, and none makes other integers of them."""
    if value.roundoff >= FINEST or _numbered(value, readers):
        return False
    walk = Walk([value], NEARBY)
    for read, reader in walk.with_readers(readers):
        astray = any(made.drift >= ROUNDINGS * effective_roundoff(made) for made in reader.outputs)
        if astray and not _outdone(read, reader):
            return False
        walk.follow(reader.outputs if reader.base in ops.MOVING else ())
    return True


def _outdone(value: Value, reader: Operation) -> bool:
    """Whether another term of a sum is more than twice as far off. Absolute errors add up in sums, so the whole numbers made less than a third of the
    sum's error. (A running total is off by a rounding for each term that it took in.)"""
    return reader.base in ops.SUMS and absolute_error(causes.worst_term(reader)) > 2 * absolute_error(value)


@exempts(
    "cancellation", reason="later ops add it to larger numbers, so no result and no number that Python reads is wrong by half",
    needed_by=("young_branch",),
)  # fmt: skip
def small(fact: Fact, value: Value, readers: Readers) -> bool:
    """A small result of a layer, which later ops add to larger ones."""
    return not ends_wrong(value, readers)


@exempts(
    "integer-rounding", needed_by=("hoisted-zero (mended)", "raw_intensities"),
    reason="pixels, and products that happen to be whole, are measurements: one rounding of them is an ordinary rounding",
)  # fmt: skip
def scaled(fact: Fact, value: Value, readers: Readers) -> bool:
    """Whole numbers that are measurements, and not counts. Numbers from which a cast makes other integers are counts."""
    return not _numbered(value, readers) and (harmless_in_results if multiplies(fact.operation) else are_amounts)(value, readers)


def multiplies(operation: Operation) -> bool:
    """Whether an op makes products: a square is one of a number with itself, and a sum of squares is a squared distance."""
    squared = operation.base in ops.SUMS and bool(operation.inputs) and all(map(attribution.tensors_squared_in, operation.inputs))
    return squared or operation.base in ops.MULTIPLYING or operation.name == "pow.Tensor_Scalar"


@exempts(
    "integer-rounding", needed_by=("overlap_of_masks",),
    reason="a count that is added to a rounded measurement has an error of the same size as that rounding",
)  # fmt: skip
def added(fact: Fact, value: Value, readers: Readers) -> bool:
    """A count that is only added to measurements, which have been rounded like it."""
    counts = fact.operation.base in ops.REDUCTIONS and not _numbered(value, readers)
    return counts and _read_only_by(_beside_measures, value, readers)


@exempts(
    "integer-rounding", needed_by=("norm_of_channels_about_nought",),
    reason="what is divided by a count has the count's relative error, which is one rounding; whatever amplifies it has a finding of its own",
)  # fmt: skip
def divisor(fact: Fact, value: Value, readers: Readers) -> bool:
    """A count that is only a divisor. If the program adds up the count in a low format, the count is its own result, and this does not apply."""
    added_low = fact.operation.base in ops.REDUCTIONS
    return not added_low and _read_only_by(_divides, value, readers) and not _numbered(value, readers)


def _read_only_by(kind: Callable[[Operation, Value], bool], value: Value, readers: Readers) -> bool:
    """Whether forward passes read a value, and all ops that do are of one kind."""
    reading = [reader for reader in readers.get(value, ()) if reader.phase == "forward"]
    return bool(reading) and all(kind(reader, value) for reader in reading)


def _divides(reader: Operation, count: Value) -> bool:
    return reader.base == "reciprocal" or (reader.base == "div" and len(reader.inputs) == 2 and reader.inputs[0] is not count)


def _beside_measures(reader: Operation, count: Value) -> bool:
    """Whether a count is added to rounded numbers that are not whole (`wholes_moved` is 0), and the sum is right up to a few roundings."""
    rounded = any(other.low and other.drift > 0 and not other.wholes_moved for other in reader.inputs if other is not count)
    return reader.base in ops.SUMS and rounded and all(made.drift < ROUNDINGS * effective_roundoff(made) for made in reader.outputs)


def _numbered(value: Value, readers: Readers) -> bool:
    """Whether something made from the value is cast to integers, and these differ from the right ones."""
    walk = Walk([value], NEARBY)
    for _, reader in walk.with_readers(readers):
        if reader.renumbered is not None:
            return True
        walk.follow(reader.outputs)
    return False


@exempts(
    "cancellation", "amplified-rounding", "underflow", "accumulated-drift",
    reason="beside the number that is added to it its error is negligible; a number that is only compared is a decision, which has a rule of its own",
    needed_by=("certain_gate",),
)  # fmt: skip
def outweighed(fact: Fact, value: Value, readers: Readers) -> bool:
    """A small number to which something large is added, or that is only compared. A weight does not outweigh a step without a digit."""
    consumers = readers.get(value, ())
    seen = value.alive or any(reader.outputs or reader.reads or blurred(reader) or misled(reader) for reader in consumers)
    return (bool(consumers) and not seen) or hidden_by_larger_terms(value, readers, multiples=fact.severity == "error" and off_by_one_spacing(value))


@exempts(
    "underflow", needed_by=("noise-that-nobody-hears (mended)",),
    reason="an error of at most the smallest spacing of a format is at most one rounding of any normal number that it is added to, "
    "so it is no fault of a function to return it",
)  # fmt: skip
def beneath_all(fact: Fact, value: Value, readers: Readers) -> bool:
    """A function's result that became zero or subnormal, to which only larger numbers are added, perhaps multiplied before."""
    return fact.rule == "underflow" and off_by_one_spacing(value) and hidden_by_larger_terms(value, readers, multiples=True)


def off_by_one_spacing(value: Value) -> bool:
    """Whether a value is off by at most the smallest spacing of its format, which is at most one rounding of any normal number it is added to."""
    return value.low and value.drift * rms(value) <= formats.of_dtype(value.dtype).min_subnormal


@exempts(
    "cancellation", needed_by=("softmax_written_out",),
    reason="an error in the number that is subtracted from all scores of a row cancels, since the row is divided by its sum",
)  # fmt: skip
def softmax_written_out(shares: list[bool]) -> bool:
    """A softmax written out. `shares`: for each exponential of the difference, whether it is divided by a sum of them."""
    return bool(shares) and all(shares)


@exempts(
    "cancellation", "amplified-rounding", "absorption",
    reason="a number minus its own rounding is exactly that rounding; a float32 difference of numbers that were given low is exact for them",
    needed_by=("compensated_total", "gradient_differences", "running_moments", "textbook_compensation"),
)  # fmt: skip
def as_stored(operation: Operation, value: Value, stored: list[Value]) -> bool:
    """Wide arithmetic on numbers that were given in low precision, or a number minus its own rounding, to a format or to codes under a scale.
    `stored`: what it reads that was stored low."""
    given = not value.low and all(causes.given_low(source) for source in stored)
    left = takes_back(operation) or remainder_of(operation) is not None  # of a sum: Kahan's remainder, in one step or two
    return left or takes_from_codes(operation) or (given and not _stored_too_soon(operation, value))


def _stored_too_soon(operation: Operation, value: Value) -> bool:
    """Whether a difference is of what the block has cast to a low format, and a subtraction before the cast would lose no digit.

    Either the other term is a wide tensor that was made from no low one, or both are parts of one tensor, or it is a Python number, and most results
    have no correct digit: the cast left nothing of how they differ. In the reference the difference of a number and its own rounding, or of two
    copies of one number, is about zero. Such differences do not count.
    """
    stored = [source for source in operation.inputs if source.kept_low]
    at_hand = any(source.maker is None and not source.low for source in operation.inputs)
    enough = elements(value) >= causes.RESULTS or (operation.base in ops.ADDITIONS and len(operation.inputs) == 1)
    garbage = enough and value.dead >= GARBAGE and len({causes.before_copies(source) for source in operation.inputs}) == 1
    return (at_hand or garbage) and bool(stored) and bool(value.norm) and determined(value) and all(map(causes.cast_from_given, stored))


def abated(cause: Operation | None, value: Value) -> bool:
    """Whether a value has less error than the op that caused it, because a quotient of two terms with a common error lies between.

    Between the quotient and the value there are only products and moves.
    """
    if cause is None or drift(value) ** 2 >= chance.smallest_share_by_chance(elements(value)) * drift(cause.outputs[0]) ** 2:
        return False
    maker = value.maker
    while maker is not None and maker is not cause and maker.base in ops.MOVING | ops.UNROUNDED | ops.CASTS | ops.SCALING:
        terms = [term for term in maker.inputs if drift(term)]
        if maker.base == "div" and len(terms) > 1:
            return any(map(drift, set.intersection(*(causes.ancestors([term]) for term in terms))))
        maker = terms[0].maker if len(terms) == 1 else None
    return False
