"""Counts the blocks of an operand (elements that share a scale) in which quantisation clips an element or rounds one to zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from precheck.formats import integers, mx, nvfp4, scaled, tiles
from precheck.formats.floats import Format
from precheck.formats.tiles import Tile
from precheck.recipes.recipe import Quantiser

NEARLY = 1 + 2.0**-20
"""Tolerance for the ends of a block's range. Float32 scales put an end off by one or two roundings, and a block's greatest magnitude may lie on
it."""


@dataclasses.dataclass(slots=True)
class Blocks:
    """Counts over the calls of one step. An element counts as clipped if it lies more than half a spacing beyond the largest number of its block."""

    blocks: int = 0
    clipping: int = 0  # blocks with a clipped element
    flushing: int = 0  # blocks with an element that is rounded to zero
    elements: int = 0
    clipped: int = 0
    flushed: int = 0

    def add(self, operand: torch.Tensor, made: torch.Tensor, how: Quantiser, by: torch.Tensor | None) -> None:
        """Counts one call. `made` is the quantised operand, and `by` is the factor of a delayed scale, if there is one."""
        wide = operand.detach().float()
        if not wide.numel():
            return
        tile, (low, high) = Tile(how.across, how.along), ends(wide, how, by)
        clipped, flushed = (wide > high) | (wide < low), (made == 0) & (wide != 0)
        clipping, flushing = (tiles.amax(which.float(), tile) for which in (clipped, flushed))
        self.blocks += clipping.numel()
        self.clipping += int(clipping.sum())
        self.flushing += int(flushing.sum())
        self.elements += wide.numel()
        self.clipped += int(clipped.sum())
        self.flushed += int(flushed.sum())


def ends(wide: torch.Tensor, how: Quantiser, by: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest value that each element can have without being clipped."""
    tile, element = Tile(how.across, how.along), how.element
    if not isinstance(element, Format):
        scale, zero = integers.parameters(wide, element, tile=tile, symmetric=how.scale == "symmetric")
        low, high = (tiles.spread((end - zero) * scale * NEARLY, wide, tile) for end in (element.least - 0.5, element.most + 0.5))
        return low, high
    end = element.max * (1 + element.unit_roundoff) * NEARLY
    if how.scale == "mx":
        scales = mx.scales(mx.exponents(tiles.amax(wide, tile), element, "rceil"))
    elif how.scale == "nvfp4":
        over = nvfp4.tensor_scale(wide.abs().amax())
        scales = nvfp4.quantised(wide, over=over, tile=tile)[1] * over
    else:
        by = scaled.multipliers(tiles.amax(wide, tile), element, power_of_two=how.scale == "power of two") if by is None else by
        scales = 1 / by
    high = tiles.spread(scales, wide, tile) * end
    return -high, high


def shares(steps: Iterable[Blocks]) -> dict[str, Any]:
    """Blocks in a step, and by step the shares of blocks and elements that are clipped or rounded to zero."""
    each = list(steps)
    return {
        "blocks": each[0].blocks if each else 0,
        "clipping": [_share(step.clipping, step.blocks) for step in each],
        "flushing": [_share(step.flushing, step.blocks) for step in each],
        "clipped": [_share(step.clipped, step.elements) for step in each],
        "flushed": [_share(step.flushed, step.elements) for step in each],
    }


def _share(part: int, whole: int) -> float:
    return round(part / max(whole, 1), 4)
