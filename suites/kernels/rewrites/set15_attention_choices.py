"""The fifteenth frozen set of healthy kernels, second part: attention, losses, fused passes back, choices. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional
LOG2E = 1.4426950408889634


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("softmax in tiles that are scaled again, powers of two", _wide(lambda x: x.softmax(-1)), shapes((5, 20)))
def scaled_again(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    wide = x.float() * LOG2E
    most, total = torch.full((len(x), 1), -1e30), torch.zeros(len(x), 1)
    for tile in wide.split(6, 1):
        now = torch.maximum(most, tile.detach().amax(1, keepdim=True))
        total = total * (most - now).exp2() + (tile - now).exp2().sum(1, keepdim=True)
        most = now
    return ((wide - most).exp2() / total).to(x.dtype)


@rewrite("attention in tiles, shares computed again on the way back", _wide(lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v),
         shapes((7, 8), (9, 8), (9, 5)))  # fmt: skip
def computed_again(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and len(k) == len(v) > 0 and q.shape[1] == k.shape[1] > 0)
    scale = q.shape[1] ** -0.5

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        most, total = torch.full((len(q), 1), -1e30), torch.zeros(len(q), 1)
        made = torch.zeros(len(q), v.shape[1])
        for keys, values in zip(k.float().split(4), v.float().split(4), strict=True):
            scores = q.float() @ keys.mT * scale
            now = torch.maximum(most, scores.amax(1, keepdim=True))
            powers, again = (scores - now).exp(), (most - now).exp()
            made, total, most = made * again + powers @ values, total * again + powers.sum(1, keepdim=True), now
        return (made / total).to(q.dtype), (q, k, v, most + total.log())

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, whole_sum = saved
        wide = given.float()
        shares = (q.float() @ k.float().mT * scale - whole_sum).exp()
        through = wide @ v.float().mT
        scores = shares * (through - (shares * through).sum(1, keepdim=True)) * scale
        return (scores @ k.float()).to(q.dtype), (scores.mT @ q.float()).to(k.dtype), (shares.mT @ wide).to(v.dtype)

    return function(forward, backward)(q, k, v)


@rewrite("attention of shared keys, the heads of a group as rows", _wide(
    lambda q, k, v: (q @ k.repeat_interleave(2, 0).mT).softmax(-1) @ v.repeat_interleave(2, 0)), shapes((4, 5, 6), (2, 7, 6), (2, 7, 3)))  # fmt: skip
def heads_as_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3 and len(q) == 2 * len(k) == 2 * len(v) and k.shape[1] == v.shape[1] > 0 and q.shape[2] == k.shape[2])
    grouped = q.float().reshape(len(k), 2 * q.shape[1], q.shape[2])
    made = torch.bmm(torch.bmm(grouped, k.float().mT).softmax(-1), v.float())
    return made.view(len(q), q.shape[1], v.shape[2]).to(q.dtype)


@rewrite("parts of attention joined by a sigmoid", _wide(
    lambda a, la, b, lb: torch.softmax(torch.stack([la, lb]), 0)[0, :, None] * a + torch.softmax(torch.stack([la, lb]), 0)[1, :, None] * b),
         shapes((6, 5), (6,), (6, 5), (6,)))  # fmt: skip
def joined_by_a_sigmoid(a: torch.Tensor, la: torch.Tensor, b: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape and la.shape == lb.shape == a.shape[:1])
    apart = (lb.float() - la.float())[:, None]
    return ((-apart).sigmoid() * a.float() + apart.sigmoid() * b.float()).to(a.dtype)


def _loss_of_product(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.mT, y)


@rewrite("loss of a product, in chunks, gradients computed with it", _wide(_loss_of_product),
         lambda dtype: (*shapes((8, 6), (9, 6))(dtype), whole(8, most=9)))  # fmt: skip
def gradients_with_the_loss(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and y.shape == x.shape[:1] and len(x) > 0 and len(w) > 0)

    def forward(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
        total, dx, dw = torch.zeros(()), torch.empty(x.shape), torch.zeros(w.shape)
        for start in range(0, len(x), 3):
            rows, labels = x[start : start + 3].float(), y[start : start + 3]
            scores = rows @ w.float().mT
            logs = scores.log_softmax(-1)
            total = total - logs.gather(1, labels[:, None]).sum()
            slopes = (logs.exp() - F.one_hot(labels, len(w))) / len(x)
            dx[start : start + 3] = slopes @ w.float()
            dw += slopes.mT @ rows
        return (total / len(x)).to(x.dtype), (dx, dw)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        dx, dw = saved
        return (dx * given.float()).to(x.dtype), (dw * given.float()).to(w.dtype), None

    return function(forward, backward)(x, w, y)


@rewrite("cross entropy of each row, its slopes stored over a copy of the scores", _wide(lambda x, y: F.cross_entropy(x, y, reduction="none")),
         lambda dtype: (*shapes((7, 9))(dtype), whole(7, most=9)))  # fmt: skip
def stored_over_a_copy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0)

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        kept = x.float().clone()
        whole_sum = kept.logsumexp(-1, keepdim=True)
        losses = (whole_sum - kept.gather(1, y[:, None]))[:, 0]
        kept.sub_(whole_sum).exp_()
        kept.scatter_add_(1, y[:, None], -torch.ones(len(x), 1))
        return losses.to(x.dtype), (kept,)

    return function(forward, lambda saved, given: ((saved[0] * given.float()[:, None]).to(x.dtype), None))(x, y)


@rewrite("divergence of two rows of scores in one pass", _wide(lambda p, q: F.kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction="none",
         log_target=True).sum(-1)), shapes((5, 9), (5, 9)))  # fmt: skip
def in_one_pass(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape == q.shape and p.shape[1] > 0)
    p, q, form = p.float(), q.float(), p.dtype
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1).to(form)


@rewrite("gate and values, computed again on the way back, gradients stored over copies", _wide(lambda a, b: F.silu(a) * b), shapes((5, 9), (5, 9)))
def stored_over_copies(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        gate, values = (each.detach().float().clone() for each in saved)
        share = gate.sigmoid()
        values.mul_(given.float()).mul_(share).mul_(1 + gate * (1 - share))
        return values.to(given.dtype), gate.mul_(share).mul_(given.float()).to(given.dtype)

    return function(lambda a, b: ((a.float() * a.float().sigmoid() * b.float()).to(a.dtype), (a, b)), backward)(a, b)


@rewrite("gelu by a tanh, its slope from the same tanh", _wide(lambda x: F.gelu(x, approximate="tanh")), shapes((5, 12)))
def slope_from_the_same_tanh(x: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor) -> Any:
        share = (2 * 0.7978845608 * (x.float() + 0.044715 * x.float() ** 3)).sigmoid()
        return (x.float() * share).to(x.dtype), (x, share)

    def backward(saved: Any, given: torch.Tensor) -> torch.Tensor:
        wide, share = saved[0].float(), saved[1]
        slope = share + wide * share * (1 - share) * 2 * 0.7978845608 * (1 + 3 * 0.044715 * wide * wide)
        return (given.float() * slope).to(x.dtype)

    return function(forward, backward)(x)


@rewrite("layer norm, its way back in one pass over what was normed", _wide(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
         shapes((6, 10), (10,), (10,)))  # fmt: skip
def one_pass_back(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == b.shape == x.shape[1:] and x.shape[1] > 0)

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        wide = x.float() - x.float().mean(-1, keepdim=True)
        scale = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (wide * scale * w.float() + b.float()).to(x.dtype), (wide * scale, scale, w)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        normed, scale, w = saved
        weighed = given.float() * w.float()
        means = torch.stack([weighed.mean(-1), (weighed * normed).mean(-1)])[..., None]
        dx = scale * (weighed - means[0] - normed * means[1])
        parts = [(rows * each).sum(0) for rows, each in zip((given.float(), given.float()), (normed, torch.ones_like(normed)), strict=True)]
        return dx.to(x.dtype), parts[0].to(w.dtype), parts[1].to(b.dtype)

    return function(forward, backward)(x, w, b)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


@rewrite("rope in place of a copy, turned back by the other angle", _wide(_turned), shapes((3, 5, 8), (5, 4)))
def turned_back(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[2] % 2 == 0 and angles.shape == (x.shape[1], x.shape[2] // 2))

    def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        copy = x.float().clone()
        a, b = copy.chunk(2, -1)
        first = a.clone()
        a.mul_(angles.cos()).sub_(b * angles.sin())
        b.mul_(angles.cos()).add_(first * angles.sin())
        return copy

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, angles = saved
        a, b = turned(x.float(), angles.float()).chunk(2, -1)
        ga, gb = given.float().chunk(2, -1)
        return turned(given, -angles.float()).to(x.dtype), (gb * a - ga * b).sum(0).to(angles.dtype)

    return function(lambda x, angles: (turned(x, angles.float()).to(x.dtype), (x, angles)), backward)(x, angles)


@rewrite("largest three, by a sort", lambda x: tuple(x.topk(3)), shapes((5, 9)))
def by_a_sort(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[1] >= 3)
    ordered = x.sort(dim=-1, descending=True, stable=True)
    return ordered.values[:, :3], ordered.indices[:, :3]


@rewrite("shares of the best two, the rest hidden", _wide(lambda x: torch.zeros_like(x).scatter(-1, x.topk(2).indices, x.topk(2).values.softmax(-1))),
         shapes((5, 9)))  # fmt: skip
def rest_is_hidden(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 2)
    hidden = torch.ones_like(x, dtype=torch.bool).scatter(-1, x.sort(dim=-1, descending=True, stable=True).indices[:, :2], False)
    return x.float().masked_fill(hidden, -torch.inf).softmax(-1).to(x.dtype)


@rewrite("sums of two columns of a product, as rows of the other", _wide(lambda x, w: (x @ w).T), shapes((5, 8), (8, 6)))
def as_rows_of_the_other(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    return (w.float().T @ x.float().T).to(x.dtype).T.contiguous().T


@rewrite("softmax of segments, each as a padded row", _wide(lambda x, segment: torch.cat([x[segment == place].softmax(0) for place in range(4)])),
         lambda dtype: (*shapes((12, 3))(dtype), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3])))  # fmt: skip
def padded_rows(x: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and segment.shape == x.shape[:1])
    order = segment.argsort(stable=True)
    order = order[segment[order] < 4]
    kept = segment[order]
    counts = torch.bincount(kept, minlength=4)
    column = torch.arange(len(kept)) - (counts.cumsum(0) - counts)[kept]
    rows = torch.full((4, max(int(counts.max()), 1), x.shape[1]), -torch.inf).index_put((kept, column), x.float()[order])
    most = rows.detach().amax(1, keepdim=True)
    powers = (rows - torch.where(most.isinf(), 0, most)).exp()
    return (powers / powers.sum(1, keepdim=True).clamp(min=1e-30))[kept, column].to(x.dtype)
