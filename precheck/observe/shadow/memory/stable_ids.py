"""Gives objects ids that stay unique while a run is watched. Python and torch reuse the addresses of freed objects."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch

from precheck.observe.shadow.memory.storages import Storages


class WeakReference:
    """A weak reference that can be released for a moment. Torch cannot swap tensors that have weak references."""

    __slots__ = ("number", "weak")

    def __init__(self, thing: Any, number: int) -> None:
        self.weak: weakref.ref[Any] | None = weakref.ref(thing)
        self.number = number

    def __call__(self) -> Any:
        """The object. None if it is gone."""
        return None if self.weak is None else self.weak()


class Identities:
    """A unique number for each object, from 1 on, and the owner of each storage.

    All weak references to parameters are here, so that they can be released while `torch.utils.swap_tensors` works (FSDP2 and DTensor modules swap
    when they are converted), and after the block.
    """

    def __init__(self) -> None:
        self._known: dict[int, WeakReference] = {}
        self._owners: Storages[WeakReference] = Storages()
        self._numbers = itertools.count(1)

    def __call__(self, thing: Any) -> int:
        """The number of a parameter, a scaler or another object that supports weak references."""
        return self.refer(thing).number

    def refer(self, thing: Any) -> WeakReference:
        known = self._known.get(id(thing))
        if known is None or known() is not thing:
            known = self._known[id(thing)] = WeakReference(thing, next(self._numbers))
        return known

    def keep(self, tensor: torch.Tensor) -> None:
        """Remembers a tensor as the owner of its storage."""
        self._owners.put(tensor, self.refer(tensor))

    def owner(self, tensor: torch.Tensor) -> int:
        """The number of the tensor that owns this one's storage. 0 if none is known."""
        owner = self._owners.get(tensor)
        return owner.number if owner is not None and owner() is not None else 0

    def forget(self) -> None:
        """Releases all references at the end of the run."""
        for known in self._known.values():
            known.weak = None

    @contextlib.contextmanager
    def swapping(self) -> Iterator[None]:
        """Inside, torch can swap tensors, and each keeps its number."""
        swap: Any = torch.utils.swap_tensors

        def swapped(one: torch.Tensor, other: torch.Tensor) -> None:
            known = [(each, self._known[id(each)]) for each in (one, other) if id(each) in self._known]
            for _, reference in known:
                reference.weak = None
            try:
                swap(one, other)
            finally:
                for each, reference in known:
                    reference.weak = weakref.ref(each)

        torch.utils.swap_tensors = swapped
        try:
            yield
        finally:
            if torch.utils.swap_tensors is swapped:
                torch.utils.swap_tensors = swap


def is_parameter(tensor: Any) -> TypeGuard[torch.nn.Parameter]:
    """The same as `isinstance`, but faster for plain tensors: `isinstance` takes as long as looking up a storage."""
    return type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)
