"""Runs ops on integers again with other bits in place of those that are followed, so that the results show where these have gone.

Moves, shifts, masks and sums of words do not look at what bits mean. So no layout is known by name, and no op either.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages, flattened, length, plain, whole
from precheck.observe.shadow.replaying.replay import OpCall

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
            if isinstance(value, (list, tuple)):
                return type(value)(map(change, value))
            if not isinstance(value, torch.Tensor):
                return value
            labels = before if value is target else held.get(value) if plain(value) else None
            return value if labels is None else labels.seen(value, run)

        again = op.func(*map(change, op.args), **op.kwargs)
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
