"""The thirteenth frozen set of healthy kernels, second part: norms with what lies beside them, products of codes."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _deep(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(1.5 * x.float() + y.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype)


def _deep_forward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == y.shape, w.shape == x.shape[1:], b.shape == w.shape, len(w) > 0)
    both = 1.5 * x.float() + y.float()
    mean = both.mean(-1, keepdim=True)
    scale = torch.rsqrt((both - mean).square().mean(-1, keepdim=True) + 1e-5)
    normed = (both - mean) * scale
    return (normed * w.float() + b.float()).to(x.dtype), (normed, scale, w)


def _deep_backward(saved: Any, gradient: torch.Tensor) -> Any:
    normed, scale, w = saved
    given = gradient.float()
    inner = given * w.float()
    slope = scale * (inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True))
    dtype = gradient.dtype
    return (1.5 * slope).to(dtype), slope.to(dtype), (given * normed).sum(0).to(dtype), given.sum(0).to(dtype)


rewrite("a scaled residual and layer norm, derived by hand", _deep, shapes((5, 8), (5, 8), (8,), (8,)))(function(_deep_forward, _deep_backward))


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-5)


def _sandwich(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.float() + _rms(y.float(), w.float())
    return total.to(x.dtype), _rms(total, v.float()).to(x.dtype)


@rewrite("a normed branch, added and normed again, lengths by a root", _sandwich, shapes((4, 9), (4, 9), (9,), (9,)))
def normed_again(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == y.shape, w.shape == x.shape[1:], v.shape == w.shape, len(w) > 0)

    def norm(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return value / (torch.einsum("rc,rc->r", value, value) / len(w) + 1e-5).sqrt()[:, None] * weight.float()

    total = norm(y.float(), w) + x.float()
    return total.to(x.dtype), norm(total, v).to(x.dtype)


def _dropped(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = r.float() + torch.where(keep, x.float() / 0.75, 0.0)
    return _rms(total, w.float()).to(x.dtype), total.to(x.dtype)


def _flags(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(11)) > 0.25


@rewrite("dropout by given flags, residual and rms norm in one", _dropped, lambda dtype: (*shapes((4, 9), (4, 9), (9,))(dtype), _flags(4, 9)))
def by_given_flags(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == r.shape, keep.shape == x.shape, w.shape == x.shape[1:], len(w) > 0)
    total = torch.where(keep, r.float() + (4 / 3) * x.float(), r.float())
    scale = torch.rsqrt(total.square().sum(-1, keepdim=True) / len(w) + 1e-5)
    return (total * (scale * w.float())).to(x.dtype), total.to(x.dtype)


@rewrite("rows of one length with a gain, the reciprocal first",
         lambda x, g: (g.float() * x.float() / x.float().norm(dim=-1, keepdim=True).clamp(min=1e-3)).to(x.dtype), shapes((5, 8), (1,)))  # fmt: skip
def reciprocal_first(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, g.shape == (1,))
    length = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
    return (x.float() * (g.float() * length.clamp(min=1e-3).reciprocal())).to(x.dtype)


def _adaptive(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x.float(), x.shape[-1:]) * (1 + scale.float()[:, None]) + shift.float()[:, None]).to(x.dtype)


@rewrite("layer norm that each sample shifts and scales, one sample after another", _adaptive, shapes((2, 5, 8), (2, 8), (2, 8)))
def sample_after_sample(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, shift.shape == (len(x), x.shape[2]), scale.shape == shift.shape, min(x.shape) > 0)
    made = []
    for rows, down, up in zip(x.float(), shift.float(), scale.float(), strict=True):
        spread, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
        normed = (rows - mean) * torch.rsqrt(spread + 1e-5)
        made.append(normed + normed * up + down)
    return torch.stack(made).to(x.dtype)


def _turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    normed = _rms(x.float(), w.float())
    angle = torch.arange(len(x))[:, None] * 0.5 ** torch.arange(x.shape[1] // 2)
    one, two = normed.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1).to(x.dtype)


@rewrite("rms norm and rope in one, turned before it is scaled", _turned, shapes((5, 8), (8,)))
def turned_before_scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], len(w) > 0, len(w) % 2 == 0)
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    angle = torch.outer(torch.arange(len(x)).float(), 0.5 ** torch.arange(len(w) // 2).float())
    weighed = torch.complex(*(x.float() * w.float()).chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return (torch.cat([weighed.real, weighed.imag], -1) * scale).to(x.dtype)


@rewrite("tanh with a gain in place of a norm, by expm1",
         lambda x, a, w, b: (torch.tanh(a.float() * x.float()) * w.float() + b.float()).to(x.dtype), shapes((4, 7), (1,), (7,), (7,)))  # fmt: skip
def by_expm1(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, a.shape == (1,), w.shape == x.shape[1:], b.shape == w.shape)
    value = a.float() * x.float()
    power = torch.expm1(torch.where(value < 0, 2 * value, -2 * value))
    size = power / (power + 2)
    return (torch.where(value < 0, size, -size) * w.float() + b.float()).to(x.dtype)


def _rested(x: torch.Tensor, r: torch.Tensor, mean: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu((x.float() - mean.float()[:, None]) * w.float()[:, None] + r.float()).to(x.dtype)


def _rested_forward(x: torch.Tensor, r: torch.Tensor, mean: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 3, x.shape == r.shape, mean.shape == x.shape[1:2], w.shape == mean.shape)
    centred = x.float() - mean.float()[:, None]
    made = torch.addcmul(r.float(), centred, w.float()[:, None])
    return made.clamp(min=0).to(x.dtype), (centred, made > 0, w)


def _rested_backward(saved: Any, gradient: torch.Tensor) -> Any:
    centred, opened, w = saved
    given = torch.where(opened, gradient.float(), 0.0)
    scaled = given * w.float()[:, None]
    dtype = gradient.dtype
    return scaled.to(dtype), given.to(dtype), -scaled.sum((0, 2)).to(dtype), (given * centred).sum((0, 2)).to(dtype)


rewrite("channels centred and scaled, residual and relu, flags kept", _rested, shapes((2, 3, 5), (2, 3, 5), (3,), (3,)))(
    function(_rested_forward, _rested_backward)
)


def _standard(w: torch.Tensor) -> torch.Tensor:
    flat = w.float().flatten(1)
    spread, mean = torch.var_mean(flat, 1, correction=0, keepdim=True)
    return ((flat - mean) / (spread + 1e-4).sqrt()).view(w.shape).to(w.dtype)


@rewrite("filters to unit spread, in two passes over channels", _standard, shapes((4, 3, 5)))
def two_passes(w: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 3, w.shape[1] * w.shape[2] > 0)
    size = w.shape[1] * w.shape[2]
    mean = sum((part.float().sum(1) for part in w.unbind(1)), torch.zeros(len(w))) / size
    apart = w.float() - mean[:, None, None]
    spread = sum((part.square().sum(1) for part in apart.unbind(1)), torch.zeros(len(w))) / size
    return (apart * torch.rsqrt(spread + 1e-4)[:, None, None]).to(w.dtype)


def _stretch(w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    v = F.normalize(w.float().T @ u.float(), dim=0, eps=1e-3)
    return (u.float() @ (w.float() @ v)).to(w.dtype)


@rewrite("a step towards the largest stretch, its length alone", _stretch, shapes((5, 7), (5,)))
def length_alone(w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 2, u.shape == w.shape[:1])
    row = u.float() @ w.float()
    return (row.square().sum() / row.norm().clamp(min=1e-3)).to(w.dtype)


def _zeros(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return ((x.float() - 7) @ (w.float() - 9) * s.float()).to(s.dtype)


@rewrite("product of codes with two zeros, corrected by sums", _zeros, lambda dtype: (
    whole(4, 6, most=16), whole(6, 5, most=16, seed=4), *shapes((5,))(dtype)))  # fmt: skip
def corrected_by_sums(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w), s.shape == w.shape[1:])
    whole_sums = x @ w - 7 * w.sum(0) - 9 * x.sum(1, keepdim=True) + 63 * len(w)
    return (whole_sums.float() * s.float()).to(s.dtype)


def _blocks(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    left = x.float() * s.float().repeat_interleave(x.shape[1] // s.shape[1], 1)
    return (left @ (w.float() * t.float().repeat_interleave(len(w) // len(t), 0))).to(x.dtype)


@rewrite("product in scaled blocks of both sides, a block's sum scaled once", _blocks, shapes((4, 12), (12, 5), (4, 3), (3, 5)))
def scaled_once(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, s.dim() == 2, t.dim() == 2, x.shape[1] == len(w), len(s) == len(x), t.shape[1] == w.shape[1])
    need(s.shape[1] == len(t), len(t) > 0, len(w) % len(t) == 0, len(w) > 0)
    size, total = len(w) // len(t), torch.zeros(len(x), w.shape[1])
    for place in range(len(t)):
        part = slice(place * size, place * size + size)
        total = total + (x[:, part].float() @ w[part].float()) * s[:, place, None].float() * t[place].float()
    return total.to(x.dtype)


@rewrite("product with weights of minus one, zero and one, sums apart", lambda x, w: (x.float() @ w.float()).to(x.dtype),
         lambda dtype: (*shapes((4, 9))(dtype), whole(9, 5, most=2, least=-1)))  # fmt: skip
def sums_apart(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w), not bool(((w < -1) | (w > 1)).any()))
    wide = x.float()[..., None]
    return (torch.where(w == 1, wide, 0.0).sum(1) - torch.where(w == -1, wide, 0.0).sum(1)).to(x.dtype)


@rewrite(
    "product with codes in a table of sixteen, looked up in two halves",
    lambda x, table, codes: (x.float() @ table.float()[codes]).to(x.dtype),
    lambda dtype: (*shapes((4, 6), (16,))(dtype), whole(6, 5, most=16)),
)
def two_halves_of_a_table(x: torch.Tensor, table: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, codes.dim() == 2, x.shape[1] == len(codes), table.shape == (16,), not bool(((codes < 0) | (codes >= 16)).any()))
    low, high = table.float()[:8][codes % 8], table.float()[8:][codes % 8]
    return torch.einsum("rk,kc->rc", x.float(), torch.where(codes < 8, low, high)).to(x.dtype)
