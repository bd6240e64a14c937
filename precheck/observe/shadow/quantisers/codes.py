"""Follows codes, which are numbers rounded under a scale, to the place where the scale has been divided out again.

In exact arithmetic a quantiser's scale must cancel: codes times scales must give what the same products give on the data. So two copies
are kept of what is computed from codes, both without rounding. `exact` applies the run's ops to the scaled numbers. `plain` applies them to
the data and leaves the scales out. Where they agree, the scales have cancelled and the copies are dropped. If codes reach an op that does not
commute with a scale (a sum with something else, a softmax) and the copies do not agree, a scale is wrong.

The code does not say which product removes a scale. A factor that is a scale by its origin or its numbers does. For any other factor
both possibilities are kept, as alternatives. Only a result that agrees with none of them is recorded.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, Storages, plain
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers import (
    code_copies,
    code_limits,
    code_rounding,
    compound_ops,
    rounding_costs,
    straight_through,
    table_places,
)
from precheck.observe.shadow.quantisers.bit_origins import BitOrigins
from precheck.observe.shadow.quantisers.code_copies import AGREE, Track, distance, merged, uncancelled
from precheck.observe.shadow.quantisers.code_lines import CastsByLine
from precheck.observe.shadow.quantisers.code_notes import Remark
from precheck.observe.shadow.quantisers.decoded_data import DecodedData
from precheck.observe.shadow.quantisers.float_bits import FloatBits
from precheck.observe.shadow.quantisers.fruitless_lines import FruitlessLines
from precheck.observe.shadow.quantisers.function_gradients import FunctionGradients
from precheck.observe.shadow.quantisers.packed_codes import PackedCodes
from precheck.observe.shadow.quantisers.scales import flushed_scales, scale_products, zero_points
from precheck.observe.shadow.quantisers.scales.rotations import FACTORS, Rotations
from precheck.observe.shadow.quantisers.scales.scale_folding import Foldings
from precheck.observe.shadow.quantisers.scales.scaled_tensors import AVERAGES, EXTREMES, QuantiserScales, Scaled, begins, counts
from precheck.observe.shadow.quantisers.scales.settled_data import SettledData
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in
from precheck.torch_internals import in_backward, storage_key

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

LINEAR = ops.POLYNOMIAL | {"_int_mm", "div", "nan_to_num", "copysign", "relu"}
"""Ops that keep two copies apart by a scale, which is positive, if they were so before."""
PASSED = ops.WHOLE_COPIES | ops.FORMS | ops.WHOLE
WITH_A_UNIT = ops.EXPONENTIALS | ops.SOFTMAXES | ops.BENDING
BEGINNING = EXTREMES | AVERAGES | FACTORS.keys() | ops.MULTIPLYING | ops.RECIPROCALS | ops.GUARDS | ops.SUMS | {"round"}
"""Ops that may make something that is followed: a scale, a scaled tensor, a rotation."""
HARMLESS = ops.FRESH | ops.CHOOSERS | ops.STEPS | {"norm", "linalg_vector_norm"}
"""Ops that only look at codes, or a norm, over which they need no scale."""
FEW_BITS = 2.0**-4
"""Relative error of a product of data and zero points, which may be kept in as few bits as codes are."""


class Codes:
    """Follows the codes of a run."""

    def __init__(self, mode: Shadow) -> None:
        self.mode, self.scales, self.off = mode, QuantiserScales(), False
        self.scaled: Storages[Scaled] = Storages(sized=True)
        self.origins: Storages[code_rounding.Origin] = Storages()
        self.casts = CastsByLine(self)
        self.tracks: Storages[Track] = Storages(self.end, sized=True)
        self.differences: Storages[Track] = Storages(sized=True)  # codes less the data, each with the codes that come back when the data is added
        self.flushed: Storages[flushed_scales.Cast] = Storages()
        self.corrections: Storages[bool] = Storages()  # products of data and zero points
        self.limited: Storages[Flat] = Storages(sized=True)  # data before it was limited or rounded, under no scale
        self.packed, self.bits, self.bit_origins = PackedCodes(self), FloatBits(mode), BitOrigins(self)
        self.foldings, self.decoded, self.dequantised = Foldings(self), DecodedData(self), SettledData(self)
        self.rotations, self.gradients = Rotations(self), FunctionGradients(self)
        self.told, self.lines = set[str](), FruitlessLines(mode.observation, mode.tracker)  # `told`: lines whose codes have a fault

    def after(self, op: OpCall, result: Any) -> None:
        """After an op: follows its codes. Never raises."""
        compound = compound_ops.name(op) in compound_ops.COMPOUND
        if not self.off and (compound or op.plan.known):
            try:
                if self.lines.torchs_own(op, result) or (not compound and self.lines.barren(op, result)):
                    return
                followed = self._concerned(op.args)
                sure = self.lines.made(op, result, followed) or compound
                if sure or ((followed or self._begins(op.base, op.args)) and not self.lines.fruitless(op, followed)):
                    with self.mode.unseen():
                        (compound_ops.follow if compound else Codes.follow)(self, op, result)
            except Exception:
                self.off = True

    def _begins(self, base: str, args: tuple[Any, ...]) -> bool:
        """Whether an op may make something that is followed from there on."""
        if base not in BEGINNING:
            return False
        return begins(base, args) or table_places.begins(base, args) or self.rotations.begins(base, args) or self.foldings.begins(base, args)

    def after_view(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """After memory has been taken for another dtype. Never raises."""
        if not self.off and plain(result):
            try:
                with self.mode.unseen():
                    self.bits.viewed(source, result)
                    self.bit_origins.begun(source)
            except Exception:
                self.off = True

    @functools.cached_property
    def _tables(self) -> list[tuple[dict[Any, Any], bool]]:
        """The entries of all that is followed, and whether they are by size."""
        own = self.tracks, self.differences, self.scaled, self.origins, self.corrections, self.scales.made, self.scales.averages, self.gradients.coded
        parts = self.dequantised.held, self.packed.held, self.bits.held, self.bit_origins.held, self.foldings.held, self.decoded.held
        return [(each.entries, each.sized) for each in (*own, *parts, self.rotations.held, self.rotations.quantised, self.rotations.fast.held)]

    def _concerned(self, args: tuple[Any, ...]) -> bool:
        """Whether an operand is followed."""
        known = [table for table in self._tables if table[0]]
        keys = [(storage_key(tensor), tensor.element_size()) for tensor in tensors_in(*args) if tensor.layout is torch.strided] if known else []
        return any((key if sized else key[0]) in entries for key in keys for entries, sized in known)

    def finish(self) -> None:
        """At the end of the block: judges results that no op has read, since the user gets them."""
        if not self.off:
            for track in self.tracks.values():
                self.end(track)
            self.casts.tell()
            self.foldings.finish()
            self.decoded.finish(self.told)
            self.mode.observation.quantisers = len(self.casts.meant)
        for each in (self.tracks, self.scaled, self.origins):
            each.clear()

    def end(self, track: Track) -> None:
        """The storage of these codes is freed: judges them if no op has read them."""
        if not track.read:
            self.judge(track)

    def follow(self, op: OpCall, result: Any) -> None:
        """After an op on something that is followed."""
        inputs = list(filter(plain, tensors_in(*op.args)))
        results = list(filter(plain, tensors_in(result))) or (inputs[:1] if op.plan.written else [])
        if not inputs or not results:
            self.scales.read_off(op.base, inputs)
            return
        moved = self.packed.follow(op, results[0])
        given, op = op, self.bit_origins.read(op)
        inputs = list(filter(plain, tensors_in(*op.args)))
        places = list(map(id, op.indices())) if self.tracks else []
        tracked = [each for each in inputs if self.tracks and self.tracks.get(each) is not None and id(each) not in places]
        tracked = [] if code_rounding.scales_data_by_codes(self, op.base, inputs, tracked) else tracked
        if moved or (self.differences and op.base in ("add", "sub") and straight_through.after_sum(self, inputs, results[0])):
            pass
        elif tracked:
            self._read(op, inputs, tracked, results[0])
        elif op.base in ("mul", "div") and len(results) == 1:
            code_rounding.after_product(self, op, results[0])
        elif self.scaled and self.scaled.get(inputs[0]) is not None:
            code_rounding.after_op_on_scaled(self, op, inputs, results[0])
        elif self.origins and any(self.origins.get(each) is not None for each in inputs):
            table_places.after_op(self, op, inputs, results[0])
        elif op.base == "copy" and len(inputs) > 1 and self.scaled and self.scaled.get(inputs[1]) is not None:
            code_rounding.after_op_on_scaled(self, op._replace(args=op.args[1:]), inputs[1:], results[0])
        table_places.after_difference(self, op, results[0])
        rounding_costs.note_vanished(self, op, inputs[-1], results[0])
        code_limits.after_op_on_data(self, op, inputs[-1], results[0])
        self.bits.follow(op, results[0])
        self.scales.follow(op.base, inputs, results)
        zero_points.after_op(self, op, inputs, results[0])
        self.bit_origins.follow(given, results[0])
        self.foldings.follow(op, inputs, results[0])
        flushed_scales.after_op(self, op, inputs, results)
        self.rotations.follow(op, inputs, results[0])
        self.decoded.follow(op, results[0])
        self.dequantised.follow(op, inputs, results[0])
        self.gradients.follow(op, inputs, results[0])

    def _read(self, op: OpCall, inputs: list[torch.Tensor], tracked: list[torch.Tensor], result: torch.Tensor) -> None:
        """After an op on codes: carries both copies through it, or judges them where scales must have cancelled."""
        base, data = op.base, [each for each in tracked if not self.scales.made.get(each)]
        if base in ("mul", "div") and len(tracked) > 1:  # a scale that was itself rounded, or is kept beside codes, is still a scale
            data = [each for each in data if self._coded(each)]
        tracked = data if base in ("mul", "div") and data else tracked
        linear = base in LINEAR and not op.plan.steps  # a quotient may be rounded
        tracks = [track for track in map(self.tracks.get, tracked) if track is not None]
        if base == "copy":
            code_copies.after_copy(self, inputs, result)
        elif base in compound_ops.FUSED and compound_ops.stepwise(self, op, result):
            return
        elif base in ops.CASTS and not result.is_floating_point() and not counts(tracked[0]):
            tracks[0].read = True  # truncated again, these are codes no longer
        elif base in PASSED:
            code_limits.note_wrapping(self, op, tracks[0], tracked[0], result)
            self.pass_on(tracks[0], tracked[0], result)
            code_rounding.after_second_rounding(self, op, tracks[0], tracked[0], result)
        elif base in HARMLESS or base in ("amax", "amin") or not (result.is_floating_point() or linear or base in ops.MOVING):
            return
        elif base in ("mul", "div") and len(tracked) == 1:
            scale_products.after_product(self, op, inputs, tracked[0], result)
        elif base == "where" and len(tracked) == 1 and code_limits.after_choice(self, op.args, tracks[0], tracked[0], result):
            return
        elif base.startswith("clamp"):
            code_limits.after_clamp(self, op, tracks[0], tracked[0], result)
        elif base in ("add", "sub") and (product := zero_points.operand_to_correct(self, inputs, result)) is not None:
            zero_points.keep_data(self, op, product, result)
        elif base in ("add", "sub") and len(tracked) == 1 and not tracks[0].dense:
            zero_points.after_addition(self, op, inputs, tracked[0], result)
        elif linear and not (base in ops.ADDITIONS and zero_points.adds_uncoded(self, inputs) and not zero_points.without_unit(self, inputs)):
            scale_products.on_both_copies(self, op, tracks, result)
            zero_points.after_term(self, op, inputs, result)
        else:
            for track in tracks:
                self.judge(track, unit=base in WITH_A_UNIT, place=self.described(op.plan.name))
            self.tracks.drop(result)

    def _coded(self, tensor: torch.Tensor) -> bool:
        """Whether it holds codes. Other numbers in the same storage are the same in both copies."""
        track = self.tracks.get(tensor)
        return track is not None and not torch.equal(track.exact.seen(tensor), track.plains[0].seen(tensor))

    def pass_on(self, track: Track, source: torch.Tensor, result: torch.Tensor) -> Track:
        """Gives a result the copies of the codes that it was moved or cast from."""
        exact, *plains = [each.seen(source).expand(result.shape) for each in (track.exact, *track.plains)]
        return self.give_units(self.put(result, [track], exact, plains), track, source, result)

    def give_units(self, made: Track, track: Track, source: torch.Tensor, result: torch.Tensor) -> Track:
        """Gives the codes `made` in `result` the steps of those that they were made from."""
        made.units = [Flat.of(result, each.seen(source).expand(result.shape)) for each in track.units]
        return made

    def put(self, result: torch.Tensor, tracks: list[Track], exact: torch.Tensor, plains: list[torch.Tensor], *, product: bool = True) -> Track:
        """Gives a result the copies that are computed from the codes of `tracks`."""
        made = merged(result, tracks, exact, plains, product=product)
        self.tracks.put(result, made)
        return made

    def drop_if_settled(self, track: Track, result: torch.Tensor, factors: int = 0) -> None:
        """Drops the copies if they agree: the scales have cancelled. `factors`: scales that the op of `track` has summed products with."""
        if (track.multipliers or factors) and any(distance(track.exact.numbers, each.numbers) <= AGREE for each in track.plains):
            track.read = True
            self.foldings.settled(track)
            self.dequantised.settled(track, result)
            self.tracks.drop(result)

    def judge(self, track: Track, *, unit: bool = False, own: bool = False, place: Operation | None = None) -> None:
        """Records an error if the copies differ, where scales must have cancelled. `unit`: they are read by an op that no scale passes, such as an
        exponential, SiLU, or a sum with data. `own`: those data are what they stand for. `place`: where they are read without any scale."""
        if track.term is not None and not track.multipliers:
            unit, own, place = True, True, track.term
        unit, place = (True, track.due) if track.due is not None else (unit, place)  # a gradient has a unit
        track.read, track.filled = True, track.filled or own
        code_rounding.note_dead(self, track)
        last = track.last or (place if unit and track.filled else None)
        read_off = track.numbered and self.scales.numbered(track.powers)  # a scale may be among the numbers
        remark = uncancelled(track, unit=unit) if track.sure and not track.owed else None
        remark = None if remark is not None and remark.off <= track.corrected * FEW_BITS else remark
        if remark is not None and last is not None and (track.multipliers or (remark.fault == "left" and not read_off)):
            self.note(last, remark)

    def note(self, place: Operation, remark: Remark) -> None:
        """Records what was found at that place, as an operation that comes now."""
        self.told.add(getattr(remark, "rounded", ""))
        self.mode.record(dataclasses.replace(place, number=self.mode.observation.seen, coded=remark))

    def described(self, name: str) -> Operation:
        """An operation that names the current line of the program."""
        return dataclasses.replace(self.mode.described(name), phase="backward" if in_backward() else "forward")
