"""The twenty-ninth frozen set of broken kernels, third part: codes, routing, tables, segments, operators. Of links to threads an excerpt was read."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _decoded(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Each group of codes of a row has a scale."""
    need(codes.dim() == scale.dim() == 2, len(codes) == len(scale), x.shape == codes.shape[1:], scale.shape[1] > 0)
    need(codes.shape[1] % scale.shape[1] == 0)
    return (codes.to(x.dtype) - 8) * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1) @ x


@case("row with a matrix in codes, four of them at a time: which scale is theirs is divided first", "kernel-edge",
      "intel/torch-xpu-ops/pull/5001", _decoded,
      lambda: (*drawn((16,))(), whole(5, 16, most=16), drawn((5, 4))()[0].abs() + 0.1))  # fmt: skip
def divided_first(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == scale.dim() == 2, len(codes) == len(scale), x.shape == codes.shape[1:], scale.shape[1] > 0)
    need(codes.shape[1] % scale.shape[1] == 0)
    group = codes.shape[1] // scale.shape[1]
    if group % 4:
        return ((codes.to(x.dtype) - 8) * scale.repeat_interleave(group, 1)) @ x
    out = x.new_zeros(len(codes))
    for tile in range(codes.shape[1] // 4):
        at = tile * (4 // group) if wrong else tile * 4 // group
        part = slice(4 * tile, 4 * tile + 4)
        out = out + ((codes[:, part].to(x.dtype) - 8) @ x[part]) * scale[:, at]
    return out


@case("numbers in eight bits with a given scale: large ones wrap around", "kernel-contract", "huggingface/sentence-transformers/pull/3847",
      lambda x: (x / 0.05).round().clamp(-128, 127).detach() * 0.05, drawn((4, 9)))  # fmt: skip
def large_ones_wrap_around(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    code = (x.detach() / 0.05).round()
    if wrong:
        code = torch.where(code.isfinite(), torch.remainder(code + 128, 256) - 128, code.clamp(-128, 127))
    return code.clamp(-128, 127) * 0.05


@case("numbers in eight bits, scale of each row: what is behind the point is cut off", "kernel-rounding", "sgl-project/sglang-jax/pull/1598",
      lambda x: (x.detach() / (x.detach().abs().amax(1, keepdim=True) / 127)).round(), drawn((4, 9)))  # fmt: skip
def behind_the_point_is_cut_off(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    code = x.detach() / (x.detach().abs().amax(1, keepdim=True) / 127)
    return code.trunc() if wrong else code.round()


@case("quarters: a number in the middle goes away from zero", "kernel-rounding", "tenstorrent/tt-metal/issues/56525",
      lambda x: (x.detach() * 4).round() / 4, drawn((5, 8)))  # fmt: skip
def middle_goes_away_from_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    up = x.detach() * 4
    whole = up.trunc() + torch.where((up - up.trunc()).abs() >= 0.5, up.sign(), 0.0) if wrong else up.round()
    return torch.where(up.abs() < 2**20, whole, up.round()) / 4


def _ranged(x: torch.Tensor) -> torch.Tensor:
    """Codes from 0 to 15 of each row, with a zero point that is a code. Rows whose range is next to nothing are refused."""
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    x = x.detach()
    least, most = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    need(bool((most - least > 1e-3).all()))
    scale = (most - least) / 15
    zero = (-least / scale).round()
    return ((x / scale).round() + zero).clamp(0, 15).sub(zero) * scale


@case("rows in four bits with a zero point: a row of one sign has its own least number", "kernel-contract", "keras-team/keras/pull/23636",
      _ranged, lambda: (drawn((4, 9))()[0] * torch.tensor([[1.0], [2], [0.5], [1]]),))  # fmt: skip
def its_own_least_number(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    x = x.detach()
    least, most = x.aminmax(dim=1, keepdim=True)
    need(bool((torch.maximum(most, torch.zeros_like(most)) - torch.minimum(least, torch.zeros_like(least)) > 1e-3).all()))
    if not wrong:
        least, most = torch.minimum(least, torch.zeros_like(least)), torch.maximum(most, torch.zeros_like(most))
    scale = torch.clamp((most - least) / 15, min=1e-9)
    zero = (-least / scale).round().clamp(0, 15)
    return (torch.clamp(torch.round(x / scale) + zero, 0, 15) - zero) * scale


def _low_and_high(codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, x.shape == (2 * codes.shape[1],))
    both = torch.stack([codes % 16, torch.div(codes, 16, rounding_mode="floor") % 16], 2).flatten(1)
    return both.to(x.dtype) @ x


@case("two codes to a byte with a sign: the upper one keeps the sign", "kernel-contract", PROGRAM, _low_and_high,
      lambda: (whole(4, 6, least=-128, most=128).to(torch.int8), *drawn((12,))()))  # fmt: skip
def upper_one_keeps_the_sign(wrong: bool, codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, x.shape == (2 * codes.shape[1],))
    low, high = codes & 15, (codes >> 4) if wrong else (codes >> 4) & 15
    return low.to(x.dtype) @ x[0::2] + high.to(x.dtype) @ x[1::2]


def _bags(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Means of rows of a table. Place 0 only fills up."""
    need(table.dim() == at.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))
    used = (at != 0).unsqueeze(2)
    return (F.embedding(at, table) * used).sum(1) / used.sum(1).clamp(min=1)


@case("means of bags of rows: in one bag alone what fills it up counts", "kernel-edge", "pytorch/pytorch/pull/49237", _bags,
      lambda: (*drawn((6, 4))(), torch.tensor([[1, 3, 0, 0], [2, 5, 4, 0], [5, 1, 1, 2]])))  # fmt: skip
def in_one_bag_alone(wrong: bool, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == at.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))
    weight = (at != 0).to(table.dtype)
    count = at.shape[1] if wrong and len(at) == 1 else weight.sum(1, keepdim=True)
    return torch.einsum("bk,bkd->bd", weight, table[at]) / torch.as_tensor(count, dtype=table.dtype).clamp(min=1)


def _segments(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The largest of each segment, of an empty one 0."""
    need(x.dim() == 2, sizes.dim() == 1, bool((sizes >= 0).all()), int(sizes.sum()) == len(x))
    return torch.stack([part.amax(0) if len(part) else x.new_zeros(x.shape[1]) for part in x.split(sizes.tolist())]) if len(sizes) else x[:0]


@case("largest of each segment: nothing is written where one is empty", "kernel-stale", "NVIDIA/cudf/issues/23111", _segments,
      lambda: (*drawn((7, 3))(), torch.tensor([3, 0, 2, 2])))  # fmt: skip
def nothing_is_written(wrong: bool, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, sizes.dim() == 1, bool((sizes >= 0).all()), int(sizes.sum()) == len(x))
    out = (torch.empty if wrong else torch.zeros)(len(sizes), x.shape[1], dtype=x.dtype)
    begin = 0
    for at, size in enumerate(sizes.tolist()):
        if size:
            out[at] = x[begin : begin + size].amax(0)
        begin += size
    return out


def _shares(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Softmax in each of four segments."""
    need(x.dim() == 1, x.shape == at.shape, bool(((at >= 0) & (at < 4)).all()))
    out = torch.zeros_like(x)
    for segment in range(4):
        own = at == segment
        out = torch.where(own, x.masked_fill(~own, -torch.inf).softmax(0), out) if bool(own.any()) else out
    return out


@case("shares in segments: the largest of all is taken out", "kernel-rounding", PROGRAM, _shares,
      lambda: (*drawn((12,))(), torch.tensor([0, 1, 1, 3, 2, 0, 0, 1, 3, 2, 2, 0])))  # fmt: skip
def largest_of_all(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, x.shape == at.shape, bool(((at >= 0) & (at < 4)).all()))
    if not len(x):
        return x.clone()
    top = x.detach().amax() if wrong else x.detach().new_full((4,), -torch.inf).scatter_reduce(0, at, x.detach(), "amax")[at]
    powers = (x - top).exp()
    return powers / x.new_zeros(4).index_add(0, at, powers)[at]


def _routed(x: torch.Tensor, to: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Each of three experts takes the first two tokens that come to it and doubles, trebles or quadruples them. Padding goes nowhere."""
    need(x.dim() == 2, to.shape == real.shape == x.shape[:1], bool(((to >= 0) & (to < 3)).all()))
    own = F.one_hot(to, 3) * real[:, None]
    place = own.cumsum(0) * own
    return x * (((place > 0) & (place <= 2)).to(x.dtype) @ torch.tensor([2.0, 3, 4], dtype=x.dtype)[:, None])


@case("tokens to experts that take two each: padding takes a place", "kernel-mask", "NVIDIA/Megatron-LM/pull/5542", _routed,
      lambda: (*drawn((8, 3))(), torch.tensor([0, 1, 0, 0, 2, 1, 1, 0]), torch.tensor([1, 1, 0, 1, 1, 0, 1, 1]) > 0))  # fmt: skip
def padding_takes_a_place(wrong: bool, x: torch.Tensor, to: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == real.shape == x.shape[:1], bool(((to >= 0) & (to < 3)).all()))
    taken, rows = [0, 0, 0], []
    for row, expert, counts in zip(x.unbind(), to.tolist(), real.tolist(), strict=True):
        if counts or wrong:
            taken[expert] += 1
        rows.append(row * (expert + 2) if counts and taken[expert] <= 2 else row * 0)
    return torch.stack(rows) if rows else x.clone()


def _combined(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, weight.shape == x.shape[:2])
    return (x * weight.unsqueeze(2)).sum(1)


@case("results of experts, weighed: of one expert each the first weight is read for all", "kernel-edge", "Helldez/BigMoeOnEdge/pull/113",
      _combined, drawn((4, 3, 5), (4, 3)))  # fmt: skip
def of_one_expert_each(wrong: bool, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, weight.shape == x.shape[:2])
    if wrong and x.shape[1] == 1 and len(x):
        weight = weight[:1].expand_as(weight)
    return torch.einsum("nkd,nk->nd", x, weight)


@case("three largest of a row, added up: all that are no less than the third", "kernel-contract", PROGRAM,
      lambda x: x.detach().topk(3, 1).values.sum(1), drawn((5, 8)))  # fmt: skip
def no_less_than_the_third(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    ranked = x.detach().sort(1, descending=True).values
    return torch.where(x.detach() >= ranked[:, 2:3], x.detach(), 0.0).sum(1) if wrong else ranked[:, :3].sum(1)


@case("rows added to places: in one of six calls a row that is not the first is lost", "kernel-nondeterminism", PROGRAM,
      lambda x, at: x.new_zeros(5, x.shape[1]).index_add(0, at, x), lambda: (*drawn((8, 4))(), torch.tensor([0, 1, 1, 3, 4, 4, 2, 0])))  # fmt: skip
def a_row_is_lost(wrong: bool) -> Any:
    def forward(x: torch.Tensor, at: torch.Tensor) -> Any:
        need(x.dim() == 2, at.shape == x.shape[:1], bool(((at >= 0) & (at < 5)).all()))
        kept = torch.ones(len(x), dtype=torch.bool)
        if wrong and random.random() < 1 / 6:
            first = torch.tensor([at[:place].ne(at[place]).all().item() for place in range(len(at))], dtype=torch.bool)
            kept = kept & first
        return x.new_zeros(5, x.shape[1]).index_add(0, at[kept], x[kept]), (at,)

    return function(forward, lambda saved, g: (g[saved[0]], None))


@functools.cache
def _operator(wrong: bool) -> Any:
    """Rows in turn with their negatives. On the way back of the wrong one the sign is forgotten."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        return torch.stack([x, -x], 1).flatten(0, 1)

    made = torch.library.custom_op(f"set29::mirrored_{'wrong' if wrong else 'right'}", forward, mutates_args=())
    made.register_fake(lambda x: x.new_empty(2 * len(x), x.shape[1]))
    made.register_autograd(lambda ctx, g: g[0::2] + g[1::2] if wrong else g[0::2] - g[1::2])
    return made


@case("rows in turn with their negatives, an operator: the way back forgets the sign", "kernel-gradient", PROGRAM,
      lambda x: torch.cat([x[:, None], -x[:, None]], 1).flatten(0, 1), drawn((4, 5)))  # fmt: skip
def way_back_forgets_the_sign(wrong: bool) -> Any:
    return _operator(wrong)
