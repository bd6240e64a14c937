"""Follows codes through a product or quotient with a factor, which may be a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.quantisers import code_limits
from precheck.observe.shadow.quantisers.code_copies import AGREE, ALTERNATIVES, LIKE, Track, distance, neutral, on_copies, signed
from precheck.observe.shadow.quantisers.scales.scaled_tensors import steps
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import in_backward

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


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
