"""Calls a module of `other` with values of model's call where the two signatures do not agree, so that arguments have no order in common.

A call that returns what model's does, once it has what model's call has, has right code, whatever its arguments are called. Most of its inputs have
model's numbers as they are. One that has not is exchanged for each tensor of model's call that could stand for it: of another shape, as a mask that
is added for one of truth values, or, if `other` makes more calls, the part of it that belongs to the rows of this call. Where `model` gives a call
all keys, say, and the call chooses, a port may choose before the call: then several are exchanged at once, for as many of model's in their order.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from precheck.observe.containers import mapped, tensors
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.couples import Couples
from precheck.pairs.floors import agree, range_of
from precheck.pairs.same_code import peers
from precheck.pairs.transplants import Call, Items, given_to, run_with
from precheck.torch_support.dense_parts import continuous

MOST = 16
"""Values that are tried for one call. Each takes a run of `other`."""
PEERS = 4
"""Modules of one class whose calls are looked at. Each takes a run of `other`."""


Exchange = tuple[str, torch.Tensor | None, torch.Tensor | None]
"""An argument, its value now and another one. None: not given."""


class Span(NamedTuple):
    """The rows of model's call that this call has: `size` of `length` along one axis, from `begin` on."""

    length: int = 0
    begin: int = 0
    size: int = 0


class Wrong(NamedTuple):
    """An argument that a call with right code is given wrongly (None: not at all). `turned`: whether the right one holds the same numbers."""

    name: str
    value: torch.Tensor | None
    turned: bool


def wrongly_given(
    comparison: Comparison, module: str, number: int, coupled: Couples, right: Collection[str], dtype: torch.dtype
) -> Wrong | None:  # fmt: skip
    """The first tensor among the arguments of a call that is wrong: with another tensor of model's call in its place, or without it, the call returns
    what model's does. Or an argument that it is not given, and with a tensor of model's call it does. None if no exchange does that, so that the code
    of the module may be wrong. An argument is left out only if a module of the class that is `right` is called without it too: else the code might
    have to do without it."""
    wanted = coupled.matching.modules.get(module)
    there = _number(coupled, module, wanted, number)
    if not module or wanted is None or there is None:
        return None
    results = [each.tensor for each in coupled.known.values() if (each.kind, each.module, each.call) == ("out", wanted, there)]
    with contextlib.suppress(*REFUSALS):
        given = _tensors(given_to(comparison.model, Call(wanted, there), (), dtype)[0])
        items = given_to(comparison.other, Call(module, number), (), dtype)[0]
        own, empty = _tensors(items), [name for name, value in items if value is None]
        span = _span(own, given)
        if span is None or not results:
            return None
        absent = functools.cache(lambda: _absent(comparison, module, right, dtype))
        alone = itertools.chain(_choices(own, absent, given, span), _filled(own, empty, given, span), _causal(own))
        for wrong in itertools.chain(itertools.islice(_several(own, given), MOST), ([each] for each in itertools.islice(alone, MOST))):
            made = _run(comparison, Call(module, number), {name: choice for name, _, choice in wrong}, dtype)
            if made and all(any(agree(each, one) for whole in results for one in _parts(whole, span)) for each in made[: len(results)]):
                name, value, choice = wrong[0]  # a port may hand on what it has seen besides
                return Wrong(name, value, value is not None and choice is not None and _turned(value, choice))
    return None


def _number(coupled: Couples, module: str, wanted: str | None, number: int) -> int | None:
    """Which call of model's has the rows of this call: that of the same number, or the only one."""
    counts = [coupled.counts[side]["out", name or ""] for side, name in ((0, wanted), (1, module))]
    same = [len(coupled.calls[side].get(("out", name or "", 0), [])) for side, name in ((0, wanted), (1, module))]
    return number if same[0] == same[1] else 1 if same[0] == 1 and all(counts) else None


def _absent(comparison: Comparison, module: str, right: Collection[str], dtype: torch.dtype) -> set[str]:
    """The names of arguments without which some of the first modules of the class are called that are right."""
    known = peers(comparison, module, right)[:PEERS]
    return {name for each in known for name, value in given_to(comparison.other, Call(each, 1), (), dtype)[0] if value is None}


def _tensors(items: Items) -> list[tuple[str, torch.Tensor]]:
    return [(name, each) for name, each in items if isinstance(each, torch.Tensor) and each.layout is torch.strided and each.numel()]


def _span(own: Sequence[tuple[str, torch.Tensor]], given: Sequence[tuple[str, torch.Tensor]]) -> Span | None:
    """Which rows of model's call this one has, by the tensors of floats that are right. None if no tensor is, or if two do not agree."""
    found = set[Span]()
    for _, here in own:
        spans = (_rows(here, there) for _, there in given if continuous(here) and continuous(there))
        found.update(itertools.islice((each for each in spans if each is not None), 1))
    parts = found - {Span()}
    return None if not found or len(parts) > 1 else next(iter(parts), Span())


def _rows(here: torch.Tensor, there: torch.Tensor) -> Span | None:
    found = range_of(there, here)
    return None if found is None else Span() if here.shape == there.shape else Span(there.shape[found[0]], found[1], here.shape[found[0]])


def _parts(whole: torch.Tensor, span: Span) -> Iterator[torch.Tensor]:
    """A tensor of model's call, as it is and its rows of this call."""
    yield whole
    for axis in range(whole.dim()):
        if span.length and whole.shape[axis] == span.length:
            yield whole.narrow(axis, span.begin, span.size)


def _choices(
    own: Sequence[tuple[str, torch.Tensor]], spare: Callable[[], set[str]], given: Sequence[tuple[str, torch.Tensor]], span: Span
) -> Iterator[Exchange]:  # fmt: skip
    """Arguments, each with what may stand for it: a name, the value now, and another one. First those that model's call has not, with one of its
    tensors. Then any, with the sum of two: a mask may lie in a bias of distances, which model's call is given apart. Nothing (None) stands for an
    argument only where model's call has no further tensor. Tensors in containers stay, since code may write to these."""
    offered = [part for _, each in given for part in _parts(each, span)]
    left = _without(offered, [each for _, each in own])
    sums: list[Iterator[Exchange]] = []
    for name, value in own:
        if "[" in name:
            continue
        known = any(_same(value, each) for each in offered)
        found = list(_complex(left, value)) if value.is_complex() else []
        for each in [] if known or value.is_complex() else left:
            found += [one for one in _stands_for(each, value) if not _same(one, value) and not any(_same(one, other) for other in found)]
        yield from ((name, value, each) for each in found)
        if continuous(value):
            sums.append(_fitting(name, value, _sums([value] if known else left, left)))
        if not found and not known and name in spare():
            yield name, value, None
    yield from itertools.chain.from_iterable(sums)


def _several(own: Sequence[tuple[str, torch.Tensor]], given: Sequence[tuple[str, torch.Tensor]]) -> Iterator[Sequence[Exchange]]:
    """Where model's call is given another number of tensors of floats: some of these, in order, for all that are not at the same place there."""
    here, there = ([each for each in some if continuous(each[1])] for some in (own, given))
    fixed = [one for one, each in zip(here, there, strict=False) if agree(one[1], each[1])]
    free = [each for each in here if each not in fixed]
    left = _without([each for _, each in there], [each for _, each in fixed])
    for some in itertools.combinations(left, len(free) if fixed and free and len(here) != len(there) else len(left) + 1):
        pairs = [(name, value, each.to(value.dtype)) for (name, value), each in zip(free, some, strict=True) if value.shape == each.shape]
        exchanged = [each for each in pairs if not agree(*each[1:])]
        if exchanged and len(pairs) == len(free):
            yield exchanged


def _fitting(name: str, value: torch.Tensor, sums: Iterator[torch.Tensor]) -> Iterator[Exchange]:
    """Those of the sums that an argument may be."""
    for each in sums:
        if each.dim() == value.dim() and each.shape[-2:] == value.shape[-2:] and not torch.equal(each, value):
            yield name, value, each.to(value.dtype)


def _without(offered: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What model's call has, and this one has not."""
    return [each for each in offered if not any(_same(one, each) for one in own)]


def _sums(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Sums of a tensor of floats and another one, or a mask of truth values in either meaning. What masks hide counts as -1e30."""
    for one, two in itertools.product(some, others):
        if one is two or not any(map(continuous, (one, two))):
            continue
        number, mask = (one, two) if continuous(one) else (two, one)
        forms = (mask, ~mask) if mask.dtype is torch.bool else (mask,) if continuous(mask) else ()
        for form in forms:
            with contextlib.suppress(RuntimeError):  # sizes that do not fit
                yield number + (form if continuous(form) else torch.zeros_like(form, dtype=number.dtype).masked_fill(~form, -1e30))


def _causal(own: Sequence[tuple[str, torch.Tensor]]) -> Iterator[Exchange]:
    """Masks, each with the one of later keys, which model's call need not be given: its own code may hide them. Truth values may mean the
    opposite."""
    for name, value in own:
        if value.dim() > 1 and "[" not in name and (value.dtype is torch.bool or (continuous(value) and bool((value < -1e4).any()))):
            seen = torch.ones(value.shape, dtype=torch.bool).tril(value.shape[-1] - value.shape[-2])
            forms = (seen, ~seen) if value.dtype is torch.bool else (torch.zeros_like(value).masked_fill(~seen, -1e30),)
            yield from ((name, value, each) for each in forms)


def _filled(
    own: Sequence[tuple[str, torch.Tensor]], empty: Sequence[str], given: Sequence[tuple[str, torch.Tensor]], span: Span
) -> Iterator[Exchange]:  # fmt: skip
    """Arguments that are not given, each with a tensor that model's call has and this one has not, or the sum of two. Masks of truth values may mean
    the opposite."""
    left = _without([part for _, one in given for part in _parts(one, span)], [one for _, one in own])
    for each in left:
        forms = (each, ~each) if each.dtype is torch.bool else (each, each <= -1, each > -1) if continuous(each) else ()
        yield from ((name, None, form) for name in empty for form in forms)
    yield from ((name, None, each) for name in empty for each in _sums(left, left))


def _stands_for(there: torch.Tensor, here: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor of model's call in the forms that this call may take. Truth values may mean the opposite."""
    for each in _sized(there, here):
        if continuous(here) and (continuous(each) or each.dtype is torch.bool):
            yield each.to(here.dtype) if continuous(each) else torch.zeros_like(each, dtype=here.dtype).masked_fill(~each, -1e30)
        elif here.dtype is torch.bool and (continuous(each) or each.dtype is torch.bool):
            seen = each if each.dtype is torch.bool else each > -1
            yield from (seen, ~seen)
        elif not continuous(here) and not continuous(each) and torch.bool not in (here.dtype, each.dtype):
            yield each.to(here.dtype)


def _complex(left: Sequence[torch.Tensor], here: torch.Tensor) -> Iterator[torch.Tensor]:
    """Two tensors of model's call, or the halves of one, as one of complex numbers: cosines and sines, say."""
    real = here.real
    numbers = [each for each in left if continuous(each) and not each.is_complex()]
    halves = (itertools.permutations(each.chunk(2, -1)) for each in numbers if each.shape[-1:] > (1,))
    for one, two in itertools.chain(itertools.permutations(numbers, 2), *halves):
        for cosine, sine in zip(_sized(one, real), _sized(two, real), strict=False):
            yield torch.complex(cosine.contiguous(), sine.contiguous()).to(here.dtype)


def _sized(there: torch.Tensor, here: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor with as many axes as another one, and sizes that fit: in its shape; without leading axes along which nothing changes, as of a mask
    that is the same for all rows of a batch; the last or the first part of a table that is longer than the call needs."""
    if there.numel() == here.numel():
        yield there.reshape(here.shape)
        return
    while there.dim() > here.dim() and torch.equal(there, there[:1].expand_as(there)):
        there = there[0]
    there = there[(None,) * (here.dim() - there.dim())]
    if there.dim() != here.dim():
        return
    longer = [axis for axis in range(here.dim()) if there.shape[axis] > here.shape[axis] > 1]
    parts = [there]
    if len(longer) == 1:
        size = here.shape[longer[0]]
        parts = [there.narrow(longer[0], begin, size) for begin in (there.shape[longer[0]] - size, 0)]
    yield from (each for each in parts if all(a == b or 1 in (a, b) for a, b in zip(each.shape, here.shape, strict=True)))


def _same(here: torch.Tensor, there: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, in any shape."""
    if continuous(here) != continuous(there) or here.numel() != there.numel() or (here.dtype is torch.bool) != (there.dtype is torch.bool):
        return False
    one, two = here.flatten(), there.flatten()
    return agree(one, two) if continuous(here) else torch.equal(one, two.to(one.dtype))


def _turned(here: torch.Tensor, there: torch.Tensor) -> bool:
    if here.numel() != there.numel() or here.is_complex() != there.is_complex():
        return False
    return _same(*((torch.view_as_real(each) if each.is_complex() else each).flatten().sort().values for each in (here, there)))


def _run(comparison: Comparison, call: Call, chosen: Mapping[str, torch.Tensor | None], dtype: torch.dtype) -> list[torch.Tensor]:
    def enter(module: torch.nn.Module, arguments: inspect.BoundArguments) -> bool:
        for name, value in arguments.arguments.items():
            paths = iter([path for path, _ in tensors(value, name)])
            arguments.arguments[name] = chosen[name] if name in chosen else mapped(value, lambda each, paths=paths: chosen.get(next(paths), each))  # type: ignore[misc,arg-type]
        return True

    return run_with(comparison.other, call, dtype, enter)
