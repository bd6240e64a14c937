"""Measures the sums in which autograd accumulates several gradients of one value, in the value's own format.

A weight that is read n times has n gradients. Autocast casts a weight once and caches the cast, so the gradients are added before they are
widened. These are n - 1 additions that round. With many terms they lose small terms. Each sum is compared with a float64 sum of the same terms.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.statistics import norm, ratio
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.op_notes import Summed
from precheck.observe.shadow.probes import partial_writes

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.operations import Operation, Value

SAMPLE = 1 << 12
"""Elements of a gradient that are followed."""
TERMS = 8
"""Least number of terms of a sum that is measured. With fewer, the error is one or two roundings."""


@dataclasses.dataclass(slots=True)
class Sum:
    """A sum so far: its place in its storage, the value that holds it, a sample of the same sum in float64, and the number of gradients.

    `squares` is the sum of the squared norms of all sums so far, this one included, without the first gradient.
    """

    where: partial_writes.Region
    value: Value
    exact: torch.Tensor
    terms: int
    squares: torch.Tensor


class Gradients:
    """The sums of a backward pass, by storage."""

    def __init__(self) -> None:
        self.sums: Storages[Sum] = Storages()

    def added(self, call: Call, output: torch.Tensor, value: Value) -> None:
        """After autograd has added two gradients of one value, or one gradient to a parameter's accumulated one."""
        if len(call.floats) != 2 or any(each.dtype != output.dtype or each.shape != output.shape for each in call.floats):
            return
        known = [self._known(tensor, held) for tensor, held in zip(call.floats, call.inputs, strict=True)]
        if call.written and known[0] is None:
            exact, terms = grid(output).to(torch.float64), 2  # its earlier content is gone, but it is off by one rounding at most
        else:
            both = zip(call.floats, known, strict=True)
            sums = [(each.exact, each.terms) if each else (grid(tensor).to(torch.float64), 1) for tensor, each in both]
            exact, terms = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
        squares = sum([each.squares for each in known if each], 0.0) + exact.square().sum()
        self.sums.put(output, Sum(partial_writes.region(output), value, exact, terms, squares))
        if terms >= TERMS:
            _resolved(call.operation, terms, *fetched([grid(output), exact, squares]))

    def _known(self, tensor: torch.Tensor, held: Value) -> Sum | None:
        """The sum that a tensor holds, if it still holds all of it."""
        found = self.sums.get(tensor)
        self.sums.drop(tensor)
        return found if found is not None and found.value is held and found.where == partial_writes.region(tensor) else None


def _resolved(operation: Operation, terms: int, low: torch.Tensor, exact: torch.Tensor, squares: torch.Tensor) -> None:
    size = norm(exact)
    operation.summed = Summed(terms, ratio(norm(low.to(exact.dtype) - exact), size), ratio(math.sqrt(float(squares) / (terms - 1)), size))


def grid(tensor: torch.Tensor) -> torch.Tensor:
    """All elements, or a view of up to `SAMPLE`, evenly spread along each dimension. The strides of the tensor do not change which elements."""
    if tensor.numel() <= SAMPLE:
        return tensor
    left, places = SAMPLE, sorted(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    chosen = [slice(None)] * tensor.dim()
    for remaining, dim in zip(range(tensor.dim(), 0, -1), places, strict=True):
        step = math.ceil(tensor.shape[dim] / max(1, math.floor(left ** (1 / remaining))))
        chosen[dim] = slice(None, None, max(1, step))
        left //= max(1, math.ceil(tensor.shape[dim] / max(1, step)))
    return tensor[tuple(chosen)]
