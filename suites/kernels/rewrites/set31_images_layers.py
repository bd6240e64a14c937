"""The thirty-first frozen set of healthy kernels: pictures, layers, layouts. Committed before any was tried."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _row(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1] > 0, w.shape[2] == 3, x.shape[2] >= 3, len(w) > 0, len(x) > 0)
    return F.conv1d(x, w)


@rewrite("convolution of a row, taps one after another", wide(_row), shapes((2, 3, 8), (4, 3, 3)))
@wide
def taps_one_after_another(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1] > 0, w.shape[2] == 3, x.shape[2] >= 3, len(w) > 0, len(x) > 0)
    return sum(torch.einsum("bct,oc->bot", x[..., tap : x.shape[2] - 2 + tap], w[..., tap]) for tap in range(3))


@rewrite("convolution of a row, the channels last", wide(_row), shapes((2, 4, 7), (3, 4, 3)))
@wide
def the_channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1] > 0, w.shape[2] == 3, x.shape[2] >= 3, len(w) > 0, len(x) > 0)
    columns = x.transpose(1, 2).unfold(1, 3, 1).flatten(2)
    return (columns @ w.flatten(1).T).transpose(1, 2)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1, len(x) > 0)
    return F.avg_pool1d(x, 2, 1)


@rewrite("means of two columns that follow", wide(_pooled), shapes((2, 3, 7)))
@wide
def two_columns_that_follow(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1, len(x) > 0)
    return (x[..., :-1] + x[..., 1:]) * 0.5


def _shared(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 2, len(x) > 0)
    return F.adaptive_avg_pool1d(x, 3)


@rewrite("means of three parts of a row, from ends", wide(_shared), shapes((2, 3, 8)))
@wide
def from_ends(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 2, len(x) > 0)
    count = x.shape[2]
    return torch.stack([x[..., at * count // 3 : -(-(at + 1) * count // 3)].mean(2) for at in range(3)], 2)


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[1] % 4 == 0, x.shape[1] > 0)
    return F.pixel_shuffle(x, 2)


@rewrite("channels to pixels, one corner at a time", _shuffled, shapes((2, 4, 3, 2)))
def one_corner_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[1] % 4 == 0, x.shape[1] > 0)
    out = x.new_zeros(len(x), x.shape[1] // 4, 2 * x.shape[2], 2 * x.shape[3])
    for corner in range(4):
        out[:, :, corner // 2 :: 2, corner % 2 :: 2] = x[:, corner::4]
    return out


def _stretched(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1, len(x) > 0)
    return F.interpolate(x, scale_factor=2, mode="linear")


@rewrite("twice as many columns, quarters of neighbours", wide(_stretched), shapes((2, 3, 5)))
@wide
def quarters_of_neighbours(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1, len(x) > 0)
    before, after = torch.cat([x[..., :1], x[..., :-1]], 2), torch.cat([x[..., 1:], x[..., -1:]], 2)
    return torch.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], 3).flatten(2)


@rewrite("largest of pairs of columns, with a Function", lambda x: F.max_pool1d(x, 2), shapes((2, 3, 8)))
def pairs_of_columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1, len(x) > 0)
    pairs = x[..., : x.shape[2] // 2 * 2].unflatten(2, (-1, 2))
    best, at = pairs.max(3)
    return pairs.gather(3, at[..., None])[..., 0] if best.numel() else best


def _unit(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == w.dim() == 2, x.shape == h.shape, w.shape == (2 * x.shape[1], x.shape[1]))
    both = torch.cat([x, h], 1) @ w
    return (1 - both.sigmoid()) * h + both.sigmoid() * both.tanh()


@rewrite("a small gated unit, its two products apart", wide(_unit), shapes((3, 4), (3, 4), (8, 4)))
@wide
def two_products_apart(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == w.dim() == 2, x.shape == h.shape, w.shape == (2 * x.shape[1], x.shape[1]))
    both = torch.addmm(h @ w[x.shape[1] :], x, w[: x.shape[1]])
    gate = both.sigmoid()
    return h + gate * (both.tanh() - h)


def _gated(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    need(x.dim() == up.dim() == down.dim() == 2, x.shape[1] == len(up), up.shape[1] == 2 * len(down))
    one, two = (x @ up).chunk(2, 1)
    return (F.silu(one) * two) @ down


@rewrite("a gated layer, hidden columns two at a time", wide(_gated), shapes((4, 3), (3, 10), (5, 3)))
@wide
def hidden_columns_two_at_a_time(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    need(x.dim() == up.dim() == down.dim() == 2, x.shape[1] == len(up), up.shape[1] == 2 * len(down))
    half, total = len(down), x.new_zeros(len(x), down.shape[1])
    for at in range(0, half, 2):
        part = slice(at, min(at + 2, half))
        other = slice(half + at, half + min(at + 2, half))
        one = x @ up[:, part]
        total = total + (one * one.sigmoid() * (x @ up[:, other])) @ down[part]
    return total


def _thin(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(w) == len(a), a.shape[1] == len(b), b.shape[1] == w.shape[1])
    return x @ w + 0.5 * (x @ a @ b)


@rewrite("a layer with thin matrices, in a Function", wide(_thin), shapes((5, 4), (4, 3), (4, 2), (2, 3)))
@wide
def thin_matrices(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(w) == len(a), a.shape[1] == len(b), b.shape[1] == w.shape[1])

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, a, b, inner = saved
        back = 0.5 * (g @ b.T)
        return g @ w.T + back @ a.T, x.T @ g, x.T @ back, 0.5 * (inner.T @ g)

    def forward(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        inner = x @ a
        return torch.addmm(x @ w, inner, b, alpha=0.5), (x, w, a, b, inner)

    return function(forward, backward)(x, w, a, b)


def _wavelet(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0)
    even, odd = x[:, ::2], x[:, 1::2]
    return torch.cat([(even + odd) / 2**0.5, (even - odd) / 2**0.5], 1)


@rewrite("sums and differences of neighbours, by lifting", wide(_wavelet), shapes((3, 8)))
@wide
def by_lifting(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0)
    pairs = x.unflatten(1, (x.shape[1] // 2, 2))
    turned = x.new_tensor([[1, 1], [1, -1]]) * 0.7071067811865476
    return torch.cat([pairs[..., 0] * turned[0, 0] + pairs[..., 1] * turned[1, 0], pairs[..., 0] * turned[0, 1] + pairs[..., 1] * turned[1, 1]], 1)


@rewrite(
    "rows in another order, the way back by the order's inverse",
    lambda x, to: x[to],
    lambda dtype: (*shapes((6, 4))(dtype), torch.tensor([3, 0, 5, 1, 4, 2])),
)
def by_the_orders_inverse(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, to.dim() == 1, len(to) == len(x), bool((to.sort().values == torch.arange(len(x))).all()))
    return function(lambda x, to: (x.index_select(0, to), (to,)), lambda saved, g: (g[saved[0].argsort()], None))(x, to)


def _blended(x: torch.Tensor, cover: torch.Tensor) -> torch.Tensor:
    """Colours seen through what lies before them."""
    need(x.dim() == 2, cover.shape == x.shape, bool(((cover >= 0) & (cover <= 1)).all()))
    seen = torch.cat([torch.ones_like(cover[:1]), (1 - cover[:-1]).cumprod(0)]) if len(x) else cover
    return (x * cover * seen).sum(0)


@rewrite(
    "colours one behind another, from behind", wide(_blended), lambda dtype: (shapes((5, 3))(dtype)[0], shapes((5, 3))(dtype)[0].flip(0).sigmoid())
)
@wide
def from_behind(x: torch.Tensor, cover: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, cover.shape == x.shape, bool(((cover >= 0) & (cover <= 1)).all()))
    seen, total = torch.ones_like(x[:1].sum(0)), torch.zeros_like(x[:1].sum(0))
    for colour, share in zip(x, cover, strict=True):
        total = total + seen * share * colour
        seen = seen * (1 - share)
    return total


@rewrite("rows rolled by one, joined from two pieces", lambda x: x.roll(1, 1), shapes((3, 6)))
def joined_from_two_pieces(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return torch.cat([x[:, -1:], x[:, :-1]], 1)


def _spread(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Means of the first rows of each sentence."""
    need(x.dim() == 3, lengths.shape == x.shape[:1], bool(((lengths > 0) & (lengths <= x.shape[1])).all()))
    counts = torch.arange(x.shape[1]) < lengths[:, None]
    return x.masked_fill(~counts[..., None], 0).sum(1) / lengths[:, None]


@rewrite("means of sentences, sentence by sentence", wide(_spread), lambda dtype: (*shapes((3, 5, 2))(dtype), whole(3, most=6, least=1)))
@wide
def sentence_by_sentence(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, lengths.shape == x.shape[:1], bool(((lengths > 0) & (lengths <= x.shape[1])).all()))
    out = [rows[:end].mean(0) for rows, end in zip(x, lengths.tolist(), strict=True)]
    return torch.stack(out) if out else x.sum(1)
