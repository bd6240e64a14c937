"""Figures of an accelerator's tensors that are fetched at the end of a run, all by one transfer for each dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from precheck.observe.shadow.comparing.fetching import fetched


class Waiting:
    """Calls that wait for tensors, in the order in which they were made."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[torch.Tensor], Callable[..., None]]] = []

    def add(self, tensors: Sequence[torch.Tensor], then: Callable[..., None]) -> None:
        """`then` is called with the tensors on the host. Nothing may write into them before that."""
        self.calls.append((tensors, then))

    def flush(self) -> None:
        """Fetches all tensors, and makes the calls."""
        calls, self.calls = self.calls, []
        held = iter(fetched([tensor for tensors, _ in calls for tensor in tensors]))
        for tensors, then in calls:
            then(*(next(held) for _ in tensors))
