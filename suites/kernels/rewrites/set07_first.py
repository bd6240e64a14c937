"""A seventh frozen set of healthy kernels: written and committed before any of them was tried.

One was mended, which was accused rightly: zero times the logarithm of a rate of zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _delta(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """A memory that is corrected by what it gets wrong, step by step. Shapes (length, size), and (length,) of the rates."""
    memory, made = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for now_q, now_k, now_v, now_rate in zip(q.float(), k.float(), v.float(), rate.float().sigmoid(), strict=True):
        unit = now_k / (now_k.square().sum() + 1e-3).sqrt()
        memory = memory + torch.outer(unit, now_rate * (now_v - unit @ memory))
        made.append((now_q @ memory)[None])
    return torch.cat(made).to(v.dtype)


@rewrite("delta rule, a matrix for each step", _delta, shapes((7, 6), (7, 6), (7, 5), (7,)))
def step_matrices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    need(len(q) == len(k) == len(v) == len(rate) and q.shape[1] == k.shape[1])
    unit = k.float() * torch.rsqrt(k.float().square().sum(-1, keepdim=True) + 1e-3)
    rates = torch.sigmoid(rate.float())[:, None]
    kept = torch.eye(k.shape[1]) - (rates * unit)[:, :, None] * unit[:, None, :]
    written = unit[:, :, None] * (rates * v.float())[:, None, :]
    memory, made = torch.zeros(k.shape[1], v.shape[1]), [torch.zeros(0, v.shape[1])]
    for step in range(len(q)):
        memory = kept[step] @ memory + written[step]
        made.append(q[step : step + 1].float() @ memory)
    return torch.cat(made).to(v.dtype)


@rewrite("layer norm, moments of quarters merged", lambda x, w, b: F.layer_norm(x.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype),
         shapes((5, 44), (44,), (44,)))  # fmt: skip
def moments_merged(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1:] == w.shape and w.shape == b.shape)
    wide, count = x.float(), 0
    mean, spread = torch.zeros(*x.shape[:-1], 1), torch.zeros(*x.shape[:-1], 1)
    for part in wide.split(max(-(-x.shape[-1] // 4), 1), -1):
        if part.shape[-1]:
            own = part.mean(-1, keepdim=True)
            apart, total = own - mean, count + part.shape[-1]
            spread = spread + (part - own).square().sum(-1, keepdim=True) + apart.square() * (count * part.shape[-1] / total)
            mean, count = mean + apart * (part.shape[-1] / total), total
    return ((wide - mean) / (spread / max(count, 1) + 1e-5).sqrt() * w.float() + b.float()).to(x.dtype)


@rewrite("rms norm, the weight in float32 (vllm 42379 had it so)", lambda x, w: F.rms_norm(x.float(), x.shape[-1:], None, 1e-6).to(x.dtype) * w,
         shapes((6, 24), (24,)))  # fmt: skip
def wide_weight(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1:] == w.shape)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


@rewrite("causal attention, added up in float64", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
         shapes(*[(2, 11, 8)] * 3))  # fmt: skip
def in_float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape[:-2] == k.shape[:-2] and k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1])
    scores = q.double() @ k.double().mT / math.sqrt(max(q.shape[-1], 1))
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return (scores.masked_fill(later, -math.inf).softmax(-1) @ v.double()).to(q.dtype)


@rewrite("logarithm of a sum of powers, in pairs", lambda x: x.float().logsumexp(-1).to(x.dtype), shapes((5, 27)))
def log_pairs(x: torch.Tensor) -> torch.Tensor:
    parts = list(x.float().unbind(-1))
    if not parts:
        return torch.full(x.shape[:-1], -math.inf, dtype=x.dtype) + 0 * x.sum(-1)
    while len(parts) > 1:
        parts = [torch.logaddexp(*parts[at : at + 2]) if at + 1 < len(parts) else parts[at] for at in range(0, len(parts), 2)]
    return parts[0].to(x.dtype)


def _steady(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    whole = logits.float().logsumexp(-1)
    return (F.cross_entropy(logits.float(), labels, reduction="none") + 0.01 * whole.square()).to(logits.dtype)


def _labelled(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((6, 21))(dtype), torch.tensor([3, 20, 0, 7, 7, 11])


@rewrite("cross entropy and the square of its logarithm, online", _steady, _labelled)
def steady_online(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2 and labels.shape == logits.shape[:1] and logits.shape[1])
    most, total = torch.full((len(logits),), -math.inf), torch.zeros(len(logits))
    for part in logits.float().split(8, -1):
        now = torch.maximum(most, part.detach().amax(-1))
        total = total * (most - now).exp() + (part - now[:, None]).exp().sum(-1)
        most = now
    whole = most + total.log()
    right = logits.float()[torch.arange(len(logits)), labels]
    return (whole - right + 0.01 * whole * whole).to(logits.dtype)


@rewrite("group norm, Welford's means", lambda x, w, b: F.group_norm(x.float(), 3, w.float(), b.float()).to(x.dtype), shapes((2, 6, 5), (6,), (6,)))
def welford_groups(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 2 and not (x.shape[1] % 3) and w.shape == x.shape[1:2] and b.shape == w.shape)
    groups = x.float().reshape(len(x), 3, -1) if x.numel() else x.float().reshape(len(x), 3, 0)
    mean, spread = torch.zeros(len(x), 3), torch.zeros(len(x), 3)
    for count, each in enumerate(groups.unbind(-1), 1):
        apart = each - mean
        mean = mean + apart / count
        spread = spread + apart * (each - mean)
    scale = torch.rsqrt(spread / max(groups.shape[-1], 1) + 1e-5)
    size = (-1, *[1] * (x.dim() - 2))
    return (((groups - mean[..., None]) * scale[..., None]).reshape(x.shape) * w.float().view(size) + b.float().view(size)).to(x.dtype)


@rewrite("lengths of rows, divided by their largest first", lambda x: (x.float().square().sum(-1) + 1e-6).sqrt().to(x.dtype), shapes((6, 19)))
def scaled_lengths(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    most = wide.detach().abs().amax(-1, keepdim=True).clamp(min=1e-3) if x.shape[-1] else torch.ones(*x.shape[:-1], 1)
    return (most[..., 0] * ((wide / most).square().sum(-1) + 1e-6 / most[..., 0].square()).sqrt()).to(x.dtype)


def _moving(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    share, state, made = rate.float().sigmoid(), torch.zeros(x.shape[1:]), [torch.zeros(0, *x.shape[1:])]
    for row in x.float():
        state = share * state + (1 - share) * row
        made.append(state[None])
    return torch.cat(made).to(x.dtype)


@rewrite("moving averages, weighed by powers", _moving, shapes((9, 5), (5,)))
def by_powers(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    need(x.shape[1:] == rate.shape)
    logs = F.logsigmoid(rate.float())
    back = torch.arange(len(x))[:, None] - torch.arange(len(x))
    powers = torch.where((back > 0)[..., None], back.clamp(min=1)[..., None] * logs, 0)
    weights = powers.exp() * torch.sigmoid(-rate.float())
    return torch.where((back >= 0)[..., None], weights * x.float()[None], 0).sum(1).to(x.dtype)


@rewrite("averages of windows, by a sum of shifted images", lambda x: F.avg_pool2d(x.float(), 3, 2).to(x.dtype), shapes((2, 3, 9, 8)))
def shifted_images(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and min(x.shape[2:]) >= 3 and x.shape[1])
    down, across = (x.shape[2] - 3) // 2 + 1, (x.shape[3] - 3) // 2 + 1
    total = torch.zeros(*x.shape[:2], down, across)
    for row in range(3):
        for column in range(3):
            total = total + x[:, :, row : row + 2 * down - 1 : 2, column : column + 2 * across - 1 : 2].float()
    return (total / 9).to(x.dtype)


def _chosen(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((7, 12))(dtype), torch.tensor([[3, 3], [0, 11], [5, 2], [11, 0], [1, 8], [6, 6], [9, 4]])


@rewrite("columns taken from rows, behind a mask", lambda x, at: x.gather(-1, at), _chosen)
def masked_columns(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and at.dim() == 2 and len(x) == len(at))
    here = at[..., None] == torch.arange(x.shape[1])
    return torch.where(here, x[:, None].float(), 0).sum(-1).to(x.dtype)


@rewrite("gelu, by what is left of the error function", lambda x: F.gelu(x.float()).to(x.dtype), shapes((6, 20)))
def complementary(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (0.5 * wide * torch.special.erfc(-wide * math.sqrt(0.5))).to(x.dtype)
