"""A tensor beside its shadow, in numbers.

Metrics cost more than re-execution, so each is taken only where the one before gives reason to, and of a large tensor on a
sample; non-finite values are looked for in all of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from precheck.observe.shadow.operations import Value

SAMPLE = 1 << 16
"""Elements looked at. A share of one in a hundred is then known to 0.04 % (one standard deviation), a relative drift to 0.4 %. Half as many
would leave out every other column of 64 rows of 4096."""
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
FEW = 1 << 12
"""Elements up to which numpy adds up on a CPU: torch takes 5 µs to be asked for a sum, as long as 2^14 elements take."""
_RUN = 16  # neighbouring elements taken together: a cache line of float32
DOUBTFUL = 4.0
"""Roundings of drift below which a tensor is not looked at closely: no single element can then be common enough to matter."""
MASKED = 2.0**100
"""Magnitude beyond which a number is what a mask is filled with. Beside it a norm would not see what is left, which is all that matters."""
FAINT = 2.0**-50
"""Norm below which float32 may lose the squares that it is the root of: it ends at 2^-149."""
NO_DIGIT = 0.25
"""An element off by more than a quarter of max(|itself|, root mean square) has not one decimal digit left."""
WHOLES = 4096  # elements among which moved whole numbers are counted


def sampled(tensor: torch.Tensor, limit: int = SAMPLE, run: int = _RUN) -> torch.Tensor:
    """1-D: all elements, or `limit` of them in short runs a prime stride apart, so that no column of a matrix is favoured."""
    if tensor.numel() <= limit:
        return tensor if tensor.dim() == 1 else tensor.reshape(-1)
    flat = tensor.reshape(-1) if tensor.is_contiguous() else _dense(tensor).contiguous()
    stride = prime_below(flat.numel() // (limit // run), run)
    rows = flat.numel() // stride
    return flat.as_strided((rows, run), (stride, 1)).reshape(-1)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory where that is without gaps, else in their own order; of a column, or of what is expanded, a view."""
    order = sorted(range(tensor.dim()), key=lambda dim: tensor.stride(dim), reverse=True)
    return tensor.permute(order).reshape(-1)


@functools.lru_cache(maxsize=4096)
def prime_below(number: int, run: int) -> int:
    """The greatest prime up to `number` that is above `run`, or just more than a run where there is none."""
    for candidate in range(max(number, run + 1), run, -1):
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            return candidate
    return run + 1


def norm(tensor: torch.Tensor) -> float:
    if tensor.numel() <= FEW and tensor.dtype is torch.float32 and tensor.is_cpu and not tensor.is_neg():
        with numpy.errstate(all="ignore"):
            return _length(_lent(tensor))
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _length(values: Any) -> float:
    flat = values.reshape(-1)
    return math.sqrt(flat.dot(flat))


def _lent(tensor: torch.Tensor) -> numpy.ndarray:
    """A copy for numpy: torch lets nobody resize a storage again that numpy has seen, as FSDP2 does with its weights."""
    return tensor.detach().clone().numpy()


def _apart(low: torch.Tensor, wide: torch.Tensor) -> tuple[float, float, int | None]:
    """The norms of a tensor's error and of its shadow, and how many of its elements are not zero, if that was no effort to find out."""
    if low.numel() > FEW or wide.dtype not in (torch.float32, torch.float64) or not (low.is_cpu and wide.is_cpu) or wide.is_neg():
        return norm(low - wide), norm(wide), None
    mine, other = _lent(low.to(wide.dtype)), _lent(wide)
    with numpy.errstate(all="ignore"):
        return _length(mine - other), _length(other), int(numpy.count_nonzero(mine))


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


def share(mask: torch.Tensor) -> float:
    if mask.numel() <= FEW and mask.is_cpu:
        return int(numpy.count_nonzero(mask.numpy())) / max(1, mask.numel())
    return int(torch.count_nonzero(mask)) / max(1, mask.numel())


def compare(
    value: Value, run: torch.Tensor, shadow: torch.Tensor, twin: torch.Tensor | None = None, *, zeros: bool = False, limit: int = SAMPLE
) -> None:
    """Fills in `value` for a tensor of the run and its shadow (same shape), and its twin if it has one, from `limit` elements.

    Zeros that the shadow does not have are looked for in low tensors, and where `zeros` says that they may have been handed on.
    """
    if run.numel() == 0:
        return
    if run.is_conj() or run.is_neg():
        run = run.clone()  # carries the bit out, which arithmetic this far down does not honour
    if run.is_complex():
        run, shadow = torch.view_as_real(run), torch.view_as_real(shadow)
        twin = None if twin is None else torch.view_as_real(twin)
    if run.dtype in NARROW:
        run = run.to(shadow.dtype)  # torch promotes neither of these formats
    alike = run.numel() <= limit and run.shape == shadow.shape
    low, wide = (run, shadow) if alike else (sampled(run, limit), sampled(shadow, limit))
    if low.element_size() == 1:
        low = low.float()  # 8-bit formats have no arithmetic of their own
    error: torch.Tensor | None = None
    off, size, filled = _apart(low, wide)
    if not (math.isfinite(off) and math.isfinite(size)) or (run.numel() > limit and not finite([run])):
        error, wide, off, size = _nonfinite(value, run, shadow)
        low, filled = run.reshape(-1), None
    if size < FAINT and wide.dtype is torch.float32 and bool(wide.any()):
        off, size = norm(low.double() - wide.double()), norm(wide.double())
    if size > MASKED:
        masked = wide.abs() > MASKED
        low, wide, filled = low.masked_fill(masked, 0), wide.masked_fill(masked, 0), None
        error = (low - wide if error is None else error).masked_fill(masked, 0)
        off, size = norm(error), norm(wide)
    value.norm = size * math.sqrt(run.numel() / max(1, wide.numel()))
    value.drift = ratio(off, size)
    if off == 0:
        return
    if value.low or zeros:
        _zeros(value, low, wide, size, filled)
    if value.drift > DOUBTFUL * value.roundoff:
        floor = max(size / math.sqrt(wide.numel()), torch.finfo(torch.float32).tiny)
        error = low - wide if error is None else error
        value.dead = share(error.abs() > NO_DIGIT * wide.abs().clamp_min(floor))
    if twin is not None:
        stray = sampled(twin, limit) - sampled(shadow, limit) if wide.numel() != twin.numel() else twin.reshape(wide.shape) - wide
        astray = norm(torch.nan_to_num(stray, nan=0.0, posinf=0.0, neginf=0.0))
        value.wander, value.twin_drift = min(1e9, ratio(astray, off)), ratio(astray, size)
    if value.low and size > 1 / value.roundoff:
        _wholes(value, low.reshape(-1)[:WHOLES], wide.reshape(-1)[:WHOLES])


def finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all elements of real tensors of one device are. Asks that device once, or twice where a sum leaves the format.

    A sum takes half the time that extremes take, and no Inf or NaN is lost on its way to it.
    """
    if not tensors or bool(torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return True
    extremes = [each for tensor in tensors if tensor.numel() for each in tensor.aminmax()]
    return bool(torch.stack(extremes).isfinite().all())


def _nonfinite(value: Value, run: torch.Tensor, shadow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """The error and the shadow where both are finite, 0 elsewhere, with their norms in float64."""
    low, wide = run.reshape(-1).to(torch.float64), shadow.reshape(-1).to(torch.float64)
    known = torch.isfinite(wide)
    bad = (~torch.isfinite(low) & known) | (torch.isnan(low) & torch.isinf(wide))
    value.nonfinite = int(bad.sum())
    if value.nonfinite:
        value.nans = int((torch.isnan(low) & bad).sum())
        lost = wide[bad]
        value.beyond, value.beyonds, value.negative = float(lost.abs().max()), lost[:WHOLES].unique().numel(), bool((lost < 0).all())
    both = known & torch.isfinite(low)
    error, kept = torch.where(both, low - wide, 0.0), torch.where(both, wide, 0.0)
    return error, kept, norm(error), norm(kept)


def _zeros(value: Value, low: torch.Tensor, wide: torch.Tensor, size: float, filled: int | None) -> None:
    """`filled`: how many elements are not zero, if that is known."""
    if (int(torch.count_nonzero(low)) if filled is None else filled) == low.numel():
        return
    gone = (low == 0) & (wide != 0)
    value.zeros, value.looked_at = int(gone.sum()), low.numel()
    if value.zeros:
        lost = torch.where(gone, wide, 0.0)
        value.zeroed, value.largest_zeroed = ratio(norm(lost), size), float(lost.abs().max())


def _wholes(value: Value, low: torch.Tensor, wide: torch.Tensor) -> None:
    """Whole numbers beyond 1/u that moved. A lone magnitude is a constant (a mask's -10000), not a count."""
    if not torch.equal(wide[:16], wide[:16].round()) or not torch.equal(wide, wide.round()):
        return
    peak = float(wide.abs().max())
    if 1 / value.roundoff < peak < 2 / torch.finfo(wide.dtype).eps:  # beyond that all numbers of the reference are whole
        moved = wide[low.to(wide.dtype) != wide].abs()
        value.wholes_moved, value.peak = int(torch.unique(moved).numel()), peak
