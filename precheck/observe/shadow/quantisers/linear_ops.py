"""Applies an op that keeps codes and data apart by a factor to both copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import plain
from precheck.observe.shadow.quantisers import code_limits, code_rounding
from precheck.observe.shadow.quantisers.code_copies import Track, alternatives, on_copies
from precheck.observe.shadow.quantisers.scales import zero_points
from precheck.observe.shadow.quantisers.scales.scale_roots import combined
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

PRODUCTS = ops.REDUCTIONS | {"_int_mm"}


def on_both_copies(codes: Codes, op: OpCall, tracks: list[Track], result: torch.Tensor) -> None:
    """Applies the op to both copies. An operand of a product that is a scale, or was multiplied by one, may be what takes the codes' own out."""
    if op.base in PRODUCTS:
        for each in filter(plain, op.tensors()):
            if (track := codes.tracks.get(each)) is not None:
                code_limits.check_unchanged(codes, op, track, each)
    plains = [on_copies(codes, op, place) for place in range(alternatives(tracks))]
    others = [each for each in filter(plain, op.tensors()) if codes.tracks.get(each) is None] if op.base in PRODUCTS else []
    beside = [found for each in others if (found := codes.scaled.get(each)) is not None]
    factors = sum(codes.scales.made.get(each) == "scale" for each in others)
    for nth in range(max((len(each.bys) for each in beside), default=min(factors, 1))):
        plains += [on_copies(codes, op, place, without=nth) for place in range(alternatives(tracks))]
    product = op.base in PRODUCTS or op.base == "mul"
    kept = codes.put(result, tracks, on_copies(codes, op, -1), plains, product=product)
    if op.base == "where":
        code_rounding.after_choice(codes, op.args, kept, result)
    if op.base not in PRODUCTS | ops.MOVING:
        kept.cost = None  # sums of codes may cancel, and what is left has the rounding errors of the terms
    if op.base in PRODUCTS:
        kept.owed, kept.shifted, kept.term = zero_points.corrections_owed(tracks), False, None
        kept.early, kept.dense = kept.early if kept.dense else kept.multipliers, True
    if product:
        kept.powers = combined((each, 1.0) for each in [*(track.powers for track in tracks), *(scaled.powers for scaled in beside)])
        kept.begun = combined((each.begun, 1.0) for each in tracks)
    kept.numbered = kept.numbered or any(isinstance(each, float) for each in (*op.args, *op.kwargs.values()))
    codes.drop_if_settled(kept, result, factors)
