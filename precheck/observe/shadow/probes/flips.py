"""Counts the decisions of a watched run that its shadow would have made otherwise, and makes the shadow follow the run's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.statistics import WHOLES, norm, ratio, sampled, share
from precheck.observe.shadow.op_notes import Flips, LetThrough
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.probes import bounds, draws, integer_casts, masks
from precheck.observe.shadow.replaying import eigenvectors
from precheck.observe.shadow.replaying.replay import OpCall, chosen
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

EQUAL = 0.5
"""The share of a sorted row's neighbours that are equal from which the row's order comes from places and not from numbers."""


def follows(call: Call, outputs: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor] | None = None) -> None:
    """Counts a decision that the shadow takes over, unless it is known what float32 decides: `theirs`, or what the op makes of its shadows."""
    own = call.mode.own
    call.mode.observation.followed += own is None or not own.known(call, outputs, theirs)


def after_discrete_op(call: Call, outputs: list[torch.Tensor]) -> None:
    """After an op whose results are not floats: counts its flips, and checks its casts to integers."""
    if not outputs:
        return
    base, output = call.plan.base, outputs[0]
    if base in ops.BOUNDING:
        _after_comparison_with_number(call)
        bounds.after_comparison(call, output)
    if base in ops.EQUALITIES and any(value.nonfinite for value in call.inputs):
        bounds.count_parted(call, output)
    single = output.numel() == 1  # Python may branch on it
    asked = base in ops.ASKING and output.numel() <= WHOLES and any(value.zeros or (single and value.drift) for value in call.inputs)
    if base in ops.COMPARED and not asked:
        bounds.count_ties(call)
    if base in ops.EXTREMES:
        call.mode.losses.undefined.chosen(call)
    if base in ops.PLACES or asked:
        count_flips(call, outputs)
        draws.note_skew(call)
        integer_casts.after_binning(call, output)
    elif base == "multinomial":
        draws.count_impossible(call, output)
    elif base in ops.CASTS and output.dtype is not torch.bool and (integer_casts.reads_one_low(call) or integer_casts.reads_whole(call)):
        integer_casts.after_cast(call, output)


def _after_comparison_with_number(call: Call) -> None:
    """Notes the numbers that a bound lets through in the run alone."""
    bound = next((abs(float(each)) for each in call.args[1:2] if isinstance(each, (int, float))), 0.0)
    if bound and integer_casts.reads_one_low(call):
        note_let_through(call.operation, bound, *fetched([sampled(call.floats[0], WHOLES), sampled(call.shadows[id(call.floats[0])], WHOLES)]))


def note_let_through(operation: Operation, bound: float, run: torch.Tensor, shadow: torch.Tensor) -> None:
    """Records numbers that lie above a bound in the run and below it in the reference (`LetThrough`)."""
    here, there = run.to(shadow.dtype).abs().reshape(-1), shadow.abs().reshape(-1)
    apart = torch.where((here > bound) & (there < bound), torch.minimum(here / bound, bound / there), 0.0)
    if bool(apart.any()):
        most = int(apart.argmax())
        count, was, became = int(torch.count_nonzero(apart)), float(there[most]), float(here[most])
        operation.let_through = LetThrough(count, apart.numel(), bound, was, became, float(apart[most]))


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
        follows(call, outputs, shadows)
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
            integer_casts.note_recut(call.operation, getattr(torch, call.plan.base), *fetched(three))
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
