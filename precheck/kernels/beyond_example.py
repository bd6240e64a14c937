"""Looks beyond an example: each flag turned, and sizes of one tensor told apart that are equal there. What is wrong there alone is a warning.

It is no fault: the example says what the candidate is for, and a kernel may be made for one setting, or for squares. It should refuse others then.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from precheck.kernels.bench import Bench
from precheck.kernels.reference_check import checked_reference
from precheck.kernels.rounding_errors import PLENTY
from precheck.kernels.trials import Trial
from precheck.observe.job import InputError

if TYPE_CHECKING:
    from precheck.kernels.dimensions import Dimensions
    from precheck.kernels.examples import Example
    from precheck.kernels.states import State
    from precheck.kernels.trial_result import Fault

_FLAGS = 4
"""The most flags that are turned. Each takes some five trials in the example's shapes."""
_PLACES = 5
"""The most places of equal sizes that are told apart. The reference is asked for each way of doing so: fifteen of five places."""
_SIZES = ((5, 3), (3, 8))
"""Sizes that are tried: the first smaller, and larger. A candidate has to be wrong in both, as any fault is told only if it comes again."""


def turned_flags(bench: Bench, state: State) -> Iterator[tuple[str, str]]:
    """Warnings with their rule: what is wrong where a flag is not as in the example, and the reference takes it."""
    for path, flag, example in bench.example.turned()[:_FLAGS]:
        fault = _found(bench, state, example, bench.dimensions, _turned)
        if fault is not None:
            where = f"where inputs{path} is {not flag}, which the reference takes, and not {flag} as in the example"
            yield "kernel-contract", f"{fault.text}; {where}: if it is always {flag}, refuse {not flag}"


def _turned(bench: Bench) -> list[Trial]:
    """Trials in the example's shapes. None if the reference refuses that example, or draws random numbers there."""
    try:
        checked_reference(bench)
    except InputError:
        return []
    return [Trial(seed=67), Trial(seed=68)]


def equal_sizes(bench: Bench, state: State) -> Iterator[tuple[str, str]]:
    """Warnings with their rule: what is wrong where two sizes of one tensor differ that are equal in the example, if the reference takes that.

    Equal sizes vary together in all other trials, since most of them are one thing: rows and columns of scores of one sequence. Where they are not,
    as the height and the width of a picture, the reference takes other pictures too. An error that the candidate raises there counts as a refusal.
    """
    for name, size in bench.dimensions.sizes.items():
        for apart in _told_apart(bench.dimensions, name) if name.startswith("=") else ():
            fault = _found(bench, state, bench.example, apart, functools.partial(_unequal, name))
            if fault is not None and fault.kind in ("values", "lost"):
                where = f"where two sizes of {size} differ, which the reference takes"
                yield "kernel-edge", f"{fault.text}; {where}: if they are always equal, refuse others"
                break


def _told_apart(dimensions: Dimensions, name: str) -> list[Dimensions]:
    """The dimensions with some of a size's places under another name, so that a tensor has both. Fewest places first."""
    places = [(leaf, axis) for leaf, shape in enumerate(dimensions.shapes) for axis, each in enumerate(shape) if each == name]
    if len(places) > _PLACES:
        return []
    others = (set(some) for count in range(1, len(places)) for some in itertools.combinations(places[1:], count))
    found = []
    for other in others:
        if any({(leaf, axis) in other for at, axis in places if at == leaf} == {True, False} for leaf, _ in places):
            shapes = tuple(tuple(name + "'" if (leaf, axis) in other else each for axis, each in enumerate(shape))
                           for leaf, shape in enumerate(dimensions.shapes))  # fmt: skip
            found.append(dataclasses.replace(dimensions, shapes=shapes, sizes={**dimensions.sizes, name + "'": dimensions.sizes[name]}))
    return found


def _unequal(name: str, bench: Bench) -> Iterator[Trial]:
    """Trials with both pairs of sizes, as far as the reference takes them."""
    taken = (bench.takes(Trial(seed=71 + place, sizes=((name, one), (name + "'", two)))) for place, (one, two) in enumerate(_SIZES))
    return (each for each in taken if each is not None and bench.dimensions.elements(dict(each.sizes)) <= PLENTY)


def _found(bench: Bench, state: State, example: Example, dimensions: Dimensions, trials: Callable[[Bench], Iterable[Trial]]) -> Fault | None:
    """What is wrong in both trials with such an example. None if there is a right one, or the reference has the same fault."""
    other = Bench(bench.candidate, bench.reference, example, dimensions, bench.wishes)
    with state.restored():
        tried = list(trials(other))
        itself = Bench(bench.reference, bench.reference, example, dimensions, other.wishes)
        fault = None
        for trial in tried if len(tried) == 2 else ():
            fault = other.judge(trial).fault
            if fault is None or itself.judge(trial).fault is not None:
                return None
    return fault
