"""A third frozen set of healthy kernels: written and committed before any of them was tried."""

from __future__ import annotations

import math

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _chain(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (x.float() @ w.float() @ v.float()).to(x.dtype)


@rewrite("two products, the other first", _chain, shapes((6, 9), (9, 5), (5, 7)))
def other_first(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (x.float() @ (w.float() @ v.float())).to(x.dtype)


@rewrite("mish by one exponential", lambda x: F.mish(x.float()).to(x.dtype), shapes((7, 13)))
def mish(x: torch.Tensor) -> torch.Tensor:
    small = torch.exp(-x.float().abs())
    above = (1 + 2 * small) / (1 + 2 * small + 2 * small * small)
    below = (small * small + 2 * small) / (small * small + 2 * small + 2)
    return (x.float() * torch.where(x >= 0, above, below)).to(x.dtype)


@rewrite("squared distances by products", lambda a, b: torch.cdist(a.double(), b.double()).square().to(a.dtype), shapes((6, 5), (8, 5)))
def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double()[:, None] - b.double()[None]).square().sum(-1).to(a.dtype)


def _smoothed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x.float()[:, None], w.float()[None, None], padding=len(w) // 2)[:, 0].to(x.dtype)


@rewrite("a filter as a product with its windows", _smoothed, shapes((4, 15), (5,)))
def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    side = len(w) // 2
    need(x.shape[-1] + 2 * side >= len(w) and len(w))
    return torch.einsum("btk,k->bt", F.pad(x.float(), (side, side)).unfold(-1, len(w), 1), w.float()).to(x.dtype)


def _pooled(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (torch.einsum("bt,btd->bd", s.float().softmax(-1), x.float())).to(x.dtype)


@rewrite("attention pooling in two passes", _pooled, shapes((3, 11, 6), (3, 11)))
def two_passes(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.shape[:2] == s.shape)
    powers = torch.exp(s.float() - s.float().amax(-1, keepdim=True)) if s.shape[-1] else s.float()
    return ((powers[..., None] * x.float()).sum(1) / powers.sum(-1, keepdim=True)).to(x.dtype)


@rewrite("softplus of a difference, by logarithms of sums", lambda a, b: F.softplus((a - b).float()).to(a.dtype), shapes((5, 9), (5, 9)))
def bradley(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = (a - b).float()
    return torch.logaddexp(wide, torch.zeros_like(wide)).to(a.dtype)


@rewrite("geglu from one tensor", lambda x: (F.gelu(x.float()[..., ::2]) * x.float()[..., 1::2]).to(x.dtype), shapes((6, 14)))
def pairs(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[-1] % 2))
    gate, value = x.float().unflatten(-1, (-1, 2)).unbind(-1) if x.shape[-1] else (x.float(), x.float())
    return (0.5 * gate * torch.special.erfc(-gate / math.sqrt(2)) * value).to(x.dtype)


@rewrite("rows and columns of means by one product", lambda x: x.float().mean(-1).to(x.dtype), shapes((6, 33)))
def mean(x: torch.Tensor) -> torch.Tensor:
    return (x.float() @ torch.full((x.shape[-1],), 1 / max(x.shape[-1], 1))).to(x.dtype) if x.shape[-1] else x.float().mean(-1).to(x.dtype)
