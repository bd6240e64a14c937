"""Weights that are multiplied where they lie by a number next to one, as decay does, and stay what they are.

0.9999 w is w in bfloat16 for every w. One such product loses nothing that the format could show, and a thousand of them lose a tenth of the weight.
The step of the gradient, which may well arrive, is another addition, so what of the whole step arrived does not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.optimizers import decays
from precheck.observe.shadow.statistics import sampled
from precheck.observe.shadow.step_records import Undone

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

SAMPLE = 256
"""Elements that are asked whether the product is another number."""


class Factors:
    """By the identity of the parameter."""

    def __init__(self) -> None:
        self.undone: dict[int, Undone] = {}

    def multiplied(self, call: Call) -> None:
        """After a product with a number. Most numbers are far from one, and cost a comparison."""
        factor = call.operation.scalars[0]
        for tensor, cell in zip(call.floats, call.cells, strict=True):
            low = cell is not None and cell.parameter and tensor.dtype in call.mode.low and any(tensor is each for each in call.written)
            if not low or cell is None or not 0 < abs(1 - factor) < torch.finfo(tensor.dtype).eps or call.mode.later.defers(tensor):
                continue
            if call.mode.where.stepping is not None and not decays(call.mode.where.stepping, tensor):
                continue
            few = sampled(tensor.detach(), SAMPLE)
            if torch.equal(few * factor, few) and bool(few.any()):  # what the product leaves as it is, another leaves so too
                found = self.undone.setdefault(cell.parameter, Undone(call.operation, cell.value.dtype))
                found.times += 1
                found.meant += abs(1 - factor)
