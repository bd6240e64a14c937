"""Tests whether a candidate is right where nothing is masked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from precheck.kernels import contents, masks, memory
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact
from precheck.torch_internals import schema

_IGNORED = ("ignore_index", "padding_idx")
"""Arguments of torch's ops that say which whole number is left out."""


_INDICES = ("index", "indices")
"""Arguments of torch's ops that say which elements are read or written."""


class _Marks(Exact):
    """float64, noting whole numbers that stand for what is left out: arguments of ops, and a number that others are compared with. And places of
    elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.named: set[int] = set()
        self.compared: set[int] = set()
        self.places: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        for argument, value in zip(schema(func).arguments, args, strict=False):
            if argument.name in _IGNORED and isinstance(value, int):
                self.named.add(value)
            if argument.name in _INDICES:
                self.places += [each.cpu() for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, torch.Tensor)]
        if func.overloadpacket.__name__ in ("eq", "ne") and type(args[1]) is int and not args[0].is_floating_point():
            self.compared.add(args[1])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def marks(self) -> set[int]:
        """Whole numbers that stand for what is left out. Of several numbers that others are compared with, each may choose, as that of an expert."""
        return self.named | (self.compared if len(self.compared) == 1 else set())


def masking(bench: Bench, judged: Judged) -> str:
    """Where the candidate is right, in words: where an input that is a mask masks nothing, or a bound of one is zero; else "".

    A mask that chooses between two functions does not count: what is wrong is one of these. Nor do whole numbers or flags that are the only input:
    there is nothing that they could hide.
    """
    made = bench.make(judged.trial)
    lengths = {length for value in made.values for length in value.shape}
    bounded, numbered = masks.asks(bench, judged, *masks.BOUNDS), masks.asks(bench, judged, "same")
    noted = _noted(bench, judged)
    for place, value in enumerate(made.values):
        if (len(made.values) == 1 and not value.is_floating_point()) or _chooses(bench, judged, made, place):
            continue
        ends = bounded and not any(each.numel() == value.numel() and bool((each.flatten() == value.flatten()).all()) for each in noted.places)
        numbers = (*(_full(value, lengths) if ends else ()), *(_one(value) if numbered else ()), *_unmarked(value, noted.marks()))
        name = f"inputs{bench.example.leaves[place].path}"
        for plain in (*_plain(value, lengths), *numbers):
            other = _with(made, place, plain)
            if (value.dtype is not torch.bool or _reads_as_much(bench, judged, made, other)) and bench.passes_on(judged.trial, other):
                return f"where nothing is masked in {name}"
        for ones in _ones(bench, judged, made, place):  # whose gradient nobody needs
            if bench.passes_on(judged.trial, _with(made, place, ones), judged.subject):
                return f"where nothing is masked in {name}"
        for zero in _zero(value) if bounded else ():
            other = _with(made, place, zero)
            if _reads_as_much(bench, judged, made, other) and bench.passes_on(judged.trial, other):
                return f"where {name} is 0"
    return ""


def _with(made: Made, place: int, value: torch.Tensor) -> Made:
    return Made([value if other == place else each for other, each in enumerate(made.values)], made.numbers)


def _zero(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """A whole number that may bound what is seen, as the place from which rows are counted: replaced by zero. Of several, each may name a row."""
    if value.dtype in (torch.int32, torch.int64) and not value.dim() and int(value) > 0:
        yield torch.zeros_like(value)


def _reads_as_much(bench: Bench, judged: Judged, made: Made, other: Made) -> bool:
    """Whether outputs of the reference depend on the same inputs, or more, with another mask or bound. One that hides all of an input says nothing
    about what is done with that input. Of flags that are all true and all false, one hides all, whichever the mask's convention is."""
    return _reads(bench, judged, made) <= _reads(bench, judged, other)


def _reads(bench: Bench, judged: Judged, made: Made) -> set[int]:
    """The inputs on which outputs of the reference depend."""
    right, found = bench.exact_of(judged.trial, made), set()
    for place, value in enumerate(made.values):
        if value.is_floating_point():
            moved = bench.exact_of(judged.trial, _with(made, place, value * 0.75 + 0.25))
            for name, each in right.values.items():
                other = moved.values.get(name)
                if name.startswith("output") and each is not None and other is not None and not memory.same(each, other):
                    found.add(place)
    return found


def _chooses(bench: Bench, judged: Judged, made: Made, place: int) -> bool:
    """Whether each element of a mask matters to the same element of each output alone. At a mask of a softmax, others of the row depend on it too.

    Half of the elements are turned, drawn at random: of the other half no output may change. One element alone may happen to matter to itself only,
    as the first of steps that are computed from the last one back. It is turned alone where the reference refuses the others.
    """
    mask = made.values[place]
    outputs = {name: right for name, right in judged.reference.exact.values.items() if name.startswith("output")} if judged.reference else {}
    if mask.dtype is not torch.bool or not mask.numel() or any(right is None or right.shape != mask.shape for right in outputs.values()):
        return False
    index = judged.fault.distance.first if judged.fault is not None and judged.fault.distance is not None else ()
    alone = torch.zeros_like(mask)
    alone[index if len(index) == mask.dim() else (0,) * mask.dim()] = True
    half = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    for turned in (half | alone, alone):
        found = bench.exact_of(judged.trial, _with(made, place, mask ^ turned))
        if found.error is None:
            return all(right is not None and (now := found.values.get(name)) is not None
                       and torch.equal(right[~turned].nan_to_num(), now[~turned].nan_to_num()) for name, right in outputs.items())  # fmt: skip
    return False


def _plain(value: torch.Tensor, lengths: Collection[int]) -> Iterator[torch.Tensor]:
    if contents.offsets(value, lengths) and bool((value[1:-1] != 0).any()):  # offsets separate sequences: make it one sequence
        yield torch.cat([torch.zeros_like(value[:-1]), value[-1:]])
    if value.dtype is torch.bool:
        yield from (torch.ones_like(value), torch.zeros_like(value))
    elif value.is_floating_point() and bool(value.isinf().any()):
        yield value.nan_to_num(neginf=0.0, posinf=0.0)
    elif not value.is_floating_point() and not value.is_complex() and len(value[value < 0].unique()) == 1:  # several count from the end
        yield value.clamp(min=0)
        others = value[value >= 0]
        if others.unique().numel() == others.numel():  # none comes twice, so that those that are left out get numbers of their own
            free = [each for each in range(value.numel()) if each not in set(others.tolist())]
            yield value.masked_scatter(value < 0, torch.tensor(free, dtype=value.dtype))


def _ones(bench: Bench, judged: Judged, made: Made, place: int) -> Iterator[torch.Tensor]:
    """Ones in the place of zeros and ones that multiply other numbers: no output of the reference depends on numbers of which they are zero."""
    mask = made.values[place]
    if not mask.is_floating_point() or mask.unique().tolist() != [0.0, 1.0]:
        return
    values = [_beside(each, mask) if other != place else each for other, each in enumerate(made.values)]
    right, moved = (bench.exact_of(judged.trial, each) for each in (made, Made(values, made.numbers)))
    outputs = [(each, moved.values.get(name)) for name, each in right.values.items() if name.startswith("output")]
    if any(not torch.equal(a, b) for a, b in zip(values, made.values, strict=True)) and all(
        a is not None and b is not None and memory.same(a, b) for a, b in outputs
    ):
        yield torch.ones_like(mask)


def _beside(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Other numbers where a mask of the same first dimensions is zero."""
    if not value.is_floating_point() or value.shape[: mask.dim()] != mask.shape:
        return value
    return torch.where((mask == 0).view(*mask.shape, *[1] * (value.dim() - mask.dim())), value * 0.75 + 0.25, value)


def _full(value: torch.Tensor, lengths: Collection[int]) -> Iterator[torch.Tensor]:
    """Integers that may be the used lengths of rows: replaced by full lengths. In a cache these are a number of pages times their size."""
    if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool or value.dim() != 1 or not len(value) or bool((value < 0).any()):
        return
    most, full = int(value.max()), {one * other for one in lengths for other in (1, *lengths)}
    yield from (torch.full_like(value, length) for length in sorted(full) if length >= max(most, 1) and bool((value != length).any()))


def _one(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """Integers that may number the sequence of each row: replaced by those of one sequence."""
    if not value.is_floating_point() and not value.is_complex() and value.dim() == 1 and len(value) > 1 and bool((value.diff() >= 0).all()):
        yield value[:1].expand(value.shape).clone()


def _noted(bench: Bench, judged: Judged) -> _Marks:
    mode = _Marks()
    bench.under(mode, judged.trial)
    return mode


def _unmarked(value: torch.Tensor, marks: Collection[int]) -> Iterator[torch.Tensor]:
    """Integers without those that stand for what is left out."""
    if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
        return
    for mark in marks:
        others = value[value != mark]
        if 0 < others.numel() < value.numel():
            yield torch.where(value == mark, others.max(), value)
