"""Numbers for what a watched run holds: Python and torch give the addresses of what is freed to what comes next."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Identities:
    """A number for each object, from 1 on, that no other ever gets; and which of them is kept in which storage."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._kept: dict[int, tuple[StorageWeakRef, weakref.ref[Any], int]] = {}
        self._numbers = itertools.count(1)

    def __call__(self, thing: Any) -> int:
        """The number of a parameter, a scaler or anything else that can be referred to weakly."""
        known = self._known.get(id(thing))
        if known is None or known[0]() is not thing:
            known = self._known[id(thing)] = weakref.ref(thing), next(self._numbers)
        return known[1]

    def keep(self, tensor: torch.Tensor) -> None:
        """Remembers whose the storage of a tensor is."""
        storage = tensor.untyped_storage()
        self._kept[storage._cdata] = StorageWeakRef(storage), weakref.ref(tensor), self(tensor)

    def owner(self, tensor: torch.Tensor) -> int:
        """The number of the kept tensor whose storage this one looks into; 0 if there is none."""
        storage, kept, number = self._kept.get(tensor.untyped_storage()._cdata, (None, None, 0))
        alive = storage is not None and kept is not None and not storage.expired() and kept() is not None
        return number if alive else 0
