"""The thirtieth frozen set of healthy kernels: sums, norms, attention, pictures, tables, steps. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("logarithm of a sum of powers, by a tree of pairs", wide(lambda x: x.logsumexp(1)), shapes((4, 9)))
@wide
def by_a_tree_of_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    while x.shape[1] > 1:
        x = torch.cat([torch.logaddexp(x[:, 0:-1:2], x[:, 1::2]), x[:, x.shape[1] // 2 * 2 :]], 1)
    return x[:, 0].clone()


@rewrite("gelu, its slope in a Function", lambda x: F.gelu(x), shapes((5, 7)))
def its_slope_in_a_function(x: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor) -> Any:
        up = x.float()
        return (up * 0.5 * torch.erfc(-up * 0.5**0.5)).to(x.dtype), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        up = saved[0].float()
        density = (-0.5 * up * up).exp() / math.sqrt(2 * math.pi)
        return (g.float() * (0.5 * torch.erfc(-up * 0.5**0.5) + up * density)).to(g.dtype)

    return function(forward, backward)(x)


@rewrite("convolution of a picture, windows as columns of one product", wide(lambda x, w: F.conv2d(x, w)), shapes((2, 3, 5, 6), (4, 3, 2, 2)))
@wide
def windows_as_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 4, x.shape[1] == w.shape[1] > 0, 0 < w.shape[2] <= x.shape[2], 0 < w.shape[3] <= x.shape[3], len(w) > 0)
    windows = x.unfold(2, w.shape[2], 1).unfold(3, w.shape[3], 1)
    return torch.einsum("nchwij,ocij->nohw", windows, w)


def _spread(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(w.shape[2] < 200)  # torch ends the process with more taps
    return F.conv_transpose1d(x, w, stride=2)


@rewrite("transposed convolution of rows, taps added where they fall", wide(_spread), shapes((2, 3, 5), (3, 2, 3)))
@wide
def taps_added_where_they_fall(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == len(w) > 0, 0 < w.shape[2] < 200, w.shape[1] > 0, x.shape[2] > 0)
    out = x.new_zeros(len(x), w.shape[1], 2 * (x.shape[2] - 1) + w.shape[2])
    for tap in range(w.shape[2]):
        part = torch.einsum("nct,co->not", x, w[:, :, tap])
        out[:, :, tap : tap + 2 * x.shape[2] - 1 : 2] += part
    return out


def _sloped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k), q.shape[1] > 0, len(q) > 0)
    place = torch.arange(len(q))
    return (q @ k.T / q.shape[1] ** 0.5 - 0.25 * (place[:, None] - place).abs()).softmax(1) @ v


@rewrite("attention with a slope, keys three at a time", wide(_sloped), shapes((7, 4), (7, 4), (7, 3)))
@wide
def with_a_slope(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k), q.shape[1] > 0, len(q) > 0)
    place = torch.arange(len(q), dtype=torch.float32)
    top = torch.full((len(q), 1), -math.inf)
    total, out = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for begin in range(0, len(k), 3):
        part = slice(begin, begin + 3)
        scores = q @ k[part].T * q.shape[1] ** -0.5 - (place[:, None] - place[part]).abs() / 4
        new = torch.maximum(top, scores.detach().amax(1, keepdim=True))
        fade, powers = (top - new).exp(), (scores - new).exp()
        total, out, top = total * fade + powers.sum(1, keepdim=True), out * fade + powers @ v[part], new
    return out / total


def _means(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, n.shape == x.shape[:1], bool(((n >= 1) & (n <= x.shape[1])).all()))
    return torch.stack([row[:length].mean(0) for row, length in zip(x, n.tolist(), strict=True)]) if len(x) else x.sum(1)


@rewrite("means of sentences, what fills up replaced by zero", wide(_means), lambda dtype: (*shapes((3, 6, 4))(dtype), torch.tensor([6, 2, 4])))
@wide
def replaced_by_zero(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, n.shape == x.shape[:1], bool(((n >= 1) & (n <= x.shape[1])).all()))
    hidden = torch.arange(x.shape[1]) >= n[:, None]
    return x.masked_fill(hidden[:, :, None], 0).sum(1) / n[:, None]


@rewrite("largest of a row, the gradient to its first place", lambda x: x.max(1).values, shapes((5, 8)))
def to_its_first_place(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.gather(1, x.detach().argmax(1, keepdim=True))[:, 0]


@rewrite("sums before each number, rows filled up and taken down a tree", wide(lambda x: x.cumsum(1) - x), shapes((3, 7)))
@wide
def taken_down_a_tree(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)

    def before(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 2:
            return torch.zeros_like(x)
        filled = F.pad(x, (0, x.shape[1] % 2))
        pairs = before(filled[:, 0::2] + filled[:, 1::2])
        return torch.stack([pairs, pairs + filled[:, 0::2]], 2).flatten(1)[:, : x.shape[1]]

    return before(x)


@rewrite(
    "cross entropy with soft labels, the logarithm taken out", wide(lambda x, t: -(t.softmax(1) * x.log_softmax(1)).sum(1)), shapes((4, 6), (4, 6))
)
@wide
def logarithm_taken_out(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    apart = x - x.detach().amax(1, keepdim=True)
    return apart.exp().sum(1).log() - torch.linalg.vecdot(t.softmax(1), apart)


@rewrite("smooth loss, by squares below one and lines above", wide(lambda x, y: F.smooth_l1_loss(x, y, reduction="none")), shapes((4, 5), (4, 5)))
@wide
def squares_and_lines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    away = (x - y).abs()
    low = away.clamp(max=1)
    return low * (away - 0.5 * low)


def _coded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w), x.shape[1] > 0, len(x) > 0, bool(x.isfinite().all()))
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-3) / 127
    return ((x / scale).round() @ w) * scale


@rewrite("product of rows in codes, the scale multiplied in first", wide(_coded), shapes((3, 7), (7, 4)), gradients=False)
@wide
def scale_multiplied_in_first(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w), x.shape[1] > 0, len(x) > 0, bool(x.isfinite().all()))
    scale = torch.maximum(x.amax(1), -x.amin(1)).clamp(min=1e-3)[:, None] / 127
    return (torch.round(x / scale) * scale) @ w


@rewrite("picture twice as large, by products with two matrices",
         wide(lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bilinear", align_corners=False)[:, 0]), shapes((2, 4, 5)))  # fmt: skip
@wide
def products_with_two_matrices(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 0)

    def matrix(size: int) -> torch.Tensor:
        at = ((torch.arange(2 * size) + 0.5) / 2 - 0.5).clamp(0, size - 1)
        return (1 - (at[:, None] - torch.arange(size)).abs()).clamp(min=0)

    return torch.einsum("ih,nhw,jw->nij", matrix(x.shape[1]), x, matrix(x.shape[2]))


@rewrite("rope of pairs, as complex numbers", wide(lambda x, a: torch.stack([x[:, 0::2] * a.cos() - x[:, 1::2] * a.sin(),
                                                                            x[:, 0::2] * a.sin() + x[:, 1::2] * a.cos()], 2).flatten(1)),
         shapes((4, 6), (4, 3)))  # fmt: skip
@wide
def as_complex_numbers(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, a.shape == (len(x), x.shape[1] // 2), x.shape[1] % 2 == 0)
    return torch.stack([x[:, 0::2] * a.cos() - a.sin() * x[:, 1::2], torch.addcmul(x[:, 1::2] * a.cos(), x[:, 0::2], a.sin())], 2).reshape(x.shape)


@rewrite("squared distances of rows, a row at a time", wide(lambda x, y: (x[:, None] - y).square().sum(2)), shapes((4, 5), (6, 5)))
@wide
def a_row_at_a_time(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    return torch.stack([torch.linalg.vecdot(row - y, row - y) for row in x.unbind()]) if len(x) else x.sum(1)[:, None] + y.sum(1)


@rewrite("rows of a table without padding's gradient, a where", lambda t, at: F.embedding(at, t, padding_idx=0),
         lambda dtype: (*shapes((5, 4))(dtype), whole(3, 4, most=5)))  # fmt: skip
def without_paddings_gradient(t: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(t.dim() == 2, bool(((at >= 0) & (at < len(t))).all()))
    first = torch.where((torch.arange(len(t)) == 0)[:, None], t.detach(), t)
    return first[at]


@rewrite("shares up to seven tenths, by a limit for each row", lambda x: _nucleus(x), shapes((4, 6)), gradients=False)
def by_a_limit_for_each_row(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = x.float().softmax(1)
    ranked = shares.sort(1, descending=True)
    kept = torch.empty_like(shares).scatter_(1, ranked.indices, ((ranked.values.cumsum(1) - ranked.values) < 0.7).float())
    return torch.where(kept > 0, shares, 0).to(x.dtype)


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares, order = x.float().softmax(1).sort(1, descending=True)
    return torch.zeros_like(shares).scatter(1, order, torch.where(shares.cumsum(1) - shares < 0.7, shares, 0)).to(x.dtype)


@rewrite("two halves of a product, the way back of one operator each", wide(lambda x, a, b: x @ torch.cat([a, b], 1)), shapes((4, 5), (5, 3), (5, 2)))
@wide
def two_halves_of_a_product(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(a) == len(b))
    out = torch.empty(len(x), a.shape[1] + b.shape[1])
    out[:, : a.shape[1]] = x @ a
    out[:, a.shape[1] :] = x @ b
    return out


@rewrite(
    "rms norm of what is left and its sum, columns in halves", wide(lambda x, r: F.rms_norm(x - r, x.shape[1:], eps=1e-5)), shapes((4, 10), (4, 10))
)
@wide
def columns_in_halves(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == r.shape, x.shape[1] > 0)
    left = x - r
    one, two = left.tensor_split(2, 1)
    square = (torch.linalg.vecdot(one, one) + torch.linalg.vecdot(two, two)) / x.shape[1]
    return left / (square + 1e-5).sqrt()[:, None]


@rewrite("state of a filter of two steps, by a matrix each", wide(lambda x: _filtered(x)), shapes((3, 8)))
@wide
def by_a_matrix_each(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    matrix, state, out = torch.tensor([[0.5, -0.25], [1.0, 0.0]]), torch.zeros(2, len(x)), []
    for column in x.unbind(1):
        state = matrix @ state + torch.stack([column, torch.zeros_like(column)])
        out.append(state[0])
    return torch.stack(out, 1) if out else x.clone()


def _filtered(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    one = two = torch.zeros(len(x), dtype=x.dtype)
    out = []
    for column in x.unbind(1):
        one, two = column + 0.5 * one - 0.25 * two, one
        out.append(one)
    return torch.stack(out, 1) if out else x.clone()


@rewrite("moving largest of four, in two steps", lambda x: F.max_pool1d(x[:, None], 4, 1)[:, 0], shapes((3, 9)))
def in_two_steps(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 4, len(x) > 0)
    two = torch.maximum(x[:, :-1], x[:, 1:])
    return torch.maximum(two[:, :-2], two[:, 2:])
