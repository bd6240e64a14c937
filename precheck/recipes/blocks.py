"""Counts the blocks of an operand (elements that share a scale) in which quantisation clips an element or rounds one to zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from precheck.formats import integers, mx, nvfp4, scaled, tiles
from precheck.formats.tiles import Tile
from precheck.formats.whole import Integers
from precheck.recipes.recipe import Quantiser

UNCLIPPED = ("float32", "power of two", "mx")
"""Scales that are made of a block's greatest magnitude and never put it beyond the format's largest number, so that nothing is clipped under them."""
CLIPPING = ("floor", "even")
"""Modes of "mx" under which a block's greatest magnitude may lie beyond the format's largest number."""
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
        tile = Tile(how.across, how.along)
        rows, columns = tile.extents(tiles.matrix(wide))
        self.blocks += -(-tiles.matrix(wide).shape[0] // rows) * -(-wide.shape[-1] // columns)
        self.elements += wide.numel()
        if how.scale not in UNCLIPPED or how.mode in CLIPPING or by is not None:
            self._clips(wide, tile, how, by)
        count = int(torch.count_nonzero(wide)) - int(torch.count_nonzero(made))  # what is zero stays zero
        if count:
            self.flushing += int(tiles.amax(((made == 0) & (wide != 0)).float(), tile).sum())
            self.flushed += count

    def _clips(self, wide: torch.Tensor, tile: Tile, how: Quantiser, by: torch.Tensor | None) -> None:
        lowest, highest = tiles.extremes(wide, tile) if isinstance(how.element, Integers) else _magnitudes(wide, tile)
        low, high = ends(lowest, highest, how, by)
        if bool(((highest > high) | (lowest < low)).any()):  # else no element can
            clipped = (wide > tiles.spread(high, wide, tile)) | (wide < tiles.spread(low, wide, tile))
            self.clipping += int(tiles.amax(clipped.float(), tile).sum())
            self.clipped += int(clipped.sum())


def _magnitudes(wide: torch.Tensor, tile: Tile) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest magnitude of each tile, below zero and above."""
    greatest = tiles.amax(wide, tile)
    return -greatest, greatest


def ends(lowest: torch.Tensor, highest: torch.Tensor, how: Quantiser, by: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest value in each tile that is not clipped, for tiles whose elements lie between `lowest` and `highest`."""
    element = how.element
    if isinstance(element, Integers):
        scale, zero = integers.from_extremes(lowest, highest, element, symmetric=how.scale == "symmetric")
        low, high = ((end - zero) * scale * NEARLY for end in (element.least - 0.5, element.most + 0.5))
        return low, high
    end = element.max * (1 + element.unit_roundoff) * NEARLY
    if how.scale == "mx":
        scales = mx.scales(mx.exponents(highest, element, how.mode))
    elif how.scale == "nvfp4":
        over = nvfp4.tensor_scale(highest.amax())
        scales = nvfp4.block_scales(highest, over) * over
    else:
        by = scaled.multipliers(highest, element, power_of_two=how.scale == "power of two") if by is None else by
        scales = 1 / by
    return -scales * end, scales * end


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
