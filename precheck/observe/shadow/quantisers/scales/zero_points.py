"""Follows what is added to a product of codes: zero points, by sums of codes, (q - z) @ w = q @ w - z · Σ w; and other terms, before the product is
multiplied by its scales, (q @ k + b) · s = q @ k · s + b · s.

A product of codes that contain zero points needs corrections: one if one operand has zero points, three if both have (z · Σ w, z' · Σ q, and
n · z · z'). The copy `plain`, which stands for the data, does not change. As long as a correction is missing, the result is not judged.

A correction may also be a product of the other operand's data and zero points, or a part of one: x @ (q - z) = x @ q - x @ z. Such products may come
in any number of parts, so each of them is a correction.

A term must be in the unit of the codes: a bias in whole numbers, or one that was divided by the scales. If the scales are computed from data of this
run, a term that was divided by none of them is in another unit. So the copy `plain` gets that term unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import whole
from precheck.observe.shadow.quantisers import straight_through
from precheck.observe.shadow.quantisers.code_copies import LIKE, Track, distance, on_copies
from precheck.observe.shadow.quantisers.scales.scale_folding import FUSED
from precheck.observe.shadow.quantisers.scales.scaled_tensors import counts
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

OWED = (0, 1, 3)
"""Corrections, by the number of operands that contain zero points."""
FACTORED = ops.PRODUCTS | ops.SCALING
MADE = FACTORED | ops.MOVING | ops.FORMS | ops.WHOLE_COPIES | {"sum", "neg"}
"""Ops by which a correction is made of zero points and data."""


def corrections_owed(tracks: Sequence[Track]) -> int:
    """How many corrections a product of these tracks needs."""
    shifted = sum(track.shifted and not track.dense for track in tracks)
    return max(OWED[min(shifted, 2)], *(track.owed for track in tracks))


def operand_to_correct(codes: Codes, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    """The operand of a sum that needs a correction, if the other operand is one. A correction is a sum of codes or a number made from zero
    points, and has fewer elements."""
    if len(inputs) != 2:
        return None
    for product, other in (inputs, inputs[::-1]):
        track, correction = codes.tracks.get(product), codes.tracks.get(other)
        if track is None or not (track.owed or track.corrected) or product.shape != result.shape:
            continue
        fewer = other.numel() < product.numel() and ((correction is not None and correction.dense) or codes.scales.made.get(other))
        of_data = bool(codes.corrections.get(other))
        if of_data:
            track.corrected += float(other.norm() / track.exact.seen(product).norm().clamp_min(1e-30))
        if (fewer and track.owed) or of_data:
            if correction is not None:
                correction.read = True
            return product
    return None


def after_op(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """After an op: whether its result is a product of data and zero points, which is subtracted from the product of that data and codes."""
    if not codes.corrections and op.base not in FACTORED:
        return
    given = [bool(codes.corrections.get(each)) for each in inputs]
    begun = op.base in FACTORED and any(codes.scales.made.get(each) == "whole" for each in inputs)
    held = codes.tracks.get(result)
    sums = held is None or (begun and op.base == "mul" and held.dense and not held.owed and not held.multipliers)
    if op.base in MADE and whole(result) and not codes.scales.made.get(result) and (begun or any(given)) and sums:
        codes.corrections.put(result, True)
    elif codes.corrections:
        codes.corrections.drop(result)


def after_addition(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], source: torch.Tensor, result: torch.Tensor) -> None:
    """Something is added to codes. If it is a zero point (few elements, integers), `plain` does not change."""
    track, other = codes.tracks.get(source), next((each for each in inputs if each is not source), None)
    assert track is not None
    codes.casts.note_added_number(track.rounded, op.args[1])
    if other is not None and (op.base == "add" and straight_through.after_step_up(codes, track, source, other, result)):
        return
    if other is not None and (op.base == "sub" and straight_through.after_difference(codes, track, source, other, result)):
        return
    if other is not None and track.shifted and track.multipliers and codes.scales.made.get(other):
        made = keep_data(codes, op, source, result)  # (q - z) · s as q · s - z · s
        made.shifted = False
        codes.drop_if_settled(made, result)
        return
    zero = not track.multipliers and other is not None and codes.scales.made.get(other)  # it may be a real number
    if other is not None and (other.numel() >= source.numel() or (not zero and bool((other.float() % 1 != 0).any()))):
        own = other.shape == source.shape and any(distance(each.seen(source), other.float()) <= LIKE for each in track.plains)
        own = own or sum((track.begun or {}).values()) <= -2  # codes in the unit of a product of two scales, as a bias in int32 is
        codes.judge(track, unit=not track.multipliers and is_real_term(codes, other), own=own, place=codes.described(op.plan.name))
        codes.tracks.drop(result)
        return
    made = keep_data(codes, op, source, result)
    codes.give_units(made, track, source, result)
    made.shifted, made.unsigned = track.shifted if track.unsigned else not track.shifted, False


def keep_data(codes: Codes, op: OpCall, source: torch.Tensor, result: torch.Tensor) -> Track:
    """The op changes codes, or corrects a product of codes for zero points. `plain` does not change."""
    track, exact = codes.tracks.get(source), on_copies(codes, op, -1)
    assert track is not None
    made = codes.put(result, [track], exact, [each.seen(source).expand(exact.shape) for each in track.plains])
    if made.owed or made.corrected:
        made.owed = max(made.owed - 1, 0)
        made.corrected *= max(1.0, float(track.exact.seen(source).norm() / exact.norm().clamp_min(1e-30)))
        codes.drop_if_settled(made, result)
    return made


def adds_uncoded(codes: Codes, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor that holds no codes is added. Zeros do not count, since a sum may start from them."""
    return any(codes.tracks.get(each) is None and bool(each.any()) for each in inputs)


def without_unit(codes: Codes, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether one operand of a sum is a product of codes, whose scales are still to come, and the other a term without a unit."""
    if len(inputs) != 2:
        return False
    for product, term in (inputs, inputs[::-1]):
        track = codes.tracks.get(product)
        if track is not None and track.dense and track.multipliers == track.early < track.scales and codes.tracks.get(term) is None:
            return is_real_term(codes, term)
    return False


def after_term(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Marks the result of an op that has added a term before all scales were multiplied by. If the term may be in the codes' unit, nothing is said of
    the result."""
    made = codes.tracks.get(result)
    if made is None or op.base not in ops.ADDITIONS | FUSED or made.multipliers >= made.scales:
        return
    term = op.args[0] if op.base in FUSED else next((each for each in inputs if codes.tracks.get(each) is None), None)
    if not isinstance(term, torch.Tensor) or codes.tracks.get(term) is not None or not bool(term.any()):
        return
    made.joined, known = True, is_real_term(codes, term)
    made.sure = made.sure and known
    made.term = codes.described(op.plan.name) if known and made.dense else None


def is_real_term(codes: Codes, term: torch.Tensor) -> bool:
    """Whether a term is certainly in no unit of codes: real numbers, from no scale, and no mask, which has one number beside 0."""
    if codes.scaled.get(term) is not None or codes.scales.made.get(term) or not term.is_floating_point() or counts(term):
        return False
    values = term.detach().float()
    return bool(values.isfinite().all()) and len(torch.unique(values[values != 0])) > 1
