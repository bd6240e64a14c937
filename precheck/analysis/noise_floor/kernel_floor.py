"""Says how far a correct kernel may be from the exact result (`Floor`), and how far a candidate is (`distance`), by element and by block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from precheck import formats
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor.cut_off import CUT_OFF, TWICE, cut_off
from precheck.analysis.noise_floor.noise import FAIL, REASSOCIATED
from precheck.torch_support.dense_parts import continuous

AT_ONE_ELEMENT = Limit(2, "times the largest distance of the reference or its noise runs")
"""The error that is allowed at one element. Projects allow twice the error of the reference itself."""
NEARBY = Limit(4, "times the root mean square distance in the element's row and column")
"""The error that is allowed at an element where the few noise runs happened to be close. A normal distribution is beyond four standard deviations
once in 16 000 times."""
ELEMENTS = Limit(32, "elements")
"""The fewest elements of a row, column or tensor whose root mean square says more than its single elements."""
ADDED_NOISE = Limit(8, "roundings of float32")
"""The noise that a noise run adds to each input and intermediate. Measured: tiled attention needs as much where a gradient cancels to 0."""
SPACINGS = Limit(1.5, "spacings of the stored format")
"""The distance by which two correct implementations may store a result apart: each rounds it once, and some store it twice."""

CANCELLED_GRADIENT = Limit(1 / 16, "share of its terms")
"""A gradient counts as cancelled if less than this share of its terms is left. Four of a format's eight or more bits are lost then."""
ROUNDINGS_OF_TERMS = Limit(4, "roundings of the terms of a gradient that cancels")
"""The error that is allowed for a gradient whose terms cancel. It has two terms. The kernel stores each, and autograd stores each again when it adds
them: four roundings."""
CHOICES = Limit(4, "times that each choice was seen")
"""Of equal numbers a correct implementation may choose any. How many choices there are is not known. Those seen count as all once each was seen so
often: of eight that are equally likely, one is missing then once in four thousand times, and a fault has to be found in two trials."""
UNSURE = Limit(2.0**-48, "times the largest input")
"""A smaller result may be nothing but rounding: 32 roundings of float64, of an intermediate as large as the largest input."""


@dataclasses.dataclass(slots=True, eq=False)
class Floor:
    """The floor of one result or gradient: its exact value, and how far correct implementations were from it."""

    exact: torch.Tensor  # float64, or whole numbers
    dtype: torch.dtype  # of the reference's own result
    widest: torch.Tensor = dataclasses.field(init=False)  # the largest distance at each element
    square: torch.Tensor = dataclasses.field(init=False)  # the sum of square distances at each element, from which those of blocks are made
    unknown: torch.Tensor = dataclasses.field(init=False)  # elements that some run has not finite, or whole numbers that differ between runs
    runs: int = 0
    terms: torch.Tensor | None = None  # of a gradient: an upper bound of its terms, which broadcasts to its shape
    sums: torch.Tensor | None = None  # an upper bound of the sum of their magnitudes
    parts: torch.Tensor | None = None  # of a candidate's gradient that autograd sums: the size of all parts
    jumps: torch.Tensor | None = None  # of a gradient: by how much it changes close to these inputs
    seen: list[torch.Tensor] = dataclasses.field(default_factory=list)  # of whole numbers: all results of correct implementations

    def __post_init__(self) -> None:
        self.unknown = torch.zeros(self.exact.shape, dtype=torch.bool) if not continuous(self.exact) else ~self.exact.isfinite()
        self.widest = torch.zeros(self.exact.shape, dtype=torch.float64)
        self.square = torch.zeros(self.exact.shape, dtype=torch.float64)

    def add(self, other: torch.Tensor) -> None:
        """Adds the result of one more correct implementation."""
        self.runs += 1
        if not continuous(self.exact):
            self.unknown |= other != self.exact
            self.seen.append(other.to(self.exact.dtype))
            return
        distance = _distance(other, self.exact)
        self.unknown |= ~distance.isfinite()
        distance = distance.where(distance.isfinite(), 0.0)
        self.widest = torch.maximum(self.widest, distance)
        self.square += distance.square()

    def bound(self) -> torch.Tensor:
        """The distance from the exact result that is allowed at each element."""
        return AT_ONE_ELEMENT * self.widest + NEARBY * self._nearby() + self._stored() + self._terms() + self._jumps()

    def parted(self, parts: torch.Tensor | None) -> None:
        """Sets the size of the parts that autograd adds up to the candidate's gradient."""
        self.parts = parts if parts is not None and parts.shape == self.exact.shape else None

    def jumped(self, other: torch.Tensor) -> None:
        """Adds the result at inputs close to these. Where a gradient differs, any between the two is right, as at a corner or among equals. A whole
        number that differs there is one more correct result."""
        if not continuous(self.exact):
            return self.add(other)
        gap = _distance(other, self.exact)
        gap = gap.where(gap.isfinite(), 0.0)
        self.jumps = gap if self.jumps is None else torch.maximum(self.jumps, gap)

    def strange(self, result: torch.Tensor) -> torch.Tensor:
        """Elements where correct implementations choose, and `result` is none of their choices."""
        return self.unknown & (result != self.exact) & ~self._count(result).bool()

    def settled(self, result: torch.Tensor) -> torch.Tensor:
        """Elements where `result` cannot be a choice that is missing: each was seen often, or it is beyond all that any element ever was."""
        seen = torch.stack([self.exact, *self.seen])
        return (torch.stack([self._count(each) for each in self.seen]).amin(0) >= CHOICES) | (result < seen.min()) | (result > seen.max())

    def _count(self, result: torch.Tensor) -> torch.Tensor:
        """How many runs gave this result, at each element."""
        return torch.zeros(result.shape, dtype=torch.long) + sum(each == result for each in self.seen)

    def shared_by_equals(self, value: torch.Tensor) -> None:
        """Allows the same jump at all elements with the same number. An op may choose any of equal elements, and a few runs show only a few of the
        choices."""
        if self.jumps is None or not bool((self.jumps > 0).any()):
            return
        kinds, places = value.detach().reshape(-1).unique(return_inverse=True)
        most = torch.zeros(len(kinds), dtype=torch.float64).scatter_reduce(0, places, self.jumps.reshape(-1), "amax")
        self.jumps = most[places].reshape(self.jumps.shape)

    def _jumps(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64) if self.jumps is None else self.jumps

    def _format(self) -> formats.Format:
        return formats.of_dtype(torch.float32 if self.dtype.is_complex else self.dtype)

    def _stored(self) -> torch.Tensor:
        fmt = self._format()
        return max(SPACINGS * fmt.epsilon, _fine(fmt)) * self.exact.abs() + 2 * max(fmt.min_subnormal, 2.0**-126 if fmt.precision == 24 else 0.0)

    def _terms(self) -> torch.Tensor:
        """The error that is allowed at an element of a gradient because kernels store the terms of its sum."""
        own = torch.zeros((), dtype=torch.float64) if self.parts is None else ROUNDINGS_OF_TERMS * self._format().unit_roundoff * self.parts
        return torch.maximum(own, self._guessed())

    def _guessed(self) -> torch.Tensor:
        """The same, by upper bounds of the terms."""
        if self.terms is None:
            return torch.zeros((), dtype=torch.float64)
        fmt = self._format()
        one = ROUNDINGS_OF_TERMS * fmt.unit_roundoff * self.terms
        return one if self.sums is None else torch.maximum(one, _fine(fmt) * self.sums)

    def _cancelled(self) -> torch.Tensor:
        """The same for elements of blocks, but only where the terms cancel. Elsewhere these roundings are independent, as others are."""
        none = torch.zeros((), dtype=torch.float64)
        large = torch.maximum(none if self.terms is None else self.terms, none if self.parts is None else self.parts)
        return torch.where(self.exact.abs() < CANCELLED_GRADIENT * large, self._terms(), 0.0)

    def _nearby(self) -> torch.Tensor:
        """An element's expected distance, from its row and its column: their product over the whole, as in a matrix of rank one, but at least the
        smaller of them."""
        mean = self.square / max(self.runs, 1)
        if mean.dim() == 0 or mean.numel() < 2:
            return mean.sqrt()
        matrix = mean.reshape(-1, mean.shape[-1])
        row, column, whole = matrix.mean(1, keepdim=True).sqrt(), matrix.mean(0, keepdim=True).sqrt(), matrix.mean().sqrt()
        if matrix.shape[0] == 1:
            return whole.expand(mean.shape)
        joint = row * column / whole.clamp(min=1e-300)
        return torch.maximum(joint, torch.minimum(row, column)).reshape(mean.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Distance:
    """How far a candidate's result is from the exact one. It is too far if `ratio` is more than 1."""

    ratio: float
    elements: int = 0  # how many are too far by themselves
    block: str = ""  # whose root mean square is too far: "the tensor", "row 3", "column 7"
    first: tuple[int, ...] = ()  # the index of the worst element
    got: float = 0.0
    exact: float = 0.0
    lost: int = 0  # elements that are not finite, where the exact result is
    wrong: torch.Tensor | None = None  # which elements are too far
    relative: float = 0.0  # the distance of the tensor, relative to its norm
    choices: bool = False  # whether some element is a choice that no run made, so that more runs may tell


def distance(floor: Floor, result: torch.Tensor) -> Distance:
    """The distance of a candidate's result in one trial."""
    known = ~floor.unknown
    if not continuous(floor.exact):
        result = result.to(floor.exact.dtype)
        wrong = (result != floor.exact) & known
        strange = floor.strange(result) if bool(floor.unknown.any()) else wrong & False
        wrong |= strange & floor.settled(result) if bool(strange.any()) else strange
        found = _reported(floor, result, wrong, math.inf if bool(wrong.any()) else 0.0, "", wrong & False)
        return dataclasses.replace(found, choices=bool(strange.any()))
    if not bool(known.any()):
        return Distance(0.0)
    far = _distance(result, floor.exact)
    lost = known & ~far.isfinite()
    bound = floor.bound()
    ratios = torch.where(known, (far / bound.clamp(min=1e-300)).where(far.isfinite(), math.inf), 0.0)
    block, by = _blocks(floor, far.where(known & far.isfinite(), 0.0), known)
    if by <= 1 and cut_off(floor.exact.where(known, 0.0), result, floor._format()):
        block, by = CUT_OFF, TWICE
    worst = max(float(ratios.max()) if ratios.numel() else 0.0, by)
    return _reported(floor, result, ratios > 1, worst, block if by > 1 else "", lost)


def _reported(floor: Floor, result: torch.Tensor, wrong: torch.Tensor, ratio: float, block: str, lost: torch.Tensor) -> Distance:
    """The distance, with the worst element as an example."""
    first: tuple[int, ...] = ()
    if bool(wrong.any()):
        far = _distance(result, floor.exact).nan_to_num(nan=math.inf) if continuous(floor.exact) else wrong.double()
        place = int(torch.where(wrong, far, -1.0).reshape(-1).argmax())
        first = tuple(int(each) for each in torch.unravel_index(torch.tensor(place), wrong.shape)) if wrong.dim() else ()
    some = bool(wrong.any())
    got, exact = (_number(result[first]), _number(floor.exact[first])) if some else (0.0, 0.0)
    return Distance(ratio, int(wrong.sum()), block, first, got, exact, int(lost.sum()), wrong, _relative(floor, result))


def _number(value: torch.Tensor) -> float:
    return float(value.abs()) if value.is_complex() else float(value)


def _relative(floor: Floor, result: torch.Tensor) -> float:
    """The distance of a whole result, relative to its norm."""
    if not continuous(floor.exact):
        return 0.0
    known = ~floor.unknown
    far, norm = _distance(result, floor.exact).where(known, 0.0), floor.exact.abs().where(known, 0.0).norm()
    return float(far.norm() / norm) if float(norm) else math.inf


def _blocks(floor: Floor, far: torch.Tensor, known: torch.Tensor) -> tuple[str, float]:
    """The block (the tensor, a row or a column) whose root mean square is furthest beyond that of the noise runs and the reference, and its ratio."""
    if far.numel() < ELEMENTS:
        return "", 0.0
    stored = floor._stored().square() / FAIL**2 + floor._cancelled().square() + floor._jumps().square()
    allowed = FAIL**2 * (floor.square / max(floor.runs, 1)) + stored
    seen, limit = far.square().reshape(-1, far.shape[-1]), torch.where(known, allowed, 0.0).reshape(-1, far.shape[-1])
    best = ("the tensor", _root(seen.sum(), limit.sum()))
    for axis, what in ((1, "row"), (0, "column")):
        if seen.shape[axis] >= ELEMENTS and seen.shape[1 - axis] > 1:
            ratios = (seen.sum(axis) / limit.sum(axis).clamp(min=1e-300)).sqrt() / _chance(seen.shape[axis])
            if float(ratios.max()) > best[1]:
                best = (f"{what} {int(ratios.argmax())}", float(ratios.max()))
    return best


def _chance(elements: int) -> float:
    """The factor that chance explains in the largest of many blocks. It is larger for fewer elements."""
    return 1 + 4 / math.sqrt(elements)


def _root(seen: torch.Tensor, limit: torch.Tensor) -> float:
    return math.sqrt(float(seen) / max(float(limit), 1e-300))


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = a.to(b.dtype) if a.is_complex() == b.is_complex() else a.to(torch.complex128)
    same = (wide == b) if not wide.is_complex() else torch.zeros((), dtype=torch.bool)
    return torch.where(same, 0.0, (wide - b).abs())


def combined(exact: torch.Tensor, dtype: torch.dtype, others: Sequence[torch.Tensor]) -> Floor:
    """The floor from the exact result and those of correct implementations."""
    floor = Floor(exact, dtype)
    for other in others:
        floor.add(other)
    return floor


def _fine(fmt: formats.Format) -> float:
    """The relative error of the same formula in another order: `REASSOCIATED` in float32, and as many roundings in float64."""
    return float(REASSOCIATED) * 2.0 ** (24 - max(fmt.precision, 24))


def terms(value: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Upper bounds for the gradient of `value`: of its largest term, and of the sum of its terms. They are weights divided by the size of the input,
    row by row where both have rows. There a backward pass may read the stored outputs of the row, as attention's does. The rounding errors of many of
    them have a larger standard deviation than that of the largest. A term of a softmax or an exponential is as large as its weight however large the
    inputs are, since it changes by its own size if an input changes by one."""
    found = sums = torch.zeros((), dtype=torch.float64)
    size = value.square().mean().sqrt() if value.numel() else found
    for weight in weights:
        if not weight.numel() or not value.numel():
            continue
        if weight.dim() >= 2 and value.dim() == weight.dim() and weight.shape[:-1] == value.shape[:-1]:
            row = value.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)
            many = (weight.square().sum(-1, keepdim=True) / 3).sqrt()
            found = found + torch.maximum(weight.amax(-1, keepdim=True), many) / row
            sums = sums + weight.sum(-1, keepdim=True) / row.clamp(max=1)
        else:
            found, sums = found + weight.amax() / size.clamp(min=1e-30), sums + weight.sum() / size.clamp(min=1e-30, max=1)
    return found.nan_to_num(posinf=0.0), sums.nan_to_num(posinf=0.0)
