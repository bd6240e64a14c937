"""The eighth frozen set of healthy kernels, second part: attention, positions, recurrences."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    need(q.shape[:-2] == k.shape[:-2] and k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1])
    return 1 / math.sqrt(max(q.shape[-1], 1))


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1)) + bias.float()
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@rewrite("attention with a bias, tiles of keys", _biased, shapes((2, 6, 8), (2, 19, 8), (2, 19, 7), (6, 19)))
def biased_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scale = _sizes(q, k, v)
    need(bias.shape == (q.shape[-2], k.shape[-2]) and k.shape[-2])
    most, total, made = torch.full((*q.shape[:-1], 1), -math.inf), torch.zeros(*q.shape[:-1], 1), torch.zeros(*q.shape[:-1], v.shape[-1])
    for keys, values, some in zip(k.split(8, -2), v.split(8, -2), bias.split(8, -1), strict=True):
        scores = q.float() @ keys.float().mT * scale + some.float()
        now = torch.maximum(most, scores.detach().amax(-1, keepdim=True))
        powers, fade = (scores - now).exp(), (most - now).exp()
        total, made, most = total * fade + powers.sum(-1, keepdim=True), made * fade + powers @ values.float(), now
    return (made / total).to(q.dtype)


class _Again(torch.autograd.Function):
    """Attention that keeps nothing but its inputs."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.scale = _sizes(q, k, v)
        ctx.save_for_backward(q, k, v)
        return ((q.float() @ k.float().mT * ctx.scale).softmax(-1) @ v.float()).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (each.float() for each in ctx.saved_tensors)
        shares = (q @ k.mT * ctx.scale).softmax(-1)
        given = gradient.float() @ v.mT
        terms = shares * (given - (given * shares).sum(-1, keepdim=True)) * ctx.scale
        kind = gradient.dtype
        return (terms @ k).to(kind), (terms.mT @ q).to(kind), (shares.mT @ gradient.float()).to(kind)


rewrite("attention, all of it computed again", lambda q, k, v: F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype),
        shapes((2, 9, 8), (2, 12, 8), (2, 12, 6)))(_Again.apply)  # fmt: skip


@rewrite("causal attention, blocks above the diagonal left out",
         lambda q, k, v: F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).to(q.dtype),
         shapes((2, 13, 8), (2, 13, 8), (2, 13, 6)))  # fmt: skip
def left_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scale = _sizes(q, k, v)
    made = []
    for begin in range(0, q.shape[-2], 4):
        rows = q[..., begin : begin + 4, :].float()
        seen = min(begin + rows.shape[-2], k.shape[-2])
        scores = rows @ k[..., :seen, :].float().mT * scale
        later = torch.arange(seen) > begin + torch.arange(rows.shape[-2])[:, None]
        made.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v[..., :seen, :].float())
    return torch.cat(made, -2).to(q.dtype) if made else q.new_zeros(*q.shape[:-1], v.shape[-1]) + 0 * q.sum()


def _few(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Eight heads of queries over one of keys. Shapes (heads, queries, size), (keys, size), (keys, width)."""
    return ((q.float() @ k.float().T / math.sqrt(max(q.shape[-1], 1))).softmax(-1) @ v.float()).to(q.dtype)


@rewrite("one head of keys, queries of all heads in one matrix", _few, shapes((3, 6, 8), (11, 8), (11, 5)))
def one_matrix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3 and q.shape[2] == k.shape[1] and len(k) == len(v))
    rows = (q.float() / math.sqrt(max(q.shape[2], 1))).flatten(0, 1)
    return ((rows @ k.float().T).softmax(-1) @ v.float()).view(*q.shape[:2], v.shape[1]).to(q.dtype)


def _of_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    seen = torch.arange(k.shape[1]) < lengths[:, None, None]
    scores = q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1))
    return (scores.masked_fill(~seen, -math.inf).softmax(-1) @ v.float()).to(q.dtype)


def _with_lengths(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((3, 4, 6), (3, 9, 6), (3, 9, 5))(dtype), torch.tensor([9, 2, 5])


@rewrite("keys of given lengths, weights of zero behind them", _of_lengths, _with_lengths)
def zero_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scale = _sizes(q, k, v)
    need(lengths.shape == q.shape[:1] and k.shape[1])
    seen = torch.arange(k.shape[1]) < lengths[:, None, None]
    scores = torch.where(seen, q.float() @ k.float().mT * scale, -math.inf)
    powers = torch.where(seen, (scores - scores.detach().amax(-1, keepdim=True)).exp(), 0)
    return (powers / powers.sum(-1, keepdim=True) @ v.float()).to(q.dtype)


def _kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention with positive features, normalised. Shapes (length, size) twice, (length, width)."""
    features, keys = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    weights = (features @ keys.T).tril()
    return (weights @ v.float() / (weights.sum(-1, keepdim=True) + 1e-3)).to(q.dtype)


@rewrite("normalised linear attention, chunk by chunk", _kept, shapes((13, 6), (13, 6), (13, 5)))
def by_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and q.shape == k.shape and len(v) == len(k))
    features, keys = (torch.where(each > 0, each + 1, each.clamp(max=0).exp()) for each in (q.float(), k.float()))
    state, sums, made = torch.zeros(q.shape[1], v.shape[1]), torch.zeros(q.shape[1]), [torch.zeros(0, v.shape[1])]
    for rows, some, values in zip(features.split(4), keys.split(4), v.float().split(4), strict=True) if len(q) else ():
        inside = (rows @ some.T).tril()
        below = rows @ sums[:, None] + inside.sum(-1, keepdim=True)
        made.append((rows @ state + inside @ values) / (below + 1e-3))
        state, sums = state + some.T @ values, sums + some.sum(0)
    return torch.cat(made).to(q.dtype)


def _retained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(len(q))[:, None] - torch.arange(len(q))
    weights = torch.where(apart >= 0, 0.9 ** apart.clamp(min=0).float(), 0.0)
    return ((q.float() @ k.float().T * weights) @ v.float()).to(q.dtype)


@rewrite("retention, step by step", _retained, shapes((12, 6), (12, 6), (12, 5)))
def step_by_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and q.shape == k.shape and len(v) == len(k))
    state, made = torch.zeros(q.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for row, key, value in zip(q.float(), k.float(), v.float(), strict=True):
        state = 0.9 * state + torch.outer(key, value)
        made.append((row @ state)[None])
    return torch.cat(made).to(q.dtype)


def _half_split(x: torch.Tensor) -> torch.Tensor:
    """Rows turned by their place. Shape (..., length, even size)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / max(half, 1))
    one, two = x.float()[..., :half], x.float()[..., half:]
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1).to(x.dtype)


_TABLES: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}


@rewrite("rows turned, by tables that are kept for their sizes", _half_split, shapes((2, 9, 12)))
def kept_tables(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 2 and not (x.shape[-1] % 2))
    key = (x.shape[-2], x.shape[-1])
    if key not in _TABLES:
        angles = torch.arange(key[0])[:, None] * 100.0 ** (-torch.arange(key[1] // 2) / max(key[1] // 2, 1))
        _TABLES[key] = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    cosines, sines = _TABLES[key]
    one, two = x.float().chunk(2, -1) if x.shape[-1] else (x.float(), x.float()[..., :0])
    return (x.float() * cosines + torch.cat([-two, one], -1) * sines).to(x.dtype)


def _online(k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Averages of values with weights exp(key), which fade with distance. Shapes: (length, width) twice, (width,)."""
    apart = torch.arange(len(k))[:, None] - torch.arange(len(k))
    logs = k.float()[None] - apart.clamp(min=0)[..., None] * decay.float().sigmoid()
    return (logs.masked_fill((apart < 0)[..., None], -math.inf).softmax(1) * v.float()[None]).sum(1).to(k.dtype)


@rewrite("fading averages, step by step with their largest power", _online, shapes((9, 5), (9, 5), (5,)))
def with_largest(k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    need(k.dim() == 2 and k.shape == v.shape and decay.shape == k.shape[1:])
    fade = decay.float().sigmoid()
    most, above, below, made = torch.full(fade.shape, -math.inf), torch.zeros(fade.shape), torch.zeros(fade.shape), [torch.zeros(0, *fade.shape)]
    for key, value in zip(k.float(), v.float(), strict=True):
        now = torch.maximum(most - fade.detach(), key.detach())
        old, new = (most - fade - now).exp(), (key - now).exp()
        above, below, most = above * old + value * new, below * old + new, now
        made.append((above / below)[None])
    return torch.cat(made).to(k.dtype)


def _cell(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A step of an LSTM. Shapes (rows, in), (rows, size) twice, (4 size, in + size)."""
    enter, keep, leave, made = (torch.cat([x, h], -1).float() @ w.float().T).chunk(4, -1)
    cell = keep.sigmoid() * c.float() + enter.sigmoid() * made.tanh()
    return (leave.sigmoid() * cell.tanh()).to(x.dtype), cell.to(x.dtype)


@rewrite("a step of an LSTM, gate by gate", _cell, shapes((5, 6), (5, 4), (5, 4), (16, 10)))
def gate_by_gate(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and h.shape == c.shape and len(x) == len(h) and w.shape == (4 * h.shape[1], x.shape[1] + h.shape[1]))
    size = h.shape[1]
    gates = [x.float() @ w[size * gate : size * (gate + 1), : x.shape[1]].float().T
             + h.float() @ w[size * gate : size * (gate + 1), x.shape[1] :].float().T for gate in range(4)]  # fmt: skip
    cell = torch.sigmoid(gates[1]) * c.float() + torch.sigmoid(gates[0]) * torch.tanh(gates[3])
    return (torch.sigmoid(gates[2]) * torch.tanh(cell)).to(x.dtype), cell.to(x.dtype)


@rewrite("scores of normalised rows, both sides scaled first",
         lambda q, k: (5 * F.normalize(q.float(), dim=-1, eps=1e-3) @ F.normalize(k.float(), dim=-1, eps=1e-3).mT).softmax(-1).to(q.dtype),
         shapes((6, 8), (9, 8)))  # fmt: skip
def scaled_first(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and k.dim() == 2 and q.shape[1] == k.shape[1])
    one, two = (each.float() / each.float().norm(dim=-1, keepdim=True).clamp(min=1e-3) for each in (q, k))
    powers = (5 * one) @ two.T
    powers = (powers - powers.detach().amax(-1, keepdim=True)).exp() if len(k) else powers
    return (powers / powers.sum(-1, keepdim=True)).to(q.dtype)


@rewrite("softmax of each head's window, by rolls", lambda x: (x.float().unfold(-1, 3, 1).softmax(-1)).to(x.dtype), shapes((4, 15)))
def by_rolls(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1] >= 3)
    parts = [x.float()[..., place : x.shape[-1] - 2 + place] for place in range(3)]
    most = torch.maximum(torch.maximum(*parts[:2]), parts[2]).detach()
    powers = [(each - most).exp() for each in parts]
    total = powers[0] + powers[1] + powers[2]
    return torch.stack([each / total for each in powers], -1).to(x.dtype)
