"""Judges comparisons with a bound that lets other numbers pass than it should, and those of numbers that are wrong.

A row's own score may be the bound: a program keeps all scores that are at least the k-th, or that equal the largest. Distinct scores that the format
has made equal to this one pass as well, so that the row has more than k. Beyond the last probability that is not zero, or among masked scores, that
means nothing.

A number may be the bound, which the format rounds onto a number that the tensor has: `p > 0.999`, where 0.999 is 1 in bfloat16. torch compares in the
tensor's format, also with a Python number or a single number of float32. So the comparison gives one answer for all elements, and a different one for
elements that equal the rounded bound. Only elements that are nearer to it than the bound is count, since no rounding of theirs explains the answer. A
bound that is rounded to any other number lies among numbers that are rounded as much.

Where a compared number has lost its digits, answers are wrong that no rounding of it explains. The shadow follows them, so that no later result shows
them: they are what shows that the number was wrong.

A number that has become Inf equals no finite number any more, also not the one that it was made from: a sentinel, such as float32's lowest number.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from precheck import formats, ops
from precheck.observe.shadow.comparing.statistics import WHOLES, norm
from precheck.observe.shadow.op_notes import Flips, LostBound, Mistaken
from precheck.observe.shadow.probes.masks import MASKED
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

ABOVE = frozenset({("ge", 0), ("lt", 0), ("le", 1), ("gt", 1)})
"""Comparisons that tell whether a score is at least the bound, by the place of the scores among the operands. Other orders tell whether it is at most
the bound, and all others whether it is the bound."""
ENDS = (0.0, 1.0, -1.0)
"""Numbers that shares, masks and probabilities are exactly: those at which they end."""
FINEST = formats.FP16.unit_roundoff
"""The finest unit roundoff that answers are judged by: float16's. A smaller error of what is compared does no harm, whatever format it is in."""
ROUNDINGS = 8.0
"""How many unit roundoffs a few ordinary ops make, as `output_impact.ROUNDINGS`."""


def count_ties(call: Call) -> None:
    """After a comparison of each row with one of its own scores: counts the rows in which others are equal to it in the run alone."""
    if len(call.floats) != 2 or call.operation.phase == "backward" or not call.inputs[0].low:
        return
    place = int(call.floats[0].numel() < call.floats[1].numel())
    scores, bound = call.floats[place], call.floats[1 - place]
    if scores.dim() < 2 or scores.shape[-1] < 2 or bound.shape != (*scores.shape[:-1], 1):
        return
    run, shadow, edge, wide = (each.detach().flatten(0, -2)[:WHOLES] for each in (scores, call.shadows[id(scores)], bound, call.shadows[id(bound)]))
    equal = run == edge
    if not bool(equal.any(-1).all()):
        return  # the bound is not one of the row's own scores
    more = ((equal & (shadow != wide)) & (edge != 0) & (edge > MASKED)).sum(-1)
    rows = more > 0
    if bool(rows.any()):
        passing = equal if call.plan.base not in ops.BOUNDING else run >= edge if (call.plan.base, place) in ABOVE else run <= edge
        call.operation.flips = Flips(int(rows.sum()), rows.numel(), int(rows.sum()), swapped=float((more / passing.sum(-1))[rows].mean()))


def after_comparison(call: Call, answers: torch.Tensor) -> None:
    """After a comparison that tells which of two numbers is larger."""
    _note_lost_bound(call, answers)
    if len(call.args) == 2 and call.operation.phase != "backward" and answers.numel() <= WHOLES:
        _count_mistaken(call, answers)


def _note_lost_bound(call: Call, answers: torch.Tensor) -> None:
    """After a comparison of a low tensor with one number: records whether all answers are alike, only since that number was rounded."""
    if len(call.args) != 2 or call.operation.phase == "backward" or answers.numel() < 2:
        return
    place = 0 if isinstance(call.args[0], torch.Tensor) and call.args[0].shape == answers.shape else 1
    numbers, other = call.args[place], call.args[1 - place]
    if not isinstance(numbers, torch.Tensor) or not numbers.dim() or numbers.numel() != answers.numel() or numbers.dtype not in call.mode.low:
        return
    if isinstance(other, torch.Tensor) and (other.dim() or not other.is_floating_point()):
        return
    dtype = torch.result_type(numbers, other)
    if dtype not in call.mode.low:
        return
    bound = float(call.shadows.get(id(other), other)) if isinstance(other, torch.Tensor) else float(other)
    held = float(torch.tensor(bound, device="cpu").to(dtype))
    if held == bound or held not in ENDS:
        return
    if bool(answers.any()) and not bool(answers.all()):
        return
    wide = call.shadows[id(numbers)]
    exact = wide.new_tensor(bound) if isinstance(other, torch.Tensor) else bound
    right = call.op.func(*((wide, exact) if place == 0 else (exact, wide)))
    nearer = (numbers.to(wide.dtype) == held) & ((wide - held).abs() < abs(bound - held) / 2)
    lost = int(((right != answers) & nearer).sum())
    if lost:
        call.operation.lost_bound = LostBound(lost, answers.numel(), bound, held, dtype_name(dtype))


def _count_mistaken(call: Call, answers: torch.Tensor) -> None:
    """After a comparison of which an operand is off by more than a few roundings: counts the answers that rounding does not explain.

    Rounding decides where both numbers are within a few roundings of each other: of the larger one, or of what is usual in its tensor.
    """
    units = {value: max(value.roundoff, FINEST) for value in call.inputs}
    if not any(value.drift > ROUNDINGS * unit for value, unit in units.items()):
        return
    one, other = (torch.as_tensor(call.shadow_of(each) if isinstance(each, torch.Tensor) else each, dtype=torch.float64) for each in call.args)
    scale = torch.maximum(_size(one), _size(other))
    beyond = (one - other).abs() > ROUNDINGS * max(units.values()) * scale
    right = call.mode.replay.call(call.op, call.shadow_of)[0]
    call.operation.mistaken = Mistaken(int(((right != answers) & beyond & scale.isfinite()).sum()), answers.numel())


def count_parted(call: Call, answers: torch.Tensor) -> None:
    """After a test whether numbers are equal: counts the answers that Inf gives, where the reference asks whether two finite numbers are equal and
    answers otherwise. A program that asks for Inf itself knows of it."""
    if len(call.args) != 2 or call.operation.phase == "backward":
        return
    one, other = (torch.as_tensor(each) for each in call.args)
    wide = (call.shadow_of(each) if isinstance(each, torch.Tensor) else torch.as_tensor(each) for each in call.args)
    finite = functools.reduce(torch.logical_and, (each.isfinite() for each in wide))
    right = call.mode.replay.call(call.op, call.shadow_of)[0]
    parted = (one.isinf() != other.isinf()) & ~one.isnan() & ~other.isnan() & finite & (right != answers)
    call.operation.parted = int(parted.sum())


def _size(numbers: torch.Tensor) -> torch.Tensor:
    """How large each number is, and at least as large as the others are on average."""
    finite = numbers[numbers.isfinite()]
    return numbers.abs().clamp_min(norm(finite) / max(1, finite.numel()) ** 0.5)
