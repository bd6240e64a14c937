"""Says what the first wrong op does otherwise than `model` with the same numbers: it has another option, another operand, or is another function.

All operands of this op occur in `model`, and its result does not. So some op of `model` reads one of these operands and makes what `other` lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from precheck import ops
from precheck.pairs.comparison import Comparison
from precheck.pairs.intermediates import ALIKE, Made, Marks, Signature, alike, signature
from precheck.pairs.place import Place

MOVING = ops.MOVING | {"clone", "unsafe_view", "to_copy", "copy_"}
PLAIN = MOVING | ops.SCALING | ops.ADDITIONS
"""Ops whose names do not tell a formula, where others do."""


def formulas(comparison: Comparison, place: Place) -> Iterator[str]:
    """What the op at this place does otherwise, in words."""
    if place.number is None:
        return
    made = place.theirs[place.number]
    lacking = Marks([each.signature for each in place.theirs], ALIKE)
    left = [each for each in place.ours if each.signature not in lacking and name(each) not in MOVING]
    yield from _options(made, left)
    yield from _operands(place, made, left)
    yield from _functions(comparison, place, made, left)


def name(made: Made) -> str:
    return made.op.removeprefix("aten.").lstrip("_").removeprefix("safe_")


def _options(made: Made, left: Sequence[Made]) -> Iterator[str]:
    """Another option of the same op on the same operands."""
    for each in left:
        if each.op == made.op and not _unlike(made, each):
            there = dict(each.options)
            unlike = [(option, value, there[option]) for option, value in made.options if there.get(option, value) != value]
            here, wanted = (" and ".join(f"{option} {values[place]}" for option, *values in unlike) for place in (0, 1))
            if unlike:
                yield f"its {name(made)} has {here}, and model's has {wanted}"


def _operands(place: Place, made: Made, left: Sequence[Made]) -> Iterator[str]:
    """Another operand of the same op, if all others are the same."""
    for each in left:
        unlike = _unlike(made, each)
        if each.op == made.op and len(unlike) == 1 < len(made.operands):
            here, there = (_what(some, one.makers[unlike[0]]) for some, one in ((place.theirs, made), (place.ours, each)))
            if here and there and here != there:
                yield f"its {name(made)} reads {here}, where model's reads {there}"


def _unlike(made: Made, there: Made) -> list[int]:
    """Which operands of two ops hold other numbers, or -1 if they have another number of operands."""
    if len(made.operands) != len(there.operands):
        return [-1] * 2
    return [number for number, (a, b) in enumerate(zip(made.operands, there.operands, strict=True)) if not alike(a, b)]


def _what(made: Sequence[Made], number: int | None) -> str:
    """An operand in words: the op that made its numbers, wherever they were moved since."""
    while number is not None and name(made[number]) in MOVING and len(made[number].reads) == 1:
        number = made[number].reads[0]
    if number is None:
        return "an input"
    return f"the result of {made[number].module}'s {name(made[number])}" if made[number].module else f"the result of a {name(made[number])}"


def _functions(comparison: Comparison, place: Place, made: Made, left: Sequence[Made]) -> Iterator[str]:
    """Another function of the same numbers, unless a right block writes it so too."""
    usual = {each.removeprefix("aten.").lstrip("_") for each in place.usual}
    for start in made.operands:
        here, there = (_formula(side.job.model, some, start) for side, some in ((comparison.other, place.theirs), (comparison.model, place.ours)))
        one, two = (_telling([each for each in some if each not in others]) for some, others in ((here, there), (there, here)))
        reader = next((each for each in left if any(alike(start, operand) for operand in each.operands)), None)
        if reader is None or not here or usual & (set(here) - set(there)):
            continue
        if not there:
            yield f"its {name(made)} reads what model's {name(reader)} reads"
        elif one and two:
            yield f"of what its {name(made)} reads, model computes {two}, and other {one}"
        elif one or two:
            yield f"of what its {name(made)} reads, {'other' if one else 'model'} computes {one or two}, and {'model' if one else 'other'} does not"


def _telling(names: Sequence[str]) -> str:
    told = [each for each in dict.fromkeys(names) if each not in PLAIN] or list(dict.fromkeys(names))
    return " and ".join(filter(None, (", ".join(told[:-1]), *told[-1:])))


def _formula(model: torch.nn.Module, made: Sequence[Made], start: Signature) -> list[str]:
    """The ops that compute something of these numbers, weights and constants alone, up to products with matrices."""
    known = Marks([signature(each) for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()], ALIKE)
    of_start, constant, found = set[int](), set[int](), list[str]()
    for number, each in enumerate(made):
        sources = list(zip(each.makers, each.operands, strict=True))
        begins = [alike(operand, start) for _, operand in sources]
        fixed = [maker in constant if maker is not None else operand in known or operand[0] == 1 for maker, operand in sources]
        if alike(each.signature, start):
            of_start.add(number)
        elif all(fixed) and not any(begins):
            constant.add(number)
        elif name(each) not in ops.PRODUCTS and all(a or b or maker in of_start for a, b, (maker, _) in zip(begins, fixed, sources, strict=True)):
            of_start.add(number)
            found.append(name(each))
    return [each for each in found if each not in MOVING]
