"""The eleventh frozen set of healthy kernels, fourth part: products, convolutions, scans, segments, complex numbers.

One was mended, which was accused rightly: Inf less Inf made NaN of a whole segment, and not of one number.
"""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.float() @ w.float()).to(x.dtype)


def _matrices(x: torch.Tensor, w: torch.Tensor) -> None:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w))


@rewrite("product, four parts of the sum in a tree", _product, shapes((5, 19), (19, 6)))
def in_a_tree(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _matrices(x, w)
    a, b, c, d = (one @ two for one, two in zip(x.float().tensor_split(4, 1), w.float().tensor_split(4, 0), strict=True))
    return ((a + b) + (c + d)).to(x.dtype)


@rewrite("product, tiles of three by four by eight", _product, shapes((7, 21), (21, 9)))
def tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _matrices(x, w)
    made = torch.zeros(len(x), w.shape[1])
    for row in range(0, len(x), 3):
        for column in range(0, w.shape[1], 4):
            held = torch.zeros(made[row : row + 3, column : column + 4].shape)
            for inner in range(0, len(w), 8):
                held = held + x[row : row + 3, inner : inner + 8].float() @ w[inner : inner + 8, column : column + 4].float()
            made[row : row + 3, column : column + 4] = held
    return made.to(x.dtype)


@rewrite("products of batches, multiplied and added", lambda x, y: torch.bmm(x.float(), y.float()).to(x.dtype), shapes((3, 4, 6), (3, 6, 5)))
def multiplied_and_added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, y.dim() == 3, len(x) == len(y), x.shape[2] == y.shape[1])
    return (x.float()[..., None] * y.float()[:, None]).sum(2).to(x.dtype)


def _linear_forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])
    before = torch.addmm(b.float(), x.float(), w.float().T)
    return before.clamp(min=0).to(x.dtype), (x, w, b, before > 0)


def _linear_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w, b, opened = saved
    given = gradient.float() * opened
    return (given @ w.float()).to(x.dtype), (given.T @ x.float()).to(w.dtype), given.sum(0).to(b.dtype)


rewrite("linear and relu, signs kept for the way back", lambda x, w, b: F.relu(F.linear(x.float(), w.float(), b.float())).to(x.dtype),
        shapes((5, 8), (6, 8), (6,)))(function(_linear_forward, _linear_backward))  # fmt: skip


@rewrite("convolution, windows in columns", lambda x, w: F.conv2d(x.float(), w.float(), stride=2).to(x.dtype), shapes((2, 3, 7, 6), (4, 3, 3, 2)))
def windows_in_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 4, x.shape[1] == w.shape[1], x.numel() > 0, w.numel() > 0, x.shape[2] >= w.shape[2], x.shape[3] >= w.shape[3])
    columns = F.unfold(x.float(), w.shape[2:], stride=2)
    high, wide = (x.shape[2] - w.shape[2]) // 2 + 1, (x.shape[3] - w.shape[3]) // 2 + 1
    return torch.einsum("of,bfn->bon", w.float().flatten(1), columns).unflatten(-1, (high, wide)).to(x.dtype)


@rewrite("convolution of each channel, one shift after the other",
         lambda x, w: F.conv1d(x.float(), w.float()[:, None], groups=len(w)).to(x.dtype), shapes((2, 4, 9), (4, 3)))  # fmt: skip
def one_shift(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, len(w) == x.shape[1], x.numel() > 0, w.numel() > 0, x.shape[2] >= w.shape[1])
    size = x.shape[2] - w.shape[1] + 1
    return sum(x.float()[..., place : place + size] * w.float()[:, place, None] for place in range(w.shape[1])).to(x.dtype)


@rewrite("convolution turned round, products folded", lambda x, w: F.conv_transpose1d(x.float(), w.float(), stride=2).to(x.dtype),
         shapes((2, 3, 5), (3, 4, 3)))  # fmt: skip
def folded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == len(w), x.numel() > 0, w.numel() > 0)
    parts = torch.einsum("bcn,cok->bokn", x.float(), w.float())
    size, taps = 2 * (x.shape[2] - 1) + w.shape[2], w.shape[2]
    made = torch.zeros(len(x), w.shape[1], size)
    for tap in range(taps):
        spread = torch.zeros(len(x), w.shape[1], size)
        spread[..., tap : tap + 2 * x.shape[2] - 1 : 2] = 1
        place = torch.arange(x.shape[2]) * 2 + tap
        made = made.index_add(2, place, parts[:, :, tap])
    return made.to(x.dtype)


def _scaled(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() @ (codes.float() * scale.float()[:, None]).T).to(x.dtype)


def _codes(*shape: int) -> torch.Tensor:
    return whole(*shape, most=128, least=-128).to(torch.int8)


@rewrite("product with codes of eight bits, scaled afterwards", _scaled, lambda dtype: (*shapes((5, 12))(dtype), _codes(7, 12), *shapes((7,))(dtype)))
def scaled_afterwards(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1])
    return (F.linear(x.float(), codes.float()) * scale.float()).to(x.dtype)


@rewrite("product of codes, parts of the sum in whole numbers", lambda a, b: a.int() @ b.int(), lambda dtype: (_codes(5, 17), _codes(17, 6)))
def whole_numbers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    _matrices(a, b)
    return sum(
        (one.int() @ two.int() for one, two in zip(a.split(8, 1), b.split(8, 0), strict=True)), torch.zeros(len(a), b.shape[1], dtype=torch.int)
    )


def _experts(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.einsum("rc,rcd->rd", x.float(), w.float()[chosen]).to(x.dtype)


@rewrite("experts, rows sorted by expert", _experts, lambda dtype: (*shapes((9, 5), (3, 5, 4))(dtype), whole(9, most=3)))
def sorted_by_expert(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, chosen.shape == x.shape[:1], x.shape[1] == w.shape[1], not bool(((chosen < 0) | (chosen >= len(w))).any()))
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=len(w)).tolist()
    parts = [rows @ each for rows, each in zip(x.float()[order].split(counts), w.float(), strict=True)]
    return torch.cat([x.new_zeros(0, w.shape[2]).float(), *parts])[order.argsort()].to(x.dtype)


def _so_far_forward(x: torch.Tensor) -> Any:
    need(x.dim() == 2)
    made, carry = [x[:, :0].float()], torch.zeros(len(x), 1)
    for some in x.float().split(5, 1):
        made.append(some.cumsum(1) + carry)
        carry = carry + some.sum(1, keepdim=True)
    return torch.cat(made, 1).to(x.dtype), (x,)


rewrite("sums so far in blocks, sums from behind on the way back", lambda x: x.float().cumsum(-1).to(x.dtype), shapes((3, 13)))(
    function(_so_far_forward, lambda saved, gradient: gradient.float().flip(1).cumsum(1).flip(1).to(gradient.dtype))
)


def _selective(x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(x), x.shape[2], a.shape[0]), [x[:, :0].float()]
    for place in range(x.shape[1]):
        step = F.softplus(dt[:, place].float())[..., None]
        state = state * (-step * a.float().exp()).exp() + step * x[:, place].float()[..., None]
        made.append(state.sum(-1)[:, None])
    return torch.cat(made, 1).to(x.dtype)


@rewrite("selective scan, by doubling", _selective, shapes((2, 7, 3), (2, 7, 3), (4,)))
def by_doubling(x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == dt.shape, a.dim() == 1)
    step = F.softplus(dt.float())[..., None]
    fade, held, reach = torch.exp(-step * a.float().exp()), step * x.float()[..., None], 1
    held = held.expand(*x.shape, len(a))
    while reach < x.shape[1]:
        held = torch.cat([held[:, :reach], held[:, reach:] + fade[:, reach:] * held[:, :-reach]], 1)
        fade = torch.cat([fade[:, :reach], fade[:, reach:] * fade[:, :-reach]], 1)
        reach *= 2
    return held.sum(-1).to(x.dtype)


def _gated(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(x)), [x[:, :0].float()]
    for value, gate in zip(x.float().unbind(1), g.float().sigmoid().unbind(1), strict=True):
        state = gate * state + (1 - gate) * value
        made.append(state[:, None])
    return torch.cat(made, 1).to(x.dtype)


def _gated_forward(x: torch.Tensor, g: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == g.shape)
    wide, gate, states = x.float(), g.float().sigmoid(), torch.zeros(len(x), x.shape[1] + 1)
    for place in range(x.shape[1]):
        states[:, place + 1] = torch.lerp(wide[:, place], states[:, place], gate[:, place])
    return states[:, 1:].to(x.dtype), (x, gate, states)


def _gated_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, gate, states = saved
    dx, dg, held = torch.zeros(x.shape), torch.zeros(x.shape), torch.zeros(len(x))
    for place in reversed(range(x.shape[1])):
        held = held + gradient[:, place].float()
        dx[:, place] = held * (1 - gate[:, place])
        dg[:, place] = held * (states[:, place] - x[:, place].float()) * gate[:, place] * (1 - gate[:, place])
        held = held * gate[:, place]
    return dx.to(x.dtype), dg.to(x.dtype)


rewrite("gated recurrence, its backward pass from behind", _gated, shapes((3, 9), (3, 9)))(function(_gated_forward, _gated_backward))


def _segments(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.where((place == each)[:, None], x.float(), 0.0).sum(0) for each in range(4)]).to(x.dtype)


@rewrite("sums of segments, added where they belong", _segments, lambda dtype: (*shapes((9, 5))(dtype), whole(9, most=4)))
def where_they_belong(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, place.shape == x.shape[:1], not bool(((place < 0) | (place > 3)).any()))
    return torch.zeros(4, x.shape[1]).scatter_add(0, place[:, None].expand(x.shape), x.float()).to(x.dtype)


def _shares(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    same = place[:, None] == place
    return (x.float() - x.float().expand(len(x), -1).masked_fill(~same, -torch.inf).logsumexp(-1)).exp().to(x.dtype)


@rewrite("softmax of segments, largest numbers by a reduction", _shares, lambda dtype: (*shapes((9,))(dtype), whole(9, most=3)))
def by_a_reduction(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, place.shape == x.shape, not bool(((place < 0) | (place > 2)).any()))
    most = torch.full((3,), -torch.inf).scatter_reduce(0, place, x.detach().float(), "amax")
    powers = (x.float() - most.where(most.isfinite(), 0)[place]).exp()
    return (powers / torch.zeros(3).index_add(0, place, powers)[place]).to(x.dtype)


@rewrite("means of bags of rows, the table by an embedding bag",
         lambda table, places: table.float()[places].mean(1).to(table.dtype),
         lambda dtype: (*shapes((8, 5))(dtype), whole(4, 3, most=8)))  # fmt: skip
def embedding_bag(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, places.dim() == 2, places.shape[1] > 0, not bool(((places < 0) | (places >= len(table))).any()))
    return F.embedding_bag(places, table.float(), mode="mean").to(table.dtype)


@rewrite(
    "squares of distances, a column at a time", lambda x, y: (x.float()[:, None] - y.float()).square().sum(-1).to(x.dtype), shapes((5, 6), (4, 6))
)
def column_at_a_time(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.dim() == 2, x.shape[1] == y.shape[1])
    total = torch.zeros(len(x), len(y))
    for one, two in zip(x.float().unbind(1), y.float().unbind(1), strict=True):
        total = total + torch.outer(one, torch.ones(len(y))).sub(two).square()
    return total.to(x.dtype)


def _complex(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(a.float().contiguous()) * torch.view_as_complex(b.float().contiguous()).conj()


@rewrite("one complex number times another's conjugate, real parts apart", _complex, shapes((4, 5, 2), (4, 5, 2)))
def real_parts_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 3, a.shape == b.shape, a.shape[-1] == 2)
    (p, q), (r, s) = a.float().unbind(-1), b.float().unbind(-1)
    return torch.complex(p * r + q * s, q * r - p * s)


@rewrite("outer products added over rows, as one product", lambda x, y: (x.float()[:, :, None] * y.float()[:, None]).mean(0).to(x.dtype),
         shapes((7, 4), (7, 5)))  # fmt: skip
def as_one_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.dim() == 2, len(x) == len(y), len(x) > 0)
    return torch.mm(x.float().T, y.float()).div(len(x)).to(x.dtype)
