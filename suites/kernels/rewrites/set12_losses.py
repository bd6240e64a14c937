"""The twelfth frozen set of healthy kernels, third part: losses, dropout, optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _labelled(rows: int, columns: int, *others: tuple[int, ...], ignored: int = 0) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    def make(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        labels = whole(rows, most=columns)
        labels[:ignored] = -100
        return (*shapes((rows, columns), *others)(dtype), labels)

    return make


def _classes(x: torch.Tensor, y: torch.Tensor) -> None:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y != -100) & ((y < 0) | (y >= x.shape[1]))).any()))


@rewrite("cross entropy of rows, some ignored, by online sums", lambda x, y: F.cross_entropy(x.float(), y, reduction="none").to(x.dtype),
         _labelled(8, 13, ignored=3))  # fmt: skip
def online_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    most, total = torch.full((len(x),), -math.inf), torch.zeros(len(x))
    for tile in x.float().split(4, 1):
        now = torch.maximum(most, tile.amax(1))
        total, most = total * (most - now).exp() + (tile - now[:, None]).exp().sum(1), now
    right = x.float().gather(1, y.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(y == -100, 0.0, total.log() + most - right).to(x.dtype)


def _projected(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float() @ w.float().T, y, reduction="sum").to(x.dtype)


def _projected_forward(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.dim() == 2, w.dim() == 2, x.shape[1] == w.shape[1], len(y) == len(x), y.dim() == 1, len(w) > 0)
    need(not bool(((y != -100) & ((y < 0) | (y >= len(w)))).any()))
    loss, dx, dw = torch.zeros(()), [], torch.zeros(w.shape)
    for rows, labels in zip(x.float().split(3), y.split(3), strict=True):
        scores = rows @ w.float().T
        kept = (labels != -100)[:, None]
        sums = scores.logsumexp(1, keepdim=True)
        loss = loss + torch.where(kept, sums - scores.gather(1, labels.clamp(min=0)[:, None]), 0.0).sum()
        slope = torch.where(kept, (scores - sums).exp() - F.one_hot(labels.clamp(min=0), len(w)), 0.0)
        dx.append(slope @ w.float())
        dw = dw + slope.T @ rows
    return loss.to(x.dtype), (torch.cat(dx), dw)


def _projected_backward(saved: Any, gradient: torch.Tensor) -> Any:
    return *((each * gradient.float()).to(gradient.dtype) for each in saved), None


rewrite("linear and cross entropy, three rows at a time", _projected, lambda dtype: (*shapes((8, 5), (6, 5))(dtype), whole(8, most=6)))(
    function(_projected_forward, _projected_backward)
)


@rewrite("cross entropy with weights of classes",
         lambda x, y: F.cross_entropy(x.float(), y, torch.linspace(0.5, 1.5, x.shape[1]), reduction="none").to(x.dtype),
         _labelled(7, 6))  # fmt: skip
def weights_of_classes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    need(not bool((y == -100).any()))
    weights = torch.linspace(0.5, 1.5, x.shape[1])
    return (-weights[y] * x.float().log_softmax(-1)[torch.arange(len(x)), y]).to(x.dtype)


@rewrite("binary cross entropy, positives weigh more",
         lambda x, y: F.binary_cross_entropy_with_logits(x.float(), y.float(), pos_weight=torch.tensor(3.0),
         reduction="none").to(x.dtype), lambda dtype: (*shapes((5, 8))(dtype), whole(5, 8, most=2)))  # fmt: skip
def weigh_more(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.where(y > 0, 3 * F.softplus(-x.float()), F.softplus(x.float())).to(x.dtype)


def _taught(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    shares = (t.float() / 2).softmax(-1)
    return (4 * F.kl_div((x.float() / 2).log_softmax(-1), shares, reduction="none").sum(-1)).to(x.dtype)


def _taught_forward(x: torch.Tensor, t: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    one, two = ((each.float() / 2).log_softmax(-1) for each in (x, t))
    apart = torch.where(two.exp() == 0, 0.0, two.exp() * (two - one)).sum(-1)
    return (4 * apart).to(x.dtype), (one, two, apart)


def _taught_backward(saved: Any, gradient: torch.Tensor) -> Any:
    one, two, apart = saved
    given = 2 * gradient.float()[:, None]
    slope = torch.where(two.exp() == 0, 0.0, two.exp() * (two - one - apart[:, None]))
    return (given * (one.exp() - two.exp())).to(gradient.dtype), (given * slope).to(gradient.dtype)


rewrite("divergence from a teacher, derived by hand", _taught, shapes((5, 9), (5, 9)))(function(_taught_forward, _taught_backward))


def _mixture(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, two = x.float().softmax(-1), y.float().softmax(-1)
    middle = ((one + two) / 2).log()
    return ((one * (x.float().log_softmax(-1) - middle) + two * (y.float().log_softmax(-1) - middle)).sum(-1) / 2).to(x.dtype)


@rewrite("jensen-shannon divergence, the mixture from logarithms", _mixture, shapes((5, 7), (5, 7)))
def from_logarithms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    one, two = (each.float() - each.float().logsumexp(-1, keepdim=True) for each in (x, y))
    middle = torch.logaddexp(one, two) - math.log(2)
    return (0.5 * (one.exp() * (one - middle)).sum(-1) + 0.5 * (two.exp() * (two - middle)).sum(-1)).to(x.dtype)


@rewrite("smooth absolute difference, by its linear and square part",
         lambda x, y: F.smooth_l1_loss(x.float(), y.float(), beta=0.5, reduction="none").to(x.dtype),
         shapes((5, 8), (5, 8)))  # fmt: skip
def linear_and_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    size = (x.float() - y.float()).abs()
    return torch.where(size < 0.5, size * size, size - 0.25).to(x.dtype)


@rewrite(
    "cosines of pairs, units first", lambda x, y: F.cosine_similarity(x.float(), y.float(), dim=-1, eps=1e-3).to(x.dtype), shapes((6, 9), (6, 9))
)
def units_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    one, two = (each.float() / torch.linalg.vector_norm(each.float(), dim=-1, keepdim=True).clamp(min=1e-3) for each in (x, y))
    return torch.einsum("rc,rc->r", one, two).to(x.dtype)


@rewrite("ratios of two policies, clipped", lambda x, y, a: torch.minimum((x.float() - y.float()).exp() * a.float(),
         (x.float() - y.float()).exp().clamp(0.8, 1.2) * a.float()).to(x.dtype), shapes((6, 5), (6, 5), (6, 5)))  # fmt: skip
def ratios_clipped(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape, x.shape == a.shape)
    ratio = torch.exp(x.float() - y.float())
    gains = torch.where(a > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8))
    return (gains * a.float()).to(x.dtype)


@rewrite("entropy of a softmax, from the sums",
         lambda x: torch.distributions.Categorical(logits=x.float(), validate_args=False).entropy().to(x.dtype),
         shapes((6, 8)))  # fmt: skip
def entropy_from_sums(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    apart = x.float() - x.float().amax(-1, keepdim=True)
    powers = apart.exp()
    total = powers.sum(-1)
    return (total.log() - (powers * apart.clamp(min=-1e30)).sum(-1) / total).to(x.dtype)


@rewrite("gaussian loss, a scale in logarithms",
         lambda x, y, s: (0.5 * (s.float() + (x.float() - y.float()).square() * torch.exp(-s.float()))).to(x.dtype),
         shapes((5, 7), (5, 7), (5, 7)))  # fmt: skip
def scale_in_logarithms(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape, x.shape == s.shape)
    weighed = (x.float() - y.float()) * torch.exp(-0.5 * s.float())
    return (0.5 * s.float() + 0.5 * weighed * weighed).to(x.dtype)


@rewrite("mean loss of the tokens that count", lambda x, m: ((x.float() * m).sum(-1) / m.sum(-1).clamp(min=1)).to(x.dtype),
         lambda dtype: (*shapes((5, 9))(dtype), whole(5, 9, most=2)))  # fmt: skip
def tokens_that_count(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == m.shape)
    counted = torch.zeros(len(x))
    for column, flag in zip(x.float().split(4, 1), m.split(4, 1), strict=True):
        counted = counted + (column * flag).sum(1)
    return (counted / m.sum(-1).clamp(min=1).float()).to(x.dtype)


def _flags(shape: torch.Size, seed: int) -> torch.Tensor:
    """Which numbers are kept: a hash of the place and a seed, as counter-based generators have."""
    place = torch.arange(shape.numel()).view(shape)
    mixed = (place * 2654435761 + seed * 40503) % 2**32
    mixed = ((mixed // 65536) ^ mixed) * 73244475 % 2**32
    return (mixed // 65536) % 10 >= 3


def _drop_forward(x: torch.Tensor) -> Any:
    keep = _flags(x.shape, 11)
    return torch.where(keep, x.float() * (1 / 0.7), 0.0).to(x.dtype), ()


rewrite("dropout with a seed, its flags drawn again", lambda x: torch.where(_flags(x.shape, 11), x.float() / 0.7, 0.0).to(x.dtype), shapes((6, 11)))(
    function(_drop_forward, lambda saved, gradient: torch.where(_flags(gradient.shape, 11), gradient.float() / 0.7, 0.0).to(gradient.dtype))
)


@rewrite("dropout and residual", lambda x, r: (r.float() + torch.where(_flags(x.shape, 5), x.float() / 0.7, 0.0)).to(x.dtype), shapes((4, 9), (4, 9)))
def dropout_and_residual(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    need(x.shape == r.shape)
    kept = x.float().masked_fill(~_flags(x.shape, 5), 0.0)
    return torch.add(r.float(), kept, alpha=1 / 0.7).to(x.dtype)


def _moments(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, v = 0.9 * m.float() + 0.1 * g.float(), 0.95 * v.float().square() + 0.05 * g.float().square()
    return (w.float() * 0.99 - 0.1 * m / (v.sqrt() + 1e-2)).to(w.dtype), m.to(w.dtype), v.to(w.dtype)


@rewrite("adamw, a step of moments at a time", _moments, shapes((4, 6), (4, 6), (4, 6), (4, 6)))
def moments_at_a_time(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(w.shape == g.shape, w.shape == m.shape, w.shape == v.shape)
    one = torch.add(0.9 * m.float(), g.float(), alpha=0.1)
    two = torch.addcmul(0.95 * (v.float() * v.float()), g.float(), g.float(), value=0.05)
    return (w.float() - 0.01 * w.float() - 0.1 * (one / (two.sqrt() + 1e-2))).to(w.dtype), one.to(w.dtype), two.to(w.dtype)
