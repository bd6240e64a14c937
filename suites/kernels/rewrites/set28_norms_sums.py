"""The twenty-eighth frozen set of healthy kernels, first part: norms, sums, scans, products, pictures. Committed before any was tried."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, wide

F = torch.nn.functional


@rewrite("layer norm with weight and bias, both sums of a tile at once", wide(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)),
         shapes((5, 12), (12,), (12,)))  # fmt: skip
@wide
def both_sums_of_a_tile(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == b.shape == x.shape[1:], x.shape[1] > 0)
    count, mean, square = 0, torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1])
    for tile in x.split(5, 1):
        own = tile.mean(1, keepdim=True)
        total = count + tile.shape[1]
        square = square + (tile - own).square().sum(1, keepdim=True) + (own - mean).square() * (count * tile.shape[1] / total)
        mean = mean + (own - mean) * (tile.shape[1] / total)
        count = total
    return torch.addcmul(b, (x - mean) * (square / count + 1e-5).rsqrt(), w)


@rewrite("layer norm, its way back in one Function", wide(lambda x, w: F.layer_norm(x, x.shape[1:], w)), shapes((4, 9), (9,)))
def way_back_in_one_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        apart = x.float() - x.float().mean(1, keepdim=True)
        inverse = (apart.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return (apart * inverse * w.float()).to(x.dtype), (apart * inverse, inverse, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        unit, inverse, w = saved
        inner = g.float() * w.float()
        along = (inner * unit).mean(1, keepdim=True)
        back = (inner - inner.mean(1, keepdim=True) - unit * along) * inverse
        return back.to(g.dtype), (g.float() * unit).sum(0).to(w.dtype)

    return function(forward, backward)(x, w)


@rewrite("instance norm, pictures as rows", wide(lambda x: F.instance_norm(x)), shapes((2, 3, 4, 5)))
@wide
def pictures_as_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[2] * x.shape[3] > 1)
    rows = x.flatten(2)
    apart = rows - rows.sum(2, keepdim=True) / rows.shape[2]
    spread = torch.linalg.vecdot(apart, apart).unsqueeze(2) / rows.shape[2]
    return (apart / (spread + 1e-5).sqrt()).view_as(x)


@rewrite("rms norm whose weight is one more, halves of a row", wide(lambda x, w: F.rms_norm(x, x.shape[1:], eps=1e-6) * (1 + w)),
         shapes((4, 10), (10,)))  # fmt: skip
@wide
def halves_of_a_row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 1)
    sums = sum(half.square().sum(1, keepdim=True) for half in x.tensor_split(2, 1))
    unit = x * torch.rsqrt(sums / x.shape[1] + 1e-6)
    return unit + unit * w


@rewrite("sums of squares of columns, rows four at a time", wide(lambda x: x.square().sum(0)), shapes((11, 6)))
@wide
def rows_four_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = torch.zeros(x.shape[1])
    for tile in x.split(4):
        total = total + torch.einsum("ij,ij->j", tile, tile)
    return total


@rewrite("mean of absolute numbers, in float64", wide(lambda x: x.abs().mean(1)), shapes((4, 13)))
def in_float64(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return (x.double().abs().sum(1) / x.shape[1]).to(x.dtype) if x.shape[1] else x.abs().mean(1)


@rewrite("sum of a cube, plane after plane", wide(lambda x: x.sum((0, 2))), shapes((5, 4, 6)))
@wide
def plane_after_plane(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    total = torch.zeros(x.shape[1])
    for plane in x.unbind(2):
        total = total + plane.sum(0)
    return total


@rewrite("sum of a row, every third number together", wide(lambda x: x.sum(1)), shapes((4, 11)))
@wide
def every_third_number_together(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x[:, 0::3].sum(1) + x[:, 1::3].sum(1) + x[:, 2::3].sum(1)


@rewrite("sum from behind, turned over", wide(lambda x: x.sum(1, keepdim=True) - x.cumsum(1) + x), shapes((3, 8)))
@wide
def turned_over(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.flip(1).cumsum(1).flip(1)


@rewrite("sums so far in logarithms, as a matrix", wide(lambda x: x.logcumsumexp(1)), shapes((3, 7)))
@wide
def logarithms_as_a_matrix(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    upto = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return x[:, None, :].expand(-1, x.shape[1], -1).masked_fill(~upto, -torch.inf).logsumexp(2) if x.shape[1] else x.clone()


@rewrite("largest so far, by doubled steps", lambda x: x.cummax(1).values, shapes((3, 9)), gradients=False)
def largest_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    step, out = 1, x.clone()
    while step < x.shape[1]:
        out = torch.cat([out[:, :step], torch.maximum(out[:, step:], out[:, :-step])], 1)
        step *= 2
    return out


def _moving(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, share.shape == x.shape[1:])
    keep, state, out = share.sigmoid(), torch.zeros_like(share), []
    for row in x.unbind():
        state = keep * state + (1 - keep) * row
        out.append(state)
    return torch.stack(out) if out else x.clone()


@rewrite("moving mean, by powers of its share", wide(_moving), shapes((6, 4), (4,)))
@wide
def by_powers_of_its_share(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, share.shape == x.shape[1:])
    keep, out = torch.sigmoid(share), []
    for at in range(1, len(x) + 1):
        powers = keep ** torch.arange(at - 1, -1, -1)[:, None]
        out.append((powers * torch.sigmoid(-share) * x[:at]).sum(0))
    return torch.stack(out) if out else x.clone()


@rewrite("product of two lower triangles' rows, column by column", wide(lambda a, b: a.tril() @ b.tril()), shapes((6, 6), (6, 6)))
@wide
def lower_triangles_column_by_column(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape == b.shape, a.shape[0] == a.shape[1])
    columns = [F.pad(a[:, at:].tril(-at) @ b[at:, at], (0, 0)) for at in range(len(a))]
    return torch.stack(columns, 1) if columns else a.clone()


@rewrite("product with a transposed second one, outer products added up", wide(lambda a, b: a @ b.T), shapes((4, 7), (5, 7)))
@wide
def outer_products_added_up(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[1])
    total = torch.zeros(len(a), len(b))
    for one, two in zip(a.unbind(1), b.unbind(1), strict=True):
        total = total + torch.outer(one, two)
    return total


@rewrite("bilinear form of rows, second factor first", wide(lambda x, w, y: ((x @ w) * y).sum(1)), shapes((4, 5), (5, 6), (4, 6)))
@wide
def second_factor_first(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == y.dim() == 2, x.shape[1] == len(w), w.shape[1] == y.shape[1], len(x) == len(y))
    return torch.linalg.vecdot(x, y @ w.T)


@rewrite("product of a stack, columns lie first in memory", wide(lambda a, b: torch.bmm(a, b)), shapes((3, 4, 5), (3, 5, 6)))
@wide
def columns_lie_first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 3, len(a) == len(b), a.shape[2] == b.shape[1])
    return torch.bmm(b.mT, a.mT).mT


@rewrite("powers of a decay times rows, in a loop", wide(lambda x, d: x * d.sigmoid()[None] ** torch.arange(len(x))[:, None]), shapes((5, 4), (4,)))
@wide
def powers_in_a_loop(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, d.shape == x.shape[1:])
    factor, out = torch.ones_like(d), []
    for row in x.unbind():
        out.append(row * factor)
        factor = factor * d.sigmoid()
    return torch.stack(out) if out else x.clone()


@rewrite("largest of two by two, rows first", lambda x: F.max_pool2d(x, 2), shapes((2, 3, 6, 8)))
def rows_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[2] > 1, x.shape[3] > 1, x.shape[1] > 0)
    high, broad = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    tiles = x[:, :, :high, :broad].unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4).flatten(4)
    return tiles.gather(4, tiles.argmax(4, keepdim=True)).squeeze(4)


@rewrite("convolution of channels one by one, as shifted products", wide(lambda x, w: F.conv1d(x, w[:, None], groups=len(w))),
         shapes((2, 3, 9), (3, 4)))  # fmt: skip
@wide
def channels_one_by_one(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, x.shape[1] == len(w) > 0, 0 < w.shape[1] <= x.shape[2])
    return (x.unfold(2, w.shape[1], 1) * w[:, None]).sum(3)


@rewrite("convolution with holes, by every second column", wide(lambda x, w: F.conv1d(x, w, dilation=2)), shapes((2, 3, 11), (4, 3, 3)))
@wide
def holes_by_every_second_column(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1] > 0, w.shape[2] > 0, len(w) > 0, x.shape[2] >= 2 * w.shape[2] - 1)
    width = x.shape[2] - 2 * (w.shape[2] - 1)
    return sum(torch.einsum("oi,bit->bot", w[:, :, tap], x[:, :, 2 * tap : 2 * tap + width]) for tap in range(w.shape[2]))


@rewrite("four neighbours of a pixel, as a sum of moved pictures", wide(lambda x: F.conv2d(F.pad(x[:, None], (1, 1, 1, 1)), _CROSS)[:, 0]),
         shapes((2, 5, 6)))  # fmt: skip
@wide
def sum_of_moved_pictures(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    up, left = F.pad(x, (0, 0, 1, 1)), F.pad(x, (1, 1, 0, 0))
    return up[:, :-2] + up[:, 2:] + left[:, :, :-2] + left[:, :, 2:] - 4 * x


_CROSS = torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]])


@rewrite("rows between rows, a share of each", wide(lambda x, y, s: torch.lerp(x, y, s.sigmoid()[:, None])), shapes((4, 5), (4, 5), (4,)))
@wide
def a_share_of_each(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, s.shape == x.shape[:1])
    return torch.sigmoid(-s)[:, None] * x + torch.sigmoid(s)[:, None] * y


@rewrite("cosine waves of features, angles taken down to one turn", wide(lambda x, w: (x @ w).cos() * 0.5), shapes((4, 3), (3, 6)))
@wide
def taken_down_to_one_turn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    half = (x.double() @ w.double()) / 2
    return (0.5 - half.sin().square()).float()


@rewrite("trace of a product, without the product", wide(lambda a, b: (a @ b).diagonal().sum()), shapes((5, 4), (4, 5)))
@wide
def without_the_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape == b.shape[::-1])
    return (a * b.T).sum()


@rewrite("columns made of length one by a weight each, lengths in float64", wide(lambda v, g: v * (g / (v.norm(dim=0) + 1e-4))), shapes((6, 4), (4,)))
def lengths_in_float64(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, g.shape == v.shape[1:])
    length = torch.linalg.vector_norm(v.double(), dim=0)
    return (v.double() / (length + 1e-4) * g.double()).to(v.dtype)


@rewrite("two thirds of a row and one of the next, by a product", wide(lambda x: (2 * x[:-1] + x[1:]) / 3), shapes((6, 5)))
@wide
def two_thirds_of_a_row(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    weights = 2 * torch.eye(len(x) - 1, len(x)) + F.pad(torch.eye(len(x) - 1), (1, 0))
    return weights @ x / 3
