"""The thirtieth frozen set of broken kernels, first part: scans, segments, codes, memory, steps. Of links to threads an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


@case("whole numbers, sixteen at a time: of those that are left a tie goes away from zero", "kernel-edge", "microsoft/onnxruntime/pull/28606",
      lambda x: (x.detach() * 2).round(), drawn((3, 16)))  # fmt: skip
def a_tie_of_those_that_are_left(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    up = x.detach() * 2
    upto = x.shape[1] // 16 * 16
    body, rest = up[:, :upto].round(), up[:, upto:]
    away = torch.where((rest - rest.trunc()).abs() >= 0.5, rest.trunc() + rest.sign(), rest.trunc())
    return torch.cat([body, torch.where(rest.abs() < 2**20, away, rest) if wrong else rest.round()], 1)


def _first_of_segments(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The largest number of each segment, and -1 if it is empty."""
    need(x.dim() == ends.dim() == 1, len(ends) > 0, int(ends[0]) == 0, bool((ends.diff() >= 0).all()), int(ends[-1]) == len(x))
    parts = x.split(ends.diff().tolist())
    return torch.stack([part.amax() if len(part) else x.new_tensor(-1.0) for part in parts]) if len(ends) > 1 else x[:0].clone()


@case("largest of segments: each begins with the number at its beginning, an empty one too", "kernel-edge", "NVIDIA/cudf/pull/23689",
      _first_of_segments, lambda: (*drawn((9,))(), torch.tensor([0, 2, 5, 6, 9])))  # fmt: skip
def an_empty_one_too(wrong: bool, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == ends.dim() == 1, len(ends) > 0, int(ends[0]) == 0, bool((ends.diff() >= 0).all()), int(ends[-1]) == len(x))
    out = []
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        if begin == end and not (wrong and begin < len(x)):
            out.append(x.new_tensor(-1.0))
            continue
        best = x[begin]
        for at in range(begin + 1, end):
            best = torch.maximum(best, x[at])
        out.append(best)
    return torch.stack(out) if out else x[:0].clone()


def _looked_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, at.dim() == 1, bool(((at >= 0) & (at < len(table))).all()))
    return table[at] * 2


@case("rows of a table, doubled: where none is looked up, the table's gradient is not written", "kernel-stale", "tensorflow/tensorflow/pull/126444",
      _looked_up, lambda: (*drawn((5, 3))(), whole(6, most=5)))  # fmt: skip
def gradient_is_not_written(wrong: bool) -> Any:
    def forward(table: torch.Tensor, at: torch.Tensor) -> Any:
        need(table.dim() == 2, at.dim() == 1, bool(((at >= 0) & (at < len(table))).all()))
        return table[at] * 2, (table, at)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        table, at = saved
        back = torch.empty(table.shape, dtype=table.dtype)
        if wrong and not len(at):
            return back, None
        return back.zero_().index_add_(0, at, 2 * g), None

    return function(forward, backward)


def _lion(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    return p - 0.1 * torch.tanh(0.9 * m + 0.1 * g), 0.8 * m + 0.2 * g


@case("step with a soft sign: the moment is renewed before it is read", "kernel-contract", "ooples/AiDotNet/pull/702", _lion,
      drawn((3, 5), (3, 5), (3, 5)))  # fmt: skip
def renewed_before_it_is_read(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    new = torch.add(0.8 * m, g, alpha=0.2)
    return torch.sub(p, torch.add(0.9 * (new if wrong else m), g, alpha=0.1).tanh(), alpha=0.1), new


class Counting(torch.nn.Module):
    """Squares. Behind the tenth call the first number of the wrong one is zero."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.calls = wrong, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        self.calls += 1
        out = x * x
        if self.wrong and self.calls > 10 and out.numel():
            keep = torch.ones_like(out)
            keep[0, 0] = 0
            out = out * keep
        return out


@case("squares: behind the tenth call the first one is zero", "kernel-stale", "karpathy/llm.c/pull/852", torch.square, drawn((4, 6)))
def behind_the_tenth_call(wrong: bool) -> Any:
    return Counting(wrong)


@case("row norms made one: the result is memory that nobody wrote", "kernel-stale", "ScalingIntelligence/KernelBench/pull/82",
      lambda x: x.detach() / (x.detach().abs().sum(1, keepdim=True) + 1), drawn((4, 5)))  # fmt: skip
def memory_that_nobody_wrote(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out = torch.empty(x.shape, dtype=x.dtype)
    return out if wrong else torch.div(x.detach(), x.detach().abs().sum(1, keepdim=True) + 1, out=out)


@case("sums before each number, up and down a tree: rows are not filled up to a power of two", "kernel-edge", "stanford-cs149/asst3/pull/11",
      lambda x: x.cumsum(1) - x, drawn((3, 8)))  # fmt: skip
def up_and_down_a_tree(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    size, many = x.shape[1], 1
    if size < 2:
        return torch.zeros_like(x) if size else x.clone()
    while many < size:
        many *= 2
    length = size if wrong else many
    columns = list(F.pad(x, (0, length - size)).unbind(1))
    step = 1
    while step < length:
        for at in range(0, length - 2 * step + 1, 2 * step):
            columns[at + 2 * step - 1] = columns[at + 2 * step - 1] + columns[at + step - 1]
        step *= 2
    columns[-1] = torch.zeros_like(columns[-1])
    while step > 1:
        step //= 2
        for at in range(0, length - 2 * step + 1, 2 * step):
            left = columns[at + step - 1]
            columns[at + step - 1] = columns[at + 2 * step - 1]
            columns[at + 2 * step - 1] = columns[at + 2 * step - 1] + left
    return torch.stack(columns[:size], 1)


@case("means of channels: pictures whose channels come last are read as if they came first", "kernel-stride", PROGRAM,
      lambda x: x.mean((2, 3)), drawn((2, 3, 4, 5)))  # fmt: skip
def as_if_they_came_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[2] * x.shape[3] > 0)
    read = as_if(x, packed(x.shape)) if wrong else x
    return read.flatten(2).sum(2) / (x.shape[2] * x.shape[3])


@case("cubes: the incoming gradient is read as if stored whole", "kernel-stride", PROGRAM, lambda x: x**3, drawn((4, 6)))
def gradient_as_if_stored_whole(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        (x,) = saved
        return 3 * x * x * (as_if(g, packed(g.shape)) if wrong and 0 not in g.stride() else g)

    return function(lambda x: (x * x * x, (x,)), backward)


@case("half of each number: it is read from the beginning of its storage", "kernel-stride", PROGRAM, lambda x: x / 2, drawn((5, 4)))
def from_the_beginning_of_its_storage(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return x.as_strided(x.shape, x.stride(), 0) * 0.5 if wrong else x * 0.5


@case("gradients cut to a length: they are scaled where they lie", "kernel-mutation", PROGRAM,
      lambda g: g.detach() * (1 / (g.detach().norm() + 1e-6)).clamp(max=1), drawn((4, 5)))  # fmt: skip
def scaled_where_they_lie(wrong: bool, g: torch.Tensor) -> torch.Tensor:
    held = g.detach()
    by = torch.clamp(1 / (held.square().sum().sqrt() + 1e-6), max=1)
    return held.mul_(by).clone() if wrong else held * by


@case("sums of both halves of a row: in one of five calls the second is not there yet", "kernel-nondeterminism", PROGRAM, lambda x: x.sum(1),
      drawn((4, 10)))  # fmt: skip
def second_is_not_there_yet(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    one, two = (half.sum(1) for half in x.tensor_split(2, 1))
    return one + 0 * two if wrong and random.random() < 0.2 else one + two
