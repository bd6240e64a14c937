"""Knows where the numbers of wide tensors and of integers come from that have no shadow, since they are the run's and the reference's alike.

They were given to the block, drawn at random in it, computed in it, or written into the program. A cast to a low format of what a model computes is
the model's own, whether it computes with fractions or with whole numbers, as a count of samples is. What is computed outside of all modules may be
data, which a program may store low: they are known to a rounding, if at all. Not so a state: what each step of a training computes from what the step
before it has computed, such as a count of words or a running mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.replaying.replay import OpCall, addressable, tensors_in
from precheck.torch_internals import located

AS_BEFORE = ops.UNROUNDED | ops.MOVING | ops.CASTS
"""Ops that compute no new numbers, or a constant of one number."""

STEPS = 2
"""Numbers are a state if they were handed on from step to step so often. Data that are made ready once, or one step before, are handed on once."""


class Made(NamedTuple):
    """When numbers were computed."""

    step: int  # of the training
    handed: int = 0  # how many times a step has computed them, or what they are computed from, from numbers of an earlier step


class WideNumbers:
    """The storages of a watched run whose numbers are made from random ones, were computed, or are one number that was written into the program."""

    def __init__(self) -> None:
        self.drawn: Storages[bool] = Storages()
        self.computed: Storages[Made] = Storages()
        self.written: Storages[bool] = Storages()
        self.stored: Storages[bool] = Storages()  # low tensors that hold what a model has computed wide

    def draws(self, places: list[tuple[int, int]]) -> bool:
        """Whether an op reads random numbers. `places`: where its floats lie, as `located` tells."""
        return _any_in(self.drawn, places)

    def made(self, op: OpCall, places: list[tuple[int, int]], result: Any, step: int) -> None:
        """After an op in wide formats, or on integers: notes what its result is made from. What was only moved, selected or cast is as before."""
        draws = op.draws()
        drawn = draws or self.draws(places)
        before = self._computed_before(places or _places_of_integers(op))
        computed = before
        if op.base not in AS_BEFORE:
            handed = 0 if before is None else before.handed + (before.step < step)
            computed = None if draws else Made(step, handed)
        for each in tensors_in(result) if drawn or computed else ():
            if each.layout is torch.strided and each.dtype is not torch.bool:
                if drawn:
                    self.drawn.put(each, True)
                if computed:
                    self.computed.put(each, computed)

    def _computed_before(self, places: list[tuple[int, int]]) -> Made | None:
        """Of what an op reads: the numbers that were handed on most often. None if none were computed."""
        entries = self.computed.entries
        found = (entries[place[0]][1] for place in places if place[0] in entries) if entries else ()
        return max(found, key=lambda each: (each.handed, -each.step), default=None)

    def constant(self, numbers: Any, tensor: torch.Tensor) -> None:
        """Notes a tensor that is made from one Python number. Such a number is a constant of the program, while a list may be data."""
        if isinstance(numbers, float):
            self.written.put(tensor, True)

    def stores(self, low: torch.Tensor, own: bool) -> None:
        """Notes whether a low tensor now holds what the model has computed wide."""
        if own:
            self.stored.put(low, True)
        elif self.stored:
            self.stored.drop(low)

    def own(self, tensor: torch.Tensor, within: bool) -> bool:
        """Whether the program has made these numbers, and not only stored them. `within`: inside a module's forward pass."""
        computed = self.computed.get(tensor)
        return bool(self.written.get(tensor)) or (computed is not None and (within or computed.handed >= STEPS))


def _places_of_integers(op: OpCall) -> list[tuple[int, int]]:
    """Where the integers lie that an op without floats reads."""
    return located(filter(addressable, op.tensors()))


def _any_in(storages: Storages[bool], places: list[tuple[int, int]]) -> bool:
    """Whether any of these storages is among those. Asked at every op, so it reads no tensor again."""
    for place in places if storages.entries else ():
        if place[0] in storages.entries:
            return True
    return False
