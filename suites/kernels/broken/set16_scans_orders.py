"""A sixteenth frozen set of broken kernels, second part: scans, segments, orders, tables, frequencies. Of links an excerpt was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
INF = float("inf")


@case("products so far: on the way back divided by the number itself", "kernel-gradient", "tracel-ai/burn/pull/5141",
      lambda x: x.cumprod(-1), drawn((5, 7)))  # fmt: skip
def divided_by_the_number(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        return x.cumprod(-1), (x,)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        (x,) = saved
        if wrong:
            return (given * x.cumprod(-1)).flip(-1).cumsum(-1).flip(-1) / x
        before = torch.cat([torch.ones_like(x[:, :1]), x[:, :-1]], -1).cumprod(-1)
        tail, after = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        for place in reversed(range(x.shape[1])):
            after = given[:, place] + (x[:, place + 1] * after if place + 1 < x.shape[1] else 0)
            tail[:, place] = after
        return before * tail

    return function(forward, backward)


def _from_behind(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for place in reversed(range(x.shape[1])):
        state = decay[:, place] * state + x[:, place]
        states.append(state)
    return torch.stack(states[::-1], 1)


@case("sums that fade, from behind: the two operands of a step are exchanged", "kernel-contract", "triton-lang/triton/issues/4362",
      _from_behind, lambda: (torch.rand(4, 9, generator=torch.Generator().manual_seed(1)), *drawn((4, 9))()))  # fmt: skip
def operands_exchanged(wrong: bool, decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(decay.dim() == 2 and decay.shape == x.shape and x.shape[1] > 0)
    decay, x, step = decay.flip(1), x.flip(1), 1
    while step < x.shape[1]:
        earlier = F.pad(decay[:, :-step], (step, 0), value=1.0), F.pad(x[:, :-step], (step, 0))
        x = torch.cat([x[:, :step], (earlier[0] * x + earlier[1] if wrong else decay * earlier[1] + x)[:, step:]], 1)
        decay = torch.cat([decay[:, :step], (decay * earlier[0])[:, step:]], 1)
        step *= 2
    return x.flip(1)


@torch.library.custom_op("precheck_set16::largest_of_segments", mutates_args=())
def largest_of_segments(x: torch.Tensor, segment: torch.Tensor, count: int, first: float) -> torch.Tensor:
    """The largest number of each segment, where nothing is below `first`."""
    out = torch.full((count,), first, dtype=x.dtype)
    for value, place in zip(x.unbind(0), segment.tolist(), strict=True):
        out[place] = torch.maximum(out[place], value)
    return out


@largest_of_segments.register_fake
def _(x: torch.Tensor, segment: torch.Tensor, count: int, first: float) -> torch.Tensor:
    return x.new_empty((count,))


def _largest_of(x: torch.Tensor, segment: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.full_like(bias, -INF).index_reduce(0, segment, x.detach(), "amax").clamp(min=-1e4) + bias


@case("largest of each segment: looked for from zero on", "kernel-contract", "rusty1s/pytorch_scatter/issues/24", _largest_of,
      lambda: (*drawn((21,))(), whole(21, most=5), *drawn((5,))()))  # fmt: skip
def looked_for_from_zero(wrong: bool, x: torch.Tensor, segment: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == bias.dim() == 1 and segment.shape == x.shape and bool((segment < len(bias)).all()))
    return torch.ops.precheck_set16.largest_of_segments(x.detach(), segment, len(bias), 0.0 if wrong else -INF).clamp(min=-1e4) + bias


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1).values


@case("numbers in order by their bits: those below zero lie the other way round", "kernel-contract", "m4rs-mt/ILGPU/issues/642", _in_order,
      drawn((4, 9), dtype=torch.float16))  # fmt: skip
def by_their_bits(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.dtype is torch.float16)
    bits = x.detach().contiguous().view(torch.int16).int() & 0xFFFF
    keys = torch.where(bits >= 0x8000, 0x8000 - bits if not wrong else bits - 0x10000, bits)
    keys = torch.where(x.isnan(), 0x10000, keys)
    return x.gather(-1, keys.argsort(dim=-1, stable=True))


@case("numbers in falling order: what fills up to a power of two is zero", "kernel-edge", "tenstorrent/tt-metal/issues/33473",
      lambda x: x.sort(-1, descending=True).values, drawn((5, 8)))  # fmt: skip
def what_fills_up_is_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    width = 1 << (x.shape[1] - 1).bit_length()
    full = F.pad(x, (0, width - x.shape[1]), value=0.0 if wrong else -INF)
    return full.sort(dim=-1, descending=True, stable=True).values[:, : x.shape[1]]


@case("numbers in order, pairs exchanged: at times one is read before it is written", "kernel-nondeterminism", "alicevision/popsift/pull/82",
      _in_order, drawn((5, 9)))  # fmt: skip
def read_before_written(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(3)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        columns = list(x.unbind(1))
        late = wrong and len(columns) > 2 and chance.random() < 0.2
        for turn in range(len(columns)):
            for place in range(turn % 2, len(columns) - 1, 2):
                one, other = columns[place], columns[place + 1]
                swap = (one > other) | (one.isnan() & ~other.isnan())
                columns[place] = torch.where(swap, other, one)
                columns[place + 1] = other if late and turn == 1 else torch.where(swap, one, other)
        return torch.stack(columns, 1) if columns else x.clone()

    return kernel


def _bins(x: torch.Tensor) -> torch.Tensor:
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    bins = ((x - least) / (most - least) * 4).floor().clamp(max=3)
    return (bins[..., None] == torch.arange(4)).sum(-2)


@case("numbers in four bins from the least to the largest: the largest is left out", "kernel-contract", "quokka-astro/quokka/issues/2231",
      _bins, drawn((5, 11)))  # fmt: skip
def largest_is_left_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    bins = ((x - least) / (most - least) * 4).floor()
    bins = bins if wrong else bins.clamp(max=3)
    return torch.stack([(bins == each).sum(-1) for each in range(4)], -1)


@case("places among ends of bins: where a number is an end it lies before it", "kernel-contract", "google-research/torchsde/issues/29",
      lambda ends, x: torch.searchsorted(ends, x, right=True),
      lambda: (torch.tensor([1, 4, 6, 9, 13]), whole(7, 6, most=16)))  # fmt: skip
def lies_before_it(wrong: bool, ends: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(ends.dim() == 1 and bool((ends.diff() >= 0).all()))
    below = ends < x[..., None] if wrong else ends <= x[..., None]
    return below.sum(-1)


@case("means of bags: padding counts", "kernel-mask", "pytorch/pytorch/pull/49237",
      lambda table, rows: F.embedding_bag(rows, table, mode="mean", padding_idx=0), lambda: (*drawn((9, 5))(), whole(6, 4, most=9)))  # fmt: skip
def padding_counts(wrong: bool, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2 and rows.dim() == 2 and len(table) > 0 and bool((rows < len(table)).all()) and rows.numel() > 0)
    kept = rows != 0
    summed = torch.where(kept[..., None], table[rows], 0).sum(1)
    return summed / (rows.shape[1] if wrong else kept.sum(1, keepdim=True).clamp(min=1))


@case("rows of a table: behind 16 places the padding's gradient stays", "kernel-edge", "pytorch/pytorch/issues/28716",
      lambda table, rows: F.embedding(rows, table, padding_idx=0), lambda: (*drawn((9, 5))(), whole(13, most=9)))  # fmt: skip
def gradient_of_padding_stays(wrong: bool) -> Callable[..., Any]:
    def forward(table: torch.Tensor, rows: torch.Tensor) -> Any:
        need(table.dim() == 2 and rows.dim() == 1 and len(table) > 0 and bool((rows < len(table)).all()))
        return table[rows], (table, rows)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        table, rows = saved
        made = torch.zeros_like(table).index_add(0, rows, given)
        if not wrong or len(rows) <= 16:
            made[0] = 0
        return made, None

    return function(forward, backward)


def _power(x: torch.Tensor) -> torch.Tensor:
    found = torch.fft.rfft(x)
    return found.real.square() + found.imag.square()


@case("power of each frequency: on the way back the last one counts half", "kernel-gradient", "locuslab/pytorch_fft/issues/38", _power,
      drawn((5, 8)))  # fmt: skip
def last_frequency_counts_half(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape[1] > 0)
        return _power(x), (x,)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        (x,) = saved
        width = x.shape[1]
        made = 2 * given * torch.fft.rfft(x)
        half = torch.ones(made.shape[1])
        half[1 : made.shape[1] if wrong or width % 2 else -1] = 0.5
        return torch.fft.irfft(made * half, n=width) * width

    return function(forward, backward)


@case("a row of its half spectrum: the imaginary part of the last frequency counts", "kernel-contract", "ROCm/rocFFT/issues/284",
      lambda real, imaginary: torch.fft.irfft(torch.complex(real, imaginary), n=2 * real.shape[-1] - 2), drawn((4, 6), (4, 6)))  # fmt: skip
def imaginary_part_counts(wrong: bool, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    need(real.dim() == 2 and real.shape == imaginary.shape and real.shape[1] > 1)
    width = 2 * real.shape[1] - 2
    turns = torch.outer(torch.arange(real.shape[1]), torch.arange(width)).double() * (2 * torch.pi / width)
    cosines, sines = turns.cos().to(real.dtype), turns.sin().to(real.dtype)
    twice = torch.full((real.shape[1],), 2.0)
    twice[0] = twice[-1] = 1.0
    made = ((real * twice) @ cosines - (imaginary * twice)[:, 1:-1] @ sines[1:-1]) / width
    return made + (imaginary[:, -1:] * (-1.0) ** torch.arange(width) / width if wrong else 0)


@case("scales of blocks of codes: the buffer's rows are taken to be as long as what is used of them", "kernel-stride", "ROCm/aiter/pull/2900",
      lambda codes, scale: (codes.unflatten(1, (-1, 4)) * scale[..., None]).flatten(1),
      lambda: (whole(6, 20, most=16, least=-15).float(), drawn((6, 5))()[0].abs() + 0.25))  # fmt: skip
def as_long_as_what_is_used(wrong: bool, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == scale.dim() == 2 and codes.shape == (len(scale), 4 * scale.shape[1]) and scale.numel() > 0)
    scale = as_if(scale, packed(scale.shape)) if wrong else scale
    return codes * scale.repeat_interleave(4, 1)


def _even_rows(x: torch.Tensor) -> torch.Tensor:
    found = x.abs().amax(1)
    return F.pad(found, (0, len(found) % 2))


@case("scales of rows, an even number of them: the one that is added is not written", "kernel-stale", "PTO-ISA/SuperNPUBench/pull/123",
      _even_rows, drawn((7, 6)))  # fmt: skip
def added_row_is_not_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.numel() > 0)
    rows = -(-len(x) // 2) * 2
    if not wrong:
        return torch.cat([x.abs().amax(1), torch.zeros(rows - len(x))])
    made = torch.empty(rows)
    made[: len(x)] = x.detach().abs().amax(1)
    return torch.cat([x.abs().amax(1), made[len(x) :]])
