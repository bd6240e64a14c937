"""A linear sketch of a tensor: 127 numbers. The distance of two sketches is the distance of the tensors, to within 6 %.

Element i = (m * 127 + r) * 127 + c is added to number c with the sign T[r, c] V[m, r] W[m, c]. As the signs are independent, E ||S(x) - S(y)||^2 =
||x - y||^2 with variance (2/k)(||d||_2^4 - ||d||_4^4). So the relative standard deviation of a distance is at most 1/sqrt(2k) = 0.063. The width is
prime, so that an error with the period of a row length does not meet one number only. With T alone, an error that is constant over the tensor
would give the same sum in every block. Therefore there are V and W.

Signs are flipped as bits, in the tensor's own format. Sums are in float64. Only sums of 127 elements of a 16-bit tensor are in float32. They are off
by at most 127 * 2^-24 of their magnitudes, a thousandth of the format's own rounding. No matrix product is used, so neither TF32 nor autocast has an
effect.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy
import torch

from precheck.torch_internals import without_modes
from precheck.words import writable

WIDTH = 127
"""Numbers in a sketch, rows in a block, and columns of a row."""
BLOCK = WIDTH * WIDTH
"""Elements that share T."""
_CPU_BLOCKS = 32  # 3 to 6 MB at a time: with less, calls cost more than the cache saves
_ACCELERATOR_BLOCKS = 512  # 66 MB, so that memory and not kernel launches limit the time
_LEAST_ROWS = 64  # of V and W: tensors up to a million elements share one table
_SEED = "precheck sketch"  # golden files hold sketches made with it: never change it
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def sketch(tensor: torch.Tensor, *, finite: bool = True) -> numpy.ndarray:
    """The sketch of a real tensor of any shape, dtype and device, as (127,) float64.
    `finite=False` counts non-finite elements as zero. With `finite=True` there must be none.
    """
    folded: numpy.ndarray = fold(tensor, finite=finite).cpu().numpy()
    return folded


def fold(tensor: torch.Tensor, *, finite: bool = True) -> torch.Tensor:
    """The same on the tensor's own device, without waiting for it. Raises TypeError for a complex tensor."""
    folding = Folding(tensor)
    for block, bits in folding.parts():
        folding.add(block, bits, finite=finite)
    return folding.told()[:WIDTH]


def stacked(rows: torch.Tensor, *, tame: bool = False, rough: bool = False) -> torch.Tensor:
    """The sketches of the rows of a floating tensor (k, n), and the sum of squares of each: (k, WIDTH + 1) float64.

    n is a number of whole blocks, or a multiple of WIDTH within one block. `tame` is as in `Folding.add`. `rough` sums float32 like 16-bit formats,
    with an error up to 127 * 2^-24, which is enough for comparisons with a low format's roundoff.
    """
    height = min(rows.shape[1] // WIDTH, WIDTH)
    count = rows.shape[1] // (height * WIDTH)
    signs = signs_of(rows, count)
    shape, wide = (len(rows), count, height, WIDTH), torch.float32 if tame and rows.element_size() <= (4 if rough else 2) else torch.float64
    bits, values = (space(dtype, rows.numel(), rows.device).view(shape) for dtype in (signs.t.dtype, wide))
    torch.bitwise_xor(rows.view(bits.dtype).view(shape), signs.t[:height], out=bits).bitwise_xor_(signs.v[:count, :height, None])
    values.copy_(bits.view(rows.dtype))
    sketches = values.sum(2).double().mul_(signs.w[:count]).sum(1)
    return torch.cat([sketches, torch.linalg.vector_norm(values.flatten(1), dim=1, keepdim=True).double().square()], 1)


def distance(a: numpy.ndarray, b: numpy.ndarray) -> float:
    """Estimates ||x - y|| from the sketches of x and y, with a relative standard deviation of at most 1/sqrt(2 * 127)."""
    apart = a - b
    return math.sqrt(apart.dot(apart))  # the same as numpy.linalg.norm, without its overhead


def inner(a: numpy.ndarray, b: numpy.ndarray) -> float:
    """Estimates <x, y> from the sketches of x and y, with a standard deviation of at most ||x|| ||y|| sqrt(2 / 127)."""
    return float(numpy.dot(a, b))


class Folding:
    """Makes a sketch part by part: call `add` for each of `parts`. Each part is then in the cache for other computations."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Raises TypeError for a complex tensor."""
        if tensor.is_complex():
            raise TypeError(f"a sketch is of real numbers, not {tensor.dtype}; pass torch.view_as_real(tensor)")
        flat = tensor.detach().reshape(-1)
        if flat.device.type == "mps":  # has no float64
            flat = flat.cpu()
        self.flat = flat if flat.is_floating_point() and flat.element_size() > 1 else flat.double()
        self.signs = signs_of(self.flat)
        self.bits = self.flat.view(self.signs.t.dtype)
        self.sums: list[torch.Tensor] = []  # for each part, sums of rows (blocks, 127), without the signs W
        self.norms: list[torch.Tensor] = []  # for each part, norms of its blocks
        blocks, together = -(-flat.numel() // BLOCK), _CPU_BLOCKS if flat.device.type == "cpu" else _ACCELERATOR_BLOCKS
        self.few = -(-blocks // max(1, round(blocks / together)))  # parts of equal length, since a short one costs as many calls

    def told(self) -> torch.Tensor:
        """The sketch of all added parts, and the sum of their squares: (128,) float64 on the tensor's device."""
        if not self.sums:
            return torch.zeros(WIDTH + 1, dtype=torch.float64, device=self.flat.device)
        sums = torch.cat(self.sums).double().mul_(self.signs.w[: sum(map(len, self.sums))])
        return torch.cat([sums.sum(0), torch.cat(self.norms).double().square().sum(0, keepdim=True)])

    def parts(self) -> Iterator[tuple[int, torch.Tensor]]:
        """All elements, 1-D, as integers with the same bits, a few blocks at a time, each with the number of its first block."""
        for start in range(0, self.flat.numel(), max(1, self.few) * BLOCK):
            yield start // BLOCK, self.bits[start : start + self.few * BLOCK]

    def scratch(self, bits: torch.Tensor) -> torch.Tensor:
        """An integer buffer for each element of a part, free until the part is added."""
        return self._buffer(bits.dtype).view(-1)[: bits.numel()]

    def add(self, block: int, bits: torch.Tensor, *, finite: bool = True, tame: bool = False) -> None:
        """Adds a part. Without `finite`, non-finite elements count as zero. `tame` promises that float32 can hold the squares of a block."""
        count = -(-bits.numel() // BLOCK)
        flipped = self._buffer(bits.dtype)[:count]
        if bits.numel() < count * BLOCK:  # the last block is padded with zeros
            flat = flipped.view(-1)
            flat[: bits.numel()] = bits
            flat[bits.numel() :] = 0
            flipped.bitwise_xor_(self.signs.t)
        else:
            torch.bitwise_xor(bits.view(-1, WIDTH, WIDTH), self.signs.t, out=flipped)
        flipped.bitwise_xor_(self.signs.v[block : block + count, :, None])
        values = self._buffer(torch.float32 if tame and bits.element_size() == 2 else torch.float64)[:count]
        values.copy_(flipped.view(self.flat.dtype))
        if not finite:
            values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self.sums.append(values.sum(1))
        self.norms.append(torch.linalg.vector_norm(values, dim=(1, 2)))

    def _buffer(self, dtype: torch.dtype) -> torch.Tensor:
        """(blocks, 127, 127)"""
        return space(dtype, self.few * BLOCK, self.flat.device).view(-1, WIDTH, WIDTH)


def space(dtype: torch.dtype, elements: int, device: torch.device, use: str = "") -> torch.Tensor:
    """A buffer, valid until the next call for that dtype and use. On a CPU each thread keeps its own: the operating system maps new memory page by
    page, which costs more than the computation."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=dtype, device=device)
    kept: dict[tuple[torch.dtype, str], torch.Tensor] = _kept.__dict__.setdefault("buffers", {})
    if (dtype, use) not in kept or kept[dtype, use].numel() < elements:
        with torch.inference_mode(False), without_modes():
            kept[dtype, use] = torch.empty(elements, dtype=dtype, device=device)
    return kept[dtype, use][:elements]


_kept = threading.local()


class Signs(NamedTuple):
    """Tables of signs on one device, as many rows m as are needed: 16 MB for 1e9 elements."""

    t: torch.Tensor  # (127 r, 127 c) sign bits of the tensor's format
    v: torch.Tensor  # (rows m, 127 r) the same
    w: torch.Tensor  # (rows m, 127 c) int8, +1 and -1


def signs_of(values: torch.Tensor, blocks: int = 0) -> Signs:
    """The tables for so many blocks, or for all blocks of a floating tensor, on its device and for its format."""
    return _signs(values.device, max(_LEAST_ROWS, 1 << (blocks or values.numel() // BLOCK).bit_length()), _BITS[values.element_size()])


@functools.cache
def _signs(device: torch.device, rows: int, bits: torch.dtype) -> Signs:
    """Signs for `rows` blocks. A longer table begins with the shorter one, since SHAKE-256 is a stream."""
    with torch.inference_mode(False), without_modes():  # they outlive the caller's modes
        t, v, w = (torch.from_numpy(table).to(device) for table in (_table("T", WIDTH), _table("V", rows), _table("W", rows)))
        minus = torch.iinfo(bits).min  # only the sign bit is set
        return Signs((t < 0).to(bits) * minus, (v < 0).to(bits) * minus, w)


def _table(name: str, rows: int) -> numpy.ndarray:
    """The bits of SHAKE-256 row by row, most significant first, with 1 as +1 and 0 as -1. They are the same on every machine, and must stay so."""
    count = rows * WIDTH
    digest = hashlib.shake_256(writable(f"{_SEED} {name}").encode()).digest((count + 7) // 8)
    bits = numpy.unpackbits(numpy.frombuffer(digest, numpy.uint8), count=count)
    return (bits.astype(numpy.int8) * 2 - 1).reshape(rows, WIDTH)
