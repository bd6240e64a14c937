"""Compares a tensor with its shadow, and fills in the figures of a `Value`.

Metrics cost more than the replay. So each metric is computed only if the one before makes it necessary, and a large tensor is sampled. Only
non-finite values are looked for in the whole tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy
import torch

from precheck import ops
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.comparing.numpy_views import ROOM, Numbers, lent, lent_pair, listed, scratch
from precheck.observe.shadow.operations import Value
from precheck.torch_internals import no_dispatch

SAMPLE = 1 << 16
"""Elements of a sample. A share of 1 % is then known to 0.04 % (one standard deviation), a relative drift to 0.4 %. Half as many would
leave out every other column of 64 rows of 4096."""
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
FEW = 1 << 12
"""Elements up to which numpy computes sums on a CPU. A call of torch's sum costs 5 µs, as much as summing 2^14 elements."""
HANDFUL = 1 << 6
"""Elements up to which plain Python takes no longer than a call of numpy."""
_TINY = torch.finfo(torch.float32).tiny
_AT_ONCE = 1 << 13
_RUN = 16  # neighbouring elements that are sampled together: a cache line of float32
DOUBTFUL = 4.0
"""Unit roundoffs of drift below which a tensor is not examined further: too few of its elements can then be wrong to matter."""
MASKED = 2.0**100
"""A number beyond this magnitude is the fill of a mask. It is left out of norms, since the other elements would be invisible beside it."""
FAINT = 2.0**-50
"""Norm below which squares may underflow in float32, which ends at 2^-149."""
NO_DIGIT = 0.25
"""An element off by more than a quarter of max(|itself|, root mean square) has no correct decimal digit."""
WHOLES = 4096  # elements among which moved whole numbers are counted


def sampled(tensor: torch.Tensor, limit: int = SAMPLE, run: int = _RUN) -> torch.Tensor:
    """All elements, 1-D, or about `limit` of them: short runs at a prime stride, so that all columns of a matrix are sampled alike."""
    if tensor.numel() <= limit:
        return tensor if tensor.dim() == 1 else tensor.reshape(-1)
    flat = tensor.reshape(-1) if tensor.is_contiguous() else _dense(tensor).contiguous()
    stride = prime_below(flat.numel() // (limit // run), run)
    rows = flat.numel() // stride
    return flat.as_strided((rows, run), (stride, 1)).reshape(-1)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The elements, 1-D, in the order of memory where possible."""
    order = sorted(range(tensor.dim()), key=lambda dim: tensor.stride(dim), reverse=True)
    return tensor.permute(order).reshape(-1)


@functools.lru_cache(maxsize=4096)
def prime_below(number: int, run: int) -> int:
    """The greatest prime up to `number` that is above `run`. If there is none, `run + 1`."""
    for candidate in range(max(number, run + 1), run, -1):
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            return candidate
    return run + 1


def norm(tensor: torch.Tensor) -> float:
    if tensor.numel() <= HANDFUL and tensor.is_cpu and not tensor.is_complex() and tensor.dtype not in NARROW:
        return math.hypot(*listed(tensor))
    return _norm(tensor)


@numpy.errstate(all="ignore")
def _norm(tensor: torch.Tensor) -> float:
    if tensor.numel() <= FEW and tensor.dtype is torch.float32 and tensor.is_cpu and not tensor.is_neg():
        return _length(lent(tensor, torch.float32))
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _length(flat: Numbers) -> float:
    return math.sqrt(_squares(flat))


def _squares(flat: Numbers) -> float:
    """The sum of squares. It is not finite if an element is not. It is computed in parts that are small enough for BLAS to use one thread."""
    if flat.size <= _AT_ONCE:
        return float(flat.dot(flat))
    return sum(float(part.dot(part)) for part in (flat[start : start + _AT_ONCE] for start in range(0, flat.size, _AT_ONCE)))


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)


@numpy.errstate(all="ignore")
def apart(run: torch.Tensor, shadow: torch.Tensor) -> float:
    """The relative error |run - shadow| / |shadow| of two tensors of one shape. Masked elements and those whose error is not finite count as zero."""
    if run.is_complex():
        run, shadow = torch.view_as_real(run.resolve_conj()), torch.view_as_real(shadow.resolve_conj())
    if run.numel() <= ROOM:
        dtype = torch.float64 if shadow.dtype is torch.float64 or run.numel() <= HANDFUL else torch.float32
        _, exact, difference = lent_pair(run, shadow, dtype)
        off, size = _length(difference), _length(exact)
        if math.isfinite(off) and FAINT < size < MASKED:
            return ratio(off, size)
    run, shadow = run.reshape(-1), shadow.reshape(-1)
    known = shadow.abs() <= MASKED
    error = torch.nan_to_num(run.to(shadow.dtype) - shadow, nan=0.0, posinf=0.0, neginf=0.0)
    return ratio(norm(error * known), norm(shadow.where(known, 0)))


def share(mask: torch.Tensor) -> float:
    if mask.numel() <= FEW and mask.is_cpu:
        return int(numpy.count_nonzero(mask.numpy())) / max(1, mask.numel())
    return int(torch.count_nonzero(mask)) / max(1, mask.numel())


def compare(
    value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None = None, *, zeros: bool = False, limit: int = SAMPLE
) -> None:
    """Fills in `value` from `limit` elements of a tensor of the run, of its shadow (same shape), and of its perturbed shadow if it has one.

    Zeros that the shadow does not have are counted in low tensors, and with `zeros`, if an input had some.
    """
    if fetching.elsewhere(run):
        _compare_fetched(value, run, shadow, perturbed, zeros, min(limit, fetching.SAMPLE))
    else:
        _compare_on_host(value, run, shadow, perturbed, zeros, limit)


def _compare_on_host(value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, zeros: bool, limit: int) -> None:
    if run.numel() <= HANDFUL and run.dtype not in NARROW and not run.is_complex() and _compared(value, run, shadow, perturbed, zeros):
        return
    _compare(value, run, shadow, perturbed, zeros, limit)


def _compare_fetched(value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, zeros: bool, limit: int) -> None:
    """The same for tensors of an accelerator. Samples come by one transfer, with the sum of the whole run, which Inf and NaN always reach."""
    given = [fetching.plain(each) for each in ([run, shadow] if perturbed is None else [run, shadow, perturbed])]
    wide, elements = given[1].dtype, given[0].numel()
    if run.dtype in NARROW:
        given[0] = given[0].to(wide)  # torch has no sums of these formats
    samples = [sampled(each, limit).to(wide) for each in given]
    *host, total = fetching.fetched([*samples, given[0].sum(dtype=wide)])
    seen = len(host[0])
    _compare_on_host(value, host[0], host[1], host[2] if perturbed is not None else None, zeros, max(1, seen))
    value.norm *= math.sqrt(elements / max(1, seen))
    if seen < elements and not math.isfinite(float(total)):
        fetching.count_nonfinite(value, given[0], given[1])


def _compared(value: Value, run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None, zeros: bool) -> bool:
    """The same as `compare` for up to `HANDFUL` real numbers. False if the full comparison is needed."""
    mine, exact = listed(run), listed(shadow)
    off, size = math.dist(mine, exact), math.hypot(*exact)
    astray = 0.0 if perturbed is None else math.dist(listed(perturbed), exact)
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
        run = run.clone() if run.is_conj() else run  # carries out the conjugate bit, which arithmetic below dispatch ignores
        run, shadow = torch.view_as_real(run), torch.view_as_real(shadow)
        perturbed = None if perturbed is None else torch.view_as_real(perturbed)
    if run.dtype in NARROW:
        run = run.to(shadow.dtype)  # torch has no type promotion for these formats
    alike = run.numel() <= limit and run.shape == shadow.shape
    low, wide = (run, shadow) if alike else (sampled(run, limit), sampled(shadow, limit))
    dtype = torch.float64 if torch.float64 in (low.dtype, wide.dtype) else torch.float32
    mine, exact, error = lent_pair(low, wide, dtype)
    size, off = _length(exact), _length(error)
    if not (math.isfinite(size) and math.isfinite(off) and (run.numel() <= limit or finite([run]))):  # both are finite only if the run is
        error, mine, exact = _nonfinite(value, run, shadow, limit)
        size, off = _length(exact), _length(error)
    if size < FAINT and exact.dtype == numpy.float32 and exact.any():
        mine, exact = mine.astype(numpy.float64), exact.astype(numpy.float64)
        error = mine - exact
        size, off = _length(exact), _length(error)
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
    """The share of elements without a correct digit: off by more than a quarter of themselves and of `floor`."""
    kind, bound, off = exact.dtype.type, numpy.abs(exact, out=scratch(exact, "bound")), numpy.abs(error, out=scratch(error, "off"))
    numpy.multiply(bound, kind(NO_DIGIT), out=bound)
    dead = off > bound
    dead &= off > kind(NO_DIGIT * floor)  # two comparisons take a fifth of the time of `maximum`
    return int(numpy.count_nonzero(dead)) / exact.size


def _astray(perturbed: Numbers, exact: Numbers) -> float:
    """The distance of a perturbed shadow from the shadow. Elements that are not finite are left out."""
    stray = perturbed - exact
    length = _length(stray)
    return length if math.isfinite(length) else _length(numpy.nan_to_num(stray, nan=0.0, posinf=0.0, neginf=0.0))


def finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all elements of real tensors on one device are finite. Waits for the device once, or twice if a sum overflows.
    A sum takes half the time of `aminmax`, and Inf and NaN always reach it.
    """
    if not tensors or bool(torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return True
    extremes = [each for tensor in tensors if tensor.numel() for each in tensor.aminmax()]
    return bool(torch.stack(extremes).isfinite().all())


def finite_everywhere(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements of all tensors are finite. It makes no large temporary tensors and waits for each device once."""
    found: dict[torch.device, list[torch.Tensor]] = {}
    with no_dispatch(), torch.no_grad():
        for tensor in tensors:
            values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach()
            found.setdefault(values.device, []).append(values)
        return all(map(finite, found.values()))


def _nonfinite(value: Value, run: torch.Tensor, shadow: torch.Tensor, limit: int) -> tuple[Numbers, Numbers, Numbers]:
    """The error, the run and the shadow in float64, with 0 where they are not finite. Also counts elements that are not finite in the run only.
    It uses a sample if both agree on what is not finite, as with the -Inf of a mask."""
    if run.numel() > limit and _same_places(run, shadow):
        run, shadow = sampled(run, limit), sampled(shadow, limit)
    low, wide = lent(run, torch.float64, "run"), lent(shadow, torch.float64, "shadow")
    held, known, nans = numpy.isfinite(low), numpy.isfinite(wide), numpy.isnan(low)
    bad = (known > held) | (nans & numpy.isinf(wide))
    value.nonfinite, value.unheld = int(numpy.count_nonzero(bad)), int(known.size - numpy.count_nonzero(known))
    if value.nonfinite:
        value.nans = int(numpy.count_nonzero(nans & bad))
        lost = wide[bad]
        value.beyond, value.negative = float(numpy.abs(lost).max()), bool((lost < 0).all())
        value.distinct_overflows = numpy.unique(lost[:WHOLES]).size
    both = known & held
    mine, exact = numpy.where(both, low, 0.0), numpy.where(both, wide, 0.0)
    return mine - exact, numpy.where(known, low, 0.0), exact


def _same_places(run: torch.Tensor, shadow: torch.Tensor) -> bool:
    """Whether run and shadow are finite in the same places, and NaN in the same places."""
    dtype = torch.float64 if torch.float64 in (run.dtype, shadow.dtype) else torch.float32
    low, wide = lent(run, dtype, "run"), lent(shadow, dtype, "shadow")
    return numpy.array_equal(numpy.isfinite(low), numpy.isfinite(wide)) and numpy.array_equal(numpy.isnan(low), numpy.isnan(wide))


def _zeros(value: Value, mine: Numbers, exact: Numbers, size: float) -> None:
    zero = mine == 0
    if not numpy.count_nonzero(zero):  # a quarter of the time of `any` for few elements
        return
    gone = zero & (exact != 0)
    value.zeros, value.sample_size = int(numpy.count_nonzero(gone)), mine.size
    if value.zeros:
        lost = exact[gone]
        value.zeroed, value.largest_zeroed = ratio(_length(lost), size), float(numpy.abs(lost).max())


def _wholes(value: Value, mine: Numbers, exact: Numbers) -> None:
    """Counts whole numbers beyond 1/u that moved. A single magnitude is a constant (such as a mask's -10000), not a count."""
    if not (exact[:16] == exact[:16].round()).all() or not (exact == exact.round()).all():
        return
    peak = float(numpy.abs(exact).max())
    counted = value.maker is not None and value.maker.base in ops.CASTS and not value.maker.inputs  # a cast of integers
    if 1 / value.roundoff < peak and (counted or peak < 2 / numpy.finfo(exact.dtype).eps):  # beyond, all numbers of the reference are whole
        value.wholes_moved, value.peak = numpy.unique(numpy.abs(exact[mine != exact])).size, peak
        steps, stored = numpy.diff(numpy.unique(exact)), numpy.unique(mine)
        value.enumerates = 1 < steps.size >= stored.size and bool((steps == steps[0]).all())
