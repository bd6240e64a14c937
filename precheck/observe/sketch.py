"""A linear sketch of a tensor: 127 numbers whose distances are the tensor's distances, to within 6 %.

The fold sketch: element i = (m * 127 + r) * 127 + c is added to number c with the sign T[r, c] V[m, r] W[m, c]. As the signs
are independent, E ||S(x) - S(y)||^2 = ||x - y||^2 with variance (2/k)(||d||_2^4 - ||d||_4^4), so the relative standard
deviation of a distance is at most 1/sqrt(2k) = 0.063. The width is prime lest an error with the period of a row length meet one
number only; T alone would give an error that is constant over the tensor the same sum in every block, hence V and W.

All arithmetic is float64 whatever the tensor's dtype and size: 10 M elements take 4 ms in it and 2 ms in float32, while
differences of 1e-7 survive and nothing overflows. With no matrix products, neither TF32 nor autocast can reach it.
"""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

WIDTH = 127
"""Numbers in a sketch, rows in a block, and columns of a row."""
_BLOCK = WIDTH * WIDTH  # elements that share T
_CPU_BLOCKS = 32  # 4 MB of float64 at a time, which stays in the cache between the passes over it
_ACCELERATOR_BLOCKS = 512  # 66 MB, enough that the time goes into memory rather than into launching kernels
_LEAST_ROWS = 64  # of V and W: tensors up to a million elements share one table
_SEED = "precheck sketch"  # golden files hold sketches made with it: never change it


def sketch(tensor: torch.Tensor, *, finite: bool = True) -> numpy.ndarray:
    """The sketch of a real tensor of any shape, dtype and device, as (127,) float64.

    `finite=False` counts non-finite elements as zero; with `finite=True` the caller vouches that there are none.
    """
    folded: numpy.ndarray = fold(tensor, finite=finite).cpu().numpy()
    return folded


def fold(tensor: torch.Tensor, *, finite: bool = True) -> torch.Tensor:
    """The same on the tensor's own device, with no wait for it. Raises TypeError for a complex tensor."""
    if tensor.is_complex():
        raise TypeError(f"a sketch is of real numbers, not {tensor.dtype}; pass torch.view_as_real(tensor)")
    flat = tensor.detach().reshape(-1)
    if flat.device.type == "mps":  # has no float64
        flat = flat.cpu()
    whole, rest = divmod(flat.numel(), _BLOCK)
    signs = _signs(flat.device, max(_LEAST_ROWS, 1 << whole.bit_length()))
    total = _rest(flat[whole * _BLOCK :], whole, signs=signs, finite=finite) if rest else None
    if whole:
        blocks = _blocks(flat[: whole * _BLOCK].view(whole, WIDTH, WIDTH), signs, finite=finite)
        total = blocks if total is None else total + blocks
    return torch.zeros(WIDTH, dtype=torch.float64, device=flat.device) if total is None else total


def distance(a: numpy.ndarray, b: numpy.ndarray) -> float:
    """Estimates ||x - y|| from the sketches of x and y, with a relative standard deviation of at most 1/sqrt(2 * 127)."""
    return float(numpy.linalg.norm(a - b))


def inner(a: numpy.ndarray, b: numpy.ndarray) -> float:
    """Estimates <x, y> from the sketches of x and y, with a standard deviation of at most ||x|| ||y|| sqrt(2 / 127)."""
    return float(numpy.dot(a, b))


class _Signs(NamedTuple):
    """Tables of +1 and -1 on one device. They go on for ever in m; these are their first rows, 16 MB for 1e9 elements."""

    t: torch.Tensor  # (127 r, 127 c) float64
    v: torch.Tensor  # (rows m, 127 r) int8
    w: torch.Tensor  # (rows m, 127 c) int8


@functools.cache
def _signs(device: torch.device, rows: int) -> _Signs:
    """Signs for `rows` blocks. Longer tables begin with the shorter ones, as SHAKE-256 is a stream."""
    tables = _bits("T", WIDTH).astype(numpy.float64), _bits("V", rows), _bits("W", rows)
    with torch.inference_mode(False), _disable_current_modes():  # they outlive whatever the caller is in the midst of
        return _Signs(*(torch.from_numpy(table).to(device) for table in tables))


def _bits(name: str, rows: int) -> numpy.ndarray:
    """Row by row the bits of SHAKE-256, most significant first, 1 as +1 and 0 as -1: the same for ever and everywhere."""
    count = rows * WIDTH
    digest = hashlib.shake_256(f"{_SEED} {name}".encode()).digest((count + 7) // 8)
    bits = numpy.unpackbits(numpy.frombuffer(digest, numpy.uint8), count=count)
    return (bits.astype(numpy.int8) * 2 - 1).reshape(rows, WIDTH)


def _blocks(blocks: torch.Tensor, signs: _Signs, *, finite: bool) -> torch.Tensor:
    """Whole blocks (m, r, c), a few at a time through one buffer."""
    few = _CPU_BLOCKS if blocks.device.type == "cpu" else _ACCELERATOR_BLOCKS
    buffer = torch.empty((min(few, len(blocks)), WIDTH, WIDTH), dtype=torch.float64, device=blocks.device)
    total = torch.zeros(WIDTH, dtype=torch.float64, device=blocks.device)
    for start in range(0, len(blocks), few):
        part = blocks[start : start + few]
        stop = start + len(part)
        values = _zeroed(buffer[: len(part)].copy_(part), finite=finite)
        values.mul_(signs.t).mul_(signs.v[start:stop, :, None].double())
        total.add_(values.sum(1).mul_(signs.w[start:stop]).sum(0))
    return total


def _rest(elements: torch.Tensor, block: int, *, signs: _Signs, finite: bool) -> torch.Tensor:
    """The elements of an unfinished block, filled up with zeros to whole rows."""
    rows = -(-elements.numel() // WIDTH)
    values = torch.zeros(rows * WIDTH, dtype=torch.float64, device=elements.device)
    values[: elements.numel()].copy_(elements)
    signed = _zeroed(values, finite=finite).view(rows, WIDTH).mul_(signs.t[:rows]).mul_(signs.v[block, :rows, None])
    return signed.sum(0).mul_(signs.w[block])


def _zeroed(values: torch.Tensor, *, finite: bool) -> torch.Tensor:
    return values if finite else values.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
