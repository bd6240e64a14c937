"""Notes where codes are no longer the numbers that were rounded: a clamp that saturates, integers that wrap round, bytes of another format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat
from precheck.observe.shadow.quantisers import code_rounding, rounding_costs
from precheck.observe.shadow.quantisers.code_copies import FLOATS, SATURATED, Track, cost, on_copies
from precheck.observe.shadow.quantisers.code_notes import Changed, Clipped, Coarse, WrappedCodes
from precheck.observe.shadow.quantisers.scales.scaled_tensors import ENDS
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

LARGEST = {float(2**bits - 1) for bits in (3, 4, 7, 8, 15, 16, 31, 32)} | {6.0, 7.5, 28.0, 240.0, 448.0, 57344.0}
"""The largest numbers of the formats that codes and their sums are kept in."""


def after_clamp(codes: Codes, op: OpCall, track: Track, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a clamp of codes."""
    low, high = (code_rounding.bound(op, name) for name in ("min", "max"))
    if not track.units:
        _after_clamp_of_sums(codes, track, source, result, low, high)
        return
    least = 0.0 if track.sums and low == 0 else -math.inf
    before, *plains = (each.seen(source).clamp(min=least) for each in (track.exact, *track.plains))
    exact, moved = on_copies(codes, op, -1), zip(plains, track.units, strict=True)
    made = codes.put(result, [track], exact, [each + (exact - before) * unit.seen(source) for each, unit in moved])
    codes.give_units(made, track, source, result)
    measure_again(made, result)
    rounding_costs.note_clipping(codes, result, before, before.clamp(low - 0.5, high + 0.5), track.rounded, chosen=track.chosen)
    if not track.chosen:
        _note_wasted_bits(codes, before, result, high - low)


def _note_wasted_bits(codes: Codes, exact: torch.Tensor, result: torch.Tensor, numbers: float) -> None:
    """Notes integers that waste bits: their bounds have been written for far more `numbers` than they use."""
    used = float(exact.amax() - exact.amin()) if exact.numel() else 0.0
    bits = math.log2(numbers + 1) if math.isfinite(numbers) and numbers > 0 else 0.0
    if bits < rounding_costs.FEWEST_BITS or not 0 < used <= numbers / rounding_costs.WASTES or bool((result % 1 != 0).any()):
        return
    own = (exact - exact.amin()) * (numbers / used)
    best = float((own.round() - own).norm()) * (used / numbers) / max(float(exact.norm()), 1e-30)
    codes.casts.note_wasted_bits(codes.described("clamp"), Coarse(cost(exact, result)[0], best, used / numbers, bits))


def _after_clamp_of_sums(codes: Codes, track: Track, source: torch.Tensor, result: torch.Tensor, low: float, high: float) -> None:
    """After a clamp of sums of codes, which are in the unit of the codes as long as no scale has been multiplied by.

    Sums must fit between the largest numbers of the format that they are kept in. What a lower bound of 0 takes may be meant, as a ReLU is. Nothing
    is said of numbers that no scale is multiplied by later: bytes of a picture saturate on purpose.
    """
    if track.multipliers or track.bare is not None or high not in LARGEST:
        track.read = True
        return
    _note_limit(codes, track, source, result, source.float().clamp(min=0.0 if low == 0 else -math.inf), high)


def after_choice(codes: Codes, args: tuple[Any, ...], track: Track, source: torch.Tensor, result: torch.Tensor) -> bool:
    """After a choice between codes and one number. Returns whether it saturates them: whether the number is the largest of the result."""
    other = next((each for each in args[1:3] if each is not source), None)
    if track.multipliers or track.dense or source.shape != result.shape or not isinstance(other, torch.Tensor) or other.numel() != 1:
        return False
    high = float(other)
    if high not in LARGEST or high != float(result.abs().amax()):
        return False
    _note_limit(codes, track, source, result, source.float(), high)
    return True


def _note_limit(codes: Codes, track: Track, source: torch.Tensor, result: torch.Tensor, wide: torch.Tensor, high: float) -> None:
    """`result` is `wide` after a limit: notes what this takes away."""
    lost, norm, place = float((wide - result.float()).norm()), float(wide.norm()), codes.described("clamp")
    if not lost:
        codes.casts.count(place, track.rounded)
        codes.pass_on(track, source, result)
        return
    exact, cut = track.exact.seen(source), wide != result.float()
    rounding = float((source.float() - exact).norm())
    codes.casts.note_clipping(place, Clipped(lost / norm, rounding / norm, float(cut.float().mean()), float(wide.abs().amax()) / high), track.rounded)
    kept = torch.where(cut, result.float() / exact, 1.0)  # the copies are cut off too, so that their scales still cancel
    codes.put(result, [track], exact * kept, [each.seen(source) * kept for each in track.plains]).cost = None


def after_op_on_data(codes: Codes, op: OpCall, source: torch.Tensor, result: torch.Tensor) -> None:
    """After an op on data: whether it limits them to the largest number of an eight-bit float, to which they are then cast, or of a signed integer,
    after or before they are rounded. That is done under no scale, or under one that is written down as a number. Integers are codes if they are
    multiplied or divided later."""
    if not (op.base in ops.CASTS or op.base == "round" or op.base.startswith("clamp")):
        return
    low, high = (code_rounding.bound(op, name) for name in ("min", "max"))
    if codes.scaled.get(source) is not None or codes.tracks.get(source) is not None or not source.is_floating_point():
        return
    casts = op.base in ops.CASTS and result.dtype in FLOATS
    rounds, limits = op.base == "round", op.base.startswith("clamp") and (high in SATURATED or (high in ENDS and -high - 1 <= low < 0))
    before = codes.limited.get(source) if rounds or limits or casts else None
    if before is not None:
        exact, place = before.seen(source), codes.described("clamp").blamed
        kept = exact.clamp(low - 0.5, high + 0.5) if limits else source.float()
        rounding_costs.note_clipping(codes, result, exact, kept)
        if result.dtype in FLOATS:
            codes.casts.meant.add(place)
            _bare(codes, source, result)
        else:
            codes.tracks.put(result, Track(Flat.of(result, kept), [Flat.of(result, kept)], place, scales=0))
    elif casts:
        _after_bare_cast(codes, op, source, result)
    elif rounds or limits:
        codes.limited.put(result, Flat.of(result, source.detach()))


def _after_bare_cast(codes: Codes, op: OpCall, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a cast of data to a float of eight bits, under no scale. A cast that saturates is a clamp to the format's largest number as well."""
    end, data = torch.finfo(result.dtype).max, source.detach().float()
    kept = data.clamp(-end, end)
    if bool(((data == kept) | result.float().isfinite()).all()):  # else it makes Inf or NaN, which is judged as that
        rounding_costs.note_clipping(codes, result, data, kept, name=op.plan.name)
        place = codes.described(op.plan.name)
        codes.casts.meant.add(place.blamed)
        if codes.scales.made.get(source):
            return
        rounding_costs.note_wasted_bits(codes, place, None, kept, result)
    _bare(codes, source, result)


def _bare(codes: Codes, source: torch.Tensor, result: torch.Tensor) -> None:
    """Data has been cast to a float of eight bits under no scale: no scale that is made of its own extreme has to be taken out."""
    data, place = source.detach().float(), codes.described("cast").blamed
    copies = Flat.of(result, data), [Flat.of(result, data)]
    codes.tracks.put(result, Track(*copies, place, scales=0, bare=float(data.abs().amax()), powers={}, begun={}))


def measure_again(made: Track, result: torch.Tensor) -> None:
    """What codes differ by from what they stand for now is no error of later ops."""
    made.cost = cost(made.exact.seen(result), result)


def check_unchanged(codes: Codes, op: OpCall, track: Track, source: torch.Tensor) -> None:
    """Before codes are multiplied by anything: whether they still are what was rounded, up to the error of rounding."""
    if track.cost is None or track.dense:
        return
    off, size = cost(track.exact.seen(source), source)
    if off > 2 * track.cost[0] and (size > 2 * track.cost[1] or track.multipliers):
        track.changed = codes.described(op.plan.name), Changed(track.rounded, off, track.cost[0])
        if source.is_floating_point():
            note_changed(codes, track)
            track.cost = None


def note_changed(codes: Codes, track: Track) -> None:
    """Codes that are not what was rounded have become real numbers. Sums of integers that never do may be those of a check of their bytes."""
    if track.changed is not None:
        codes.note(*track.changed)
        track.changed = None


def note_wrapping(codes: Codes, op: OpCall, track: Track, source: torch.Tensor, result: torch.Tensor) -> None:
    """After a cast of integer codes to real numbers: whether they have wrapped round, so that they are off by the number of integers of their dtype.

    In between they may wrap, since unsigned integers that are taken for signed ones wrap back.
    """
    if source.is_floating_point() or not result.is_floating_point():
        return
    note_changed(codes, track)
    size, off = 2.0 ** (8 * source.element_size()), source.float() - track.exact.seen(source)
    widest = size / 8 if track.multipliers or track.dense else rounding_costs.WIDEST  # factors and sums make errors of rounding larger
    turns = torch.round(off / size)
    if track.dense and bool(((off - turns * size).abs() > widest).any()):
        return  # sums whose errors of rounding may be as large
    share = float(((turns != 0) & ((off - turns * size).abs() <= widest)).float().mean())
    if share:
        track.cost = None
        codes.note(track.last or codes.described(op.plan.name), WrappedCodes(track.rounded, share, str(source.dtype).removeprefix("torch.")))
