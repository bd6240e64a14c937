"""Follows codes through operations on bits, which pack several codes into one number and take them out again.

A packed number has fields: runs of bits that hold a code each. A shift moves its fields, a mask keeps some of them, and "or" puts the fields of two
numbers together. Each field keeps the copies of its codes (see `code_copies`). When one field is left, and starts at bit 0, the number is a code
again. Two fields in the same bits destroy each other's codes, and are followed no longer.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.replay import OpCall, tensors_in
from precheck.observe.shadow.storages import Flat, Storages, plain, whole

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

LEFT, RIGHT = {"__lshift", "__ilshift", "bitwise_left_shift"}, {"__rshift", "__irshift", "bitwise_right_shift"}
MASKS, JOINS = {"__and", "__iand", "bitwise_and"}, {"__or", "__ior", "bitwise_or", "__xor", "__ixor", "bitwise_xor"}
BITS = LEFT | RIGHT | MASKS | JOINS
MOVED = (ops.MOVING | ops.WHOLE_COPIES | {"copy"}) - {"where"}


@dataclasses.dataclass(slots=True)
class Field:
    """Bits of all numbers of a storage: `low` is the first one. `numbers` has their value, `exact` that of the codes before rounding."""

    low: int
    width: int
    numbers: Flat
    exact: Flat
    others: list[Flat]  # the copies `plains` of the codes, then their `units`
    track: Track  # what is known of the codes beside their copies

    def copies(self) -> list[Flat]:
        return [self.numbers, self.exact, *self.others]

    def of(self, result: torch.Tensor, copies: list[torch.Tensor], low: int, width: int) -> Field:
        """The same codes in another tensor, whose copies are given."""
        numbers, exact, *others = (Flat.of(result, each) for each in copies)
        return Field(low, width, numbers, exact, others, self.track)


class PackedCodes:
    """The packed numbers of a run."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.fields: Storages[list[Field]] = Storages(sized=True)

    def follow(self, op: OpCall, result: torch.Tensor) -> bool:
        """After an op: follows packed numbers. Returns whether it read any, or was an op on the bits of codes."""
        if op.base in BITS and result.dtype is not torch.bool and not result.is_floating_point():
            read = [(each, self._fields(each)) for each in op.args[:2] if plain(each)]
            if any(fields for _, fields in read):
                self._changed(op, read, result)
                return True
        elif self.fields and op.base in MOVED:
            return self._moved(op, result)
        return False

    def _fields(self, tensor: torch.Tensor) -> list[Field]:
        """The fields of a tensor's numbers. Codes that are in no packed number are one field."""
        held = self.fields.get(tensor)
        if held is not None:
            return held if len(held[0].numbers.numbers) * tensor.element_size() == tensor.untyped_storage().nbytes() else []
        track = self.codes.tracks.get(tensor)
        if track is None or track.multipliers or track.dense or tensor.is_floating_point():
            return []
        track.read, width = True, int(tensor.amax()).bit_length() if bool((tensor >= 0).all()) else 8 * tensor.element_size()
        return [Field(0, width, Flat.of(tensor, tensor), track.exact, [*track.plains, *track.units], track)] if width else []

    def _changed(self, op: OpCall, read: list[tuple[torch.Tensor, list[Field]]], result: torch.Tensor) -> None:
        """An op on bits."""
        (source, fields), base = next(each for each in read if each[1]), op.base
        other = op.args[1] if op.args[0] is source else op.args[0]
        number = int(other) if isinstance(other, int) or (isinstance(other, torch.Tensor) and other.numel() == 1) else None
        made: list[Field] | None = None
        if base in JOINS and number is None:
            made = self._joined(read, result)
        elif number is not None and base in LEFT | RIGHT:
            made = self._shifted(source, fields, number if base in LEFT else -number, result)
        elif number is not None and base in MASKS:
            made = self._masked(source, fields, number, result)
        elif number is not None and len(fields) == 1 and not fields[0].low:
            made = [self._seen(fields[0], source, result, 0, fields[0].width)]  # a bit of the code is set or inverted
        self.fields.drop(result)
        if made and len(made) == 1 and not made[0].low and not (base in JOINS and number is None) and base not in LEFT:
            self._out(made[0], result, signed=base in RIGHT)
        elif made:
            self.fields.put(result, made)

    def _seen(self, field: Field, source: torch.Tensor, result: torch.Tensor, low: int, width: int) -> Field:
        return field.of(result, [each.seen(source).expand(result.shape) for each in field.copies()], low, width)

    def _shifted(self, source: torch.Tensor, fields: list[Field], by: int, result: torch.Tensor) -> list[Field]:
        """Fields that are moved up by `by` bits, or down if it is negative. Nothing is followed if the lower part of a field is lost."""
        size, made = 8 * result.element_size(), []
        for field in fields:
            low, width = field.low + by, min(field.width, size - field.low - by)
            if low < 0 < low + width:
                return []
            if low >= 0 and width > 0:
                made.append(self._cut(field, source, result, low, width))
        return made

    def _masked(self, source: torch.Tensor, fields: list[Field], mask: int, result: torch.Tensor) -> list[Field]:
        kept = []
        for field in fields:
            bits = (mask >> field.low) & ((1 << field.width) - 1)
            if bits & (bits + 1):
                return []  # the mask has gaps
            if bits:
                kept.append(self._cut(field, source, result, field.low, bits.bit_length()))
        return kept

    def _cut(self, field: Field, source: torch.Tensor, result: torch.Tensor, low: int, width: int) -> Field:
        """The lowest bits of a field."""
        numbers, exact, *others = (each.seen(source) for each in field.copies())
        left = numbers if width == field.width else (numbers.long() & ((1 << width) - 1)).float()
        made = field.of(result, [left, exact + left - numbers, *others], low, width)
        if width < field.width and bool((numbers < 0).any()):
            made.track = dataclasses.replace(field.track, unsigned=True)
        return made

    def _joined(self, read: list[tuple[torch.Tensor, list[Field]]], result: torch.Tensor) -> list[Field]:
        pairs = sorted(((field, tensor) for tensor, fields in read for field in fields), key=lambda each: each[0].low)
        for (first, _), (second, _) in itertools.pairwise(pairs):
            if first.low + first.width > second.low:
                return []
        known, size = sum(((1 << field.width) - 1) << field.low for field, _ in pairs), min(8 * result.element_size(), 63)
        if bool((result.long() & ~known & ((1 << size) - 1)).any()):
            return []  # other bits have something that is not followed
        return [self._seen(field, tensor, result, field.low, field.width) for field, tensor in pairs]

    def _moved(self, op: OpCall, result: torch.Tensor) -> bool:
        """Packed numbers are copied, joined or put elsewhere."""
        into = op.args[1:] if op.base == "copy" else op.args
        found = {id(each): self._fields(each) for each in tensors_in(*into) if self.fields.get(each) is not None}
        if not any(found.values()):
            return False
        if op.base == "copy" and not whole(result) and self._written(next(tensors_in(*into)), result):
            return True
        first, same = next(iter(found.values())), len({tuple(each.low for each in fields) for fields in found.values()}) == 1
        self.fields.drop(result)
        if not same or result.is_floating_point() or len({len(fields[0].others) for fields in found.values()}) > 1:
            return True
        made = []
        for place, field in enumerate(first):
            copies = [self._copy(op, found, place, nth) for nth in range(2 + len(field.others))]
            made.append(field.of(result, copies, field.low, max(fields[place].width for fields in found.values())))
        self.fields.put(result, made)
        return True

    def _copy(self, op: OpCall, found: dict[int, list[Field]], place: int, nth: int) -> torch.Tensor:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            fields = found.get(id(tensor))
            return tensor if fields is None else fields[place].copies()[nth].seen(tensor)

        return change(op.args[1]).expand(op.args[0].shape) if op.base == "copy" else self.codes.replayed(op, change)

    def _written(self, source: torch.Tensor, result: torch.Tensor) -> bool:
        """A part of a storage of packed numbers is written, with numbers of the same fields."""
        mine, theirs = self.fields.get(result), self._fields(source)
        if mine is None or [each.low for each in mine] != [each.low for each in theirs] or len(mine[0].others) != len(theirs[0].others):
            return False
        for field, given in zip(mine, theirs, strict=True):
            for each, copy in zip(field.copies(), given.copies(), strict=True):
                each.seen(result).copy_(copy.seen(source))
        return True

    def _out(self, field: Field, result: torch.Tensor, *, signed: bool) -> None:
        """The tensor holds codes again. What the op has changed of their value is added to `exact` too. `signed`: it may have restored their sign."""
        numbers, exact = field.numbers.seen(result), field.exact.seen(result)
        many, track = len(field.track.plains), field.track
        if signed and not torch.equal(result.float(), numbers):
            track = dataclasses.replace(track, unsigned=False)
        self.codes.tracks.put(result, dataclasses.replace(track, exact=Flat.of(result, exact + result.float() - numbers), plains=field.others[:many],
                                                          units=field.others[many:], read=False))  # fmt: skip
