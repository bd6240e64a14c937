"""Casts under scales, as programs of the eighth batch write them."""

from __future__ import annotations

import torch
from blocks_by_hand import CODEBOOK
from float8_by_hand import E4M3

Codes = tuple[torch.Tensor, torch.Tensor]


def to_float8(t: torch.Tensor, dims: int | tuple[int, ...]) -> Codes:
    scale = t.abs().amax(dims, keepdim=True) / 448
    return (t / scale).to(E4M3), scale


def to_int8(t: torch.Tensor, dims: int | tuple[int, ...]) -> Codes:
    scale = t.abs().amax(dims, keepdim=True) / 127
    return torch.round(t / scale).to(torch.int8), scale


def power_above(scale: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.ceil(torch.log2(scale)))


def to_fp4(w: torch.Tensor, over: torch.Tensor) -> Codes:
    """Places in the table of fp4 and scales of 16 columns in e4m3, under a factor for the whole tensor."""
    blocks = w.view(len(w), -1, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 * over).to(E4M3)
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    scaled = blocks * (over / scale.float())
    return torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), bounds)], scaled), scale


def asymmetric(w: torch.Tensor, size: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes from 0 to 15 of groups of columns, their scales and zero points."""
    groups = w.view(len(w), -1, size)
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = torch.round(-low / scale)
    return torch.clamp(torch.round(groups / scale) + zero, 0, 15).to(torch.uint8), scale, zero
