"""The thirty-first frozen set of healthy kernels: norms, losses, steps, functions of numbers. Committed before any was tried."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p * (1 - 0.001) - 0.1 * (m / 0.271) / ((v / 0.029701).sqrt() + 1e-6), m, v


def _moments(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (*shapes((3, 5), (3, 5), (3, 5))(dtype), shapes((3, 5))(dtype)[0].flip(0).square())


@rewrite("step of adamw, its corrections in the rate", wide(_adamw), _moments)
@wide
def its_corrections_in_the_rate(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape, bool((v >= 0).all()))
    m, v = torch.lerp(m, g, 0.1), torch.addcmul(v * 0.99, g, g, value=0.01)
    return torch.addcdiv(p - 0.001 * p, m, v.sqrt() / 0.029701**0.5 + 1e-6, value=-0.1 / 0.271), m, v


def _momentum(p: torch.Tensor, g: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == held.shape)
    held = 0.9 * held + g + 0.01 * p
    return p - 0.1 * held, held


@rewrite("step with momentum and decay, in place on copies", wide(_momentum), shapes((4, 5), (4, 5), (4, 5)))
@wide
def in_place_on_copies(p: torch.Tensor, g: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == held.shape)
    held = held.clone().mul_(0.9).add_(torch.add(g, p, alpha=0.01))
    return p.clone().sub_(held, alpha=0.1), held


@rewrite("layer norm in one pass over parts", wide(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)), shapes((4, 9), (9,), (9,)))
@wide
def in_one_pass_over_parts(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0, w.shape == b.shape == x.shape[1:])
    count, mean, squares = 0, x[:, :1] * 0, x[:, :1] * 0
    for part in x.split(4, 1):
        size = part.shape[1]
        other = part.mean(1, keepdim=True)
        off = other - mean
        squares = squares + (part - other).square().sum(1, keepdim=True) + off * off * (count * size / (count + size))
        mean, count = mean + off * (size / (count + size)), count + size
    return (x - mean) * (squares / count + 1e-5).rsqrt() * w + b


@rewrite("rms norm of a sum, its way back in a Function", wide(lambda x, y, w: F.rms_norm(x + y, x.shape[1:], w, 1e-5)), shapes((4, 8), (4, 8), (8,)))
@wide
def of_a_sum(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0, w.shape == x.shape[1:])

    def forward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        total = x + y
        normed = total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return normed * w, (total, normed, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        total, normed, w = saved
        inner = g * w
        back = (inner - normed * (inner * normed).mean(1, keepdim=True)) * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return back, back.clone(), (g * normed).sum(0)

    return function(forward, backward)(x, y, w)


@rewrite("channels normed by group, as products with ones", wide(lambda x: F.group_norm(x, 2)), shapes((2, 4, 5)))
@wide
def as_products_with_ones(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, len(x) > 0, x.shape[1] % 2 == 0, x.shape[1] > 0, x.shape[2] > 0)
    flat = x.reshape(len(x) * 2, -1)
    ones = flat.new_full((flat.shape[1], 1), 1 / flat.shape[1])
    centred = flat - flat @ ones
    return (centred / (centred.square() @ ones + 1e-5).sqrt()).reshape(x.shape)


@rewrite("unit vectors by a largest number first", wide(lambda x: x / (x.square().sum(1, keepdim=True) + 1e-6).sqrt()), shapes((5, 7)))
@wide
def unit_vectors(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x * torch.rsqrt((x * x).sum(1, keepdim=True) + 1e-6)


def _loss(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], len(x) > 0, len(w) > 0, y.shape == x.shape[:1], bool(((y >= 0) & (y < len(w))).all()))
    return F.cross_entropy(x @ w.T, y)


@rewrite("product and cross entropy, three rows at a time", wide(_loss), lambda dtype: (*shapes((7, 4), (6, 4))(dtype), whole(7, most=6)))
@wide
def three_rows_at_a_time(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], len(x) > 0, len(w) > 0, y.shape == x.shape[:1], bool(((y >= 0) & (y < len(w))).all()))
    losses = []
    for part, to in zip(x.split(3), y.split(3), strict=True):
        scores = part @ w.T
        losses.append((scores.logsumexp(1) - scores.gather(1, to[:, None])[:, 0]).sum())
    return torch.stack(losses).sum() / len(x)


def _ignored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y == -100) | ((y >= 0) & (y < x.shape[1]))).all()))
    return F.cross_entropy(x, y, reduction="none")


@rewrite(
    "cross entropy with rows that do not count, in a Function",
    wide(_ignored),
    lambda dtype: (*shapes((6, 5))(dtype), torch.tensor([1, -100, 4, 0, -100, 2])),
)
@wide
def rows_that_do_not_count(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y == -100) | ((y >= 0) & (y < x.shape[1]))).all()))

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        total, at = x.logsumexp(1), y.clamp(min=0)[:, None]
        return torch.where(y >= 0, total - x.gather(1, at)[:, 0], 0), (x, total, at, y)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, total, at, y = saved
        shares = (x - total[:, None]).exp()
        shares = shares.scatter_add(1, at, -torch.ones_like(x[:, :1]))
        return torch.where((y >= 0)[:, None], shares * g[:, None], 0), None

    return function(forward, backward)(x, y)


@rewrite("binary cross entropy by a largest and a power", wide(lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none")),
         lambda dtype: (shapes((4, 6))(dtype)[0], whole(4, 6, most=2).to(dtype)))  # fmt: skip
@wide
def by_a_largest_and_a_power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return (1 - y) * x + F.softplus(-x)


@rewrite(
    "divergence of shares, from both scores",
    wide(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="none").sum(1)),
    shapes((4, 6), (4, 6)),
)
@wide
def from_both_scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    shares = y.softmax(1)
    return (torch.xlogy(shares, shares) - shares * x.log_softmax(1)).sum(1)


@rewrite("silu times another, its slopes in a Function", wide(lambda x, y: F.silu(x) * y), shapes((4, 7), (4, 7)))
@wide
def its_slopes_in_a_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y = saved
        share = x.sigmoid()
        return g * y * torch.addcmul(share, x * share, 1 - share), g * x * share

    return function(lambda x, y: (x * x.sigmoid() * y, (x, y)), backward)(x, y)


@rewrite("gelu with a tanh, by a sigmoid", wide(lambda x: F.gelu(x, approximate="tanh")), shapes((4, 9)))
@wide
def by_a_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))


@rewrite("huber's loss by a part that is cut", wide(lambda x, y: F.huber_loss(x, y, reduction="none")), shapes((4, 6), (4, 6)))
@wide
def by_a_part_that_is_cut(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    far = (x - y).abs()
    near = far.clamp(max=1)
    return near * (far - 0.5 * near)


@rewrite("logarithm of the sum of two powers, by a difference", wide(torch.logaddexp), shapes((5, 6), (5, 6)))
@wide
def by_a_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.stack([x, y]).logsumexp(0)


@rewrite("softmax with a temperature, powers of two", wide(lambda x: (x / 0.7).softmax(1)), shapes((4, 8)))
@wide
def powers_of_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    x = x * (1.4426950408889634 / 0.7)
    powers = (x - x.detach().amax(1, keepdim=True)).exp2()
    return powers / powers.sum(1, keepdim=True)


def _unlike(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    return (x[:, None] - y).square().sum(2)


@rewrite("squared distances, column by column", wide(_unlike), shapes((4, 5), (6, 5)))
@wide
def column_by_column(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    out = x.new_zeros(len(x), len(y))
    for one, two in zip(x.unbind(1), y.unbind(1), strict=True):
        out = out + (one[:, None] - two) ** 2
    return out
