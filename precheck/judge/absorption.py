"""Additions that did not arrive: sums, moving averages, counters, merged weights.

A correctly rounded sum of n terms errs by λ√n·u, λ about 1/4 to 0.4, until its terms fall below half a spacing of the sum;
from there it stands still (bfloat16 after some 512 equal terms, float16 after 4 096). Judged is what of the reference's
displacement arrived, never whether bits changed: stochastic rounding and Kahan summation leave most bits alone and are healthy.
"""

from __future__ import annotations

from precheck.judge.events import Suspect
from precheck.judge.lineage import CONSTANTS, MOVING, PRODUCTS, SUMS, compensating, elements, felt, hands_on, percent
from precheck.observe.shadow.operations import Absorbed, Observation, Operation, Value

TIMES = 4
"""Additions in a row that left at least half of the elements unchanged: one may be chance, and rounding to even takes two."""
ROUNDINGS = 8.0
"""Drift of the accumulator in unit roundoffs: more than a sum of a thousand terms costs that is rounded right (0.25 √1024)."""
UPDATES = 8
ARRIVED = 0.5
"""Share of the displacement below which most of what was meant did not happen."""
ASTRAY = 0.5
"""Drift of what is added to from which it is not the reference's accumulator: what it then absorbs is not what did it."""
INTENDED = 2.0
"""Displacement in unit roundoffs of what the accumulator held, from which the format could have shown it. (What a Kahan
summation's remainder holds is all rounding error; its shadow does not move at all.)"""


def absorbed(observation: Observation, readers: dict[Value, list[Operation]]) -> list[Suspect]:
    found = []
    for operation in observation.judged:
        if operation.absorbed is not None and operation.outputs:
            if any(_carries_on(reader, readers) for value in operation.outputs for reader in readers.get(value, ())):
                continue
            suspect = _judged(operation, operation.outputs[0], operation.absorbed, readers)
            if suspect is not None:
                found.append(suspect)
    return found


def _carries_on(reader: Operation, readers: dict[Value, list[Operation]]) -> bool:
    """Whether an op takes the remainder of a sum, and that is added to something again."""
    return compensating(reader) and any(later.base in SUMS for value in reader.outputs for later in readers.get(value, ()))


def _judged(operation: Operation, value: Value, seen: Absorbed, readers: dict[Value, list[Operation]]) -> Suspect | None:
    u = felt(value)
    if not value.roundoff or (operation.parameter and operation.in_optimizer):
        return None  # updates of weights are judged by what of the whole step arrived
    if operation.in_place and seen.first is not None and seen.first.inputs and seen.first.inputs[0].drift >= ASTRAY:
        return None  # it was something else already
    if not operation.in_place and _off_before(value, seen):
        return None  # a stream of residuals, in which each branch is small
    if seen.share >= 0.5 and seen.times >= TIMES and seen.drift >= ROUNDINGS * u and seen.intended >= INTENDED * u and seen.arrived < 1:
        text = f"{seen.times} additions left at least half of it unchanged; it is {percent(seen.drift)} % off"
        return Suspect("absorption", operation, text, seen.drift / u, ROUNDINGS)
    if (
        operation.in_place
        and operation.phase != "backward"
        and seen.additions >= UPDATES
        and seen.arrived < ARRIVED
        and seen.intended >= INTENDED * u
    ):
        text = (
            f"{100 * max(0.0, seen.arrived):.0f} % of {seen.additions} updates arrived, the rest is less than half a spacing of what it is added to"
        )
        return Suspect("absorption", operation, text, seen.arrived, ARRIVED)
    return _merged(operation, value, seen, readers)


def _off_before(value: Value, seen: Absorbed) -> bool:
    """Whether most of what it is off by it was off by before it absorbed anything, unless what did not arrive since is as much."""
    held = seen.first.inputs[0] if seen.first is not None and seen.first.inputs else None
    half = seen.drift * value.norm / 2
    if held is None or held.drift * held.norm < half:
        return False
    return seen.arrived >= ARRIVED or seen.lost * seen.intended * held.norm < half


def _merged(operation: Operation, value: Value, seen: Absorbed, readers: dict[Value, list[Operation]]) -> Suspect | None:
    """One addition to something kept, most of which is lost: a low-rank update merged into its weight.

    Of what is just computed less than a rounding is rounding: noise against a division by zero, a branch that is scaled down.
    """
    if operation.base not in ("add", "sub") or operation.phase == "backward" or operation.in_optimizer or len(operation.inputs) < 2:
        return None
    small = seen.additions == 1 and seen.intended < value.roundoff and elements(value) >= 16
    if small and seen.share > 0.5 and seen.lost > ARRIVED and _kept(operation, value, readers):
        text = f"{100 * seen.lost:.0f} % of what is added is lost: {100 * seen.share:.0f} % of the elements keep their bits"
        return Suspect("absorption", operation, text, seen.lost, ARRIVED)
    return None


def _kept(operation: Operation, value: Value, readers: dict[Value, list[Operation]]) -> bool:
    """Whether something stored is added to where it is, or a weight, all of it, and what is made is used as one."""
    if operation.in_place:
        target = operation.inputs[0].maker
        return target is None or target.base in MOVING | CONSTANTS
    whole = any(source.maker is None and elements(source) == elements(value) for source in operation.inputs)
    return bool(operation.parameter) and whole and all(_weighs(reader, value) for reader in readers.get(value, ()) if reader.phase == "forward")


def _weighs(reader: Operation, value: Value) -> bool:
    return hands_on(reader, value) or reader.base in MOVING or (reader.base in PRODUCTS and reader.inputs[-1] is value)
