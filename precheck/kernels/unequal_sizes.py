"""Tells sizes of one tensor apart that are equal in the example: a candidate that takes one for the other is right on squares alone."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from precheck.kernels.bench import Bench
from precheck.kernels.rounding_errors import PLENTY
from precheck.kernels.trials import Trial

if TYPE_CHECKING:
    from precheck.kernels.dimensions import Dimensions
    from precheck.kernels.states import State
    from precheck.kernels.trial_result import Fault

_PLACES = 5
"""The most places of equal sizes that are told apart. The reference is asked for each way of doing so: fifteen of five places."""
_SIZES = ((5, 3), (3, 8))
"""Sizes that are tried: the first smaller, and larger. A candidate has to be wrong in both, as any fault is told only if it comes again."""


def noticed(bench: Bench, state: State) -> list[tuple[str, str]]:
    """Warnings with their rule: what is wrong where two sizes of one tensor differ that are equal in the example, if the reference takes that.

    Equal sizes vary together in all other trials, since most of them are one thing: rows and columns of scores of one sequence. Where they are not,
    as the height and the width of a picture, the reference takes other pictures too. It is no fault, as a kernel may be made for squares. It should
    refuse others then. An error that the candidate raises there counts as a refusal.
    """
    found = []
    for name, size in bench.dimensions.sizes.items():
        for apart in _told_apart(bench.dimensions, name) if name.startswith("=") else ():
            with state.restored():
                fault = _fault(bench, name, apart)
            if fault is not None:
                where = f"where two sizes of {size} differ, which the reference takes"
                found.append(("kernel-edge", f"{fault.text}; {where}: if they are always equal, refuse others"))
                break
    return found


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


def _fault(bench: Bench, name: str, apart: Dimensions) -> Fault | None:
    """Wrong numbers in both pairs of sizes. None if the reference refuses these, or has the same fault."""
    other, itself = (Bench(side, bench.reference, bench.example, apart, bench.wishes) for side in (bench.candidate, bench.reference))
    judged = None
    for place, (size, less) in enumerate(_SIZES):
        taken = other.takes(Trial(seed=71 + place, sizes=((name, size), (name + "'", less))))
        if taken is None or apart.elements(dict(taken.sizes)) > PLENTY:
            return None
        judged = other.judge(taken)
        if judged.fault is None or judged.fault.kind not in ("values", "lost") or itself.judge(taken).fault is not None:
            return None
    return judged.fault if judged is not None else None
