"""Finds states that a loop stores low in each iteration, if these roundings make most of the result's error. No single step amplifies there.

n independent roundings of a state with constant size make √n times the error of one, 0.42 √n unit roundoffs. For a sum that grows evenly it is
0.24 √n. Roundings in one direction make an error that grows with n, as when half of each added term is lost. A wide state has none of these errors.

It also finds a factor that was rounded once and scales the state in each iteration. After n iterations it has made n times its error, whatever the
format of the state. It is one number, or one for each channel, and is read n times: in float32 it costs nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Set

from precheck import ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.ledger import exempts
from precheck.analysis.limit import Limit
from precheck.analysis.propagation import attribution
from precheck.analysis.propagation.attribution import Attribution
from precheck.analysis.propagation.causes import ADDING, before_copies, computed_from
from precheck.analysis.propagation.output_impact import ROUNDINGS, hidden_by_larger_terms
from precheck.analysis.propagation.provenance import determined, effective_roundoff, rounded_bound
from precheck.analysis.propagation.walks import FAR, NEARBY, Walk
from precheck.analysis.rounding.differences import RECURRENT
from precheck.analysis.rounding.errors import float32_leaves_open
from precheck.analysis.rounding.exemptions import off_by_one_spacing
from precheck.analysis.rounding.function_limits import ADDED, MADE_BY_FUNCTION
from precheck.analysis.rounding.loop_states import LARGEST, Iterations, LoopState
from precheck.analysis.rounding.misroundings import FELT
from precheck.observe.shadow.operations import Observation, Operation, Value

INDEPENDENT = Limit(0.5, "√n unit roundoffs")
"""The largest error that n independent roundings make. In a state of constant size they make 0.42 √n, in a sum that grows evenly 0.24 √n. Recurrent
cells and tied weights with 8 to 600 uses made 0.22 to 0.34 √n. A larger error has roundings in one direction: terms below half a spacing of a sum."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Carried(Fact):
    """A state that is stored low in each iteration. Errors are relative."""

    iterations: int
    lines: frozenset[str]  # the lines that update it
    dtype: str
    off: float
    kept_wide: float  # the error that it would have if it were wide


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class RepeatedFactor(Fact):
    """A factor that was rounded once and scales a state in each iteration. Errors are relative."""

    iterations: int
    off: float  # of the state
    own: float  # of the factor
    shown: Operation  # the op that made the last state


class Recurrence:
    """Finds the faults of loop states in a run that is analysed in parts."""

    def __init__(self) -> None:
        self.iterations = Iterations()

    def facts(self, observation: Observation, readers: Readers, explained: Set[Value]) -> list[Fact]:
        """The facts, for one state of each loop. `explained`: values whose error follows from other facts."""
        self.iterations.follow(observation.judged)
        found = list[Fact]()
        for values in self.iterations.ended():
            for value in _latest_and_worst(values, lambda value: _read_outside(value, self.iterations.states[value], readers)):
                made = value not in explained and _wrong(value, self.iterations.states[value])
                facts = _facts(value, self.iterations.states, observation, readers) if made else []
                hidden = off_by_one_spacing(value) and hidden_by_larger_terms(value, readers, multiples=True)
                if facts and not (hidden or any(right(value, self.iterations.states, readers) for right in (right_exponent, right_quotient))):
                    found += facts
                    break
        return found

    def keep(self, values: Set[Value]) -> None:
        self.iterations.keep(values)


def _latest_and_worst(values: list[Value], read: Callable[[Value], bool]) -> Iterator[Value]:
    """Of the states that one op updates, those to judge: the latest, and the one with the largest error if the error of all together is too large.

    A loop over parameters has a state for each. Among many correctly rounded states a few have a large error by chance, so one alone does not count.
    Only states that are `read` count.
    """
    latest = next(filter(read, reversed(values)), None)
    if latest is None:
        return
    yield latest
    size = math.hypot(*(value.norm for value in values))
    worst = max(values, key=attribution.drift)
    if size and math.hypot(*(value.drift * value.norm for value in values)) > ADDED * effective_roundoff(worst) * size:
        worst = next(filter(read, sorted(values, key=attribution.drift, reverse=True)), latest)
        if worst is not latest:
            yield worst


def _wrong(value: Value, state: LoopState) -> bool:
    """Whether a state has passed enough iterations, its error is beyond that of its storage, and float32 determines it."""
    if state.stores < RECURRENT or carries_a_remainder(state) or residual_stream(state) or value.nonfinite:
        return False
    if float32_leaves_open(value) or not ADDED * effective_roundoff(value) < value.drift < math.inf:
        return False
    return determined(value)


@exempts(
    "accumulated-drift", needed_by=("deep_stream", "cut-residual (mended)"),
    reason="each layer of a network adds its result to the residual stream and rounds it; with correct rounding in bfloat16, the streams of 48 and "
           "72 layers are off by 4.2 and 6.4 unit roundoffs",
)  # fmt: skip
def residual_stream(state: LoopState) -> bool:
    """A state to which each iteration adds what other weights compute from it, and that no iteration scales, unlike a recurrent cell's.

    A sampler's latents are none: it calls one network again and again, and to keep them in float32 costs nothing.
    """
    return state.network and not state.scaled


@exempts(
    "accumulated-drift", needed_by=("losses_added_up_wide", "signed_terms"),
    reason="the remainder of Kahan summation is zero in float32, and in low precision it holds what the sum lost",
)  # fmt: skip
def carries_a_remainder(state: LoopState) -> bool:
    """A state that holds what a sum, or a rounding, has lost."""
    return state.compensated


@exempts(
    "accumulated-drift", needed_by=("decays_by_the_largest",),
    reason="an exponent is no result: only differences of exponents reach the exponentials that are read of it, as a softmax does not depend on what "
           "is taken off all scores; where these are right it hands on no error, and what a loop makes of them are states themselves",
)  # fmt: skip
def right_exponent(value: Value, states: Mapping[Value, LoopState], readers: Readers) -> bool:
    """A state that is only read as an exponent, and whose exponentials, all together, are right up to a few roundings."""
    walk, powers = Walk(_with_earlier(value, states), FAR), list[Value]()
    for _, reader in walk.with_readers(readers):
        if reader.base in ops.EXPONENTIALS:
            powers += reader.outputs
        elif reader.base in ADDING | LARGEST:
            walk.follow(reader.outputs)
        else:
            return False
    kept = not walk.whole or any(each.alive for each in walk.reached)
    return not kept and _right(powers)


@exempts(
    "accumulated-drift", needed_by=("decays_by_the_largest",),
    reason="a sum of weighted numbers and the sum of their weights have the error of the weights in common, and their quotient does not have it",
)  # fmt: skip
def right_quotient(value: Value, states: Mapping[Value, LoopState], readers: Readers) -> bool:
    """A state that is only divided by another one of its loop, or divides it, and whose quotients are right up to a few roundings."""
    quotients, known = list[Value](), {*states, *(state.before for state in states.values())}
    for held in _with_earlier(value, states):
        reading = [reader for reader in readers.get(held, ()) if reader.blamed not in states[value].lines]
        if held.alive or not all(reader.base == "div" and len(reader.inputs) == 2 and known.issuperset(reader.inputs) for reader in reading):
            return False
        quotients += [made for reader in reading for made in reader.outputs]
    return bool(quotients) and all(_right([made]) for made in quotients)


def _with_earlier(value: Value, states: Mapping[Value, LoopState]) -> list[Value]:
    """A state and what it was in all iterations before, the latest first."""
    turns = [value]
    while turns[-1] in states:
        turns.append(states[turns[-1]].before)
    return turns


def _right(made: list[Value]) -> bool:
    """Whether results are right up to a few roundings, measured as one tensor."""
    if not made or any(each.nonfinite for each in made):
        return False
    off = math.hypot(*(each.drift * each.norm for each in made if each.drift))
    return off <= ROUNDINGS * max(map(effective_roundoff, made)) * math.hypot(*(each.norm for each in made))


def _facts(value: Value, states: Mapping[Value, LoopState], observation: Observation, readers: Readers) -> list[Fact]:
    """The fact, if most of the error comes from the lines that update the state, or from a factor that scales it in each iteration."""
    state, split = states[value], Attribution(value, observation.operations)
    written = {each: share for each, share in split.shares.items() if share and attribution.written(each)}
    lines = state.lines | _lines_beside(value, states)
    of_state = {each: share for each, share in written.items() if each.blamed in lines}
    factors = _repeated_factors(written, states, readers) if value.drift >= FELT else {}
    coherent = not value.low or value.drift > INDEPENDENT * math.sqrt(state.stores + 1) * value.roundoff
    own = min(1.0, sum(of_state.values()))
    if of_state and value.low and coherent and own < MADE_BY_FUNCTION and value.norm:  # the shares are those of independent roundings
        own = max(own, 1 - min(1.0, _of_terms(value, states) / (value.drift * value.norm)) ** 2)
    if value.maker is None or max(own, sum((of_state | factors).values())) < MADE_BY_FUNCTION:
        return []
    if factors and (coherent or sum(factors.values()) >= MADE_BY_FUNCTION):
        cause = split.cause(factors.__contains__) or max(factors, key=factors.__getitem__)
        return [RepeatedFactor(
            rule="amplified-rounding" if rounded_bound(cause) is None else "vanished-constant", operation=cause, measured=value.drift,
            limit=FELT, iterations=state.iterations, off=value.drift, own=attribution.own_error(cause, cause.outputs[0]), shown=value.maker,
        )]  # fmt: skip
    if own < MADE_BY_FUNCTION or not value.low:
        return []
    cause = split.cause(of_state.__contains__) or value.maker
    return [Carried(
        rule="accumulated-drift", operation=value.maker if value.maker.blamed == cause.blamed else cause,
        measured=value.drift / effective_roundoff(value), limit=ADDED, iterations=state.iterations, lines=lines,
        dtype=value.dtype, off=value.drift, kept_wide=value.drift * math.sqrt(1 - own),
    )]  # fmt: skip


def _of_terms(value: Value, states: Mapping[Value, LoopState]) -> float:
    """The most that the errors of all terms can make of a sum's error, in its unit: at most they add up. Inf if an iteration does more than add."""
    errors = list[float]()
    while value in states:
        before, maker = states[value].before, value.maker
        if maker is None or maker.base not in ops.SUMS:
            return math.inf
        terms = [each for each in maker.inputs if before_copies(each) is not before]
        if len(terms) != len(maker.inputs) - 1:
            return math.inf
        errors += [each.drift * each.norm if each.drift else 0.0 for each in terms]
        value = before
    errors.append(value.drift * value.norm if value.drift else 0.0)
    return sum(errors) if all(map(math.isfinite, errors)) else math.inf


def _lines_beside(value: Value, states: Mapping[Value, LoopState]) -> set[str]:
    """The lines of the other states that the same iteration stores. The numbers of one state, such as a quaternion, may be stored on several lines,
    and each is made from all of them."""
    before, made = states[value].before.maker, value.maker
    if before is None or made is None:
        return set()
    beside = (each for each, state in states.items() if state.stores >= RECURRENT and not state.compensated)
    iteration = (each for each in beside if each.maker is not None and before.number < each.maker.number <= made.number)
    return {line for each in iteration for line in states[each].lines}


def _repeated_factors(written: dict[Operation, float], states: Collection[Value], readers: Readers) -> dict[Operation, float]:
    """The ops with a share in an error that make the factor by which each iteration scales the state: once for all iterations, or in each iteration
    from the same numbers, so that all results have one norm. Parts of one tensor are other numbers."""
    alike: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
    for each in written:
        alike[(each.name, each.blamed, each.scalars, each.inputs, each.outputs[0].norm) if each.inputs else (each,)].append(each)
    groups = (group for group in alike.values() if sum(_times_scaling(each, states, readers) for each in group) >= RECURRENT)
    return {each: written[each] for group in groups for each in group}


def _times_scaling(operation: Operation, states: Collection[Value], readers: Readers) -> int:
    """How often a state is multiplied by an op's result, which may be moved, or added to or subtracted from a Python number, before."""
    walk, times = Walk(operation.outputs[:1], NEARBY), 0
    for held, reader in walk.with_readers(readers):
        if held in states:
            continue
        if reader.base in ops.SCALING and any(source in states for source in reader.inputs):
            times += 1
        elif (reader.base in ops.MOVING and held in computed_from(reader)) or (reader.base in ops.SUMS and len(reader.inputs) == 1):
            walk.follow(reader.outputs)
    return times


def _read_outside(value: Value, state: LoopState, readers: Readers) -> bool:
    """Whether the user keeps a state, or anything but the lines that update it reads it. A loop may read its state at the beginning of a turn, and
    store it at the end: nothing reads what its last turn stored, so the state before counts as well. If components are joined, the join counts."""
    walk = Walk([value, state.before], NEARBY)
    for held in walk:
        reading = readers.get(held, ())
        if held.alive or any(reader.reads or reader.blamed not in state.lines for reader in reading):
            return True
        walk.follow(made for reader in reading if reader.base in ops.MOVING for made in reader.outputs)
    return False
