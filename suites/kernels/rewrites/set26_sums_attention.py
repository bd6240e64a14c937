"""The twenty-sixth frozen set of healthy kernels, first part: sums, products, norms, attention, scans. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("sum of rows, last column first", lambda x: x.sum(1), shapes((4, 13)))
@wide
def last_column_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = x.new_zeros(len(x))
    for column in reversed(x.unbind(1)):
        total = total + column
    return total


@rewrite("sum of rows, what each addition loses is kept", lambda x: x.sum(1), shapes((3, 11)))
@wide
def what_each_addition_loses(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, lost = x.new_zeros(len(x)), x.new_zeros(len(x))
    for column in x.unbind(1):
        step = column - lost
        more = total + step
        lost = ((more - total) - step).detach()
        total = more
    return total


@rewrite("sum of columns, as a product with ones", wide(lambda x: x.sum(0)), shapes((7, 5)))
@wide
def product_with_ones(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.new_ones(1, len(x)).mm(x)[0]


@rewrite("mean and spread of rows, joined from two halves", wide(lambda x: torch.stack(torch.var_mean(x, 1, correction=0))), shapes((4, 10)))
@wide
def joined_from_two_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    parts = x.tensor_split(2, 1)
    counts = [part.shape[1] for part in parts]
    means = [part.mean(1) for part in parts]
    squares = [(part - mean[:, None]).square().sum(1) for part, mean in zip(parts, means, strict=True)]
    gap = means[1] - means[0]
    mean = means[0] + gap * (counts[1] / x.shape[1])
    spread = squares[0] + squares[1] + gap.square() * (counts[0] * counts[1] / x.shape[1])
    return torch.stack([spread / x.shape[1], mean])


@rewrite("layer norm, rows padded to a multiple of four", wide(lambda x, w: F.layer_norm(x, x.shape[1:], w)), shapes((5, 9), (9,)))
@wide
def padded_to_a_multiple(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)
    more = -x.shape[1] % 4
    real = F.pad(torch.ones_like(x, dtype=torch.bool), (0, more))
    tile = F.pad(x, (0, more))
    mean = tile.sum(1, keepdim=True) / x.shape[1]
    even = torch.where(real, tile - mean, 0)
    spread = even.square().sum(1, keepdim=True) / x.shape[1]
    return (even * torch.rsqrt(spread + 1e-5) * F.pad(w, (0, more)))[:, : x.shape[1]]


@rewrite("rms norm, its way back by hand in float32", wide(lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)), shapes((5, 8), (8,)))
def rms_norm_way_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        up = x.float()
        by = torch.rsqrt(up.square().mean(1, keepdim=True) + 1e-5)
        return (up * by * w.float()).to(x.dtype), (x, w, by)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, by = saved
        up, over = x.float(), g.float()
        scaled = over * w.float()
        into = by * scaled - up * by.pow(3) * (scaled * up).mean(1, keepdim=True)
        return into.to(x.dtype), (over * up * by).sum(0).to(w.dtype)

    return function(forward, backward)(x, w)


@rewrite("group norm, channels last", wide(lambda x: F.group_norm(x, 2, eps=1e-5)), shapes((2, 4, 7)))
@wide
def channels_last(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.numel() > 0)
    turned = x.transpose(1, 2).contiguous().unflatten(2, (2, -1))
    mean = turned.mean((1, 3), keepdim=True)
    even = turned - mean
    made = even / (even.square().mean((1, 3), keepdim=True) + 1e-5).sqrt()
    return made.flatten(2).transpose(1, 2)


@rewrite("product, columns in three parts that are added up", torch.mm, shapes((6, 9), (9, 5)))
@wide
def three_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    return sum(torch.mm(a[:, part::3], b[part::3]) for part in range(3))  # type: ignore[return-value]


@rewrite("product of a stack, as one sum over pairs", wide(torch.bmm), shapes((3, 4, 5), (3, 5, 2)))
@wide
def sum_over_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 3, len(a) == len(b), a.shape[2] == b.shape[1])
    return (a[:, :, :, None] * b[:, None]).sum(2)


@rewrite("linear and bias, the bias as one more column", wide(F.linear), shapes((5, 6), (4, 6), (4,)))
@wide
def one_more_column(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])
    return torch.cat([x, x.new_ones(len(x), 1)], 1) @ torch.cat([w, b[:, None]], 1).T


@rewrite("two linear layers with relu between, four rows at a time",
         wide(lambda x, one, two: F.linear(F.linear(x, one).relu(), two)), shapes((9, 5), (6, 5), (3, 6)))  # fmt: skip
@wide
def four_rows_at_a_time(x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(x.dim() == one.dim() == two.dim() == 2, x.shape[1] == one.shape[1], len(one) == two.shape[1])
    rows = [torch.mm(torch.mm(part, one.T).clamp_min(0), two.T) for part in x.split(4)] if len(x) else []
    return torch.cat(rows) if rows else x.new_zeros(0, len(two))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) > 0, q.shape[1] > 0)
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v


@rewrite("attention, keys three at a time with a running largest", wide(_attention), shapes((4, 6), (7, 6), (7, 5)))
@wide
def keys_three_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) > 0, q.shape[1] > 0)
    most, total, out = q.new_full((len(q), 1), -math.inf), q.new_zeros(len(q), 1), q.new_zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(3), v.split(3), strict=True):
        scores = q @ keys.T / math.sqrt(q.shape[1])
        larger = torch.maximum(most, scores.amax(1, keepdim=True)).detach()
        by, powers = (most - larger).exp(), (scores - larger).exp()
        total, out, most = total * by + powers.sum(1, keepdim=True), out * by + powers @ values, larger
    return out / total


@rewrite("attention, keys in two parts joined by their logarithms", wide(_attention), shapes((3, 4), (8, 4), (8, 3)))
@wide
def joined_by_their_logarithms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), len(k) > 0, q.shape[1] > 0)
    parts = [part for part in torch.arange(len(k)).tensor_split(2) if len(part)]
    scores = [q @ k[part].T / math.sqrt(q.shape[1]) for part in parts]
    logs = torch.stack([each.logsumexp(1) for each in scores])
    shares = logs.softmax(0)
    return sum(share[:, None] * (each.softmax(1) @ v[part])  # type: ignore[return-value]
               for share, each, part in zip(shares, scores, parts, strict=True))  # fmt: skip


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(k) == len(v))
    later = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
    return (q @ k.T).masked_fill(later, -math.inf).softmax(1) @ v


@rewrite("causal attention, row by row", wide(_causal), shapes((6, 4), (6, 4), (6, 3)))
@wide
def row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(k) == len(v))
    rows = [(k[: row + 1] @ q[row]).softmax(0) @ v[: row + 1] for row in range(len(q))]
    return torch.stack(rows) if rows else v.new_zeros(v.shape)


@rewrite("softmax, two rows together", wide(lambda x: x.softmax(1)), shapes((5, 7)))
@wide
def two_rows_together(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return torch.cat([torch.softmax(part, 1) for part in x.split(2)]) if len(x) else x.clone()


@rewrite("softmax by powers of two", wide(lambda x: x.softmax(1)), shapes((4, 9)))
@wide
def by_powers_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    powers = torch.exp2((x - x.amax(1, keepdim=True).detach()) * math.log2(math.e))
    return powers / powers.sum(1, keepdim=True)


@rewrite("softmax, its way back by hand", wide(lambda x: x.softmax(1)), shapes((4, 8)))
@wide
def softmax_way_back(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)

    def forward(x: torch.Tensor) -> Any:
        made = torch.softmax(x, 1)
        return made.clone(), (made,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        return saved[0] * (g - (g * saved[0]).sum(1, keepdim=True))

    return function(forward, backward)(x)


def _decayed(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == a.shape)
    state, out, gate = x.new_zeros(x.shape[1]), [], a.sigmoid()
    for row, by in zip(x, gate, strict=True):
        state = by * state + row
        out.append(state)
    return torch.stack(out) if out else x.new_zeros(x.shape)


@rewrite("decayed sums, in chunks of three", wide(_decayed), shapes((8, 4), (8, 4)))
@wide
def in_chunks_of_three(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == a.shape)
    state, out = x.new_zeros(x.shape[1]), []
    for rows, by in zip(x.split(3), a.sigmoid().split(3), strict=True) if len(x) else ():
        made = [rows[0]]
        for row in range(1, len(rows)):
            made.append(by[row] * made[-1] + rows[row])
        chunk = torch.stack(made) + by.cumprod(0) * state
        state = chunk[-1]
        out.append(chunk)
    return torch.cat(out) if out else x.new_zeros(x.shape)


@rewrite("sums so far, by a product with a triangle", wide(lambda x: x.cumsum(1)), shapes((3, 8)))
@wide
def product_with_a_triangle(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, out = x.new_zeros(len(x)), []
    for begin in range(0, x.shape[1], 4):
        part = x[:, begin : begin + 4]
        sums = torch.stack([part[:, : end + 1].sum(1) for end in range(part.shape[1])], 1) + total[:, None]
        total = sums[:, -1]
        out.append(sums)
    return torch.cat(out, 1) if out else x.new_zeros(x.shape)


@rewrite("rows added to places, sorted first", wide(lambda x, at: x.new_zeros(5, x.shape[1]).index_add(0, at, x)),
         lambda dtype: (*shapes((9, 3))(dtype), whole(9, most=5)))  # fmt: skip
@wide
def sorted_first(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.shape == x.shape[:1], bool(((at >= 0) & (at < 5)).all()))
    order = at.sort(stable=True).indices
    ends = torch.bincount(at, minlength=5).cumsum(0).tolist()
    rows = x[order]
    return torch.stack([rows[begin:end].sum(0) for begin, end in zip([0, *ends[:-1]], ends, strict=True)])


@rewrite("convolution of rows, as a sum over taps", wide(lambda x, w: F.conv1d(x[:, None], w[None, None])[:, 0]), shapes((3, 12), (4,)))
@wide
def sum_over_taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 1, 0 < len(w) <= x.shape[1], len(w) < 2000)
    width = x.shape[1] - len(w) + 1
    return torch.stack([x[:, tap : tap + width] * by for tap, by in enumerate(w.unbind())]).sum(0)
