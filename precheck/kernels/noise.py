"""Runs a reference with the rounding of correct implementations: each op is computed exactly, and stochastically rounded to its storage format.

Values are disturbed when an op reads them, by a few roundings of float32. Sums get the error of a chain of additions in float32. So the spread of
several runs covers another order, another split and other places of rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from precheck import formats, ops
from precheck.analysis.noise_floor.kernel_floor import ADDED_NOISE
from precheck.kernels import unrounded
from precheck.kernels.stored_results import StoredResults
from precheck.observe.exact import widened, written
from precheck.observe.profiling import UncompiledMode
from precheck.ops import Kind, base_name
from precheck.torch_internals import in_backward, schema

_BENT = {"sgn", "sign", "maximum", "minimum", "amax", "amin", "sort", "argsort"}
_TIED = ops.SIDES.keys() | ops.EXTREMES | ops.CHOOSERS | ops.ORDERINGS | _BENT
"""Ops that select one side. Which of equal values they select, and what they do at zero, is no fault."""
_SUMMING = (Kind.CONTRACTION, Kind.REDUCTION, Kind.RUNNING, Kind.NORM, Kind.LOSS, Kind.SOFTMAX)
_LOGARITHMIC = {"logcumsumexp"}
"""Running sums of exponentials. A chain keeps the logarithm of the sum, and each step rounds it, whatever the terms are."""
_CHAIN, _ELIMINATION = 1 / 2, 2 / 3
"""Powers of the number of terms with which errors grow: of a sum, and of an elimination, whose intermediates grow too (Trefethen and Schreiber,
1990, for random matrices with partial pivoting)."""
_EXACT = ops.MOVING - ops.CASTS - {"mul", "div"}
_ATTENTION = "_safe_softmax"
"""The softmax of torch's attention. Kernels store its weights in the inputs' format, and the gradients of its scores, for the products with them."""
_SOFTMAXES_BACKWARD = {"_softmax_backward_data", "_log_softmax_backward_data"}
_KEEPING = ops.ADDITIONS | (ops.GUARDS & ops.UNROUNDED) | ops.CUTTING | {"exp2"}
"""Ops that give integers for integers in every implementation: codes are rounded first, and moved, limited or cut off afterwards. A power of two with
a whole exponent is exact too."""
_HALF = 0.5
"""The unit whose multiples additions leave exact: with a half added, a floor rounds to the nearest integer. Halves of computed numbers are rare."""
_STEPS = ops.JUMPING | ops.WHOLE
"""Steps read numbers as they are. Where these are not exact, the ops that made them have disturbed them. A tie of exact numbers has one right side.
Derivatives are free at zero, and a zero with a sign may count as below it."""
_ENDS = (1, 2)
"""Seeds of the runs that select the first and the last of equal values. Other runs select at random."""
_SHORT = 16
"""The number of terms below which a chain of additions has no larger error than the disturbance itself."""


def base_roundoff(dtype: torch.dtype) -> float:
    """The unit roundoff of the disturbance: float32's, or float64's if the user asked for float64."""
    return 2.0**-53 if dtype in (torch.float64, torch.complex128) else 2.0**-24


class Rounded(UncompiledMode):
    """The mode of a noise run. `fine` is the unit roundoff of accumulators. `gemm`: the format to which operands of matrix products are rounded
    first. `stored`: the unit roundoff of the inputs' format, in which kernels store results."""

    def __init__(self, seed: int, fine: float, gemm: formats.Format | None = None, stored: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed, self.fine, self.gemm, self.stored = seed, fine, gemm, stored
        self.generator = torch.Generator().manual_seed(seed)
        self.ambiguous = False  # whether two elements were written to one place
        self.results = StoredResults()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name, writes = base_name(func.overloadpacket.__name__), written(func)
        self._collisions(name, args, kwargs)
        aliased = any(result.alias_info is not None and not result.alias_info.is_write for result in schema(func).returns)
        if name == "eq" and in_backward() and all(_real(each) for each in args[:2]):
            return self._one_of_equals(func(*args, **kwargs), *args[:2])
        moves = (name in _EXACT and name not in _TIED) or unrounded.scales(name, args, kwargs)
        if aliased or moves or not any(_real(each) for each in _flat((args, tuple(kwargs.values())))):
            return func(*args, **kwargs)
        read = self._read(name, args, kwargs)
        native = func(*args, **kwargs)
        results = list(_flat(native))
        if not any(_real(each) for each in results) and name not in _TIED:
            return native
        try:
            wide = list(_flat(func(*read[0], **read[1])))
        except Exception:
            wide = [each.double() if _real(each) else each for each in results]
        if name in ops.CHOOSERS and len(wide) == 2:
            wide[0] = unrounded.chosen(func, args, kwargs, wide[1], wide[0])
        if name in ops.SOFTMAXES and len(wide) == 1:
            wide = [self._shifted(name, wide[0], args[0])]
        if name in _SOFTMAXES_BACKWARD and len(wide) == 1:
            wide = [self._unshifted(name, wide[0], *args[:3])]
        if name == _ATTENTION and len(wide) == 1:
            wide = [self._as_stored(wide[0])]
        self._follow(name, native, func, read, args)
        for result, exact in zip(results, wide, strict=False):
            self._store(result, exact, rounds=name not in _EXACT or bool(writes))
        return native

    def _follow(self, name: str, native: Any, func: Any, read: tuple[tuple[Any, ...], dict[str, Any]], args: tuple[Any, ...]) -> None:
        """Notes softmaxes, and the gradients that reach them from a product with other operands, as they are stored."""
        if name in ops.SOFTMAXES and isinstance(native, torch.Tensor):
            self.results.softmax(native, attention=name == _ATTENTION)
        elif in_backward() and isinstance(native, torch.Tensor) and self.results.awaited(native):
            if name in ops.PRODUCTS:
                right = func(*read[0], **read[1])
                self.results.note(native, func(*(self._as_stored(each) if _real(each) else each for each in read[0]), **read[1]) - right)
            elif name in ops.CASTS and isinstance(args[0], torch.Tensor):
                self.results.copied(args[0], native)

    def _as_stored(self, value: torch.Tensor) -> torch.Tensor:
        """Values in float64 that were rounded to the inputs' format."""
        return value * (1 + 2 * self.stored * self._random(value))

    def _read(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Disturbed copies of the arguments in float64. Terms of sums also get the error of the sum."""
        row = ops.REGISTRY.get(name)
        inside = name.endswith("_backward") or any(each in name for each in ops.ADDING_INSIDE)
        adds = inside or (row is not None and row.kind in _SUMMING) or name in ops.SCATTERING
        sums = _ELIMINATION if any(each in name for each in ops.ELIMINATING) else _CHAIN if adds else 0.0
        gemm = self.gemm if name in ops.PRODUCTS else None

        def disturbed(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                if name in ops.ADDING_ALONE and unrounded.countable(value):
                    return widened(value)
                moved = self._disturbed(value, sums=sums, tied=name in _TIED, gemm=gemm, exact=name in _STEPS)
                moved = self._chained(moved) if name in _LOGARITHMIC else moved
                return unrounded.kept(value, moved, _HALF if name in ops.ADDITIONS else 1.0) if name in _KEEPING else moved
            if isinstance(value, (list, tuple)):
                return type(value)(disturbed(each) for each in value)
            return widened(value)

        return tuple(disturbed(each) for each in args), {key: disturbed(each) for key, each in kwargs.items()}

    def _disturbed(self, value: torch.Tensor, *, sums: float, tied: bool, gemm: formats.Format | None, exact: bool) -> torch.Tensor:
        wide = widened(value)
        if wide is value:
            wide = value.clone()
        if gemm is not None and wide.is_floating_point():
            wide = self._cut_off(wide, gemm) if gemm is formats.TF32 and self.seed % 2 == 0 else self._rounded(wide, gemm)
        factor = self._random(value).mul_(2 * ADDED_NOISE * self.fine)
        if sums:
            for axis, size in enumerate(value.shape):
                if size >= _SHORT:
                    chain = self._chain(size, value.device).mul_(_repeats_along(value, axis) * size ** (sums - _CHAIN))
                    factor = factor + chain.view([size if each == axis else 1 for each in range(value.dim())])
        moved = wide if exact else wide * (1 + factor)
        if tied:
            scale = wide.abs().where(wide.isfinite(), 0.0).amax() if wide.numel() else 0.0
            free = wide.signbit() if exact and not in_backward() else torch.ones_like(wide, dtype=torch.bool)
            moved = torch.where((wide == 0) & free, factor * scale, moved)
        return torch.where(wide.isfinite(), moved, wide)

    def _chained(self, terms: torch.Tensor) -> torch.Tensor:
        """Logarithms of terms with the error of a chain of additions that rounds the logarithm of the partial sum in each step."""
        for axis, size in enumerate(terms.shape):
            if size >= _SHORT:
                largest = terms.where(terms.isfinite(), 0.0).abs().amax(axis, keepdim=True) + math.log(size)
                terms = terms + largest * self._chain(size, terms.device).view([size if each == axis else 1 for each in range(terms.dim())])
        return terms

    def _chain(self, size: int, device: torch.device) -> torch.Tensor:
        """The relative errors that a chain of `size` additions gives its terms. Each term has the roundings of all partial sums after it."""
        steps = torch.randn(size, generator=self.generator, dtype=torch.float64)
        return steps.cumsum(0).flip(0).mul_(self.fine).to(device)

    def _random(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers from -0.5 to 0.5 in the shape of a tensor, on its device. They are the same on every device."""
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float32).double().sub_(0.5).to(like.device)

    def _shifted(self, name: str, exact: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """A softmax whose rows were shifted by their logsumexp, which is rounded like scores of that size. Scores whose powers are zero, as of a mask
        that is a large number, have no part in it."""
        if not exact.dim() or not exact.numel():
            return exact
        sizes, powers = scores.detach().double().abs(), exact.exp() if "log" in name else exact
        step = ADDED_NOISE * self.fine * sizes.where(sizes.isfinite() & (powers > 0), 0.0).amax() * self._random(exact)
        return exact + step if "log" in name else exact * (1 + step)

    def _unshifted(self, name: str, exact: torch.Tensor, gradient: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
        """The gradient of scores that were shifted by the largest score of their row. The largest score's gradient through the shift is zero in exact
        arithmetic, and a sum of rounding errors here. `output`: the softmax or its logarithm. A softmax's gradient has a sum over its row, which
        kernels read from stored results: softmax from its own, and attention from the product with the values. So the sum has the error of these."""
        if not exact.dim() or not exact.numel():
            return exact
        terms = gradient.double().abs()
        terms = terms if "log" in name else terms * output.double().abs()
        whole = terms.nan_to_num(posinf=0.0).sum(dim, keepdim=True)
        if "log" not in name:
            exact = self._as_stored(exact) if self.results.weighs(output) else exact
            error = self.results.error(gradient)
            off = 0.0 if error is None or error.shape != output.shape else (output.double() * error).sum(dim, keepdim=True)
            exact = exact - output.double() * (2 * self.stored * whole * self._random(whole) + off)
        left = ADDED_NOISE / 2 * self.fine * whole * self._random(whole).sign()
        return exact.scatter_add(dim, output.argmax(dim, keepdim=True), left.to(exact.dtype))

    def _one_of_equals(self, same: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Which elements are the largest, for a derivative. Of several equal ones, any may get the whole gradient, or each its share.

        The largest was disturbed and rounded, so it may equal none of them any more. Then it is the nearest one.
        """
        small = one if one.numel() < other.numel() else other
        whole = (1,) * (same.dim() - small.dim()) + tuple(small.shape)
        axes = [axis for axis in range(same.dim()) if same.shape[axis] > 1 and whole[axis] == 1]
        if not same.numel():
            return same
        gap = (one.double() - other.double()).abs()
        if not axes:  # element by element, as for the largest of a segment
            return same | (gap <= 4 * ADDED_NOISE * self.fine * other.double().abs())
        moved = max(4 * ADDED_NOISE * self.fine, 2 * torch.finfo(small.dtype).eps)
        near = (gap == gap.amin(axes, keepdim=True)) & (gap <= moved * other.double().abs())
        same = torch.where(same.sum(axes, keepdim=True) == 0, near, same)
        tied = same.sum(axes, keepdim=True) > 1
        if self.seed in _ENDS and len(axes) == 1:
            return self._end(same | (gap <= 4 * ADDED_NOISE * self.fine * other.double().abs()), axes[0])
        drawn = torch.rand(same.shape, generator=self.generator).to(same.device)
        kept = same & (drawn < 1 / same.sum(axes, keepdim=True).clamp(min=1))
        return torch.where(tied & (kept.sum(axes, keepdim=True) > 0), kept, same)  # if none is drawn, each has its share

    def _end(self, same: torch.Tensor, axis: int) -> torch.Tensor:
        """The first of equal elements, or the last."""
        flipped = same.flip(axis) if self.seed == _ENDS[1] else same
        first = flipped & (flipped.cumsum(axis) == 1)
        return first.flip(axis) if self.seed == _ENDS[1] else first

    def _store(self, result: Any, exact: Any, *, rounds: bool) -> None:
        if not isinstance(result, torch.Tensor) or not isinstance(exact, torch.Tensor) or result.shape != exact.shape:
            return
        if result.is_floating_point() and rounds:
            exact = self._rounded(exact.double(), formats.of_dtype(result.dtype)) if result.dtype != torch.float64 else exact
        result.copy_(exact)

    def _rounded(self, exact: torch.Tensor, fmt: formats.Format) -> torch.Tensor:
        """Rounded up or down at random, so that the mean is right. Values that the format holds do not change."""
        spacing = _spacing(exact, fmt)
        kept = ~exact.isfinite() | (exact == 0)  # every format holds a zero, and a rounding gives it no sign
        return torch.where(kept, exact, (exact / spacing + self._random(exact)).round() * spacing)

    def _cut_off(self, exact: torch.Tensor, fmt: formats.Format) -> torch.Tensor:
        """Rounded towards zero, as by kernels that pass float32 on: tensor cores do not read the low bits of an operand in tf32."""
        return torch.where(exact.isfinite(), (exact / (spacing := _spacing(exact, fmt))).trunc() * spacing, exact)

    def _collisions(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes an op that writes two elements to one place, where it is undefined which one stays."""
        if kwargs.get("reduce") or kwargs.get("accumulate"):
            return
        if name == "index_put":
            accumulates = len(args) > 3 and bool(args[3])
            indices = [each for each in args[1] if each is not None and each.dtype is not torch.bool]
            scalar = isinstance(args[2], torch.Tensor) and args[2].numel() == 1
            repeated = len(indices) == 1 and indices[0].unique().numel() < indices[0].numel()
            self.ambiguous |= repeated and not accumulates and not scalar
        elif name in ("scatter", "index_copy") and isinstance(args[2], torch.Tensor) and len(args) > 3 and isinstance(args[3], torch.Tensor):
            self.ambiguous |= _repeats(args[2], int(args[1]))


def _spacing(exact: torch.Tensor, fmt: formats.Format) -> torch.Tensor:
    """The distance between neighbours in a format around each number."""
    least = fmt.min_exponent + 1 - fmt.precision
    return torch.ldexp(torch.ones_like(exact), (torch.frexp(exact).exponent - fmt.precision).clamp_(min=least))


def _repeats_along(value: torch.Tensor, axis: int) -> float:
    """The factor by which the error of a chain grows if terms are equal. Additions of the same number round alike: of n terms with k values, n k / n²
    of the errors are independent, not n."""
    lines = value.detach().movedim(axis, -1).reshape(-1, value.shape[axis])
    if not _real(value) or value.is_complex() or not lines.numel():
        return 1.0
    line = lines[:: max(len(lines) // 4, 1)][:4].double().sort(-1).values
    kinds = 1 + (line.diff(dim=-1) != 0).sum(-1)
    return float((value.shape[axis] / kinds).max().sqrt())


def _repeats(index: torch.Tensor, dim: int) -> bool:
    return bool(index.numel() and index.dim()) and bool((index.sort(dim=dim).values.diff(dim=dim) == 0).any())


def _flat(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
