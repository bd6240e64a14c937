"""Follows an error to the ends of a watched run (results, gradients, numbers that Python reads), and says whether they show it.

Later ops may heal the error. The error of a logarithm is absolute, and the exponential of it has a small relative error again. A sum of many terms
averages errors out. The error of a step is small beside its weight.
"""

from __future__ import annotations

from collections.abc import Set

from precheck import ops
from precheck.analysis import chance
from precheck.analysis.decisions.branches import MISLED, WRONG_NUMBER, decided_by_chance, masks_wrongly
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.provenance import absolute_error, consumers, determined, effective_roundoff, elements, rms
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.observe.shadow.operations import Observation, Operation, Value

ROUNDINGS = Limit(8.0, "unit roundoffs")
"""A result is wrong, and a difference of nearly equal numbers cancels, from this error on. A few ordinary ops make less, and a
sum of a thousand terms makes as much (0.25 √1024)."""
DEAD = Limit(0.01, "share of the elements")
"""A result is wrong, and an op has lost digits, if at least this share of its elements have no correct digit. Healthy ops that amplify errors 8 times
or more leave at most 0.15 %. The mildest bug leaves 7.6 %."""
GARBAGE = Limit(0.5, "share of the elements")
"""A tensor is lost if at least this share of its elements have no correct digit. Healthy programs reach 0.073. So is a step, however large the weight
to which it is added: the weight shows such an error only after many steps."""
PART = Limit(2.0**-10, "roundings of the sum")
"""The error of a term of a low sum goes on from this size on. A thousand smaller ones would have to add up in one direction, or a million by chance,
to be as much as one rounding of the sum."""
CANCELLED = Limit(0.25, "share of the error")
"""The errors of the terms of sums have cancelled if less than this share is left. Independent ones leave all of it, as measured by the norm."""
FEWEST_SUMS = Limit(16, "results")
"""The fewest sums by which it can be told that errors cancel: the squares of 16 normal numbers have a mean below 1/16 once in 16 million times."""


def behind_wrong_ends(observation: Observation, *, infinite: bool) -> set[Value]:
    """The values that lead to an end with more error than ordinary rounding makes: one pass over the run, from its end.

    Ends are values that no op reads, that Python reads, that become whole numbers, or that the shadow could not follow, and gradients of
    parameters. A comparison is no end unless it decides by chance (`decided_by_chance`), since the shadow takes its outcome from the run.
    `infinite`: Inf and NaN at an end count. They have causes of their own (`nonfinite`), so they show zeros, and not that a finite
    number on the way has lost digits.
    """

    def wrong(value: Value) -> bool:
        return (infinite and bool(value.nonfinite)) or _shows(value)

    reading = [operation for operation in observation.operations if operation.base not in ops.FRESH]
    read = {value for operation in reading for value in operation.inputs if value not in operation.outputs}  # a copy is no reader
    unread = dropped_values(observation)
    found = {value for _, value in observation.made() if value not in read and value not in unread and wrong(value)}
    found |= set(filter(wrong, observation.parameter_gradients))
    branching = decided_by_chance(observation)
    lasting: set[Value] = set()  # values that are alive at the end, and their earlier states
    for operation in reversed(reading):
        lasting.update(value for value in operation.outputs if value.alive)
        if operation.in_place and operation.inputs and any(value in lasting for value in operation.outputs):
            lasting.add(operation.inputs[0])
        onwards = any(value in found and not _nothing(value, infinite=infinite) for value in operation.outputs)
        last = is_end(operation) or operation in branching
        thrown = operation.parameter or operation.in_optimizer or (operation.inputs and operation.inputs[0] in lasting)
        going = {value for value in operation.inputs if onwards and has_part(operation, value)}
        shown = (value for value in operation.inputs if value in going or (last and wrong(value)) or (thrown and adds_wrong_step(operation, value)))
        found.update(shown)
    return found


def has_part(operation: Operation, term: Value) -> bool:
    """Whether the error of an op's input may contribute to that of its result. The error of a small term, such as a bias that a product is added to,
    does not, if the low sum has no digits for it: the error of the sum then comes from another term, or from its own rounding. Nor does an error that
    another term takes away again (`_taken_away`)."""
    place = ops.ADDENDS.get(operation.base)
    added = operation.base in ops.SUMS or (place is not None and term in operation.inputs[place : place + 1])
    spacing = max((made.rounded * rms(made) for made in operation.outputs if made.low), default=0.0) if added else 0.0
    if operation.base in ops.SUMS and any(_taken_away(term, made) for made in operation.outputs):
        return False
    return not term.drift * rms(term) < PART * spacing  # an error beside a reference of zero is infinite, and its product NaN


def _taken_away(term: Value, made: Value) -> bool:
    """Whether a sum has less of a term's error than chance leaves, and no more error than a rounding or two: the terms were off by the same, as those
    of x - (x·e) e are along e. Independent errors add up."""
    left = chance.smallest_share_by_chance(elements(made)) * absolute_error(term) ** 2
    return elements(term) == elements(made) and made.drift < 2 * made.roundoff and absolute_error(made) ** 2 < left


def dropped_values(observation: Observation) -> set[Value]:
    """Values that the program drops. If the run has gradients: those of a forward pass that the user does not keep, that no gradient depends on, and
    that no op reads except to make others of this kind. In any run: numbers beside integers that are wanted alone, such as frexp's mantissas, and
    results beside one that is wanted alone, such as the factors of a solver."""
    read = {value for operation in observation.operations for value in operation.inputs}
    found, taken = set[Value](), set[Value]()
    for operation in observation.operations:
        unread = [value for value in operation.outputs if not value.alive and value not in read]
        if operation.base in ops.PAIRED or len(unread) < len(operation.outputs):
            found.update(unread)
    for operation in reversed(observation.operations if observation.gradients else ()):
        made = [value for value in operation.outputs if operation.phase == "forward" and not value.alive and value not in taken]
        found.update(made)
        if not made or len(made) < len(operation.outputs) or operation.in_place or is_end(operation):
            taken.update(operation.inputs)
    return found


def _nothing(value: Value, *, infinite: bool = True) -> bool:
    """Whether a value is zero everywhere in the run and in float32, as a term with a weight of zero. Nothing of what it was made from goes on.
    Nor does the error of a number (not `infinite`) go on through Inf and NaN beside which no number is off."""
    return value.drift == 0 and (value.norm == value.nonfinite == 0 or (value.nonfinite > 0 and not infinite))


def _weightless(value: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether all that is made from a value is zero, as under a weight of zero."""
    made = [result for reader in readers.get(value, ()) for result in reader.outputs]
    return bool(made) and all(map(_nothing, made))


def is_end(reader: Operation) -> bool:
    """Whether a value that an op reads comes to an end there. Indices are ends, since the shadow takes them over, and so are whole numbers of
    which many are others than in the reference, as with answers of a comparison (`MISLED`). Comparisons are not, unless their answers are wrong and
    rounding does not explain that."""
    elsewhere = reader.recut is not None and reader.recut.count >= MISLED * reader.recut.total
    return bool(reader.reads or reader.opaque or elsewhere or masks_wrongly(reader) or (not reader.outputs and reader.base not in ops.COMPARED))


def _shows(value: Value) -> bool:
    return value.drift >= ROUNDINGS * effective_roundoff(value) or value.dead >= DEAD or _joins_wrong(value)


def _joins_wrong(value: Value) -> bool:
    """Whether a value joins terms that are off by more than half of themselves. An error is measured of a tensor as a whole, where large terms hide
    that of small ones. But each term is a result of its own. A term that float32 does not determine, such as the cosine of a right angle, is none."""
    terms = value.maker.inputs if value.maker is not None and value.maker.base in ops.CONCATENATIONS else ()
    wrong = (term for term in terms if term.drift > WRONG_NUMBER and determined(term))
    return sum(map(elements, wrong)) >= DEAD * elements(value) > 0


def adds_wrong_step(reader: Operation, step: Value) -> bool:
    """Whether an op adds a step in place, and most of the step has no correct digit."""
    return reader.in_place and reader.base in ops.SUMS and step.dead >= GARBAGE and step is not reader.inputs[0]


def exponentials(value: Value, readers: dict[Value, list[Operation]]) -> list[Value]:
    """The exponentials of a value, which may be moved or scaled before. Those that are only multiplied by zero are left out."""
    walk, found = Walk([value]), list[Value]()
    for _, reader in walk.with_readers(readers):
        if reader.base in ops.EXPONENTIALS:
            found += [power for power in reader.outputs if not _weightless(power, readers)]
        elif reader.base in ops.MOVING or (reader.base == "mul" and reader.phase == "forward"):
            walk.follow(reader.outputs)
    return found


def is_softmax_exponential(exponential: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether a written-out softmax uses the exponential: its results are divided by each other, or a logarithm is taken of its sum.

    A single ratio (an exponential of a difference) does not count. Near one it is right up to a rounding, but the program is interested in how far
    it is from one.
    """
    walk = Walk([exponential], NEARBY)
    for _, reader in walk.with_readers(readers):
        if reader.phase not in ("forward", "data"):
            continue  # an optimizer also divides values that were made from a ratio
        summed = any(source.maker is not None and source.maker.base in ops.REDUCTIONS for source in reader.inputs)
        divided = reader.base == "div" and len(reader.inputs) == 2 and walk.reached.issuperset(reader.inputs)
        if divided or (reader.base in ops.LOGARITHMS and summed):
            return True
        walk.follow(reader.outputs)
    return False


def wrong_when_averaged(value: Value, readers: dict[Value, list[Operation]], unread: Set[Value]) -> bool:
    """Whether half of the elements still have no correct digit where a forward pass sums or averages them. `unread`: what the program drops.

    A mean over tokens does not heal them: it is a statistic of wrong numbers. The inverse of the op that lost the digits does heal them, such as an
    exponential after a logarithm. Its result is right again, and is not followed. A mean by which the numbers are divided is their unit, and what
    is left of them is followed. Errors that cancel in the sum are gone, such as those of weights that add up to one, over vectors that are nearly the
    same (`_cancels`).
    """
    walk, averages = Walk([value] if value.dead >= GARBAGE else []), list[tuple[Operation, Value]]()
    for _, reader in walk.with_readers(readers):
        if reader.phase == "forward" and not reader.in_optimizer:
            averages += [(reader, made) for made in reader.outputs if reader.base in ops.AVERAGES and made not in unread]
            walk.follow(made for made in reader.outputs if made.dead >= GARBAGE)
    return not all(_cancels(reader, made) or _divides(made, walk.reached, readers) for reader, made in averages)


def _cancels(reader: Operation, made: Value) -> bool:
    """Whether the errors of the terms cancel in their sum. Independent errors of all terms have the norm of the errors of all sums."""
    if reader.base not in ops.AVERAGING or len(reader.inputs) != 1 or elements(made) < FEWEST_SUMS:
        return False
    (terms,) = reader.inputs
    count = elements(terms) / elements(made) if "mean" in reader.base else 1.0
    return count * made.drift * made.norm < CANCELLED * terms.drift * terms.norm


def _divides(average: Value, numbers: Set[Value], readers: dict[Value, list[Operation]]) -> bool:
    """Whether an average is only used to divide some of `numbers` by it, perhaps moved or cast before."""
    walk, used = Walk([average], NEARBY), False
    for held, reader in walk.with_readers(readers):
        divides = reader.base == "div" and len(reader.inputs) == 2 and reader.inputs[1] is held and reader.inputs[0] in numbers
        if not (divides or reader.base in ops.MOVING | ops.CASTS):
            return False
        used = used or divides
        walk.follow(() if divides else reader.outputs)
    return used and walk.whole


def dominated(reader: Operation, result: Value, value: Value) -> bool:
    """Whether a sum hides the error of a value, since the other term is larger: the relative error is at most half of that before."""
    small = result.drift < ROUNDINGS * effective_roundoff(result) and result.dead < DEAD
    return reader.base in ops.SUMS and small and 2 * result.drift <= value.drift


def hidden_by_larger_terms(wrong: Value, readers: dict[Value, list[Operation]], *, multiples: bool = False) -> bool:
    """Whether something large is added to a wrong value wherever it is read, perhaps moved or cast before, so that no result shows its error.

    `multiples`: or a multiple of it is read, such as a step that is halved until it is subnormal. A step of a weight is never hidden, since
    it is taken again and again. (The next iteration may subtract again what a difference was added to.)
    """
    walk, sums = Walk([wrong]), list[bool]()
    for value in walk:
        reading = readers.get(value, ())
        if any((value is not wrong or reader.parameter or reader.in_optimizer) and adds_wrong_step(reader, value) for reader in reading):
            return False
        passing = [reader for reader in reading if reader.base in ops.MOVING or (multiples and _multiplies(reader, value))]
        walk.follow(made for reader in passing for made in reader.outputs)
        others = [(reader, made) for reader in reading if reader not in passing for made in reader.outputs if made is not value]
        if not others and value is not wrong and (value.alive or len(reading) > len(passing)):
            return False
        sums += [dominated(reader, made, value) for reader, made in others]
    return bool(sums) and all(sums)


def _multiplies(reader: Operation, value: Value) -> bool:
    """Whether an op multiplies a value by a number, or divides it by one."""
    return reader.base in ops.SCALING and reader.inputs == (value,) and reader.phase == "forward"


def healed(wrong: Value, readers: dict[Value, list[Operation]], asked: Set[Value], most: int = NEARBY) -> bool:
    """Whether all that is made from a wrong value is right, at once or after a few ops: t/|t| · f(|t|), where rounding decides the sign of a small t.

    Ops that see right numbers only have no error that is the value's. A sum, or a join, that is right only because its other terms are large has it
    still. `asked`: gradients, which the user gets whatever reads them.
    `most`: how many values are visited.
    """
    walk = Walk([wrong], most)
    for value in walk:
        reading = consumers(value, readers)
        kept = value.alive or value in asked or not reading or any(map(is_end, reading))
        if (kept and _shows(value)) or any(adds_wrong_step(reader, value) for reader in reading):
            return False
        keeping = ops.SUMS if _shows(value) else ops.SUMS | ops.MOVING | ops.CASTS
        for reader in reading:
            right = [result for result in reader.outputs if not (result.nonfinite or _shows(result))]
            if reader.base in ops.MOVING and any(elements(result) > elements(value) for result in right):
                return False
            walk.follow(result for result in reader.outputs if result not in right or reader.base in keeping)
    return walk.whole


def ends_wrong(value: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether a number that Python reads, or a result that nothing reads and the user keeps, is off by more than half of itself."""
    walk = Walk([value])
    for made in walk:
        reading = [reader for reader in consumers(made, readers) if reader.phase == "forward"]
        if made.drift > WRONG_NUMBER and (any(reader.reads for reader in reading) or (made.alive and not reading)):
            return True
        walk.follow(result for reader in reading for result in reader.outputs)
    return False


def goes_on(state: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether a state is kept after what is known of it: the program has it at the end, or an op writes it in place."""
    return state.alive or any(_updates(reader, state) for reader in readers.get(state, ()))


def taken(state: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether the program has a state at the end, or an op reads it that does not only update it."""
    walk = Walk([state], NEARBY)
    for held in walk:
        updates = [reader for reader in readers.get(held, ()) if _updates(reader, held)]
        if held.alive or len(updates) < len(readers.get(held, ())):
            return True
        walk.follow(made for reader in updates for made in reader.outputs)
    return not walk.whole


def _updates(reader: Operation, state: Value) -> bool:
    return reader.in_place and reader.inputs[:1] == (state,)
