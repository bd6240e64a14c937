"""A fourth frozen set of healthy kernels: written and committed before any of them was tried.

Three were mended, since they were accused rightly: a NaN of one pixel reached its row and column by way of products with zeros, a gradient of sixteen
parts was added up in bfloat16, and a root had no derivative at 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional
NF4 = (-1.0, -0.696, -0.525, -0.395, -0.284, -0.185, -0.091, 0.0, 0.08, 0.161, 0.246, 0.338, 0.441, 0.563, 0.723, 1.0)


@rewrite("gelu by tanh, as one sigmoid", lambda x: F.gelu(x, approximate="tanh"), shapes((6, 20)))
def one_sigmoid(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide))).to(x.dtype)


@rewrite("attention in two halves of the keys, merged by their logarithms", F.scaled_dot_product_attention, shapes(*[(2, 3, 12, 8)] * 3))
def halves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(k.shape[-2] == v.shape[-2] and k.shape[-2] >= 2)
    parts, cut = [], k.shape[-2] // 2
    for part in (slice(None, cut), slice(cut, None)):
        scores = q.float() @ k[..., part, :].float().mT / math.sqrt(max(q.shape[-1], 1))
        parts.append((scores.softmax(-1) @ v[..., part, :].float(), scores.logsumexp(-1, keepdim=True)))
    (a, first), (b, second) = parts
    share = torch.sigmoid(first - second)
    return (a * share + b * (1 - share)).to(q.dtype)


@rewrite("instance norm as a batch norm of one batch", lambda x: F.instance_norm(x, eps=1e-5), shapes((3, 4, 20)))
def one_batch(x: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] >= 2)
    return F.batch_norm(x.float().reshape(1, -1, x.shape[-1]), None, None, training=True, eps=1e-5).view(x.shape).to(x.dtype)


@rewrite("twice as many pixels, by shares of two", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), shapes((2, 3, 6, 5)))
def by_shares(x: torch.Tensor) -> torch.Tensor:
    need(x.numel())
    wide = x.float()
    for axis in (-2, -1):
        size = wide.shape[axis]
        place = ((torch.arange(2 * size) + 0.5) / 2 - 0.5).clamp(min=0)
        low = place.long()
        share = (place - low).view([-1 if each == axis else 1 for each in range(-x.dim(), 0)])
        wide = torch.lerp(wide.index_select(axis, low), wide.index_select(axis, (low + 1).clamp(max=size - 1)), share)
    return wide.to(x.dtype)


def _labels(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(8, 30, generator=generator).to(dtype), torch.randint(0, 30, (8,), generator=generator)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        most, total = torch.full(logits.shape[:1], -math.inf), torch.zeros(logits.shape[:1])
        for part in logits.float().split(8, -1):
            now = torch.maximum(most, part.amax(-1))
            total = total * (most - now).exp() + (part - now[:, None]).exp().sum(-1)
            most = now
        all_ = most + total.log()
        gradient = (logits.float() - all_[:, None]).exp()
        gradient[torch.arange(len(labels)), labels] -= 1
        ctx.save_for_backward((gradient / max(len(labels), 1)).to(logits.dtype))
        return (all_ - logits.float().gather(1, labels[:, None])[:, 0]).sum() / len(labels) if len(labels) else logits.float().sum() * math.nan

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return kept * gradient.to(kept.dtype), None


rewrite("cross entropy, eight columns at a time, its gradient made beside it", lambda x, y: F.cross_entropy(x.float(), y), _labels)(_Entropy.apply)


@rewrite("sums from behind, by turning round", lambda x: x.float().sum(-1, keepdim=True).sub(x.float().cumsum(-1)).add(x.float()).to(x.dtype),
         shapes((5, 24)))  # fmt: skip
def from_behind(x: torch.Tensor) -> torch.Tensor:
    return x.float().flip(-1).cumsum(-1).flip(-1).to(x.dtype)


def _codes(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (10, 32), generator=generator)
    return torch.randn(6, 32, generator=generator).to(dtype), codes, (torch.rand(10, generator=generator) + 0.1).to(dtype)


def _coded(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x.float() @ (torch.tensor(NF4)[w] * s.float()[:, None]).mT).to(x.dtype)


@rewrite("product with codes of four bits, a product for each code", _coded, _codes)
def by_code(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] == w.shape[-1] and len(w) == len(s))
    wide = x.float()
    total = sum(number * (wide @ (w == code).float().mT) for code, number in enumerate(NF4))
    return (total * s.float()).to(x.dtype)  # type: ignore[union-attr, operator]


def _logits(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(6, 20, generator=generator).to(dtype), torch.rand(6, 20, generator=generator).to(dtype)


@rewrite(
    "binary cross entropy by what is above zero", lambda x, y: F.binary_cross_entropy_with_logits(x.float(), y.float(), reduction="none"), _logits
)
def above_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.softplus(x.float()) - x.float() * y.float()


@rewrite("huber loss by what is cut off", lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.5), shapes((6, 20), (6, 20)))
def cut_off(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    away = x.float() - y.float()
    inner = away.clamp(-0.5, 0.5)
    return (inner * (away - 0.5 * inner)).to(x.dtype)


@rewrite("pixel shuffle by strided stores", lambda x: F.pixel_shuffle(x, 2), shapes((2, 8, 3, 5)))
def strided_stores(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[1] % 4))
    out = x.new_zeros(x.shape[0], x.shape[1] // 4, 2 * x.shape[2], 2 * x.shape[3])
    for row in range(2):
        for column in range(2):
            out[:, :, row::2, column::2] = x[:, 2 * row + column :: 4]
    return out


@rewrite("logarithms of sums so far, step by step", lambda x: torch.logcumsumexp(x.float(), -1).to(x.dtype), shapes((4, 18)))
def so_far(x: torch.Tensor) -> torch.Tensor:
    total, made = None, []
    for column in x.float().unbind(-1):
        total = column if total is None else torch.logaddexp(total, column)
        made.append(total)
    return torch.stack(made, -1).to(x.dtype) if made else torch.zeros_like(x)


def _gru(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    a, b = (x.float() @ w.float()).unflatten(-1, (3, -1)), (h.float() @ u.float()).unflatten(-1, (3, -1))
    reset, update = torch.sigmoid(a[..., 0, :] + b[..., 0, :]), torch.sigmoid(a[..., 1, :] + b[..., 1, :])
    return ((1 - update) * torch.tanh(a[..., 2, :] + reset * b[..., 2, :]) + update * h.float()).to(x.dtype)


@rewrite("a step of a gru, gates in one product", _gru, shapes((5, 6), (5, 8), (6, 24), (8, 24)))
def gates(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    width = h.shape[-1]
    need(w.shape == (x.shape[-1], 3 * width) and u.shape == (width, 3 * width) and len(x) == len(h))
    both = torch.cat([x.float(), h.float()], -1) @ torch.cat([w.float(), u.float()])[:, : 2 * width]
    reset, update = torch.sigmoid(both).chunk(2, -1)
    new = torch.tanh(x.float() @ w.float()[:, 2 * width :] + reset * (h.float() @ u.float()[:, 2 * width :]))
    return torch.lerp(new, h.float(), update).to(x.dtype)


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    scores = (q @ k.mT).tril()
    return (scores @ v.float() / scores.sum(-1, keepdim=True)).to(v.dtype)


@rewrite("linear attention by a state", _linear, shapes(*[(2, 14, 6)] * 3))
def state(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape == k.shape == v.shape and q.shape[1])
    q, k = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    held = torch.einsum("btd,bte->btde", k, F.pad(v.float(), (0, 1), value=1.0)).cumsum(1)
    mixed = torch.einsum("btd,btde->bte", q, held)
    return (mixed[..., :-1] / mixed[..., -1:]).to(v.dtype)


def _solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    lower = a.float().tril(-1) * 0.2 + torch.eye(len(a))
    return torch.linalg.solve_triangular(lower, b.float(), upper=False).to(b.dtype)


@rewrite("triangular solve, row by row", _solved, shapes((7, 7), (7, 4)))
def row_by_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape[0] == a.shape[1] and len(a) == len(b))
    made: list[torch.Tensor] = []
    for place, row in enumerate(b.float().unbind(0)):
        made.append(row - 0.2 * (a[place, :place].float() @ torch.stack(made)) if made else row)
    return torch.stack(made).to(b.dtype) if made else torch.zeros_like(b)


@rewrite("variance by differences of all pairs", lambda x: x.float().var(-1, correction=0).to(x.dtype), shapes((5, 16)))
def all_pairs(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return ((wide[..., None] - wide[..., None, :]).square().mean((-1, -2)) / 2).to(x.dtype)


@rewrite("a norm of rows and columns in turn", lambda x: F.normalize(F.normalize(x.float(), dim=-1), dim=-2).to(x.dtype), shapes((3, 6, 8)))
def in_turn(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    for dim in (-1, -2):
        wide = wide * wide.square().sum(dim, keepdim=True).clamp(min=1e-24).rsqrt()
    return wide.to(x.dtype)


@rewrite("largest of four, as two of two", lambda x: F.max_pool2d(x, 2), shapes((2, 3, 6, 8)))
def two_of_two(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    need(height and width)
    x = x[..., :height, :width]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


@rewrite("focal loss by its logarithms", lambda x, y: ((1 - torch.where(y > 0.5, x.float().sigmoid(), 1 - x.float().sigmoid())) ** 2
         * F.binary_cross_entropy_with_logits(x.float(), (y > 0.5).float(), reduction="none")), _logits)  # fmt: skip
def focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    signed = torch.where(y > 0.5, x.float(), -x.float())
    return torch.sigmoid(-signed).square() * F.softplus(-signed)


@rewrite("two experts and a gate, as one wide product", lambda x, g, w, v: (g.float().softmax(-1)[:, :1] * (x.float() @ w.float())
         + g.float().softmax(-1)[:, 1:2] * (x.float() @ v.float())).to(x.dtype), shapes((6, 9), (6, 2), (9, 5), (9, 5)))  # fmt: skip
def wide_product(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(g.shape[-1] == 2 and w.shape == v.shape and x.shape[-1] == len(w) and len(x) == len(g))
    shares = g.float().softmax(-1)
    return (torch.cat([x.float() * shares[:, :1], x.float() * shares[:, 1:]], -1) @ torch.cat([w.float(), v.float()])).to(x.dtype)


@rewrite(
    "residual, dropout's scale and layer norm in one",
    lambda x, y: F.layer_norm(x.float() + y.float() / 0.9, x.shape[-1:]).to(x.dtype),
    shapes((6, 24), (6, 24)),
)
def in_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.addcdiv(x.float(), y.float(), torch.tensor(0.9))
    centred = total - total.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
