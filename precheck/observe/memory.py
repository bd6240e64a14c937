"""Shadow memory: for each storage of the watched run, what it would hold in the reference precision.

Keyed by storage, as valgrind's memcheck keys by address, so that views, in-place ops, out= arguments and what autograd saved
need no code of their own: the shadow of a tensor is its storage's shadow, seen through the tensor's sizes and strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.operations import Value

COLLECT = 1 << 26
"""Bytes of new shadows (64 MiB) after which those of freed tensors are let go, or a quarter of what is held if that is more."""


class Cell:
    """The shadow of one storage. `flat` and `twin` are 1-D; cells made by a cast share `flat` until one of them is written."""

    __slots__ = ("accumulator", "dtype", "flat", "parameter", "payload", "reference", "shared", "twin", "value")

    def __init__(self, reference: StorageWeakRef, flat: torch.Tensor, dtype: torch.dtype, value: Value) -> None:
        self.reference, self.flat, self.dtype, self.value = reference, flat, dtype, value
        self.twin: torch.Tensor | None = None
        self.shared = [1]  # how many cells hold `flat`
        self.parameter = 0  # identity of the parameter that lives here
        self.accumulator: Any = None
        self.payload: torch.Tensor | None = None

    def own(self) -> None:
        """Before it is written: from now on this cell's flat is nobody else's."""
        if self.shared[0] > 1:
            self.shared[0] -= 1
            self.flat, self.shared = self.flat.clone(), [1]


class Memory:
    """The cells of a run, by storage."""

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.fresh = self.held = 0

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of the tensor's storage, if it still describes it."""
        cell = self.cells.get(tensor.untyped_storage()._cdata)
        if cell is None:
            return None
        if cell.reference.expired() or _real(cell.dtype) != _real(tensor.dtype):
            return None
        return cell

    def view(self, cell: Cell, tensor: torch.Tensor) -> torch.Tensor:
        """The shadow of `tensor`, as a view of its storage's."""
        return _seen_as(cell.flat, tensor)

    def twin_view(self, cell: Cell, tensor: torch.Tensor) -> torch.Tensor:
        return _seen_as(cell.flat if cell.twin is None else cell.twin, tensor)

    def put(self, tensor: torch.Tensor, shadow: torch.Tensor, value: Value, *, twin: torch.Tensor | None = None) -> Cell:
        """A new cell for the tensor's storage. `shadow` must be the shadow's own: no part of the watched run may change it."""
        storage = tensor.untyped_storage()
        flat = self._flat(tensor, shadow)
        cell = self.cells[storage._cdata] = Cell(StorageWeakRef(storage), flat, tensor.dtype, value)
        if twin is not None:
            cell.twin = self._flat(tensor, twin)
        self._count(flat)
        return cell

    def keep(
        self, tensor: torch.Tensor, shadow: torch.Tensor, value: Value, *, twin: torch.Tensor | None, written: bool, foreign: list[torch.Tensor]
    ) -> None:
        """The shadow of a result: written into the cell it has, or a cell of its own. `foreign` is what it must not share memory with."""
        cell = self.find(tensor) if written else None
        if cell is None:
            storage = shadow.untyped_storage()._cdata
            if any(other.untyped_storage()._cdata == storage for other in (tensor, *foreign)):
                shadow = shadow.clone()  # a cast to the dtype a tensor has is no copy, and the next in-place op would reach the user's
            self.put(tensor, shadow, value, twin=None if twin is None else twin.clone())
            return
        if not _same_storage(shadow, cell.flat):
            cell.own()
            self.view(cell, tensor).copy_(shadow)
        if twin is not None:
            if cell.twin is None:
                cell.twin = cell.flat.clone()
            if not _same_storage(twin, cell.twin):
                self.twin_view(cell, tensor).copy_(twin)
        cell.value = value

    def share(self, tensor: torch.Tensor, source: Cell, value: Value) -> Cell:
        """A cell whose shadow is another's: the content was moved or cast, which the reference does not notice."""
        storage = tensor.untyped_storage()
        cell = self.cells[storage._cdata] = Cell(StorageWeakRef(storage), source.flat, tensor.dtype, value)
        cell.shared = source.shared
        cell.shared[0] += 1
        cell.twin = None if source.twin is None else source.twin.clone()
        return cell

    def seed(self, tensor: torch.Tensor, reference: torch.dtype, value: Value) -> Cell:
        """A cell that starts from what the run itself has."""
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        cell = self.cells[storage._cdata] = Cell(StorageWeakRef(storage), whole.to(reference, copy=True), tensor.dtype, value)
        self._count(cell.flat)
        return cell

    def entrust(self, tensor: torch.Tensor, payload: torch.Tensor) -> None:
        """Keeps what a replayed kernel left for its own backward, under the storage that the run's kernel left."""
        storage, value = tensor.untyped_storage(), Value(None, tuple(tensor.shape), "uint8", 0.0)
        cell = self.cells[storage._cdata] = Cell(StorageWeakRef(storage), payload, tensor.dtype, value)
        cell.payload = payload

    def payload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        cell = self.cells.get(tensor.untyped_storage()._cdata)
        return None if cell is None or cell.reference.expired() else cell.payload

    def drop(self, tensor: torch.Tensor) -> None:
        self.cells.pop(tensor.untyped_storage()._cdata, None)

    def alive(self) -> list[Cell]:
        self._collect()
        return list(self.cells.values())

    def _flat(self, tensor: torch.Tensor, shadow: torch.Tensor) -> torch.Tensor:
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = shadow.untyped_storage().nbytes() // shadow.element_size() == elements
        if whole and shadow.storage_offset() == 0 == tensor.storage_offset() and shadow.stride() == tensor.stride():
            return shadow.as_strided((elements,), (1,), 0)
        flat = torch.zeros(elements, dtype=shadow.dtype, device=shadow.device)
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(shadow)
        return flat

    def _count(self, flat: torch.Tensor) -> None:
        self.fresh += flat.numel() * flat.element_size()
        if self.fresh > max(COLLECT, self.held // 4):
            self._collect()

    def _collect(self) -> None:
        """Lets go of the shadows of freed storages. By bytes: by number of ops, a model of few large tensors outgrows any memory."""
        kept = {}
        for key, cell in self.cells.items():
            if cell.reference.expired():
                cell.shared[0] -= 1
            else:
                kept[key] = cell
        self.cells, self.fresh = kept, 0
        self.held = sum(cell.flat.numel() * cell.flat.element_size() // cell.shared[0] for cell in kept.values())


def _same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _seen_as(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex() != flat.is_complex():
        flat = flat.view(flat.dtype.to_complex() if tensor.is_complex() else flat.dtype.to_real())
    return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype
