"""An eleventh frozen set of healthy kernels: norms, activations, gates. Written and committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], w.float(), 1e-5).to(x.dtype)


def _layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], w.float(), b.float()).to(x.dtype)


@rewrite("rms norm, squares by einsum", _rms, shapes((5, 18), (18,)))
def by_einsum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], len(w) > 0)
    wide = x.float()
    scale = (torch.einsum("rc,rc->r", wide, wide) / len(w) + 1e-5).rsqrt()
    return torch.einsum("rc,r,c->rc", wide, scale, w.float()).to(x.dtype)


def _one_more(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.rms_norm(x.float(), x.shape[-1:], None, 1e-6) * (1 + w.float())).to(x.dtype)


def _one_more_forward(x: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2, w.shape == x.shape[1:], len(w) > 0)
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale * (1 + w.float())).to(x.dtype), (x, w, scale)


def _one_more_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w, scale = saved
    normed, wide = x.float() * scale, gradient.float()
    given = wide * (1 + w.float())
    dx = scale * (given - normed * (given * normed).mean(-1, keepdim=True))
    parts = torch.stack([some.sum(0) for some in (wide * normed).split(2)])
    return dx.to(x.dtype), parts.sum(0).to(w.dtype)


rewrite("rms norm with one more than the weight, derived by hand", _one_more, shapes((6, 11), (11,)))(function(_one_more_forward, _one_more_backward))


def _layer_forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2, w.shape == x.shape[1:], b.shape == w.shape, len(w) > 0)
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    scale = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + 1e-5)
    return ((wide - mean) * scale * w.float() + b.float()).to(x.dtype), (x, w, mean, scale)


def _layer_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, w, mean, scale = saved
    normed, wide = (x.float() - mean) * scale, gradient.float()
    given = wide * w.float()
    first, second = given.sum(-1, keepdim=True) / len(w), (given * normed).sum(-1, keepdim=True) / len(w)
    return (scale * (given - first - normed * second)).to(x.dtype), (wide * normed).sum(0).to(w.dtype), wide.sum(0).to(w.dtype)


rewrite("layer norm, its backward pass computes the normed rows again", _layer, shapes((5, 13), (13,), (13,)))(
    function(_layer_forward, _layer_backward)
)


@rewrite("group norm, as a layer norm of a view", lambda x, w, b: F.group_norm(x.float(), 2, w.float(), b.float()).to(x.dtype),
         shapes((3, 4, 6), (4,), (4,)))  # fmt: skip
def of_a_view(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, w.shape == x.shape[1:2], b.shape == w.shape, x.numel() > 0)
    rows = x.float().reshape(len(x), 2, -1)
    normed = F.layer_norm(rows, rows.shape[-1:]).view(x.shape)
    return torch.addcmul(b.float()[:, None], normed, w.float()[:, None]).to(x.dtype)


@rewrite("instance norm, in two passes", lambda x: F.instance_norm(x.float()).to(x.dtype), shapes((2, 3, 9)))
def two_passes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] > 1, x.numel() > 0)
    apart = x.float() - sum(part.sum(2, keepdim=True) for part in x.float().split(4, 2)) / x.shape[2]
    spread = sum(part.square().sum(2, keepdim=True) for part in apart.split(4, 2)) / x.shape[2]
    return (apart / (spread + 1e-5).sqrt()).to(x.dtype)


@rewrite("lengths of rows made one, by a reciprocal root", lambda x: F.normalize(x.float(), dim=-1, eps=1e-6).to(x.dtype), shapes((5, 9)))
def reciprocal_root(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 1)
    wide = x.float()
    return (wide * wide.square().sum(-1, keepdim=True).clamp(min=1e-12).rsqrt()).to(x.dtype)


@rewrite("batch norm of one batch, columns first", lambda x, w: F.batch_norm(x.float(), None, None, w.float(), None, True).to(x.dtype),
         shapes((10, 6), (6,)))  # fmt: skip
def columns_first(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1, w.shape == x.shape[1:])
    turned = x.float().T.contiguous()
    apart = turned - turned.mean(1, keepdim=True)
    return (apart * ((apart * apart).mean(1, keepdim=True) + 1e-5).rsqrt() * w.float()[:, None]).T.to(x.dtype)


@rewrite("softmax, powers of two", lambda x: x.float().softmax(-1).to(x.dtype), shapes((5, 17)))
def powers_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    wide = x.float()
    powers = torch.exp2((wide - wide.detach().amax(-1, keepdim=True)) * math.log2(math.e))
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def _log_forward(x: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape[1] > 0)
    most, total = torch.full((len(x), 1), -math.inf), torch.zeros(len(x), 1)
    for tile in x.float().split(6, 1):
        now = torch.maximum(most, tile.amax(1, keepdim=True))
        total, most = total * (most - now).exp() + (tile - now).exp().sum(1, keepdim=True), now
    sums = most + total.log()
    return (x.float() - sums).to(x.dtype), (x, sums)


def _log_backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
    x, sums = saved
    wide = gradient.float()
    return (wide - (x.float() - sums).exp() * wide.sum(-1, keepdim=True)).to(gradient.dtype)


rewrite("log softmax, online, its backward pass from the sums", lambda x: x.float().log_softmax(-1).to(x.dtype),
        shapes((4, 19)))(function(_log_forward, _log_backward))  # fmt: skip


@rewrite("softmax of scores with a scale and a bias", lambda x, b: (x.float() / 3 + b.float()).softmax(-1).to(x.dtype), shapes((5, 12), (12,)))
def scale_and_bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, b.shape == x.shape[1:], len(b) > 0)
    scores = torch.add(b.float(), x.float(), alpha=1 / 3)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp().to(x.dtype)


rewrite("softplus, its slope a sigmoid", lambda x: F.softplus(x.float()).to(x.dtype), shapes((5, 9)))(
    function(
        lambda x: ((x.float().clamp(min=0) + torch.log1p((-x.float().abs()).exp())).to(x.dtype), (x,)),
        lambda saved, gradient: (gradient.float() * saved[0].float().sigmoid()).to(gradient.dtype),
    )
)


@rewrite("mish, one tanh of one logarithm", lambda x: F.mish(x.float()).to(x.dtype), shapes((5, 9)))
def one_logarithm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.tanh(torch.logaddexp(wide, torch.zeros_like(wide)))).to(x.dtype)


def _silu_forward(x: torch.Tensor) -> Any:
    held = torch.empty(x.shape)
    torch.sigmoid(x.float(), out=held)
    held.mul_(x.float())
    return held.to(x.dtype), (x,)


def _silu_backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
    wide = saved[0].float()
    opened = wide.sigmoid()
    return (gradient.float() * (opened * (1 + wide * (1 - opened)))).to(gradient.dtype)


rewrite("silu, in a buffer of its own", lambda x: F.silu(x.float()).to(x.dtype), shapes((4, 11)))(function(_silu_forward, _silu_backward))


def _tanh_gelu_backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
    wide, root = saved[0].float(), math.sqrt(2 / math.pi)
    bent = torch.tanh(root * (wide + 0.044715 * wide**3))
    slope = 0.5 * (1 + bent) + 0.5 * wide * (1 - bent * bent) * root * (1 + 3 * 0.044715 * wide * wide)
    return (gradient.float() * slope).to(gradient.dtype)


rewrite("gelu by tanh, its slope written out", lambda x: F.gelu(x.float(), approximate="tanh").to(x.dtype), shapes((5, 8)))(
    function(lambda x: (F.gelu(x.float(), approximate="tanh").to(x.dtype), (x,)), _tanh_gelu_backward)
)


def _geglu_forward(x: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape[1] % 2 == 0)
    gate, value = x.float().chunk(2, -1)
    return (0.5 * gate * torch.special.erfc(-gate * math.sqrt(0.5)) * value).to(x.dtype), (x,)


def _geglu_backward(saved: Any, gradient: torch.Tensor) -> torch.Tensor:
    gate, value = saved[0].float().chunk(2, -1)
    phi = 0.5 * torch.special.erfc(-gate * math.sqrt(0.5))
    bell, wide = (-0.5 * gate * gate).exp() / math.sqrt(2 * math.pi), gradient.float()
    return torch.cat([wide * value * (phi + gate * bell), wide * gate * phi], -1).to(gradient.dtype)


rewrite("geglu of one tensor, derived by hand", lambda x: (F.gelu(x.float().chunk(2, -1)[0]) * x.float().chunk(2, -1)[1]).to(x.dtype),
        shapes((5, 14)))(function(_geglu_forward, _geglu_backward))  # fmt: skip

rewrite("squares of what is above zero, derived by hand", lambda x: F.relu(x.float()).square().to(x.dtype), shapes((5, 10)))(
    function(
        lambda x: (x.float().clamp(min=0).square().to(x.dtype), (x,)),
        lambda saved, gradient: (2 * saved[0].float().clamp(min=0) * gradient.float()).to(gradient.dtype),
    )
)


@rewrite("hard swish, by a clamp", lambda x: F.hardswish(x.float()).to(x.dtype), shapes((5, 10)))
def by_a_clamp(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * ((wide + 3).clamp(0, 6) / 6)).to(x.dtype)


@rewrite("elu, by expm1 of what is below zero", lambda x: F.elu(x.float()).to(x.dtype), shapes((5, 10)))
def below_zero(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.where(wide > 0, wide, torch.expm1(torch.where(wide > 0, 0.0, wide))).to(x.dtype)


@rewrite("gated rms norm of what silu opens", lambda x, z, w: F.rms_norm(x.float() * F.silu(z.float()), x.shape[-1:], w.float(), 1e-5).to(x.dtype),
         shapes((4, 10), (4, 10), (10,)))  # fmt: skip
def what_silu_opens(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == z.shape, w.shape == x.shape[1:], len(w) > 0)
    opened = x.float() * z.float() * z.float().sigmoid()
    return (opened * (opened.square().sum(-1, keepdim=True) / len(w) + 1e-5).rsqrt() * w.float()).to(x.dtype)
