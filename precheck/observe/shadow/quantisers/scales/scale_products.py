"""Follows codes through linear ops: a product or quotient with a factor, which may be a scale, and ops that keep codes and data apart by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import plain
from precheck.observe.shadow.quantisers import code_limits, code_rounding
from precheck.observe.shadow.quantisers.code_copies import AGREE, ALTERNATIVES, LIKE, Track, alternatives, distance, neutral, on_copies, signed
from precheck.observe.shadow.quantisers.scales import zero_points
from precheck.observe.shadow.quantisers.scales.scale_roots import combined
from precheck.observe.shadow.quantisers.scales.scaled_tensors import steps
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import in_backward

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


def after_product(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], source: torch.Tensor, result: torch.Tensor) -> None:
    """Codes are multiplied by a possible scale. If it is one, `plain` does not change."""
    track = codes.tracks.get(source)
    assert track is not None
    other = next((each for each in inputs if each is not source), None)
    exact = on_copies(codes, op, -1, source)
    plains = [each.seen(source).expand(exact.shape) for each in track.plains]
    own = other is not None and (track.bare is None or _own(codes, other, track.bare))
    known = other is not None and own and (codes.scales.known(other) or _nested(codes, other, track))
    if other is not None and _ended(codes, track, other, known, exact, plains, result):
        return
    if not known:
        again = [on_copies(codes, op, place, source) for place in range(len(track.plains))]
        number = op.args[1] if other is None else other.detach() if other.numel() == 1 else 1
        if not isinstance(number, torch.Tensor) or number.numel() == 1:
            plains = [-each for each in plains] if number < 0 else plains  # the sign of a number is no scale's
        plains = again if other is not None and signed(other) and not neutral(other) else [*plains, *again]
    made = codes.put(result, [track], exact, plains[:ALTERNATIVES])
    kind = None if other is None else codes.scales.made.get(other)
    whole = kind == "exponent" or (kind == "whole" and not track.dense)  # a byte of e8m0, whose power of two is meant
    made.multipliers = track.multipliers + (known or whole)
    made.sure = track.sure and (known or whole or other is None or neutral(other) or signed(other))
    made.sure = made.sure and not (made.joined and other is not None and codes.scales.made.get(other) != "scale")
    made.numbered = track.numbered or (not known and (other is None or other.numel() == 1))
    if known or whole:
        made.last = codes.described(op.plan.name)
    if known:
        made.powers = codes.scales.multiplied(track.powers, other, op.base)
    if known or not track.scales:
        codes.casts.note_dequantised(track)
    codes.drop_if_settled(made, result)


def _ended(
    codes: Codes, track: Track, other: torch.Tensor, known: bool, exact: torch.Tensor, plains: list[torch.Tensor], result: torch.Tensor,
) -> bool:  # fmt: skip
    """Whether the codes end in this product: it is the data again, codes of another scale, or the gradient of a scale."""
    if known and other.shape == result.shape and len(plains) > 1 and not track.dense and steps(other) and distance(exact, plains[0]) <= AGREE:
        code_limits.measure_again(codes.put(result, [track], exact, plains[1:]), result)  # codes of a float format, rounded by hand
        codes.casts.note_dequantised(track)
        return True
    data = known and track.cost is not None and not track.dense and any(distance(result, each) <= 2 * track.cost[0] for each in plains)
    # the gradient of a scale is that of the result times what the scale was multiplied by
    if not data and (known or not in_backward() or not signed(other) or track.multipliers >= track.scales):
        return False
    track.read = True
    if data:
        codes.dequantised.settled(track, result)
        codes.casts.note_dequantised(track)
    codes.tracks.drop(result)
    return True


def _nested(codes: Codes, other: torch.Tensor, track: Track) -> bool:
    """Whether a factor of codes holds codes of scales, which stand for the scales themselves."""
    held = codes.tracks.get(other)
    return held is not None and not held.multipliers and not track.dense and codes.scales.made.get(other) is not None


def _own(codes: Codes, scale: torch.Tensor, greatest: float) -> bool:
    """Whether a scale is made of this greatest magnitude."""
    source = codes.scales.sources.get(scale) if codes.scales.made.get(scale) == "scale" else None
    return source is not None and source.greatest is not None and abs(float(source.greatest) - greatest) <= LIKE * greatest
