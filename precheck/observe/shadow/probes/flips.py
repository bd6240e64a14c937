"""Counts the decisions of a watched run that its shadow would have made otherwise, and makes the shadow follow the run's."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from precheck import ops
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.statistics import WHOLES, norm, ratio, sampled, share
from precheck.observe.shadow.op_notes import Flips, LetThrough, Recut, Renumbered, Wrapped
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.probes import bounds, draws, masks
from precheck.observe.shadow.replaying import eigenvectors
from precheck.observe.shadow.replaying.replay import OpCall, chosen
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

NARROW = 32
"""Bits of the widest integer type that is checked for overflow. No real quantity overflows 64 bits."""
EQUAL = 0.5
"""The share of a sorted row's neighbours that are equal from which the row's order comes from places and not from numbers."""
CHANCE = 10.0
"""Bits of evidence that numbers are integers because they count something. By chance they would be so in one of a thousand casts."""
BESIDE = 2.0**-5
"""How far beside a number its steps are counted: far more than roundings of any format."""
NEARLY = 8.0
"""Spacings of the reference that a whole number may be off after divisions and multiplications."""


def after_discrete_op(call: Call, outputs: list[torch.Tensor]) -> None:
    """After an op whose results are not floats: counts its flips, and checks its casts to integers."""
    if not outputs:
        return
    if call.plan.base in ops.BOUNDING and len(call.floats) == 1 and call.inputs[0].roundoff and call.operation.phase != "backward":
        bound = next((abs(float(each)) for each in call.args[1:2] if isinstance(each, (int, float))), 0.0)
        if bound:
            pair = [sampled(call.floats[0], WHOLES), sampled(call.shadows[id(call.floats[0])], WHOLES)]
            note_let_through(call.operation, bound, *fetched(pair))
    if call.plan.base in ops.BOUNDING:
        bounds.after_comparison(call, outputs[0])
    single = outputs[0].numel() == 1  # Python may branch on it
    asked = call.plan.base in ops.ASKING and outputs[0].numel() <= WHOLES and any(value.zeros or (single and value.drift) for value in call.inputs)
    if call.plan.base in ops.COMPARED and not asked:
        bounds.count_ties(call)
    if call.plan.base in ops.PLACES or asked:
        count_flips(call, outputs)
        draws.note_skew(call)
        _after_binning(call, outputs[0])
    elif call.plan.base == "multinomial":
        draws.count_impossible(call, outputs[0])
    elif call.plan.base in ops.CASTS and outputs[0].dtype is not torch.bool and len(call.floats) == 1:
        unit = call.inputs[0].roundoff
        if unit and call.operation.phase != "backward":
            given, limits = call.floats[0], torch.iinfo(outputs[0].dtype)
            call.operation.bits = limits.bits
            if limits.bits >= NARROW:
                call.mode.places.cast(call.operation, outputs[0])
            held, exact = fetched([sampled(given, WHOLES), sampled(call.shadows[id(given)], WHOLES)])
            note_renumbered(call.operation, unit, limits, held, exact)
            if limits.bits >= NARROW:
                note_recut(call.operation, torch.trunc, held, exact, held.trunc())
            if limits.bits <= NARROW:
                note_wrapped(call.operation, limits, *fetched([*map(sampled, (given, call.shadows[id(given)], outputs[0]))]))


def _after_binning(call: Call, made: torch.Tensor) -> None:
    """If numbers were sorted into bins: compares the bins with those of the reference, and follows them, as after a cast to integers."""
    if call.plan.base not in ops.BINNED or len(call.floats) < 2 or call.op.kwargs.get("sorter") is not None or call.operation.phase == "backward":
        return
    numbers, bounds = call.floats[:2] if call.plan.base == "bucketize" else call.floats[1::-1]
    wide, right = call.shadows[id(bounds)], bool(call.op.kwargs.get("right")) or call.op.kwargs.get("side") == "right"
    if bounds.dim() != 1:
        return
    call.mode.places.cast(call.operation, made)
    four = [sampled(numbers, WHOLES), sampled(call.shadows[id(numbers)], WHOLES), sampled(made, WHOLES), (bounds == wide).all() | _even(wide)]

    def binned(held: torch.Tensor) -> torch.Tensor:  # which may have been fetched from a device
        return torch.searchsorted(wide.to(held.device), held, right=right).to(held.dtype)

    _note_rebinned(call.operation, binned, *fetched(four))


def _note_rebinned(operation: Operation, step: Callable[[torch.Tensor], torch.Tensor], *four: torch.Tensor) -> None:
    """Records numbers that fall into other bins. Places in equal steps have a bin each: no rounding explains another, if the bounds are no data."""
    note_recut(operation, step, *four[:3])
    if operation.recut and bool(four[3]) and four[1].dim() == 1 and bool(_even(four[1])):
        operation.recut = dataclasses.replace(operation.recut, size=0.0)


def _even(numbers: torch.Tensor) -> torch.Tensor:
    """Whether numbers follow each other in equal steps."""
    return ((numbers.diff() - numbers.diff().mean()).abs() <= NEARLY * torch.finfo(numbers.dtype).eps * numbers.abs().max()).all()


def note_renumbered(operation: Operation, unit: float, limits: torch.iinfo, run: torch.Tensor, shadow: torch.Tensor) -> None:
    """Records whole numbers that a cast to integers turns into others, since their low format could not hold them.

    All numbers beyond 1/u must be whole in the reference. A real number of size 2^e in a reference of t bits is whole by chance in one of 2^(t - e).
    So many whole elements are evidence that they count something: positions, ids, counts. Other numbers (a quotient, a draw times n) are truncated
    differently in healthy programs too. `note_recut` checks `round` and `floor`.
    """
    low, wide = run.to(shadow.dtype), shadow
    large = (wide.abs() > 1 / unit) & wide.isfinite() & low.isfinite()
    moved = large & (low.trunc() != wide.round())
    if not bool(moved.any()):
        return
    spacing, whole = torch.finfo(wide.dtype).eps * wide[large].abs(), wide[large].round()
    strays = (wide[large] - whole).abs()
    if bool((strays > NEARLY * spacing).any()) or float(whole.abs().max()) > limits.max:
        return
    sizes, places = whole.abs().unique(return_inverse=True)
    exact = torch.ones_like(sizes, dtype=torch.bool).index_put_((places[strays > 0],), sizes.new_zeros((), dtype=torch.bool))
    evidence = -torch.log2(torch.finfo(wide.dtype).eps * sizes) - torch.where(exact, 0.0, math.log2(2 * NEARLY))
    if float(evidence.clamp_min(0).sum()) >= CHANCE:
        first = int(moved.reshape(-1).nonzero()[0])
        different = int(wide[moved].round().unique().numel())
        operation.renumbered = Renumbered(different, float(sizes.max()), float(wide[first]), float(low[first]), 1 / unit)


def note_recut_in_call(call: Call, output: torch.Tensor, seen: dict[int, torch.Tensor]) -> None:
    """The same as `note_recut`, beside what float32 gives on the inputs that the call of the user's function had (`function_replay`)."""
    if len(call.floats) != 1 or id(call.floats[0]) not in seen or not call.inputs[0].roundoff:
        return
    run, wide, base = sampled(call.floats[0], WHOLES), sampled(seen[id(call.floats[0])], WHOLES), call.plan.base
    if base in ops.WHOLE:
        note_recut(call.operation, getattr(torch, base), run, wide, sampled(output, WHOLES), into="recut_in_call")
    elif base in ops.CASTS and output.dtype is not torch.bool and torch.iinfo(output.dtype).bits >= NARROW:
        note_recut(call.operation, torch.trunc, run, wide, run.trunc(), into="recut_in_call")


def note_recut(
    operation: Operation, step: Callable[[torch.Tensor], torch.Tensor], run: torch.Tensor, shadow: torch.Tensor, made: torch.Tensor,
    *, into: Literal["recut", "recut_in_call"] = "recut",
) -> None:  # fmt: skip
    """Records results of `round`, `floor` or a cast that differ from the reference's by more than the reference's own rounding explains."""
    slack, became = NEARLY * torch.finfo(shadow.dtype).eps * shadow.abs(), made.to(shadow.dtype)
    moved = run.isfinite() & shadow.isfinite() & ((became < step(shadow - slack)) | (became > step(shadow + slack)))
    if bool(moved.any()):
        places = moved.reshape(-1).nonzero().flatten().tolist()
        example = float(step(shadow)[places[0]]), float(became[places[0]])
        setattr(operation, into, Recut(len(places), moved.numel(), *example, _density(step, shadow), frozenset(places)))


def note_let_through(operation: Operation, bound: float, run: torch.Tensor, shadow: torch.Tensor) -> None:
    """Records numbers that lie above a bound in the run and below it in the reference (`LetThrough`)."""
    here, there = run.to(shadow.dtype).abs().reshape(-1), shadow.abs().reshape(-1)
    apart = torch.where((here > bound) & (there < bound), torch.minimum(here / bound, bound / there), 0.0)
    if bool(apart.any()):
        most = int(apart.argmax())
        count, was, became = int(torch.count_nonzero(apart)), float(there[most]), float(here[most])
        operation.let_through = LetThrough(count, apart.numel(), bound, was, became, float(apart[most]))


def _density(step: Callable[[torch.Tensor], torch.Tensor], numbers: torch.Tensor) -> float:
    """How many steps the mean number takes beside its relative change. It is the mean size of numbers that become whole ones."""
    finite = numbers[numbers.isfinite()]
    steps = step(finite * (1 + BESIDE)) - step(finite * (1 - BESIDE))
    return float(steps.abs().mean()) / (2 * BESIDE) if finite.numel() else 0.0


def note_wrapped(operation: Operation, limits: torch.iinfo, run: torch.Tensor, shadow: torch.Tensor, stored: torch.Tensor) -> None:
    """Records numbers that leave the range of an integer type in the run but not in the reference: as uint8, 255.9 is white and 256 is black."""
    low, wide = run.to(torch.float64).trunc(), shadow.to(torch.float64).trunc()
    inside = (wide >= limits.min) & (wide <= limits.max)
    beyond = inside & low.isfinite() & ((low < limits.min) | (low > limits.max))
    if bool(beyond.any()):
        first = int(beyond.reshape(-1).nonzero()[0])
        became = float(run.reshape(-1)[first])
        end = limits.max if became > 0 else limits.min
        was, held = float(shadow.reshape(-1)[first]), int(stored.reshape(-1)[first])
        operation.wrapped = Wrapped(int(beyond.sum()), was, became, held, limits.dtype, end)


def follow_run(call: Call, outputs: list[torch.Tensor], shadows: list[torch.Tensor], inputs: dict[int, torch.Tensor]) -> None:
    """Makes the shadows of chosen values follow the run's indices, and those of masked rows the run's rows. `shadows` were computed from `inputs`."""
    if call.plan.base in ops.SOFTMAXES:
        masks.follow_run(call, outputs, shadows)
    if len(outputs) < 2:
        return
    if call.plan.packet in ops.REPORTING:
        changed = ((outputs[-1] != 0) & (shadows[-1] == 0)).sum()
        call.operation.flips = Flips(int(changed), outputs[-1].numel())
    eigenvectors.as_in_run(call, outputs, shadows)
    if call.plan.base == "frexp":  # the exponent is a decision, at powers of two: the mantissa is what it leaves
        shadows[0] = torch.ldexp(inputs[id(call.floats[0])], -outputs[1])
    if not continuous(outputs[0]) or outputs[1].dtype != torch.int64 or call.plan.base in ops.PAYLOADS:
        return
    if inputs is call.shadows:
        call.mode.observation.followed += 1
        call.mode.places.chosen(call.operation, outputs[1])
        _note_choice(call, outputs[1], shadows[1])
    if torch.equal(outputs[1], shadows[1]):
        return
    picked = chosen(call.op, inputs[id(call.floats[0])], outputs[0], outputs[1])
    shadows[0] = shadows[0] if picked is None else picked


def where_finite(call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The run's steps where they are finite, else the reference's: Inf and NaN are no decision. None if all are finite."""
    if len(outputs) != 1 or call.written or bool(outputs[0].isfinite().all()):
        return None
    steps = call.mode.replay.call(call.reference_op(), call.shadow_of)[0]
    return [torch.where(outputs[0].isfinite(), outputs[0].to(steps.dtype), steps)]


def on_its_side(base: str, run: torch.Tensor, shadow: torch.Tensor) -> torch.Tensor:
    """The input of a derivative that depends on the side of a threshold: the shadow where it lies on the run's side, else the run's number."""
    mine = run.to(shadow.dtype)
    thresholds = ops.THRESHOLDS.get(base, ())
    if not thresholds:  # the derivative is constant on each side
        return mine
    apart = functools.reduce(torch.logical_or, ((mine > each) != (shadow > each) for each in thresholds))
    return torch.where(apart, mine, shadow)


def count_flips(call: Call, outputs: list[torch.Tensor]) -> None:
    """After a step function, an argmax or the like: counts the elements where the reference's result differs."""
    if not call.plan.mutable:
        if call.plan.base in ops.WHOLE and call.inputs and call.inputs[0].roundoff and call.operation.phase != "backward":
            three = [sampled(call.floats[0], WHOLES), sampled(call.shadows[id(call.floats[0])], WHOLES), sampled(outputs[0], WHOLES)]
            note_recut(call.operation, getattr(torch, call.plan.base), *fetched(three))
        own = call.mode.replay.call(call.op, call.shadow_of)
        if call.plan.base in ops.PLACES:
            _note_choice(call, outputs[0], own[0])
        else:
            call.operation.flips = of_values(outputs[0], own[0])


def _note_choice(call: Call, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    scores = call.floats[0]
    call.operation.flips = of_choice(call.op, scores, call.shadows[id(scores)], mine, theirs)


def of_values(mine: torch.Tensor, theirs: torch.Tensor) -> Flips:
    return Flips(int((mine != theirs).sum()), mine.numel())


def of_choice(op: OpCall, scores: torch.Tensor, shadow: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> Flips:
    """Counts flips between the run's indices `mine` and the reference's `theirs`. The op chose among `scores`, whose shadow is `shadow`."""
    if mine.shape != theirs.shape or scores.dim() == 0 or "max_pool" in op.plan.packet:
        return of_values(mine, theirs) if mine.shape == theirs.shape else Flips(0, mine.numel())
    given = op.argument("dim")
    dim = None if given is None and op.base in ops.PLACES else int(given if given is not None else -1)
    if op.base in ops.ORDERED:
        return _of_order(scores, shadow, mine, theirs, dim)
    kept = mine.dim() == scores.dim()
    rows = (mine.sort(dim).values != theirs.sort(dim).values).any(dim) if dim is not None and kept else mine != theirs
    changed = int(rows.sum())
    if not changed:
        return Flips(0, rows.numel())
    ties, flushed = _tied(op, scores, shadow, mine, rows, dim)
    swapped = _swapped(mine, theirs, rows, dim) if ties and dim is not None else 1.0
    return Flips(changed, rows.numel(), ties, _blur(scores, shadow, dim), swapped, flushed)


def _of_order(scores: torch.Tensor, shadow: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor, dim: int | None) -> Flips:
    """Flips of a full sort: rows with another order. `ties`: those of them in which half of the elements are equal to a neighbour in the run, and not
    in the shadow. Rounding swaps some neighbours of every long row, so `blur` has to show whether the order means anything."""
    dim = -1 if dim is None else dim
    elsewhere = mine != theirs
    rows = elsewhere.any(dim)
    changed, blur = int(rows.sum()), _blur(scores, shadow, dim)
    if not changed or mine.shape[dim] < 2:
        return Flips(changed, rows.numel(), 0, blur)
    equal = [(each.detach().sort(dim).values.diff(dim=dim) == 0).to(torch.float32).mean(dim) for each in (scores, shadow)]
    ties = rows & (equal[0] >= EQUAL) & (equal[1] < EQUAL / 2)
    return Flips(changed, rows.numel(), int(ties.sum()), blur, share(elsewhere.movedim(dim, -1)[rows]))


def _swapped(mine: torch.Tensor, theirs: torch.Tensor, rows: torch.Tensor, dim: int) -> float:
    own, other = (each.movedim(dim, -1)[rows][:WHOLES].sort(-1).values for each in (mine, theirs))
    nearest = torch.searchsorted(other, own).clamp_max(other.shape[-1] - 1)
    return 1 - share(other.gather(-1, nearest) == own)


def _tied(op: OpCall, scores: torch.Tensor, shadow: torch.Tensor, mine: torch.Tensor, rows: torch.Tensor, dim: int | None) -> tuple[int, int]:
    """In how many of the changed rows a top-k ends between equal scores, and in how many of these they became zero."""
    count = mine.shape[dim] if dim is not None and mine.dim() == scores.dim() else 1
    if op.plan.packet != "topk" or dim is None or count >= scores.shape[dim]:
        return 0, 0
    edge = scores.detach().float().topk(count + 1, dim, largest=bool(op.argument("largest"))).values
    last = edge.select(dim, count - 1)
    tied = rows & (last == edge.select(dim, count))
    return int(tied.sum()), int((tied & (last == 0) & ((scores == 0) & (shadow != 0)).any(dim)).sum())


def _blur(scores: torch.Tensor, shadow: torch.Tensor, dim: int | None) -> float:
    error = torch.nan_to_num(scores.to(shadow.dtype) - shadow, nan=0.0, posinf=0.0, neginf=0.0)
    wide = torch.nan_to_num(shadow, nan=0.0, posinf=0.0, neginf=0.0)
    spread = wide - (wide.mean() if dim is None else wide.mean(dim, keepdim=True))
    return ratio(norm(error), norm(spread))
