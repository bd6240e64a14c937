"""A seventeenth frozen set of broken kernels, fourth part: tables, rotations, windows, memory. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _stored(table: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rows stored at places of a table; the last of those that have one place."""
    last = torch.full((len(table),), -1).scatter_reduce(0, places, torch.arange(len(places)), "amax")
    return torch.where(last[:, None] >= 0, rows[last.clamp(min=0)], table)


@case("rows stored at places, in order: what fills up to a power of two is stored at the first", "kernel-edge", "openxla/xla/pull/31746", _stored,
      lambda: (*drawn((6, 5), (8, 5))(), whole(8, most=6)))  # fmt: skip
def stored_at_the_first(wrong: bool, table: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == rows.dim() == 2 and table.shape[1] == rows.shape[1] and places.shape == rows.shape[:1] and len(rows) > 0)
    need(bool(((places >= 0) & (places < len(table))).all()))
    width = 1 << (len(rows) - 1).bit_length()
    filled = F.pad(places, (0, width - len(rows)), value=0 if wrong else len(table))
    values = F.pad(rows, (0, 0, 0, width - len(rows)))
    made = torch.cat([table, torch.zeros_like(table[:1])])
    order = filled.argsort(stable=True)
    ordered = filled[order]
    ends = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool)])
    return made.index_put((ordered[ends],), values[order[ends]])[:-1]


def _pairs(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return x[torch.where(rows < 0, rows + x.shape[0], rows), torch.where(columns < 0, columns + x.shape[1], columns)]


@case("numbers at pairs of places: those from the end count from the end of the first dimension", "kernel-contract",
      "openvinotoolkit/openvino/pull/17219", _pairs,
      lambda: (*drawn((5, 9))(), whole(7, most=4, least=-4), whole(7, most=5, least=-5, seed=4)))  # fmt: skip
def end_of_the_first_dimension(wrong: bool, x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and rows.dim() == 1 and rows.shape == columns.shape and x.numel() > 0)
    need(bool(((rows >= -len(x)) & (rows < len(x)) & (columns >= -x.shape[1]) & (columns < x.shape[1])).all()))
    row = torch.where(rows < 0, rows + len(x), rows)
    column = torch.where(columns < 0, columns + (len(x) if wrong else x.shape[1]), columns)
    return x.reshape(-1)[(row * x.shape[1] + column).clamp(0, x.numel() - 1)]


def _angles(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.arange(len(x))[:, None] * 100.0 ** (-2 * torch.arange(width // 2) / width)


def _turned_pairs(x: torch.Tensor) -> torch.Tensor:
    angles = _angles(x, x.shape[1])
    one, other = x.unflatten(1, (-1, 2)).unbind(-1)
    return torch.stack([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1).flatten(1)


@case("rope of neighbours: it is halves that are turned", "kernel-contract", "vllm-project/vllm-ascend/pull/12780", _turned_pairs, drawn((6, 8)))
def halves_are_turned(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0)
    angles = _angles(x, x.shape[1])
    if wrong:
        one, other = x.chunk(2, 1)
        return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], 1)
    made = torch.empty_like(x)
    made[:, ::2] = x[:, ::2] * angles.cos() - x[:, 1::2] * angles.sin()
    made[:, 1::2] = x[:, ::2] * angles.sin() + x[:, 1::2] * angles.cos()
    return made


def _by_a_table(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    one, other = x.unflatten(1, (-1, 2)).unbind(-1)
    return torch.stack([one * cosine - other * sine, one * sine + other * cosine], -1).flatten(1)


@case("rope of neighbours by a table: the table is read as if it had a number for each column", "kernel-contract",
      "microsoft/onnxruntime/pull/26390", _by_a_table, drawn((6, 8), (6, 4), (6, 4)))  # fmt: skip
def a_number_for_each_column(wrong: bool, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    need(x.dim() == cosine.dim() == 2 and cosine.shape == sine.shape == (len(x), x.shape[1] // 2) and x.shape[1] % 2 == 0 and x.numel() > 0)
    pairs = torch.arange(x.shape[1] // 2)
    places = torch.arange(len(x))[:, None] * len(pairs) + (2 * pairs if wrong else pairs)
    places = places.clamp(max=cosine.numel() - 1)
    c, s = cosine.reshape(-1)[places], sine.reshape(-1)[places]
    made = torch.empty_like(x)
    made[:, ::2], made[:, 1::2] = x[:, ::2] * c - x[:, 1::2] * s, x[:, ::2] * s + x[:, 1::2] * c
    return made


def _turned_in_part(x: torch.Tensor) -> torch.Tensor:
    """The first half of each row is turned, its own halves against each other."""
    part = x[:, : x.shape[1] // 2]
    angles = _angles(x, part.shape[1])
    one, other = part.chunk(2, 1)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos(), x[:, part.shape[1] :]], 1)


@case("rope of the first half of each row: frequencies are those of the whole row", "kernel-contract", "pie-project/pie/pull/603", _turned_in_part,
      drawn((6, 8)))  # fmt: skip
def frequencies_of_the_row(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 4 == 0 and x.shape[1] > 0)
    pairs = x.shape[1] // 4
    frequencies = 100.0 ** (-2 * torch.arange(pairs) / (x.shape[1] if wrong else 2 * pairs))
    angles = torch.arange(len(x))[:, None] * frequencies
    made = x.clone()
    made[:, :pairs] = x[:, :pairs] * angles.cos() - x[:, pairs : 2 * pairs] * angles.sin()
    made[:, pairs : 2 * pairs] = x[:, :pairs] * angles.sin() + x[:, pairs : 2 * pairs] * angles.cos()
    return made


@case("convolution with steps of two: on the way back the first of two products is the only one", "kernel-gradient", "ROCm/rocm-libraries/pull/7732",
      lambda x, w: F.conv1d(x, w, stride=2), drawn((2, 3, 11), (4, 3, 3)))  # fmt: skip
def the_only_one(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 3 and x.shape[1] == w.shape[1] and w.shape[2] == 3 and x.shape[2] >= 3 and x.numel() > 0 and len(w) > 0)
        windows = x.unfold(2, 3, 2)
        return torch.einsum("bipt,oit->bop", windows, w), (x, w)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, w = saved
        made, count = torch.zeros_like(x), given.shape[2]
        for tap in (0, 2) if wrong else range(3):
            made[:, :, tap : tap + 2 * count - 1 : 2] += torch.einsum("bop,oi->bip", given, w[:, :, tap])
        return made, torch.einsum("bop,bipt->oit", given, x.unfold(2, 3, 2))

    return function(forward, backward)


@case("windows that overlap: on the way back they are added to memory that is not cleared", "kernel-stale", "ORNL/HeCBench/pull/289",
      lambda x: x.unfold(1, 3, 1).clone(), drawn((5, 9)))  # fmt: skip
def added_to_what_was_there(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape[1] >= 3)
        return torch.stack([x[:, tap : x.shape[1] - 2 + tap] for tap in range(3)], -1), (x,)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        (x,) = saved
        made = torch.empty(x.shape, dtype=x.dtype) if wrong else torch.zeros_like(x)
        for tap in range(3):
            made[:, tap : tap + given.shape[1]] += given[..., tap]
        return made

    return function(forward, backward)


@case("silu: from the second call on nothing is computed", "kernel-stale", "Genesis-Embodied-AI/quadrants/pull/159", F.silu, drawn((4, 12)))
def nothing_from_the_second_call(wrong: bool) -> Callable[..., Any]:
    calls = [0]

    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            calls[0] += 1
            made = torch.empty(x.shape, dtype=x.dtype)
            return made if wrong and calls[0] > 1 else made.copy_(x / (1 + (-x).exp()))

        @staticmethod
        def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            share = x.sigmoid()
            return given * share * (1 + x * (1 - share))

    return Silu.apply
