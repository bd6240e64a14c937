"""Finds weights that are multiplied in place by a number close to one, as weight decay does, and do not change.

0.9999 w rounds to w in bfloat16 for every w. One such product loses less than the format can show, but a thousand of them lose a tenth of the weight.
The gradient's own step is another addition and may arrive, so the share of the whole step that arrived does not show this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.comparing.statistics import sampled
from precheck.observe.shadow.training.optimizers import decays
from precheck.observe.shadow.training.step_records import UnchangedProducts

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.operations import Operation

SAMPLE = 256
"""Elements that are tested for a change."""
_ALIKE = 1e-6
"""How far 1 - d, as Python computes it, may be from the rate that the user writes: a rate of 1e-4 is known to 1e-12."""


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
                found.averages |= averages(call.operation.inputs[0].maker, 1 - factor)
                found.intended += abs(1 - factor)


def averages(addition: Operation | None, rate: float) -> bool:
    """Whether an op adds another tensor times `rate`: then a product with 1 - rate and this addition are a moving average, and no decay.

    A step of gradient descent is also added to a weight that was multiplied, but its factor is a learning rate, which does not depend on the decay.
    """
    if addition is None or addition.base not in ops.ADDITIONS or len(addition.inputs) != 2:
        return False
    scaled = addition.inputs[1].maker
    factors = addition.scalars or (scaled.scalars if scaled is not None and scaled.base in ops.SCALING else ())
    return bool(factors) and math.isclose(factors[-1], rate, rel_tol=_ALIKE)
