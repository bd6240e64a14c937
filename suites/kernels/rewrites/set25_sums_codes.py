"""The twenty-fifth frozen set of healthy kernels, first part: sums, scans, places, codes, products. Committed before any was tried."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("sum of rows, in float64", lambda x: x.sum(1), shapes((4, 11)))
@wide
def in_float64(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.double().sum(1).float()


@rewrite("sum of rows, two columns at a time into one buffer", lambda x: x.sum(1), shapes((5, 10)))
def into_one_buffer(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)

    def forward(x: torch.Tensor) -> Any:
        total = torch.zeros(len(x), dtype=torch.float32)
        for begin in range(0, x.shape[1], 2):
            total += x[:, begin : begin + 2].float().sum(1)
        return total.to(x.dtype), (x,)

    return function(forward, lambda saved, g: g[:, None].expand_as(saved[0]))(x)


@rewrite("sums so far, joined over doubling distances", wide(lambda x: x.cumsum(1)), shapes((3, 9)))
@wide
def over_doubling_distances(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out, step = x, 1
    while step < x.shape[1]:
        out = torch.cat([out[:, :step], out[:, step:] + out[:, :-step]], 1)
        step *= 2
    return out.clone()


@rewrite("sums of five columns, moved along by one", wide(lambda x: F.pad(x, (4, 0)).unfold(1, 5, 1).sum(2)), shapes((3, 12)))
@wide
def moved_along(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return functools.reduce(torch.add, [F.pad(x, (step, 0))[:, : x.shape[1]] for step in range(5)])


@rewrite("way from number to number, by diff", lambda x: (x[:, 1:] - x[:, :-1]).abs().sum(1), shapes((4, 9)))
@wide
def by_diff(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return torch.diff(x, dim=1).abs().sum(1)


@rewrite("double sum of a product, rows first", wide(lambda a, w, b: torch.einsum("ni,ij,nj->n", a, w, b)), shapes((6, 4), (4, 5), (6, 5)))
@wide
def rows_first(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == w.dim() == b.dim() == 2, a.shape[1] == len(w), w.shape[1] == b.shape[1], len(a) == len(b))
    return torch.linalg.vecdot(torch.mm(b, w.T), a, dim=1)


@rewrite("product, the second transposed and in blocks of rows and columns", torch.mm, shapes((7, 9), (9, 6)))
@wide
def blocks_of_rows_and_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    turned = b.T.contiguous()
    rows = [torch.cat([F.linear(one, two) for two in turned.split(4)], 1) for one in a.split(3)] if len(turned) else []
    return torch.cat(rows) if rows else a.new_zeros(len(a), b.shape[1])


@rewrite("product, its way back by hand in float32", torch.mm, shapes((6, 8), (8, 5)))
def its_way_back(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        one, two = (each.float() for each in saved)
        return (g.float() @ two.T).to(g.dtype), (one.T @ g.float()).to(g.dtype)

    return function(lambda a, b: ((a.float() @ b.float()).to(a.dtype), (a, b)), backward)(a, b)


@rewrite("product under autocast", wide(lambda x, w: torch.mm(x.bfloat16(), w.bfloat16())), shapes((5, 12), (12, 7)))
@wide
def under_autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    with torch.autocast("cpu", torch.bfloat16):
        return x @ w


@wide
def _step_of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(len(w) <= 4096)  # with 16411 filters torch 2.13 ends the process in the backward pass
    return F.conv1d(x, w, stride=2)


@rewrite("convolution with a step of two, as one product", _step_of_two, shapes((2, 3, 11), (4, 3, 3)))
@wide
def step_of_two(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, x.shape[2] >= 3, x.numel() > 0)
    windows = x.unfold(2, 3, 2).permute(0, 2, 1, 3).flatten(2)
    return (windows @ w.flatten(1).T).transpose(1, 2)


@wide
def _round_a_ring(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == h.shape, x.shape[1] > 0)
    return torch.stack([(x * h.flip(1).roll(step + 1, 1)).sum(1) for step in range(x.shape[1])], 1)


@rewrite("convolution round a ring, by a table of places", _round_a_ring,
         shapes((3, 8), (3, 8)))  # fmt: skip
@wide
def by_a_table_of_places(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == h.shape, x.shape[1] > 0)
    size = x.shape[1]
    at = (torch.arange(size)[:, None] - torch.arange(size)) % size
    return torch.einsum("nj,nij->ni", x, h[:, at])


@rewrite("largest and smallest in one pass", lambda x: (x.amax(1), x.amin(1)), shapes((5, 7)))
def in_one_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    low, high = torch.aminmax(x, dim=1)
    return high, low


@rewrite("spread of rows, sorted", lambda x: x.amax(1) - x.amin(1), shapes((5, 8)))
def spread_sorted(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    order = x.sort(1).values
    return order[:, -1] - order[:, 0]


@rewrite("how many are above a quarter, by those that are not", wide(lambda x: (x > 0.25).sum(1).to(x.dtype)), shapes((5, 9)), gradients=False)
@wide
def above_a_quarter(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return (~(x <= 0.25) & ~x.isnan()).float().sum(1)


@wide
def _eight_bits(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    return (x / scale).round() * scale


@rewrite("eight bits, scale of each row, and back", _eight_bits,
         shapes((4, 8)), gradients=False)  # fmt: skip
@wide
def eight_bits_and_back(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    scale = torch.maximum(x.amax(1), -x.amin(1)).clamp(min=1e-8)[:, None] / 127
    return torch.round(x / scale) * scale


@rewrite("product with codes of eight bits, a scale for each row of them", wide(lambda x, c, s: x @ (c.to(x.dtype) * s[:, None]).T),
         lambda dtype: (*shapes((4, 6))(dtype), whole(5, 6, most=128, least=-127).to(torch.int8), shapes((5,))(dtype)[0].abs()))  # fmt: skip
@wide
def scaled_behind(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == c.dim() == 2, x.shape[1] == c.shape[1], s.shape == c.shape[:1])
    return F.linear(x, c.float()) * s


@rewrite("codes of four bits looked up in sixteen levels", wide(lambda levels, c, s: levels[c] * s.repeat_interleave(4, 1)),
         lambda dtype: (shapes((16,))(dtype)[0], whole(3, 8, most=16), *shapes((3, 2))(dtype)))  # fmt: skip
def sixteen_levels(levels: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(c.dim() == 2, levels.shape == (16,), s.shape == (len(c), c.shape[1] // 4), c.shape[1] % 4 == 0)
    flat = levels.float().index_select(0, c.flatten()).view(len(c), -1, 4)
    return (flat * s.float()[:, :, None]).flatten(1).to(levels.dtype)


@rewrite("rows of a table weighed and added", wide(lambda t, at, w: torch.einsum("nk,nkd->nd", w, t[at])),
         lambda dtype: (*shapes((6, 5))(dtype), whole(4, 3, most=6), *shapes((4, 3))(dtype)))  # fmt: skip
def weighed_and_added(t: torch.Tensor, at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(at.dim() == t.dim() == 2, at.shape == w.shape)
    total, rows = torch.zeros(len(at), t.shape[1]), t.float()
    for place in range(at.shape[1]):
        total = total + rows[at[:, place]] * w[:, place : place + 1].float()
    return total.to(t.dtype)


@rewrite("last row of each sequence", lambda x, ends: x[torch.arange(len(x)), ends], lambda dtype: (*shapes((4, 6, 3))(dtype), whole(4, most=6)))
def last_row(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, ends.shape == x.shape[:1], bool(((ends >= 0) & (ends < x.shape[1])).all()))
    return x.flatten(0, 1).index_select(0, torch.arange(len(x)) * x.shape[1] + ends)


@rewrite("sums of groups in a copy of what was there", lambda base, at, x: base.index_add(0, at, x),
         lambda dtype: (*shapes((5, 3))(dtype), whole(9, most=5), *shapes((9, 3))(dtype)))  # fmt: skip
def in_a_copy(base: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(base.dim() == x.dim() == 2, base.shape[1] == x.shape[1], len(at) == len(x), bool(((at >= 0) & (at < len(base))).all()))
    out = base.float().clone()
    out.index_put_((at,), x.float(), accumulate=True)
    return out.to(base.dtype)


@rewrite("polynomial with two coefficients at a time", wide(lambda x, c: sum(c[k] * x**k for k in range(5))), shapes((4, 6), (5,)))
@wide
def two_at_a_time(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(c.shape == (5,))
    square = x * x
    return torch.addcmul(c[0] + c[1] * x, square, c[2] + c[3] * x + c[4] * square)


@rewrite("triangle of a square, above and on the diagonal", lambda x: x.triu(), shapes((5, 5)))
def above_and_on(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.masked_fill(torch.arange(x.shape[1]) < torch.arange(len(x))[:, None], 0)


@rewrite("rows of two tensors in turn", lambda a, b: torch.stack([a, b], 1).flatten(0, 1), shapes((4, 3), (4, 3)))
def in_turn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == b.shape)
    out = a.new_empty(2 * len(a), a.shape[1])
    out[0::2], out[1::2] = a, b
    return out
