"""Numbers of tensors on an accelerator, fetched later, for many ops at once.

A program that asks a GPU for a number waits for all that the GPU was given before. On such a device ops leave copies of samples behind. After every
128 of them one transfer a dtype brings them to the host, where they are measured in order, as on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

FETCHED = 128
"""Ops that wait for one transfer: samples of 2^14 elements and their shadows, some 12 MB."""
SAMPLE = 1 << 14
"""Elements of a sample there; a share of one in a hundred is then known to 0.08 %."""


class Deferred:
    """Calls `then(*tensors)` with tensors on the host: at once if that is where they are, else when enough are waiting."""

    def __init__(self, *, always: bool = False, fetched: int = FETCHED) -> None:
        self.fetched = fetched
        self.always = always  # on a CPU too, which shows that nothing in between asks for a number
        self.waiting: list[tuple[list[torch.Tensor], Callable[..., None]]] = []

    def defers(self, tensor: torch.Tensor) -> bool:
        return self.always or not tensor.is_cpu

    def __call__(self, tensors: Sequence[torch.Tensor], then: Callable[..., None]) -> None:
        """`tensors` may change after this call: what waits is copied. Calls are answered in the order in which they were made."""
        if not self.waiting and not any(self.defers(tensor) for tensor in tensors):
            then(*tensors)
            return
        self.waiting.append(([tensor.detach().clone() for tensor in tensors], then))
        if len(self.waiting) >= self.fetched:
            self.flush()

    def after(self, then: Callable[..., None], *arguments: Any) -> None:
        """Calls `then(*arguments)` when all that waits has been answered."""
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
