"""The step that scales a tensor and rounds it to codes: starts a `Track`, and notes clipping, wasted bits and biased rounding."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, length, whole
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.probes.partial_writes import region
from precheck.observe.shadow.quantisers import rounding_costs
from precheck.observe.shadow.quantisers.code_copies import FLOATS, Track, cost
from precheck.observe.shadow.quantisers.code_notes import Dead
from precheck.observe.shadow.quantisers.scales import flushed_scales
from precheck.observe.shadow.quantisers.scales.scaled_tensors import CHAIN, Scaled, counts, scale_of, written
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import in_backward

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

ROUNDS = ops.WHOLE | ops.CASTS
FILLED = 15 / 16
"""Share of a format's largest number. Codes under a scale that is made for the format go up to more."""


@dataclasses.dataclass(slots=True)
class Origin:
    """Numbers that are rounded by a table lookup: the numbers, and the factors they were multiplied by. `table`: where rows have tables of their own,
    or there is no scale, the numbers that they were compared with, the places of the nearest, and how far these are, relative to the norm."""

    exact: torch.Tensor
    bys: list[torch.Tensor]
    scaled: Scaled
    before: torch.Tensor  # the numbers before they were limited
    table: tuple[torch.Tensor, torch.Tensor, float] | None = None


def after_product(codes: Codes, op: OpCall, result: torch.Tensor) -> None:
    """After a product or quotient: whether it is one of data and a scale, which may be rounded next."""
    base, args = op.base, op.args
    found = scale_of(args[0], args[1], codes.scales, codes.scaled, quotient=base == "div") if isinstance(args[0], torch.Tensor) else None
    number = found is None and written(base, args) and not codes.scales.made.get(args[0])
    if number:
        found = args[0], torch.tensor(args[1], device=args[0].device)
    if found is None and isinstance(args[0], torch.Tensor) and isinstance(args[1], (int, float)) and args[1] and whole(result):
        _multiply_by_number(codes, args[0], float(args[1] if base == "mul" else 1 / args[1]), result)
    if found is None or not result.is_floating_point() or not whole(result):
        return
    data, scale = found
    if scale.numel() > length(scale) == 1 and in_backward() and not codes.scales.made.get(scale):
        return  # the gradient of a sum, which autograd spreads over all terms
    if base == "div" and codes.scales.divides(data, scale, result):
        return
    if codes.scales.made.get(scale) and codes.scales.among(data):
        codes.scales.made.put(data, "scale")  # by its numbers it is one, whatever it was computed from
    by = (scale.detach().float().clone() if base == "mul" else 1 / scale.detach().float()).expand(result.shape)
    before = codes.scaled.get(data)
    chain = [by * before.by(place, data) for place in range(len(before.bys))] if before is not None and data.shape == result.shape else []
    powers, source, nested = codes.scales.multiplied({}, scale, base), codes.scales.sources.get(scale), codes.scales.nested(data)
    codes.scaled.put(result, Scaled(region(result), [by, *chain][:CHAIN], powers=powers, source=source, nested=nested,
                                      offset=codes.scales.offsets.get(data), written=number, chosen=codes.scales.chosen(scale)))  # fmt: skip
    flushed_scales.note_flushed(codes, scale)


def _multiply_by_number(codes: Codes, data: torch.Tensor, number: float, result: torch.Tensor) -> None:
    """A scaled tensor is multiplied by a number, as in `x / amax * 127`. The number is a part of each scale, or is the only one that is taken out."""
    before = codes.scaled.get(data)
    if before is None or before.added is not None or data.shape != result.shape:
        return
    bys = [number * before.by(place, data) for place in range(len(before.bys))]
    beyond = None if before.unclipped is None else Flat.of(result, number * before.unclipped.seen(data))
    bys = [*bys, torch.full_like(bys[0], number)][:CHAIN]
    codes.scaled.put(result, dataclasses.replace(before, region=region(result), bys=bys, unclipped=beyond))


def scales_data_by_codes(codes: Codes, base: str, inputs: list[torch.Tensor], tracked: list[torch.Tensor]) -> bool:
    """Whether data is multiplied or divided by a scale that was itself rounded. The result is scaled data then, and no codes."""
    if base not in ("mul", "div") or len(inputs) != 2 or len(tracked) != 1 or not codes.scales.made.get(tracked[0]):
        return False
    data = inputs[inputs[0] is tracked[0]]
    if data.numel() <= tracked[0].numel() or codes.scales.made.get(data) or not data.is_floating_point():
        return False
    if (track := codes.tracks.get(tracked[0])) is not None:
        track.read = True
    return True


def after_op_on_scaled(codes: Codes, op: OpCall, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """After an op on a scaled tensor: its result becomes codes, stays scaled, or is not followed."""
    source, base = inputs[0], op.base
    scaled = codes.scaled.get(source)
    if scaled is None:
        return
    if base in ops.PLACES or result.shape != source.shape:
        _begin_lookup(codes, op, scaled, source, result)
    elif base in ROUNDS and (result.dtype in FLOATS or not result.is_floating_point() or base not in ("_to_copy", "copy")):
        if result.dtype is not torch.bool:
            _after_rounding(codes, op, scaled, source, result)
    elif (base.startswith("clamp") or base == "abs" or base in ops.WHOLE_COPIES | ops.CASTS) and whole(result):
        before = scaled.unclipped or (Flat.of(source, source) if base.startswith("clamp") else None)
        if before is not None and region(source) != region(result):
            before = Flat.of(result, before.seen(source))
        kept = [scaled.by(place, source) for place in range(len(scaled.bys))]
        codes.scaled.put(result, dataclasses.replace(scaled, region=region(result), bys=kept, unclipped=before))
    elif base in ("add", "sub") and whole(result):
        _after_addition(codes, scaled, op.args, source, result)


def bound(op: OpCall, name: str) -> float:
    """A bound of a clamp. Infinite where it has none or is a tensor."""
    value = op.argument(name)
    return float(value) if isinstance(value, (int, float)) else -math.inf if name == "min" else math.inf


def _begin_lookup(codes: Codes, op: OpCall, scaled: Scaled, source: torch.Tensor, result: torch.Tensor) -> None:
    """A lookup begins: the scaled tensor is compared with each number of a format, or has been replaced by its place among them."""
    if op.base == "sub" and result.dim() == source.dim() and source.shape[-1:] == (1,):
        source = source.squeeze(-1)
    elif op.base not in ops.PLACES or result.shape != source.shape:
        return
    before = (source if scaled.unclipped is None else scaled.unclipped.seen(source)).float().clone()
    codes.origins.put(result, Origin(source.float().clone(), [scaled.by(place, source).clone() for place in range(len(scaled.bys))], scaled, before))


def make_codes(
    codes: Codes, op: OpCall, exact: torch.Tensor, data: torch.Tensor, bys: list[torch.Tensor], result: torch.Tensor, scaled: Scaled
) -> Operation:
    """`result` holds codes of `exact`, which is `data` times each of `bys`, and a zero point. `scaled`: what was rounded."""
    place = codes.described(op.plan.name)
    powers = codes.scales.rounded_under(bys[0])  # remembers these factors, too
    powers = scaled.powers if scaled.written or scaled.powers is not None else powers
    plains = [Flat.of(result, torch.nan_to_num(data / by)) for by in bys]
    offset = scaled.offset if scaled.offset is not None and scaled.offset.dim() == data.dim() else None
    if offset is not None:
        plains, bys = [*plains, Flat.of(result, torch.nan_to_num(data / bys[0]) + offset)], [*bys, bys[0]]
    units = [Flat.of(result, 1 / by) for by in bys]
    end = torch.finfo(result.dtype).max if result.dtype in FLOATS else math.inf
    filled = FILLED * end <= max(float(exact.abs().amax()), _made_for(scaled)) if exact.numel() else False
    lost = cost(exact, result)
    if not scaled.nested:
        codes.gradients.rounded(place.blamed, [each.seen(result) for each in plains], lost[0])
    endless = bys[0].isinf()  # the inverse of a scale of 0, where all of the data is 0; or of one so small that other data becomes Inf
    void = bool((exact.isnan() & endless).any()) and not bool((exact.isinf() & endless).any())
    codes.tracks.put(result, Track(
        Flat.of(result, exact), plains, place.blamed, units, offset=offset is not None, shifted=data is not exact, dead=place if void else None,
        filled=filled, powers=powers, begun=powers, cost=lost, sources=scaled.source.extremes if scaled.source else frozenset(),
        scales=0 if scaled.written else 1, nested=scaled.nested, chosen=scaled.chosen,
    ))  # fmt: skip
    return place


def _made_for(scaled: Scaled) -> float:
    """What the scale makes of the extreme that it is made of, which is the largest number of the format that it is made for. 0 if unknown."""
    greatest = None if scaled.source is None else scaled.source.greatest
    return 0.0 if greatest is None else abs(float(greatest.reshape(()) * scaled.bys[0].reshape(-1)[0]))


def note_dead(codes: Codes, track: Track) -> None:
    """Records codes that are NaN since they and their scale are 0, where they are read by what makes numbers of them."""
    share = float(track.exact.numbers.isnan().float().mean()) if track.dead is not None else 0.0
    if share and track.dead is not None:
        codes.note(track.dead, Dead(share))


def _after_addition(codes: Codes, scaled: Scaled, args: tuple[Any, ...], source: torch.Tensor, result: torch.Tensor) -> None:
    """A number has been added to a scaled tensor: noise, half a step or a zero point. `_exact` tells which, once it is rounded."""
    other = args[1] if args[0] is source else args[0]
    if scaled.added is None and source is args[0]:
        kept = [scaled.by(place, source) for place in range(len(scaled.bys))]
        codes.scaled.put(result, dataclasses.replace(scaled, region=region(result), bys=kept, added=other))


def _exact(scaled: Scaled, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """The rounded tensor without noise, the same without a zero point, and whether there is noise."""
    wide, added = source.float(), scaled.added
    if added is None:
        return wide, wide, False
    if isinstance(added, torch.Tensor):
        added = added.detach().float().expand(source.shape) if added.numel() < source.numel() else added.float().reshape(source.shape)
        small, noisy = bool((added.abs() <= 1).all()), added.numel() == scaled.added.numel()  # type: ignore[union-attr]
    else:
        small, noisy = abs(added) < 1, False
    data = wide - added
    return (data, data, noisy) if small else (wide, data, False)


def _after_rounding(codes: Codes, op: OpCall, scaled: Scaled, source: torch.Tensor, result: torch.Tensor) -> None:
    if op.base in ops.CASTS and not result.is_floating_point() and not bool((source.float() % 1 != 0).any()):
        return  # integers already
    exact, data, noisy = _exact(scaled, source)
    bys = [scaled.by(place, source).expand(result.shape) for place in range(len(scaled.bys))]
    place = make_codes(codes, op, exact, data, bys, result, scaled)
    if scaled.unclipped is not None:
        rounding_costs.note_clipping(codes, result, scaled.unclipped.seen(source), source.float(), chosen=scaled.chosen)
    elif result.dtype in FLOATS:
        end = torch.finfo(result.dtype).max
        rounding_costs.note_clipping(codes, result, exact, exact.clamp(-end, end))
    else:
        codes.casts.count(place)
    if result.dtype in FLOATS and (scaled.written or bool((bys[0] == 1).all())):
        codes.casts.meant.add(place.blamed)  # a factor of 1 scales nothing, so no factor has to take it away again; nor must that of a number be seen
    if data is exact:
        rounding_costs.note_wasted_bits(codes, place, scaled, exact, result)
    if result.dtype not in FLOATS and not scaled.nested:  # a scale that is rounded up keeps all of the data
        rounding_costs.note_bias(codes, place, noisy, exact, result.float())
        if noisy and isinstance(scaled.added, torch.Tensor):
            codes.casts.note_noise(place, scaled.added, exact, result)


def after_second_rounding(codes: Codes, op: OpCall, track: Track, source: torch.Tensor, result: torch.Tensor) -> None:
    """After codes that were divided by a further scale have been rounded again: these are codes under both scales. So are the sums of a product that
    become codes of the next layer."""
    made = codes.tracks.get(result)
    if made is None or op.base not in ops.WHOLE or not track.multipliers or counts(source):
        return
    exact = made.exact.seen(result)
    if track.dense:
        made.begun, made.sources, made.dense, made.early = track.powers, made.sources.union(*(track.powers or ())), False, 0
        made.sums = True
    made.multipliers, made.scales, made.cost = 0, track.scales + 1, cost(exact, result)
    made.units = [Flat.of(result, torch.nan_to_num(each.seen(result) / exact, posinf=0.0, neginf=0.0)) for each in made.plains]


def after_choice(codes: Codes, args: tuple[Any, ...], made: Track, result: torch.Tensor) -> None:
    """After a choice, element by element, between codes of the same numbers. If it is one between the numbers below and above, it is what has been
    rounded. So its errors are judged, and not those of a floor before. If it gives codes their sign back, they have one."""
    choices = [(each, track) for each in args[1:3] if isinstance(each, torch.Tensor) and (track := codes.tracks.get(each)) is not None]
    made.unsigned = made.unsigned and all(track.unsigned for _, track in choices)
    data = [track.plains[0].seen(each) for each, track in choices]
    if len(data) < 2 or any(each.shape != data[0].shape or not torch.equal(each, data[0]) for each in data[1:]):
        return
    found = torch.stack([each.detach().float().expand(result.shape) for each, _ in choices])
    gap = found.amax(0) - found.amin(0)
    step = torch.where(gap > 0, gap, 1.0)
    for source, track in choices:
        exact = track.exact.seen(source)
        if exact.shape == result.shape and bool(((result.float() - exact).abs() <= step).all()):
            copies = [[Flat.of(result, each.seen(source)) for each in kept] for kept in (track.plains, track.units)]
            made.cost = cost(exact, result)
            made.exact, made.plains, made.units, made.shifted, made.rounded = Flat.of(result, exact), *copies, track.shifted, track.rounded
            line = codes.casts.judged_anew(track.rounded)
            if line is None or not counts(found):  # numbers from a table, which are rounded where one of them is chosen
                codes.casts.count(place := codes.described("where"))
                line, made.rounded = codes.casts.lines[place.blamed, ""], place.blamed
            rounding_costs.note_bias(codes, line.place, True, exact / step, result.float() / step)
            return
