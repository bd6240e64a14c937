"""Follows integers, to learn whether the program uses them as positions or as amounts: those cast from floats, and those of integer products.

A position, a length or a bucket is wrong if it differs by one. An amount (a code, a pixel) is then only off by a rounding. An amount is cast back to
floats, and no other op reads it. If a sine reads these floats, up to a factor or a sum, it is a position after all, unless all angles lie within one
turn. A rounding u of an angle A is u A, so up to 2 pi it is a few roundings, and beyond many turns it may be a turn.

So are the places that a choice returns beside its values. If nothing reads them, equal scores make no difference: the values are equal, too.

An integer that a `where` discards is none of these: T5's buckets take the logarithm of every distance, and use it for the long ones alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck import ops
from precheck.observe.shadow.comparing.statistics import WHOLES, sampled
from precheck.observe.shadow.memory.storages import Storages, whole
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.replaying.replay import OpCall, OpPlan, tensors_in
from precheck.torch_internals import in_backward

ARITHMETIC = (ops.SUMS | ops.SCALING | ops.CUTS | ops.STEPS | ops.REDUCTIONS | ops.ORDERINGS | ops.GUARDS | ops.CASTS) - ops.SCATTERING
"""Ops that compute with integers as numbers. An op that moves floats uses its integers as positions."""

TURN = 2 * math.pi
PERIODIC = frozenset({"sin", "cos", "tan"})
LINEAR = ops.SCALING | ops.SUMS | ops.MOVING | ops.CASTS
"""Ops after which a number still counts in units."""


class IntegerUses:
    """The storages of a watched run that hold such integers."""

    def __init__(self) -> None:
        self.made: Storages[tuple[Operation, ...]] = Storages()
        self.measured: Storages[tuple[Operation, ...]] = Storages()  # floats that are such integers times a factor, or in a sum
        self.moved: Storages[bool] = Storages()  # such integers in other places than the cast left them
        self.picked: Storages[bool] = Storages()  # those that a `where` has chosen

    def cast(self, operation: Operation, integers: torch.Tensor) -> None:
        """A cast has made these integers: starts to follow them."""
        self.made.put(integers, (operation,))

    def chosen(self, operation: Operation, places: torch.Tensor) -> None:
        """A choice has returned these places beside its values: starts to follow them."""
        operation.places = StorageWeakRef(places.untyped_storage())
        self.made.put(places, (operation,))

    def given(self, integers: torch.Tensor) -> None:
        """The program takes these integers to Python: it may use them as places."""
        known = self.made.get(integers) if self.made and integers.layout is torch.strided else None
        for operation in known or ():
            operation.used_as = "place"

    def read(self, op: OpCall, result: Any) -> None:
        """After an op: notes whether it used such integers as positions or as amounts, or made new ones from them."""
        found, measured, unchosen = dict[Operation, None](), dict[Operation, None](), dict[Operation, None]()
        moved, chosen = op.base in ops.MOVING, op.base == "where"
        for tensor in tensors_in(*op.args):
            if tensor.layout is torch.strided and not tensor.is_floating_point():
                here = dict.fromkeys(self.made.get(tensor) or ())
                if here and in_backward():  # a derivative gives the gradient to one of equal scores
                    here = {operation: None for operation in here if operation.places is None}
                found |= here
                unchosen |= {} if self.picked.get(tensor) else here
                moved, chosen = moved or bool(self.moved.get(tensor)), chosen or bool(self.picked.get(tensor))
            elif tensor.layout is torch.strided and self.measured:
                measured |= dict.fromkeys(self.measured.get(tensor) or ())
        results = list(tensors_in(result))
        kind = results[0].dtype if results else torch.bool
        if kind is not torch.bool and not kind.is_floating_point and op.base in ARITHMETIC | ops.MOVING:
            if unchosen and op.base == "where":
                self._discards(unchosen, *op.args)
            for each in results if found else ():
                self.made.put(each, tuple(found))
                self.moved.put(each, moved)
                self.picked.put(each, chosen)
            return
        for operation in unchosen:
            operation.left_out = frozenset()
        if op.base in PERIODIC and measured and _turns(op.args[0]):
            found |= measured
        elif kind.is_floating_point and op.base in LINEAR and (found or measured):
            for each in results:
                self.measured.put(each, (*found, *measured))
        amount = kind.is_floating_point and op.base in ARITHMETIC
        for operation in found:
            operation.used_as = "amount" if amount and operation.used_as != "place" else "place"

    def _discards(self, operations: Iterable[Operation], condition: torch.Tensor, first: Any, other: Any) -> None:
        """Notes which elements of the casts a `where` discards, if they lie in its operand as the casts left them."""
        for tensor, kept in ((first, condition), (other, ~condition)):
            made = self.made.get(tensor) or () if isinstance(tensor, torch.Tensor) else ()
            known = bool(made) and whole(tensor) and tensor.is_contiguous() and not self.moved.get(tensor)
            gone = (~sampled(kept.expand(tensor.shape).contiguous(), WHOLES)).nonzero().flatten().tolist() if known else []
            for operation in operations:
                if operation in made and operation.left_out is None:
                    operation.left_out = frozenset(gone)


class IntegerAmounts:
    """The storages of a watched run that hold amounts by their origin: results of integer matrix products, such as int8's."""

    def __init__(self) -> None:
        self.known: Storages[bool] = Storages()

    def made(self, planned: OpPlan, result: Any) -> None:
        """After an op without floats: marks the result of an integer product."""
        if planned.base in ops.PRODUCTS and isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.known.put(result, True)

    def given(self, args: tuple[Any, ...]) -> bool:
        """Whether an op reads such integers."""
        given = (arg for arg in args if isinstance(arg, torch.Tensor) and arg.layout is torch.strided)
        return bool(self.known.entries) and any(map(self.known.get, given))


def _turns(angles: torch.Tensor) -> bool:
    """Whether some angle is beyond one turn."""
    return bool(angles.numel()) and bool((angles.detach().abs() > TURN).any())
