"""Fetches numbers from an accelerator later, for many ops at once.

Reading a number from a GPU waits for all work queued before it. So on such a device each op leaves copies of samples. After every 128 ops,
one transfer for each dtype brings the samples to the host. There they are measured in order, as on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

FETCHED = 128
"""Ops that share one transfer: samples of 2^14 elements and their shadows, about 12 MB."""
SAMPLE = 1 << 14
"""Elements of a sample on an accelerator. A share of 1 % is then known to 0.08 %."""


class Deferred:
    """Calls `then(*tensors)` with tensors on the host: at once if they are there already, else after the next transfer."""

    def __init__(self, *, always: bool = False, fetched: int = FETCHED) -> None:
        self.fetched = fetched
        self.always = always  # defer on a CPU too, for tests
        self.waiting: list[tuple[list[torch.Tensor], Callable[..., None]]] = []

    def defers(self, tensor: torch.Tensor) -> bool:
        return self.always or not tensor.is_cpu

    def __call__(self, tensors: Sequence[torch.Tensor], then: Callable[..., None]) -> None:
        """Tensors that wait are copied, so they may change after this call. Calls are answered in the order in which they were made."""
        if not self.waiting and not any(self.defers(tensor) for tensor in tensors):
            then(*tensors)
            return
        self.waiting.append(([tensor.detach().clone() for tensor in tensors], then))
        if len(self.waiting) >= self.fetched:
            self.flush()

    def after(self, then: Callable[..., None], *arguments: Any) -> None:
        """Calls `then(*arguments)` after all waiting calls."""
        if self.waiting:
            self([], functools.partial(then, *arguments))
        else:
            then(*arguments)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        groups: dict[Any, list[torch.Tensor]] = {}
        for tensors, _ in waiting:
            for tensor in tensors:
                groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        fetched: dict[int, torch.Tensor] = {}
        for group in groups.values():
            whole = torch.cat([tensor.reshape(-1) for tensor in group]).cpu()
            for tensor, part in zip(group, whole.split([tensor.numel() for tensor in group]), strict=True):
                fetched[id(tensor)] = part.view(tensor.shape)
        for tensors, then in waiting:
            then(*(fetched[id(tensor)] for tensor in tensors))
