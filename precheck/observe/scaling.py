"""The loss scale of a backward pass, told by torch's own GradScaler while it is watched."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from precheck.observe.whereabouts import Whereabouts


@contextlib.contextmanager
def scales_noted(where: Whereabouts) -> Iterator[None]:
    """Inside the block `where.scale` is the factor that the loss of the next backward pass carries."""
    original = torch.amp.GradScaler.scale

    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if scaler.is_enabled():
            with _disable_current_modes():
                where.scale = float(scaler.get_scale())
        return result

    torch.amp.GradScaler.scale = scale  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.amp.GradScaler.scale = original  # type: ignore[method-assign]
