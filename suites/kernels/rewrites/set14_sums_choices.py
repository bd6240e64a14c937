"""The fourteenth frozen set of healthy kernels, second part: sums, products, windows, choices. Committed before any was tried.

Three were mended, which were accused rightly: one stopped where there are no rows, one at an odd place in memory, and an exponential and a part of a
gradient overflowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("sums before each number, blocks of four with a carry", _wide(lambda x: F.pad(x.cumsum(-1), (1, 0))[:, :-1]), shapes((4, 11)))
def with_a_carry(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    carry, made = torch.zeros(len(x), 1), []
    for block in x.float().split(4, 1):
        inside = F.pad(block.cumsum(1), (1, 0)) + carry
        made.append(inside[:, :-1])
        carry = inside[:, -1:]
    return torch.cat(made, 1).to(x.dtype)


@rewrite("deviation of windows of four, from four columns", _wide(lambda x: (x.unfold(-1, 4, 1).var(-1) + 1e-3).sqrt()), shapes((4, 12)))
def four_columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 4)
    columns = [x.float()[:, place : x.shape[1] - 3 + place] for place in range(4)]
    mean = (columns[0] + columns[1] + columns[2] + columns[3]) / 4
    return (sum((each - mean).square() for each in columns) / 3 + 1e-3).sqrt().to(x.dtype)


@rewrite("place of the largest, the first of equals, NaN before all", lambda x: x.argmax(-1), shapes((5, 9)))
def first_of_equals(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    lost = x.isnan()
    found = torch.where(lost.any(-1, keepdim=True), lost, x == x.amax(-1, keepdim=True))
    return torch.where(found, torch.arange(x.shape[1]), x.shape[1]).amin(-1)


@rewrite("rows twice, by a wider view", lambda x: x.repeat(2, 1), shapes((4, 6)))
def wider_view(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.expand(2, *x.shape).reshape(2 * len(x), x.shape[1])


@rewrite("absolute distances, a column at a time", _wide(lambda a, b: torch.cdist(a, b, p=1.0)), shapes((5, 4), (6, 4)))
def a_column_at_a_time(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1])
    made = torch.zeros(len(a), len(b))
    for one, two in zip(a.float().unbind(1), b.float().unbind(1), strict=True):
        made = made + (one[:, None] - two).abs()
    return made.to(a.dtype)


@rewrite("a form of two vectors, the other product first", _wide(lambda x, w, y: ((x @ w) * y).sum(-1)), shapes((5, 6), (6, 4), (5, 4)))
def other_product_first(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == y.dim() == 2 and x.shape[1] == len(w) and w.shape[1] == y.shape[1] and len(x) == len(y))
    return (x.float() * (y.float() @ w.float().T)).sum(-1).to(x.dtype)


@rewrite("mean of outer products, as one product", _wide(lambda x, y: torch.einsum("sic,sjd->ijcd", x, y) / len(x)), shapes((4, 3, 2), (4, 5, 3)))
def as_one_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 3 and len(x) == len(y) > 0)
    made = x.float().flatten(1).T @ y.float().flatten(1) / len(x)
    return made.view(*x.shape[1:], *y.shape[1:]).transpose(1, 2).to(x.dtype)


@rewrite("triangles of pairs, channel by channel", _wide(lambda x, y: torch.einsum("ikc,jkc->ijc", x, y)), shapes((4, 5, 3), (6, 5, 3)))
def channel_by_channel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 3 and x.shape[1:] == y.shape[1:])
    return (x.float().permute(2, 0, 1) @ y.float().permute(2, 1, 0)).permute(1, 2, 0).to(x.dtype)


@rewrite("each channel's convolution, tap by tap", lambda x, w: F.conv1d(x.float(), w.float()[:, None], groups=len(w)).to(x.dtype),
         shapes((2, 3, 9), (3, 4)))  # fmt: skip
def tap_by_tap(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and w.dim() == 2 and x.shape[1] == len(w) > 0 and x.shape[2] >= w.shape[1] > 0)
    length = x.shape[2] - w.shape[1] + 1
    return sum(x.float()[..., tap : tap + length] * w.float()[:, tap, None] for tap in range(w.shape[1])).to(x.dtype)


@rewrite("means of windows of three, as a filter", lambda x: F.avg_pool1d(x.float(), 3, 1).to(x.dtype), shapes((2, 3, 9)))
def as_a_filter(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[2] >= 3)
    return F.conv1d(x.float().flatten(0, 1)[:, None], torch.full((1, 1, 3), 1 / 3))[:, 0].view(*x.shape[:2], x.shape[2] - 2).to(x.dtype)


@rewrite("largest of pairs of columns, by a maximum of two", lambda x: F.max_pool1d(x, 2), shapes((2, 3, 8)))
def maximum_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[2] >= 2)
    length = x.shape[2] // 2 * 2
    return torch.maximum(x[..., :length:2], x[..., 1:length:2])


@rewrite("logarithms of sums from behind, step by step", _wide(lambda x: x.flip(-1).logcumsumexp(-1).flip(-1)), shapes((4, 9)))
def from_behind(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    made = [x.float()[:, -1]]
    for column in reversed(x.float().unbind(1)[:-1]):
        made.append(torch.logaddexp(made[-1], column))
    return torch.stack(made[::-1], 1).to(x.dtype)


def _means(x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4, x.shape[1]).index_add(0, segments, x.float())
    return (made / torch.bincount(segments, minlength=4).clamp(min=1)[:, None]).to(x.dtype)


@rewrite("means of segments, one after another", _means, lambda dtype: (*shapes((9, 3))(dtype), whole(9, most=4)))
def one_after_another(x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and segments.shape == x.shape[:1])
    rows = [x.float()[segments == place] for place in range(4)]
    return torch.stack([each.sum(0) / max(len(each), 1) for each in rows]).to(x.dtype)


@rewrite("a polynomial, from the highest power down", _wide(lambda x: 0.5 + x - 0.25 * x**2 + 0.125 * x**3), shapes((5, 9)))
def from_the_highest(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (0.5 + wide * (1 + wide * (-0.25 + 0.125 * wide))).to(x.dtype)


@rewrite("rotation of neighbouring pairs, as complex products", _wide(lambda x, a: torch.stack(
    [x[..., ::2] * a.cos() - x[..., 1::2] * a.sin(), x[..., ::2] * a.sin() + x[..., 1::2] * a.cos()], -1).flatten(-2)),
    shapes((5, 8), (5, 4)))  # fmt: skip
def complex_products(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == a.dim() == 2 and len(x) == len(a) and x.shape[1] == 2 * a.shape[1])
    turned = torch.view_as_complex(x.float().clone(memory_format=torch.contiguous_format).view(*a.shape, 2))
    turned = turned * torch.polar(torch.ones(a.shape), a.float())
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


@rewrite("mean of all, in two levels of sums", _wide(lambda x: x.mean()), shapes((7, 12)))
def two_levels(x: torch.Tensor) -> torch.Tensor:
    need(x.numel() > 0)
    return torch.stack([part.sum() for part in x.float().flatten().split(8)]).sum().div(x.numel()).to(x.dtype)


def _averages(x: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(x)), []
    for column in x.float().unbind(1):
        state = 0.75 * state + 0.25 * column
        made.append(state)
    return torch.stack(made, 1).to(x.dtype)


@rewrite("averages that fade, doubled in reach each pass", _averages, shapes((4, 11)))
def doubled_in_reach(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    made, fade, reach = 0.25 * x.float(), 0.75, 1
    while reach < x.shape[1]:
        made = made + fade * F.pad(made[:, :-reach], (reach, 0))
        fade, reach = fade * fade, 2 * reach
    return made.to(x.dtype)


@rewrite("experts mixed by weights, one after another", _wide(lambda x, w, g: torch.einsum("bi,eij,be->bj", x, w, g)),
         shapes((5, 4), (3, 4, 6), (5, 3)))  # fmt: skip
def experts_in_turn(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == g.dim() == 2 and w.dim() == 3 and x.shape[1] == w.shape[1] and g.shape == (len(x), len(w)))
    made = torch.zeros(len(x), w.shape[2])
    for expert, weight in zip(w.float(), g.float().unbind(1), strict=True):
        made = made + weight[:, None] * (x.float() @ expert)
    return made.to(x.dtype)


@rewrite("a weight and its low rank, added up first", _wide(lambda x, w, a, b: x @ w + (x @ a) @ b), shapes((5, 6), (6, 7), (6, 2), (2, 7)))
def added_up_first(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(all(each.dim() == 2 for each in (x, w, a, b)) and x.shape[1] == len(w) == len(a) and a.shape[1] == len(b) and w.shape[1] == b.shape[1])
    return (x.float() @ (w.float() + a.float() @ b.float())).to(x.dtype)


@rewrite("product with codes, scaled first", lambda x, q, s: ((x.float() @ q.float()) * s.float()).to(x.dtype),
         lambda dtype: (shapes((5, 8))(dtype)[0], whole(8, 6, most=8, least=-7), shapes((6,))(dtype)[0]))  # fmt: skip
def scaled_first(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == q.dim() == 2 and x.shape[1] == len(q) and s.shape == q.shape[1:])
    return (x.float() @ (q.float() * s.float())).to(x.dtype)


@rewrite("middle of a row, by a sort", lambda x: x.median(-1).values, shapes((5, 9)))
def by_a_sort(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    middle = x.sort(-1).values[:, (x.shape[1] - 1) // 2]
    return torch.where(x.isnan().any(-1), torch.nan, middle)


@rewrite("gate and value from one weight, in two products", _wide(lambda x, w: (lambda a, b: F.silu(a) * b)(*(x @ w).chunk(2, -1))),
         shapes((5, 6), (6, 8)))  # fmt: skip
def two_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w) and w.shape[1] % 2 == 0)
    wide = x.float()
    gate, value = (wide @ each for each in w.float().chunk(2, -1))
    return (gate * gate.sigmoid() * value).to(x.dtype)


@rewrite("sum over two axes, the other first", _wide(lambda x: x.sum(2).sum(1)), shapes((3, 5, 7)))
def the_other_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    return x.float().sum(1).sum(1).to(x.dtype)
