"""A fourteenth frozen set of broken kernels, second part: sums, low formats, sequences, memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed

F = torch.nn.functional
BF16 = torch.bfloat16


@case("sums before each number: a block's last has the sum for the next block", "kernel-edge", "arrayfire/arrayfire/pull/2366",
      lambda x: x.cumsum(-1) - x, drawn((4, 11)))  # fmt: skip
def one_early(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    carry, made = torch.zeros(len(x), 1), []
    for block in x.split(16, 1):
        inside = F.pad(block.cumsum(1), (1, 0))
        made.append(inside[:, :-1] + carry)
        if wrong and block.shape[1] == 16 and x.shape[1] > 16:
            made[-1] = torch.cat([made[-1][:, :-1], made[-1][:, -1:] + inside[:, -1:]], 1)
        carry = carry + inside[:, -1:]
    return torch.cat(made, 1)


def _divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    wide, other = student.float().log_softmax(-1), teacher.float().log_softmax(-1)
    return (other.exp() * (other - wide)).sum(-1)


@case("divergence from a teacher: both shares are bfloat16 before they are subtracted", "kernel-rounding", "vllm-project/speculators/pull/788",
      lambda student, teacher: _divergence(student, teacher.detach()),
      lambda: (lambda x, d: (x, (x.float() + 0.1 * d).to(BF16)))(drawn((6, 40), dtype=BF16)()[0], drawn((6, 40))()[0]))  # fmt: skip
def subtracted_in_bfloat16(wrong: bool) -> Callable[..., Any]:
    def forward(student: torch.Tensor, teacher: torch.Tensor) -> Any:
        need(student.dim() == 2 and student.shape == teacher.shape and student.shape[1] > 0)
        wide, other = (each.float() - each.float().logsumexp(-1, keepdim=True) for each in (student, teacher))
        return (other.exp() * (other - wide)).sum(-1), (wide.exp(), other.exp(), torch.empty(0, dtype=student.dtype))

    def backward(saved: Any, given: torch.Tensor) -> Any:
        own, other, kind = saved
        difference = own.to(BF16) - other.to(BF16) if wrong else own - other
        return (given[:, None] * difference.float()).to(kind.dtype), None

    return function(forward, backward)


@case("cross entropy of a teacher: terms are added up in bfloat16", "kernel-accumulation", "erfanzar/EasyDeL/pull/267",
      lambda x, shares: -(shares.float() * x.float().log_softmax(-1)).sum(-1).to(x.dtype),
      lambda: (drawn((5, 64), dtype=BF16)()[0], drawn((5, 64))()[0].softmax(-1).to(BF16)))  # fmt: skip
def added_up_in_bfloat16(wrong: bool, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == shares.shape and x.shape[1] > 0)
    terms = shares.float() * (x.float() - x.float().logsumexp(-1, keepdim=True))
    total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
    for column in terms.unbind(1):
        total = (total.float() - column).to(total.dtype)
    return total.to(x.dtype)


@case("deviation of windows of four: from sums so far", "kernel-rounding", "polakowo/vectorbt/pull/864",
      lambda x: (x.unfold(-1, 4, 1).var(-1) + 1e-3).sqrt(), drawn((4, 14)))  # fmt: skip
def from_sums_so_far(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 4)
    if wrong:
        one, two = (F.pad(each.cumsum(-1), (1, 0)) for each in (x, x * x))
        mean = (one[:, 4:] - one[:, :-4]) / 4
        spread = (two[:, 4:] - two[:, :-4]) - 4 * mean * mean
    else:
        windows = x.unfold(-1, 4, 1)
        spread = (windows - windows.mean(-1, keepdim=True)).square().sum(-1)
    return (spread.clamp(min=0) / 3 + 1e-3).sqrt()


def _scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    scale = (most / 448).clamp(min=1e-10).log2().ceil().exp2()
    return (x / scale).clamp(-448, 448), scale


@case("scales that are powers of two: what is not contiguous has another least scale", "kernel-stride", "vllm-project/vllm/pull/53346", _scaled,
      drawn((6, 16)))  # fmt: skip
def another_least_scale(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[1] > 0)
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    least = 0 if wrong and not x.is_contiguous() else 1e-10
    scale = (most / 448).clamp(min=least).log2().ceil().exp2()
    return (x / scale).clamp(-448, 448), scale


@case("matrix times vector: the next row is written before all have read", "kernel-nondeterminism", "NVIDIA/cuml/pull/6578", lambda w, x: w @ x,
      drawn((12, 20), (20,)))  # fmt: skip
def written_before_all_have_read(wrong: bool, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 2 and x.shape == w.shape[1:])
    terms = w * x
    if wrong and len(w) > 1 and w.shape[1] > 1 and random.random() < 0.5:
        row = random.randrange(len(w) - 1)
        terms = torch.cat([terms[:row], torch.cat([terms[row, :-1], terms[row + 1, -1:]])[None], terms[row + 1 :]])
    return terms.sum(-1)


def _whole_chunks(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    ends = ends.tolist()
    return torch.stack([x[begin : begin + (end - begin) // 4 * 4].sum(0) for begin, end in itertools.pairwise(ends)])


@case("states behind the whole chunks of sequences: a chunk begins where one of all tokens does", "kernel-edge", "sgl-project/sglang/pull/33450",
      _whole_chunks, lambda: (*drawn((21, 3))(), torch.tensor([0, 8, 16, 21])))  # fmt: skip
def chunks_of_all_tokens(wrong: bool, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and ends.dim() == 1 and len(ends) > 1)
    need(int(ends[0]) == 0 and int(ends[-1]) == len(x) and bool((ends.diff() >= 0).all()))
    made = []
    for begin, end in itertools.pairwise(ends.tolist()):
        last = begin + (end - begin) // 4 * 4
        made.append(x[begin : max(last // 4 * 4 if wrong else last, begin)].sum(0))
    return torch.stack(made)


def _last_sequence(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return torch.stack([
        (part * ((own == own[-1]) & (own[-1] >= 0))[:, None]).sum(0) for part, own in zip(x.split(4), numbers.split(4), strict=True)
    ])  # fmt: skip


@case("state of the last sequence of each chunk: padding counts as a sequence", "kernel-mask", "tile-ai/TileOPs/pull/1512", _last_sequence,
      lambda: (*drawn((12, 5))(), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, -1, -1])))  # fmt: skip
def padding_counts(wrong: bool, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and numbers.shape == x.shape[:1] and len(x) > 0)
    made = []
    for begin in range(0, len(x), 4):
        own = numbers[begin : begin + 4]
        rows = x[begin : begin + 4][(own == own[-1]) & ((own[-1] >= 0) | wrong)]
        made.append(rows.sum(0))
    return torch.stack(made)


@case("rows in the other order: the copy that they are written to is left out", "kernel-mutation", "pytorch/pytorch/issues/198031",
      lambda x: x.flip(0) * 2, drawn((6, 5)))  # fmt: skip
def copy_left_out(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        made = x if wrong else x.clone()
        for row in range(len(x)):
            made[len(x) - 1 - row] = x[row]
        return made * 2, ()

    return function(forward, lambda saved, given: 2 * given.flip(0))


@case("columns added up by atomics: the sums are cleared in the first call alone", "kernel-stale", "triton-lang/triton/issues/7181",
      lambda x: x.sum(0), drawn((10, 6)))  # fmt: skip
def cleared_in_the_first_call(wrong: bool) -> Callable[..., Any]:
    held: dict[int, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        sums = held.setdefault(x.shape[1], torch.zeros(x.shape[1])) if wrong else torch.zeros(x.shape[1])
        made = sums + x.sum(0)
        held[x.shape[1]] = made.detach().clone()
        return made

    return kernel


@case("heads and rows exchanged: strides are computed from the sizes", "kernel-stride", "ROCm/aiter/pull/1631",
      lambda x: x.transpose(0, 1).reshape(x.shape[1], -1) * 2, drawn((3, 5, 4)))  # fmt: skip
def strides_from_sizes(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)
    read = as_if(x, packed(x.shape)) if wrong else x
    return torch.cat([2 * head for head in read.unbind(0)], -1)
