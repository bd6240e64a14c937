"""Notes what rounding has cost, beside what it must cost: numbers cut off, wasted bits, vanished numbers, biased errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_copies import FLOATS, cost
from precheck.observe.shadow.quantisers.code_notes import Clipped, Coarse, Skewed, Vanished
from precheck.observe.shadow.quantisers.scales.scaled_tensors import Scaled
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

SAMPLE = 1 << 16
WIDEST = 2.0
"""Steps. A larger error is not rounding."""
FEWEST = 64
"""Elements that are needed to judge the mean of errors."""
WASTES = 4
"""A scale that is made for so many times the greatest magnitude wastes two bits, which is noted."""
FEWEST_BITS = 4
"""Codes of fewer bits have none to waste."""
ONE_SIGN = 0.9
"""Numbers have one sign if the magnitude of their sum is this share of the sum of their magnitudes."""


def note_clipping(
    codes: Codes, result: torch.Tensor, before: torch.Tensor, after: torch.Tensor, rounded: str = "", name: str = "clamp",
    *, chosen: bool = False,
) -> None:  # fmt: skip
    """Notes what clipping costs beside what rounding costs. `before` and `after` are the tensor around the clamp. `rounded`: the line that rounded it
    before. `name`: the op that cuts it off. `chosen`: the scale is an average or is learned, so that some is clipped on purpose. Not all of it is."""
    place = codes.described(name)
    counted = place.blamed == rounded
    norm, lost = float(before.float().norm()), float((before - after).float().norm())
    if not lost or not norm or not math.isfinite(norm) or (chosen and bool(after.any())):
        if not counted:
            codes.casts.count(place)
        return
    rounding, end = float((result.float() - after.float()).norm()), float(after.abs().amax())
    greatest = float(before.abs().amax()) / end if end else math.inf
    codes.casts.note_clipping(place, Clipped(lost / norm, rounding / norm, float((before != after).float().mean()), greatest), counted=counted)


def note_wasted_bits(
    codes: Codes, place: Operation, scaled: Scaled | None, exact: torch.Tensor, result: torch.Tensor, table: torch.Tensor | None = None
) -> None:
    """Notes codes that waste bits, since their scale was made for greater numbers: for the largest one of their format, or of the `table` that they
    are looked up in, or for the extreme that the scale is made of. `scaled` is None if they have no scale."""
    found = float(exact.abs().amax()) if exact.numel() else 0.0
    if table is not None:
        end, bits = float(table.abs().amax()), math.log2(len(table)) + bool(table.amin() >= 0)
    elif result.dtype in FLOATS:
        end, bits = torch.finfo(result.dtype).max, 8.0
    elif scaled is not None and scaled.source is not None and scaled.source.greatest is not None and _one(scaled.bys[0]):
        end = float(scaled.source.greatest) * abs(float(scaled.bys[0].detach().amax()))
        bits = math.log2(end + 1) + 1
    else:
        return
    if not 0 < found <= end / WASTES or bits < FEWEST_BITS or not math.isfinite(end):
        return
    own = exact * (end / found)
    if table is not None:
        made = table[torch.bucketize(own, (table[1:] + table[:-1]) / 2)]
    else:
        made = own.to(result.dtype) if result.dtype in FLOATS else own.round()
    codes.casts.note_wasted_bits(place, Coarse(cost(exact, result)[0], cost(own, made)[0], found / end, bits, scaled is not None))


def _one(by: torch.Tensor) -> bool:
    """Whether a factor is one number for all elements."""
    return bool(by.amax() == by.amin() != 0)


def note_vanished(codes: Codes, op: OpCall, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a cast of data to a float of eight bits: whether numbers of one sign lose some of their sum, since small ones become zero."""
    if op.base not in ops.CASTS or result.dtype not in FLOATS or source.element_size() == 1 or codes.scales.made.get(source):
        return
    wide, made = source.detach().float(), result.detach().float()
    total, least = float(wide.abs().sum()), torch.finfo(result.dtype).tiny
    if not total or not math.isfinite(total) or abs(float(wide.sum())) < ONE_SIGN * total:
        return
    small = wide.abs() < least
    lost, gone = float((wide.abs() - made.abs())[small].sum()) / total, (made == 0) & (wide != 0)
    if lost > 0 and bool(gone.any()):
        name = str(result.dtype).removeprefix("torch.")
        place = codes.described(op.plan.name)
        codes.note(place, Vanished(lost, float(gone.float().mean()), name))


def note_bias(codes: Codes, place: Operation, noisy: bool, exact: torch.Tensor, made: torch.Tensor) -> None:
    """Notes the mean of the rounding errors, in steps. Rounding to nearest has one too, if most numbers are less than half a step."""
    error, wide = (made - exact).reshape(-1)[:SAMPLE], exact.reshape(-1)[:SAMPLE]
    inside = error.abs() <= WIDEST
    error = (error if noisy else error - (wide.round() - wide))[inside]
    signs = wide[inside].sign()
    if len(error) < FEWEST:
        return
    mean, inwards, chance = float(error.mean()), float(-(error * signs).mean()), 0.6 / len(error) ** 0.5
    off, towards = (inwards, True) if abs(inwards) > abs(mean) else (mean, False)
    codes.casts.note_bias(place, Skewed(off, towards, noisy, chance))
