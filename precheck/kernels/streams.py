"""Another CUDA stream, on which a call must give the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

_SIZE, _PRODUCTS = 4096, 16
"""The new stream multiplies matrices of this size at first: 2 · 10¹² operations, some 40 milliseconds. What does not wait for it reads too early."""


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """The CUDA device that a tensor lies on. None if there is none."""
    return next((each.device for each in tensors if each.device.type == "cuda"), None)


@contextlib.contextmanager
def another(device: torch.device) -> Iterator[None]:
    """Inside, the device's work goes to a new stream, which waits for the present one. Afterwards the present one waits for the new one."""
    present, new = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    new.wait_stream(present)
    try:
        with torch.cuda.stream(new):
            keep_busy(device)
            yield
    finally:
        present.wait_stream(new)


def keep_busy(device: torch.device) -> None:
    """Gives the current stream work. The caller does not wait for it."""
    square = torch.zeros(_SIZE, _SIZE, device=device)
    for _ in range(_PRODUCTS):
        square = square @ square
