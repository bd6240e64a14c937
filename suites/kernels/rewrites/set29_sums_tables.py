"""The twenty-ninth frozen set of healthy kernels, second part: sums, products, scans, pictures, codes, tables. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("sum of rows, as a tree of pairs", lambda x: x.float().sum(1).to(x.dtype), shapes((4, 13)))
@wide
def tree_of_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    while x.shape[1] > 1:
        x = torch.cat([x[:, 0:-1:2] + x[:, 1::2], x[:, x.shape[1] // 2 * 2 :]], 1)
    return x.sum(1)


@rewrite("product, split over columns in three and added by a tree", lambda a, b: a @ b, shapes((5, 12), (12, 4)))
@wide
def split_over_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    parts = [one @ two for one, two in zip(a.tensor_split(3, 1), b.tensor_split(3), strict=True)]
    return parts[0] + (parts[1] + parts[2])


@rewrite("linear and silu, tiles of three rows and four columns", wide(lambda x, w, b: F.silu(F.linear(x, w, b))), shapes((7, 5), (6, 5), (6,)))
@wide
def tiles_of_three_and_four(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])
    out = torch.empty(len(x), len(w))
    for i in range(0, len(x), 3):
        for j in range(0, len(w), 4):
            tile = x[i : i + 3] @ w[j : j + 4].T + b[j : j + 4]
            out[i : i + 3, j : j + 4] = tile * torch.sigmoid(tile)
    return out


@rewrite("product with a matrix and its transpose, one triangle computed", wide(lambda x: x @ x.T), shapes((6, 5)))
@wide
def one_triangle_computed(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    rows = torch.stack([torch.mv(x, row) for row in x.unbind()]) if len(x) else x @ x.T
    lower = rows.tril(-1)
    return lower + lower.T + torch.diag(x.square().sum(1))


@rewrite("product with a low rank, the thin one first", wide(lambda x, a, b, w: x @ (w + a @ b)), shapes((4, 6), (6, 2), (2, 5), (6, 5)))
@wide
def thin_one_first(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == (len(a), b.shape[1]), a.shape[1] == len(b), x.shape[1] == len(w))
    return torch.addmm(x @ w, x @ a, b)


@rewrite(
    "distances of rows, square root of sums of squares", wide(lambda x, y: ((x[:, None] - y).square().sum(2) + 0.1).sqrt()), shapes((4, 3), (5, 3))
)
@wide
def square_root_of_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    total = torch.full((len(x), len(y)), 0.1)
    for one, two in zip(x.unbind(1), y.unbind(1), strict=True):
        total = total + (one[:, None] - two) ** 2
    return total.sqrt()


@rewrite("sums so far, blocks of four with all that was carried", wide(lambda x: x.cumsum(1)), shapes((3, 11)))
@wide
def all_that_was_carried(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out, carry = [x[:, :0]], torch.zeros_like(x[:, :1].sum(1, keepdim=True))
    for block in x.split(4, 1):
        out.append(block.cumsum(1) + carry)
        carry = carry + block.sum(1, keepdim=True)
    return torch.cat(out, 1)


@rewrite("sums before each number, moved by one", wide(lambda x: x.cumsum(1) - x), shapes((4, 7)))
@wide
def moved_by_one(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return F.pad(x, (1, 0)).cumsum(1)[:, : x.shape[1]]


def _gated_sums(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == g.shape)
    state, out, share = torch.zeros_like(x[:, :1])[:, 0] if x.shape[1] else None, [], g.sigmoid()
    for at in range(x.shape[1]):
        state = share[:, at] * state + (1 - share[:, at]) * x[:, at]
        out.append(state)
    return torch.stack(out, 1) if out else x.clone()


@rewrite("state that fades by a gate of its own, joined by doubling", wide(_gated_sums), shapes((3, 9), (3, 9)))
@wide
def joined_by_doubling(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == g.shape)
    fade, value, step = g.sigmoid(), g.neg().sigmoid() * x, 1
    while step < x.shape[1]:
        before = F.pad(value, (step, 0))[:, : x.shape[1]]
        earlier = F.pad(fade, (step, 0), value=1.0)[:, : x.shape[1]]
        value, fade, step = value + fade * before, fade * earlier, 2 * step
    return value


@rewrite("linear attention, its state kept and read", wide(lambda q, k, v: (q @ k.T).tril() @ v), shapes((6, 4), (6, 4), (6, 3)))
@wide
def state_kept_and_read(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(k) == len(v))
    state, out = torch.zeros(k.shape[1], v.shape[1]), []
    for one, two, three in zip(q.unbind(), k.unbind(), v.unbind(), strict=True):
        state = state + torch.outer(two, three)
        out.append(one @ state)
    return torch.stack(out) if out else v.clone()


@rewrite("convolution of channels, columns gathered into one product", wide(lambda x, w: F.conv1d(x, w, padding=1)), shapes((2, 3, 7), (4, 3, 3)))
@wide
def columns_gathered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, x.shape[2] > 0, x.shape[1] > 0, len(w) > 0)
    columns = F.pad(x, (1, 1)).unfold(2, 3, 1)
    return torch.einsum("ncts,ocs->not", columns, w)


@rewrite(
    "causal convolution of each channel, a tap at a time",
    wide(lambda x, w: F.conv1d(F.pad(x, (2, 0)), w[:, None], groups=len(w))),
    shapes((2, 4, 9), (4, 3)),
)
@wide
def a_tap_at_a_time(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == (x.shape[1], 3), x.shape[1] > 0)
    out = w[:, 2:] * x
    for back in (1, 2):
        out = out + w[:, 2 - back, None] * F.pad(x, (back, 0))[:, :, : x.shape[2]]
    return out


@rewrite("signal with a border that is a mirror, by flips", lambda x: F.pad(x[:, None], (2, 2), mode="reflect")[:, 0], shapes((3, 8)))
def mirror_by_flips(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 2)
    return torch.cat([x[:, 1:3].flip(1), x, x[:, -3:-1].flip(1)], 1)


@rewrite("mean of two by two with a rest, from sums and counts", wide(lambda x: F.avg_pool2d(x[:, None], 2, ceil_mode=True)[:, 0]), shapes((2, 5, 7)))
@wide
def sums_and_counts(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 0)

    def halved(y: torch.Tensor) -> torch.Tensor:
        y = F.pad(y, (0, y.shape[2] % 2, 0, y.shape[1] % 2))
        y = y[:, 0::2] + y[:, 1::2]
        return y[:, :, 0::2] + y[:, :, 1::2]

    return halved(x) / halved(torch.ones_like(x[:1])) if len(x) else halved(x)


@rewrite(
    "row stretched to ten, both neighbours weighed",
    wide(lambda x: F.interpolate(x[:, None], size=10, mode="linear", align_corners=True)[:, 0]),
    shapes((3, 6)),
)
@wide
def both_neighbours_weighed(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    at = torch.arange(10, dtype=torch.float64) * (x.shape[1] - 1) / 9
    low = at.floor().long().clamp(max=x.shape[1] - 1)
    high = (low + 1).clamp(max=x.shape[1] - 1)
    share = (at - low).float()
    return x[:, low] + share * (x[:, high] - x[:, low])


@rewrite("largest of three with a border, by moved rows", lambda x: F.max_pool1d(x[:, None], 3, 1, 1)[:, 0], shapes((3, 8)))
def by_moved_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    wide_rows = F.pad(x, (1, 1), value=-math.inf)
    return torch.maximum(torch.maximum(wide_rows[:, :-2], wide_rows[:, 1:-1]), wide_rows[:, 2:])


@rewrite("middle of a row, by the k-th smallest", lambda x: x.median(1).values, shapes((5, 7)), gradients=False)
def by_the_kth_smallest(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return torch.where(x.isnan().any(1), torch.nan, x.kthvalue((x.shape[1] + 1) // 2, 1).values)


@rewrite("rows in order, by merging two sorted halves", lambda x: x.sort(1).values, shapes((4, 9)), gradients=False)
def by_merging(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    half = x.shape[1] // 2
    return torch.cat([x[:, :half].sort(1).values, x[:, half:].sort(1).values], 1).sort(1).values


@rewrite("two largest of a row, one after the other", lambda x: x.topk(2, 1).values, shapes((5, 8)))
def one_after_the_other(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    at = x.detach().argmax(1, keepdim=True)
    rest = x.detach().scatter(1, at, -math.inf)
    # A row of -Inf alone has no second place of its own.
    second = torch.where(rest.amax(1, keepdim=True) == -math.inf, (at + 1) % x.shape[1], rest.argmax(1, keepdim=True))
    return x.gather(1, torch.cat([at, second], 1))


def _signed(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    scale = x.float().abs().amax(1, keepdim=True).clamp(min=1e-6) / 7
    return ((x.float() / scale).round().clamp(-7, 7) * scale).to(x.dtype)


@rewrite("rows in four bits and back, through codes of eight bits", _signed, shapes((4, 10)), gradients=False)
def through_codes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    up = x.float()
    scale = torch.maximum(up.amax(1), -up.amin(1)).clamp(min=1e-6)[:, None] / 7
    lost = up.isnan().any(1, keepdim=True) | up.isinf()
    code = torch.where(lost, 0, torch.round(up / scale)).clamp(-7, 7).to(torch.int8)
    return torch.where(lost, (up / scale).round().clamp(-7, 7), code.float()).mul(scale).to(x.dtype)


@rewrite("product with codes and zero points, the zero taken out of the sum", wide(lambda x, c, z, s: x @ ((c - z) * s).T),
         lambda dtype: (*shapes((3, 8))(dtype), whole(5, 8, most=16).to(dtype), whole(5, 1, most=16).to(dtype), *shapes((5, 1))(dtype)))  # fmt: skip
@wide
def zero_taken_out(x: torch.Tensor, c: torch.Tensor, z: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == c.dim() == 2, x.shape[1] == c.shape[1], z.shape == s.shape == (len(c), 1))
    return (x @ (c - 8).T - x.sum(1, keepdim=True) * (z - 8).T) * s.T


@rewrite("rows of a table in bags, added up by a count of places", wide(lambda t, at: F.embedding_bag(at, t, mode="sum")),
         lambda dtype: (*shapes((6, 4))(dtype), whole(3, 5, most=6)))  # fmt: skip
@wide
def count_of_places(t: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(t.dim() == at.dim() == 2, bool(((at >= 0) & (at < len(t))).all()), t.shape[1] > 0)
    out = torch.zeros(len(at), t.shape[1])
    for column in at.unbind(1):
        out = out + t.index_select(0, column)
    return out


@rewrite("rows of a table, gradients added up in order of places", lambda t, at: t[at], lambda dtype: (*shapes((5, 6))(dtype), whole(9, most=5)))
def in_order_of_places(t: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(t.dim() == 2, at.dim() == 1, bool(((at >= 0) & (at < len(t))).all()))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        t, at = saved
        order = at.argsort(stable=True)
        back = torch.zeros(t.shape, dtype=torch.float32)
        for place, row in zip(at[order].tolist(), g.float()[order].unbind(), strict=True):
            back[place] += row
        return back.to(t.dtype), None

    return function(lambda t, at: (t.index_select(0, at), (t, at)), backward)(t, at)


@rewrite("means of segments, by differences of places", wide(lambda x, n: torch.stack([part.mean(0) for part in x.split(n.tolist())])),
         lambda dtype: (*shapes((8, 3))(dtype), torch.tensor([3, 1, 4])))  # fmt: skip
@wide
def means_of_segments(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, n.dim() == 1, bool((n > 0).all()), int(n.sum()) == len(x), len(n) > 0)
    own = torch.repeat_interleave(torch.arange(len(n)), n)
    return torch.zeros(len(n), x.shape[1]).index_add(0, own, x) / n[:, None]


@rewrite("tokens to experts and back, sorted by expert", wide(lambda x, to, w: torch.einsum("nd,nde->ne", x, w[to])),
         lambda dtype: (*shapes((7, 4))(dtype), whole(7, most=3), *shapes((3, 4, 5))(dtype)))  # fmt: skip
@wide
def sorted_by_expert(x: torch.Tensor, to: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.shape == x.shape[:1], w.dim() == 3, w.shape[1] == x.shape[1], bool(((to >= 0) & (to < len(w))).all()))
    order = to.argsort()
    parts = x[order].split(torch.bincount(to, minlength=len(w)).tolist())
    found = torch.cat([part @ own for part, own in zip(parts, w.unbind(), strict=True)]) if len(w) else x.new_zeros(0, w.shape[2])
    return torch.zeros_like(found).index_copy(0, order, found)


def _best(x: torch.Tensor) -> torch.Tensor:
    best = x.softmax(1).topk(3, 1).values
    return best / best.sum(1, keepdim=True)


@rewrite("shares of the best three experts, made one again", wide(_best), shapes((5, 8)))
@wide
def made_one_again(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 2)
    return torch.softmax(x.topk(3, 1).values, 1)
