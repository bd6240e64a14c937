"""Notes on ops that make or read codes: numbers that were rounded under a scale."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Uncancelled:
    """A result of codes that still depends on their scales. `rounded` is where the codes were made, `off` how far it is from what it stands for."""

    rounded: str
    scales: int  # with which so many tensors were rounded
    multipliers: int  # and by how many it has been multiplied or divided since
    off: float  # |result - result of the same without scales| / the latter
    middle: float  # the median of their ratio
    spread: float  # its ninth decile over its first
    whole: bool = False  # whether one factor is all that is off


@dataclasses.dataclass(frozen=True, slots=True)
class Unturned:
    """Turns by Hadamard matrices that do not cancel: those of a product's two operands, or one that is applied again instead of back."""

    turned: str  # where the left operand was turned
    other: str  # and the right one; "" where one tensor was turned twice, "nowhere" where it was not turned
    off: float  # |result - c result without turns| / |result|, for the best factor c


@dataclasses.dataclass(frozen=True, slots=True)
class Clipped:
    """Codes that ended at the largest number. Shares are relative: of the Euclidean norm, and of the elements."""

    lost: float
    rounding: float  # what rounding has cost the same tensor
    share: float
    greatest: float  # magnitude, as a multiple of the largest number
    calls: int = 1  # of this line; this is the worst
    clips: int = 1  # in so many of them clipping cost more than rounding


@dataclasses.dataclass(frozen=True, slots=True)
class Skewed:
    """Codes whose errors have a mean. In steps between neighbouring numbers."""

    mean: float
    towards_zero: bool  # whether it is the mean towards zero
    noisy: bool  # whether noise was added before
    chance: float  # what so many elements leave by chance


@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """Codes that several calls have rounded with the same noise."""

    calls: int
    grown: float  # the square of the sum of their errors, over the sum of the squares


@dataclasses.dataclass(frozen=True, slots=True)
class Late:
    """What scales of the calls before cost an operand of a product. Of its calls the worst is told; errors are relative to the operand's norm."""

    operand: str  # "input", "weight" or "gradient"
    lost: float  # error under the late scale
    rounding: float  # and under a scale of the operand's own
    clipped: float  # share of the elements
    zeroed: float  # share of the elements that a scale of its own keeps
    grown: float  # greatest magnitude, over the one that the scale was made for
    calls: int  # that had calls before them
    small: int  # in so many of them the scale was made for smaller numbers, and that cost more than rounding
    large: int  # and for greater ones
