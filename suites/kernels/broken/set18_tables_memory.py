"""An eighteenth frozen set of broken kernels, fourth part: tables, rotations, sums, memory. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, need, packed, whole

F = torch.nn.functional


def _angles(x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    places = offset + torch.arange(len(x))
    return places[:, None] * 0.5 ** torch.arange(x.shape[1] // 2)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1)


@case("rope from a place on: angles are kept by the number of rows, not the place", "kernel-stale", "lucidrains/rotary-embedding-torch/issues/11",
      lambda x, offset: _turned(x, _angles(x, offset)), lambda: (*drawn((5, 8))(), torch.tensor(3)))  # fmt: skip
def kept_by_the_number_of_rows(wrong: bool) -> Callable[..., Any]:
    kept: dict[Any, torch.Tensor] = {}

    def kernel(x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] % 2 == 0 and offset.dim() == 0)
        key = (*x.shape,) if wrong else (*x.shape, int(offset))
        if key not in kept:
            kept[key] = _angles(x, offset)
        return _turned(x, kept[key])

    return kernel


@case("rope of one row each: sequences behind the first are read a row too far", "kernel-edge", "ml-explore/mlx/issues/3795",
      lambda x: _turned(x, torch.arange(x.shape[1])[:, None] * 0.5 ** torch.arange(x.shape[2] // 2) + 0.3), drawn((3, 5, 8)))  # fmt: skip
def a_row_too_far(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[2] % 2 == 0)
    angles = torch.arange(x.shape[1])[:, None] * 0.5 ** torch.arange(x.shape[2] // 2) + 0.3
    if wrong and x.shape[1] == 1 and len(x) > 1:
        x = torch.cat([x[:1], x[2:], x[-1:]])
    return _turned(x, angles)


@case("rope by a row of cosines and sines: sines begin at half of the next power of two", "kernel-edge", "vllm-project/vllm-ascend/issues/12723",
      lambda x, table: _by_table(x, table, table.shape[1] // 2), drawn((5, 8), (5, 8)))  # fmt: skip
def half_of_a_power_of_two(wrong: bool, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == table.shape and x.shape[1] % 2 == 0)
    half = x.shape[1] // 2
    power = 1
    while power < x.shape[1]:
        power *= 2
    return _by_table(x, F.pad(table, (0, power)), power // 2 if wrong else half)


def _by_table(x: torch.Tensor, table: torch.Tensor, begin: int) -> torch.Tensor:
    half = x.shape[1] // 2
    one, two = x[:, :half], x[:, half:]
    cos, sin = table[:, :half], table[:, begin : begin + half]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], 1)


@case("rows and a bias added up by place: lanes behind the end add the bias too", "kernel-edge", "pytorch/pytorch/issues/178871",
      lambda x, bias, places: torch.zeros(4).index_add(0, places, x + bias), lambda: (*drawn((8,), ())(), whole(8, most=4)))  # fmt: skip
def lanes_behind_the_end(wrong: bool, x: torch.Tensor, bias: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1 and bias.dim() == 0 and places.shape == x.shape and bool(((places >= 0) & (places < 4)).all()))
    lanes = 1
    while lanes < len(x):
        lanes *= 2
    more = lanes - len(x) if wrong and len(x) else 0
    return torch.zeros(4).index_add(0, F.pad(places, (0, more)), F.pad(x, (0, more)) + bias)


@case("ends of sequences behind a zero: from 64 sequences on the zero is the first length", "kernel-edge", "pytorch/pytorch/issues/189895",
      lambda lengths, x: F.pad(lengths.cumsum(0), (1, 0)) * x.sum(), lambda: (whole(6, most=9, least=1), *drawn((3,))()))  # fmt: skip
def zero_is_the_first_length(wrong: bool, lengths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(lengths.dim() == x.dim() == 1)
    ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    if wrong and len(lengths) >= 64:
        ends[0] = lengths[0]
    return ends * x.sum()


@case("sums of short rows, written out: columns are taken to lie side by side", "kernel-stride", "pytorch/pytorch/issues/189401",
      lambda x, w: (x * w).sum(-1), drawn((5, 4), (5, 4)))  # fmt: skip
def side_by_side(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == w.shape and x.shape[1] > 0)
    if wrong and x.shape[1] < 8:
        x, w = as_if(x, packed(x.shape)), as_if(w, packed(w.shape))
    total = x[:, 0] * w[:, 0]
    for column in range(1, x.shape[1]):
        total = total + x[:, column] * w[:, column]
    return total


@case("shares of a row that reach nine tenths: rows are taken to be as far apart as they are long", "kernel-stride", "vllm-project/vllm/pull/42739",
      lambda x: _kept(x), drawn((4, 7)))  # fmt: skip
def as_far_apart_as_long(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    return _kept(as_if(x, (x.shape[1], x.stride(1))) if wrong else x)


def _kept(x: torch.Tensor) -> torch.Tensor:
    """The largest shares of each row, up to the one that reaches nine tenths; zero for the others."""
    shares = x.softmax(-1)
    ordered = shares.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    return torch.zeros_like(shares).scatter(-1, ordered.indices, torch.where(before < 0.9, ordered.values, 0))


@case("a forecast, step after step: the first state is written over", "kernel-mutation", "NVIDIA/earth2studio/issues/1133",
      lambda x: _steps(x.clone()), drawn((4, 5)))  # fmt: skip
def first_state_is_written_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    state = x.detach() if wrong else x.detach().clone()
    made = _steps(x * 1)
    for _ in range(2):
        state.mul_(0.5).add_(0.1)
    return made


def _steps(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x * 0.5 + 0.1
    return x


@case("two vectors added: the kernel is kept with the number of elements of the first call", "kernel-stale", "ROCm/FlyDSL/issues/317",
      lambda x, y: x + y, drawn((10,), (10,)))  # fmt: skip
def elements_of_the_first_call(wrong: bool) -> Callable[..., Any]:
    kept: list[int] = []

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 1 and x.shape == y.shape)
        kept.append(len(x))
        end = kept[0] if wrong else len(x)
        return torch.cat([x[:end] + y[:end], torch.zeros_like(x[end:])])

    return kernel


@case("first row whose mask is set: sequences are looked at as far as there are columns", "kernel-edge", "microsoft/onnxruntime/pull/2300",
      lambda x, mask: x.sum() * mask.long().argmax(1), lambda: (*drawn((3,))(), whole(3, 8, most=2) > 0))  # fmt: skip
def as_far_as_columns(wrong: bool, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1 and mask.dim() == 2 and mask.dtype is torch.bool and mask.shape[1] > 0)
    places = torch.where(mask, torch.arange(mask.shape[1]), mask.shape[1]).amin(1) % mask.shape[1]
    if wrong and len(mask) > mask.shape[1]:
        places[mask.shape[1] :] = 0
    return x.sum() * places


@case("softmax of some columns: a slice has the strides of a whole", "kernel-stride", "ml-explore/mlx/issues/657", lambda x: x[:, :3].softmax(-1),
      drawn((4, 3)))  # fmt: skip
def strides_of_a_whole(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    read = x[:, :3]
    read = as_if(read, packed(read.shape)) if wrong and x.stride(1) == 1 else read
    powers = (read - read.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
