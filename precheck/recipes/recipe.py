"""Defines a recipe for matrix products in low precision: how each operand of a layer's three products is quantised.

Nothing here needs torch. `products` applies recipes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from precheck.formats.floats import Format
from precheck.formats.tiles import WHOLE
from precheck.formats.whole import Integers

if TYPE_CHECKING:
    from precheck.formats.mx import Mode

Kind = Literal["input", "weight", "gradient"]
Scale = Literal["float32", "power of two", "delayed", "mx", "nvfp4", "symmetric", "affine"]
"""How the scale of a tile is computed.

"float32": the largest number of the format divided by the tile's greatest magnitude. "power of two": the same, rounded down to a power of two.
"delayed": the same for a whole tensor, from the greatest magnitudes of earlier steps. "mx", "nvfp4": as in `formats.mx` and `formats.nvfp4`.
"symmetric", "affine": integers without and with zero points.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantiser:
    """How one operand is quantised.

    A scale is shared by `along` elements in the summed dimension times `across` elements in the other (`tiles.WHOLE`: all of them). `stochastic`
    means stochastic rounding. `hadamard` first multiplies the operand by a random Hadamard matrix of that size along the summed dimension. The other
    operand is multiplied by the same matrix, so the product stays the same. `mode` says how a scale of "mx" is rounded.
    """

    element: Format | Integers
    scale: Scale = "float32"
    across: int = WHOLE
    along: int = WHOLE
    stochastic: bool = False
    hadamard: int = 0
    mode: Mode = "rceil"


Pair = tuple[Quantiser | None, Quantiser | None]
PLAIN: Pair = (None, None)
"""A product whose operands are not quantised."""
KINDS: dict[str, tuple[Kind, Kind]] = {
    "forward": ("input", "weight"), "input_gradient": ("gradient", "weight"), "weight_gradient": ("gradient", "input"),
}  # fmt: skip
"""The operands of each pair of a recipe."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe: the pairs are (input, weight), (gradient, weight), (gradient, input) of the three products of a linear layer.

    `chunk`: the number of terms after which a partial sum is added to a float32 sum, or 0 if there is only one float32 sum. `history`: the number of
    steps from which delayed scales take the greatest magnitude, and `margin`: the power of two by which they are larger than that asks for.
    `source`: where the recipe is published.
    """

    name: str
    forward: Pair
    input_gradient: Pair = PLAIN
    weight_gradient: Pair = PLAIN
    chunk: int = 0
    history: int = 1024
    margin: int = 0
    source: str = ""

    @property
    def quantisers(self) -> tuple[Quantiser, ...]:
        """The quantisers of all operands that are quantised."""
        pairs = (self.forward, self.input_gradient, self.weight_gradient)
        return tuple(each for pair in pairs for each in pair if each is not None)

    @property
    def unit_roundoff(self) -> float:
        """The largest unit roundoff among the formats of the recipe."""
        return max(each.element.unit_roundoff for each in self.quantisers)

    def changed(self, change: Callable[[Kind, Quantiser], Quantiser]) -> Recipe:
        """The recipe with `change` applied to each quantiser."""
        made: dict[str, Pair] = {}
        for name, kinds in KINDS.items():
            first, second = (None if how is None else change(kind, how) for kind, how in zip(kinds, getattr(self, name), strict=True))
            made[name] = first, second
        return dataclasses.replace(self, **made)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name
