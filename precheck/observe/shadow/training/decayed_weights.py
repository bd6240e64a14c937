"""Finds weights that are multiplied in place by a number close to one, as weight decay does, and do not change.

0.9999 w rounds to w in bfloat16 for every w. One such product loses less than the format can show, but a thousand of them lose a tenth of the weight.
The gradient's own step is another addition and may arrive, so the share of the whole step that arrived does not show this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.comparing.statistics import sampled
from precheck.observe.shadow.training.optimizers import decays
from precheck.observe.shadow.training.step_records import UnchangedProducts

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

SAMPLE = 256
"""Elements that are tested for a change."""


class DecayedWeights:
    """Products that changed nothing, by the identity of the parameter."""

    def __init__(self) -> None:
        self.unchanged: dict[int, UnchangedProducts] = {}

    def multiplied(self, call: Call) -> None:
        """After a product with a number. Most numbers are far from one and cost only a comparison."""
        factor = call.operation.scalars[0]
        for tensor, cell in zip(call.floats, call.cells, strict=True):
            low = cell is not None and cell.parameter and tensor.dtype in call.mode.low and any(tensor is each for each in call.written)
            if not low or cell is None or not 0 < abs(1 - factor) < torch.finfo(tensor.dtype).eps:
                continue
            if call.mode.tracker.stepping is not None and not decays(call.mode.tracker.stepping, tensor):
                continue
            few = sampled(tensor.detach(), SAMPLE)
            if torch.equal(few * factor, few) and bool(few.any()):  # what one product leaves unchanged, the next one does too
                found = self.unchanged.setdefault(cell.parameter, UnchangedProducts(call.operation, cell.value.dtype))
                found.times += 1
                found.intended += abs(1 - factor)
