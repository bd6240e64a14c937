"""A tensor reduced to what a record keeps of it."""

from __future__ import annotations

import math
from typing import Any

import torch

from precheck.observe.sketch import sketch


def reduced(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, sketch, norm, greatest magnitude and counts of non-finite and zero elements. Reads, never writes."""
    tensor = tensor.detach()
    facts: dict[str, Any] = {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    values = _real(tensor)
    amax = _amax(values)
    finite = math.isfinite(amax)
    if not finite:
        facts |= _nonfinite_counts(values)
        values = torch.where(values.isfinite(), values, torch.zeros((), dtype=values.dtype, device=values.device))
        amax = _amax(values)
    zeros = values.numel() - int(torch.count_nonzero(values))
    return facts | {"sketch": sketch(values), "norm": _norm(values, amax), "amax": amax, "zeros": zeros}


def _amax(values: torch.Tensor) -> float:
    """Greatest magnitude, NaN if there is one; without a tensor of magnitudes, which costs as much again."""
    return max(map(abs, torch.stack(values.aminmax()).tolist()), key=lambda each: math.inf if math.isnan(each) else each) if values.numel() else 0.0


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.is_floating_point() else tensor.double()


def _norm(values: torch.Tensor, amax: float) -> float:
    """In float32 unless its squares could leave float32's range: (1e15)^2 times 1e8 elements stays under 3.4e38."""
    wide = values.dtype == torch.float64 or not 1e-15 < amax < 1e15
    return float(torch.linalg.vector_norm(values, dtype=torch.float64 if wide else torch.float32))


def _nonfinite_counts(values: torch.Tensor) -> dict[str, int]:
    return {
        "nan": int(values.isnan().sum()),
        "posinf": int((values == math.inf).sum()),
        "neginf": int((values == -math.inf).sum()),
    }
