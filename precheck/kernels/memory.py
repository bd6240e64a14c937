"""Lays out the tensors of a trial in memory, with guards that detect writes outside a tensor."""

from __future__ import annotations

import dataclasses
import math

import torch

from precheck.pairs.distances import same_bits

GUARD = 64
"""Guard elements on each side of a tensor. They must not be written, and hold NaN (or the largest integer), which shows if read."""
LAYOUTS = {
    "transposed": "x.mT.contiguous().mT",
    "strided": "x.repeat_interleave(2, -1)[..., ::2]",
    "offset": "torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)",
    "expanded": "x[:1].expand(x.shape)",
    "channels last": "x.movedim(1, -1).contiguous().movedim(-1, 1)",
    "rows before heads": "x.transpose(-3, -2).contiguous().transpose(-3, -2)",
    "columns of a wider tensor": "torch.cat([x, x], -1)[..., :x.shape[-1]]",
    "every other row": "x.repeat_interleave(2, 0)[::2]",
    "conjugated when read": "x.conj_physical().conj()",
}
"""Layouts, and code that gives them to a tensor `x`. Part of a wider tensor, as a slice of a joint projection leaves it, has neighbours in its last
dimension that lie side by side: a kernel that copies what is strided there alone takes it as it is, and may forget the distance of its rows."""
_DOUBLED = {"columns of a wider tensor": -1, "every other row": 0}
"""The dimension whose numbers lie behind one another with as many others between."""


@dataclasses.dataclass(slots=True, eq=False)
class Buffer:
    """A tensor in its own storage, and a copy of the storage at the start."""

    tensor: torch.Tensor
    storage: torch.Tensor
    before: torch.Tensor

    def touched(self) -> str:
        """What was written to: "it" (the tensor), "the memory beside it", or "" for neither."""
        if same_bits(self.storage, self.before):
            return ""
        place = self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
        same = same_bits(torch.as_strided(self.storage, *place), torch.as_strided(self.before, *place))
        return "the memory beside it" if same else "it"

    def write(self, values: torch.Tensor) -> None:
        """Writes new values in place."""
        with torch.no_grad():
            self.tensor.copy_(values)
            self.before = self.storage.clone()


same = same_bits


def address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()


def ran_out(error: Exception | None) -> bool:
    """Whether an error says that there was not enough memory, on a CPU or a device."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)


def laid(values: torch.Tensor, layout: str = "contiguous") -> Buffer:
    """`values` in a layout. `expanded` repeats the first row. A contiguous tensor starts its storage."""
    perm, shape, steps = _order(values, layout), list(values.shape), 1
    if layout == "expanded" and values.dim():
        shape[0] = min(shape[0], 1)
    if layout == "strided":
        steps = 2
    physical = [shape[axis] for axis in perm]
    count, front = steps, 0 if layout == "contiguous" else GUARD + 1
    for size in physical:
        count *= size
    strides, step = [0] * values.dim(), steps
    doubled = _DOUBLED.get(layout)
    count *= 1 if doubled is None else 2
    storage = torch.full((front + count + GUARD,), poison(values.dtype), dtype=values.dtype, device=values.device)
    for axis in reversed(perm):
        step *= 1 + (axis == doubled)
        strides[axis], step = step, step * max(shape[axis], 1) * (1 + (doubled == -1 and axis == perm[-1]))
    if layout == "expanded" and values.dim():
        strides[0] = 0
        values = values[:1].expand(values.shape)
    conjugated = layout == "conjugated when read"  # torch marks the tensor, and whoever reads its memory has to change the signs
    values = values.conj() if conjugated else values
    small = torch.as_strided(storage, shape, strides, front)
    if small.numel():
        small.copy_(values[: shape[0]] if values.dim() else values)
    tensor = torch.as_strided(storage, values.shape, strides, front)
    return Buffer(tensor.conj() if conjugated else tensor, storage, storage.clone())


def _order(values: torch.Tensor, layout: str) -> list[int]:
    axes = list(range(values.dim()))
    if layout == "transposed" and values.dim() >= 2:
        axes[-1], axes[-2] = axes[-2], axes[-1]
    if layout == "channels last" and values.dim() >= 3:
        axes = [0, *axes[2:], 1]
    if layout == "rows before heads" and values.dim() >= 3:  # as a projection leaves them
        axes[-2], axes[-3] = axes[-3], axes[-2]
    return axes


def fits(values: torch.Tensor, layout: str) -> bool:
    """Whether a tensor of that shape can have the layout."""
    least = {"transposed": 2, "channels last": 3, "rows before heads": 3, "expanded": 2, **dict.fromkeys(_DOUBLED, 2)}.get(layout, 1)
    return values.dim() >= least and (values.is_complex() or layout != "conjugated when read")


def poison(dtype: torch.dtype) -> float | int | bool:
    """A value that shows wherever it is used."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max
