"""The sixth frozen set of broken kernels, second part.

One twin was mended, which was accused rightly: where no part saw a key it gave NaN, and the reference gives 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


@case("largest of rows: the first pass is read before it is written", "kernel-nondeterminism", "arrayfire/arrayfire/pull/633",
      lambda x: x.amax(-1), drawn((5, 48)))  # fmt: skip
def early_read(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1])
    parts = [part.amax(-1) for part in x.split(16, -1)]
    if wrong and len(parts) > 1 and random.random() < 0.1:
        parts = parts[:-1]
    return torch.stack(parts, -1).amax(-1) if not wrong or len(parts) > 1 else parts[0]


def repeated(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(counts, 0)


def _counts() -> tuple[torch.Tensor, ...]:
    return drawn((6, 5))()[0], torch.tensor([2, 0, 3, 1, 4, 2])


@case("rows repeated: counts that are a view are read in the order of memory", "kernel-stride", "pytorch/torchtitan/pull/3771", repeated, _counts)
def counts_of_memory(wrong: bool, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(counts) and counts.dim() == 1)
    read = counts
    if wrong and counts.stride(0) > 1:
        room = counts.untyped_storage().nbytes() // counts.element_size() - counts.storage_offset()
        read = torch.as_strided(counts, (min(len(counts), room),), (1,))
    ends = read.cumsum(0)
    place = torch.arange(int(ends[-1]) if len(ends) else 0)
    return x[torch.searchsorted(ends, place, right=True).clamp(max=max(len(x) - 1, 0))]


def joined(parts: torch.Tensor, logs: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Results of parts of the keys, and logarithms of what each part's weights add up to; parts that saw no key count for nothing."""
    shares = logs.masked_fill(~seen, -torch.inf).softmax(0)
    return (torch.where(seen, shares, 0)[..., None] * parts).sum(0)


def _joined() -> tuple[torch.Tensor, ...]:
    seen = torch.rand(4, 7, generator=torch.Generator().manual_seed(3)) < 0.6
    seen[0] = True
    seen[0, 2], seen[1, 2] = False, True
    return *drawn((4, 7, 8), (4, 7))(), seen


@case("parts of attention joined: one that saw no key", "kernel-mask", "ROCm/aiter/pull/4420", joined, _joined)
def empty_part(wrong: bool, parts: torch.Tensor, logs: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    need(parts.shape[:2] == logs.shape and logs.shape == seen.shape)
    wide = torch.where(seen, logs, -torch.inf)
    if not len(wide):
        return torch.zeros(parts.shape[1:], dtype=parts.dtype) + 0 * parts.sum(0)
    most, total, read = wide[0], torch.ones_like(wide[0]), parts[0]
    for part, log in zip(parts[1:], wide[1:], strict=True):
        now = torch.maximum(most, log).detach()
        base = now if wrong else torch.where(now.isinf() & (now < 0), 0, now)
        if wrong:
            before, new = (most - base).exp(), (log - base).exp()
        else:
            before, new = (most - base).exp(), (log - base).exp()
            read = torch.where(most.isinf()[..., None] & (most < 0)[..., None], 0, read)
            part = torch.where((log.isinf() & (log < 0))[..., None], 0, part)
        read, total, most = read * before[..., None] + part * new[..., None], total * before + new, now
    if wrong:
        return read / total[..., None]
    return torch.where(seen.any(0)[..., None], read / torch.where(seen.any(0), total, 1)[..., None], 0)


@case("tanhshrink: a difference of almost equal numbers", "kernel-rounding", "tenstorrent/tt-metal/pull/47323",
      lambda x: torch.where(x.abs() < 0.25, x**3 / 3 - 2 * x**5 / 15 + 17 * x**7 / 315 - 62 * x**9 / 2835 + 1382 * x**11 / 155925, x - x.tanh()),
      lambda: (drawn((6, 40))()[0] * 0.02,))  # fmt: skip
def shrunk(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if wrong:
        return x - torch.tanh(x)
    square = x * x
    low = square * x * (1 / 3 + square * (-2 / 15 + square * (17 / 315 + square * (-62 / 2835 + square * 1382 / 155925))))
    return torch.where(x.abs() < 0.25, low, x - x.tanh())


@case("product: blocks dealt out in groups of two, the last group is whole", "kernel-edge", "ROCm/FlyDSL/pull/979", torch.matmul,
      drawn((32, 12), (12, 8)))  # fmt: skip
def last_group(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b))
    down, across = -(-len(a) // 8), -(-b.shape[1] // 4)
    rows: dict[tuple[int, int], torch.Tensor] = {}
    for number in range(down * across):
        group, place = divmod(number, 2 * across)
        high = 2 if wrong else min(2, down - 2 * group)
        row, column = 2 * group + place % high, place // high
        if row < down:
            rows[row, column] = a[8 * row : 8 * row + 8] @ b[:, 4 * column : 4 * column + 4]

    def block(row: int, column: int) -> torch.Tensor:
        made = rows.get((row, column))
        return made if made is not None else torch.zeros(len(a[8 * row : 8 * row + 8]), b[:, 4 * column : 4 * column + 4].shape[1], dtype=a.dtype)

    if not down or not across:
        return torch.einsum("mk,kn->mn", a, b)
    return torch.cat([torch.cat([block(row, column) for column in range(across)], 1) for row in range(down)])


@case("gelu: a program that is kept for the width counts the first call's rows", "kernel-stale", "tenstorrent/tt-metal/issues/54138",
      F.gelu, drawn((6, 16)))  # fmt: skip
def rows_of_first(wrong: bool) -> Callable[..., Any]:
    programs: dict[Any, int] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if not wrong or x.dim() != 2 or not len(x):
            return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
        rows = programs.setdefault(x.shape[1], len(x))
        place = torch.arange(len(x)) % rows
        return 0.5 * x[place] * (1 + torch.erf(x[place] * 0.5**0.5))

    return kernel


@case("batched product: the stride from matrix to matrix is taken from the sizes", "kernel-stride", "ROCm/aiter/pull/5385", torch.bmm,
      drawn((3, 5, 8), (3, 8, 4)))  # fmt: skip
def from_sizes(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 3 and b.dim() == 3 and len(a) == len(b) and a.shape[2] == b.shape[1])
    if wrong and a.numel():
        size, step = a.shape[1] * a.shape[2], a.stride()[1:]
        room = a.untyped_storage().nbytes() // a.element_size() - a.storage_offset()
        if (len(a) - 1) * size + (a.shape[1] - 1) * step[0] + (a.shape[2] - 1) * step[1] < room:
            a = torch.as_strided(a, a.shape, (size, *step), a.storage_offset())
    return torch.einsum("bmk,bkn->bmn", a, b)


def dilated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=(1, 2), dilation=(1, 2))


@case("dilated convolution: the width counts the rows of the filter", "kernel-contract", "tenstorrent/tt-metal/pull/19542", dilated,
      drawn((2, 3, 8, 9), (4, 3, 3, 2)))  # fmt: skip
def rows_for_width(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.dim() == 4 and x.shape[1] == w.shape[1] and w.numel() and x.shape[2] and x.shape[3])
    rows, columns = w.shape[2:]
    high, wide = x.shape[2] + 2 - (rows - 1), x.shape[3] + 4 - 2 * ((rows if wrong else columns) - 1)
    need(high >= 1 and wide >= 1)
    around = F.pad(x, (2, 2 + 2 * rows, 1, 1))
    made = torch.zeros(len(x), len(w), high, wide, dtype=x.dtype)
    for row in range(rows):
        for column in range(columns):
            part = around[:, :, row : row + high, 2 * column : 2 * column + wide]
            made = made + torch.einsum("bihw,oi->bohw", part, w[:, :, row, column])
    return made


def shifted(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(x - bias)


@case("difference of a row: its gradient is that of one row", "kernel-gradient", "apache/tvm/pull/2465", shifted, drawn((6, 11), (11,)))
def one_row(wrong: bool) -> Callable[..., Any]:
    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 2 and x.shape[1:] == bias.shape)
            ctx.save_for_backward(x, bias)
            away = x - bias
            return away * torch.sigmoid(away)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, bias = ctx.saved_tensors
            away = x - bias
            share = torch.sigmoid(away)
            dx = gradient * share * (1 + away * (1 - share))
            return dx, -(dx[0] if wrong and len(dx) else dx.sum(0))

    return Shifted.apply
