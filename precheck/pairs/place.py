"""A place where two models differ: a module of `other`, the line in its code, and the op there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.contents import Contents
from precheck.pairs.floors import PARTED
from precheck.pairs.intermediates import ALIKE, Intermediates, Made, alike, parting, signature
from precheck.pairs.same_code import siblings

Occurrence = tuple[str, str, int]
FLOAT32 = 64.0
"""Factor on that if the exact runs are in float32. The roundings of sixteen layers add up to a quarter of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where two models differ first: a module of `other`, its counterpart in `model`, line and op, and whether in the backward pass."""

    module: str
    counterpart: str | None
    source: str = ""
    op: str = ""
    backward: bool = False
    theirs: tuple[Made, ...] = ()  # results of ops in the module of `other`
    ours: tuple[Made, ...] = ()  # results of ops in its counterpart
    number: int | None = None  # of the op in `theirs`
    passed: tuple[torch.Tensor, torch.Tensor] | None = None  # the first differing tensor between modules, of `other` and of `model`
    right: frozenset[str] = frozenset()  # modules that returned the same before
    given: str = ""  # what a module with right code is given that model's is not, in words
    repeated: bool = False  # whether the backward pass repeats the module with other numbers
    dtype: torch.dtype = torch.float64  # of the run that made the results
    usual: frozenset[str] = frozenset()  # ops whose results are nowhere in `model` although the same part of another block is right
    ran: str | None = None  # the module that was followed for `theirs`, if that is another: one that calls a method of `module`, or holds it


def placed_at(
    comparison: Comparison, dtype: torch.dtype, module: str, contents: Contents, wrong: torch.Tensor | None, *, by_op: bool, within: bool = False
) -> Place:  # fmt: skip
    """The place with the op whose result occurs nowhere in `model`. Only if both call the module equally often, and neither calls it on parts. If a
    module that it calls runs this op, on something `wrong` that it was given, the op before. `within`: if the module's own code has made
    nothing before this op, name the part that runs it."""
    modules = comparison.matching.modules
    counterpart = modules.get(module)
    theirs = Intermediates(comparison.other.job.model, {module}, own=False)
    ours = Intermediates(comparison.model.job.model, {counterpart or ""}, own=False)
    with contextlib.suppress(*REFUSALS):
        for side, follower in ((comparison.other, theirs), (comparison.model, ours)):
            with follower.followed(), sdpa_kernel(SDPBackend.MATH):  # so that fused attention shows its scores
                side.forward(dtype)
        known = [*ours.sources, *(each.signature for each in ours.made)]

        usual = _unknown_in_right(comparison, dtype, module, contents) if by_op else {}
        keys = dict(zip(map(id, theirs.made), _occurrences(theirs.made), strict=True))

        def right(made: Made) -> bool:  # the result of another module inside, which model joins with other tensors
            by_numbers = made.module != module or usual.get(keys[id(made)], False)
            return by_numbers and made.tensor is not None and contents.hold(made.tensor)

        within_ = ALIKE if dtype is torch.float64 else PARTED * FLOAT32
        number = None
        if by_op:
            number = parting(theirs.made, known, within_, right=right, usual=lambda made: usual.get(keys[id(made)]) is False)
        if number is not None:
            found, alone, ran = theirs.made[number], True, module
            if module not in (found.module, found.code):
                if within and not any(each.module == module for each in theirs.made[:number]) and _inside(found.module, module):
                    module, counterpart = found.module, modules.get(found.module)  # no other code ran before
                found, alone = _given_away(theirs.made, number, module, wrong)
            if alone and found.module == module != found.code:
                module, counterpart = found.code, modules.get(found.code)
            made = tuple(theirs.made), tuple(ours.made)
            place = Place(module, counterpart, found.line, found.op, theirs=made[0], ours=made[1], number=number, dtype=dtype, ran=ran)
            return dataclasses.replace(place, usual=frozenset(op for (_, op, _), held in usual.items() if not held))
    last = next((each for each in reversed(theirs.made) if each.module == module), None)
    return Place(module, counterpart, last.line if last else "", theirs=tuple(theirs.made), ours=tuple(ours.made))


def _unknown_in_right(comparison: Comparison, dtype: torch.dtype, module: str, contents: Contents) -> dict[Occurrence, bool]:
    """The ops whose results `model` has in no tensor although the module is right, in the same part of another block; and whether it has their
    numbers, as where it makes them in parts. Complex numbers, say, or sums in another order are no fault in this block either."""
    for each in siblings(comparison.other.job.model, module)[:1]:
        follower = Intermediates(comparison.other.job.model, {each}, own=False)
        with follower.followed(), sdpa_kernel(SDPBackend.MATH):
            comparison.other.forward(dtype)
        marks = contents.marks()
        if follower.made and follower.made[-1].signature in marks:
            pairs = zip(_occurrences(follower.made), follower.made, strict=True)
            return {key: made.tensor is not None and contents.hold(made.tensor) for key, made in pairs if made.signature not in marks}
    return {}


def _occurrences(made: Sequence[Made]) -> list[Occurrence]:
    """For each op its line, its name, and how many of these ran before."""
    counts = Counter[tuple[str, str]]()
    found: list[Occurrence] = []
    for each in made:
        found.append((each.line, each.op, counts[each.line, each.op]))
        counts[each.line, each.op] += 1
    return found


def _inside(part: str, module: str) -> bool:
    return bool(part) and part.startswith(f"{module}." if module else "")


def _given_away(made: Sequence[Made], number: int, module: str, wrong: torch.Tensor | None) -> tuple[Made, bool]:
    """The last op of the module's own code before this one, or the one that made the `wrong` tensor. Also whether the method that ran it made it of
    nothing that other code had made."""
    own = [each for each in made[:number] if each.module == module]
    mark = None if wrong is None else signature(wrong)
    found = next((each for each in reversed(own) if mark is not None and alike(mark, each.signature)), None)
    if found is None:
        return (own or [made[number]])[-1], False
    waiting, seen = [found], list[Made]()
    while waiting:
        each = waiting.pop()
        seen.append(each)
        waiting += [made[one] for one in each.reads if made[one] not in seen]
    return found, all(each.code == found.code for each in seen)
