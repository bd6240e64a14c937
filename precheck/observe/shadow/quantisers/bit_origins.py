"""Follows the numbers of a quantiser through bytes: which bits come from its scales and zero points, and which from its codes.

A view as another dtype, a page that several things are copied into, shifts and masks make other numbers of the same bits. So the same ops run with
three other contents: all followed bits are zero, those of scales are one, and those of codes are one. A bit that differs between the first run and
another comes from what was changed. A bit that is the same in all runs is that of a constant, or of data that is not followed.

What is made of bits of scales, perhaps of codes too, and of constants depends on nothing else. So it is known what it stands for: a scale or zero
point, if it multiplies codes or is added to them. Whether it is the right one is asked of the result.

Moves, shifts, masks and sums of words do not look at what bits mean. So no layout is known by name, and no op either.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages, flattened, length, plain, whole
from precheck.observe.shadow.quantisers.scales.scale_roots import ScaleKind, Source
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in, with_items

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

NOTHING, SCALES, CODES = range(3)
"""The runs."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element."""


SHIFTS = {"__lshift", "__ilshift", "bitwise_left_shift", "__rshift", "__irshift", "bitwise_right_shift"}
JOINS = {"__or", "__ior", "bitwise_or", "__xor", "__ixor", "bitwise_xor"}
BITS = SHIFTS | JOINS | {"__and", "__iand", "bitwise_and"}
MOVED = (ops.MOVING | ops.WHOLE_COPIES | ops.CASTS | {"copy"}) - {"where"}
COMPUTED = ops.ADDITIONS | ops.CUTS | {"sum", "mul"}
"""Ops that pack and unpack integers by numbers, such as sums of shifted codes."""


@dataclasses.dataclass(slots=True)
class Runs:
    """For each run, the bytes of a storage."""

    runs: list[torch.Tensor]

    def seen(self, tensor: torch.Tensor, run: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """What `tensor` is in this run, as numbers of its own dtype or of another one of that size."""
        entire = self.runs[run][: length(tensor) * tensor.element_size()]  # a page of bytes may end within a wider number
        return entire.view(dtype or tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


Held = TypeVar("Held", bound=Runs)


def again(op: OpCall, result: torch.Tensor, held: Storages[Held], count: int) -> list[torch.Tensor] | None:
    """The runs of the op's result, or of what it writes into. Other operands are as they are. What is written has been written already."""
    target = op.args[0] if op.plan.written else None
    found = None if target is None else held.get(target)
    if target is not None and found is None:
        if op.base not in JOINS | {"copy"} and not (op.base in MOVED and whole(result)):
            return None
        content = flattened(target).clone()
        if op.base in JOINS:  # what was there has no bits that are joined now
            content.as_strided(target.size(), target.stride(), target.storage_offset()).bitwise_and_(~op.args[1])
    before = found or (None if target is None else Runs([content.view(torch.uint8).clone() for _ in range(count)]))
    made = []
    for run in range(count):

        def change(value: Any, run: int = run) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            labels = before if value is target else held.get(value) if plain(value) else None
            return value if labels is None else labels.seen(value, run)

        again = op.func(*with_items(op.args, change), **op.kwargs)
        if before is None:
            made.append(_bytes(again, result))
    return made if before is None else before.runs


def _bytes(made: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The bytes of `made` as those of the storage of `result`."""
    if made.is_contiguous() and len(made.shape) and made.numel() == length(result) and result.is_contiguous():
        return made.view(-1).view(torch.uint8)
    flat = torch.zeros(length(result), dtype=result.dtype, device=result.device)
    flat.as_strided(result.size(), result.stride(), result.storage_offset()).copy_(made)
    return flat.view(torch.uint8)


@dataclasses.dataclass(slots=True)
class BitRuns(Runs):
    """The runs of a storage, and what the scales in it are."""

    coded: bool = False  # whether it has bits of codes
    kinds: frozenset[ScaleKind] = frozenset()
    source: Source | None = None


class BitOrigins:
    """The storages of a run that hold bits of scales or codes."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[BitRuns] = Storages()
        self.pages: Storages[bool] = Storages(sized=True)  # what holds scales or codes in a part of it

    def read(self, op: OpCall) -> OpCall:
        """Before an op is followed: the op on what it reads. An operand that is made of bits of scales is a scale of its own there."""
        if not self.held:
            return op
        scales = self.codes.scales

        def apart(value: Any) -> Any:
            origins = self.held.get(value) if plain(value) else None
            if origins is None or (scales.made.get(value) and not self.pages.get(value)):
                return value
            made: torch.Tensor = value.detach().clone() if self._scales(value, origins) else value
            if made is not value:
                kind: ScaleKind = next(iter(origins.kinds)) if len(origins.kinds) == 1 else "scale"
                scales.made.put(made, "scale" if kind == "exponent" and made.is_floating_point() else kind)
                if origins.source is not None:
                    scales.sources.put(made, origins.source)
            return made

        kept = op.args[:1] if op.plan.written else ()
        return op._replace(args=(*kept, *map(apart, op.args[len(kept) :])))

    def follow(self, op: OpCall, result: torch.Tensor) -> None:
        """After an op."""
        if not self.held and op.base != "copy":
            return
        inputs = list(filter(plain, tensors_in(*op.args)))
        part = op.base == "copy" and len(inputs) > 1 and not whole(result)
        if part:
            self.begun(inputs[1])
        if not any(self.held.get(each) is not None for each in inputs):
            return
        for each in inputs[part:] if _moves(op, inputs, result) else ():  # a page is no scale since a part of it is one
            self.begun(each)
        runs = again(op, result, self.held, 3) if _moves(op, inputs, result) else None
        if runs is not None:
            known = [found for each in (*inputs, result) if (found := self.held.get(each)) is not None]
            source = functools.reduce(_joined, (each.source for each in known))
            self.held.put(result, BitRuns(runs, any(each.coded for each in known), frozenset().union(*(each.kinds for each in known)), source))
            if part and any(each.coded for each in known):
                self.pages.put(result, True)
                self.codes.scales.made.drop(result)
        elif op.base in ops.REPLACING and len(inputs) == 1 and (filled := self.held.get(result)) is not None:
            for run in (NOTHING, SCALES, CODES):
                filled.seen(result, run, INTEGERS[result.element_size()]).zero_()  # a written number
        elif op.plan.written:
            self.held.drop(result)

    def of_scales(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Which integers of a tensor's storage have bits of scales."""
        origins = self.held.get(tensor)
        if origins is None:
            return None
        flat = flattened(tensor)
        return origins.seen(flat, NOTHING) != origins.seen(flat, SCALES)

    def begun(self, tensor: torch.Tensor) -> None:
        """Gives the bits of a scale, or of codes, their runs."""
        if self.held.get(tensor) is not None or not plain(tensor) or tensor.dtype is torch.bool:
            return
        kind, many = self.codes.scales.made.get(tensor), tensor.untyped_storage().nbytes()
        coded = kind is None and (self.codes.tracks.get(tensor) is not None or self.codes.packed.held.get(tensor) is not None)
        if kind is None and not coded:
            return
        zeros, ones = torch.zeros(many, dtype=torch.uint8, device=tensor.device), torch.full((many,), 255, dtype=torch.uint8, device=tensor.device)
        runs = [zeros, zeros.clone(), ones] if coded else [zeros, ones, zeros.clone()]
        self.held.put(tensor, BitRuns(runs, coded, frozenset() if kind is None else frozenset({kind}), self.codes.scales.sources.get(tensor)))

    def _scales(self, tensor: torch.Tensor, origins: BitRuns) -> bool:
        """Whether a tensor is made of bits of scales and constants. Real numbers may have bits of codes too, which are taken for scales then, unless
        the codes are numbers of this size."""
        nothing, scales, codes = (origins.seen(tensor, run, INTEGERS[tensor.element_size()]) for run in (NOTHING, SCALES, CODES))
        if bool((nothing != nothing.reshape(-1)[0]).any()) or not bool((scales != nothing).any()):
            return False
        return (tensor.is_floating_point() and self.codes.tracks.get(tensor) is None) or not bool((codes != nothing).any())


def _moves(op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
    """Whether an op moves bits, or computes integers from integers. A cast of real numbers makes other bits."""
    if op.base in MOVED and (op.base not in ops.CASTS | {"copy"} or len({each.dtype for each in (*inputs, result)}) == 1):
        return True
    return op.base in BITS | COMPUTED | MOVED and not any(each.is_floating_point() or each.dtype is torch.bool for each in (*inputs, result))


def _joined(one: Source | None, other: Source | None) -> Source | None:
    if one is None or other is None or one is other:
        return one or other
    return Source(one.extremes | other.extremes, None, max(one.cost, other.cost))
