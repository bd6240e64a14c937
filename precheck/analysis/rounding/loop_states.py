"""Recognises the states of loops: which op stored the same state an iteration before, and how often.

A state is a low value that an op makes from its own earlier result, by adding, scaling, moving or cutting: a running sum, a sampler's latents, the
state of a recurrent cell. So is one that is multiplied by a matrix of data, as the pose at the end of a chain of rotations is. A hidden state that
passes a layer's weights or an activation does not count, since these bound its error. A wide state is followed if its error does harm, since its
factor may have been rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Set

from precheck import ops
from precheck.analysis.propagation import causes
from precheck.analysis.propagation.causes import ADDING, computed_from, only_moved
from precheck.analysis.propagation.provenance import elements
from precheck.analysis.propagation.walks import NEARBY, Walk
from precheck.analysis.rounding.misroundings import FELT
from precheck.analysis.rounding.remainders import remainder_of
from precheck.observe.shadow.operations import Operation, Value

SCALING = ops.SCALING | ops.BLENDS
LARGEST = ops.EXTREMES | (ops.STEADY - ops.SOFTMAXES)
DIRECT = ADDING | SCALING | LARGEST | frozenset(ops.FUSED_SUMS) | ops.SCATTERING | {"scatter"}
"""Ops that make a state from the one before, element by element or from its largest elements. They keep an error that all elements have."""
ADDED_TO = frozenset(ops.FUSED_SUMS) & ops.PRODUCTS
"""Ops that add a product to their first operand."""
TURNING = frozenset(ops.MATRIX_PRODUCTS) - ADDED_TO
"""Products that make a state from the one before, if the other factor is no weight."""
TURN = 512
"""The most ops of one iteration that are searched for products."""

Key = tuple[str, str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class LoopState:
    """What is known about a state. `lines` are those that update it."""

    stores: int  # how often any line has updated it; an iteration may do so more than once
    passed: dict[int, int]  # how often each instruction of the program has updated it
    before: Value  # the same state, an iteration before
    lines: frozenset[str]
    scaled: bool  # whether an iteration multiplies it, or mixes it with something
    compensated: bool  # whether it is the remainder of a sum, is made with one, or is a sum whose remainder the program computes
    network: bool  # whether an iteration adds the output of a network's layer that reads it
    weights: frozenset[int]  # of the network that the last iteration called from outside any module; empty if it called none

    @property
    def iterations(self) -> int:
        """How many iterations the loop has had."""
        return max(self.passed.values())


class Iterations:
    """Follows the states of a run, in order and part by part."""

    def __init__(self) -> None:
        self.seen: set[Key] = set()
        self.states: dict[Value, LoopState] = {}
        self.remainders: dict[Operation, Value | None] = {}  # what `remainder_of` has found: an op lies on the way of several states

    def follow(self, operations: Iterable[Operation]) -> None:
        """Follows the states through these operations."""
        for operation in operations:
            value = operation.result
            if self.states and operation.base in ops.SUMS:
                self._remains(self._remainder(operation))
            if value is None or value.maker is not operation or not (value.low or value.drift >= FELT) or not _direct(operation):
                continue
            key = _key(operation)
            if key not in self.seen:
                self.seen.add(key)
            elif not operation.in_optimizer and not operation.derived and not only_moved(operation, value):
                self._end_iteration(operation, value)

    def _end_iteration(self, operation: Operation, value: Value) -> None:
        """An op has made a state again. Notes what the iteration did to it, if it is made from the state before."""
        way = _state_before(operation, value)
        if way is None:
            return
        last, between = way
        old = self.states.get(last)
        products = [each for each in _products(operation, last) if each not in between]
        called = _called(operation, products)
        another = old is not None and bool(old.weights) and old.weights != called
        passed = old.passed if old else {last.maker.instruction: 1} if last.maker is not None else {}
        self.states[value] = LoopState(
            (old.stores if old else 0) + 1, {**passed, operation.instruction: passed.get(operation.instruction, 0) + 1}, last,
            (old.lines if old else frozenset()) | {each.blamed for each in between},
            bool(old and old.scaled) or any(each.base in SCALING for each in between),
            bool(old and old.compensated) or any(map(self._with_remainder, between)),
            bool(old and old.network) or (bool(products) and not called) or (bool(called) and another),
            called,
        )  # fmt: skip

    def _remains(self, total: Value | None) -> None:
        """Notes that the program computes what this sum has lost."""
        if total is not None and total in self.states:
            self.states[total] = dataclasses.replace(self.states[total], compensated=True)

    def ended(self) -> Iterable[list[Value]]:
        """The last states of the loops so far, grouped by op, with the latest at the end. A loop may have many, such as a list of sums."""
        carried = {state.before for state in self.states.values()}
        found: dict[Key, list[Value]] = {}
        for value in self.states:
            if value not in carried and value.maker is not None:
                found.setdefault(_key(value.maker), []).append(value)
        return found.values()

    def keep(self, values: Set[Value]) -> None:
        self.states = {value: state for value, state in self.states.items() if value in values}
        self.remainders.clear()

    def _remainder(self, operation: Operation) -> Value | None:
        if operation not in self.remainders:
            self.remainders[operation] = remainder_of(operation)
        return self.remainders[operation]

    def _with_remainder(self, operation: Operation) -> bool:
        """Whether an op makes a remainder, or has one as an operand. A program may select one of two, as Neumaier's sum does."""
        given = [source.maker for value in operation.inputs for source in causes.before_joins(value)]
        return any(maker is not None and self._remainder(maker) is not None for maker in (operation, *given))


def _direct(operation: Operation) -> bool:
    """Whether an op makes a state from the one before in a way that keeps an error. A product with a matrix that is no weight does: a rotation keeps
    the norm of what it turns, and of its error."""
    base = operation.base
    if base not in TURNING:
        return base in DIRECT
    return not any(maker.parameter for maker in (operation, *(source.maker for source in operation.inputs if source.maker is not None)))


def _key(operation: Operation) -> Key:
    return operation.module, operation.source, operation.name


def _made_from(operation: Operation, size: int) -> Iterator[Value]:
    """The inputs of an op with at least `size` elements, from which it makes a state. Only the first one if the op adds a product to it. Of the
    factors of a product, those that have the result's shape."""
    inputs = operation.inputs[:1] if operation.base in ADDED_TO else computed_from(operation)
    turned = operation.base in TURNING
    return (source for source in inputs if elements(source) >= size and (not turned or source.shape == operation.outputs[0].shape))


def _state_before(operation: Operation, value: Value) -> tuple[Value, tuple[Operation, ...]] | None:
    """The result of the same op in the iteration before, and the ops from there to a value. None if the value is not made from it."""
    size, key = elements(value), _key(operation)
    ways: dict[Value, tuple[Operation, ...]] = dict.fromkeys(_made_from(operation, size), (operation,))
    walk = Walk(ways, NEARBY)
    for each in walk:
        maker = each.maker
        if maker is None:
            continue
        if _key(maker) == key and elements(each) == size:
            return each, ways[each]
        if _direct(maker):
            for source in _made_from(maker, size):
                ways.setdefault(source, (*ways[each], maker))
                walk.follow([source])
    return None


def _products(operation: Operation, last: Value) -> Iterator[Operation]:
    """The products with the last state in an iteration that lead to the new state: those of a layer, or of a whole network."""
    since = last.maker.number if last.maker is not None else 0
    walk = Walk([operation], TURN)
    for later in walk:
        walk.follow(source.maker for source in later.inputs if source.maker is not None and source.maker.number > since)
    made = {last}
    for each in sorted(walk.reached, key=lambda each: each.number):
        if any(source in made for source in computed_from(each)):
            if each.base in ops.PRODUCTS and (each.base not in ADDED_TO or any(source in made for source in each.inputs[1:])):
                yield each
            made.update(each.outputs)


def _called(operation: Operation, products: list[Operation]) -> frozenset[int]:
    """The weights of a network that a loop calls: the products are in modules, and the loop is not. Otherwise empty.

    A sampler calls the same network in each iteration. A residual stream passes different layers.
    """
    if operation.module or not all(each.module and each.parameter for each in products):
        return frozenset()
    return frozenset(each.parameter for each in products)
