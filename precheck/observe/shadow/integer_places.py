"""Integers that a cast has made of floats, and whether the program uses them as positions or as amounts.

A place, a length or a bucket is another one where it differs by one. An amount (a code, a pixel) is off by a rounding, as any number is: it goes back
to floats, and nothing else reads it.
"""

from __future__ import annotations

from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.replay import OpPlan, tensors_in
from precheck.observe.shadow.storages import Storages

ARITHMETIC = (ops.SUMS | ops.SCALING | ops.CUTS | ops.STEPS | ops.REDUCTIONS | ops.ORDERINGS | ops.GUARDS | ops.CASTS) - ops.SCATTERING
"""Ops that compute with integers as with any numbers. What moves elements about takes integers for places where it moves floats."""


class Places:
    """The storages of a watched run that hold such integers, and those that hold random numbers which no low format has rounded."""

    def __init__(self) -> None:
        self.made: Storages[tuple[Operation, ...]] = Storages()
        self.drawn: Storages[bool] = Storages()

    def cast(self, operation: Operation, integers: torch.Tensor) -> None:
        """A cast has made these integers, or a sort has: the places of its elements."""
        self.made.put(integers, (operation,))

    def read(self, planned: OpPlan, args: tuple[Any, ...], result: Any) -> Any:
        """An op has given `result`, which is handed on: whether it took such integers for places or amounts, or made other integers of them."""
        found: dict[Operation, None] = {}
        for tensor in tensors_in(*args):
            if tensor.layout is torch.strided and not tensor.is_floating_point():
                found |= dict.fromkeys(self.made.get(tensor) or ())
        results = list(tensors_in(result))
        kind = results[0].dtype if results else torch.bool
        if kind is not torch.bool and not kind.is_floating_point and planned.base in ARITHMETIC | ops.MOVING:
            for each in results if found else ():
                self.made.put(each, tuple(found))
            return result
        amount = kind.is_floating_point and planned.base in ARITHMETIC
        for operation in found:
            operation.taken = "amount" if amount and operation.taken != "place" else "place"
        return result

    def draws(self, floats: list[torch.Tensor]) -> bool:
        """Whether an op reads what is drawn."""
        return bool(self.drawn) and any(self.drawn.get(each) for each in floats)

    def draw(self, planned: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], floats: list[torch.Tensor], result: Any) -> Any:
        """An op that reads and makes nothing low has given `result`, which is handed on: whether it is drawn, or made of what is drawn."""
        if planned.draws(args, kwargs) or self.draws(floats):
            for each in tensors_in(result):
                if each.layout is torch.strided and each.is_floating_point():
                    self.drawn.put(each, True)
        return result
