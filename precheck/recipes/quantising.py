"""Quantises an operand as a `Quantiser` says, in plain torch, and returns the values that its elements stand for."""

from __future__ import annotations

import functools

import torch

from precheck.formats import integers, mx, nvfp4, scaled, tiles
from precheck.formats.casting import Rounding
from precheck.formats.floats import Format
from precheck.formats.tiles import Tile
from precheck.formats.whole import Integers
from precheck.recipes.recipe import Quantiser


def rounded(
    operand: torch.Tensor, how: Quantiser, *, by: torch.Tensor | None = None, noise: bool = False, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`operand`, quantised and dequantised, as float32. It is a matrix whose last dimension is the summed one.

    `by` is the factor of a delayed scale. With `noise` each element has a random error of the size of a rounding instead.
    """
    kind: Rounding = "stochastic" if how.stochastic else "noise" if noise else "nearest"
    tile, operand = Tile(how.across, how.along), operand.contiguous()  # a pass over a transposed matrix takes ten times as long
    if operand.numel() == 0:
        return operand.float()
    if isinstance(how.element, Integers):
        return _integers(operand, how.element, how, tile, kind, generator)
    return _floats(operand, how.element, how, tile, kind, by, generator)


def _integers(
    operand: torch.Tensor, element: Integers, how: Quantiser, tile: Tile, kind: Rounding, generator: torch.Generator | None
) -> torch.Tensor:
    scale, zero = integers.parameters(operand, element, tile=tile, symmetric=how.scale == "symmetric")
    return integers.dequantised(integers.quantised(operand, element, scale, zero, tile, rounding=kind, generator=generator), scale, zero, tile)


def _floats(
    operand: torch.Tensor, element: Format, how: Quantiser, tile: Tile, kind: Rounding, by: torch.Tensor | None, generator: torch.Generator | None
) -> torch.Tensor:
    if how.scale == "mx":
        elements, biased = mx.quantised(operand, element, mode=how.mode, tile=tile, rounding=kind, generator=generator)
        return mx.dequantised(elements, biased, tile)
    if how.scale == "nvfp4":
        greatest = tiles.amax(operand.float(), tile)
        over = nvfp4.tensor_scale(greatest.amax())
        elements, scales = nvfp4.quantised(operand, over=over, tile=tile, rounding=kind, generator=generator, greatest=greatest)
        return nvfp4.dequantised(elements, scales, over, tile)
    power = how.scale == "power of two"
    elements, used = scaled.quantised(operand, element, tile=tile, power_of_two=power, by=by, rounding=kind, generator=generator)
    return scaled.dequantised(elements, used, tile)


def rotated(operand: torch.Tensor, size: int) -> torch.Tensor:
    """`operand`, padded with zeros to whole blocks, with each `size` columns multiplied by a random Hadamard matrix, which is orthogonal."""
    columns = operand.shape[-1]
    if columns % size:
        full = operand.new_zeros(operand.shape[0], columns + -columns % size)
        full[:, :columns] = operand
        operand = full
    rotation = hadamard(size, operand.device)
    return (operand.reshape(-1, size).float() @ rotation).view(operand.shape[0], -1)


@functools.cache
def hadamard(size: int, device: torch.device) -> torch.Tensor:
    """A Hadamard matrix of `size`, a power of two, divided by √size. The signs of its rows come from a fixed seed."""
    matrix = torch.ones(1, 1, device="cpu")
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (size, 1), generator=torch.Generator().manual_seed(0), device="cpu") * 2.0 - 1
    rotation: torch.Tensor = signs * matrix / size**0.5
    return rotation.to(device)


def multiplier(amax: torch.Tensor, how: Quantiser) -> torch.Tensor:
    """The factor of a delayed scale for the greatest magnitude that it expects."""
    assert isinstance(how.element, Format)
    return scaled.multipliers(tiles.matrix(amax.reshape(1, 1)), how.element)
