"""The twenty-sixth frozen set of healthy kernels, second part: losses, units, codes, places, steps, images. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _labels(count: int, most: int) -> Any:
    return lambda dtype: (*shapes((count, most))(dtype), whole(count, most=most))


@rewrite("cross entropy, classes in parts", wide(lambda x, y: F.cross_entropy(x, y, reduction="none")), _labels(5, 11))
@wide
def classes_in_parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))
    logs = torch.stack([part.logsumexp(1) for part in x.split(4, 1)], 1)
    return logs.logsumexp(1) - x[torch.arange(len(x)), y]


@rewrite("cross entropy, its gradient made on the way forth", lambda x, y: F.cross_entropy(x.float(), y, reduction="sum"), _labels(6, 7))
def gradient_on_the_way_forth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))

    def forward(x: torch.Tensor) -> Any:
        up = x.float()
        slope = up.softmax(1)
        slope[torch.arange(len(x)), y] -= 1
        return (up.logsumexp(1) - up[torch.arange(len(x)), y]).sum(), (slope,)

    return function(forward, lambda saved, g: (saved[0] * g).to(x.dtype))(x)


@rewrite("divergence of two rows of scores, from logarithms of sums",
         wide(lambda p, q: F.kl_div(q.log_softmax(1), p.log_softmax(1), reduction="none", log_target=True).sum(1)),
         shapes((4, 9), (4, 9)))  # fmt: skip
@wide
def from_logarithms_of_sums(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == q.shape, p.shape[1] > 0)
    one, two = (each - each.logsumexp(1, keepdim=True) for each in (p, q))
    return (one.exp() * (one - two)).sum(1)


@rewrite("loss of yes or no from scores, with a largest of zero",
         wide(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")),
         shapes((4, 6), (4, 6)))  # fmt: skip
@wide
def with_a_largest_of_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    share = torch.sigmoid(y)
    return (1 - share) * x + F.softplus(-x)


@rewrite("smooth loss, by a clamp", wide(lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7)), shapes((5, 6), (5, 6)))
@wide
def by_a_clamp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    gap = (x - y).abs()
    low = gap.clamp(max=0.7)
    return 0.5 * low * low + 0.7 * (gap - low)


@rewrite("dice loss, of one vector",
         wide(lambda x, y: 1 - (2 * (x.sigmoid() * y).sum() + 1) / (x.sigmoid().sum() + y.sum() + 1)),
         lambda dtype: (*shapes((3, 4, 4))(dtype), (shapes((3, 4, 4))(torch.float32)[0] > 0).to(dtype)))  # fmt: skip
@wide
def of_one_vector(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    share, truth = torch.sigmoid(x.flatten()), y.flatten()
    both = torch.dot(share, truth)
    return 1 - (both * 2 + 1) / ((share + truth).sum() + 1)


@rewrite("likeness of rows, the lengths taken out first", wide(lambda x, y: F.cosine_similarity(x, y, 1, 1e-2)), shapes((5, 7), (5, 7)))
@wide
def lengths_taken_out_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    one, two = (torch.linalg.vecdot(each, each).clamp_min(1e-4).rsqrt() for each in (x, y))
    return ((x * one[:, None]) * (y * two[:, None])).sum(1)


@rewrite("contrast of two views, row by row", wide(lambda a, b: F.cross_entropy(a @ b.T / 0.5, torch.arange(len(a)), reduction="none")),
         shapes((5, 6), (5, 6)))  # fmt: skip
@wide
def contrast_row_by_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == b.shape, len(a) > 0)
    scores = [2 * (b @ row) for row in a]
    return torch.stack([each.logsumexp(0) - each[place] for place, each in enumerate(scores)])


@rewrite("silu and gate, in one step with a way back", wide(lambda x, y: F.silu(x) * y), shapes((4, 7), (4, 7)))
def silu_and_gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        up = x.float()
        return (up * up.sigmoid() * y.float()).to(x.dtype), (x, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        up, by, over = saved[0].float(), saved[1].float(), g.float()
        share = up.sigmoid()
        return (over * by * share * (1 + up * (1 - share))).to(g.dtype), (over * up * share).to(g.dtype)

    return function(forward, backward)(x, y)


@rewrite("gelu, by the complement of the error function", wide(F.gelu), shapes((5, 8)))
@wide
def by_the_complement(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))


@rewrite("softplus, by the larger of two", wide(F.softplus), shapes((4, 9)))
@wide
def by_the_larger_of_two(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


@rewrite("mish, by a quotient of powers", wide(F.mish), shapes((4, 6)))
@wide
def by_a_quotient_of_powers(x: torch.Tensor) -> torch.Tensor:
    low = torch.exp(-x.abs())
    above = (1 + 2 * low) / (1 + 2 * low + 2 * low * low)
    below = low * (low + 2) / (low * (low + 2) + 2)
    return x * torch.where(x >= 0, above, below)


@rewrite("glu, both halves of one product", wide(lambda x, w: F.glu(x @ w, 1)), shapes((4, 5), (5, 6)))
@wide
def both_halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w), w.shape[1] % 2 == 0)
    half = w.shape[1] // 2
    return torch.mm(x, w[:, :half]) * torch.mm(x, w[:, half:]).sigmoid()


def _coded(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    scale = x.detach().float().abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
    return (x.detach().float() / scale).round().clamp(-127, 127) * scale


@rewrite("rows in codes of eight bits and back, in parts of rows", _coded, shapes((6, 9)), gradients=False)
def in_parts_of_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, bool(x.isfinite().all()))
    out = []
    for part in x.detach().float().split(4) if len(x) else ():
        most = torch.maximum(part.amax(1), -part.amin(1)).clamp_min(1e-6)[:, None]
        scale = most / 127
        out.append(torch.round(part / scale).clip(-127, 127).to(torch.int8).float() * scale)
    return torch.cat(out) if out else x.detach().float()


@rewrite("codes of four bits, two to a byte, by shifts", lambda low, high: (low + 16 * high).to(torch.uint8),
         lambda dtype: (whole(5, 6, most=16), whole(5, 6, most=16, seed=4)), gradients=False)  # fmt: skip
def by_shifts(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    need(low.shape == high.shape, bool(((low >= 0) & (low < 16) & (high >= 0) & (high < 16)).all()))
    return torch.bitwise_or(torch.bitwise_left_shift(high, 4), low).to(torch.uint8)


@rewrite("product with codes, the scale behind the sum", wide(lambda x, codes, s: x @ (codes.to(x.dtype) * s[:, None]).T),
         lambda dtype: (*shapes((4, 8))(dtype), whole(5, 8, most=15, least=-7), shapes((5,))(dtype)[0].abs() + 0.1))  # fmt: skip
@wide
def scale_behind_the_sum(x: torch.Tensor, codes: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], s.shape == codes.shape[:1])
    return torch.mm(x, codes.to(x.dtype).T) * s


@rewrite("largest three of a row, by sorting", lambda x: x.topk(3, 1).values, shapes((4, 9)))
def by_sorting(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    return x.sort(1, descending=True).values[:, :3]


@rewrite("place of the largest, in parts", lambda x: x.argmax(1), shapes((5, 10)), gradients=False)
def place_in_parts(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    parts = x.split(4, 1)
    best = torch.stack([part.max(1).values for part in parts], 1)
    places = torch.stack([part.max(1).indices + 4 * number for number, part in enumerate(parts)], 1)
    return places.gather(1, best.max(1).indices[:, None])[:, 0]


@rewrite("table rows by place, the way back added up in float32", F.embedding,
         lambda dtype: (whole(7, most=5), *shapes((5, 4))(dtype)))  # fmt: skip
def table_rows(at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(at.dim() == 1, w.dim() == 2, bool(((at >= 0) & (at < len(w))).all()))
    return function(lambda w: (w.index_select(0, at), ()),
                    lambda saved, g: w.new_zeros(w.shape, dtype=torch.float32).index_add(0, at, g.float()).to(w.dtype))(w)  # fmt: skip


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.square()
    return p - 0.01 * (m / (1 - 0.9**5)) / ((v / (1 - 0.999**5)).sqrt() + 1e-6), m, v


@rewrite("step of adam, by lerp and addcmul", wide(_adam),
         lambda dtype: (*shapes((4, 5), (4, 5), (4, 5))(dtype), shapes((4, 5))(dtype)[0].square() + 0.01), gradients=False)  # fmt: skip
@wide
def by_lerp(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    m, v = torch.lerp(m, g, 0.1), torch.addcmul(0.999 * v, g, g, value=0.001)
    by = (v.sqrt() / math.sqrt(1 - 0.999**5)).add(1e-6)
    return torch.addcdiv(p, m, by, value=-0.01 / (1 - 0.9**5)), m, v


@rewrite("mean of windows, by sums of columns and then of rows", wide(lambda x: F.avg_pool2d(x[:, None], 2)[:, 0]), shapes((3, 6, 8)))
@wide
def columns_and_then_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, min(x.shape[1:]) > 1)
    even = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    across = even[:, :, 0::2] + even[:, :, 1::2]
    return (across[:, 0::2] + across[:, 1::2]) / 4


@rewrite("picture twice as large, by repeating", wide(lambda x: F.interpolate(x[:, None], scale_factor=2, mode="nearest")[:, 0]), shapes((2, 3, 5)))
@wide
def by_repeating(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0)
    return x.repeat_interleave(2, 1).repeat_interleave(2, 2)


@rewrite("slopes of a picture, by a difference of moved ones",
         wide(lambda x: F.conv2d(x[:, None], x.new_tensor([[[[-0.5, 0.0, 0.5]]]]))[:, 0]), shapes((2, 4, 7)))  # fmt: skip
@wide
def of_moved_ones(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] > 2)
    return (x[:, :, 2:] - x[:, :, :-2]) / 2


@rewrite("numbers turned by an angle, as complex ones",
         wide(lambda x, a: torch.cat([x[:, :3] * a.cos() - x[:, 3:] * a.sin(), x[:, 3:] * a.cos() + x[:, :3] * a.sin()], 1)),
         shapes((5, 6), (3,)))  # fmt: skip
@wide
def as_complex_ones(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6, a.shape == (3,), bool(x.isfinite().all()), bool(a.isfinite().all()))
    turned = torch.complex(x[:, :3].contiguous(), x[:, 3:].contiguous()) * torch.polar(torch.ones_like(a), a)
    return torch.cat([turned.real, turned.imag], 1)


@rewrite("distances of points, by a loop over coordinates", wide(lambda x, y: (x[:, None] - y).square().sum(2)), shapes((4, 3), (6, 3)))
@wide
def loop_over_coordinates(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    total = x.new_zeros(len(x), len(y))
    for one, two in zip(x.unbind(1), y.unbind(1), strict=True):
        total = torch.addcmul(total, one[:, None] - two, one[:, None] - two)
    return total


@rewrite("returns with a discount, by powers", wide(lambda r: torch.stack([sum((0.9**later * r[:, at + later]  # type: ignore[misc]
         for later in range(r.shape[1] - at)), start=r.new_zeros(len(r))) for at in range(r.shape[1])], 1) if r.shape[1] else r.clone()),
         shapes((3, 6)))  # fmt: skip
@wide
def with_a_discount(r: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 2)
    out, last = [], r.new_zeros(len(r))
    for column in reversed(r.unbind(1)):
        last = column + 0.9 * last
        out.append(last)
    return torch.stack(out[::-1], 1) if out else r.clone()


@rewrite("shares of experts, the best two alone", wide(lambda x: x.softmax(1) * (x >= x.topk(2, 1).values[:, 1:])), shapes((5, 6)))
@wide
def best_two_alone(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    least = x.detach().sort(1, descending=True).values[:, 1:2]
    shares = (x - x.logsumexp(1, keepdim=True)).exp()
    return shares * (x >= least)
