"""Finds a change that explains the difference of two models: a factor, a shift, another mask, order or bias, an attribute, a weight."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precheck import ops
from precheck.pairs.backward_difference import PARTED
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.first_difference import Place
from precheck.pairs.floors import relative
from precheck.pairs.intermediates import Made, View, alike
from precheck.pairs.layouts import equal
from precheck.words import counted

MASKED = 1e30
"""Magnitude from which a number belongs to a mask: beyond any score, within float32's range."""
MOVING = frozenset({"clone", "unsafe_view", "to_copy", "cat", "stack", "copy_"})
"""Ops that only move numbers. Their operands do not show where a factor matters."""
SCALING = MOVING | ops.MULTIPLYING | ops.REDUCTIONS | ops.MOVING
"""Ops that pass on a factor of their operands."""
SHIFTS = (1, -1, 2, -2)
"""Shifts in positions that are tried: those of bugs that people report."""


def explained(comparison: Comparison, place: Place) -> str:
    """The first change that makes the two models agree where they differ first, in words, or ""."""
    return next(_explanations(comparison, place), "")


def _explanations(comparison: Comparison, place: Place) -> Iterator[str]:
    if place.repeated:
        yield "as the backward pass computes it again, its parts get other numbers than in the forward pass"
    yield from _weights(comparison, place)
    yield from _attributes(comparison, place)
    if place.number is not None and not place.backward:
        yield from _contents(place)
    elif not place.backward:
        yield from _passed(place)


def _weights(comparison: Comparison, place: Place) -> Iterator[str]:
    """Weights that differ before anything is computed, and weights that one side lacks or shares."""
    ours, theirs = (dict(side.job.model.named_parameters(remove_duplicate=False)) for side in (comparison.model, comparison.other))
    for link in comparison.matching.links:
        if not link.same and link.others[0].rpartition(".")[0] == place.module:
            yield f"{link.others[0]} holds other numbers than model's {link.models[0]}{_how(theirs[link.others[0]], ours[link.models[0]])}"
    matching, there = comparison.matching, place.counterpart
    there = place.module if there is None and place.module in matching.shared else there
    missed = [name for name in matching.missed if name.rpartition(".")[0] == there]
    lonely = [name for name in matching.lonely if name.rpartition(".")[0] == place.module]
    if not (missed and lonely):  # else they may stand for each other, as one bias for the sum of two
        for name in missed:
            if bool(torch.count_nonzero(ours[name].detach())):
                yield f"other has no {name.rpartition('.')[2]} there, and model's {name} is not zero"
        for name in lonely:
            if bool(torch.count_nonzero(theirs[name].detach())):
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
    factor = _factor(theirs.detach().double(), ours.detach().double())
    if factor is not None:
        return f": {factor:.6g} times them"
    return ": all of them the same" if bool((theirs == theirs.reshape(-1)[0]).all()) else ""


def _attributes(comparison: Comparison, place: Place) -> Iterator[str]:
    """Plain attributes that differ between the two modules, if `other` agrees with model after it gets model's value."""
    if place.counterpart is None:
        return
    there, here = _plain(comparison.model.job.model, place.counterpart), _plain(comparison.other.job.model, place.module)
    for name, value in here.items():
        if name in there and _unlike(value, there[name]):
            said = f"{name} is {value!r} in other's {place.module or 'model'}, and {there[name]!r} in model's"
            if _cured(comparison, name):
                yield f"{said}: with {there[name]!r} they agree"


def _unlike(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a != b and not (a != a and b != b)


def _plain(model: torch.nn.Module, name: str) -> dict[str, Any]:
    values = {each: value for each, value in vars(model.get_submodule(name)).items() if isinstance(value, (int, float, str, tuple))}
    return {each: value for each, value in values.items() if not each.startswith("_") and each != "training"}


@contextlib.contextmanager
def _given(comparison: Comparison, name: str) -> Iterator[None]:
    """Gives all modules of `other` model's value of an attribute, within the context."""
    ours, theirs = (dict(side.job.model.named_modules()) for side in (comparison.model, comparison.other))
    couples = [(theirs[a].__dict__, ours[b].__dict__) for a, b in comparison.matching.modules.items() if a in theirs and b in ours]
    changed = [(here, here[name], there[name]) for here, there in couples if name in here and name in there and _unlike(here[name], there[name])]
    try:
        for here, _, wanted in changed:
            here[name] = wanted
        yield
    finally:
        for here, before, _ in changed:
            here[name] = before


def _cured(comparison: Comparison, name: str) -> bool:
    for dtype in dict.fromkeys((torch.float64, comparison.dtype)):
        try:
            with _given(comparison, name):
                theirs = comparison.other.once(dtype).captured
            ours = comparison.model.once(dtype).captured
        except Exception:  # a model may raise anything if its attributes are changed
            continue
        results = [(each.of_model(ours), each.of_other(theirs)) for each in comparison.subjects if each.kind in ("result", "buffer")]
        return all(a is not None and b is not None and a.shape == b.shape and _equal(b, a) for a, b in results)
    return False


def _contents(place: Place) -> Iterator[str]:
    made = place.theirs[place.number or 0]
    if made.tensor is None:
        return
    same = [dataclasses.replace(each, tensor=each.tensor.reshape(made.tensor.shape)) for each in place.ours
            if each.tensor is not None and each.tensor.numel() == made.tensor.numel()]  # fmt: skip
    yield from _masks(made.tensor, same)
    yield from _readings(place)
    yield from _passed(place)
    for each in sorted(same, key=lambda one: one.op != made.op):
        assert each.tensor is not None
        yield from (f"it is {said}" for said in _changes(made.tensor, each.tensor, f"the result of model's {_op(each)}"))
    yield from _orders(made, place.ours)


def _passed(place: Place) -> Iterator[str]:
    """Changes of the first differing tensor between modules."""
    if place.passed is not None and place.passed[0].shape == place.passed[1].shape:
        yield from (f"what it gives is {said}" for said in _changes(*place.passed, "what model gives there"))


def _readings(place: Place) -> Iterator[str]:
    """Finds an op that reads the operand of the same op in model, changed by a factor, a mask or a shift. Sums and products pass a factor on, and the
    models may apply it at different places. So an op that does not pass it on shows how often it was applied."""
    assert place.number is not None
    found = ""
    for made in place.theirs[place.number :]:
        told = "" if _op(made) in MOVING else next(_reading(made, place), "")
        if _op(made) not in SCALING:
            if told:
                yield told
            found = ""  # the factor was removed before this op
        elif told:
            found = told
    if found:
        yield found


def _reading(made: Made, place: Place) -> Iterator[str]:
    for each in (one for one in place.ours if _op(one) == _op(made) and len(one.makers) == len(made.makers)):
        for here, there in zip(made.makers, each.makers, strict=True):
            a = None if here is None else place.theirs[here].tensor
            b = None if there is None else place.ours[there].tensor
            if a is None or b is None or there is None or a.numel() != b.numel() or a.numel() < 2:
                continue
            a, b = (a, b) if a.shape == b.shape else (a.reshape(b.shape), b)
            if not _equal(*_seen(a, b)):
                yield from (f"its {_op(made)} reads {said}" for said in _changes(a, b, f"what model's {_op(each)} reads"))
            yield from (f"before its {_op(made)}, {said}" for said in _masks(a, [place.ours[there]]))


def _orders(made: Made, ours: Sequence[Made]) -> Iterator[str]:
    """Finds an op of model that reads the same memory with other strides: a transpose, a view or interleaving is confused with another."""
    for each in ours:
        if each.op != made.op or len(each.views) != len(made.views):
            continue
        couples = list(zip(made.views, each.views, strict=True))
        if all(alike(a[0], b[0]) for a, b in couples) and any(_walk(a) != _walk(b) for a, b in couples):
            here, there = next((a, b) for a, b in couples if _walk(a) != _walk(b))
            yield (
                f"it reads the numbers of model's {_op(each)} in another order: shape {here[1]} with strides {here[2]}, "
                f"and model's has shape {there[1]} with strides {there[2]}"
            )


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


def _changes(here: torch.Tensor, there: torch.Tensor, what: str) -> Iterator[str]:
    """Changes that turn `there`, of model, into `here`, of other. Both have the same shape."""
    a, b = _seen(here, there)
    factor = _factor(a, b)
    if factor is not None and factor != 1:
        yield f"{factor:.6g} times {what}"
    for dim in range(here.dim()):
        for by in SHIFTS:
            if here.shape[dim] > abs(by) + 1 and _equal(_from(a, dim, by), _from(b, dim, -by)):
                yield f"shifted: element i of it is element i{-by:+d} of {what}, along dimension {dim}"
        if here.shape[dim] > 1 and _equal(a.flip(dim), b):
            yield f"{what} the other way round, along dimension {dim}"
    difference = a - b
    if here.dim() > 1 and here.shape[0] > 1 and bool(torch.count_nonzero(difference)):
        flat = difference.reshape(-1, here.shape[-1])
        if len(flat) > 1 and float((flat - flat[0]).abs().max()) <= PARTED * float(b.abs().max()):
            once = "" if float((flat - flat[0, 0]).abs().max()) > PARTED * float(b.abs().max()) else f" {flat[0, 0].item():.6g}"
            yield f"{what} plus{once or ' the same row everywhere, as of a bias'}"


def _seen(here: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64, or complex128 if either is complex, with zeros where either is masked."""
    hidden, wide = _hidden(here) | _hidden(there), torch.complex128 if here.is_complex() or there.is_complex() else torch.float64
    return here.to(wide).masked_fill(hidden, 0), there.to(wide).masked_fill(hidden, 0)


def _hidden(value: torch.Tensor) -> torch.Tensor:
    return value.abs().nan_to_num(nan=math.inf) >= MASKED


def _masks(here: torch.Tensor, ours: Sequence[Made]) -> Iterator[str]:
    """Another mask on the same scores, compared with the result of model that differs in the fewest elements."""
    found = []
    for each in ours:
        assert each.tensor is not None
        mine, other = _hidden(here), _hidden(each.tensor)
        apart_ = int((mine != other).sum())
        if apart_ and bool(other.any()) and _equal(*_seen(here, each.tensor)):
            found.append((apart_, mine, other, _op(each)))
    for _, mine, other, op in sorted(found, key=lambda one: one[0])[:1]:
        more, fewer = int((mine & ~other).sum()), int((other & ~mine).sum())
        said = f"its mask is not that of model's {op}: {counted(more, 'more element')} hidden, and {fewer} fewer"
        shifts = [(dim, by) for dim in range(here.dim() - 1, -1, -1) for by in SHIFTS if here.shape[dim] > abs(by)]
        fits = ((dim, by) for dim, by in shifts if torch.equal(_from(mine, dim, by), _from(other, dim, -by)))
        yield next((f"{said}; its element i is element i{-by:+d} of that one, along dimension {dim}" for dim, by in fits), said)


def _from(value: torch.Tensor, dim: int, by: int) -> torch.Tensor:
    return value.narrow(dim, max(0, by), value.shape[dim] - abs(by))


def _factor(here: torch.Tensor, there: torch.Tensor) -> float | None:
    """The factor by which `here` is `there`, or None."""
    square = float((there * there.conj()).real.sum())
    factor = float((here * there.conj()).real.sum()) / square if square > 0 else 0.0
    if not factor or (here.numel() < 2 and all(abs(each - round(each)) > 1e-6 * abs(each) for each in (factor, 1 / factor))):
        return None  # any two numbers differ by some factor, so a single element only counts with an integer factor
    return factor if _equal(here, there * factor) else None


def _equal(here: torch.Tensor, there: torch.Tensor) -> bool:
    return relative(here, there) <= PARTED


def _op(made: Made) -> str:
    return made.op.removeprefix("aten.").lstrip("_").removeprefix("safe_")


def explanation(comparison: Comparison, place: Place) -> str:
    """`explained`, or "" if the search fails. An explanation is not part of the verdict."""
    with contextlib.suppress(*REFUSALS):
        return explained(comparison, place)
    return ""
