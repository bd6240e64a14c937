"""Fetches tensors from an accelerator, many by one transfer.

Reading a number from a GPU waits for all work queued before it. So an op is compared with its shadow by samples, which come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from precheck.observe.shadow.operations import Value

SAMPLE = 1 << 14
"""Elements of a sample on an accelerator. A share of 1 % is then known to 0.08 %."""


_DISTINCT = 4096  # lost elements among which different ones are counted


def elsewhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor does not lie on the host."""
    return not tensor.is_cpu


def fetched(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensors on the host. Those that lie there already are returned as they are; the others come by one transfer for each device and dtype."""
    if not any(map(elsewhere, tensors)):
        return tensors
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    held = {key: iter(_together(group)) for key, group in groups.items()}
    return [next(held[tensor.device, tensor.dtype]) for tensor in tensors]


def _together(group: list[torch.Tensor]) -> list[torch.Tensor]:
    if len(group) == 1:
        return [group[0].cpu()]
    whole = torch.cat([tensor.reshape(-1) for tensor in group]).cpu()
    parts = whole.split([tensor.numel() for tensor in group])
    return [part.view(tensor.shape) for tensor, part in zip(group, parts, strict=True)]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor without autograd, with its negative or conjugate bit carried out."""
    tensor = tensor.detach()
    tensor = tensor.resolve_neg() if tensor.is_neg() else tensor
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def count_nonfinite(value: Value, run: torch.Tensor, shadow: torch.Tensor) -> None:
    """Counts elements that are not finite in the run only, on the tensors' device."""
    bad = (shadow.isfinite() & ~run.isfinite()) | (run.isnan() & shadow.isinf())
    lost = shadow[bad]
    value.nonfinite, value.unheld = lost.numel(), int((~shadow.isfinite()).sum())
    if value.nonfinite:
        value.nans, value.beyond, value.negative = int((run.isnan() & bad).sum()), float(lost.abs().max()), bool((lost < 0).all())
        value.distinct_overflows = len(lost[:_DISTINCT].unique())
