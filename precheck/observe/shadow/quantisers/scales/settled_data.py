"""Follows data whose scales have been taken out, and finds the product that multiplies by one of them again.

No copies are kept of such data: what it is made of is known. Only where it is multiplied by a scale of its own codes once more are there two copies
again, and they differ by that scale.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, Storages, whole
from precheck.observe.shadow.quantisers.code_copies import Track
from precheck.observe.shadow.quantisers.scales.scale_roots import Powers
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import in_backward

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

KEPT = ops.WHOLE_COPIES | ops.FORMS | ops.MOVING | ops.PRODUCTS | {"_int_mm"}
"""Ops whose result has the scales of its operands if these have any. A sum with other data has a unit, and is no longer looked at."""


@dataclasses.dataclass(slots=True, eq=False)
class Settled:
    """What data was rounded under. `begun`: the extremes of data that its codes were multiplied by and divided by, when they were rounded."""

    rounded: str
    begun: Powers
    sources: frozenset[int]


class SettledData:
    """The data of a run that was dequantised."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.held: Storages[tuple[Settled, ...]] = Storages(sized=True)

    def settled(self, track: Track, result: torch.Tensor) -> None:
        """`result` is what these codes stand for."""
        if track.nested is not None and whole(result):
            self.codes.scales.dequantised(track.nested, result, track.cost[0] if track.cost is not None else math.inf)
        if track.begun and whole(result):
            self.held.put(result, (Settled(track.rounded, track.begun, track.sources),))

    def follow(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op."""
        known = [found for each in inputs if (found := self.held.get(each)) is not None]
        if not known or (op.base in ("mul", "div") and len(inputs) == 2 and self._again(op, inputs, result)):
            return
        if self.codes.tracks.get(result) is None and op.base in KEPT and whole(result):
            self.held.put(result, tuple(dict.fromkeys(each for found in known for each in found)))
        elif op.plan.written:
            self.held.drop(result)

    def _again(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
        """After a product: whether it multiplies by one of the scales again. Autograd does, for the gradient of what was rounded."""
        own = not in_backward() or self.codes.gradients.open is not None
        for data, scale in (inputs, inputs[::-1])[: 1 if op.base == "div" else 2]:
            powers = self.codes.scales.multiplied({}, scale, op.base) if self.codes.scales.made.get(scale) == "scale" else None
            for each in self.held.get(data) or ():
                if powers and own and any(power * each.begun.get(key, 0.0) < 0 for key, power in powers.items()):
                    copies = Flat.of(result, result), [Flat.of(result, data.expand(result.shape))]
                    self.codes.tracks.put(result, Track(*copies, each.rounded, multipliers=2, early=1, dense=True, filled=True, sources=each.sources,
                                                        powers=powers, begun=each.begun, last=self.codes.described(op.plan.name)))  # fmt: skip
                    return True
        return False
