"""Integer formats: int8, int4, uint4. Importing this module does not import torch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Integers:
    """An integer format with numbers from `least` to `most`."""

    name: str
    least: int
    most: int

    @property
    def unit_roundoff(self) -> float:
        """Half a step, as a share of the largest number under a symmetric scale."""
        return 1.0 / (self.most - self.least)

    def __str__(self) -> str:
        return self.name


INT8 = Integers("int8", -128, 127)
INT4 = Integers("int4", -8, 7)
UINT4 = Integers("uint4", 0, 15)
