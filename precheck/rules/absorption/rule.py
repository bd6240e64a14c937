"""Finds additions that did not arrive, in sums, moving averages, counters and merged weights.

A correctly rounded sum of n terms has an error of λ√n·u, λ about 1/4 to 0.4, until its terms fall below half a spacing of the sum. Then it stands
still (bfloat16 after some 512 equal terms, float16 after 4 096). The rule measures the share of the reference's displacement that arrived, and not
whether bits changed: stochastic rounding and Kahan summation leave most bits unchanged and are healthy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from precheck import formats, ops
from precheck.analysis.facts import Part, Readers
from precheck.analysis.ledger import exempts
from precheck.analysis.limit import Limit
from precheck.analysis.propagation.causes import SWALLOWED
from precheck.analysis.propagation.output_impact import ROUNDINGS, goes_on, taken
from precheck.analysis.propagation.provenance import effective_roundoff, elements, percent, read_at
from precheck.analysis.training.displacements import AIMLESS, INTENDED, LOST_UPDATE, UPDATES
from precheck.observe.shadow.op_notes import Absorbed
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.probes.accumulation import ABSORBING
from precheck.observe.shadow.signed_terms import takes_back
from precheck.rules.absorption import stored_values
from precheck.rules.advice import added_wide, others_widened, since, widened
from precheck.rules.rule import Candidate, Rule

TIMES = Limit(4, "additions in a row")
"""The fewest additions in a row that left at least half of the elements unchanged. One may be chance, and rounding to even makes two."""
UNCHANGED_SHARE = Limit(ABSORBING, "share of the elements")
"""An addition may have been absorbed if it leaves at least this share unchanged. The shadow follows an accumulator from such an addition on."""
STEADY = Limit(0.75, "share of the way")
"""Updates that have one direction: what they add up to is at least this share of the sum of their sizes. Four independent ones make half of it."""
AGREEING = Limit(4, "signs")
"""In n rounds the updates of one number have the same sign by chance once in 2^(n - 1) times. So many signs after the first are to agree, of all
numbers of a state together: by chance once in 16 times."""
ROUNDS = Limit(3, "rounds")
"""The fewest rounds in which a state that is stored wide stands still. Of the way of two independent updates 0.71 is left, of three 0.58: less than
`STEADY` by more than chance."""
LASTING = Limit(0.5, "share of the mean update")
"""Updates go on if the latest one is at least this share of their mean. Of those that are halved each time, as on the way to a fixed point, the
fourth is a quarter of it, and less than a spacing of the sum is still to come."""
ACCUMULATORS = ops.ADDITIONS | ops.BLENDS | {"copy"}
FEWEST_ELEMENTS = Limit(16, "elements")
"""With fewer elements, half of them may be unchanged by chance."""


@dataclasses.dataclass(slots=True)
class LostFactors:
    """The factors on one line that are too close to one to change any number of a state. Only the last op is kept, however long the loop is."""

    count: int = 0
    lost: float = 0.0  # what they should have changed together, relative to the state
    last: Operation = dataclasses.field(init=False)

    def add(self, operation: Operation) -> None:
        self.count, self.lost, self.last = self.count + 1, self.lost + abs(1 - operation.scalars[0]), operation

    def candidates(self) -> Iterator[Candidate]:
        """A decay that never has an effect, where the factors should have changed the state by what the format can show. Additions to it may all
        arrive. But nothing is ever forgotten, so in the end the state stands for the whole way and not for the last 1/(1 - s) additions."""
        made, u = self.last.outputs[0], effective_roundoff(self.last.outputs[0])
        if self.count >= UPDATES and self.lost >= INTENDED * u:
            text = (f"{self.count} factors of {self.last.scalars[0]:.6g} changed no element: the numbers of {made.dtype} are at least "
                    f"{percent(u)}% apart, so what was added is never forgotten")  # fmt: skip
            yield Candidate("absorption", self.last, text, self.lost / u, INTENDED)


class Absorption(Rule):
    limits = (TIMES, ROUNDINGS, UPDATES, LOST_UPDATE, INTENDED, UNCHANGED_SHARE, FEWEST_ELEMENTS, STEADY, AGREEING, ROUNDS, LASTING, AIMLESS,
              SWALLOWED)  # fmt: skip

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], Operation] = {}  # for each line and value, the last addition, if it stands still after too few
        self.closed: set[str] = set()  # lines with a finding
        self.most: dict[str, int] = {}  # for each line, the most additions to one value
        self.judged: set[int] = set()  # accumulators with a finding, by the number of their first absorbed addition
        self.factors: dict[tuple[str, int], LostFactors] = {}  # for each line and accumulator

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        if operation.absorbed is not None:
            candidate = _candidate(operation, operation.outputs[0], operation.absorbed, part.readers)
            self._count(operation, operation.absorbed, judged=candidate is not None)
            if candidate is not None:
                yield candidate
            elif _without_effect(operation, operation.absorbed):
                self.factors.setdefault(_place(operation), LostFactors()).add(operation)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        absorbed = candidate.operation.absorbed
        if absorbed is not None and absorbed.carried:
            return f"store the accumulator in {wide}: {widened(candidate.operation, wide)}"
        if absorbed is not None and absorbed.rounds and not candidate.operation.in_place:
            return f"add to the state in {wide}, as it is stored: {widened(candidate.operation, wide)}"
        if candidate.operation.derived:
            held = f"keep the weights in {wide}, and .grad with them; or after each backward pass add .grad to a {wide} tensor"
            return held if candidate.operation.in_place else added_wide(wide)
        if absorbed is not None and absorbed.additions == 1 and candidate.operation.parameter:
            low = candidate.operation.outputs[0].dtype
            return f"keep the weight in {wide} from here on, since a sum rounded to {low} loses as much; or keep the added part apart, unmerged"
        place = f" at {line}" if (line := since(candidate.operation)) else " where it is created"
        return f"make the accumulator {wide}{place}{others_widened(candidate.operation, wide)}"

    def _count(self, operation: Operation, absorbed: Absorbed, *, judged: bool) -> None:
        """Notes whether a line has had enough additions for a verdict: at least as many as the rule needs, that together intend a change that the
        format can show. The average of noise has no direction, and may stand still."""
        place, enough = _place(operation), absorbed.additions >= UPDATES
        line = operation.blamed
        self.most[line] = max(self.most.get(line, 0), absorbed.additions)
        if judged:
            self.closed.add(line)
            self.judged.add(place[1])
        elif enough and (absorbed.intended >= INTENDED * effective_roundoff(operation.outputs[0]) or absorbed.steady < STEADY):
            self.open.pop(place, None)
        elif too_few(operation, operation.outputs[0], absorbed):
            self.open[place] = operation

    def at_end(self, part: Part) -> Iterator[Candidate]:
        """Values that stand still after too few additions for a verdict: of those on one line the latest. Those that one loop updates have had as
        many additions, or two less within an update. One with fewer was a sum of its own, and had its end."""
        latest = {line: operation for (line, _), operation in self.open.items() if line not in self.closed}
        for line, operation in latest.items():
            if operation.absorbed is not None and operation.absorbed.additions >= self.most[line] - 2:
                steps, text = _needed(operation, operation.absorbed), _unchanged_share(operation.absorbed)
                text = f"too few steps to tell whether it stands still: {text}; {steps} steps would tell"
                yield Candidate("absorption", operation, text, operation.absorbed.additions, UPDATES, "note", needs=steps)
        for (_, first), factors in self.factors.items():
            if first not in self.judged and taken(factors.last.outputs[0], part.readers):
                yield from factors.candidates()


def _candidate(operation: Operation, value: Value, absorbed: Absorbed, readers: Readers) -> Candidate | None:
    """The candidate for an addition that did not arrive. None if it is healthy, or another rule judges it."""
    u = _unit(value, readers)
    if operation.parameter and operation.in_optimizer:
        return None  # updates of weights are judged by the share of the whole step that arrived
    if absorbed.carried and absorbed.first is not None and absorbed.first.outputs[0].drift >= AIMLESS:
        return None  # it was another number than the shadow's before, so the shadow's way is not what it lost
    kept = operation.in_place or absorbed.carried
    if not kept and _only_reads(operation, absorbed, readers):
        return None  # the additions before this one are judged where they are made
    moves = absorbed.intended >= INTENDED * u
    if absorbed.share >= UNCHANGED_SHARE and absorbed.times >= TIMES and absorbed.drift >= ROUNDINGS * u and moves and absorbed.arrived < 1:
        text = f"{absorbed.times} additions left at least half of the elements unchanged; the accumulator is {percent(absorbed.drift)}% off"
        if operation.derived:
            which = "several backward passes in .grad" if operation.in_place else "a tensor that is used many times"
            text = f"autograd adds up the gradients of {which}: {text}"
        return Candidate("absorption", read_at(operation), text, absorbed.drift / u, ROUNDINGS)
    if kept and operation.phase != "backward" and absorbed.additions >= UPDATES and absorbed.arrived < LOST_UPDATE and moves:
        share = 100 * max(0.0, absorbed.arrived)
        text = f"{share:.0f}% of what {absorbed.additions} updates in a row should add arrived: most are too small to change the accumulator"
        return Candidate("absorption", operation, text, absorbed.arrived, LOST_UPDATE)
    found = _of_wide_state(operation, value, absorbed) or _of_starved_average(operation, value, absorbed)
    return found or _of_merged_update(operation, value, absorbed, readers)


def _unit(value: Value, readers: Readers) -> float:
    """The unit roundoff that counts for an accumulator. If its rounding changes the whole number that the program makes of it, such as an index, it
    is that of its own format: an index that is off by one is wrong."""
    misplaced = (reader.flips is not None and reader.flips.changed for reader in readers.get(value, ()) if reader.base in ops.WHOLE)
    return value.roundoff if any(misplaced) else effective_roundoff(value)


def _only_reads(operation: Operation, absorbed: Absorbed, readers: Readers) -> bool:
    """Whether an op only reads an accumulator to compute another number, as in `sq - mean**2`, while the accumulator itself goes on. What it loses,
    it loses in its own additions, which are judged elsewhere. In `total = total + x` the result replaces the accumulator."""
    makers = ((value, value.maker.absorbed) for value in operation.inputs if value.maker is not None and value.maker.in_place)
    return any(made is not None and made.first is absorbed.first and goes_on(value, readers) for value, made in makers)


def _place(operation: Operation) -> tuple[str, int]:
    """The line of an addition, and the number of the first one to the same accumulator: one line may update many averages."""
    first = operation.absorbed.first if operation.absorbed is not None else None
    return operation.blamed, (first or operation).number


def _without_effect(operation: Operation, absorbed: Absorbed) -> bool:
    """Whether the program multiplies a stored state by a number so close to one that the format gives each number back.

    Neighbours of x are at least u·|x| away, so a factor within u/2 of one changes no number. Steps of torch's own optimizers are left out: their
    state has the format of the weight.
    """
    if operation.base != "mul" or not (operation.in_place and operation.scalars and absorbed.share == 1.0) or operation.parameter:
        return False
    shipped = operation.in_optimizer and not operation.call
    own = operation.phase != "backward" and not shipped and elements(operation.outputs[0]) >= FEWEST_ELEMENTS
    return own and 0 < abs(1 - operation.scalars[0]) < effective_roundoff(operation.outputs[0]) / 2


def _of_wide_state(operation: Operation, value: Value, absorbed: Absorbed) -> Candidate | None:
    """A state that is stored wide from one turn to the next, and to which a low format adds. Between them a model is called, a gradient is computed
    or an optimizer steps, so it is not one computation that comes to its end.

    After its first round the state is a number of the low format. Then rounding to nearest loses an update of less than half a spacing as a whole,
    in each round, and nothing of it waits for the next. So the loss grows with the rounds, without end, if the updates have a direction and do not
    fade. It is judged by the spacing of the format that stores the state, which is there to hold such updates.
    """
    wide = formats.FP32.unit_roundoff
    in_a_row = min(absorbed.rounds + 1, absorbed.times) >= ROUNDS and absorbed.share >= UNCHANGED_SHARE
    directed = absorbed.steady >= STEADY and absorbed.pace >= LASTING and elements(value) * absorbed.rounds >= AGREEING
    lost = max(absorbed.arrived, absorbed.followed) < LOST_UPDATE and absorbed.intended >= INTENDED * wide * absorbed.additions
    if not (in_a_row and directed and lost):
        return None
    text = (
        f"{100 * max(0.0, absorbed.arrived):.0f}% of what {absorbed.rounds + 1} rounds in a row should add arrived: each casts a stored state to "
        f"{value.dtype} and adds to it, and most updates are too small to change a number of {value.dtype}"
    )
    return Candidate("absorption", operation, text, absorbed.arrived, LOST_UPDATE)


def _of_starved_average(operation: Operation, value: Value, absorbed: Absorbed) -> Candidate | None:
    """A moving average whose rate is too small for its format, which a few updates show.

    m += r (x - m) changes nothing where r |x - m| is less than half a spacing of m. So the average never comes nearer to x than half a spacing over
    the rate, however often it is updated. The updates have one direction, so the differences are not the noise that an average is to remove.
    """
    rate, updates, u = _rate(operation), absorbed.additions, effective_roundoff(value)
    if not 0 < rate < 1 or not operation.in_place or operation.phase == "backward" or operation.in_optimizer or elements(value) < FEWEST_ELEMENTS:
        return None
    apart = absorbed.intended / (rate * updates)
    still = absorbed.share >= UNCHANGED_SHARE and absorbed.times == updates >= TIMES and absorbed.arrived < LOST_UPDATE
    if not still or absorbed.steady < STEADY or apart < ROUNDINGS * u:
        return None
    text = (
        f"{updates} updates left at least half of the elements unchanged, though the average is {percent(apart)}% from what it follows: "
        f"{rate:.2g} of the difference is less than half a spacing of {value.dtype} there"
    )
    return Candidate("absorption", operation, text, apart / u, ROUNDINGS)


def _rate(operation: Operation) -> float:
    """How much of the difference from what it follows an average takes up: r in m.lerp_(x, r) or m.sub_(r * (m - x)). 0 if it is not known."""
    if operation.base in ops.BLENDS:
        return operation.scalars[-1] if operation.scalars else 0.0
    scaled = operation.inputs[1].maker if operation.base in ops.ADDITIONS and len(operation.inputs) == 2 else None
    difference = scaled.inputs[0].maker if scaled is not None and scaled.base in ops.SCALING and scaled.scalars else None
    if scaled is None or difference is None or difference.base not in ops.SUBTRACTIONS or operation.inputs[0] not in difference.inputs:
        return 0.0
    return abs(scaled.scalars[-1])


def too_few(operation: Operation, value: Value, absorbed: Absorbed) -> bool:
    """Whether a stored value has not moved so far, after too few additions for a verdict. The additions must intend more than float32's own roundings
    of as many additions: by so much an average of equal numbers moves by chance."""
    first = absorbed.first if absorbed.first is not None else operation
    kept = absorbed.carried or (operation.in_place and operation.base in ACCUMULATORS and stored_values.accumulates(first))
    still = absorbed.share >= UNCHANGED_SHARE and absorbed.arrived < LOST_UPDATE and elements(value) >= FEWEST_ELEMENTS
    own = operation.phase in ("forward", "data") and not operation.in_optimizer  # the latter are averages beside the model's calls, under no_grad
    return kept and still and own and absorbed.intended > absorbed.additions * formats.FP32.unit_roundoff


def _needed(operation: Operation, absorbed: Absorbed) -> int:
    """The number of steps that a verdict needs at the present rate: `UPDATES` additions that would move the value by `INTENDED`."""
    first = operation.step if absorbed.first is None else absorbed.first.step
    each = absorbed.additions / (operation.step - first + 1)  # additions per step
    needed = max(UPDATES, INTENDED * effective_roundoff(operation.outputs[0]) * absorbed.additions / absorbed.intended)
    return first - 1 + math.ceil(needed / each)


def _unchanged_share(absorbed: Absorbed) -> str:
    many = f"{absorbed.additions} updates" if absorbed.additions > 1 else "1 update"
    return f"{100 * absorbed.share:.0f}% of the elements that {many} should have moved did not move"


def _of_merged_update(operation: Operation, value: Value, absorbed: Absorbed, readers: Readers) -> Candidate | None:
    """A single addition to a stored value that is mostly lost, such as a low-rank update merged into its weight.

    Additions to a value that was just computed do not count. There a small term may be lost: an eps against division by zero, a scaled-down branch.
    Nor does what is computed from the value that it is added to: `x += gamma * mlp(x)` begins a training with a gamma of 1e-6.
    """
    copied = operation.base == "copy" and absorbed.lost <= 1  # rounding to nearest never loses more than it was given, at random it does
    adding = copied or operation.base in ops.ADDITIONS
    if not adding or operation.phase == "backward" or operation.in_optimizer or len(operation.inputs) < 2:
        return None
    small = absorbed.additions == 1 and absorbed.intended < value.roundoff and elements(value) >= FEWEST_ELEMENTS
    kept = stored_values.written_back if copied else stored_values.kept
    lost = absorbed.share > UNCHANGED_SHARE and absorbed.lost > LOST_UPDATE
    if small and lost and kept(operation, value, readers) and not remainder_kept(value, readers):
        text = f"{100 * absorbed.lost:.0f}% of what is added is lost: {100 * absorbed.share:.0f}% of the elements do not change"
        return Candidate("absorption", operation, text, absorbed.lost, LOST_UPDATE)
    return None


@exempts(
    "absorption", reason="Kahan summation subtracts the old sum from the new one, and adds what did not arrive to the next term",
    needed_by=("weights_with_remainders",),
)  # fmt: skip
def remainder_kept(value: Value, readers: Readers) -> bool:
    """An addition after which the program computes what has arrived, and keeps the remainder."""
    arrived = [made for reader in readers.get(value, ()) if takes_back(reader) for made in reader.outputs]
    rests = [reader for made in arrived for reader in readers.get(made, ()) if reader.base in ops.SUMS]
    return any(reader.in_place or any(readers.get(made) for made in reader.outputs) for reader in rests)
