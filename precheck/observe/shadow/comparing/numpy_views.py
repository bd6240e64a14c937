"""Copies tensors to numpy arrays, in buffers that each thread keeps."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import torch

ROOM = 1 << 17
"""Elements of a buffer: twice a sample, since a sample may be somewhat longer than asked for."""
_SHAPES = 1 << 11  # shapes for which views of the buffer are kept
_tolist = torch.Tensor.tolist  # a watch replaces the method, to see what the program reads
Numbers = numpy.ndarray
"""1-D, float32 or float64."""


def lent(tensor: torch.Tensor, dtype: torch.dtype, use: str = "") -> Numbers:
    """A 1-D copy as a numpy array, since numpy's calls take a fifth of the time of torch's. It is valid until the next call with the same `use`.
    It is a copy because torch cannot resize a storage that numpy has seen, and FSDP2 resizes its weights."""
    tensor = _settled(tensor)
    if tensor.numel() > ROOM:
        copy: Numbers = tensor.reshape(-1).to("cpu", dtype, copy=True).numpy()
        return copy
    return lent_and_seen(tensor, dtype, use)[1]


def lent_pair(run: torch.Tensor, shadow: torch.Tensor, dtype: torch.dtype) -> tuple[Numbers, Numbers, Numbers]:
    """1-D copies of two tensors of one shape, and their difference. They are valid until the next call, or one of `lent` for "run" or "shadow"."""
    shape = run.shape
    found = _kept.pairs.get((shape, dtype)) if shadow.shape == shape else None
    if found is None:
        if shape.numel() > ROOM or shadow.shape != shape:
            mine, exact = lent(run, dtype, "run"), lent(shadow, dtype, "shadow")
            return mine, exact, numpy.subtract(mine, exact)
        if len(_kept.pairs) > _SHAPES:
            _kept.pairs.clear()
        found = _kept.pairs[shape, dtype] = *_space(shape, dtype, "run"), *_space(shape, dtype, "shadow"), _space(shape, dtype, "error")[1]
    run_space, mine, shadow_space, exact, error = found
    run_space.copy_(_settled(run))
    shadow_space.copy_(_settled(shadow))
    return mine, exact, numpy.subtract(mine, exact, out=error)


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without autograd, and with its negative bit carried out, which arithmetic below dispatch ignores."""
    if tensor.is_neg():
        tensor = tensor.clone()
    return tensor.detach() if tensor.requires_grad else tensor


def lent_and_seen(tensor: torch.Tensor, dtype: torch.dtype, use: str = "") -> tuple[torch.Tensor, Numbers]:
    """The same copy of a tensor of up to ROOM numbers, as a tensor of its shape and as an array. Both see the same memory."""
    space, numbers = _space(tensor.shape, dtype, use)
    space.copy_(tensor)
    return space, numbers


def listed(tensor: torch.Tensor) -> list[float]:
    """The elements of a real tensor as Python numbers, in order. For few of them it takes half the time of an array."""
    tensor = _settled(tensor)
    numbers: list[float] = _tolist(tensor if tensor.dim() == 1 else tensor.reshape(-1))
    return numbers


def _space(shape: torch.Size, dtype: torch.dtype, use: str) -> tuple[torch.Tensor, Numbers]:
    """This thread's buffer, as a tensor of that shape and as a 1-D array. New memory would cost more: the operating system maps large pieces page by
    page."""
    kept = _kept.spaces
    found: tuple[torch.Tensor, Numbers] | None = kept.get((shape, dtype, use))
    if found is None:
        if len(kept) > _SHAPES:
            kept.clear()
        with torch.inference_mode(False):
            whole = kept.setdefault((dtype, use), torch.empty(ROOM, dtype=dtype, device="cpu"))
            part = whole[: shape.numel()]
            found = kept[shape, dtype, use] = part.view(shape), part.numpy()
    return found


def scratch(like: Numbers, use: str) -> Numbers | None:
    """A buffer for as many numbers as `like` has. None if that is too many."""
    dtype = torch.float64 if like.dtype == numpy.float64 else torch.float32
    return _space(torch.Size((like.size,)), dtype, use)[1] if like.size <= ROOM else None


class _Kept(threading.local):
    def __init__(self) -> None:
        self.spaces: dict[Any, Any] = {}
        self.pairs: dict[Any, Any] = {}


_kept = _Kept()
