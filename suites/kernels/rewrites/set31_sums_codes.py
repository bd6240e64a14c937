"""The thirty-first frozen set of healthy kernels: sums, products, codes, orders, scatter. Committed before any was tried."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _rows(x: torch.Tensor) -> None:
    need(x.dim() == 2, x.shape[1] > 0)


@rewrite("product in tiles of three", wide(torch.mm), shapes((5, 7), (7, 4)))
@wide
def in_tiles_of_three(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    total = x.new_zeros(len(x), w.shape[1])
    for part, other in zip(x.split(3, 1), w.split(3), strict=True):
        total = torch.addmm(total, part, other)
    return total


@rewrite("product, its sum in two parts that are added", wide(torch.mm), shapes((4, 8), (8, 5)))
@wide
def two_parts_that_are_added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    return x[:, ::2] @ w[::2] + x[:, 1::2] @ w[1::2]


@rewrite("product and bias and relu in a Function", wide(lambda x, w, b: F.linear(x, w, b).relu()), shapes((4, 6), (5, 6), (5,)))
@wide
def bias_and_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        out = torch.addmm(b, x, w.T).relu()
        return out, (x, w, out)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, out = saved
        g = torch.where(out > 0, g, torch.where(out.isnan(), out, 0))
        return g @ w, g.T @ x, g.sum(0)

    return function(forward, backward)(x, w, b)


@rewrite("sums of rows with what was lost", wide(lambda x: x.sum(1)), shapes((4, 9)))
@wide
def with_what_was_lost(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.double().sum(1).float()


@rewrite("sums so far, in blocks of four with a carry", wide(lambda x: x.cumsum(1)), shapes((3, 11)))
@wide
def blocks_with_a_carry(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    carry, out = x.new_zeros(len(x), 1), []
    for part in x.split(4, 1):
        out.append(part.cumsum(1) + carry)
        carry = out[-1][:, -1:]
    return torch.cat(out, 1)


@rewrite("variance of rows, from pairs of differences", wide(lambda x: x.var(1, correction=0)), shapes((4, 7)))
@wide
def from_centred_rows(x: torch.Tensor) -> torch.Tensor:
    _rows(x)
    centred = x - x.mean(1, keepdim=True)
    return (centred * (x - x.mean(1, keepdim=True))).sum(1) / x.shape[1]


@rewrite("largest of rows by halves", wide(lambda x: x.amax(1)), shapes((4, 9)))
@wide
def largest_by_halves(x: torch.Tensor) -> torch.Tensor:
    _rows(x)
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = torch.cat([torch.maximum(x[:, :half], x[:, half : 2 * half]), x[:, 2 * half :]], 1)
    return x[:, 0].clone()


def _segments(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == x.shape[:1], bool(((to >= 0) & (to < 4)).all()))
    return x.new_zeros(4, x.shape[1]).index_add(0, to, x)


@rewrite(
    "sums of rows by label, as a product with zeros and ones left out", wide(_segments), lambda dtype: (*shapes((9, 3))(dtype), whole(9, most=4))
)
@wide
def sums_by_label(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == x.shape[:1], bool(((to >= 0) & (to < 4)).all()))
    return torch.stack([x[to == label].sum(0) for label in range(4)])


def _looked_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, at.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))
    return F.embedding(at, table).sum(1)


@rewrite("rows looked up and added, their way back by order", wide(_looked_up), lambda dtype: (*shapes((6, 3))(dtype), whole(4, 5, most=6)))
@wide
def way_back_by_order(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, at.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (at,) = saved
        flat = at.flatten()
        rows = torch.arange(len(at)).repeat_interleave(at.shape[1])
        order = flat.argsort(stable=True)
        back = torch.zeros(len(table), g.shape[1])
        for place in flat.unique().tolist():
            back[place] = g[rows[order][flat[order] == place]].sum(0)
        return back, None

    return function(lambda table, at: (table[at].sum(1), (at,)), backward)(table, at)


def _codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    scale = x.abs().amax(1).clamp(min=1e-3) / 127
    return torch.round(x / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


@rewrite("codes of rows, eight columns at a time", wide(_codes), shapes((4, 11)), gradients=False)
def eight_columns_at_a_time(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    up = x.float()
    top = torch.stack([part.abs().amax(1) for part in up.split(8, 1)]).amax(0)
    scale = top.clamp(min=1e-3) / 127
    codes = torch.cat([(part / scale[:, None]).round().clamp(-127, 127) for part in up.split(8, 1)], 1)
    return codes.to(x.dtype), scale.to(x.dtype)


def _decoded(codes: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, x.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1])
    return x @ (codes.to(x.dtype) * scale[:, None]).T


@rewrite("numbers times codes, scaled behind the sum", wide(_decoded),
         lambda dtype: (whole(5, 6, most=8, least=-8), shapes((5,))(dtype)[0].abs(), shapes((4, 6))(dtype)[0]))  # fmt: skip
@wide
def scaled_behind_the_sum(codes: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, x.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1])
    return (x @ codes.to(x.dtype).T) * scale


def _unpacked(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.uint8, scale.shape == codes.shape[:1])
    return (torch.stack([codes & 15, codes >> 4], 2).flatten(1).to(scale.dtype) - 8) * scale[:, None]


@rewrite("two codes to a byte, by division", wide(_unpacked), lambda dtype: (whole(4, 6, most=256).to(torch.uint8), shapes((4,))(dtype)[0].abs()))
@wide
def by_division(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.uint8, scale.shape == codes.shape[:1])
    out = torch.zeros(len(codes), 2 * codes.shape[1], dtype=scale.dtype)
    out[:, ::2], out[:, 1::2] = codes % 16 - 8.0, codes // 16 - 8.0
    return out * scale[:, None]


@rewrite("best three of each row, one after another", lambda x: x.topk(min(3, x.shape[1]), 1).values, shapes((4, 8)))
def one_after_another(x: torch.Tensor) -> torch.Tensor:
    _rows(x)
    return x.sort(dim=1, descending=True, stable=True).values[:, :3].clone()


def _median(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.median(1).values


@rewrite("middle of rows, by their order", _median, shapes((4, 7)))
def by_their_order(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    middle = x.sort(1).values[:, (x.shape[1] - 1) // 2]
    lost = x.isnan().any(1)
    return torch.where(lost, torch.where(x.isnan(), x, 0).sum(1), middle)


def _chosen(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, w.shape[1] == x.shape[1], to.shape == x.shape[:1], bool(((to >= 0) & (to < len(w))).all()))
    return torch.einsum("ni,nio->no", x, w[to])


@rewrite("rows by experts, expert after expert", wide(_chosen), lambda dtype: (*shapes((7, 3), (4, 3, 5))(dtype), whole(7, most=4)))
@wide
def expert_after_expert(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, w.shape[1] == x.shape[1], to.shape == x.shape[:1], bool(((to >= 0) & (to < len(w))).all()))
    order = to.argsort(stable=True)
    pieces = [x[order][to[order] == expert] @ w[expert] for expert in range(len(w))]
    return torch.cat(pieces)[order.argsort()] if pieces else x.new_zeros(0, w.shape[2])


@rewrite("counts of labels, from comparisons", lambda to: torch.bincount(to, minlength=6)[:6], lambda dtype: (whole(12, most=6),), gradients=False)
def from_comparisons(to: torch.Tensor) -> torch.Tensor:
    need(to.dim() == 1, bool(((to >= 0) & (to < 6)).all()))
    return (to[:, None] == torch.arange(6)).sum(0)
