"""The eighteenth frozen set of healthy kernels, first part: attention, norms, losses. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("softmax of columns, tiles of three rows twice over", _wide(lambda x: x.softmax(0)), shapes((10, 6)))
def tiles_of_three_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0)
    most, weight = torch.full((x.shape[1],), -INF), torch.zeros(x.shape[1])
    for rows in x.float().split(3):
        now = torch.maximum(most, rows.amax(0))
        shift = now.masked_fill(now == -INF, 0)
        weight, most = weight * (most - shift).exp() + (rows - shift).exp().sum(0), now
    shift = most.masked_fill(most == -INF, 0)
    return torch.cat([(rows - shift).exp() / weight for rows in x.float().split(3)]).to(x.dtype)


def _in_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    share = len(q) // len(k)
    k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    need(q.dim() == k.dim() == 3 and k.shape == v.shape and q.shape[2] == k.shape[2] > 0 and k.shape[1] > 0 and len(k) > 0 and len(q) > 0)
    need(len(q) % len(k) == 0)
    rows = q.float().reshape(len(k), -1, q.shape[2])
    sums = (rows @ k.float().mT * q.shape[2] ** -0.5).logsumexp(-1, keepdim=True)
    made = (rows @ k.float().mT * q.shape[2] ** -0.5 - sums).exp() @ v.float()
    return made.reshape(q.shape).to(q.dtype), (q, k, v, sums)


def _groups_back(saved: Any, given: torch.Tensor) -> Any:
    q, k, v, sums = saved
    rows, up, scale = q.float().reshape(len(k), -1, q.shape[2]), given.float().reshape(len(k), -1, q.shape[2]), q.shape[2] ** -0.5
    shares = (rows @ k.float().mT * scale - sums).exp()
    slopes = up @ v.float().mT
    scores = shares * (slopes - (slopes * shares).sum(-1, keepdim=True)) * scale
    return (scores @ k.float()).reshape(q.shape).to(q.dtype), (scores.mT @ rows).to(k.dtype), (shares.mT @ up).to(v.dtype)


rewrite("heads of a group as rows of one product, shares computed again on the way back", _wide(_in_groups), shapes((4, 5, 6), (2, 7, 6), (2, 7, 6)))(
    function(_groups, _groups_back)
)


def _at_the_end(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last rows of a causal attention."""
    hidden = torch.arange(len(k)) > len(k) - len(q) + torch.arange(len(q))[:, None]
    return (q @ k.mT * q.shape[1] ** -0.5).masked_fill(hidden, -INF).softmax(-1) @ v


@rewrite("last rows of a causal attention, keys in two uneven parts joined by their sums", _wide(_at_the_end), shapes((4, 6), (11, 6), (11, 5)))
def two_uneven_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape[1] == k.shape[1] > 0 and len(k) == len(v) > 0 and len(q) <= len(k))
    rows = []
    for row, query in enumerate(q.float() * q.shape[1] ** -0.5):
        end = len(k) - len(q) + row + 1
        parts = [(k[a:b].float() @ query, v[a:b].float()) for a, b in ((0, min(7, end)), (7, end)) if b > a]
        logs = torch.stack([scores.logsumexp(0) for scores, _ in parts])
        results = torch.stack([scores.softmax(0) @ values for scores, values in parts])
        rows.append(logs.softmax(0) @ results)
    return torch.stack(rows).to(q.dtype) if rows else q.new_zeros(0, v.shape[1])


def _both_sides(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    return (q @ k.mT).masked_fill(apart.abs() > 1, -INF).softmax(-1) @ k


@rewrite("attention to neighbours, three shifted copies", _wide(_both_sides), shapes((2, 7, 4), (2, 7, 4)))
def three_shifted_copies(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3 and q.shape == k.shape and q.numel() > 0)
    wide, inside = k.float(), torch.arange(k.shape[1])
    copies = [torch.cat([torch.zeros_like(wide[:, :1]), wide[:, :-1]], 1), wide, torch.cat([wide[:, 1:], torch.zeros_like(wide[:, :1])], 1)]
    scores = torch.stack([(q.float() * copy).sum(-1) for copy in copies], -1)
    scores[:, :, 0] = scores[:, :, 0].masked_fill(inside == 0, -INF)
    scores[:, :, 2] = scores[:, :, 2].masked_fill(inside == k.shape[1] - 1, -INF)
    shares = scores.softmax(-1)
    return sum((shares[..., at, None] * copies[at] for at in (1, 2)), shares[..., 0, None] * copies[0]).to(q.dtype)


@rewrite("capped scores, the tangent by a sigmoid", _wide(lambda q, k: (3 * (q @ k.mT / 3).tanh()).softmax(-1)), shapes((5, 6), (8, 6)))
def tangent_by_a_sigmoid(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2 and q.shape[1] == k.shape[1] and len(k) > 0)
    scores = 6 * (q.float() @ k.float().mT * (2 / 3)).sigmoid() - 3
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(q.dtype)


def _merged(parts: list[tuple[torch.Tensor, torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Means and sums of squares of parts, merged in pairs."""
    while len(parts) > 1:
        pairs = []
        for one, two in zip(parts[::2], parts[1::2], strict=False):
            total, apart = one[2] + two[2], two[0] - one[0]
            pairs.append((one[0] + apart * (two[2] / total), one[1] + two[1] + apart * apart * (one[2] * two[2] / total), total))
        parts = pairs + parts[len(parts) // 2 * 2 :]
    return parts[0]


@rewrite("layer norm, parts of four columns merged as a tree", _wide(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
         shapes((5, 14), (14,), (14,)))  # fmt: skip
def merged_as_a_tree(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == b.shape == x.shape[1:] and x.shape[1] > 0)
    wide = x.float()
    means = [(part, part.mean(1, keepdim=True)) for part in wide.split(4, 1)]
    mean, squares, count = _merged([(m, (part - m).square().sum(1, keepdim=True), part.shape[1]) for part, m in means])
    return ((wide - mean) * (squares / count + 1e-5).rsqrt() * w.float() + b.float()).to(x.dtype)


def _rms(x: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2 and w.shape == x.shape[1:] and x.shape[1] > 0)
    squares = sum((part.float().square().sum(1, keepdim=True) for part in x.split(5, 1)), torch.zeros(len(x), 1))
    return (x.float() * (squares / x.shape[1] + 1e-6).rsqrt() * w.float()).to(x.dtype), (x, w)


def _rms_back(saved: Any, given: torch.Tensor) -> Any:
    x, w = saved
    wide, up = x.float(), given.float() * w.float()
    root = (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    normed = wide * root
    return (root * (up - normed * (up * normed).mean(1, keepdim=True))).to(x.dtype), (given.float() * normed).sum(0).to(w.dtype)


rewrite("rms norm, squares in three parts, the root computed again on the way back", _wide(lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6)),
        shapes((6, 13), (13,)))(function(_rms, _rms_back))  # fmt: skip


@rewrite("group norm, sums of channels first and of groups then", _wide(lambda x, w, b: F.group_norm(x, 2, w, b)), shapes((3, 4, 7), (4,), (4,)))
def sums_of_channels_first(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] % 2 == 0 and w.shape == b.shape == x.shape[1:2] and x.numel() > 0)
    wide = x.float()
    mean = wide.mean(2).unflatten(1, (2, -1)).mean(2).repeat_interleave(x.shape[1] // 2, 1)[..., None]
    spread = (wide - mean).square().mean(2).unflatten(1, (2, -1)).mean(2).repeat_interleave(x.shape[1] // 2, 1)[..., None]
    return ((wide - mean) * (spread + 1e-5).rsqrt() * w.float()[:, None] + b.float()[:, None]).to(x.dtype)


@rewrite("batch norm in training, three batches merged", _wide(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
         shapes((11, 4), (4,), (4,)))  # fmt: skip
def three_batches_merged(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == b.shape == x.shape[1:] and len(x) > 1)
    means = [(part, part.mean(0)) for part in x.float().split(4)]
    mean, squares, count = _merged([(m, (part - m).square().sum(0), len(part)) for part, m in means])
    return ((x.float() - mean) * (squares / count + 1e-5).rsqrt() * w.float() + b.float()).to(x.dtype)


def _capped_losses(h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(5 * (h @ w.mT / 5).tanh(), y, reduction="none")


@rewrite("linear, cap and cross entropy in one, four classes at a time", _wide(_capped_losses),
         lambda dtype: (*shapes((6, 5), (10, 5))(dtype), whole(6, most=10)))  # fmt: skip
def four_classes_at_a_time(h: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(h.dim() == w.dim() == 2 and h.shape[1] == w.shape[1] and y.shape == h.shape[:1] and len(w) > 0 and bool(((y >= 0) & (y < len(w))).all()))
    most, weight, own = torch.full((len(h),), -INF), torch.zeros(len(h)), torch.zeros(len(h))
    for start in range(0, len(w), 4):
        scores = 5 * (h.float() @ w[start : start + 4].float().mT / 5).tanh()
        now = torch.maximum(most, scores.amax(1))
        shift = now.masked_fill(now == -INF, 0)
        weight, most = weight * (most - shift).exp() + (scores - shift[:, None]).exp().sum(1), now
        inside = (y >= start) & (y < start + scores.shape[1])
        own = own + torch.where(inside, scores.gather(1, (y - start).clamp(0, scores.shape[1] - 1)[:, None])[:, 0], 0)
    return (most + weight.log() - own).to(h.dtype)


def _jensen(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    a, b = p.log_softmax(-1), q.log_softmax(-1)
    both = torch.logaddexp(a, b) - 0.6931471805599453
    return 0.5 * ((a.exp() * (a - both)).sum(-1) + (b.exp() * (b - both)).sum(-1))


@rewrite("jensen-shannon divergence, shares of both by softplus", _wide(_jensen), shapes((5, 9), (5, 9)))
def shares_by_softplus(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape == q.shape and p.shape[1] > 0)
    a, b = p.float().log_softmax(-1), q.float().log_softmax(-1)
    one, two = 0.6931471805599453 - F.softplus(b - a), 0.6931471805599453 - F.softplus(a - b)
    return (0.5 * (a.exp() * one + b.exp() * two).sum(-1)).to(p.dtype)


@rewrite("binary cross entropy of logits, by the largest and a logarithm",
         _wide(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")), shapes((5, 8), (5, 8)))  # fmt: skip
def by_the_largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    wide = x.float()
    return ((wide + wide.abs()) / 2 - wide * y.float().sigmoid() + (-wide.abs()).exp().log1p()).to(x.dtype)


@rewrite("largest margin over the right class, the right one left out of a running largest", _wide(lambda x, y: _margins(x, y)),
         lambda dtype: (*shapes((6, 7))(dtype), whole(6, most=7)))  # fmt: skip
def running_largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 1 and bool(((y >= 0) & (y < x.shape[1])).all()))
    wide = x.float()
    others = torch.stack([torch.cat([row[:own], row[own + 1 :]]) for row, own in zip(wide, y.tolist(), strict=True)]) if len(x) else wide[:, 1:]
    return (1 + others.amax(1) - wide.gather(1, y[:, None])[:, 0]).to(x.dtype)


def _margins(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    own = F.one_hot(y, x.shape[1]).bool()
    return 1 + x.masked_fill(own, -INF).amax(1) - x.gather(1, y[:, None])[:, 0]


@rewrite("softmax and its entropy, from the logarithm of the sum", _wide(lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)), shapes((5, 9)))
def from_the_logarithm_of_the_sum(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    wide = x.float()
    apart = wide - wide.amax(1, keepdim=True)
    powers = apart.exp()
    weight = powers.sum(1, keepdim=True)
    return (weight.log()[:, 0] - (powers / weight * apart).sum(1)).to(x.dtype)


def _gated(x: torch.Tensor, g: torch.Tensor) -> Any:
    need(x.shape == g.shape)
    return (g.float() * g.float().sigmoid() * x.float()).to(x.dtype), (x, g)


def _gated_back(saved: Any, given: torch.Tensor) -> Any:
    x, g = saved
    share, up = g.float().sigmoid(), given.float()
    slope = share + g.float() * share * (-g.float()).sigmoid()
    return (up * g.float() * share).to(x.dtype), (up * x.float() * slope).to(g.dtype)


rewrite("swiglu, computed again on the way back", _wide(lambda x, g: F.silu(g) * x), shapes((5, 9), (5, 9)))(function(_gated, _gated_back))
