"""Reduces a tensor to the numbers of a record: sketch, norm, greatest magnitude and counts."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy
import torch
from torch.nn.utils.rnn import pad_sequence

from precheck.observe.recording.sketch import BLOCK, WIDTH, Folding, space, stacked
from precheck.observe.shadow.comparing.statistics import prime_below
from precheck.words import dtype_name

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_TAME = 1e-15, 1e15
"""Range of greatest magnitudes for which float32 can sum 1e8 squares: (1e15)^2 times 1e8 stays below 3.4e38."""


EVEN = 256
"""Least effective number of elements of a sample, (Σx²)² / Σx⁴, for it to stand for its tensor. Its norm is then right to 1/(2 √256) = 3.1 %, and so
are distances from similar tensors. A sketch of the whole is off by 6.3 %, one of the sample by 7.0 %. For Gaussian numbers the effective number
is a third of the count."""
_RUN = WIDTH  # neighbouring elements in a sample: a few cache lines, and a row of a sketch's block
SAMPLE = 2 * BLOCK
"""Elements of a sample: two blocks of a sketch. Golden files hold sketches of it: never change it."""
_WORTH_IT = 4 * SAMPLE  # least number of elements for which a sample saves time


Sample = Literal["", "folded", "alone"]
"""Which elements are used. "": all. "folded": a sample for sketch and norm, all for magnitude and counts. "alone": a sample for everything."""


def reduced(tensor: torch.Tensor, sample: Literal["", "folded"] = "") -> dict[str, Any]:
    """Shape, dtype, sketch, norm, greatest magnitude, and counts of non-finite and zero elements. Never writes to the tensor."""
    if tensor.device.type != "cpu":
        return facts(tensor, sample) | as_reduced(numbers(tensor, sample).cpu())
    values = real(tensor.detach()).reshape(-1)
    scanned, counts = _scanned(values, sample=sample == "folded"), {}
    if scanned is None:
        counts = nonfinite_counts(values)
        # torch has no `nan_to_num` for formats of one byte; elsewhere it takes a tenth of the time of `where`
        narrow = values.element_size() == 1
        settled = torch.where(values.isfinite(), values, values.new_zeros(())) if narrow else values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        scanned = _scanned(settled, sample=sample == "folded")
        assert scanned is not None
        scanned["zeros"] -= sum(counts.values())  # these were replaced by zeros
    return facts(tensor, sample) | counts | scanned


def reduced_together(values: Sequence[torch.Tensor], elements: Sequence[int], *, rough: bool = False) -> list[dict[str, Any]]:
    """The same as `reduced`, without `facts`, for many short tensors on a CPU: 1-D, real, of one dtype, with at most SAMPLE elements. `rough`
    is as in `sketch.stacked`.

    Each stands for so many `elements`, which are more than its own if it is a sample. Many together cost a tenth of the time. They are
    padded with zeros to one length, which changes no sum.
    """
    lengths = [each.numel() for each in values]
    rows = _rows(values, _padded(max(1, *lengths)))
    extents = _extents(rows, lengths)
    whole = all(math.isfinite(amax) for amax, _ in extents)
    if not whole:
        rows = rows.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    folded = stacked(rows, tame=whole and all(_tame(amax) for amax, _ in extents), rough=rough).numpy()
    found = []
    for each, length, count, (amax, zeros), finite, row in zip(values, lengths, elements, extents, rows, folded, strict=True):
        times = count / max(1, length)
        one: dict[str, Any] = {"sketch": row[:WIDTH], "norm": math.sqrt(row[WIDTH]), "amax": amax, "zeros": zeros}
        if not math.isfinite(amax):
            counts = {name: math.ceil(number * times) for name, number in nonfinite_counts(each).items()}
            one |= {"amax": _amax(finite), "zeros": length - int(torch.count_nonzero(each))} | counts
        found.append(one if times == 1 else one | enlarged(one, times))
    return found


def _rows(values: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """(k, length)"""
    if any(each.numel() != length for each in values):
        return pad_sequence([*values, values[0].new_zeros(length)], batch_first=True)[:-1]
    rows = space(values[0].dtype, len(values) * length, values[0].device, "rows").view(len(values), length)
    return torch.stack(list(values), out=rows)


def _extents(rows: torch.Tensor, lengths: Sequence[int]) -> list[tuple[float, int]]:
    """The same as `extent` for each row (k, n). `lengths` are the rows' lengths without padding."""
    if rows.dtype not in _BITS:
        return [_extent(row[:length]) for row, length in zip(rows, lengths, strict=True)]
    bits = rows.view(_BITS[rows.dtype])
    magnitudes = torch.bitwise_and(bits, torch.iinfo(bits.dtype).max, out=space(bits.dtype, bits.numel(), bits.device).view(bits.shape))
    least, most = magnitudes.amin(1), magnitudes.amax(1)  # aminmax by rows takes twenty times as long
    each = zip(least.tolist(), most.view(rows.dtype).tolist(), magnitudes.numpy(), lengths, strict=True)
    return [(amax, length - int(numpy.count_nonzero(row[:length])) if low == 0 else 0) for low, amax, row, length in each]


def extent(values: torch.Tensor) -> tuple[float, int]:
    """Greatest magnitude (Inf if any element is Inf or NaN) and number of zeros of a real tensor, computed part by part."""
    folding = Folding(values)
    extents = [_extent_of(bits, folding) for _, bits in folding.parts()]
    return _greatest(extents), sum(zeros for _, zeros in extents)


def peak(values: torch.Tensor) -> float:
    """Only the greatest magnitude of `extent`, at half its cost."""
    return _greatest([(_amax(values), 0)])


def facts(tensor: torch.Tensor, sample: Sample = "") -> dict[str, Any]:
    """The part of `reduced` that needs no elements."""
    return {"shape": tuple(tensor.shape), "dtype": dtype_name(tensor.dtype), "sampled": bool(sample)}


def numbers(tensor: torch.Tensor, sample: Sample = "") -> torch.Tensor:
    """The other numbers of `reduced`, (WIDTH + 6,) float64, on the tensor's device and without waiting for it."""
    values = real(tensor.detach()).reshape(-1)
    if values.device.type == "mps":  # has no float64
        values = values.cpu()
    few = thinned(values) if sample else values
    times = values.numel() / max(1, few.numel())
    kernel = _kernel(values)
    if kernel is None:
        folded, counts = _folding(few), _counts(few if sample == "alone" else values)
    else:
        found = kernel(few)
        folded, counts = found[: WIDTH + 1], (kernel(values) if sample == "folded" else found)[WIDTH + 1 :]
    if sample == "alone":
        counts = torch.cat([counts[:1], torch.ceil(counts[1:] * times)])
    return torch.cat([folded[:WIDTH] * math.sqrt(times), folded[WIDTH:] * times, counts])


def _kernel(values: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A kernel that computes `_folding` and `_counts` of tensors like that one in one pass. None if there is none."""
    if values.element_size() == 1 or not _triton():
        return None
    from precheck.observe.recording.triton_kernel import numbers, proven

    return numbers if proven(values.device, values.dtype, lambda known: torch.cat([_folding(known), _counts(known)])) else None


@functools.cache
def _triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _folding(values: torch.Tensor) -> torch.Tensor:
    """Sketch and sum of squares, (WIDTH + 1,) float64. Non-finite elements count as zero."""
    return _added(Folding(values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))).told()


def _counts(values: torch.Tensor) -> torch.Tensor:
    """Greatest finite magnitude, and the numbers of zeros, NaN, +Inf and -Inf: (5,) float64."""
    magnitudes = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs()
    amax = magnitudes.amax() if values.numel() else magnitudes.new_zeros(())
    kinds = [(values == 0).sum(), values.isnan().sum(), (values == math.inf).sum(), (values == -math.inf).sum()]
    return torch.stack([amax.double(), *(each.double() for each in kinds)])


def as_reduced(found: torch.Tensor) -> dict[str, Any]:
    """The result of `numbers`, after it has been fetched, in the form of `reduced`."""
    *sketch, squares, amax, zeros, nan, posinf, neginf = found.tolist()
    counts = {"zeros": round(zeros), "nan": int(nan), "posinf": int(posinf), "neginf": int(neginf)}
    return {"sketch": numpy.array(sketch), "norm": math.sqrt(squares), "amax": amax, **counts}


def even(tensor: torch.Tensor) -> bool:
    """Whether a sample may stand for the tensor: its effective number of elements is at least EVEN, and its norm is the tensor's, within four
    standard deviations. It may not for embeddings with gradients in few rows, or for probabilities of which few are large."""
    values = real(tensor.detach()).reshape(-1)
    if values.numel() < _WORTH_IT:
        return False
    squares = thinned(values).double().square()
    total, fourth = float(squares.sum()), float(squares.square().sum())
    worth = total**2 / fourth if math.isfinite(fourth) and fourth > 0 else 0.0
    whole = float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
    return worth >= EVEN and abs(total * values.numel() / squares.numel() - whole) <= 4 / math.sqrt(worth) * whole


def thinned(values: torch.Tensor) -> torch.Tensor:
    """The sample of a tensor's elements in order, 1-D. It has the same places for all tensors with the same number of elements."""
    flat = values.reshape(-1).contiguous()
    return flat if flat.numel() <= SAMPLE else flat.as_strided(*_places(flat.numel())).reshape(-1)


@functools.cache
def _places(elements: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Size and strides of the sample of so many elements: short runs at a prime stride, so that all columns of a matrix are sampled alike."""
    stride = prime_below(elements // (SAMPLE // _RUN), _RUN)
    return (min(elements // stride, SAMPLE // _RUN), _RUN), (stride, 1)


def _scanned(values: torch.Tensor, *, sample: bool) -> dict[str, Any] | None:
    """The numbers of a tensor, in one pass part by part. None if an element is Inf or NaN."""
    if sample:
        greatest, zeros = extent(values)
        if not math.isfinite(greatest):
            return None
        thin = Folding(thinned(values))
        found = _folded(_added(thin, tame=_tame(greatest))) | {"zeros": 0}
        return found | enlarged(found, values.numel() / max(1, thin.flat.numel())) | {"amax": greatest, "zeros": zeros}
    folding, extents = Folding(values), []
    for block, bits in folding.parts():
        extents.append(_extent_of(bits, folding))
        if not math.isfinite(extents[-1][0]):
            return None
        folding.add(block, bits, tame=True)
    greatest = _greatest(extents)
    if folding.flat.element_size() == 2 and not _tame(greatest):
        folding = _added(Folding(values))
    return _folded(folding) | {"amax": greatest, "zeros": sum(zeros for _, zeros in extents)}


def _added(folding: Folding, *, tame: bool = False) -> Folding:
    for block, bits in folding.parts():
        folding.add(block, bits, tame=tame)
    return folding


def _folded(folding: Folding) -> dict[str, Any]:
    found = folding.told().numpy()
    return {"sketch": found[:WIDTH], "norm": math.sqrt(found[WIDTH])}


def enlarged(few: dict[str, Any], times: float) -> dict[str, Any]:
    """The numbers of a sample, scaled to `times` as many elements."""
    return {"sketch": few["sketch"] * math.sqrt(times), "norm": few["norm"] * math.sqrt(times), "zeros": round(few["zeros"] * times)}


def _padded(length: int) -> int:
    """The length, rounded up to whole rows, or to whole blocks if it is longer than one block."""
    unit = WIDTH if length <= BLOCK else BLOCK
    return -(-length // unit) * unit


def _tame(greatest: float) -> bool:
    return greatest == 0 or _TAME[0] < greatest < _TAME[1]


def _extent_of(bits: torch.Tensor, folding: Folding) -> tuple[float, int]:
    """Greatest magnitude and number of zeros, from the bits without the sign: as integers they are ordered like magnitudes, Inf and NaN last."""
    dtype = folding.flat.dtype
    if dtype not in _BITS:
        return _extent(bits.view(dtype))
    magnitudes = torch.bitwise_and(bits, torch.iinfo(bits.dtype).max, out=folding.scratch(bits))
    least, most = torch.aminmax(magnitudes)
    zeros = bits.numel() - int(numpy.count_nonzero(magnitudes.numpy())) if int(least) == 0 else 0
    return float(most.view(dtype)), zeros


def _greatest(extents: Sequence[tuple[float, int]]) -> float:
    """The greatest magnitude of all parts. NaN counts as Inf."""
    return max((amax if math.isfinite(amax) else math.inf for amax, _ in extents), default=0.0)


def _extent(part: torch.Tensor) -> tuple[float, int]:
    return _amax(part), part.numel() - int(torch.count_nonzero(part))


def _amax(part: torch.Tensor) -> float:
    ends = map(float, part.aminmax()) if part.numel() else (0.0,)
    return max(map(abs, ends), key=lambda each: math.inf if math.isnan(each) else each)


def real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.is_floating_point() else tensor.double()


def nonfinite_counts(values: torch.Tensor) -> dict[str, int]:
    if values.is_cpu and values.dtype in _BITS:  # numpy compares integers several times as fast as torch compares floats
        bits = values.detach().reshape(-1).view(_BITS[values.dtype])
        held = bits.clone().numpy()  # a copy: torch cannot resize a storage that numpy has seen
        infinite, least = int(torch.tensor(math.inf, dtype=values.dtype).view(bits.dtype)), torch.iinfo(bits.dtype).min
        found = {"posinf": held == infinite, "neginf": held == infinite + least, "nan": (held & ~held.dtype.type(least)) > infinite}
        return {name: int(numpy.count_nonzero(where)) for name, where in found.items()}
    kinds = {"nan": values.isnan(), "posinf": values == math.inf, "neginf": values == -math.inf}
    return {name: int(where.sum()) for name, where in kinds.items()}
