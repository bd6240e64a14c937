"""Finds comparisons of low tensors whose bound the format rounds onto a number that the tensor has: `p > 0.999`, where 0.999 is 1 in bfloat16.

torch compares in the tensor's format, also with a Python number or a single number of float32. So the comparison gives one answer for all elements,
and a different one for elements that equal the rounded bound. Only elements that are nearer to it than the bound is count, since no rounding of
theirs explains the answer. A bound that is rounded to any other number lies among numbers that are rounded as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.op_notes import LostBound
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

ENDS = (0.0, 1.0, -1.0)
"""Numbers that shares, masks and probabilities are exactly: those at which they end."""


def compared(call: Call, answers: torch.Tensor) -> None:
    """After a comparison of a low tensor with one number: records whether all answers are alike, only since that number was rounded."""
    if len(call.args) != 2 or call.operation.phase == "backward" or answers.numel() < 2 or call.mode.later.defers(answers):
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
    held = float(torch.tensor(bound).to(dtype))
    if held == bound or held not in ENDS:
        return
    if bool(answers.any()) and not bool(answers.all()):
        return
    wide = call.shadows[id(numbers)]
    exact = torch.tensor(bound, dtype=wide.dtype) if isinstance(other, torch.Tensor) else bound
    right = call.op.func(*((wide, exact) if place == 0 else (exact, wide)))
    nearer = (numbers.to(wide.dtype) == held) & ((wide - held).abs() < abs(bound - held) / 2)
    lost = int(((right != answers) & nearer).sum())
    if lost:
        call.operation.lost_bound = LostBound(lost, answers.numel(), bound, held, dtype_name(dtype))
