"""Tensors as numpy arrays, in buffers that each thread keeps."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import torch

ROOM = 1 << 17
"""Elements that there is memory for: twice a sample, which may be somewhat longer than asked for."""
_SHAPES = 1 << 11  # for which that memory has been cut to size
Numbers = numpy.ndarray
"""1-D, float32 or float64."""


def lent(tensor: torch.Tensor, dtype: torch.dtype, use: str = "") -> Numbers:
    """A 1-D copy for numpy, whose calls take a fifth of the time that torch's take. A copy, since torch lets nobody resize a storage again that
    numpy has seen, as FSDP2 does with its weights. It lasts until the next call for that `use`."""
    if tensor.is_neg():
        tensor = tensor.clone()  # carries the bit out, which arithmetic this far down does not honour
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.numel() > ROOM:
        copy: Numbers = tensor.reshape(-1).to(dtype, copy=True).numpy()
        return copy
    space, numbers = _space(tensor.shape, dtype, use)
    space.copy_(tensor)
    return numbers


def _space(shape: torch.Size, dtype: torch.dtype, use: str) -> tuple[torch.Tensor, Numbers]:
    """Memory that this thread keeps, as a tensor of that shape and as 1-D numbers. What is new costs more: of some size the operating system gives
    it page by page."""
    kept = _kept.spaces
    found: tuple[torch.Tensor, Numbers] | None = kept.get((shape, dtype, use))
    if found is None:
        if len(kept) > _SHAPES:
            kept.clear()
        with torch.inference_mode(False):
            whole = kept.setdefault((dtype, use), torch.empty(ROOM, dtype=dtype))
            part = whole[: shape.numel()]
            found = kept[shape, dtype, use] = part.view(shape), part.numpy()
    return found


def scratch(like: Numbers, use: str) -> Numbers | None:
    """Such memory for as many numbers; None where they are too many for it."""
    dtype = torch.float64 if like.dtype == numpy.float64 else torch.float32
    return _space(torch.Size((like.size,)), dtype, use)[1] if like.size <= ROOM else None


class _Kept(threading.local):
    def __init__(self) -> None:
        self.spaces: dict[Any, Any] = {}


_kept = _Kept()
