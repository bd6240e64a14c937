"""Notes that an `Operation` carries about codes. Codes are numbers that were rounded under a scale."""

from __future__ import annotations

import dataclasses
from typing import Literal

Fault = Literal["", "inverse", "twice", "forgotten", "foreign", "left", "end", "unscaled"]


@dataclasses.dataclass(frozen=True, slots=True)
class Uncancelled:
    """A result computed from codes that still depends on their scales. `rounded` is the line that made the codes.

    `fault` says what the common factor of the result is: the square of a scale ("inverse"), a scale ("twice"), the inverse of a number that scales
    were multiplied by ("forgotten"), one scale over another ("foreign"), the largest number of a format ("end"), or a scale of numbers that were cast
    without one ("unscaled"). It may also be unknown and depend on the data of a scale ("left").
    """

    rounded: str
    off: float  # relative error, against the same computation without scales
    middle: float  # median of the ratio of the two
    spread: float  # ninth decile of the ratio over its first
    whole: bool = False  # whether the result is off by one common factor
    joined: bool = False  # whether a term that no scale was divided out of had been added before the scales were multiplied by
    fault: Fault = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Derived:
    """A gradient that a Function returns, beside the derivative of its forward product. Errors are relative."""

    rounded: str  # a line that rounds an operand
    operand: str  # "input" or "weight"
    off: float
    left: float  # when one factor for all of the gradient has been taken out
    rounding: float  # what the errors of its operands explain


@dataclasses.dataclass(frozen=True, slots=True)
class Dead:
    """Codes that are NaN, since the data and its scale are 0."""

    share: float  # of the elements


@dataclasses.dataclass(frozen=True, slots=True)
class WrappedCodes:
    """Integer codes that are off by the number of integers of their dtype. `rounded` is the line that made them."""

    rounded: str
    share: float  # of the elements
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """Codes that are not what was rounded any longer. Both errors are relative to the numbers that were rounded."""

    rounded: str  # the line that made them
    off: float
    rounding: float  # when they were made


@dataclasses.dataclass(frozen=True, slots=True)
class MixedCodes:
    """Integers that hold bits of two codes, beside others that hold one code each. `rounded` is the line that made the codes."""

    rounded: str
    share: float  # of the integers


@dataclasses.dataclass(frozen=True, slots=True)
class Misread:
    """Numbers that are made of codes and their scales alone, and are the data in no order. Both errors are relative to the data."""

    rounded: str  # the line that made the codes
    off: float  # in the order in which they are closest to the data
    rounding: float


@dataclasses.dataclass(frozen=True, slots=True)
class Unfolded:
    """Factors that one tensor was divided by and another multiplied by, and that do not cancel."""

    rounded: str  # the line that made the codes of a product that keeps them; "" where this is a function of what was divided by them
    through: str  # a function of what was divided by them, which they do not pass; "" where nothing was divided by them
    summed: bool = False  # whether what was divided by them is added to what was not


@dataclasses.dataclass(frozen=True, slots=True)
class Vanished:
    """Numbers of one sign that lose much of their sum by a cast, since small ones become zero."""

    lost: float  # of the sum
    share: float  # of the elements that become zero
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class Flushed:
    """Scales that a cast made 0, and under which data is quantised."""

    share: float  # of the scales
    lost: float  # their Euclidean norm, over that of all scales


@dataclasses.dataclass(frozen=True, slots=True)
class Unrotated:
    """Rotations by Hadamard matrices that do not cancel: those of a product's two operands, or one that is applied again and not undone."""

    rotated: str  # where the left operand was rotated
    other: str  # and the right one; "" where one tensor was rotated twice
    off: float  # |result - c result without rotations| / |result|, for the best factor c


@dataclasses.dataclass(frozen=True, slots=True)
class Clipped:
    """Codes that were clipped to the largest number. `lost` and `rounding` are relative to the Euclidean norm."""

    lost: float
    rounding: float  # error of rounding the same tensor
    share: float  # of the elements
    greatest: float  # magnitude, as a multiple of the largest number
    calls: int = 1  # of this line; the other figures are from its worst call
    clips: int = 1  # calls in which clipping cost more than rounding


@dataclasses.dataclass(frozen=True, slots=True)
class Coarse:
    """Codes under a scale that was made for a greater number than they have, in the middle one of a line's calls. `lost` and `rounding` are relative
    to the Euclidean norm."""

    lost: float
    rounding: float  # error under a scale of the tensor itself
    share: float  # greatest magnitude, over the one that the scale was made for
    bits: float  # of a code
    scaled: bool = True  # whether there was a scale


@dataclasses.dataclass(frozen=True, slots=True)
class Skewed:
    """Codes whose rounding errors are biased. Errors are in steps between neighbouring numbers."""

    mean: float
    towards_zero: bool  # whether `mean` is measured towards zero
    noisy: bool  # whether noise was added before
    chance: float  # the mean that chance gives for this number of elements


@dataclasses.dataclass(frozen=True, slots=True)
class RepeatedNoise:
    """Codes that several calls have rounded with the same noise."""

    calls: int
    grown: float  # the square of the sum of their errors, over the sum of the squares


@dataclasses.dataclass(frozen=True, slots=True)
class Late:
    """The error that a delayed scale, made from earlier calls, causes in an operand of a product. The worst call, relative to the operand's norm."""

    operand: str  # "input", "weight" or "gradient"
    lost: float  # error under the delayed scale
    rounding: float  # error under a scale of the operand itself
    clipped: float  # share of the elements
    zeroed: float  # share of the elements that become zero but would not under a scale of the operand itself
    grown: float  # greatest magnitude, over the one that the scale was made for
    calls: int  # calls that had a call before them
    small: int  # calls in which the scale was made for smaller numbers and cost more than rounding
    large: int  # the same, for a scale made for greater numbers
    history: int  # calls before from which a scale may be made


Remark = (
    Uncancelled | Derived | Unfolded | Unrotated | Dead | WrappedCodes | MixedCodes | Changed | Misread
    | Clipped | Coarse | Flushed | Vanished | Skewed | RepeatedNoise | Late
)
