"""Fast Hadamard transforms, which are made of sums and differences of a tensor's parts.

A stage takes pairs of elements (a, b) to (a + b, a - b). For a tensor that stages make, two copies are kept. One applies the stages in float32 to
the tensor before the transform. The other only moves that tensor: a sum stands at the place of its first operand, a difference at that of its second.
The transform has ended when an op that is no stage reads the tensor. It was a Hadamard transform if each sum has its difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, Storages, flattened
from precheck.observe.shadow.quantisers.code_copies import AGREE
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import storage_key

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.scales.rotations import Rotated, Rotations

MOVED = (ops.MOVING | ops.WHOLE_COPIES) - {"abs"}
Pair = tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class Stages:
    """A storage that stages of a transform have written, in whole or in part."""

    made: Flat
    moved: list[Flat]  # the tensor before the transform, and before each earlier rotation
    held: Rotated | None  # the earlier rotations of that tensor
    origin: int  # the number of that tensor
    place: str
    sums: frozenset[Pair] = frozenset()
    differences: frozenset[Pair] = frozenset()


def pairs(base: str, args: tuple[Any, ...]) -> bool:
    """Whether an op adds or subtracts two parts of one tensor."""
    if base not in ("add", "sub") or len(args) != 2 or not all(isinstance(each, torch.Tensor) for each in args):
        return False
    first, second = args
    same = first.shape == second.shape and first.dtype == second.dtype and first.stride() == second.stride()
    if not same or first.storage_offset() == second.storage_offset() or not first.is_floating_point() or first.layout is not torch.strided:
        return False
    return bool(storage_key(first) == storage_key(second))


class FastTransforms:
    """Follows the stages of a run."""

    def __init__(self, rotations: Rotations) -> None:
        self.rotations = rotations
        self.held: Storages[Stages] = Storages()
        self.begun = 0

    def follow(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op: a stage, an op that moves the elements, or the end of the transform."""
        if pairs(op.base, op.args) and not op.kwargs and not op.plan.written:
            self._stage(op, result)
            return
        known = [each for each in inputs if self.held.get(each) is not None]
        if not known:
            return
        if op.base in MOVED and result.is_floating_point() and result.element_size() > 1:
            read = inputs[1:] if op.base == "copy" and len(inputs) > 1 else inputs
            found = [self.held.get(each) for each in read]
            if all(each is not None and found[0] is not None and each.origin == found[0].origin for each in found):
                self._moved(op, read, result)
                return
        elif op.base in ("mul", "div") and all(each.numel() == 1 for each in inputs if each is not known[0]) and not op.plan.written:
            entry = self.held.get(known[0])
            assert entry is not None
            self._put(result, entry, [entry], self._replayed(op, None), [each.seen(known[0]) for each in entry.moved])
            return
        for each in known:
            self._ended(each)

    def _stage(self, op: OpCall, result: torch.Tensor) -> None:
        first, second = op.args
        entry = self.held.get(first)
        if entry is None:
            entry = self._begun(op.plan.name, first)
        made = self.rotations.codes.mode.replay.on_others(op, entry.made.seen)
        stays = first if op.base == "add" else second
        pair = (storage_key(first), first.storage_offset(), second.storage_offset(), tuple(first.shape), first.stride())
        self._put(result, entry, [entry], made, [each.seen(stays) for each in entry.moved])
        done = self.held.get(result)
        assert done is not None
        if op.base == "add":
            done.sums |= {pair}
        else:
            done.differences |= {pair}

    def _begun(self, name: str, tensor: torch.Tensor) -> Stages:
        """The entry of a tensor whose parts are added for the first time."""
        self.begun += 1
        held, whole = self.rotations.held.get(tensor), flattened(tensor)
        known = [whole] if held is None else [each.numbers for each in (held.data, *held.before)]
        moved = [Flat.of(whole, each) for each in known]
        entry = Stages(Flat.of(whole, known[0]), moved, held, self.begun, self.rotations.codes.described(name).blamed)
        self.held.put(tensor, entry)
        return entry

    def _replayed(self, op: OpCall, place: int | None) -> torch.Tensor:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            entry = self.held.get(tensor)
            if entry is None:
                return tensor.float() if tensor.is_floating_point() else tensor
            return (entry.made if place is None else entry.moved[place]).seen(tensor)

        return self.rotations.codes.mode.replay.on_others(op, change)

    def _moved(self, op: OpCall, read: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        entries = [entry for entry in map(self.held.get, read) if entry is not None]
        if op.base == "copy":
            made, moved = entries[0].made.seen(read[0]), [each.seen(read[0]) for each in entries[0].moved]
        else:
            made = self._replayed(op, None)
            moved = [self._replayed(op, place) for place in range(len(entries[0].moved))]
        self._put(result, entries[0], entries, made, moved)

    def _put(self, result: torch.Tensor, entry: Stages, entries: Sequence[Stages], made: torch.Tensor, moved: list[torch.Tensor]) -> None:
        """Writes to the result's storage, which may hold other parts of the same tensor already."""
        before = self.held.get(result)
        if before is not None and before.origin == entry.origin:
            for flat, content in zip([before.made, *before.moved], [made, *moved], strict=True):
                flat.seen(result).copy_(content)
            flats, entries = [before.made, *before.moved], [before, *entries]
        else:
            flats = [Flat.of(result, each) for each in (made, *moved)]
        sums: frozenset[Pair] = frozenset().union(*(each.sums for each in entries))
        differences: frozenset[Pair] = frozenset().union(*(each.differences for each in entries))
        self.held.put(result, Stages(flats[0], flats[1:], entry.held, entry.origin, entry.place, sums, differences))

    def _ended(self, tensor: torch.Tensor) -> None:
        """The transform has ended: an op that is no stage reads the tensor."""
        entry = self.held.get(tensor)
        self.held.drop(tensor)
        if entry is None or not entry.sums or entry.sums != entry.differences:
            return
        whole = flattened(tensor)
        made = entry.made.numbers
        if len(made) == len(whole) and float((whole.float() - made).norm()) <= AGREE * float(made.norm()):
            self.rotations.transformed(entry, whole)
