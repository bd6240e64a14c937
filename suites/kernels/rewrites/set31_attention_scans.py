"""The thirty-first frozen set of healthy kernels: attention, caches, scans, packed sequences. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1] > 0, len(k) == len(v) > 0)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    return (3 * torch.tanh(q @ k.T / q.shape[1] ** 0.5 / 3)).softmax(1) @ v


@rewrite("attention with capped scores, keys four at a time", wide(_capped), shapes((5, 6), (9, 6), (9, 3)))
@wide
def with_capped_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    top, total, out = torch.full((len(q), 1), -math.inf), torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(4), v.split(4), strict=True):
        scores = 3 * torch.tanh((q * q.shape[1] ** -0.5) @ keys.T / 3)
        new = torch.maximum(top, scores.detach().amax(1, keepdim=True))
        fade, powers = (top - new).exp(), (scores - new).exp()
        total, out, top = total * fade + powers.sum(1, keepdim=True), out * fade + powers @ values, new
    return out / total


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    return (q @ k.T / q.shape[1] ** 0.5).softmax(1) @ v


@rewrite("attention, keys in two parts that are joined by their sums", wide(_plain), shapes((4, 5), (8, 5), (8, 3)))
@wide
def joined_by_their_sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    half = (len(k) + 1) // 2
    parts = []
    for keys, values in ((k[:half], v[:half]), (k[half:], v[half:])):
        if len(keys):
            scores = q @ keys.T / q.shape[1] ** 0.5
            parts.append((scores.softmax(1) @ values, scores.logsumexp(1)))
    whole_sum = torch.stack([each for _, each in parts]).logsumexp(0)
    return sum(out * (each - whole_sum).exp()[:, None] for out, each in parts)


@rewrite("attention, its way back in a Function that keeps sums alone", wide(_plain), shapes((5, 4), (7, 4), (7, 3)))
@wide
def keeps_sums_alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fits(q, k, v)
    scale = q.shape[1] ** -0.5

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q @ k.T * scale
        total = scores.logsumexp(1, keepdim=True)
        out = (scores - total).exp() @ v
        return out, (q, k, v, total, out)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        q, k, v, total, out = saved
        shares = (q @ k.T * scale - total).exp()
        slopes = shares * (g @ v.T - (g * out).sum(1, keepdim=True)) * scale
        return slopes @ k, slopes.T @ q, shares.T @ g

    return function(forward, backward)(q, k, v)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == 2 * len(k), k.shape == v.shape, q.shape[2] == k.shape[2] > 0, k.shape[1] > 0)
    return F.scaled_dot_product_attention(q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0))


@rewrite("two heads of queries to one of keys, as one product", _grouped, shapes((4, 5, 6), (2, 7, 6), (2, 7, 6)))
@wide
def as_one_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == 2 * len(k), k.shape == v.shape, q.shape[2] == k.shape[2] > 0, k.shape[1] > 0)
    joined = q.reshape(len(k), 2 * q.shape[1], q.shape[2])
    return ((joined @ k.mT * q.shape[2] ** -0.5).softmax(2) @ v).reshape(q.shape)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k) > 0, q.shape[1] > 0)
    hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(1) @ v


@rewrite("causal attention, row by row", wide(_causal), shapes((6, 4), (6, 4), (6, 3)))
@wide
def row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k) > 0, q.shape[1] > 0)
    return torch.stack([(k[: at + 1] @ q[at] * q.shape[1] ** -0.5).softmax(0) @ v[: at + 1] for at in range(len(q))])


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Tokens see those of their own sequence."""
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k) > 0, q.shape[1] > 0, of.shape == q.shape[:1])
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(of[:, None] != of, -torch.inf).softmax(1) @ v


@rewrite(
    "attention inside sequences, one sequence after another", wide(_packed), lambda dtype: (*shapes((8, 4), (8, 4), (8, 3))(dtype), whole(8, most=3))
)
@wide
def one_sequence_after_another(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k) > 0, q.shape[1] > 0, of.shape == q.shape[:1])
    out = torch.zeros(len(q), v.shape[1])
    for each in of.unique():
        at = (of == each).nonzero()[:, 0]
        out = out.index_copy(0, at, (q[at] @ k[at].T / q.shape[1] ** 0.5).softmax(1) @ v[at])
    return out


def _cached(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """A query for each sequence, and as many keys as it has."""
    need(q.dim() == 2, k.dim() == v.dim() == 3, k.shape == v.shape, len(q) == len(k), q.shape[1] == k.shape[2] > 0, ends.shape == q.shape[:1])
    need(bool(((ends > 0) & (ends <= k.shape[1])).all()))
    scores = torch.einsum("bd,bkd->bk", q, k) / q.shape[1] ** 0.5
    shares = scores.masked_fill(torch.arange(k.shape[1]) >= ends[:, None], -torch.inf).softmax(1)
    return torch.einsum("bk,bkd->bd", shares, v)


@rewrite(
    "a query to a cache, sequence by sequence", wide(_cached), lambda dtype: (*shapes((3, 4), (3, 6, 4), (3, 6, 4))(dtype), torch.tensor([2, 6, 4]))
)
@wide
def sequence_by_sequence(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == v.dim() == 3, k.shape == v.shape, len(q) == len(k), q.shape[1] == k.shape[2] > 0, ends.shape == q.shape[:1])
    need(bool(((ends > 0) & (ends <= k.shape[1])).all()))
    out = [(k[b, :end] @ q[b] * q.shape[1] ** -0.5).softmax(0) @ v[b, :end] for b, end in enumerate(ends.tolist())]
    return torch.stack(out) if out else q.clone()


def _fading(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == gate.shape)
    state, out = torch.zeros_like(x[:1].sum(0)), []
    for row, share in zip(x, gate.sigmoid(), strict=True):
        state = share * state + row
        out.append(state)
    return torch.stack(out) if out else x.clone()


@rewrite("states that fade, in doubling steps", wide(_fading), shapes((9, 3), (9, 3)))
@wide
def in_doubling_steps(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == gate.shape)
    share, far = gate.sigmoid(), 1
    while far < len(x):
        x = torch.cat([x[:far], x[far:] + share[far:] * x[:-far]])
        share = torch.cat([share[:far], share[far:] * share[:-far]])
        far *= 2
    return x


@rewrite("states that fade, their way back from behind in a Function", wide(_fading), shapes((7, 4), (7, 4)))
@wide
def way_back_from_behind(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor, gate: torch.Tensor) -> Any:
        share, out = gate.sigmoid(), _fading(x, gate)
        return out, (share, out)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        share, out = saved
        dx, carry = torch.zeros_like(g), torch.zeros_like(g[:1].sum(0))
        for at in range(len(g) - 1, -1, -1):
            carry = g[at] + (share[at + 1] * carry if at + 1 < len(g) else 0 * carry)
            dx[at] = carry
        before = torch.cat([torch.zeros_like(out[:1]), out[:-1]])
        return dx, dx * before * share * (1 - share)

    return function(forward, backward)(x, gate)


def _delta(k: torch.Tensor, v: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2, len(k) == len(v), share.shape == k.shape[:1])
    state, out = k.new_zeros(k.shape[1], v.shape[1]), []
    for key, value, beta in zip(k, v, share, strict=True):
        state = state + beta * torch.outer(key, value - key @ state)
        out.append(key @ state)
    return torch.stack(out) if out else v.clone()


@rewrite("a rule of differences: what is forgotten is taken off first", wide(_delta),
         lambda dtype: (*(each * 0.4 for each in shapes((6, 4), (6, 3))(dtype)), shapes((6,))(dtype)[0].sigmoid()))  # fmt: skip
@wide
def what_is_forgotten_first(k: torch.Tensor, v: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2, len(k) == len(v), share.shape == k.shape[:1])
    state, out = k.new_zeros(k.shape[1], v.shape[1]), []
    for at in range(len(k)):
        kept = state - share[at] * k[at][:, None] * (k[at] @ state)
        state = kept + (share[at] * k[at])[:, None] * v[at]
        out.append(k[at] @ state)
    return torch.stack(out) if out else v.clone()


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(v) == len(k))
    state, out = k.new_zeros(k.shape[1], v.shape[1]), []
    for query, key, value in zip(q, k, v, strict=True):
        state = state + torch.outer(key, value)
        out.append(query @ state)
    return torch.stack(out) if out else v.clone()


@rewrite("attention without a softmax, as a causal product", wide(_linear), shapes((7, 3), (7, 3), (7, 4)))
@wide
def as_a_causal_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(v) == len(k))
    return torch.stack([(k[: at + 1] @ q[at]) @ v[: at + 1] for at in range(len(q))]) if len(q) else v.clone()


def _tapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, len(w) == x.shape[1] > 0, w.shape[1] == 4, x.shape[2] > 0, len(x) > 0)
    return F.silu(F.conv1d(F.pad(x, (3, 0)), w[:, None], groups=x.shape[1]))


@rewrite("causal convolution and silu, step by step with a state", wide(_tapped), shapes((2, 3, 7), (3, 4)))
@wide
def step_by_step_with_a_state(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, len(w) == x.shape[1] > 0, w.shape[1] == 4, x.shape[2] > 0, len(x) > 0)
    state, out = x.new_zeros(*x.shape[:2], 4), []
    for column in x.unbind(2):
        state = torch.cat([state[..., 1:], column[..., None]], 2)
        out.append((state * w).sum(2))
    return F.silu(torch.stack(out, 2))


def _turned(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    angle = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(3) / 3)
    one, two = x[:, :3], x[:, 3:]
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], 1)


@rewrite("rows turned by their place, as complex numbers", wide(_turned), shapes((9, 6)))
@wide
def as_complex_numbers(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    angle = torch.outer(torch.arange(len(x), dtype=torch.float64), 10000.0 ** (-torch.arange(3, dtype=torch.float64) / 3))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([x[:, :3] * cos - x[:, 3:] * sin, x[:, :3] * sin + x[:, 3:] * cos], 1)
