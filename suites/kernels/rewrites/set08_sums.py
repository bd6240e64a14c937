"""The eighth frozen set of healthy kernels, third part: losses, sums, products, choices."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _columns(x: torch.Tensor, dims: int = 2) -> None:
    need(x.dim() == dims and x.shape[-1])


@rewrite("softmax at a temperature, two passes in tiles", lambda x: (x.float() / 0.7).softmax(-1).to(x.dtype), shapes((5, 37)))
def two_passes(x: torch.Tensor) -> torch.Tensor:
    _columns(x)
    tiles = [each.float() / 0.7 for each in x.split(16, -1)]
    most = functools.reduce(torch.maximum, [each.detach().amax(-1, keepdim=True) for each in tiles])
    powers = [(each - most).exp() for each in tiles]
    total = functools.reduce(torch.add, [each.sum(-1, keepdim=True) for each in powers])
    return torch.cat([each / total for each in powers], -1).to(x.dtype)


@rewrite("log softmax of columns, turned over and back", lambda x: x.float().log_softmax(0).to(x.dtype), shapes((9, 7)))
def turned_over(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x))
    rows = x.T.contiguous().float()
    rows = rows - rows.detach().amax(-1, keepdim=True)
    return (rows - rows.exp().sum(-1, keepdim=True).log()).T.to(x.dtype)


def _weighed(logits: torch.Tensor, labels: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, weight=w.float(), reduction="none").to(logits.dtype)


def _classes(dtype: torch.dtype) -> tuple[Any, ...]:
    logits, w = shapes((6, 13), (13,))(dtype)
    return logits, torch.tensor([3, 12, 0, 7, 7, 1]), w.abs()


@rewrite("cross entropy with weights of classes, by gathers", _weighed, _classes)
def by_gathers(logits: torch.Tensor, labels: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _columns(logits)
    need(labels.shape == logits.shape[:1] and w.shape == logits.shape[1:])
    wide = logits.float()
    right = wide.gather(1, labels[:, None])[:, 0]
    return (w.float()[labels] * (wide.logsumexp(-1) - right)).to(logits.dtype)


class _Beside(torch.autograd.Function):
    """Cross entropy of labels of which some are ignored; the gradient is made in the forward pass, into a buffer of its own."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        _columns(logits)
        need(labels.shape == logits.shape[:1])
        kept = labels >= 0
        logs = logits.float().log_softmax(-1)
        held = logs.exp()
        held[torch.arange(len(labels)), labels.clamp(min=0)] -= 1
        held *= kept[:, None]
        ctx.save_for_backward(held)
        ctx.dtype = logits.dtype
        return torch.where(kept, -logs[torch.arange(len(labels)), labels.clamp(min=0)], 0).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (ctx.saved_tensors[0] * gradient.float()[:, None]).to(ctx.dtype), None


def _ignored(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="none").to(logits.dtype)


rewrite("cross entropy with ignored labels, its gradient in a buffer", _ignored,
        lambda dtype: (shapes((6, 13))(dtype)[0], torch.tensor([3, -1, 0, 7, -1, 12])))(_Beside.apply)  # fmt: skip


@rewrite("cross entropy with soft labels, in chunks",
         lambda x, y: F.cross_entropy(x.float(), y.float().softmax(-1), reduction="none").to(x.dtype), shapes((6, 21), (6, 21)))  # fmt: skip
def soft_chunks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _columns(x)
    need(x.shape == y.shape)
    wanted, whole = y.float().softmax(-1), x.float().logsumexp(-1, keepdim=True)
    parts = [(share * (whole - part)).sum(-1) for share, part in zip(wanted.split(8, -1), x.float().split(8, -1), strict=True)]
    return functools.reduce(torch.add, parts).to(x.dtype)


@rewrite("binary cross entropy, positives weighed",
         lambda x, y, w: F.binary_cross_entropy_with_logits(x.float(), y.float().sigmoid(), pos_weight=w.float().exp(), reduction="none").to(x.dtype),
         shapes((5, 8), (5, 8), (8,)))  # fmt: skip
def positives(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape and x.shape[-1:] == w.shape)
    wide, wanted, weight = x.float(), y.float().sigmoid(), w.float().exp()
    return (weight * wanted * F.softplus(-wide, threshold=80) + (1 - wanted) * F.softplus(wide, threshold=80)).to(x.dtype)


def _from_unit(m: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (0.5 * (m.float().square() + s.float().exp() - 1 - s.float()).sum(-1)).to(m.dtype)


@rewrite("divergence from the unit Gaussian, by expm1", _from_unit, shapes((6, 10), (6, 10)))
def by_expm1(m: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(m.shape == s.shape)
    return (0.5 * ((m.float() * m.float()).sum(-1) + (torch.expm1(s.float()) - s.float()).sum(-1))).to(m.dtype)


@rewrite(
    "poisson loss, of its logarithm", lambda x, y: F.poisson_nll_loss(x.float(), y.float(), reduction="none").to(x.dtype), shapes((5, 12), (5, 12))
)
def of_logarithm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.addcmul(torch.exp(x.float()), y.float(), x.float(), value=-1).to(x.dtype)


@rewrite("margins between classes, one by one", lambda x, y: F.multi_margin_loss(x.float(), y, reduction="none").to(x.dtype),
         lambda dtype: (shapes((6, 9))(dtype)[0], torch.tensor([3, 8, 0, 7, 2, 1])))  # fmt: skip
def one_by_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _columns(x)
    need(y.shape == x.shape[:1])
    wide = x.float()
    right = wide[torch.arange(len(x)), y]
    total = torch.zeros(len(x))
    for number, column in enumerate(wide.unbind(1)):
        total = total + torch.where(y == number, 0, (1 - right + column).clamp(min=0))
    return (total / x.shape[1]).to(x.dtype)


@rewrite("product, blocks added with compensation", lambda a, b: (a.float() @ b.float()).to(a.dtype), shapes((6, 50), (50, 7)))
def compensated_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b))
    total, lost = torch.zeros(len(a), b.shape[1]), torch.zeros(len(a), b.shape[1])
    for left, right in zip(a.split(8, 1), b.split(8), strict=True) if len(b) else ():
        term = left.float() @ right.float() - lost
        now = total + term
        lost, total = ((now - total) - term).detach(), now
    return total.to(a.dtype)


@rewrite("product of transposes, given back transposed", lambda a, b: (a.float().T @ b.float()).to(a.dtype), shapes((9, 6), (9, 5)))
def of_transposes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and len(a) == len(b))
    return (b.float().T @ a.float()).T.to(a.dtype)


@rewrite("sums of rows and of columns, in one pass", lambda x: (x.float().sum(1).to(x.dtype), x.float().sum(0).to(x.dtype)), shapes((7, 11)))
def in_one_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2)
    rows, columns = [torch.zeros(0)], torch.zeros(x.shape[1])
    for some in x.split(2) if len(x) else ():
        rows.append(some.float().sum(1))
        columns = columns + some.float().sum(0)
    return torch.cat(rows).to(x.dtype), columns.to(x.dtype)


@rewrite("mean and variance, moments of blocks merged",
         lambda x: (x.float().mean(-1).to(x.dtype), x.float().var(-1, correction=0).to(x.dtype)), shapes((6, 29)))  # fmt: skip
def merged_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _columns(x)
    count, mean, spread = 0, torch.zeros(len(x)), torch.zeros(len(x))
    for part in x.float().split(8, -1):
        own = part.mean(-1)
        apart, whole = own - mean, count + part.shape[1]
        spread = spread + (part - own[:, None]).square().sum(-1) + apart.square() * (count * part.shape[1] / whole)
        mean, count = mean + apart * (part.shape[1] / whole), whole
    return mean.to(x.dtype), (spread / count).to(x.dtype)


@rewrite("sums before each place, by chunks", lambda x: (x.float().cumsum(-1) - x.float()).to(x.dtype), shapes((5, 23)))
def before_each(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    carry, made = torch.zeros(*x.shape[:-1], 1), [torch.zeros(*x.shape[:-1], 0)]
    for part in x.float().split(6, -1) if x.shape[-1] else ():
        sums = part.cumsum(-1)
        made.append(carry + F.pad(sums[..., :-1], (1, 0)))
        carry = carry + sums[..., -1:]
    return torch.cat(made, -1).to(x.dtype)


def _named(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, x.shape[1]).index_add(0, to, x.float()).to(x.dtype)


@rewrite("rows added to five places, by a product", _named, lambda dtype: (shapes((8, 6))(dtype)[0], torch.tensor([0, 4, 2, 2, 0, 1, 2, 4])))
def by_product(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and to.shape == x.shape[:1])
    here = torch.arange(5)[:, None] == to
    return torch.where(here[..., None], x.float(), 0).sum(1).to(x.dtype)


@rewrite("the largest four, one after the other", lambda x: x.topk(4, -1).values, shapes((6, 15)))
def one_after_other(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1] >= 4)
    left, found = x, []
    for _ in range(4):
        values, places = left.max(-1, keepdim=True)
        found.append(values)
        left = left.scatter(-1, places, -math.inf)
    return torch.cat(found, -1)


@rewrite("numbers in order, by their ranks", lambda x: x.sort(-1).values, shapes((5, 11)))
def by_ranks(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    places, key = torch.arange(x.shape[-1]), x.detach()
    less = (key[..., None, :] < key[..., :, None]) | (key[..., :, None].isnan() & ~key[..., None, :].isnan())
    same = (key[..., None, :] == key[..., :, None]) | (key[..., :, None].isnan() & key[..., None, :].isnan())
    ranks = (less | (same & (places < places[:, None]))).sum(-1)
    return x.gather(-1, ranks.argsort(-1))


@rewrite("distances of all pairs by magnitude, a column at a time", lambda a, b: (a.float()[:, None] - b.float()).abs().sum(-1).to(a.dtype),
         shapes((6, 9), (7, 9)))  # fmt: skip
def by_magnitude(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[1])
    total = torch.zeros(len(a), len(b))
    for one, two in zip(a.float().unbind(1), b.float().unbind(1), strict=True):
        total = total + (one[:, None] - two).abs()
    return total.to(a.dtype)


@rewrite("how many are below, by counting", lambda x, y: torch.searchsorted(x.float().sort(-1).values, y.float()), shapes((4, 12), (4, 5)))
def by_counting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.dim() == 2 and len(x) == len(y))
    return (x[:, None] < y[..., None]).sum(-1)
