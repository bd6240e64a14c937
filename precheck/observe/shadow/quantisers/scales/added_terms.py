"""Follows terms that are added to a product of codes before it is multiplied by its scales: (q @ k + b) · s = q @ k · s + b · s.

Such a term must be in the unit of the codes: a bias in whole numbers, or one that was divided by the scales. If the scales are computed from data of
this run, a term that was divided by none of them is in another unit. So the copy `plain` gets that term unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.quantisers.scales.scaled_tensors import counts
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

FUSED = {"addmm", "baddbmm"}
"""Products that add their first operand."""


def other(codes: Codes, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor that holds no codes is added. Zeros do not count, since a sum may start from them."""
    return any(codes.tracks.get(each) is None and bool(each.any()) for each in inputs)


def without_unit(codes: Codes, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether one operand of a sum is a product of codes, whose scales are still to come, and the other a term without a unit."""
    if len(inputs) != 2:
        return False
    for product, term in (inputs, inputs[::-1]):
        track = codes.tracks.get(product)
        if track is not None and track.dense and track.multipliers == track.early < track.scales and codes.tracks.get(term) is None:
            return real(codes, term)
    return False


def joined(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Marks the result of an op that has added a term before all scales were multiplied by. If the term may be in the codes' unit, nothing is said of
    the result."""
    made = codes.tracks.get(result)
    if made is None or op.base not in ops.ADDITIONS | FUSED or made.multipliers >= made.scales:
        return
    term = op.args[0] if op.base in FUSED else next((each for each in inputs if codes.tracks.get(each) is None), None)
    if not isinstance(term, torch.Tensor) or codes.tracks.get(term) is not None or not bool(term.any()):
        return
    made.joined, known = True, real(codes, term)
    made.sure = made.sure and known
    made.term = codes.described(op.plan.name) if known and made.dense else None


def real(codes: Codes, term: torch.Tensor) -> bool:
    """Whether a term is certainly in no unit of codes: real numbers, from no scale, and no mask, which has one number beside 0."""
    if codes.scaled.get(term) is not None or codes.scales.made.get(term) or not term.is_floating_point() or counts(term):
        return False
    values = term.detach().float()
    return bool(values.isfinite().all()) and len(torch.unique(values[values != 0])) > 1
