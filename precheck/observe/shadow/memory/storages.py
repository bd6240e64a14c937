"""Keeps data for each storage. Any tensor that views the storage finds it, and it is dropped when the storage is freed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.torch_internals import storage_key

Kept = TypeVar("Kept")
PRUNED = 64
"""Entries from which those of freed storages are removed."""


class Storages(Generic[Kept]):
    """An entry for each storage, as long as the storage lives. `gone` is called with each entry whose storage was freed or given another.

    `sized`: a storage has an entry for each size of its elements, since a page of bytes may also hold wider numbers.
    """

    def __init__(self, gone: Callable[[Kept], None] = lambda kept: None, *, sized: bool = False) -> None:
        self.entries: dict[int | tuple[int, int], tuple[StorageWeakRef, Kept]] = {}
        self.gone, self.prune, self.sized = gone, PRUNED, sized

    def __bool__(self) -> bool:
        return bool(self.entries)

    def key(self, tensor: torch.Tensor) -> int | tuple[int, int]:
        return (storage_key(tensor), tensor.element_size()) if self.sized else storage_key(tensor)

    def get(self, tensor: torch.Tensor) -> Kept | None:
        if not self.entries:  # most tables of most programs, asked several times an op
            return None
        found = self.entries.get(self.key(tensor))
        return None if found is None else found[1]

    def put(self, tensor: torch.Tensor, kept: Kept) -> None:
        key = self.key(tensor)
        before = self.entries.pop(key, None)
        if before is not None:
            self.gone(before[1])
        self.entries[key] = StorageWeakRef(tensor.untyped_storage()), kept
        if len(self.entries) > self.prune:
            self._pruned()

    def drop(self, tensor: torch.Tensor) -> None:
        if self.entries:
            self.entries.pop(self.key(tensor), None)

    def clear(self) -> None:
        """Drops all entries, of which nobody is told."""
        self.entries.clear()

    def values(self) -> Iterator[Kept]:
        return iter([kept for _, kept in self.entries.values()])

    def _pruned(self) -> None:
        expired = [key for key, (reference, _) in self.entries.items() if reference.expired()]
        for key in expired:
            self.gone(self.entries.pop(key)[1])
        self.prune = max(PRUNED, 2 * len(self.entries))


@dataclasses.dataclass(slots=True)
class Flat:
    """Float32 numbers for all elements of a storage."""

    numbers: torch.Tensor  # 1-D

    @classmethod
    def of(cls, tensor: torch.Tensor, content: torch.Tensor) -> Flat:
        """`content` at the place of `tensor` in its storage, and zero elsewhere."""
        flat = torch.zeros(length(tensor), dtype=torch.float32, device=tensor.device)
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(content)
        return cls(flat)

    def seen(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.numbers.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def length(tensor: torch.Tensor) -> int:
    """The number of elements of a tensor's storage."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() == length(tensor)


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, in one dimension."""
    return tensor.detach().as_strided((length(tensor),), (1,), 0)


def plain(tensor: Any) -> bool:
    """Whether a tensor is strided and real."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_complex()
