"""The ninth frozen set of healthy kernels, second part: attention, recurrences, losses.

Two were mended, which were accused rightly: numbers that a mask hides were multiplied by 0, so that a NaN spread.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1))
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


@rewrite("attention and its logarithms, keys split in three and merged", _attention, shapes((2, 5, 8), (2, 13, 8), (2, 13, 6)))
def split_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(q.dim() == k.dim() == v.dim() == 3 and len(q) == len(k) == len(v) and k.shape[1] == v.shape[1] and q.shape[2] == k.shape[2])
    need(k.shape[1] and q.shape[2])
    parts = []
    for some in torch.arange(k.shape[1]).tensor_split(3):
        if len(some):
            scores = q.float() @ k[:, some].float().mT / math.sqrt(q.shape[2])
            parts.append((scores.softmax(-1) @ v[:, some].float(), scores.logsumexp(-1)))
    whole = functools.reduce(torch.logaddexp, [logs for _, logs in parts])
    made = functools.reduce(torch.add, [each * (logs - whole).exp()[..., None] for each, logs in parts])
    return made.to(q.dtype), whole


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return ((q.float() @ k.float().mT * 0.5 + bias.float()).softmax(-1) @ v.float()).to(q.dtype)


class _Biased(torch.autograd.Function):
    """Attention with a bias for all heads. The way back goes over tiles of queries, and adds the bias' gradient up over heads."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        need(q.dim() == k.dim() == v.dim() == 3 and len(q) == len(k) == len(v) and k.shape[1] == v.shape[1] and q.shape[2] == k.shape[2])
        need(bias.shape == (q.shape[1], k.shape[1]) and k.shape[1])
        scores = q.float() @ k.float().mT * 0.5 + bias.float()
        logs = scores.logsumexp(-1, keepdim=True)
        made = ((scores - logs).exp() @ v.float()).to(q.dtype)
        ctx.save_for_backward(q, k, v, bias, logs)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, bias, logs = ctx.saved_tensors
        wide, keys, values = gradient.float(), k.float(), v.float()
        scores = q.float() @ keys.mT * 0.5 + bias.float()
        shares = (scores - logs).exp()
        delta = (wide * (shares @ values)).sum(-1, keepdim=True)
        dq, dk, dv, db = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape), torch.zeros(bias.shape)
        for begin in range(0, q.shape[1], 4):
            some = slice(begin, begin + 4)
            terms = shares[:, some] * (wide[:, some] @ values.mT - delta[:, some])
            dq[:, some], db[some] = terms @ keys * 0.5, terms.sum(0)
            dk, dv = dk + terms.mT @ q[:, some].float() * 0.5, dv + shares[:, some].mT @ wide[:, some]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), db.to(bias.dtype)


rewrite("attention with a bias that learns, tiles of queries", _biased, shapes((3, 9, 4), (3, 7, 4), (3, 7, 5), (9, 7)))(_Biased.apply)


def _before(weights: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Sums of the terms up to each row. Later ones are left out, not multiplied by 0."""
    seen = torch.ones_like(weights, dtype=torch.bool).tril()[..., None]
    return torch.where(seen, weights[..., None] * terms, 0).sum(1)


def _retained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for row in range(len(q)):
        state = 0.9 * state + k[row].float()[:, None] * v[row].float()
        rows.append(q[row].float()[None] @ state)
    return torch.cat(rows).to(q.dtype)


@rewrite("retention, in chunks of five", _retained, shapes((13, 6), (13, 6), (13, 4)))
def in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape == k.shape and len(v) == len(q))
    state, rows = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for some in torch.arange(len(q)).split(5):
        one, two, three = (each[some].float() for each in (q, k, v))
        place = torch.arange(len(some))
        fades = 0.9 ** (place[:, None] - place).float()
        rows.append(_before(one @ two.T * fades, three) + one @ state * (0.9 ** (place + 1.0))[:, None])
        state = 0.9 ** len(some) * state + (two * (0.9 ** (len(some) - 1.0 - place))[:, None]).T @ three
    return torch.cat(rows).to(q.dtype)


def _delta(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each place corrects by half what the state gives for its key, whose length is one."""
    keys, state, rows = F.normalize(k.float(), dim=-1, eps=1e-3), torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for row in range(len(q)):
        state = state + 0.5 * keys[row][:, None] * (v[row].float() - keys[row] @ state)
        rows.append(q[row].float()[None] @ state)
    return torch.cat(rows).to(q.dtype)


@rewrite("delta rule, a triangular system for each chunk", _delta, shapes((11, 6), (11, 6), (11, 4)))
def triangular(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape == k.shape and len(v) == len(q))
    keys, state, rows = F.normalize(k.float(), dim=-1, eps=1e-3), torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for some in torch.arange(len(q)).split(4):
        one, two, three = q[some].float(), keys[some], v[some].float()
        system = torch.eye(len(some)) + 0.5 * (two @ two.T).tril(-1)
        apart = torch.linalg.solve_triangular(system, 0.5 * (three - two @ state), upper=False)
        rows.append(one @ state + _before(one @ two.T, apart))
        state = state + two.T @ apart
    return torch.cat(rows).to(q.dtype)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def turn(one: torch.Tensor) -> torch.Tensor:
        wide = one.float()
        other = torch.stack([-wide[..., 1::2], wide[..., ::2]], -1).flatten(-2)
        return (wide * cos.float() + other * sin.float()).to(x.dtype)

    q, k, v = x.unbind(0)
    return turn(q), turn(k), v


@rewrite("rope of neighbours on queries and keys packed with values", _turned, shapes((3, 7, 8), (7, 8), (7, 8)))
def packed(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    need(x.dim() == 3 and len(x) == 3 and not (x.shape[2] % 2) and cos.shape == x.shape[1:] and cos.shape == sin.shape)
    pairs = x[:2].float().unflatten(-1, (-1, 2)) if x.shape[2] else x[:2].float().reshape(2, x.shape[1], 0, 2)
    c, s = (each.float().reshape(*pairs.shape[1:]) for each in (cos, sin))
    one, two = pairs.unbind(-1)
    made = torch.stack([one * c[..., 0] - two * s[..., 0], two * c[..., 1] + one * s[..., 1]], -1).flatten(-2).to(x.dtype)
    return made[0], made[1], x[2].clone()


def _headed(h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean of the cross entropy in float32, whatever the format."""
    return F.cross_entropy(h.float() @ w.float().T, y)


class _Headed(torch.autograd.Function):
    """Two rows at a time; the gradients are made on the way there, for a gradient of one."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        need(h.dim() == 2 and w.dim() == 2 and h.shape[1] == w.shape[1] and y.shape == h.shape[:1] and len(h) and len(w))
        wide, total, dh, dw = w.float(), torch.zeros(()), torch.empty(h.shape), torch.zeros(w.shape)
        for begin in range(0, len(h), 2):
            some = slice(begin, begin + 2)
            logits = h[some].float() @ wide.T
            logs = logits - logits.logsumexp(-1, keepdim=True)
            total = total - logs.gather(1, y[some, None]).sum()
            given = logs.exp()
            given[torch.arange(len(given)), y[some]] -= 1
            dh[some] = given @ wide
            dw += given.T @ h[some].float()
        ctx.save_for_backward(dh / len(h), dw / len(h))
        ctx.kinds = h.dtype, w.dtype
        return total / len(h)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dh, dw = ctx.saved_tensors
        return (dh * gradient).to(ctx.kinds[0]), (dw * gradient).to(ctx.kinds[1]), None


def _words(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((7, 6), (11, 6))(dtype), torch.tensor([3, 10, 0, 7, 7, 1, 5])


rewrite("linear and the mean of cross entropy in one, gradients made beforehand", _headed, _words)(_Headed.apply)


def _focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    right = torch.where(y, wide.sigmoid(), 1 - wide.sigmoid())
    return ((1 - right).square() * F.binary_cross_entropy_with_logits(wide, y.float(), reduction="none")).to(x.dtype)


@rewrite("focal loss, in logarithms", _focal, lambda dtype: (
    shapes((5, 8))(dtype)[0], torch.rand(5, 8, generator=torch.Generator().manual_seed(3)) < 0.4))  # fmt: skip
def in_logarithms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    signed = torch.where(y, x.float(), -x.float())
    return (-F.logsigmoid(signed) * (2 * F.logsigmoid(-signed)).exp()).to(x.dtype)


def _js(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p, q = x.float().softmax(-1), y.float().softmax(-1)
    m = 0.5 * (p + q)
    return (0.5 * (p * (p / m).log() + q * (q / m).log()).sum(-1)).to(x.dtype)


@rewrite("divergence of two rows from their middle, in logarithms", _js, shapes((5, 9), (5, 9)))
def from_middle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    one, two = x.float().log_softmax(-1), y.float().log_softmax(-1)
    middle = torch.logaddexp(one, two) - math.log(2)
    return (0.5 * ((one - middle) * one.exp() + (two - middle) * two.exp()).sum(-1)).to(x.dtype)


@rewrite("preference loss, by softplus", lambda a, b, c, d: (-((a.float() - b.float()) - (c.float() - d.float())).sigmoid().log()).to(a.dtype),
         shapes((9,), (9,), (9,), (9,)))  # fmt: skip
def by_softplus(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape == c.shape == d.shape)
    return F.softplus((b.float() - a.float()) + (c.float() - d.float()), threshold=80).to(a.dtype)


def _contrast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scores = F.normalize(a.float(), dim=-1, eps=1e-3) @ F.normalize(b.float(), dim=-1, eps=1e-3).T / 0.1
    right = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right))


@rewrite("images against words, rows of three", _contrast, shapes((8, 6), (8, 6)))
def rows_of_three(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape and a.numel())
    one, two = (x.float() / x.float().norm(dim=-1, keepdim=True).clamp(min=1e-3) for x in (a, b))
    rows, columns = [], torch.full((len(b),), -torch.inf)
    for some in one.split(3):
        scores = some @ two.T * 10
        rows.append(scores.logsumexp(-1))
        columns = torch.logaddexp(columns, scores.logsumexp(0))
    right = (one * two).sum(-1) * 10
    return ((torch.cat(rows) + columns) * 0.5 - right).mean()
