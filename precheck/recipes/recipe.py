"""What a recipe of low-precision matrix products is: how each operand of each of a layer's three products is quantised.

Nothing here needs torch; `products` carries recipes out.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from precheck.formats.floats import Format
from precheck.formats.tiles import WHOLE
from precheck.formats.whole import Integers

Scale = Literal["float32", "power of two", "delayed", "mx", "nvfp4", "symmetric", "affine"]
"""What a tile's elements are scaled by.

"float32": the largest number of the format over the tile's greatest magnitude. "power of two": that, rounded down to one. "delayed": the same for the
tensor, from the greatest magnitude of the steps before. "mx", "nvfp4": as `formats.mx` (rounded up) and `formats.nvfp4` say. "symmetric", "affine":
integers without and with zero points.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantiser:
    """How one operand is quantised.

    `along` elements in the direction that the product sums over, times `across` in the other, share a scale (`tiles.WHOLE`: all there are).
    `stochastic` rounds by chance. `hadamard` multiplies the operand by a random Hadamard matrix of that size along the sum first. The other operand
    is multiplied by the same, so the product stays the same.
    """

    element: Format | Integers
    scale: Scale = "float32"
    across: int = WHOLE
    along: int = WHOLE
    stochastic: bool = False
    hadamard: int = 0


Pair = tuple[Quantiser | None, Quantiser | None]
PLAIN: Pair = (None, None)
"""A product whose operands stay as they are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: the pairs are (input, weight), (gradient, weight), (gradient, input) of the three products of a linear layer.

    `chunk`: after so many terms a sum is added to one in float32; 0 where it is one sum in float32. `history`: of how many steps delayed scales look
    at the greatest magnitude. `source` says where the recipe is published.
    """

    name: str
    forward: Pair
    input_gradient: Pair = PLAIN
    weight_gradient: Pair = PLAIN
    chunk: int = 0
    history: int = 1024
    source: str = ""

    @property
    def quantisers(self) -> tuple[Quantiser, ...]:
        """Those of all operands that are quantised."""
        pairs = (self.forward, self.input_gradient, self.weight_gradient)
        return tuple(each for pair in pairs for each in pair if each is not None)

    @property
    def unit_roundoff(self) -> float:
        """Of the coarsest element."""
        return max(each.element.unit_roundoff for each in self.quantisers)

    def __str__(self) -> str:
        return self.name
