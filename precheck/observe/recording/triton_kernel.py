"""A Triton kernel that computes all numbers of a record in one pass over a tensor on a GPU.

Torch's own ops need a dozen passes, several of them over float64 copies. The kernel is compiled on the user's machine, so it is used only if it
gives the same as torch's ops for a known tensor, checked once for each device and dtype (`proven`). Importing this needs triton. Only that check
waits for the device.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from precheck.observe.recording.sketch import BLOCK, WIDTH, signs_of

_ROWS = 16  # rows of 127 elements that are processed together
_TILES = (8, 64, 512)  # blocks of rows that one program processes in turn: at most 1 MB of partial sums for each 2^27 elements
_PARTS = 7  # rows of partial sums: signed elements, squares, magnitudes, zeros, NaN, +Inf, -Inf
_PROGRAMS = 1024  # enough to fill a device


# Triton reads annotations, and compiles none but its own constants'.
@triton.jit  # type: ignore[untyped-decorator]
def _pass(values, t, v, w, partial, count, ROWS: tl.constexpr, TILES: tl.constexpr, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over rows of 127, column by column, all float64: `partial` is (programs, 7, 128)."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, 128)
    folded = tl.zeros((128,), tl.float64)
    squares = tl.zeros((128,), tl.float64)
    greatest = tl.zeros((128,), tl.float64)
    zeros = tl.zeros((128,), tl.float64)
    nans = tl.zeros((128,), tl.float64)
    above = tl.zeros((128,), tl.float64)
    below = tl.zeros((128,), tl.float64)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * 127 + column[None, :]
        there = (column[None, :] < 127) & (place < count)
        read = tl.load(values + place, mask=there, other=1.0)  # 1 is not counted as anything
        x = read.to(tl.float64) if DOUBLE else read.to(tl.float32).to(tl.float64)
        flip = tl.load(t + (row % 127)[:, None] * 127 + column[None, :], mask=there, other=0) < 0
        flip = flip ^ (tl.load(v + row, mask=row * 127 < count, other=0) < 0)[:, None]
        flip = flip ^ (tl.load(w + (row // 127)[:, None] * 127 + column[None, :], mask=there, other=1) < 0)
        finite = there & (tl.abs(x) < float("inf"))  # false for NaN
        kept = tl.where(finite, x, 0.0)
        folded += tl.sum(tl.where(flip, -kept, kept), 0)
        squares += tl.sum(kept * kept, 0)
        greatest = tl.maximum(greatest, tl.max(tl.abs(kept), 0))
        zeros += tl.sum((x == 0).to(tl.float64), 0)
        nans += tl.sum((x != x).to(tl.float64), 0)
        above += tl.sum((x == float("inf")).to(tl.float64), 0)
        below += tl.sum((x == -float("inf")).to(tl.float64), 0)
    out = partial + program * 7 * 128 + column
    tl.store(out, folded)
    tl.store(out + 128, squares)
    tl.store(out + 256, greatest)
    tl.store(out + 384, zeros)
    tl.store(out + 512, nans)
    tl.store(out + 640, above)
    tl.store(out + 768, below)


def numbers(values: torch.Tensor) -> torch.Tensor:
    """The numbers of a real floating tensor, 1-D and contiguous: (NUMBERS,) float64 on its device. Non-finite elements count as zero in sums."""
    signs = signs_of(values)
    tiles = next((each for each in _TILES if values.numel() <= _PROGRAMS * each * _ROWS * WIDTH), _TILES[-1])
    programs = max(1, -(-values.numel() // (tiles * _ROWS * WIDTH)))
    partial = torch.empty((programs, _PARTS, 128), dtype=torch.float64, device=values.device)
    with torch.cuda.device_of(values):
        _pass[(programs,)](values, signs.t, signs.v, signs.w, partial, values.numel(), _ROWS, tiles, values.dtype is torch.float64)
    sums = partial.sum(0)
    return torch.cat([sums[0, :WIDTH], sums[1].sum()[None], partial[:, 2].amax()[None], sums[3:].sum(1)])


_proven: dict[tuple[torch.device, torch.dtype], bool] = {}


def proven(device: torch.device, dtype: torch.dtype, plain: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether the kernel agrees with `plain` on that device, for a tensor with all kinds of numbers. Else the log says why not."""
    if (device, dtype) not in _proven:
        _proven[device, dtype] = _agree(device, dtype, plain)
    return _proven[device, dtype]


def _agree(device: torch.device, dtype: torch.dtype, plain: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    known = torch.linspace(-3, 3, 2 * BLOCK + 300, device=device).to(dtype)
    known[:: WIDTH + 1] = 0
    known[5:9] = known.new_tensor([math.nan, math.inf, math.inf, -math.inf])
    try:
        agree = torch.allclose(numbers(known), plain(known), rtol=1e-9, atol=1e-9)
    except Exception as error:  # a compiler or driver may raise anything, and the user's run must go on
        logging.getLogger(__name__).info("no fused kernel for %s on %s, torch's ops instead: %s", dtype, device, error)
        return False
    if not agree:
        logging.getLogger(__name__).info("the fused kernel is wrong for %s on %s, torch's ops instead", dtype, device)
    return agree
