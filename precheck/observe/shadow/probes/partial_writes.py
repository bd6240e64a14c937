"""Keeps the values of a storage that is written in parts, such as channel by channel or step by step.

A write through a view does not change the rest of the storage. So each part keeps its own value. An op that reads several parts reads a new value,
which is measured at that time and has the values of these parts as ancestors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.comparing.statistics import compare
from precheck.observe.shadow.memory.storages import length
from precheck.observe.shadow.operations import Value
from precheck.torch_internals import storage_at
from precheck.words import dtype_name

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.memory.cells import Cell

KEPT = 32
"""Values of one storage that are kept: those with Inf, NaN or zeros first, then those with the largest errors."""

Region = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides and offset, in elements."""


def region(tensor: torch.Tensor) -> Region:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _dense(where: Region) -> tuple[int, int]:
    """The length of a run of neighbouring elements, and the greatest common divisor of the strides between runs, which is 0 for a single run."""
    run, outer = 1, 0
    for stride, size in sorted((stride, size) for size, stride in zip(where[0], where[1], strict=True) if size > 1):
        if stride <= run and not outer:
            run += stride * (size - 1)
        else:
            outer = math.gcd(outer, stride)
    return run, outer


def _extent(where: Region) -> int:
    return 1 + sum(stride * (size - 1) for size, stride in zip(where[0], where[1], strict=True))


def apart(one: Region, other: Region) -> bool:
    """Whether two regions certainly have no element in common. False if sizes and strides do not show it easily."""
    if 0 in one[0] or 0 in other[0] or one[2] + _extent(one) <= other[2] or other[2] + _extent(other) <= one[2]:
        return True
    (run, outer), (length, between) = _dense(one), _dense(other)
    turn = math.gcd(outer, between)
    if not turn or run > turn or length > turn:
        return False
    ahead = (other[2] - one[2]) % turn  # distance from the start of a run of `one` to the next start of a run of `other`
    return run <= ahead and ahead + length <= turn


def covers(one: Region, other: Region) -> bool:
    """Whether `one` certainly has all elements of `other`."""
    dense = _dense(one)[1] == 0 and _extent(one) == math.prod(one[0])
    return one == other or (dense and one[2] <= other[2] and other[2] + _extent(other) <= one[2] + _extent(one))


def after_write(cell: Cell, tensor: torch.Tensor, value: Value) -> None:
    """After a write to the tensor, which is the cell's storage or a part of it: it holds `value`."""
    elements = length(tensor)
    if tensor.numel() == elements or tensor.is_complex() or cell.dtype.is_complex:
        cell.parts = None
    else:
        where = region(tensor)
        known = cell.parts or [(((elements,), (1,), 0), cell.value)]
        cell.parts = [each for each in known if not covers(where, each[0])]
        if len(cell.parts) >= KEPT:
            cell.parts.remove(min(cell.parts, key=lambda each: _weight(each[1])))
        cell.parts.append((where, value))
    cell.value = value


def _weight(value: Value) -> tuple[bool, bool, float]:
    error = value.drift * value.norm
    return bool(value.nonfinite), bool(value.zeros), error if math.isfinite(error) else 0.0


def found(cell: Cell, tensor: torch.Tensor) -> list[Value]:
    """The values of the parts that a tensor overlaps, the latest first. One value if it was written or read before as a whole."""
    if cell.parts is None or tensor.is_complex():
        return [cell.value]
    where, values = region(tensor), []
    for known, value in reversed(cell.parts):
        if not apart(known, where):
            values.append(value)
            if covers(known, where):
                break
    return values or [cell.value]


def read(call: Call, cell: Cell, tensor: torch.Tensor, overwritten: bool) -> Value:
    """The value that a call reads. If the tensor has several parts, a new value is measured, unless it is only overwritten."""
    values = found(cell, tensor)
    if len(values) == 1 or cell.parts is None or overwritten or not any(value.drift or value.nonfinite for value in values):
        return values[0]
    mode, shadow = call.mode, call.mode.memory.view(cell, tensor)
    made = dataclasses.replace(call.described(), name="cat.default", inputs=tuple(values), scalars=(), in_place=True)
    coarsest, kept = max(values, key=lambda value: value.roundoff), any(value.kept_low for value in values)
    value = Value(made, tuple(tensor.shape), dtype_name(tensor.dtype), coarsest.roundoff, tensor.dtype in mode.low, kept)
    made.outputs = (value,)
    compare(value, tensor, shadow, zeros=any(each.zeros for each in values))
    _of_one_call(value, values)
    mode.observation.add(made)
    cell.parts.append((region(tensor), value))
    return value


def _of_one_call(value: Value, parts: list[Value]) -> None:
    """The joined value belongs to the call of a user's function that wrote its last part, and has the errors that this call added to its parts."""
    made, last = value.maker, parts[0].maker
    if made is not None and last is not None and last.call and value.norm:
        added = (each.call_error * each.norm for each in parts if each.maker is not None and each.maker.call == last.call)
        made.call, value.call_error = last.call, math.hypot(*added) / value.norm


def present(cell: Cell) -> Iterator[Value]:
    """The values that a storage still holds. For a part with Inf, NaN or zeros, the storage is checked for them."""
    yield cell.value
    for where, value in cell.parts or ():
        if value is not cell.value and (not (value.nonfinite or value.zeros) or _there(cell, where, value)):
            yield value


def _there(cell: Cell, where: Region, value: Value) -> bool:
    storage = storage_at(cell.reference.cdata)
    if storage is None:
        return False
    run = torch.empty(0, dtype=cell.dtype, device=cell.content.device).set_(storage, where[2], where[0], where[1])
    again = dataclasses.replace(value, nonfinite=0, zeros=0)
    compare(again, run, cell.flat.as_strided(*where), zeros=True)
    return bool(again.nonfinite if value.nonfinite else again.zeros)
