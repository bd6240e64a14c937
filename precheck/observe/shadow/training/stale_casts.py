"""Finds casts of weights that are read after the weights have changed.

Two kinds are certainly wrong. One is autocast's own casts, which it caches until its context ends: they are recognised because the call that made
them reads them first. The other is casts made and read while autograd records: their gradients reach the new weight but belong to the old one.
Copies that are kept on purpose (a teacher, an old policy, a snapshot) are detached from their weights.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.shadow.comparing.statistics import norm, ratio, sampled, share
from precheck.observe.shadow.op_notes import Outdated
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.places.source import KINDS
from precheck.observe.shadow.probes.partial_writes import Region, region
from precheck.observe.shadow.replaying.replay import addressable
from precheck.torch_internals import address, storage_at, storage_key

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.mode import Shadow

PRUNED = 256
"""Casts from which freed ones are removed."""
BETWEEN = frozenset(str(Path(torch.__file__).parent / place) for place in ("_compile.py", "_dynamo/eval_frame.py"))
"""Files of torch between an op and a Python dispatch mode."""
Position = tuple[int, Any, int]
"""A frame, its code and its bytecode offset. It is the same for all ops of one call of a torch function."""


@dataclasses.dataclass(slots=True, eq=False)
class _Cast:
    source: StorageWeakRef
    copy: StorageWeakRef
    where: Region
    dtype: torch.dtype
    operation: Operation
    name: str
    position: Position | None  # where it was made; None once it has been read
    implicit: bool = False
    written: Operation | None = None  # the op that has changed the weight since


class Casts:
    """The casts of a run's weights."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.made: dict[int, _Cast] = {}  # by the address of the cast's storage
        self.sources: dict[int, list[_Cast]] = {}  # by the address of the weight's storage
        self.prune = PRUNED

    def cast(self, call: Call, output: torch.Tensor) -> None:
        """After a cast: remembers it if it casts a weight."""
        weight = call.floats[0]
        if not (weight.requires_grad and weight.is_leaf) or output.dtype == weight.dtype or storage_key(output) == storage_key(weight):
            return
        source, copy = weight.untyped_storage(), output.untyped_storage()
        name = self.mode.tracker.name_of(weight) or "a weight"
        cast = _Cast(StorageWeakRef(source), StorageWeakRef(copy), region(weight), weight.dtype, call.operation, name, self._position())
        self.made[address(copy)] = cast
        self.sources.setdefault(address(source), []).append(cast)
        if len(self.made) > self.prune:
            self._forget()

    def wrote(self, tensor: torch.Tensor, name: str) -> None:
        """Before an op writes a tensor: marks the casts of this weight as out of date."""
        if not self.sources or not addressable(tensor):
            return
        for cast in self.sources.pop(storage_key(tensor), ()):
            if cast.written is None:
                cast.written = self.mode.described(name)

    def read(self, call: Call) -> None:
        """Before an op: sets `operation.outdated` if it reads a cast that is out of date."""
        for key, _ in call.places:
            cast = self.made.get(key)
            if cast is None:
                continue
            if cast.position is not None:
                cast.implicit, cast.position = cast.position == self._position(), None
            connected = cast.operation.recording and call.operation.recording
            if cast.written is not None and call.operation.phase == "forward" and (cast.implicit or connected):
                call.operation.outdated = self._beside(cast)
                self.made.pop(key)

    def _beside(self, cast: _Cast) -> Outdated | None:
        """Compares the cast with the weight as it is now. None if they are equal, or if one is gone."""
        before, now = storage_at(cast.copy.cdata), storage_at(cast.source.cdata)
        if before is None or now is None or cast.written is None:
            return None
        dtype = getattr(torch, cast.operation.outputs[0].dtype)
        device = before.device
        kept = torch.empty(0, dtype=dtype, device=device).set_(before)
        weight = torch.empty(0, dtype=cast.dtype, device=device).set_(now, cast.where[2], cast.where[0], cast.where[1])
        fresh = torch.empty_like(weight, dtype=dtype).copy_(weight)
        kept = kept.as_strided(fresh.shape, fresh.stride()) if kept.numel() == fresh.numel() else fresh
        many = share(sampled(kept) != sampled(fresh))
        off = ratio(norm(sampled(kept).float() - sampled(fresh).float()), norm(sampled(fresh).float()))
        return Outdated(cast.operation, cast.written, cast.name, cast.implicit, many, off) if many else None

    def _position(self) -> Position:
        """Where the program is now, outside of precheck."""
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and (KINDS[frame.f_code.co_filename] in ("precheck", "passed over") or frame.f_code.co_filename in BETWEEN):
            frame = frame.f_back
        return id(frame), frame.f_code, frame.f_lasti

    def _forget(self) -> None:
        """Forgets casts that have been freed."""
        self.made = {key: cast for key, cast in self.made.items() if not cast.copy.expired()}
        here = {id(cast) for cast in self.made.values()}
        self.sources = {key: kept for key, casts in self.sources.items() if (kept := [each for each in casts if id(each) in here])}
        self.prune = max(PRUNED, 2 * len(self.made))
