"""Where two models part: the first module of `other` whose result differs from that of the same module of `model`, and the line in it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.observe.noise import ONE_ROUNDING
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.distances import apart, size
from precheck.pairs.intermediates import ALIKE, Intermediates, Made, alike, parting, signature
from precheck.pairs.passages import Passage, Passages
from precheck.pairs.sides import Side
from precheck.pairs.yardstick import ratio

PARTED = ONE_ROUNDING * 2.0**-20
"""Relative difference of two exact tensors from which they differ: the rounding that float32 is credited with (`analysis.noise.REASSOCIATED`)."""
FLOAT32 = 64.0
"""Times that, where the exact runs are float32's: sixteen layers of roundings of their own add up to a quarter of it."""
JUMP = 3.0
"""Times by which a module multiplies the error that it was given, from which it is named as what loses accuracy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where two part: a module of `other` and its counterpart in `model`; whether it is the module's own code, or what it calls; the line and op."""

    module: str
    counterpart: str | None
    source: str = ""
    op: str = ""
    backward: bool = False
    theirs: tuple[Made, ...] = ()  # what the module of `other` made
    ours: tuple[Made, ...] = ()  # what its counterpart made
    number: int | None = None  # of the op in `theirs`


def parted(comparison: Comparison) -> Place | None:
    """The place from which on the exact runs differ; None where no module shows it."""
    for dtype in dict.fromkeys((torch.float64, comparison.dtype)):
        with contextlib.suppress(*REFUSALS):
            return _parted(comparison, dtype)
    return None


def _parted(comparison: Comparison, dtype: torch.dtype) -> Place | None:
    ours, theirs = both(comparison, lambda side: side.once(dtype))
    modules = comparison.matching.modules
    pool = [each.tensor for each in ours]
    forward = [each for each in theirs if each.kind != "back"]
    differs = _differs(ours, theirs, modules, PARTED * (1.0 if dtype is torch.float64 else FLOAT32))
    first = next((each for each in forward if differs(each)), None)
    if first is not None:
        module = _blamed(first, forward, modules, pool)
        return _placed(comparison, dtype, module, backward=False)
    return _backward(comparison, ours, theirs, differs)


def both(comparison: Comparison, ran: Callable[[Side], object]) -> tuple[list[Passage], list[Passage]]:
    """What passes between the modules of both in one run each."""
    found = []
    for side in (comparison.model, comparison.other):
        follower = Passages(side.job.model)
        with follower.followed() as passages:
            ran(side)
        found.append(passages)
    if comparison.aligned is not None:
        for each in found[1]:
            each.tensor = comparison.aligned(each.tensor)
    return found[0], found[1]


def unequal(comparison: Comparison) -> Place | None:
    """The first module of `other` whose bits differ under the precision, though rounding explains it: what to pin for equal bits."""
    if comparison.model.compiled or comparison.other.compiled:
        return None
    ours, theirs = both(comparison, lambda side: side.once_low())
    differs = _differs(ours, theirs, comparison.matching.modules, 0.0)
    first = next((each for each in theirs if each.kind != "back" and differs(each)), None)
    if first is None:
        return None
    module = first.module if first.kind == "out" else first.maker
    follower = Intermediates(comparison.other.job.model, {module}, own=_has_children(comparison.other, module))
    with follower.followed():
        comparison.other.once_low()
    last = follower.made[-1] if follower.made else None
    return Place(module, comparison.matching.modules.get(module), last.line if last else "", last.op if last else "")


def _differs(ours: Sequence[Passage], theirs: Sequence[Passage], modules: Mapping[str, str], limit: float) -> Callable[[Passage], bool]:
    known = {each.key: each.tensor for each in ours}
    calls = _joined(ours), _joined(theirs)

    def differs(passage: Passage) -> bool:
        wanted = modules.get(passage.module)
        if wanted is None:
            return False
        here, there = passage.tensor, known.get((passage.kind, wanted, passage.call, passage.place))
        if there is None or there.shape != here.shape:  # another number of calls: one for each row of a batch
            whole, all_ = calls[0].get((passage.kind, wanted, passage.place)), calls[1].get((passage.kind, passage.module, passage.place))
            couple = _as_one(whole, all_)
            if couple is None:
                return False
            there, here = couple
        distance = apart(here, there)
        return bool(distance.excess) or ratio(distance.whole, size(there).whole) > limit

    return differs


def _joined(passages: Sequence[Passage]) -> dict[tuple[str, str, int], list[torch.Tensor]]:
    found: dict[tuple[str, str, int], list[torch.Tensor]] = {}
    for each in passages:
        found.setdefault((each.kind, each.module, each.place), []).append(each.tensor)
    return found


def _as_one(ours: list[torch.Tensor] | None, theirs: list[torch.Tensor] | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """All calls of a module as one tensor, joined along the dimension that makes them equally long."""
    if not ours or not theirs or ours[0].dim() != theirs[0].dim():
        return None
    for dim in range(ours[0].dim()):
        with contextlib.suppress(RuntimeError):
            here, there = (torch.cat(each, dim) for each in (theirs, ours))
            if here.shape == there.shape:
                return there, here
    return None


def _blamed(first: Passage, forward: Sequence[Passage], modules: Mapping[str, str], pool: Sequence[torch.Tensor]) -> str:
    """The module that made what differs: what a module was given differs by whoever gave it."""
    if first.kind == "out":
        inner = _unmatched(first, forward, modules, pool)
        return first.module if inner is None else inner
    return first.maker


def _unmatched(first: Passage, forward: Sequence[Passage], modules: Mapping[str, str], pool: Sequence[torch.Tensor]) -> str | None:
    """A module inside, without a counterpart, the first whose result is nowhere in `model`, where what it was given is."""
    prefix = f"{first.module}." if first.module else ""
    for each in forward:
        if each is first:
            return None
        if each.kind == "out" and each.module.startswith(prefix) and each.module != first.module and each.module not in modules:
            taken = [one for one in forward if one.kind == "in" and one.module == each.module and one.call == each.call]
            if all(_somewhere(one.tensor, pool) for one in taken) and not _somewhere(each.tensor, pool):
                return each.module
    return None


def _somewhere(tensor: torch.Tensor, pool: Sequence[torch.Tensor]) -> bool:
    """Whether its content is that of some tensor in `model`, or of several joined along the last dimension, in any layout."""
    mark = signature(tensor)
    if any(each.numel() == mark[0] and alike(mark, signature(each), 1e-5) for each in pool):
        return True
    place, length = 0, tensor.shape[-1] if tensor.dim() else 0
    while place < length:
        part = next((each for each in pool if _begins(tensor, place, each)), None)
        if part is None:
            return False
        place += part.shape[-1]
    return length > 0


def _begins(tensor: torch.Tensor, place: int, part: torch.Tensor) -> bool:
    if part.dim() != tensor.dim() or part.shape[:-1] != tensor.shape[:-1] or place + part.shape[-1] > tensor.shape[-1]:
        return False
    return ratio(apart(tensor.narrow(-1, place, part.shape[-1]), part).whole, size(part).whole) < PARTED


def _backward(comparison: Comparison, ours: Sequence[Passage], theirs: Sequence[Passage], differs: Callable[[Passage], bool]) -> Place | None:
    """The forward passes agree: whose gradient is the first that differs, or does not come, on the way back."""
    modules, back = comparison.matching.modules, {each.key: each for each in theirs if each.kind == "back"}
    taken = {each.key for each in theirs if each.kind == "out"}
    named = {wanted: name for name, wanted in modules.items()}
    order = [("back", named[each.module], each.call, each.place) for each in ours if each.kind == "back" and each.module in named]
    off = [key for key in order if ("out", *key[1:]) in taken and (key not in back or differs(back[key]))]
    agreeing = {key[1] for key in order if key in back} - {key[1] for key in off}
    owner = next((name for name in _parameters_off(comparison) if name in agreeing), None)
    if owner is not None or not off:
        return None if owner is None else Place(owner, modules.get(owner), backward=True)
    first = off[0][1]
    readers = [each for each in theirs if each.kind == "in" and each.given and each.maker == first]
    givers = [each.module for each in theirs if each.kind == "out" and each.maker == first]
    outermost = min((each for each in givers if f"{first}.".startswith(f"{each}.")), key=len, default=first)
    module = next((each.module for each in readers if each.module in agreeing), outermost.rpartition(".")[0])
    return Place(module, modules.get(module), backward=True)


def _parameters_off(comparison: Comparison) -> Iterator[str]:
    ours, theirs = (side.once_captured() for side in (comparison.model, comparison.other))
    for subject in comparison.subjects:
        if subject.kind == "parameter-gradient":
            a, b = subject.of_model(ours), subject.of_other(theirs)
            if a is None or b is None or a.shape != b.shape or ratio(apart(b, a).whole, size(a).whole) > PARTED:
                yield subject.module


def _placed(comparison: Comparison, dtype: torch.dtype, module: str, *, backward: bool) -> Place:
    counterpart = comparison.matching.modules.get(module)
    inside = {name for name, _ in comparison.other.job.model.named_modules() if name == module}
    theirs = Intermediates(comparison.other.job.model, inside, own=_has_children(comparison.other, module))
    ours = Intermediates(comparison.model.job.model, {counterpart or ""}, own=False)
    with contextlib.suppress(*REFUSALS):
        for side, follower in ((comparison.other, theirs), (comparison.model, ours)):
            with follower.followed(), sdpa_kernel(SDPBackend.MATH):  # fused attention shows its scores then
                side.once(dtype)
        known = [*ours.sources, *(each.signature for each in ours.made)]
        number = parting(theirs.made, known, ALIKE if dtype is torch.float64 else PARTED * FLOAT32)
        if number is not None:
            found = theirs.made[number]
            return Place(module, counterpart, found.line, found.op, backward, tuple(theirs.made), tuple(ours.made), number)
    last = theirs.made[-1] if theirs.made else None
    return Place(module, counterpart, last.line if last else "", "", backward, tuple(theirs.made), tuple(ours.made))


def _has_children(side: Side, module: str) -> bool:
    return any(True for _ in side.job.model.get_submodule(module).children())
