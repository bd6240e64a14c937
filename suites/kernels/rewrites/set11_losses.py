"""The eleventh frozen set of healthy kernels, third part: losses, steps of optimizers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _labelled(rows: int, columns: int, *, ignored: int = 0) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    def make(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        labels = whole(rows, most=columns)
        labels[:ignored] = -1
        return (*shapes((rows, columns))(dtype), labels)

    return make


def _classes(x: torch.Tensor, y: torch.Tensor, least: int = 0) -> None:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < least) | (y >= x.shape[1])).any()))


def _ignoring(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (F.cross_entropy(x.float(), y, ignore_index=-1, reduction="sum") / (y != -1).sum().clamp(min=1)).to(x.dtype)


def _ignoring_forward(x: torch.Tensor, y: torch.Tensor) -> Any:
    _classes(x, y, -1)
    wide, kept = x.float(), y != -1
    sums = wide.logsumexp(-1)
    rows = torch.where(kept, sums - wide.gather(1, y.clamp(min=0)[:, None]).squeeze(1), 0.0)
    slope = (wide - sums[:, None]).exp() - F.one_hot(y.clamp(min=0), x.shape[1])
    count = kept.sum().clamp(min=1)
    return (rows.sum() / count).to(x.dtype), (torch.where(kept[:, None], slope, 0.0) / count,)


rewrite("mean cross entropy with ignored rows, its gradient in the same pass", _ignoring, _labelled(8, 6, ignored=2))(
    function(_ignoring_forward, lambda saved, gradient: ((saved[0] * gradient.float()).to(gradient.dtype), None))
)


@rewrite("cross entropy of smoothed labels, by the mean of the row",
         lambda x, y: F.cross_entropy(x.float(), y, reduction="none", label_smoothing=0.1).to(x.dtype), _labelled(6, 7))  # fmt: skip
def mean_of_the_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    wide = x.float()
    return (wide.logsumexp(-1) - 0.9 * wide.gather(1, y[:, None]).squeeze(1) - 0.1 * wide.mean(-1)).to(x.dtype)


def _with_z(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (F.cross_entropy(x.float(), y, reduction="none") + 0.01 * x.float().logsumexp(-1).square()).to(x.dtype)


def _with_z_forward(x: torch.Tensor, y: torch.Tensor) -> Any:
    _classes(x, y)
    sums = x.float().logsumexp(-1)
    return (sums - x.float().gather(1, y[:, None]).squeeze(1) + 0.01 * sums * sums).to(x.dtype), (x, y, sums)


def _with_z_backward(saved: Any, gradient: torch.Tensor) -> Any:
    x, y, sums = saved
    slope = (x.float() - sums[:, None]).exp() * (1 + 0.02 * sums[:, None])
    slope = slope.scatter_add(1, y[:, None], -torch.ones(len(y), 1))
    return (slope * gradient.float()[:, None]).to(x.dtype), None


rewrite("cross entropy with a penalty of the sums, derived by hand", _with_z, _labelled(6, 9))(function(_with_z_forward, _with_z_backward))


@rewrite("binary cross entropy, by the logarithm of a sigmoid",
         lambda x, y: F.binary_cross_entropy_with_logits(x.float(), y.float(), reduction="none").to(x.dtype), shapes((5, 8), (5, 8)))  # fmt: skip
def logarithm_of_a_sigmoid(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return ((1 - y.float()) * x.float() - F.logsigmoid(x.float())).to(x.dtype)


def _focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.binary_cross_entropy_with_logits(x.float(), y.float(), reduction="none")
    right = x.float().sigmoid() * y.float() + (1 - x.float().sigmoid()) * (1 - y.float())
    return ((1 - right).square() * loss).to(x.dtype)


@rewrite("focal loss, by the signed score", _focal, lambda dtype: (*shapes((5, 8))(dtype), whole(5, 8, most=2)))
def signed_score(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    score = torch.where(y > 0, x.float(), -x.float())
    return ((-score).sigmoid().square() * F.softplus(-score)).to(x.dtype)


@rewrite("divergence of two softmaxes, terms together",
         lambda x, y: F.kl_div(x.float().log_softmax(-1), y.float().log_softmax(-1), reduction="none", log_target=True).sum(-1).to(x.dtype),
         shapes((5, 9), (5, 9)))  # fmt: skip
def terms_together(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    one, two = (each.float() - each.float().logsumexp(-1, keepdim=True) for each in (x, y))
    return torch.einsum("rc,rc->r", two.exp(), two - one).to(x.dtype)


def _triplet(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    near, far = ((a.float() - each.float()).square().sum(-1) for each in (p, n))
    return F.relu(near - far + 0.5).to(a.dtype)


@rewrite("triplets, squares in tiles", _triplet, shapes((5, 11), (5, 11), (5, 11)))
def squares_in_tiles(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == p.shape, a.shape == n.shape)
    near = far = torch.zeros(len(a))
    for one, two, three in zip(*(each.float().split(4, 1) for each in (a, p, n)), strict=True):
        near, far = near + (one - two).square().sum(1), far + (one - three).square().sum(1)
    return (near - far + 0.5).clamp(min=0).to(a.dtype)


def _contrast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float() @ y.float().T, torch.arange(len(x)), reduction="none").to(x.dtype)


@rewrite("contrast of pairs, four columns at a time", _contrast, shapes((6, 5), (6, 5)))
def four_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0)
    parts = [(x.float() @ some.T).logsumexp(-1) for some in y.float().split(4)]
    return (functools.reduce(torch.logaddexp, parts) - (x.float() * y.float()).sum(-1)).to(x.dtype)


@rewrite("mean of squares, rows first", lambda x, y: F.mse_loss(x.float(), y.float()).to(x.dtype), shapes((6, 7), (6, 7)))
def rows_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    apart = x.float() - y.float()
    return ((apart * apart).sum(1).sum() / x.numel()).to(x.dtype) if x.numel() else (apart * apart).mean().to(x.dtype)


def _preferred(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return -F.logsigmoid(0.3 * ((a.float() - b.float()) - (c.float() - d.float()))).to(a.dtype)


@rewrite("preferences, by softplus", _preferred, shapes((9,), (9,), (9,), (9,)))
def by_softplus(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape, a.shape == c.shape, a.shape == d.shape)
    score = 0.3 * (a.float() - b.float()) - 0.3 * (c.float() - d.float())
    return torch.logaddexp(-score, torch.zeros_like(score)).to(a.dtype)


@rewrite("loss of a quantile, by two halves", lambda x, y: torch.maximum(0.3 * (y.float() - x.float()), -0.7 * (y.float() - x.float())).to(x.dtype),
         shapes((5, 8), (5, 8)))  # fmt: skip
def two_halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = y.float() - x.float()
    return (0.3 * apart.clamp(min=0) + 0.7 * (-apart).clamp(min=0)).to(x.dtype)


def _adam(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    one, two = 0.9 * m.float() + 0.1 * g.float(), 0.99 * v.float().abs() + 0.01 * g.float().square()
    step = (one / (1 - 0.9**4)) / ((two / (1 - 0.99**4)).sqrt() + 1e-3)
    return (w.float() - 0.05 * step).to(w.dtype), one.to(m.dtype), two.to(v.dtype)


STATES = shapes((6, 5), (6, 5), (6, 5), (6, 5))


@rewrite("adam, moments in buffers", _adam, STATES)
def moments_in_buffers(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(w.shape == g.shape, w.shape == m.shape, w.shape == v.shape)
    one = torch.lerp(m.float(), g.float(), 0.1)
    two = torch.addcmul(v.float().abs() * 0.99, g.float(), g.float(), value=0.01)
    root = two.sqrt() / math.sqrt(1 - 0.99**4) + 1e-3
    return torch.addcdiv(w.float(), one, root, value=-0.05 / (1 - 0.9**4)).to(w.dtype), one.to(m.dtype), two.to(v.dtype)


def _nesterov(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = g.float() + 0.01 * w.float()
    kept = 0.9 * m.float() + given
    return (w.float() - 0.1 * (given + 0.9 * kept)).to(w.dtype), kept.to(m.dtype)


@rewrite("momentum that looks ahead, one expression", _nesterov, shapes((6, 5), (6, 5), (6, 5)))
def looks_ahead(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(w.shape == g.shape, w.shape == m.shape)
    given = torch.add(g.float(), w.float(), alpha=0.01)
    return (w.float() - 0.19 * given - 0.081 * m.float()).to(w.dtype), torch.add(given, m.float(), alpha=0.9).to(m.dtype)


def _lion(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    step = (0.9 * m.float() + 0.1 * g.float()).sign()
    return (w.float() * 0.999 - 0.01 * step).to(w.dtype), (0.99 * m.float() + 0.01 * g.float()).to(m.dtype)


@rewrite("lion, by two interpolations", _lion, shapes((6, 5), (6, 5), (6, 5)))
def two_interpolations(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(w.shape == g.shape, w.shape == m.shape)
    step = torch.sign(torch.lerp(m.float(), g.float(), 0.1))
    return torch.add(w.float() * 0.999, step, alpha=-0.01).to(w.dtype), torch.lerp(m.float(), g.float(), 0.01).to(m.dtype)


def _clipped(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    norm = (a.float().square().sum() + b.float().square().sum()).sqrt()
    scale = (1.5 / (norm + 1e-6)).clamp(max=1.0)
    return (a.float() * scale).to(a.dtype), (b.float() * scale).to(b.dtype)


@rewrite("gradients clipped by the norm of all, norms of chunks merged", _clipped, shapes((6, 5), (7,)))
def norms_of_chunks(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chunks = [part.square().sum() for each in (a, b) for part in each.float().reshape(-1).split(8)]
    scale = torch.minimum(1.5 / (torch.stack(chunks).sum().sqrt() + 1e-6), torch.ones(()))
    return (a.float() * scale).to(a.dtype), (b.float() * scale).to(b.dtype)


def _schulz(x: torch.Tensor) -> torch.Tensor:
    made = x.float() / (x.float().norm() + 1e-4)
    for _ in range(2):
        product = made @ made.T
        made = 2 * made + (-1.5 * product + 0.5 * product @ product) @ made
    return made.to(x.dtype)


@rewrite("two steps to orthogonal rows, products with a sum", _schulz, shapes((4, 7)))
def orthogonal_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made = x.float() / (torch.linalg.vector_norm(x.float()) + 1e-4)
    for _ in range(2):
        product = made @ made.T
        inner = torch.addmm(product, product, product, beta=-1.5, alpha=0.5)
        made = torch.addmm(made, inner, made, beta=2)
    return made.to(x.dtype)


@rewrite("moving average of weights", lambda w, x: (0.95 * w.float() + 0.05 * x.float()).to(w.dtype), shapes((6, 5), (6, 5)))
def moving_average(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(w.shape == x.shape)
    return (w.float() + 0.05 * (x.float() - w.float())).to(w.dtype)
