"""Notes where codes leave the numbers that they are kept in: a clamp that saturates, or integers that wrap round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow import code_rounding
from precheck.observe.shadow.code_copies import Track
from precheck.observe.shadow.code_notes import Clipped, Wrapped
from precheck.observe.shadow.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.codes import Codes

LARGEST = {float(2**bits - 1) for bits in (3, 4, 7, 8, 15, 16, 31, 32)} | {6.0, 7.5, 28.0, 240.0, 448.0, 57344.0}
"""The largest numbers of the formats that codes and their sums are kept in."""


def clamped(codes: Codes, op: OpCall, track: Track, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a clamp of codes."""
    low, high = _bound(op, "min", -math.inf), _bound(op, "max", math.inf)
    if not track.units:
        _saturated(codes, track, source, result, low, high)
        return
    exact, before = codes.copied(op, -1), track.exact.seen(source)
    moved = zip(track.plains, track.units, strict=True)
    made = codes.put(result, [track], exact, [each.seen(source) + (exact - before) * unit.seen(source) for each, unit in moved])
    codes.measured(made, track, source, result)
    code_rounding.clipped(codes, source, result, before, before.clamp(low - 0.5, high + 0.5))


def _bound(op: OpCall, name: str, default: float) -> float:
    """A bound of a clamp. The default where it has none or is a tensor."""
    value = op.argument(name)
    return float(value) if isinstance(value, (int, float)) else default


def _saturated(codes: Codes, track: Track, source: torch.Tensor, result: torch.Tensor, low: float, high: float) -> None:
    """After a clamp of sums of codes, which are in the unit of the codes as long as no scale has been multiplied by.

    Sums must fit into the range of the format that they are stored in. A lower bound of 0 may be intended, as that of a ReLU. If no later op
    multiplies the sums by a scale, nothing is reported: the bytes of a picture saturate on purpose.
    """
    if track.multipliers or high not in LARGEST:
        track.read = True
        return
    wide = source.float().clamp(min=0.0 if low == 0 else -math.inf)
    lost, norm, place = float((wide - result.float()).norm()), float(wide.norm()), codes.described("clamp")
    if not lost:
        codes.casts.clean(place, track.rounded)
        codes.passed(track, source, result)
        return
    exact, cut = track.exact.seen(source), wide != result.float()
    rounding = float((source.float() - exact).norm())
    codes.casts.clipped(place, Clipped(lost / norm, rounding / norm, float(cut.float().mean()), float(wide.abs().amax()) / high), track.rounded)
    kept = torch.where(cut, result.float() / exact, 1.0)  # the copies are cut off too, so that their scales still cancel
    codes.put(result, [track], exact * kept, [each.seen(source) * kept for each in track.plains])


def wrapped(codes: Codes, op: OpCall, track: Track, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a cast of integer codes to real numbers: whether they have wrapped round, so that they are off by the number of integers of their dtype.

    In between they may wrap, since unsigned integers that are taken for signed ones wrap back.
    """
    if source.is_floating_point() or not result.is_floating_point() or track.multipliers or track.dense:
        return
    size, off = 2.0 ** (8 * source.element_size()), source.float() - track.exact.seen(source)
    turns = torch.round(off / size)
    share = float(((turns != 0) & ((off - turns * size).abs() <= code_rounding.WIDEST)).float().mean())
    if share:
        codes.note(codes.described(op.plan.name), Wrapped(track.rounded, share, str(source.dtype).removeprefix("torch.")))
