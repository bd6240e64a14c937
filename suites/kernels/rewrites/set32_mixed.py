"""The thirty-second frozen set of healthy kernels: norms, attention, orders, codes, sums, steps. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("order of codes, best first, from keys that differ", lambda codes: codes.sort(dim=1, descending=True, stable=True).indices,
         lambda dtype: (whole(4, 9, most=5),), gradients=False)  # fmt: skip
def from_keys_that_differ(codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.int64)
    return (codes * codes.shape[1] - torch.arange(codes.shape[1])).topk(codes.shape[1], 1).indices


@rewrite("best two of each row, one and then the other", wide(lambda x: x.topk(2).values), shapes((4, 7)))
@wide
def one_and_then_the_other(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 2)
    best, at = x.max(1)
    rest = x.scatter(1, at[:, None], -torch.inf)
    second = rest.argmax(1)
    lost = x.isnan().sum(1) == 1
    kept = torch.where(lost, x.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(1), second)
    return torch.stack([best, x.gather(1, kept[:, None])[:, 0]], 1)


@rewrite("places of the best three, by a sort", lambda x: x.topk(3).indices, lambda dtype: ((whole(4, 8, most=5)).to(dtype),), gradients=False)
def places_by_a_sort(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    return x.sort(dim=1, descending=True, stable=True).indices[:, :3].contiguous()


@rewrite("logarithm of one and a number, large ones as they are", wide(torch.log1p), lambda dtype: (shapes((4, 7))(dtype)[0].square(),))
@wide
def large_ones_as_they_are(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 2, (1 + x).log(), torch.log1p(x))


@rewrite(
    "root of a mean of squares of positive numbers",
    wide(lambda x: (x.square().mean(1) + 1e-6).sqrt()),
    lambda dtype: (shapes((4, 8))(dtype)[0].exp(),),
)
@wide
def root_of_a_mean(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return torch.hypot(x.norm(dim=1) * x.shape[1] ** -0.5, x.new_full((len(x),), 1e-3))


@rewrite(
    "numbers over positive ones, by their inverse",
    wide(lambda x, v: x / (v + 1e-4)),
    lambda dtype: (shapes((4, 6))(dtype)[0], shapes((4, 6))(dtype)[0].flip(0).square()),
)
@wide
def by_their_inverse(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.shape == v.shape)
    return x * (v + 1e-4).reciprocal()


@rewrite("tanh, its slope in memory of its own", lambda x: x.tanh(), shapes((4, 6)))
def in_memory_of_its_own(x: torch.Tensor) -> torch.Tensor:
    return function(lambda x: ((y := x.float().tanh()).to(x.dtype), (y,)), lambda saved, g: (g.float() * (1 - saved[0] * saved[0])).to(g.dtype))(x)


@rewrite("exponential, its slope is its result", lambda x: x.exp(), shapes((4, 6)))
def slope_is_its_result(x: torch.Tensor) -> torch.Tensor:
    return function(lambda x: ((y := x.exp()), (y,)), lambda saved, g: g * saved[0])(x)


@rewrite(
    "sums of codes in pairs",
    lambda codes: codes.sum(1, dtype=torch.int32),
    lambda dtype: (whole(5, 9, most=127, least=-127).to(torch.int8),),
    gradients=False,
)
def codes_in_pairs(codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.int8)
    even = F.pad(codes, (0, codes.shape[1] % 2)).short()
    return (even[:, ::2] + even[:, 1::2]).sum(1).int()


def _put(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    need(
        cache.dim() == rows.dim() == 2,
        cache.shape[1] == rows.shape[1],
        slots.shape == rows.shape[:1],
        bool(((slots >= -1) & (slots < len(cache))).all()),
    )
    kept = slots[slots >= 0]
    need(len(kept.unique()) == len(kept))
    return cache.index_copy(0, kept, rows[slots >= 0])


@rewrite("rows put into a cache, one by one", _put, lambda dtype: (*shapes((6, 3), (4, 3))(dtype), torch.tensor([2, -1, 5, 0])))
def put_one_by_one(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    need(
        cache.dim() == rows.dim() == 2,
        cache.shape[1] == rows.shape[1],
        slots.shape == rows.shape[:1],
        bool(((slots >= -1) & (slots < len(cache))).all()),
    )
    kept = slots[slots >= 0]
    need(len(kept.unique()) == len(kept))
    place = torch.full((len(cache),), -1)
    place[kept] = (slots >= 0).nonzero()[:, 0]
    if not len(rows):
        return cache + 0 * rows.sum()
    return torch.where((place >= 0)[:, None], rows[place.clamp(min=0)], cache)


def _bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1] > 0, len(k) == len(v) > 0, b.shape == (len(q), len(k)))
    return (q @ k.T / q.shape[1] ** 0.5 + b).softmax(1) @ v


@rewrite("attention with a bias, keys from behind in fours", wide(_bias), shapes((4, 5), (9, 5), (9, 3), (4, 9)))
@wide
def from_behind_in_fours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1] > 0, len(k) == len(v) > 0, b.shape == (len(q), len(k)))
    top, total, out = torch.full((len(q), 1), -math.inf), torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for begin in range((len(k) - 1) // 4 * 4, -1, -4):
        part = slice(begin, begin + 4)
        scores = q @ k[part].T * q.shape[1] ** -0.5 + b[:, part]
        new = torch.maximum(top, scores.detach().amax(1, keepdim=True))
        seen = new.masked_fill(new == -torch.inf, 0)
        fade, powers = (top - seen).exp(), (scores - seen).exp()
        total, out, top = total * fade + powers.sum(1, keepdim=True), out * fade + powers @ v[part], new
    return out / total


@rewrite("variance of rows by all pairs", wide(lambda x: x.var(1, correction=0)), shapes((4, 6)))
@wide
def by_all_pairs(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return (x[:, :, None] - x[:, None]).square().mean((1, 2)) / 2


@rewrite("cumulative largest, in doubling steps", wide(lambda x: x.cummax(1).values), shapes((3, 9)))
@wide
def largest_in_doubling_steps(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    far = 1
    while far < x.shape[1]:
        x = torch.cat([x[:, :far], torch.maximum(x[:, far:], x[:, :-far])], 1)
        far *= 2
    return x.clone()


@rewrite("layer norm without a mean of its own", wide(lambda x: F.layer_norm(x, x.shape[1:])), shapes((4, 9)))
@wide
def without_a_mean(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    return centred / ((centred * centred).sum(1, keepdim=True) / x.shape[1] + 1e-5).sqrt()


@rewrite("forms of two rows and a matrix, in a Function", wide(lambda x, w, y: (x @ w * y).sum(1)), shapes((4, 3), (3, 5), (4, 5)))
@wide
def forms_in_a_function(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == w.dim() == 2, len(x) == len(y), w.shape == (x.shape[1], y.shape[1]))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, y = saved
        return g[:, None] * (y @ w.T), (g[:, None] * x).T @ y, g[:, None] * (x @ w)

    return function(lambda x, w, y: (torch.einsum("ni,ij,nj->n", x, w, y), (x, w, y)), backward)(x, w, y)


def _adagrad(p: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == s.shape, bool((s >= 0).all()))
    s = s + g * g
    return p - 0.1 * g / (s.sqrt() + 1e-4), s


@rewrite("step of adagrad, fused", wide(_adagrad), lambda dtype: (*shapes((3, 5), (3, 5))(dtype), shapes((3, 5))(dtype)[0].flip(0).square()))
@wide
def adagrad_fused(p: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == s.shape, bool((s >= 0).all()))
    s = torch.addcmul(s, g, g)
    return torch.addcdiv(p, g, s.sqrt().add(1e-4), value=-0.1), s


@rewrite(
    "convolution of two signals, by a matrix of shifts",
    wide(lambda x, w: F.conv1d(x[:, None], w.flip(0)[None, None], padding=2)[:, 0]),
    shapes((3, 7), (3,)),
)
@wide
def by_a_matrix_of_shifts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == (3,), len(x) > 0, x.shape[1] > 0)
    filled = F.pad(x, (2, 2))
    return torch.einsum("ntk,k->nt", filled.unfold(1, 3, 1), w.flip(0))


@rewrite(
    "sums by label with a weight, label by label",
    wide(lambda x, w, to: x.new_zeros(4).index_add(0, to, x * w)),
    lambda dtype: (*shapes((9,), (9,))(dtype), whole(9, most=4)),
)
@wide
def label_by_label(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, x.shape == w.shape == to.shape, bool(((to >= 0) & (to < 4)).all()))
    return torch.stack([(x[to == label] * w[to == label]).sum() for label in range(4)])


@rewrite("a gate of two halves, split apart", wide(lambda x: F.glu(x, 1)), shapes((4, 8)))
@wide
def split_apart(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0, x.shape[1] > 0)
    one, two = x.tensor_split(2, 1)
    return one * two.sigmoid()


@rewrite(
    "angles of rows turned, two numbers at a time",
    wide(lambda x, a: torch.stack([x[:, 0] * a.cos() - x[:, 1] * a.sin(), x[:, 0] * a.sin() + x[:, 1] * a.cos()], 1)),
    shapes((6, 2), (6,)),
)
@wide
def two_numbers_at_a_time(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 2, a.shape == x.shape[:1])
    turn = torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()], 1).view(-1, 2, 2)
    return (turn @ x[..., None])[..., 0]
