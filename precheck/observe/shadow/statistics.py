"""A tensor beside its shadow, in numbers.

Metrics cost more than re-execution. So each is taken only where the one before gives reason to, and of a large tensor on a sample. Non-finite
values are looked for in all of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy
import torch

from precheck.observe.shadow.numpy_views import ROOM, Numbers, lent, scratch
from precheck.observe.shadow.operations import Value
from precheck.torch_internals import no_dispatch

SAMPLE = 1 << 16
"""Elements looked at. A share of one in a hundred is then known to 0.04 % (one standard deviation), a relative drift to 0.4 %. Half as many
would leave out every other column of 64 rows of 4096."""
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
FEW = 1 << 12
"""Elements up to which numpy adds up on a CPU: torch takes 5 µs to be asked for a sum, as long as 2^14 elements take."""
HANDFUL = 1 << 6
"""Elements up to which Python itself takes no longer than numpy is asked for."""
_TINY = torch.finfo(torch.float32).tiny
_AT_ONCE = 1 << 13
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
    if tensor.numel() <= HANDFUL and tensor.is_cpu and not tensor.is_complex() and tensor.dtype not in NARROW:
        return math.hypot(*lent(tensor, torch.float64).tolist())
    return _norm(tensor)


@numpy.errstate(all="ignore")
def _norm(tensor: torch.Tensor) -> float:
    if tensor.numel() <= FEW and tensor.dtype is torch.float32 and tensor.is_cpu and not tensor.is_neg():
        return _length(lent(tensor, torch.float32))
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _length(flat: Numbers) -> float:
    return math.sqrt(_squares(flat))


def _squares(flat: Numbers) -> float:
    """Their sum: not finite where an element is not. So few at a time BLAS takes without threads."""
    if flat.size <= _AT_ONCE:
        return float(flat.dot(flat))
    return sum(float(part.dot(part)) for part in (flat[start : start + _AT_ONCE] for start in range(0, flat.size, _AT_ONCE)))


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


@numpy.errstate(all="ignore")
def apart(run: torch.Tensor, shadow: torch.Tensor) -> float:
    """|run - shadow| / |shadow| of two real tensors of one shape, in short a relative error; elements that are not finite in both are left out."""
    if run.numel() <= ROOM:
        dtype = torch.float64 if shadow.dtype is torch.float64 or run.numel() <= HANDFUL else torch.float32
        mine, exact = lent(run, dtype, "run"), lent(shadow, dtype, "shadow")
        off, size = _length(numpy.subtract(mine, exact, out=scratch(mine, "error"))), _length(exact)
        if math.isfinite(off) and FAINT < size < MASKED:
            return ratio(off, size)
    error = torch.nan_to_num(run.to(shadow.dtype) - shadow, nan=0.0, posinf=0.0, neginf=0.0)
    return ratio(norm(error), norm(shadow))


def share(mask: torch.Tensor) -> float:
    if mask.numel() <= FEW and mask.is_cpu:
        return int(numpy.count_nonzero(mask.numpy())) / max(1, mask.numel())
    return int(torch.count_nonzero(mask)) / max(1, mask.numel())


def compare(
    value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None = None, *, zeros: bool = False, limit: int = SAMPLE
) -> None:
    """Fills in `value` for a tensor of the run and its shadow (same shape), and its perturbed shadow if it has one, from `limit` elements.

    Zeros that the shadow does not have are looked for in low tensors, and where `zeros` says that they may have been handed on.
    """
    if run.numel() <= HANDFUL and run.dtype not in NARROW and not run.is_complex() and _compared(value, run, shadow, perturbed, zeros):
        return
    _compare(value, run, shadow, perturbed, zeros, limit)


def _compared(value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, zeros: bool) -> bool:
    """`compare` of a handful of real numbers. False where more than their distance is of interest."""
    mine, exact = lent(run, torch.float64).tolist(), lent(shadow, torch.float64).tolist()
    off, size = math.dist(mine, exact), math.hypot(*exact)
    astray = 0.0 if perturbed is None else math.dist(lent(perturbed, torch.float64).tolist(), exact)
    if not math.isfinite(off) or not math.isfinite(astray) or size > MASKED or (value.low and size > 1 / value.roundoff):
        return False
    if off and (value.low or zeros) and 0.0 in mine:
        return False
    value.norm, value.drift = size, ratio(off, size)
    if off and perturbed is not None:
        value.sensitivity, value.perturbed_drift = min(1e9, ratio(astray, off)), ratio(astray, size)
    few = max(len(exact), 1)
    least = NO_DIGIT * max(size / math.sqrt(few), _TINY)
    if value.drift > DOUBTFUL * value.roundoff and off > least:
        errors = (abs(low - wide) for low, wide in zip(mine, exact, strict=True))
        value.dead = sum(error > least and error > NO_DIGIT * abs(wide) for error, wide in zip(errors, exact, strict=True)) / few
    return True


@numpy.errstate(all="ignore")
def _compare(value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, zeros: bool, limit: int) -> None:
    if run.numel() == 0:
        return
    if run.is_complex():
        run = run.clone() if run.is_conj() else run  # carries the bit out, which arithmetic this far down does not honour
        run, shadow = torch.view_as_real(run), torch.view_as_real(shadow)
        perturbed = None if perturbed is None else torch.view_as_real(perturbed)
    if run.dtype in NARROW:
        run = run.to(shadow.dtype)  # torch promotes neither of these formats
    alike = run.numel() <= limit and run.shape == shadow.shape
    low, wide = (run, shadow) if alike else (sampled(run, limit), sampled(shadow, limit))
    dtype = torch.float64 if torch.float64 in (low.dtype, wide.dtype) else torch.float32
    mine, exact = lent(low, dtype, "run"), lent(wide, dtype, "shadow")
    squares = _squares(exact)
    if math.isfinite(squares) and math.isfinite(_squares(mine)) and (run.numel() <= limit or finite([run])):
        error = numpy.subtract(mine, exact, out=scratch(mine, "error"))
        size = math.sqrt(squares)
    else:
        error, mine, exact = _nonfinite(value, run, shadow, limit)
        size = _length(exact)
    if size < FAINT and exact.dtype == numpy.float32 and exact.any():
        mine, exact = mine.astype(numpy.float64), exact.astype(numpy.float64)
        error, size = mine - exact, _length(exact)
    off = _length(error)
    if size > MASKED:
        kept = numpy.abs(exact) <= MASKED
        error, mine, exact = error * kept, mine * kept, exact * kept
        off, size = _length(error), _length(exact)
    value.norm = size * math.sqrt(run.numel() / max(1, exact.size))
    value.drift = ratio(off, size)
    if off == 0:
        return
    if value.low or zeros:
        _zeros(value, mine, exact, size)
    floor = max(size / math.sqrt(exact.size), _TINY)
    if value.drift > DOUBTFUL * value.roundoff and off > NO_DIGIT * floor:
        value.dead = _dead(error, exact, floor)
    if perturbed is not None:
        astray = _astray(lent(perturbed if perturbed.numel() == exact.size else sampled(perturbed, limit), dtype, "perturbed"), exact)
        value.sensitivity, value.perturbed_drift = min(1e9, ratio(astray, off)), ratio(astray, size)
    if value.low and size > 1 / value.roundoff:
        _wholes(value, mine[:WHOLES], exact[:WHOLES])


def _dead(error: Numbers, exact: Numbers, floor: float) -> float:
    """The share of elements without a digit: off by more than a quarter of themselves, and of `floor`."""
    kind, bound, off = exact.dtype.type, numpy.abs(exact, out=scratch(exact, "bound")), numpy.abs(error, out=scratch(error, "off"))
    numpy.multiply(bound, kind(NO_DIGIT), out=bound)
    dead = off > bound
    dead &= off > kind(NO_DIGIT * floor)  # of both, which takes a fifth of the time that the larger of two takes
    return int(numpy.count_nonzero(dead)) / exact.size


def _astray(perturbed: Numbers, exact: Numbers) -> float:
    """How far a perturbed shadow lies from the shadow, what is not finite left out."""
    stray = perturbed - exact
    length = _length(stray)
    return length if math.isfinite(length) else _length(numpy.nan_to_num(stray, nan=0.0, posinf=0.0, neginf=0.0))


def finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all elements of real tensors of one device are. Asks that device once, or twice where a sum leaves the format.

    A sum takes half the time that extremes take, and no Inf or NaN is lost on its way to it.
    """
    if not tensors or bool(torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return True
    extremes = [each for tensor in tensors if tensor.numel() for each in tensor.aminmax()]
    return bool(torch.stack(extremes).isfinite().all())


def finite_everywhere(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements of all tensors are. In one pass, without a tensor of their size, asking each device once."""
    found: dict[torch.device, list[torch.Tensor]] = {}
    with no_dispatch(), torch.no_grad():
        for tensor in tensors:
            values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach()
            found.setdefault(values.device, []).append(values)
        return all(map(finite, found.values()))


def _nonfinite(value: Value, run: torch.Tensor, shadow: torch.Tensor, limit: int) -> tuple[Numbers, Numbers, Numbers]:
    """In float64 the error, the run and the shadow where both are finite, and 0 elsewhere. Of all elements, or of a sample where both agree on
    what is not finite, as a mask's -Inf is."""
    if torch.equal(run.isfinite(), shadow.isfinite()) and torch.equal(run.isnan(), shadow.isnan()):
        run, shadow = sampled(run, limit), sampled(shadow, limit)
    low, wide = run.detach().reshape(-1).to(torch.float64), shadow.detach().reshape(-1).to(torch.float64)
    known = torch.isfinite(wide)
    bad = (~torch.isfinite(low) & known) | (torch.isnan(low) & torch.isinf(wide))
    value.nonfinite = int(bad.sum())
    if value.nonfinite:
        value.nans = int((torch.isnan(low) & bad).sum())
        lost = wide[bad]
        value.beyond, value.distinct_overflows, value.negative = float(lost.abs().max()), lost[:WHOLES].unique().numel(), bool((lost < 0).all())
    both = known & torch.isfinite(low)
    mine, exact = torch.where(both, low, 0.0), torch.where(both, wide, 0.0)
    return (mine - exact).numpy(), torch.where(known, low, 0.0).numpy(), exact.numpy()


def _zeros(value: Value, mine: Numbers, exact: Numbers, size: float) -> None:
    zero = mine == 0
    if not zero.any():
        return
    gone = zero & (exact != 0)
    value.zeros, value.sample_size = int(numpy.count_nonzero(gone)), mine.size
    if value.zeros:
        lost = exact[gone]
        value.zeroed, value.largest_zeroed = ratio(_length(lost), size), float(numpy.abs(lost).max())


def _wholes(value: Value, mine: Numbers, exact: Numbers) -> None:
    """Whole numbers beyond 1/u that moved. A lone magnitude is a constant (a mask's -10000), not a count."""
    if not (exact[:16] == exact[:16].round()).all() or not (exact == exact.round()).all():
        return
    peak = float(numpy.abs(exact).max())
    if 1 / value.roundoff < peak < 2 / numpy.finfo(exact.dtype).eps:  # beyond that all numbers of the reference are whole
        value.wholes_moved, value.peak = numpy.unique(numpy.abs(exact[mine != exact])).size, peak
