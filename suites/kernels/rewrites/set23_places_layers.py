"""The twenty-third frozen set of healthy kernels, second part: places, pools, products, layers, steps. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _with(made: Callable[[torch.dtype], tuple[Any, ...]], *more: torch.Tensor) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: (*made(dtype), *more)


@rewrite("pixels taken from channels, by strides", lambda x: F.pixel_shuffle(x, 2), shapes((2, 8, 3, 4)))
def by_strides(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[1] % 4 == 0, x.numel() > 0)
    out = x.new_zeros(len(x), x.shape[1] // 4, 2 * x.shape[2], 2 * x.shape[3])
    for row in range(2):
        for column in range(2):
            out[:, :, row::2, column::2] = x[:, 2 * row + column :: 4]
    return out


@rewrite("channels of two groups in turn", lambda x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2), shapes((3, 6, 4)))
def in_turn(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.shape[1] > 0)
    half = x.shape[1] // 2
    return x[:, (torch.arange(x.shape[1]) % 2) * half + torch.arange(x.shape[1]) // 2]


@rewrite("means of three parts of a row", _wide(lambda x: F.adaptive_avg_pool1d(x, 3)), shapes((2, 4, 10)))
def means_of_three_parts(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0)
    size = x.shape[2]
    return torch.stack([x[:, :, part * size // 3 : -(-(part + 1) * size // 3)].float().mean(2) for part in range(3)], 2).to(x.dtype)


@rewrite("lengths of pairs of a row", _wide(lambda x: (x.unfold(2, 2, 2).square().sum(3) + 1e-3).sqrt()), shapes((2, 3, 8)))
def lengths_of_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] > 1)
    even = x.shape[2] // 2 * 2
    one, two = x[:, :, 0:even:2].float(), x[:, :, 1:even:2].float()
    return (one * one + two * two + 1e-3).sqrt().to(x.dtype)


@rewrite("every number twice, each way", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), shapes((2, 3, 3, 4)))
def every_number_twice(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.numel() > 0)
    return x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(len(x), x.shape[1], 2 * x.shape[2], 2 * x.shape[3])


@rewrite("rows mirrored at both ends, by places", lambda x: F.pad(x, (2, 2), mode="reflect"), shapes((2, 3, 7)))
def mirrored_by_places(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] > 2)
    last = x.shape[2] - 1
    at = torch.arange(-2, x.shape[2] + 2).abs()
    return x.index_select(2, last - (last - at).abs())


@rewrite("rows that go round, three pieces", lambda x: F.pad(x, (2, 3), mode="circular"), shapes((2, 3, 7)))
def three_pieces(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3)
    return torch.cat([x[:, :, -2:], x, x[:, :, :3]], 2)


@rewrite("pictures turned by a quarter", lambda x: torch.rot90(x, 1, (1, 2)), shapes((2, 4, 5)))
def turned_by_a_quarter(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    return x.transpose(1, 2).flip(1)


@rewrite("numbers below edges are counted", lambda x: torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.5], dtype=x.dtype)), shapes((4, 9)))
def counted_below_edges(x: torch.Tensor) -> torch.Tensor:
    return sum(((x > edge) | x.isnan()).long() for edge in (-1.0, 0.0, 1.5))  # type: ignore[return-value]


@rewrite("rows put at places, the others stay", lambda x, y, at: x.index_copy(0, at, y), _with(shapes((7, 3), (4, 3)), torch.tensor([5, 0, 3, 2])))
def others_stay(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, len(at) == len(y), x.shape[1] == y.shape[1], bool(((at >= 0) & (at < len(x))).all()), len(at.unique()) == len(at))
    out = x.clone()
    out[at] = y
    return out


@rewrite("weights of places added up, by comparing", _wide(lambda w, at: torch.zeros(5, dtype=w.dtype).index_add(0, at, w)),
      _with(shapes((12,)), whole(12, most=5)))  # fmt: skip
def places_by_comparing(w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(w.dim() == at.dim() == 1, len(w) == len(at), bool(((at >= 0) & (at < 5)).all()))
    return torch.stack([w.float()[at == place].sum() for place in range(5)]).to(w.dtype)


@rewrite("sums in logarithms so far, one after another", _wide(lambda x: x.logcumsumexp(1)), shapes((3, 8)))
def sums_in_logarithms(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    found = [x[:, 0].float()]
    for column in x.float().unbind(1)[1:]:
        found.append(torch.logaddexp(found[-1], column))
    return torch.stack(found, 1).to(x.dtype)


@rewrite("pairs of rows through a cube of weights", _wide(lambda x, y, w: F.bilinear(x, y, w)), shapes((4, 3), (4, 5), (2, 3, 5)))
def through_a_cube(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, w.dim() == 3, len(x) == len(y), w.shape[1:] == (x.shape[1], y.shape[1]), w.numel() > 0)
    return torch.stack([((x.float() @ each) * y.float()).sum(1) for each in w.float()], 1).to(x.dtype)


@rewrite("rows that vary together, of what is apart from the mean", _wide(lambda x: torch.cov(x, correction=0)), shapes((4, 9)))
def vary_together(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, len(x) > 1)
    apart = x.float() - x.float().sum(1, keepdim=True) / x.shape[1]
    return torch.einsum("it,jt->ij", apart / x.shape[1], apart).to(x.dtype)


@rewrite("rows go round against each other", _wide(lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), x.shape[1])),
      shapes((3, 8), (3, 8)))  # fmt: skip
def against_each_other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    size = x.shape[1]
    turned = torch.stack([y.float().roll(step, 1) for step in range(size)], 1)
    return torch.einsum("nk,nkt->nt", x.float(), turned).to(x.dtype)


@rewrite("sums and differences of pairs", _wide(lambda x: F.conv1d(x[:, None], torch.tensor([[[0.5, 0.5]], [[0.5, -0.5]]], dtype=x.dtype), stride=2)),
      shapes((3, 8)))  # fmt: skip
def sums_and_differences(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    even = x.shape[1] // 2 * 2
    one, two = x[:, 0:even:2].float() / 2, x[:, 1:even:2].float() / 2
    return torch.stack([one + two, one - two], 1).to(x.dtype)


@rewrite("weights by direction and length", _wide(lambda v, g: g[:, None] * v / (v.square().sum(1, keepdim=True) + 1e-6).sqrt()),
         shapes((4, 6), (4,)))  # fmt: skip
def direction_and_length(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, g.dim() == 1, len(v) == len(g))
    wide = v.float()
    return (wide * (g.float() * torch.rsqrt(torch.einsum("nd,nd->n", wide, wide) + 1e-6))[:, None]).to(v.dtype)


@rewrite("gates of channels from their means", _wide(lambda x, w: x * torch.sigmoid(x.mean(2) @ w)[:, :, None]), shapes((2, 4, 6), (4, 4)))
def gates_of_channels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, w.shape[0] == w.shape[1] == x.shape[1], x.shape[2] > 0)
    gate = torch.einsum("nct,cd->nd", x.float(), w.float()) / x.shape[2]
    return (x.float() * gate.sigmoid()[:, :, None]).to(x.dtype)


@rewrite("scale and shift of features, both from one product", _wide(lambda x, c, w: x * (1 + (c @ w).chunk(2, 1)[0]) + (c @ w).chunk(2, 1)[1]),
      shapes((4, 5), (4, 3), (3, 10)))  # fmt: skip
def both_from_one_product(x: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, c.dim() == 2, w.shape == (c.shape[1], 2 * x.shape[1]), len(x) == len(c))
    size = x.shape[1]
    scale, shift = c.float() @ w[:, :size].float(), c.float() @ w[:, size:].float()
    return (x.float() + x.float() * scale + shift).to(x.dtype)


@rewrite("highway, by the difference", _wide(lambda x, h, t: t.sigmoid() * h + (1 - t.sigmoid()) * x), shapes((4, 5), (4, 5), (4, 5)))
def highway_by_the_difference(x: torch.Tensor, h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.shape == h.shape == t.shape)
    return (t.float().sigmoid() * h.float() + torch.sigmoid(-t.float()) * x.float()).to(x.dtype)


def _added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], w.shape == q.shape[2:], k.shape[1] > 0)
    return ((q[:, :, None] + k[:, None]).tanh() @ w).softmax(2) @ v


@rewrite("attention by added rows, a query at a time", _wide(_added), shapes((2, 3, 4), (2, 5, 4), (2, 5, 4), (4,)))
def query_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], w.shape == q.shape[2:], k.shape[1] > 0, q.shape[1] > 0)
    wide, keys, values, weights = (each.float() for each in (q, k, v, w))  # once: 129 gradients would be added up in the inputs' format
    rows = []
    for row in wide.unbind(1):
        scores = (torch.tanh(row[:, None] + keys) * weights).sum(2)
        rows.append(torch.einsum("nk,nkd->nd", torch.softmax(scores, 1), values))
    return torch.stack(rows, 1).to(q.dtype)


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape == v.shape)
    return (q @ k.mT).tril() @ v


@rewrite("linear attention, a state that grows", _wide(_linear), shapes((2, 5, 3), (2, 5, 3), (2, 5, 3)))
def state_that_grows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape == v.shape, q.shape[1] > 0)
    state, rows = torch.zeros(len(q), q.shape[2], v.shape[2]), []
    for one, two, three in zip(q.float().unbind(1), k.float().unbind(1), v.float().unbind(1), strict=True):
        state = state + two[:, :, None] * three[:, None]
        rows.append((one[:, None] @ state)[:, 0])
    return torch.stack(rows, 1).to(q.dtype)


def _cell(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + h @ u)


@rewrite("simple recurrent cell, one wide product", _wide(_cell), shapes((3, 4), (3, 5), (4, 5), (5, 5)))
def one_wide_product(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == 2, len(x) == len(h), w.shape == (x.shape[1], h.shape[1]), u.shape == (h.shape[1], h.shape[1]))
    return torch.tanh(torch.cat([x.float(), h.float()], 1) @ torch.cat([w.float(), u.float()])).to(x.dtype)


def _leaky(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    found = [x[:, 0]]
    for step in range(1, x.shape[1]):
        found.append(found[-1] - found[-1] / 2 + x[:, step])
    return torch.stack(found, 1)


@rewrite("leaky sums, one after another", _wide(_leaky), shapes((3, 7)))
def leaky_sums(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    run, found = torch.zeros(len(x)), []
    for column in x.float().unbind(1):
        run = run * 0.5 + column
        found.append(run)
    return torch.stack(found, 1).to(x.dtype)


@rewrite("step with momentum that looks ahead", _wide(lambda p, g, m: p - 0.1 * (g + 0.9 * (0.9 * m + g))), shapes((4, 5), (4, 5), (4, 5)))
def momentum_that_looks_ahead(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape)
    kept = m.float().mul(0.9).add(g.float())
    return torch.add(p.float(), g.float().add(kept, alpha=0.9), alpha=-0.1).to(p.dtype)


@rewrite("limits of a norm of all numbers", _wide(lambda x: x * torch.clamp(2 / (x.square().sum() + 1e-6).sqrt(), max=1)), shapes((4, 6)))
def limits_of_a_norm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide / torch.clamp((torch.dot(wide.flatten(), wide.flatten()) + 1e-6).sqrt() / 2, min=1)).to(x.dtype)


@rewrite("products of rows of blocks on a diagonal", _wide(lambda x, w: torch.einsum("nbi,bij->nbj", x.unflatten(1, (len(w), -1)), w).flatten(1)
    if x.dim() == 2 and w.dim() == 3 and x.shape[1] == len(w) * w.shape[1] and w.numel() else need(False)), shapes((4, 6), (2, 3, 5)))  # fmt: skip
def blocks_on_a_diagonal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, x.shape[1] == len(w) * w.shape[1], w.numel() > 0)
    return torch.cat([part @ each for part, each in zip(x.float().split(w.shape[1], 1), w.float(), strict=True)], 1).to(x.dtype)


@rewrite("chosen numbers of each row, by flat places", lambda x, at: x.gather(1, at), _with(shapes((4, 7)), whole(4, 3, most=7)))
def by_flat_places(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == at.dim() == 2, len(x) == len(at), bool(((at >= 0) & (at < x.shape[1])).all()))
    return x.reshape(-1)[torch.arange(len(x))[:, None] * x.shape[1] + at]


@rewrite("tokens mixed before channels", _wide(lambda x, w: x + F.relu(w @ x)), shapes((2, 5, 4), (5, 5)))
def tokens_mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, w.shape[0] == w.shape[1] == x.shape[1])
    return (x.float() + torch.clamp(F.linear(x.float().mT, w.float()).mT, min=0)).to(x.dtype)


@rewrite("rows mirrored at a plane, the length last", _wide(lambda x, v: x - 2 * (x @ v)[:, None] * v / (v.square().sum() + 1e-3)),
         shapes((4, 6), (6,)))  # fmt: skip
def mirrored_at_a_plane(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, v.dim() == 1, x.shape[1] == len(v))
    wide, plane = x.float(), v.float()
    return (wide - torch.outer((wide * plane).sum(1) * 2 / ((plane * plane).sum() + 1e-3), plane)).to(x.dtype)


@rewrite("energies of pairs", _wide(lambda x: x.unflatten(1, (-1, 2)).square().sum(2)), shapes((4, 8)))
def energies_of_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0, x.shape[1] > 0)
    one, two = x.float()[:, 0::2], x.float()[:, 1::2]
    return torch.addcmul(one * one, two, two).to(x.dtype)
