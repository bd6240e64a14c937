"""Finds products that only move values, in a run that rounds the operands of its products (tf32), and computes them exactly.

A product with zeros and ones (an identity, a permutation, one-hot rows) moves or selects values. It is exact in float32, which a comparison with
float64 shows. So tf32 would only round the moved values. A product that computes is never exact, since two significands of 24 bits need 48 bits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck import ops
from precheck.observe.recording.module_hooks import Position
from precheck.observe.shadow.places.source import Frames, shortened
from precheck.torch_internals import in_backward, without_modes
from precheck.torch_support import float32
from precheck.torch_support.tensor_classes import Mode

_FACTORS = {getattr(torch.ops.aten, name): places for name, places in ops.MATRIX_PRODUCTS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """A product that only moves values, and its place: "aten.mm.default", "models/pose.py:12", "encoder.pose"."""

    op: str
    source: str
    module: str


class Selections(Mode):
    """Computes selections of the forward pass in plain float32, without the modes that round, and lists them."""

    def __init__(self, found: list[Selection], position: Position) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self.position, self.frames = found, position, Frames()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, places = kwargs or {}, _FACTORS.get(func.overloadpacket)
        if places is None or in_backward() or args[places[0]].dtype is not torch.float32:
            return func(*args, **kwargs)
        left, right = (args[place] for place in places)
        with without_modes(), float32.products(tf32=False):
            exact = torch.equal(torch.matmul(left, right).double(), torch.matmul(left.double(), right.double()))
            result = func(*args, **kwargs) if exact else None
        if not exact:
            return func(*args, **kwargs)
        self.found.append(Selection(str(func), shortened(self.frames.line(1)[0]), self.position.call.split("#")[0]))
        return result
