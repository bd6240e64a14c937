"""Follows zero points that are subtracted after a product, by sums of codes: (q - z) @ w = q @ w - z · Σ w.

A product of codes that contain zero points needs corrections: one if one operand has zero points, three if both have (z · Σ w, z' · Σ q, and
n · z · z'). The copy `plain`, which stands for the data, does not change. As long as a correction is missing, the result is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.quantisers import straight_through
from precheck.observe.shadow.quantisers.code_copies import LIKE, Track, distance
from precheck.observe.shadow.quantisers.op_copies import copied
from precheck.observe.shadow.quantisers.scales import added_terms
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

OWED = (0, 1, 3)
"""Corrections, by the number of operands that contain zero points."""


def owed(tracks: Sequence[Track]) -> int:
    """How many corrections a product of these tracks needs."""
    shifted = sum(track.shifted and not track.dense for track in tracks)
    return max(OWED[min(shifted, 2)], *(track.owed for track in tracks))


def owing(codes: Codes, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    """The operand of a sum that needs a correction, if the other operand is one. A correction is a sum of codes or a number made from zero
    points, and has fewer elements."""
    if len(inputs) != 2:
        return None
    for product, other in (inputs, inputs[::-1]):
        track, correction = codes.tracks.get(product), codes.tracks.get(other)
        if track is None or not track.owed or product.shape != result.shape or other.numel() >= product.numel():
            continue
        if (correction is not None and correction.dense) or codes.scales.made.get(other):
            if correction is not None:
                correction.read = True
            return product
    return None


def shifted(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], source: torch.Tensor, result: torch.Tensor) -> None:
    """Something is added to codes. If it is a zero point (few elements, integers), `plain` does not change."""
    track, other = codes.tracks.get(source), next((each for each in inputs if each is not source), None)
    assert track is not None
    codes.casts.added(track.rounded, op.args[1])
    if other is not None and (op.base == "add" and straight_through.raised(codes, track, source, other, result)):
        return
    if other is not None and (op.base == "sub" and straight_through.subtracted(codes, track, source, other, result)):
        return
    if other is not None and track.shifted and track.multipliers and codes.scales.made.get(other):
        made = unmoved(codes, op, source, result)  # (q - z) · s as q · s - z · s
        made.shifted = False
        codes.settled(made, result)
        return
    zero = not track.multipliers and other is not None and codes.scales.made.get(other)  # it may be a real number
    if other is not None and (other.numel() >= source.numel() or (not zero and bool((other.float() % 1 != 0).any()))):
        own = other.shape == source.shape and any(distance(each.seen(source), other.float()) <= LIKE for each in track.plains)
        own = own or sum((track.begun or {}).values()) <= -2  # codes in the unit of a product of two scales, as a bias in int32 is
        codes.judged(track, unit=not track.multipliers and added_terms.real(codes, other), own=own, place=codes.described(op.plan.name))
        codes.tracks.drop(result)
        return
    made = unmoved(codes, op, source, result)
    codes.measured(made, track, source, result)
    made.shifted, made.unsigned = track.shifted if track.unsigned else not track.shifted, False


def unmoved(codes: Codes, op: OpCall, source: torch.Tensor, result: torch.Tensor) -> Track:
    """The op changes codes, or corrects a product of codes for zero points. `plain` does not change."""
    track, exact = codes.tracks.get(source), copied(codes, op, -1)
    assert track is not None
    made = codes.put(result, [track], exact, [each.seen(source).expand(exact.shape) for each in track.plains])
    if made.owed:
        made.owed -= 1
        codes.settled(made, result)
    return made
