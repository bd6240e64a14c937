"""`Format` and the formats of training (bf16, fp16, fp8, …): rounding, spacing and absorption of single numbers, computed exactly.

Everything is computed on Python floats without error: each format is a subset of float64, where scaling by a power of
two is exact. Spacings are absolute, in the unit of `x`; only `unit_roundoff` and `epsilon` are relative.
This module imports neither torch nor numpy; reading `Format.dtype` imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


ONE_ROUNDING = 0.42
"""Root mean square error of one rounding to nearest, in unit roundoffs, relative to the Euclidean norm. Measured on Gaussian numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format with subnormals, rounded to nearest, ties to even.

    >>> BF16.round(1.23456), BF16.ulp(1.23456), BF16.absorbs(1.23456, -1e-4)
    (1.234375, 0.0078125, True)

    Attributes:
        name: As in `precheck.FORMATS`: "bf16".
        precision: Significant bits, the implicit one included.
        min_exponent: The smallest normal number is 2**min_exponent.
        max: The largest finite number.
        saturates: Whether larger numbers, infinity too, become `max`. Such a format has no infinity.
        dtype_name: The attribute of torch; None where torch has no such dtype.
    """

    name: str
    precision: int
    min_exponent: int
    max: float
    saturates: bool = False
    dtype_name: str | None = None

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a number in the normal range, 2**-precision."""
        return math.ldexp(1.0, -self.precision)

    @property
    def epsilon(self) -> float:
        """The distance from 1.0 to the next number above (torch.finfo's `eps`), twice the unit roundoff."""
        return math.ldexp(1.0, 1 - self.precision)

    @property
    def min_normal(self) -> float:
        """The smallest positive number that has full precision."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number; half of it still rounds to zero."""
        return math.ldexp(1.0, self.min_exponent - self.precision + 1)

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest finite number: 8 for e4m3fn, whose largest is 448."""
        return math.frexp(self.max)[1] - 1

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that stores the format; float32 for tf32, which is a way to multiply and not to store."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name or "float32")
        return dtype

    def round(self, x: float) -> float:
        """The number of this format nearest to `x`; nan stays nan, and zero keeps the sign of `x`.

        Rounded once. Torch casts a float64 through float32, so what it does is `self.round(FP32.round(x))`.
        """
        if not math.isfinite(x):
            return math.copysign(self.max, x) if self.saturates and not math.isnan(x) else x
        # Twice the maximum overflows as well as anything, and rounding it cannot leave the range of float64.
        magnitude = min(abs(x), 2 * self.max)
        scale = self._scale(magnitude)
        rounded = math.ldexp(round(math.ldexp(magnitude, -scale)), scale)
        if rounded > self.max:
            rounded = self.max if self.saturates else math.inf
        return math.copysign(rounded, x)

    def ulp(self, x: float) -> float:
        """The spacing in the binade of |x|, which is the distance to the next number away from zero.

        `x` itself is not rounded first. Beyond `max` the spacing is that of the last binade; of infinity and nan it is
        what `math.ulp` says.
        """
        return math.ldexp(1.0, self._scale(min(abs(x), self.max))) if math.isfinite(x) else math.ulp(x)

    def spacing_below(self, x: float) -> float:
        """The distance from the stored value of `x` to the next number towards zero: half an ulp at powers of two.

        At zero, the smallest subnormal; nan at nan; infinity at infinity.
        """
        stored = abs(self.round(x))
        shrinks = stored > self.min_normal and math.frexp(stored)[0] == 0.5
        return self.ulp(stored) / 2 if shrinks else self.ulp(stored)

    def neighbours(self, x: float) -> tuple[float, float]:
        """The next numbers below and above the stored value of `x`.

        Past `max` comes infinity; where the format saturates nothing does, and `max` is its own neighbour.
        """
        stored = self.round(x)
        if stored < 0:
            below, above = self.neighbours(-stored)
            return -above, -below
        if math.isinf(stored):
            return self.max, stored
        return stored - self.spacing_below(stored), self.round(stored + self.ulp(stored))

    def half_ulp(self, x: float) -> tuple[float, float]:
        """The length of step, down and up, that the stored value of `x` must see exceeded before it moves.

        A step of exactly this length is a tie, and moves only odd significands. Infinite where no finite step moves the
        value. Exact but for float64's smallest spacing, the half of which is no Python float (0.0).
        """
        stored = self.round(x)
        if stored < 0:
            down, up = self.half_ulp(-stored)
            return up, down
        if math.isinf(stored):
            return math.inf, math.inf
        up = math.inf if self.saturates and stored == self.max else self.ulp(stored) / 2
        return self.spacing_below(stored) / 2, up

    def absorbs(self, x: float, delta: float) -> bool:
        """Whether adding `delta` to the stored value of `x` leaves it unchanged: round(round(x) + delta) == round(x).

        The sum is exact and rounded once. Torch adds bf16 and fp16 tensors in float32 and rounds twice, so it takes for
        a tie every sum that float32 cannot tell from one. Nan absorbs nothing, and a delta of nan is not absorbed.
        """
        stored = self.round(x)
        if delta == 0 or not (math.isfinite(stored) and math.isfinite(delta)):
            return self.round(stored + delta) == stored
        down, up = self.half_ulp(stored)
        # The sum of two floats may need more than 53 bits; comparing the step with the half gap needs no sum.
        half = up if delta > 0 else down
        return abs(delta) < half or (abs(delta) == half and self._is_even(stored))

    def __str__(self) -> str:
        return self.name

    def _scale(self, magnitude: float) -> int:
        """The exponent of the last significant bit of numbers in the binade of `magnitude`."""
        exponent = math.frexp(magnitude)[1] - 1 if magnitude else self.min_exponent
        return max(exponent, self.min_exponent) - self.precision + 1

    def _is_even(self, stored: float) -> bool:
        return math.ldexp(stored, -self._scale(abs(stored))) % 2 == 0


BF16 = Format("bf16", 8, -126, float.fromhex("0x1.fep+127"), dtype_name="bfloat16")
FP16 = Format("fp16", 11, -14, float.fromhex("0x1.ffcp+15"), dtype_name="float16")
FP32 = Format("fp32", 24, -126, float.fromhex("0x1.fffffep+127"), dtype_name="float32")
FP64 = Format("fp64", 53, -1022, float.fromhex("0x1.fffffffffffffp+1023"), dtype_name="float64")
# float32's exponent with float16's significand: the largest tf32 number is below float32's.
TF32 = Format("tf32", 11, -126, float.fromhex("0x1.ffcp+127"))
# Torch 2.13 casts overflow and infinity to 448 on the CPU (torch/headeronly/util/Float8_e4m3fn.h, pytorch#178817).
# ml_dtypes makes them nan (ml_dtypes#400); the OCP FP8 specification allows both.
E4M3FN = Format("fp8-e4m3fn", 4, -6, float.fromhex("0x1.cp+8"), saturates=True, dtype_name="float8_e4m3fn")
E5M2 = Format("fp8-e5m2", 3, -14, float.fromhex("0x1.cp+15"), dtype_name="float8_e5m2")
# The elements of OCP Microscaling Formats 1.0 (2023), section 5.3. They have neither Inf nor NaN, and torch has no dtype of one such number.
E3M2 = Format("fp6-e3m2", 3, -2, 28.0, saturates=True)
E2M3 = Format("fp6-e2m3", 4, 0, 7.5, saturates=True)
E2M1 = Format("fp4-e2m1", 2, 0, 6.0, saturates=True)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {f.name: f for f in (BF16, FP16, FP32, FP64, TF32, E4M3FN, E5M2, E3M2, E2M3, E2M1)}
)
_BY_DTYPE = {f.dtype_name: f for f in FORMATS.values() if f.dtype_name}


def of_dtype(dtype: torch.dtype | str) -> Format:
    """The format that a torch dtype stores, given as the dtype or by its name. Raises ValueError for any other.

    >>> of_dtype("torch.bfloat16").name
    'bf16'
    """
    found = _BY_DTYPE.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"no number format is known for dtype {dtype}; known are {', '.join(_BY_DTYPE)}")
    return found
