"""The twelfth frozen set of healthy kernels, fourth part: sums, products, segments, windows."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


@rewrite("sums so far, blocks of four and their carries", lambda x: x.cumsum(-1), shapes((5, 14)))
def blocks_and_carries(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    blocks = [block.cumsum(-1) for block in x.float().split(4, 1)]
    carry, made = torch.zeros(len(x), 1), []
    for block in blocks:
        made.append(block + carry)
        carry = carry + block[:, -1:]
    return torch.cat(made, 1).to(x.dtype)


@rewrite("sums from behind, turned over twice", lambda x: x.float().flip(-1).cumsum(-1).flip(-1).to(x.dtype), shapes((5, 10)))
def triangle(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, made = torch.zeros(len(x)), []
    for column in reversed(x.float().unbind(1)):
        total = total + column
        made.append(total)
    return torch.stack(made[::-1], 1).to(x.dtype) if made else x + 0


@rewrite("logarithms of sums so far, by doubling", lambda x: x.float().logcumsumexp(-1).to(x.dtype), shapes((4, 9)))
def logarithms_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made, step = x.float(), 1
    while step < x.shape[1]:
        made = torch.cat([made[:, :step], torch.logaddexp(made[:, step:], made[:, :-step])], 1)
        step *= 2
    return made.to(x.dtype)


def _segments(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (*shapes((11, 4))(dtype), whole(11, most=5))


@rewrite(
    "sums of segments, in the order of their numbers", lambda x, to: torch.zeros(5, x.shape[1]).index_add(0, to, x.float()).to(x.dtype), _segments
)
def order_of_numbers(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == x.shape[:1], not bool(((to < 0) | (to >= 5)).any()))
    order = to.argsort(stable=True)
    counts = torch.bincount(to, minlength=5).tolist()
    return torch.stack([part.sum(0) for part in x.float()[order].split(counts)]).to(x.dtype)


@rewrite("means of segments, scattered backwards", lambda x, to: (torch.zeros(5, x.shape[1]).index_add(0, to, x.float()) /
         torch.bincount(to, minlength=5).clamp(min=1)[:, None]).to(x.dtype), _segments)  # fmt: skip
def scattered_backwards(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == x.shape[:1], not bool(((to < 0) | (to >= 5)).any()))
    total = torch.zeros(5, x.shape[1]).scatter_add(0, to.flip(0)[:, None].expand(-1, x.shape[1]), x.float().flip(0))
    counts = torch.zeros(5).index_add(0, to, torch.ones(len(to)))
    return (total / counts.clamp(min=1)[:, None]).to(x.dtype)


@rewrite("product, the sum in three parts", lambda x, w: x @ w, shapes((6, 13), (13, 7)))
def sum_in_three_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w))
    parts = [some.float() @ rows.float() for some, rows in zip(x.tensor_split(3, 1), w.tensor_split(3), strict=True)]
    return torch.stack(parts).sum(0).to(x.dtype)


def _linear_forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])
    made = (x.float() @ w.float().T + b.float()).clamp(min=0).to(x.dtype)
    return made, (x, w, made)


def _linear_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w, made = saved
    slope = torch.where(made > 0, gradient.float(), 0.0)
    dw = sum((some.T @ rows.float() for some, rows in zip(slope.split(2), x.split(2), strict=True)), torch.zeros(w.shape))
    return (slope @ w.float()).to(x.dtype), dw.to(w.dtype), slope.sum(0).to(w.dtype)


rewrite("linear and relu, passed on where the result is positive", lambda x, w, b: F.relu(F.linear(x.float(), w.float(), b.float())).to(x.dtype),
        shapes((7, 6), (5, 6), (5,)))(function(_linear_forward, _linear_backward))  # fmt: skip


@rewrite("product of matrices, columns of the weight laid out anew", lambda x, w: torch.bmm(x, w), shapes((3, 4, 9), (3, 9, 5)))
def laid_out_anew(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, len(x) == len(w), x.shape[2] == w.shape[1])
    turned = w.mT.contiguous().float()
    return (x.float()[:, :, None] * turned[:, None]).sum(-1).to(x.dtype)


@rewrite("products of experts' rows, rows sorted by expert", lambda x, w, to: torch.einsum("tc,tcd->td", x.float(), w.float()[to]).to(x.dtype),
         lambda dtype: (*shapes((9, 4), (3, 4, 5))(dtype), whole(9, most=3)))  # fmt: skip
def sorted_by_expert(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, to.shape == x.shape[:1], x.shape[1] == w.shape[1], len(w) > 0, not bool(((to < 0) | (to >= len(w))).any()))
    order = to.argsort(stable=True)
    counts = torch.bincount(to, minlength=len(w)).tolist()
    made = torch.cat([rows @ each for rows, each in zip(x.float()[order].split(counts), w.float(), strict=True)])
    return made[order.argsort()].to(x.dtype)


@rewrite("experts joined by their shares", lambda x, s: (x.float() * s.float().softmax(-1)[..., None]).sum(1).to(x.dtype), shapes((6, 3, 5), (6, 3)))
def joined_by_shares(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, s.shape == x.shape[:2], s.shape[1] > 0)
    shares = s.float().softmax(-1)
    total = torch.zeros(len(x), x.shape[2])
    for each in range(s.shape[1]):
        total = torch.addcmul(total, x[:, each].float(), shares[:, each, None])
    return total.to(x.dtype)


def _bag_forward(table: torch.Tensor, places: torch.Tensor) -> Any:
    need(table.dim() == 2, places.dim() == 2, not bool(((places < 0) | (places >= len(table))).any()))
    made = torch.zeros(len(places), table.shape[1])
    for column in places.unbind(1):
        made = made + table[column].float()
    return made.to(table.dtype), (table, places)


def _bag_backward(saved: Any, gradient: torch.Tensor) -> Any:
    table, places = saved
    made = torch.zeros(table.shape)
    for column in reversed(places.unbind(1)):
        made.index_add_(0, column, gradient.float())
    return made.to(table.dtype), None


rewrite("bags of a table, added column by column", lambda table, places: table.float()[places].sum(1).to(table.dtype),
        lambda dtype: (*shapes((8, 5))(dtype), whole(6, 4, most=8)))(function(_bag_forward, _bag_backward))  # fmt: skip


@rewrite("means of windows, a window's column at a time", lambda x: F.avg_pool1d(x, 3, stride=2), shapes((2, 3, 11)))
def windows_column(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3, x.numel() > 0)
    last = (x.shape[2] - 3) // 2 * 2 + 1
    return (sum((x.float()[..., place : place + last : 2] for place in range(3)), torch.zeros(())) / 3).to(x.dtype)


@rewrite("largest of windows, of three shifts", lambda x: F.max_pool1d(x, 3, stride=1), shapes((2, 3, 9)))
def three_shifts(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3, x.numel() > 0)
    return torch.stack([x[..., place : x.shape[2] - 2 + place] for place in range(3)]).amax(0)


@rewrite("convolution as a product of patches", lambda x, w: F.conv2d(x, w, padding=1), shapes((2, 3, 5, 4), (4, 3, 3, 3)))
def product_of_patches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 4, x.shape[1] == w.shape[1], min(*x.shape, *w.shape) > 0)
    need(x.shape[2] + 2 >= w.shape[2], x.shape[3] + 2 >= w.shape[3])
    patches = F.unfold(x.float(), w.shape[2:], padding=1)
    made = w.float().flatten(1) @ patches
    return made.view(len(x), len(w), x.shape[2] + 3 - w.shape[2], -1).to(x.dtype)


@rewrite(
    "twice as many columns, from two neighbours",
    lambda x: F.interpolate(x[None].float(), scale_factor=2, mode="linear")[0].to(x.dtype),
    shapes((3, 7)),
)
def two_neighbours(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    wide = x.float()
    left = torch.cat([wide[:, :1], wide[:, :-1]], 1)
    right = torch.cat([wide[:, 1:], wide[:, -1:]], 1)
    return torch.stack([0.25 * left + 0.75 * wide, 0.75 * wide + 0.25 * right], -1).flatten(1).to(x.dtype)


@rewrite(
    "distances of rows, dimension by dimension", lambda x, y: (x.float()[:, None] - y.float()).square().sum(-1).to(x.dtype), shapes((5, 6), (7, 6))
)
def dimension_by_dimension(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.dim() == 2, x.shape[1] == y.shape[1])
    total = torch.zeros(len(x), len(y))
    for one, two in zip(x.float().unbind(1), y.float().unbind(1), strict=True):
        total = total + (one[:, None] - two) ** 2
    return total.to(x.dtype)


@rewrite("root of mean squares of all, pairwise", lambda x: x.float().square().mean().sqrt().to(x.dtype), shapes((6, 7)))
def pairwise(x: torch.Tensor) -> torch.Tensor:
    need(x.numel() > 0)
    parts = x.float().square().reshape(-1)
    while len(parts) > 1:
        parts = F.pad(parts, (0, len(parts) % 2)).view(-1, 2).sum(1)
    return (parts[0] / x.numel()).sqrt().to(x.dtype)


@rewrite("variance of columns, by a running mean", lambda x: x.float().var(0).to(x.dtype), shapes((9, 5)))
def running_mean(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1)
    mean, spread = x[0].float(), torch.zeros(x.shape[1])
    for count, row in enumerate(x[1:].float(), 2):
        step = row - mean
        mean = mean + step / count
        spread = spread + step * (row - mean)
    return (spread / (len(x) - 1)).to(x.dtype)


@rewrite("integral of a curve, weights first", lambda x: torch.trapezoid(x.float(), dx=0.5).to(x.dtype), shapes((5, 8)))
def weights_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    weights = torch.full((x.shape[1],), 0.5).index_fill(0, torch.tensor([0, x.shape[1] - 1]), 0.25)
    return (x.float() * weights).sum(-1).to(x.dtype)


@rewrite("angles of positions, as an outer product", lambda f: torch.cat([(torch.arange(12.0)[:, None] * f.float()).cos(),
         (torch.arange(12.0)[:, None] * f.float()).sin()], -1).to(f.dtype), shapes((5,)))  # fmt: skip
def outer_product(f: torch.Tensor) -> torch.Tensor:
    need(f.dim() == 1)
    angles = torch.outer(torch.arange(12, dtype=torch.float32), f.float())
    return torch.cat([angles.cos(), angles.sin()], 1).to(f.dtype)
