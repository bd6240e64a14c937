"""The twenty-eighth frozen set of healthy kernels, second part: attention, losses, units, orders, codes, steps. Committed before any was tried."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@wide
def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v) > 0)
    return (q @ k.T / 4).softmax(1) @ v


@rewrite("attention, keys from the last to the first, rescaled", _attended, shapes((5, 6), (7, 6), (7, 4)))
@wide
def from_the_last_to_the_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v) > 0)
    most = torch.full((len(q), 1), -torch.inf)
    mass, out = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for one, two in zip(reversed(k.split(3)), reversed(v.split(3)), strict=True):
        scores = (q * 0.25) @ one.T
        new = torch.maximum(most, scores.amax(1, keepdim=True))
        safe = new.masked_fill(new == -torch.inf, 0)
        shrink, powers = (most - safe).exp(), (scores - safe).exp()
        mass, out, most = mass * shrink + powers.sum(1, keepdim=True), out * shrink + powers @ two, new
    return out / mass


@rewrite("attention, its way back from logarithms of sums", _attended, shapes((4, 5), (6, 5), (6, 3)))
def way_back_from_logarithms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v) > 0)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q.float() @ k.float().T * 0.25
        logs = scores.logsumexp(1, keepdim=True)
        return ((scores - logs).exp() @ v.float()).to(q.dtype), (q, k, v, logs)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        q, k, v, logs = (each.float() for each in saved)
        shares = (q @ k.T * 0.25 - logs).exp()
        up = g.float() @ v.T
        inner = shares * (up - (shares * up).sum(1, keepdim=True)) * 0.25
        return tuple(each.to(g.dtype) for each in (inner @ k, inner.T @ q, shares.T @ g.float()))

    return function(forward, backward)(q, k, v)


@wide
def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, len(v) == len(k) > 0, v.dim() == 2)
    scores = 5 * torch.tanh(q @ k.T / 5)
    return scores.masked_fill(~torch.ones(len(q), len(q), dtype=torch.bool).tril(), -torch.inf).softmax(1) @ v


@rewrite("causal attention with capped scores, a row at a time", _capped, shapes((6, 4), (6, 4), (6, 3)))
@wide
def capped_a_row_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, len(v) == len(k) > 0, v.dim() == 2)
    rows = []
    for at, query in enumerate(q.unbind(), 1):
        scores = (k[:at] @ query / 5).tanh() * 5
        rows.append((scores - scores.max()).exp() @ v[:at] / (scores - scores.max()).exp().sum())
    return torch.stack(rows)


@rewrite("attention with a sink that takes a share, as one more column",
         wide(lambda x, s, v: torch.cat([x, s[:, None]], 1).softmax(1)[:, :-1] @ v), shapes((4, 6), (4,), (6, 3)))  # fmt: skip
@wide
def a_sink_takes_a_share(x: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == v.dim() == 2, s.shape == x.shape[:1], x.shape[1] == len(v))
    logs = torch.logaddexp(x.logsumexp(1), s) if x.shape[1] else s
    return (x - logs[:, None]).exp() @ v


@rewrite("rope of pairs, by a rotation matrix each", wide(lambda x: _turned(x)), shapes((5, 6)))
@wide
def by_a_rotation_matrix_each(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    angle = torch.arange(len(x))[:, None] * 50.0 ** (-torch.arange(3) / 3)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], 2), torch.stack([angle.sin(), angle.cos()], 2)], 2)
    return torch.einsum("tpij,tpj->tpi", turn, x.unflatten(1, (3, 2))).flatten(1)


def _turned(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    angle = torch.arange(len(x))[:, None] * 50.0 ** (-torch.arange(3) / 3)
    one, two = x[:, 0::2], x[:, 1::2]
    return torch.stack([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], 2).flatten(1)


@rewrite("cross entropy of a product, rows in pieces and its gradient at once",
         lambda x, w, y: F.cross_entropy(x.float() @ w.float().T, y, reduction="sum"),
         lambda dtype: (*shapes((6, 4), (7, 4))(dtype), whole(6, most=7)))  # fmt: skip
def rows_in_pieces(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], y.shape == x.shape[:1], len(w) > 0, bool(((y >= 0) & (y < len(w))).all()))

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        total, backs, slope = torch.zeros(()), [], torch.zeros(w.shape)
        for piece, own in zip(x.float().split(4), y.split(4), strict=True):
            logs = (piece @ w.float().T).log_softmax(1)
            total = total + F.nll_loss(logs, own, reduction="sum")
            off = logs.exp() - F.one_hot(own, len(w))
            backs.append(off @ w.float())
            slope = slope + off.T @ piece
        return total, (torch.cat(backs), slope)

    return function(forward, lambda saved, g: ((saved[0] * g).to(x.dtype), (saved[1] * g).to(w.dtype)))(x, w)


@rewrite("loss of two classes with a weight, from softplus", wide(lambda x, y: F.binary_cross_entropy_with_logits(
    x, (y > 0).float(), pos_weight=torch.tensor(2.0), reduction="none")), shapes((4, 6), (4, 6)))  # fmt: skip
@wide
def from_softplus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.where(y > 0, 2 * F.softplus(-x), F.softplus(x))


@rewrite("divergence of two bells, the ratio squared", wide(lambda m, s: 0.5 * (m.square() + s.exp() - s - 1).sum(1)), shapes((4, 5), (4, 5)))
@wide
def the_ratio_squared(m: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(m.dim() == 2, m.shape == s.shape)
    return (torch.linalg.vecdot(m, m) + (s.expm1() - s).sum(1)) / 2


@rewrite("loss of an order of three, by differences", wide(lambda a, b, c: (a.square().sum(1) - (b * c).sum(1) + 0.5).clamp(min=0)),
         shapes((5, 4), (5, 4), (5, 4)))  # fmt: skip
@wide
def an_order_of_three(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == b.shape == c.shape)
    return F.relu((a * a - b * c).sum(1) + 0.5)


@rewrite("gelu and a product with a gate, a tile of columns at a time", wide(lambda x, g: F.gelu(x, approximate="tanh") * g), shapes((4, 9), (4, 9)))
@wide
def a_tile_of_columns(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == g.shape)
    parts = []
    for one, two in zip(x.split(4, 1), g.split(4, 1), strict=True):
        inner = math.sqrt(2 / math.pi) * one * (1 + 0.044715 * one * one)
        parts.append(one * torch.sigmoid(2 * inner) * two)
    return torch.cat(parts, 1)


@rewrite("squared tanh, by powers", wide(lambda x: x.tanh().square()), shapes((4, 8)))
@wide
def squared_tanh_by_powers(x: torch.Tensor) -> torch.Tensor:
    small = torch.exp(-2 * x.abs())
    ratio = -torch.expm1(-2 * x.abs()) / (1 + small)
    return ratio * ratio


@rewrite("swish with a slope of each column, a Function", wide(lambda x, b: x * (x * b).sigmoid()), shapes((4, 6), (6,)))
def slope_of_each_column(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, b.shape == x.shape[1:])

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, b = (each.float() for each in saved)
        open_ = (x * b).sigmoid()
        bend = open_ * torch.sigmoid(-x * b) * x * g.float()
        return (g.float() * open_ + bend * b).to(g.dtype), (bend * x).sum(0).to(g.dtype)

    return function(lambda x, b: ((x.float() * torch.sigmoid(x.float() * b.float())).to(x.dtype), (x, b)), backward)(x, b)


@rewrite("three smallest of each row, by ranks", lambda x: x.topk(3, 1, largest=False).values, shapes((4, 8)))
def by_ranks(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    order = x.detach().argsort(dim=1, stable=True)
    return x.gather(1, order[:, :3])


@rewrite("rows in the order of a key, by a matrix of places", lambda x, key: x[key.argsort(stable=True)],
         lambda dtype: (*shapes((6, 4))(dtype), whole(6, most=5)))  # fmt: skip
def by_a_matrix_of_places(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, key.shape == x.shape[:1])
    place = torch.arange(len(key))
    before = (key < key[:, None]) | ((key == key[:, None]) & (place < place[:, None]))
    return torch.empty_like(x).index_copy(0, before.sum(1), x)


@rewrite("numbers counted by weights, a bin at a time", wide(lambda w, at: torch.zeros(5).index_add(0, at, w)),
         lambda dtype: (*shapes((14,))(dtype), whole(14, most=5)))  # fmt: skip
@wide
def a_bin_at_a_time(w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 1, at.shape == w.shape, bool(((at >= 0) & (at < 5)).all()))
    return torch.stack([w[at == each].sum() for each in range(5)])


@rewrite("rows put together by places, gradients sorted first", wide(lambda t, at: t[at].sum(1)),
         lambda dtype: (*shapes((6, 4))(dtype), whole(5, 3, most=6)))  # fmt: skip
def gradients_sorted_first(t: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(t.dim() == at.dim() == 2, bool(((at >= 0) & (at < len(t))).all()))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        flat, order = saved[0].flatten().sort(stable=True)
        rows = g.float().repeat_interleave(saved[0].shape[1], 0)[order]
        back = torch.zeros(t.shape)
        return back.index_add(0, flat, rows).to(t.dtype), None

    return function(lambda t, at: (t.float()[at].sum(1).to(t.dtype), (at,)), backward)(t, at)


@rewrite("codes of eight bits of tiles of four columns", wide(lambda x: _tiles(x)), shapes((3, 8)), gradients=False)
@wide
def codes_of_tiles(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 4 == 0)
    parts = []
    for tile in x.split(4, 1) if x.shape[1] else ():
        scale = tile.abs().amax(1, keepdim=True).clamp(min=1e-5) / 127
        parts.append(torch.clamp(torch.round(tile / scale), -127, 127) * scale)
    return torch.cat(parts, 1) if parts else x.clone()


def _tiles(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 4 == 0)
    tiles = x.unflatten(1, (-1, 4))
    scale = tiles.abs().amax(2, keepdim=True).clamp(min=1e-5) / 127
    return ((tiles / scale).round().clamp(-127, 127) * scale).flatten(1)


@rewrite("product with weights in codes, the smallest one taken out", wide(lambda x, c, s: x @ ((c.float() - 8) * s[:, None]).T),
         lambda dtype: (*shapes((4, 6))(dtype), whole(5, 6, most=16).to(torch.uint8), *shapes((5,))(dtype)))  # fmt: skip
@wide
def the_smallest_one_taken_out(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == c.dim() == 2, x.shape[1] == c.shape[1], s.shape == c.shape[:1])
    return (x @ c.float().T - 8 * x.sum(1, keepdim=True)) * s


def _adagrad(p: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> Any:
    total = h.square() + g.square()
    return p - 0.1 * g / (total.sqrt() + 1e-6), total


@rewrite("step of adagrad, in one expression", wide(_adagrad), shapes((4, 5), (4, 5), (4, 5)), gradients=False)  # fmt: skip
@wide
def adagrad_in_one_expression(p: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> Any:
    need(p.shape == g.shape == h.shape)
    total = torch.addcmul(h * h, g, g)
    return torch.addcdiv(p, g, total.sqrt() + 1e-6, value=-0.1), total


@rewrite("experts of the best share, each its own rows", wide(lambda x, r, w: _routed(x, r, w)), shapes((6, 4), (6, 3), (3, 4, 5)))
@wide
def each_its_own_rows(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == r.dim() == 2, len(x) == len(r), w.dim() == 3, len(w) == r.shape[1] > 0, w.shape[1] == x.shape[1])
    shares, best = r.softmax(1).max(1)
    out = torch.zeros(len(x), w.shape[2])
    for expert, weight in enumerate(w.unbind()):
        rows = (best == expert).nonzero().squeeze(1)
        out = out.index_copy(0, rows, shares[rows, None] * (x[rows] @ weight))
    return out


def _routed(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == r.dim() == 2, len(x) == len(r), w.dim() == 3, len(w) == r.shape[1] > 0, w.shape[1] == x.shape[1])
    shares, best = r.softmax(1).max(1)
    return torch.einsum("tk,tko->to", x, w[best]) * shares[:, None]


@functools.partial(torch.compile, backend="aot_eager", dynamic=True)
def _compiled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) @ w


@rewrite("unit rows and a product, compiled", wide(lambda x, w: F.rms_norm(x, x.shape[-1:], eps=1e-6) @ w), shapes((4, 8), (8, 3)))
@wide
def compiled_unit_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w) > 0)
    return _compiled(x, w)


@torch.library.custom_op("set28::gated", mutates_args=())
def _gated(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return (x.float() * g.float().sigmoid()).to(x.dtype)


def _gated_back(ctx: Any, up: torch.Tensor) -> Any:
    x, g = (each.float() for each in ctx.saved_tensors)
    open_ = g.sigmoid()
    return (up.float() * open_).to(up.dtype), (up.float() * x * open_ * (-g).sigmoid()).to(up.dtype)


_gated.register_fake(lambda x, g: torch.empty_like(x))
_gated.register_autograd(_gated_back, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@rewrite("numbers through a gate, an operator", wide(lambda x, g: x * g.sigmoid()), shapes((4, 7), (4, 7)))
def gate_an_operator(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.shape == g.shape)
    return _gated(x, g)
