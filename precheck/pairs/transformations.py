"""Finds a change that explains the difference of two models: a factor, a shift, another mask, order or bias, an attribute, a weight."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precheck import ops
from precheck.pairs import changes
from precheck.pairs.changes import Change, cures
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.floors import agree, unlike
from precheck.pairs.formulas import formulas
from precheck.pairs.formulas import name as _op
from precheck.pairs.intermediates import Made, View, alike
from precheck.pairs.layouts import equal
from precheck.pairs.place import Place
from precheck.pairs.same_code import peers, right_twins
from precheck.pairs.variations import changed

MOVING = frozenset({"clone", "unsafe_view", "to_copy", "cat", "stack", "copy_"})
"""Ops that only move numbers. Their operands do not show where a factor matters."""
SCALING = MOVING | ops.MULTIPLYING | ops.REDUCTIONS | ops.MOVING
"""Ops that pass on a factor of their operands."""
TRIED = 6
"""Changes that are tried, a run of `other` each. The right one is among the first, where there is one."""
COMPARED = 600
"""Couples of tensors in which a change is looked for, a millisecond each. A loop makes thousands."""


def explained(comparison: Comparison, place: Place) -> str:
    """The first change that makes the two models agree where they differ first, in words, or ""."""
    found = next(_explanations(comparison, place), "")
    if found or place.backward:
        return found
    for change in itertools.islice(_contents(place), TRIED):
        if change.tensor is None or cures(comparison, place, change):
            return change.words
    return next(formulas(comparison, place), "")


def _explanations(comparison: Comparison, place: Place) -> Iterator[str]:
    if place.repeated:
        yield "as the backward pass computes it again, its parts get other numbers than in the forward pass"
    if place.given:
        yield place.given
    yield from _weights(comparison, place)
    yield from _attributes(comparison, place)


def _weights(comparison: Comparison, place: Place) -> Iterator[str]:
    """Weights that differ before anything is computed, and weights that one side lacks or shares."""
    ours, theirs = (dict(side.job.model.named_parameters(remove_duplicate=False)) for side in (comparison.model, comparison.other))
    unlike = [link.others[0].rpartition(".") for link in comparison.matching.links if not link.same]
    unlike += [name.rpartition(".") for name in comparison.matching.lonely]
    known = right_twins(comparison, place.module, place.right)
    harmless = {name for module, _, name in unlike if module in known}  # in a module that is right, or in a part of one
    for link in comparison.matching.links:
        module, _, name = link.others[0].rpartition(".")
        if not link.same and module == place.module and name not in harmless:
            yield f"{link.others[0]} holds other numbers than model's {link.models[0]}{_how(theirs[link.others[0]], ours[link.models[0]])}"
    matching, there = comparison.matching, place.counterpart
    there = place.module if there is None and place.module in matching.shared else there
    missed = _below(matching.missed, there)
    lonely = _below(matching.lonely, place.module)
    if not (missed and lonely):  # else they may stand for each other, as one bias for the sum of two, or a stack for the weights of all parts
        for name in _own(missed, there):
            if bool(torch.count_nonzero(ours[name].detach())):
                yield f"other has no {name.rpartition('.')[2]} there, and model's {name} is not zero"
        for name in _own(lonely, place.module):
            if name.rpartition(".")[2] not in harmless and bool(torch.count_nonzero(theirs[name].detach())):
                yield f"other's {name} is not zero, and model has none there"
    yield from _buffers(comparison, place)
    for one, same in ((ours, theirs), (theirs, ours)):
        tied = [(a, b) for a in one for b in one if a < b and one[a] is one[b]]
        which = ("model", "other") if one is ours else ("other", "model")
        for a, b in tied:
            apart = {id(value): name for name, value in same.items() if equal(value.detach(), one[a].detach())}
            if place.backward and len(apart) > 1 and not bool((one[a] == one[a].reshape(-1)[0]).all()):
                others = "" if {a, b} == set(apart.values()) else f": {' and '.join(sorted(apart.values())[:2])}"
                yield f"{a} and {b} are one parameter in {which[0]}, and two in {which[1]}{others}"


def _below(names: Sequence[str], module: str | None) -> list[str]:
    """Those of a module and of the modules in it."""
    return [name for name in names if module is not None and name.startswith(f"{module}." if module else "")]


def _own(names: Sequence[str], module: str | None) -> list[str]:
    return [name for name in names if name.rpartition(".")[0] == module]


def _buffers(comparison: Comparison, place: Place) -> Iterator[str]:
    """Buffers of a module (statistics, tables) with the same name and other numbers, before any run."""
    if place.counterpart is None or place.backward:
        return
    there, here = (dict(side.job.model.get_submodule(name).named_buffers(recurse=False))
                   for side, name in ((comparison.model, place.counterpart), (comparison.other, place.module)))  # fmt: skip
    for name, value in here.items():
        if name in there and value.shape == there[name].shape and not torch.equal(value, there[name]):
            yield f"its {name} holds other numbers than model's{_how(value, there[name])}"


def _how(theirs: torch.Tensor, ours: torch.Tensor) -> str:
    if theirs.shape != ours.shape:
        return ""
    factor = changes.factor(theirs.detach().double(), ours.detach().double())
    if factor is not None:
        return f": {factor:.6g} times them"
    return ": all of them the same" if bool((theirs == theirs.reshape(-1)[0]).all()) else ""


def _attributes(comparison: Comparison, place: Place) -> Iterator[str]:
    """Plain attributes that differ between the two modules, if `other` agrees with model after it gets model's value."""
    if place.counterpart is None:
        return
    ours, theirs = comparison.model.job.model, comparison.other.job.model
    there, here, modules = _plain(ours, place.counterpart), _plain(theirs, place.module), comparison.matching.modules
    known = [each for each in peers(comparison, place.module, place.right) if each in modules]
    alike = [(_plain(ours, modules[each]), _plain(theirs, each)) for each in known]
    for name, value in here.items():
        harmless = any(mine.get(name) == there.get(name) and yours.get(name) == value for mine, yours in alike)  # in a module that is right
        if name in there and _unlike(value, there[name]) and not harmless:
            said = f"{name} is {value!r} in other's {place.module or 'model'}, and {there[name]!r} in model's"
            if _cured(comparison, name):
                yield f"{said}: with {there[name]!r} they agree"


def _unlike(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a != b and not (a != a and b != b)


def _plain(model: torch.nn.Module, name: str) -> dict[str, Any]:
    values = {each: value for each, value in vars(model.get_submodule(name)).items() if isinstance(value, (int, float, str, tuple))}
    return {each: value for each, value in values.items() if not each.startswith("_") and each != "training"}


def _given(comparison: Comparison, name: str) -> contextlib.AbstractContextManager[None]:
    """Gives all modules of `other` model's value of an attribute, within the context."""
    ours, theirs = (dict(side.job.model.named_modules()) for side in (comparison.model, comparison.other))
    couples = [(theirs[a], vars(ours[b])) for a, b in comparison.matching.modules.items() if a in theirs and b in ours]
    told = [(here, there) for here, there in couples if name in vars(here) and name in there]
    return changed((here, name, there[name]) for here, there in told if _unlike(vars(here)[name], there[name]))


def _cured(comparison: Comparison, name: str) -> bool:
    """Whether the results agree once the attribute is `model`'s. If they agreed before, the gradients that differed have to."""
    for dtype in dict.fromkeys((torch.float64, comparison.dtype)):
        try:
            before = comparison.other.once(dtype).captured
            with _given(comparison, name):
                theirs = comparison.other.once(dtype).captured
            ours = comparison.model.once(dtype).captured
        except Exception:  # a model may raise anything if its attributes are changed
            continue
        wrong, left = (set(unlike(comparison.subjects, ours, each)) for each in (before, theirs))
        told = {each for each in wrong | left if each.kind in ("result", "buffer")}
        return not told & left and (bool(told) or not any("gradient" in each.kind for each in wrong & left))
    return False


def _contents(place: Place) -> Iterator[Change]:
    made = None if place.number is None else place.theirs[place.number]
    if made is None or made.tensor is None:
        yield from _passed(place)
        return
    assert place.number is not None
    alike_ = [dataclasses.replace(each, tensor=each.tensor.reshape(made.tensor.shape)) for each in place.ours
              if each.tensor is not None and each.tensor.numel() == made.tensor.numel()]  # fmt: skip
    yield from _masks(place.number, made.tensor, alike_)
    yield from _readings(place)
    yield from _passed(place)
    for each in sorted(alike_, key=lambda one: one.op != made.op):
        assert each.tensor is not None
        found = changes.changes(made.tensor, each.tensor, f"the result of model's {_op(each)}")
        yield from (Change(f"it is {said}", place.number, each.tensor) for said in found)
    yield from _orders(made, place.ours)


def _passed(place: Place) -> Iterator[Change]:
    """Changes of the first differing tensor between modules."""
    if place.passed is not None and place.passed[0].shape == place.passed[1].shape:
        yield from (Change(f"what it gives is {said}") for said in changes.changes(*place.passed, "what model gives there"))


def _readings(place: Place) -> Iterator[Change]:
    """Finds an op that reads the operand of the same op in model, changed by a factor, a mask or a shift. Sums and products pass a factor on, and the
    models may apply it at different places. So an op that does not pass it on shows how often it was applied."""
    assert place.number is not None
    found, left = None, iter(range(COMPARED))
    for made in place.theirs[place.number :]:
        told = None if _op(made) in MOVING else next(_reading(made, place, left), None)
        if _op(made) not in SCALING:
            if told:
                yield told
            found = None  # the factor was removed before this op
        elif told:
            found = told
    if found:
        yield found


def _reading(made: Made, place: Place, left: Iterator[int]) -> Iterator[Change]:
    for each in (one for one in place.ours if _op(one) == _op(made) and len(one.makers) == len(made.makers)):
        for here, there in zip(made.makers, each.makers, strict=True):
            a = None if here is None else place.theirs[here].tensor
            b = None if there is None else place.ours[there].tensor
            if a is None or b is None or there is None or a.numel() != b.numel() or a.numel() < 2:
                continue
            if next(left, None) is None:
                return
            a, b = (a, b) if a.shape == b.shape else (a.reshape(b.shape), b)
            if not agree(*changes.seen(a, b)):
                found = changes.changes(a, b, f"what model's {_op(each)} reads")
                yield from (Change(f"its {_op(made)} reads {said}", here, b) for said in found)
            masked = _masks(here or 0, a, [place.ours[there]])
            yield from (dataclasses.replace(change, words=f"before its {_op(made)}, {change.words}") for change in masked)


def _orders(made: Made, ours: Sequence[Made]) -> Iterator[Change]:
    """Finds an op of model that reads the same memory with other strides: a transpose, a view or interleaving is confused with another."""
    for each in ours:
        if each.op != made.op or len(each.views) != len(made.views) or each.tensor is None:
            continue
        couples = list(zip(made.views, each.views, strict=True))
        if all(alike(a[0], b[0]) for a, b in couples) and any(_walk(a) != _walk(b) for a, b in couples):
            here, there = next((a, b) for a, b in couples if _walk(a) != _walk(b))
            if math.prod(here[1]) == math.prod(there[1]):  # else it reads a part
                yield Change(
                    f"its {_op(made)} reads what model's {_op(each)} reads in another order: shape {here[1]} with strides {here[2]}, "
                    f"and model's has shape {there[1]} with strides {there[2]}",
                )  # not tried: what is read in that order may be read by more ops


def _walk(view: View) -> tuple[int, list[tuple[int, int]]]:
    """The order in which a view reads memory, whatever its dimensions: offset, and sizes with strides."""
    found: list[tuple[int, int]] = []
    for size_, stride in zip(view[1], view[2], strict=True):
        if size_ == 1:
            continue
        if found and found[-1][1] == size_ * stride:
            found[-1] = found[-1][0] * size_, stride
        else:
            found.append((size_, stride))
    return view[3], found


def _masks(number: int, here: torch.Tensor, ours: Sequence[Made]) -> Iterator[Change]:
    """Another mask on the same scores, compared with the result of model that differs in the fewest elements."""
    found = []
    for each in ours:
        assert each.tensor is not None
        mine, other = changes.hidden(here), changes.hidden(each.tensor)
        apart_ = int((mine != other).sum())
        if apart_ and bool(other.any()) and agree(*changes.seen(here, each.tensor)):
            found.append((apart_, mine, other, each))
    for _, mine, other, each in sorted(found, key=lambda one: one[0])[:1]:
        more, fewer = int((mine & ~other).sum()), int((other & ~mine).sum())
        said = f"its mask is not that of model's {_op(each)}: elements hidden in other alone: {more}, in model alone: {fewer}"
        shifts = [(dim, by) for dim in range(here.dim() - 1, -1, -1) for by in changes.SHIFTS if here.shape[dim] > abs(by)]
        parts = ((dim, by, changes.part(mine, dim, by), changes.part(other, dim, -by)) for dim, by in shifts)
        fits = ((dim, by) for dim, by, moved, there in parts if torch.equal(moved, there) and 0 < int(there.sum()) < there.numel())
        words = next((f"{said}; its element i is element i{-by:+d} of that one, along dimension {dim}" for dim, by in fits), said)
        yield Change(words, number, each.tensor)


def explanation(comparison: Comparison, place: Place) -> str:
    """`explained`, or "" if the search fails. An explanation is not part of the verdict."""
    with contextlib.suppress(*REFUSALS):
        return explained(comparison, place)
    return ""
