"""A tensor reduced to what a record keeps of it."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from precheck.observe.sketch import Folding

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_TAME = 1e-15, 1e15
"""Greatest magnitudes whose squares, 1e8 of them, float32 can sum: (1e15)^2 times 1e8 stays under 3.4e38."""


def reduced(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, sketch, norm, greatest magnitude and counts of non-finite and zero elements. Reads, never writes."""
    tensor = tensor.detach()
    facts: dict[str, Any] = {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    values = _real(tensor)
    found = _scanned(values)
    if found is None:
        facts |= _nonfinite_counts(values)
        found = _scanned(torch.where(values.isfinite(), values, torch.zeros((), dtype=values.dtype, device=values.device)))
        assert found is not None
    return facts | found


def _scanned(values: torch.Tensor) -> dict[str, Any] | None:
    """One pass over the tensor, part by part; None where an element is Inf or NaN."""
    folding, greatest, zeros = Folding(values), 0.0, 0
    extent = _extent_by_bits if folding.flat.dtype in _BITS and folding.flat.device.type == "cpu" else _extent
    for block, part in folding.parts():
        amax, none = extent(part, folding)
        if not math.isfinite(amax):
            return None
        greatest, zeros = max(greatest, amax), zeros + none
        folding.add(block, part, tame=_TAME[0] < amax < _TAME[1])
    *sketch, squares = folding.total.tolist()
    return {"sketch": numpy.array(sketch), "norm": math.sqrt(squares), "amax": greatest, "zeros": zeros}


def _extent_by_bits(part: torch.Tensor, folding: Folding) -> tuple[float, int]:
    """Greatest magnitude, and how many are zero: all bits but the sign, as integers, are ordered as the magnitudes are, Inf and NaN last."""
    bits = part.view(_BITS[part.dtype])
    magnitudes = torch.bitwise_and(bits, torch.iinfo(bits.dtype).max, out=folding.scratch(part))
    least, most = torch.aminmax(magnitudes)
    zeros = part.numel() - int(numpy.count_nonzero(magnitudes.numpy())) if int(least) == 0 else 0
    return float(most.view(part.dtype)), zeros


def _extent(part: torch.Tensor, _: Folding) -> tuple[float, int]:
    amax = max(map(abs, torch.stack(part.aminmax()).tolist()), key=lambda each: math.inf if math.isnan(each) else each)
    return amax, part.numel() - int(torch.count_nonzero(part))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.is_floating_point() else tensor.double()


def _nonfinite_counts(values: torch.Tensor) -> dict[str, int]:
    return {
        "nan": int(values.isnan().sum()),
        "posinf": int((values == math.inf).sum()),
        "neginf": int((values == -math.inf).sum()),
    }
