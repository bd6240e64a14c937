"""Shadow memory: a `Cell` for each storage of the watched run, with the storage's content in the reference precision.

Cells are keyed by storage, as valgrind's memcheck keys by address. The shadow of a tensor is its storage's shadow, viewed with the tensor's sizes and
strides. So views, in-place ops, `out=` arguments and tensors saved by autograd need no code of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.shadow.memory.storages import length
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.probes import partial_writes
from precheck.torch_internals import address, storage_at, storage_key

if TYPE_CHECKING:
    from precheck.observe.shadow.probes.accumulation import Accumulator

COLLECT = 1 << 26
"""Bytes of new shadows (64 MiB) after which the shadows of freed tensors are dropped. A quarter of all shadows, if that is more."""
CELL = 1 << 10
"""Bytes that a cell costs beside its numbers (measured: 0.9 KiB). They are counted so that loops over scalars are cleaned up too."""


class Cell:
    """The shadow of one storage. `flat` and `perturbed` are 1-D. Cells made by a cast share `flat` until one of them is written."""

    __slots__ = ("_flat", "accumulator", "bytes", "content", "dtype", "parameter", "parts", "payload", "perturbed", "reference", "shared", "value")

    def __init__(self, storage: torch.UntypedStorage, content: torch.Tensor, dtype: torch.dtype, value: Value) -> None:
        """`content` is that of the whole storage: 1-D, or an op's result in its own shape, since most results are read in the shape
        in which they are made."""
        self.reference, self.content, self.dtype, self.value = StorageWeakRef(storage), content, dtype, value
        self._flat = content if content.dim() == 1 else None
        self.bytes = storage.nbytes()  # size of the run's storage when `flat` was made
        self.perturbed: torch.Tensor | None = None
        self.shared = [1]  # how many cells share `flat`; may be too large, never too small
        self.parameter = 0  # identity of the parameter in this storage
        self.accumulator: Accumulator | None = None
        self.payload: torch.Tensor | None = None
        self.parts: list[tuple[partial_writes.Region, Value]] | None = None  # the latest value of each part; None: written as a whole

    @property
    def flat(self) -> torch.Tensor:
        """The content, 1-D."""
        if self._flat is None:
            self._flat = _flattened(self.content)
        return self._flat

    @flat.setter
    def flat(self, flat: torch.Tensor) -> None:
        self.content = self._flat = flat

    @property
    def cost(self) -> int:
        """Its size in bytes, with its part of shared memory."""
        perturbed = 0 if self.perturbed is None else self.perturbed.untyped_storage().nbytes()
        return CELL + self.content.untyped_storage().nbytes() // self.shared[0] + perturbed

    def own(self) -> None:
        """Before a write: copies `flat` if other cells share it."""
        if self.shared[0] > 1:
            self.flat, before = self.flat.clone(), self.shared
            self.shared = [1]
            before[0] -= 1  # last, so that no count is too small after an interrupt


class Memory:
    """The cells of a run, by storage."""

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.fresh_bytes = self.known_bytes = 0

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of the tensor's storage. None if there is none, or if it was made for another dtype."""
        storage = tensor.untyped_storage()
        return self.at((address(storage), storage.nbytes()), tensor)

    def at(self, place: tuple[int, int], tensor: torch.Tensor) -> Cell | None:
        """The same for a tensor whose storage has been `located`."""
        cell = self.cells.get(place[0])
        if cell is None or (cell.dtype is not tensor.dtype and _real(cell.dtype) != _real(tensor.dtype)):
            return None
        if cell.bytes != place[1] and cell.payload is None:
            self._resize(cell, tensor)
        return cell

    def _resize(self, cell: Cell, tensor: torch.Tensor) -> None:
        """After `resize_` of a tensor or its storage: old elements keep their shadow, new ones get the run's numbers."""
        cell.own()
        cell.bytes = tensor.untyped_storage().nbytes()
        old = torch.view_as_real(cell.flat).reshape(-1) if cell.flat.is_complex() else cell.flat
        cell.flat, cell.perturbed, cell.accumulator = _contents(tensor).to(old.dtype, copy=True), None, None
        kept = min(old.numel(), cell.flat.numel())
        cell.flat[:kept] = old[:kept]
        self._count(cell)

    def view(self, cell: Cell, tensor: torch.Tensor) -> torch.Tensor:
        """The shadow of `tensor`, as a view of its storage's."""
        held = cell.content
        alike = held.dtype.is_complex == tensor.dtype.is_complex and not tensor.is_conj() and not tensor.is_neg()
        if alike and held.shape == tensor.shape and held.stride() == tensor.stride() and held.storage_offset() == tensor.storage_offset():
            return held
        return _seen_as(cell.flat, tensor)

    def written_view(self, cell: Cell, tensor: torch.Tensor) -> torch.Tensor:
        """The same for a tensor that is about to be written. It is always a new view, since the op may resize it."""
        return _seen_as(cell.flat, tensor)

    def perturbed_view(self, cell: Cell, tensor: torch.Tensor) -> torch.Tensor:
        return _seen_as(cell.flat if cell.perturbed is None else cell.perturbed, tensor)

    def put(self, tensor: torch.Tensor, shadow: torch.Tensor, value: Value, *, perturbed: torch.Tensor | None = None) -> Cell:
        """Makes a new cell for the tensor's storage. The run must not be able to change `shadow`."""
        storage = tensor.untyped_storage()
        elements = storage.nbytes() // tensor.element_size()
        cell = self.cells[address(storage)] = Cell(storage, _whole(tensor, shadow, elements), tensor.dtype, value)
        if perturbed is not None:
            cell.perturbed = _flattened(_whole(tensor, perturbed, elements))
        self._count(cell)
        return cell

    def keep(
        self, tensor: torch.Tensor, shadow: torch.Tensor, value: Value, *, perturbed: torch.Tensor | None, written: bool, foreign: list[int]
    ) -> None:
        """Stores the shadow of a result in its cell or a new one. It must share memory neither with the result nor with a storage in `foreign`."""
        cell = self.find(tensor) if written else None
        if cell is None:
            key = storage_key(shadow)
            if key in foreign or key == storage_key(tensor):
                shadow = shadow.clone()  # a cast to the same dtype does not copy, and an in-place op would then change the user's tensor
            self.put(tensor, shadow, value, perturbed=None if perturbed is None else perturbed.clone())
            return
        if storage_key(shadow) != storage_key(cell.content):
            cell.own()
            _write(cell.flat, tensor, shadow)
        if perturbed is not None:
            if cell.perturbed is None:
                cell.perturbed = cell.flat.clone()
            if storage_key(perturbed) != storage_key(cell.perturbed):
                _write(cell.perturbed, tensor, perturbed)
        partial_writes.after_write(cell, tensor, value)

    def share(self, tensor: torch.Tensor, source: Cell, value: Value) -> Cell:
        """Makes a cell that shares the shadow of another: a copy or a cast does not change the content in the reference."""
        storage = tensor.untyped_storage()
        cell = Cell(storage, source.content, tensor.dtype, value)
        cell.perturbed = None if source.perturbed is None else source.perturbed.clone()
        source.shared[0] += 1  # first, so that no count is too small after an interrupt
        cell.shared = source.shared
        self.cells[address(storage)] = cell
        self.fresh_bytes += CELL
        return cell

    def seed(self, tensor: torch.Tensor, reference: torch.dtype, value: Value) -> Cell:
        """Makes a cell that starts from the run's own numbers."""
        storage = tensor.untyped_storage()
        cell = self.cells[address(storage)] = Cell(storage, _contents(tensor).to(reference, copy=True), tensor.dtype, value)
        self._count(cell)
        return cell

    def entrust(self, tensor: torch.Tensor, payload: torch.Tensor) -> None:
        """Keeps the workspace that a replayed kernel made for its own backward, under the storage of the run's workspace."""
        storage, value = tensor.untyped_storage(), Value(None, tuple(tensor.shape), "uint8", 0.0)
        cell = self.cells[address(storage)] = Cell(storage, payload, tensor.dtype, value)
        cell.payload = payload
        self._count(cell)

    def payload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        cell = self.cells.get(storage_key(tensor))
        return None if cell is None else cell.payload

    def drop(self, tensor: torch.Tensor) -> None:
        self.cells.pop(storage_key(tensor), None)

    def alive(self) -> list[Cell]:
        self._collect()
        return list(self.cells.values())

    def holding(self, values: set[Value]) -> list[Value]:
        """Those of `values` that a storage still holds."""
        here = (cell for cell in self.cells.values() if not values.isdisjoint(each for _, each in cell.parts or ((None, cell.value),)))
        return [value for cell in here if not _gone(cell) for value in partial_writes.present(cell) if value in values]

    def made_since(self, number: int, elements: int) -> list[torch.Tensor]:
        """The storages of that many elements that an op after `number` wrote, as flat tensors of the run."""
        found = []
        for cell in self.cells.values():
            maker = cell.value.maker
            fits = maker is not None and maker.number > number and math.prod(cell.value.shape) == elements and not cell.dtype.is_complex
            if fits and not _gone(cell):
                storage = storage_at(cell.reference.cdata)
                whole = torch.empty(0, dtype=cell.dtype, device=cell.content.device).set_(storage)
                if whole.numel() == elements:
                    found.append(whole)
        return found

    def _count(self, cell: Cell) -> None:
        self.fresh_bytes += cell.cost
        if self.fresh_bytes > COLLECT and self.fresh_bytes > self.known_bytes // 4:
            self._collect()

    def _collect(self) -> None:
        """Drops the shadows of freed storages. It runs by bytes and not by ops, since few large tensors can fill the memory."""
        gone = {key: cell for key, cell in self.cells.items() if _gone(cell)}
        self.cells, self.fresh_bytes = {key: cell for key, cell in self.cells.items() if key not in gone}, 0
        for cell in gone.values():  # once for each cell, also after an interrupt
            cell.shared[0] -= 1
        self.known_bytes = sum(cell.cost for cell in self.cells.values())


def _whole(tensor: torch.Tensor, shadow: torch.Tensor, elements: int) -> torch.Tensor:
    """The shadow of the tensor's whole storage, which has that many elements. The tensor may be a part of it."""
    if length(shadow) == elements and shadow.storage_offset() == 0 == tensor.storage_offset() and shadow.stride() == tensor.stride():
        return shadow if shadow.numel() == elements else shadow.as_strided((elements,), (1,), 0)
    flat = torch.zeros(elements, dtype=shadow.dtype, device=shadow.device)
    flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(shadow)
    return flat


def _flattened(tensor: torch.Tensor) -> torch.Tensor:
    """A 1-D view of a tensor's whole storage."""
    return tensor if tensor.dim() == 1 else tensor.as_strided((length(tensor),), (1,), 0)


def _gone(cell: Cell) -> bool:
    """Whether the storage was freed, or emptied, as FSDP does with weights between uses."""
    if cell.reference.expired():
        return True
    storage = storage_at(cell.reference.cdata)
    return storage is None or (cell.bytes > 0 and storage.nbytes() == 0)


def _contents(tensor: torch.Tensor) -> torch.Tensor:
    """A 1-D view of the tensor's whole storage. Complex numbers are pairs."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=_real(tensor.dtype), device=tensor.device)
    return whole.set_(storage, 0, (storage.nbytes() // whole.element_size(),), (1,))


def _seen_as(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The elements of `flat` that the tensor shows. Conjugate and negative bits are applied: a dispatch mode runs below torch's code for them."""
    seen = _placed(flat, tensor)
    if tensor.is_conj():
        seen = seen.conj_physical()
    return seen.neg() if tensor.is_neg() else seen


def _placed(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex() != flat.is_complex():
        flat = flat.view(flat.dtype.to_complex() if tensor.is_complex() else flat.dtype.to_real())
    return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _write(flat: torch.Tensor, tensor: torch.Tensor, shadow: torch.Tensor) -> None:
    """Writes the shadow of `tensor` to its place in its storage's shadow."""
    if tensor.is_conj():
        shadow = shadow.conj_physical()
    _placed(flat, tensor).copy_(shadow.neg() if tensor.is_neg() else shadow)


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype
