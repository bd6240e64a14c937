"""An eighth frozen set of healthy kernels: norms, activations, operators of torch.library. Written and committed before any was tried.

Two were mended, which were accused rightly: a gradient of NaN where all are equal, and one that is wrong at 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _of_columns(x: torch.Tensor, *weights: torch.Tensor) -> None:
    need(not any(x.shape[-1:] != each.shape for each in weights))


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], w.float(), 1e-6).to(x.dtype)


@rewrite("rms norm, squares of four lanes", _rms, shapes((5, 30), (30,)))
def four_lanes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _of_columns(x, w)
    lanes = [x[..., lane::4].float().square().sum(-1, keepdim=True) for lane in range(4)]
    mean = ((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])) / max(x.shape[-1], 1)
    return (x.float() * torch.rsqrt(mean + 1e-6) * w.float()).to(x.dtype)


@torch.library.custom_op("eighth::rms", mutates_args=())
def rms_operator(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _of_columns(x, w)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


@rms_operator.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _rms_slope(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = ctx.saved_tensors
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    normed, given = x.float() * scale, gradient.float() * w.float()
    terms = (gradient.float() * normed).reshape(-1, w.shape[0]) if w.shape[0] else gradient.float().reshape(0, 0)
    return (scale * (given - normed * (given * normed).mean(-1, keepdim=True))).to(x.dtype), terms.sum(0).to(w.dtype)


rms_operator.register_autograd(_rms_slope, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
rewrite("rms norm, an operator of torch.library", _rms, shapes((5, 30), (30,)))(rms_operator)


class _Tiled(torch.autograd.Function):
    """Layer norm; the gradient of its weight is added up in tiles of rows, and its statistics are computed again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        _of_columns(x, w, b)
        ctx.save_for_backward(x, w, b)
        return F.layer_norm(x.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w, b = ctx.saved_tensors
        rows, given = (each.float().reshape(-1, len(w)) if len(w) else each.float().reshape(0, 0) for each in (x, gradient))
        dw, db, parts = torch.zeros(len(w)), torch.zeros(len(w)), [torch.zeros(0, len(w))]
        for some, wanted in zip(rows.split(3), given.split(3), strict=True) if len(rows) else ():
            centred = some - some.mean(-1, keepdim=True)
            scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
            normed, weighed = centred * scale, wanted * w.float()
            dw, db = dw + (wanted * normed).sum(0), db + wanted.sum(0)
            parts.append(scale * (weighed - weighed.mean(-1, keepdim=True) - normed * (weighed * normed).mean(-1, keepdim=True)))
        return torch.cat(parts).reshape(x.shape).to(x.dtype), dw.to(w.dtype), db.to(b.dtype)


rewrite("layer norm, derived in tiles of rows", lambda x, w, b: F.layer_norm(x.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype),
        shapes((7, 20), (20,), (20,)))(_Tiled.apply)  # fmt: skip


@rewrite("layer norm without weights, sums compensated", lambda x: F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype), shapes((6, 33)))
def compensated_norm(x: torch.Tensor) -> torch.Tensor:
    def added(parts: list[torch.Tensor]) -> torch.Tensor:
        total = lost = torch.zeros(x.shape[:-1])
        for each in parts:
            term = each - lost.detach()
            now = total + term
            lost, total = (now - total) - term, now
        return total[..., None] / max(x.shape[-1], 1)

    wide = x.float()
    centred = wide - added(list(wide.unbind(-1)))
    return (centred * torch.rsqrt(added(list(centred.square().unbind(-1))) + 1e-5)).to(x.dtype)


def _batch(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x.float(), None, None, w.float(), b.float(), training=True).to(x.dtype)


@rewrite("batch norm in training, shifted by the first row", _batch, shapes((9, 6), (6,), (6,)))
def shifted(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) >= 2 and x.shape[1:] == w.shape == b.shape)
    apart = x.float() - x[0].detach().float()
    mean = apart.mean(0)
    spread = (apart - mean).square().mean(0)
    return ((apart - mean) * (w.float() * torch.rsqrt(spread + 1e-5)) + b.float()).to(x.dtype)


@rewrite("residual added in a buffer, rms norm in place", lambda x, r, w: _rms((x.float() + r.float()).to(x.dtype), w),
         shapes((5, 18), (5, 18), (18,)))  # fmt: skip
def in_place(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _of_columns(x, w)
    need(x.shape == residual.shape)
    held = x.float().clone()
    held.add_(residual.float())
    held = held.to(x.dtype).float()
    return held.mul(torch.rsqrt(held.square().mean(-1, keepdim=True) + 1e-6)).mul_(w.float()).to(x.dtype)


@rewrite("rows to unit spread, both moments by Welford", lambda x: (x.float() / (x.float().std(-1, keepdim=True) + 0.1)).to(x.dtype), shapes((6, 21)))
def unit_spread(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1] >= 2)
    wide = x.float()
    mean, spread = wide[..., 0], torch.zeros(x.shape[:-1])
    for count, column in enumerate(wide.unbind(-1)[1:], 2):
        apart = column - mean
        mean = mean + apart / count
        spread = spread + apart * (column - mean)
    spread = spread / (x.shape[-1] - 1)
    root = torch.where(spread > 0, spread.where(spread != 0, 1).sqrt(), spread)
    return (wide / (root[..., None] + 0.1)).to(x.dtype)


@rewrite("norm of heads, given back transposed", lambda x, w: _rms(x, w).transpose(0, 1).contiguous(), shapes((4, 7, 12), (12,)))
def given_transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _of_columns(x, w)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype).transpose(0, 1)


class _Swish(torch.autograd.Function):
    """x sigmoid(1.5 x), its slope from the input alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x.float() * torch.sigmoid(1.5 * x.float())).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(1.5 * x.float())
        return (gradient.float() * share * (1 + 1.5 * x.float() * torch.sigmoid(-1.5 * x.float()))).to(x.dtype)


rewrite("swish, derived from its input", lambda x: (x.float() * (1.5 * x.float()).sigmoid()).to(x.dtype), shapes((6, 20)))(_Swish.apply)


@rewrite("selu, by its pieces", lambda x: F.selu(x.float()).to(x.dtype), shapes((6, 20)))
def selu_pieces(x: torch.Tensor) -> torch.Tensor:
    wide, alpha, scale = x.float(), 1.6732632423543772, 1.0507009873554805
    return torch.where(wide > 0, scale * wide, scale * alpha * torch.expm1(wide.clamp(max=0))).to(x.dtype)


@rewrite("logarithm of a cosine, by a sum of powers", lambda x: (x.float().abs() + (-2 * x.float().abs()).exp().log1p() - math.log(2)).to(x.dtype),
         shapes((6, 20)))  # fmt: skip
def log_cosine(x: torch.Tensor) -> torch.Tensor:
    return (torch.logaddexp(x.float(), -x.float()) - math.log(2)).to(x.dtype)


@rewrite("softsign, as one less a share", lambda x: F.softsign(x.float()).to(x.dtype), shapes((6, 20)))
def softsign(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * torch.reciprocal(1 + x.float().abs())).to(x.dtype)


@rewrite("gates of two halves, interleaved", lambda x: (F.silu(x[..., ::2].float()) * x[..., 1::2].float()).to(x.dtype), shapes((6, 20)))
def interleaved(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 2))
    gate, value = x.float().unflatten(-1, (-1, 2)).unbind(-1) if x.shape[-1] else (x.float(), x.float())
    return (gate * torch.sigmoid(gate) * value).to(x.dtype)


@rewrite("gates of tanh and sigmoid, by exponentials below one", lambda a, b: (a.float().tanh() * b.float().sigmoid()).to(a.dtype),
         shapes((5, 16), (5, 16)))  # fmt: skip
def below_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)
    size, other = torch.where(a >= 0, a.float(), -a.float()), torch.where(b >= 0, -b.float(), b.float()).exp()
    tanh = -torch.expm1(-2 * size) / (1 + (-2 * size).exp())
    return (torch.where(a >= 0, tanh, -tanh) * torch.where(b >= 0, 1 / (1 + other), other / (1 + other))).to(a.dtype)
