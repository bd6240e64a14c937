"""The twenty-fifth frozen set of healthy kernels, second part: norms, activations, losses, steps. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:], w, b, 1e-5)


@rewrite("layer norm, under autocast", _normed, shapes((4, 12), (12,), (12,)))
def layer_norm_under_autocast(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape == b.shape, x.shape[1] > 0)
    with torch.autocast("cpu", torch.bfloat16):
        return F.layer_norm(x, x.shape[1:], w, b, 1e-5).to(x.dtype)


@rewrite("layer norm, all in float64", _normed, shapes((4, 10), (10,), (10,)))
def layer_norm_in_float64(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape == b.shape, x.shape[1] > 0)
    variance, mean = torch.var_mean(x.double(), 1, correction=0, keepdim=True)
    return ((x - mean) / (variance + 1e-5).sqrt() * w + b).to(x.dtype)


@rewrite("rms norm, second gradients too", wide(lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)), shapes((3, 8), (8,)), gradients="double")
@wide
def second_gradients_too(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape, x.shape[1] > 0)
    return x * w / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()


@rewrite("length of rows made one, columns first", wide(lambda x: x / (x.square().sum(0, keepdim=True) + 1e-6).sqrt()), shapes((7, 4)))
@wide
def columns_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    turned = x.T.contiguous()
    return (turned * (torch.linalg.vecdot(turned, turned)[:, None] + 1e-6).rsqrt()).T


@rewrite("rms norm of heads in place on a copy", lambda x, w: F.rms_norm(x, x.shape[2:], w, 1e-6), shapes((3, 2, 8), (8,)))
def in_place_on_a_copy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2:] == w.shape, x.shape[2] > 0)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        out = x.to(torch.float32, copy=True)
        spread = out.square().mean(2, keepdim=True).add_(1e-6).rsqrt_()
        return out.mul_(spread).mul_(w.float()).to(x.dtype), (x, w, spread)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, spread = saved
        even, inner = x.float() * spread, g.float() * w.float()
        slope = spread * (inner - even * (inner * even).mean(2, keepdim=True))
        return slope.to(g.dtype), (g.float() * even).sum((0, 1)).to(w.dtype)

    return function(forward, backward)(x, w)


@rewrite("scaled by a mean of magnitudes", wide(lambda x, w: x / (x.abs().mean(1, keepdim=True) + 1e-3) * w), shapes((4, 9), (9,)))
@wide
def mean_of_magnitudes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape, x.shape[1] > 0)
    return x * w * torch.reciprocal(x.abs().sum(1, keepdim=True) / x.shape[1] + 1e-3)


@rewrite("softmax, by its logarithms", wide(lambda x: x.softmax(1)), shapes((6, 5)))
@wide
def by_its_logarithms(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return torch.exp(F.log_softmax(x, 1))


@rewrite("softmax, its way back from the result", lambda x: x.softmax(1), shapes((5, 9)))
def from_the_result(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)

    def forward(x: torch.Tensor) -> Any:
        up = x.float()
        powers = torch.exp(up - up.amax(1, keepdim=True))
        out = (powers / powers.sum(1, keepdim=True)).to(x.dtype)
        return out, (out,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        p, up = saved[0].float(), g.float()
        return (p * (up - (up * p).sum(1, keepdim=True))).to(g.dtype)

    return function(forward, backward)(x)


@rewrite("softmax at a temperature with a mask", wide(lambda x, keep: torch.where(keep, x / 0.7, -math.inf).softmax(1)),
         lambda dtype: (*shapes((4, 8))(dtype), torch.arange(8) < torch.tensor([[8], [5], [3], [1]])))  # fmt: skip
@wide
def temperature_and_mask(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == keep.shape, bool(keep.any(1).all()))
    scores = x.masked_fill(~keep, -math.inf) * (1 / 0.7)
    return (scores - scores.logsumexp(1, keepdim=True)).exp()


@rewrite("sigmoid of a product, by a softplus", wide(lambda x, w: torch.sigmoid(x @ w)), shapes((5, 6), (6,)))
@wide
def by_a_softplus(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:])
    return torch.exp(-F.softplus(-(x * w).sum(1)))


@rewrite("gelu, by its distribution, second gradients too", wide(F.gelu), shapes((4, 6)), gradients="double")
@wide
def by_its_distribution(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * torch.erfc(x * -math.sqrt(0.5))


@rewrite("silu, by powers below one", wide(F.silu), shapes((5, 7)))
@wide
def by_powers_below_one(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x >= 0, x / (1 + torch.exp(-x.abs())), x * torch.exp(-x.abs()) / (1 + torch.exp(-x.abs())))


@rewrite("softplus with a slope, in a Function", wide(lambda x: F.softplus(x, beta=2.0, threshold=60.0)), shapes((4, 9)))
def softplus_with_a_slope(x: torch.Tensor) -> torch.Tensor:
    def forward(x: torch.Tensor) -> Any:
        up = x.float()
        return (up.clamp(min=0) + torch.log1p(torch.exp(-2 * up.abs())) / 2).to(x.dtype), (x,)

    return function(forward, lambda saved, g: (g.float() * torch.sigmoid(2 * saved[0].float())).to(g.dtype))(x)


@rewrite("gate of values that are packed in turn", wide(lambda x: x[:, 0::2] * torch.sigmoid(x[:, 1::2])), shapes((4, 10)))
@wide
def packed_in_turn(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0)
    value, gate = x.unflatten(1, (-1, 2)).unbind(2)
    return value * torch.sigmoid(gate)


@rewrite("sum of softplus of a product, second gradients too", wide(lambda x, w: F.softplus(x @ w, threshold=60.0).sum()),
         shapes((5, 4), (4, 3)), gradients="double")  # fmt: skip
@wide
def softplus_of_a_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    return F.softplus(torch.einsum("ni,ij->nj", x, w), threshold=60.0).sum(1).sum()


@rewrite("cross entropy in a Function, three classes at a time", lambda x, at: F.cross_entropy(x, at, reduction="none"),
         lambda dtype: (*shapes((5, 8))(dtype), whole(5, most=8)))  # fmt: skip
def three_classes_at_a_time(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.shape == x.shape[:1], x.shape[1] > 0, bool(((at >= 0) & (at < x.shape[1])).all()))

    def forward(x: torch.Tensor, at: torch.Tensor) -> Any:
        most, total = torch.full((len(x),), -math.inf), torch.zeros(len(x))
        for tile in x.float().split(3, 1):
            later = torch.maximum(most, tile.amax(1))
            total = torch.where(later == -math.inf, 0, total * torch.exp(most - later) + torch.exp(tile - later[:, None]).sum(1))
            most = later
        whole = most + total.log()
        return (whole - x.float().gather(1, at[:, None])[:, 0]).to(x.dtype), (x, at, whole)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, at, whole = saved
        slope = torch.exp(x.float() - whole[:, None])
        slope[torch.arange(len(x)), at] -= 1
        return (slope * g.float()[:, None]).to(g.dtype), None

    return function(forward, backward)(x, at)


@rewrite("sum of cross entropies of those that count, chosen first", lambda x, at: F.cross_entropy(x, at, ignore_index=-100, reduction="sum"),
         lambda dtype: (*shapes((6, 7))(dtype), torch.tensor([1, -100, 3, 6, -100, 0])))  # fmt: skip
@wide
def chosen_first(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.shape == x.shape[:1], x.shape[1] > 0, bool(((at == -100) | (at >= 0) & (at < x.shape[1])).all()))
    rows = (at != -100).nonzero()[:, 0]
    kept = x.index_select(0, rows)
    return (kept.logsumexp(1) - kept.gather(1, at[rows][:, None])[:, 0]).sum()


@rewrite("distance of two images in windows of three", wide(lambda x, y: (F.avg_pool1d(x, 3, 1) - F.avg_pool1d(y, 3, 1)).abs().mean(2)),
         shapes((2, 3, 8), (2, 3, 8)))  # fmt: skip
@wide
def windows_of_three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == y.shape, x.shape[2] >= 3)
    away = x - y
    return ((away[:, :, :-2] + away[:, :, 1:-1] + away[:, :, 2:]) / 3).abs().mean(2)


@wide
def _tversky(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    both = (p * t).sum(0)
    return 1 - (both + 1) / (both + 0.7 * (p * (1 - t)).sum(0) + 0.3 * ((1 - p) * t).sum(0) + 1)


@rewrite("tversky loss, one class at a time", _tversky,
         lambda dtype: (shapes((8, 3))(dtype)[0].sigmoid(), (shapes((8, 3))(dtype)[0] > 0.3).to(dtype)))  # fmt: skip
@wide
def one_class_at_a_time(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    out = []
    for one, other in zip(p.unbind(1), t.unbind(1), strict=True):
        both = torch.dot(one, other)
        out.append(1 - (both + 1) / (both + 0.7 * (one.sum() - both) + 0.3 * (other.sum() - both) + 1))
    return torch.stack(out) if out else p.new_zeros(0)


@wide
def _pinball(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 3, y.shape == x.shape[:1])
    return sum((q - (y < x[:, k]).float()) * (y - x[:, k]) for k, q in enumerate((0.1, 0.5, 0.9)))


@rewrite("pinball loss of three quantiles, by a maximum", _pinball, shapes((7, 3), (7,)))
@wide
def by_a_maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 3, y.shape == x.shape[:1])
    away, q = y[:, None] - x, torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(q * away, (q - 1) * away).sum(1)


@wide
def _rmsprop(p: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == s.shape)
    later = 0.9 * s + 0.1 * g * g
    return p - 0.01 * g / (later.sqrt() + 1e-6), later


@rewrite("step of rmsprop, in its own buffers", _rmsprop,
         lambda dtype: (*shapes((4, 5), (4, 5))(dtype), shapes((4, 5))(dtype)[0].square()), gradients=False)  # fmt: skip
@wide
def in_its_own_buffers(p: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == s.shape)
    later = torch.mul(s, 0.9).addcmul_(g, g, value=0.1)
    return torch.addcdiv(p, g, later.sqrt().add_(1e-6), value=-0.01), later


@wide
def _means(g: torch.Tensor) -> torch.Tensor:
    need(g.dim() == 2, g.numel() > 0)
    squares = g * g
    return g / (squares.mean(1, keepdim=True) * squares.mean(0, keepdim=True) / squares.mean() + 1e-6).sqrt()


@rewrite("step by means of rows and columns, as an outer product", _means, shapes((5, 6)), gradients=False)
@wide
def row_and_column_means(g: torch.Tensor) -> torch.Tensor:
    need(g.dim() == 2, g.numel() > 0)
    squares = g.square()
    rows, columns = squares.mean(1), squares.mean(0)
    return g * torch.rsqrt(torch.outer(rows, columns) / rows.mean() + 1e-6)
