"""The twenty-fourth frozen set of healthy kernels, first part: sums, norms, products, activations. Committed before any was tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _up(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    return type(value)(map(_up, value)) if isinstance(value, list) else value


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its results in the format of the first tensor."""

    @functools.wraps(formula)
    def made(*inputs: Any, **named: Any) -> Any:
        first = [*inputs, *named.values()][0]
        dtype = (first[0] if isinstance(first, list) else first).dtype
        out = formula(*map(_up, inputs), **{name: _up(each) for name, each in named.items()})
        return tuple(each.to(dtype) for each in out) if isinstance(out, tuple) else out.to(dtype)

    return made


# Sums


@rewrite("sum of rows, by a tree", lambda x: x.sum(1), shapes((4, 13)))
@_wide
def by_a_tree(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = torch.cat([x[:, :half] + x[:, half : 2 * half], x[:, 2 * half :]], 1)
    return x.sum(1)


@rewrite("sum of rows, from both ends", lambda x: x.sum(1), shapes((4, 12)))
@_wide
def from_both_ends(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    half = x.shape[1] // 2
    return (x[:, :half] + x[:, x.shape[1] - half :].flip(1)).sum(1) + x[:, half : x.shape[1] - half].sum(1)


@rewrite("sum of columns, one row after another, with what is lost", _wide(lambda x: x.sum(0)), shapes((14, 5)))
@_wide
def with_what_is_lost(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, lost = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
    for row in x:
        later = total + row
        missing = torch.where(total.abs() >= row.abs(), (total - later) + row, (row - later) + total).detach()
        total, lost = later, lost + torch.where(later.isfinite(), missing, 0)
    return total + lost


@rewrite("product, its inner size in four parts", torch.mm, shapes((5, 16), (16, 6)))
@_wide
def in_four_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[0])
    parts = [one @ other for one, other in zip(a.tensor_split(4, 1), b.tensor_split(4, 0), strict=True)]
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


@rewrite("product, three terms at a time", torch.matmul, shapes((2, 5, 9), (2, 9, 4)))
@_wide
def three_terms_at_a_time(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 3, len(a) == len(b), a.shape[2] == b.shape[1])
    total = a.new_zeros(len(a), a.shape[1], b.shape[2])
    for begin in range(0, a.shape[2], 3):
        total = total + torch.einsum("nik,nkj->nij", a[:, :, begin : begin + 3], b[:, begin : begin + 3])
    return total


@rewrite("mean of rows, kept up", lambda x: x.mean(1), shapes((3, 11)))
@_wide
def kept_up(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return functools.reduce(lambda mean, step: torch.lerp(mean, x[:, step], 1 / (step + 1)), range(1, x.shape[1]), x[:, 0])


@rewrite("sums so far, in blocks of four", _wide(lambda x: x.cumsum(1)), shapes((3, 10)))
@_wide
def in_blocks_of_four(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    carry, out = x.new_zeros(len(x), 1), []
    for block in x.split(4, 1):
        within = block.cumsum(1)
        out.append(carry + within)
        carry = carry + block.sum(1, keepdim=True)
    return torch.cat(out, 1) if out else x.clone()


@rewrite("sums of groups, sorted first", lambda x, at: torch.zeros(5, x.shape[1], dtype=x.dtype).index_add(0, at, x),
         lambda dtype: (*shapes((12, 3))(dtype), whole(12, most=5)))  # fmt: skip
@_wide
def sorted_first(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, len(x) == len(at), bool(((at >= 0) & (at < 5)).all()))
    rows = x[at.argsort(stable=True)].split(at.bincount(minlength=5).tolist())
    return torch.stack([each.sum(0) for each in rows])


@rewrite("lengths of a list of gradients, cut to one", lambda given: tuple(
    each / torch.stack([g.float().square().sum() for g in given]).sum().sqrt().clamp(min=1.0).to(each.dtype) for each in given),
    lambda dtype: (list(shapes((3, 4), (5,))(dtype)),))  # fmt: skip
@_wide
def cut_to_one(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    total = sum(torch.linalg.vecdot(each.flatten(), each.flatten()) for each in given)
    return tuple(each / torch.sqrt(torch.maximum(total, torch.ones(()))) for each in given)


# Norms


@rewrite("variance of rows, kept up", _wide(lambda x: x.var(1, correction=0)), shapes((3, 9)))
@_wide
def variance_kept_up(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    mean, total = x[:, 0], torch.zeros_like(x[:, 0])
    for step in range(1, x.shape[1]):
        away = x[:, step] - mean
        mean = mean + away / (step + 1)
        total = total + away * (x[:, step] - mean)
    return total / x.shape[1]


@rewrite("variance of rows, from both halves", _wide(lambda x: x.var(1, correction=0)), shapes((3, 10)))
@_wide
def from_both_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    one, two = x.tensor_split(2, 1)
    n, m = one.shape[1], two.shape[1]
    gap = two.mean(1) - one.mean(1)
    return (one.var(1, correction=0) * n + two.var(1, correction=0) * m + gap * gap * (n * m / (n + m))) / (n + m)


class Norm(NamedTuple):
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor


@rewrite("layer norm of a tuple with names, its backward by hand", lambda n: F.layer_norm(n.x, n.x.shape[1:], n.weight, n.bias, 1e-5),
         lambda dtype: (Norm(*shapes((4, 10), (10,), (10,))(dtype)),))  # fmt: skip
def backward_by_hand(n: Norm) -> torch.Tensor:
    need(n.x.dim() == 2, n.x.shape[1:] == n.weight.shape == n.bias.shape, n.x.shape[1] > 0)

    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        even = x.float() - x.float().mean(1, keepdim=True)
        spread = torch.rsqrt(even.square().mean(1, keepdim=True) + 1e-5)
        return (even * spread * weight.float() + bias.float()).to(x.dtype), (x, weight, spread)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, weight, spread = saved
        even = (x.float() - x.float().mean(1, keepdim=True)) * spread
        inner = g.float() * weight.float()
        slope = spread * (inner - inner.mean(1, keepdim=True) - even * (inner * even).mean(1, keepdim=True))
        return slope.to(x.dtype), (g.float() * even).sum(0).to(x.dtype), g.float().sum(0).to(x.dtype)

    return function(forward, backward)(*n)


@torch.library.custom_op("set24::rms_norm", mutates_args=())
def _operator(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == weight.shape, x.shape[1] > 0)
    return (x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


def _operator_backward(ctx: Any, g: torch.Tensor) -> Any:
    x, weight = ctx.saved_tensors
    up, inner = x.float(), g.float() * weight.float()
    spread = torch.rsqrt(up.square().mean(1, keepdim=True) + 1e-6)
    slope = spread * (inner - up * spread.square() * (inner * up).mean(1, keepdim=True))
    return slope.to(x.dtype), (g.float() * up * spread).sum(0).to(x.dtype)


_operator.register_fake(lambda x, weight: torch.empty_like(x, memory_format=torch.contiguous_format))
_operator.register_autograd(_operator_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
rewrite("rms norm, an operator", lambda x, weight: F.rms_norm(x, x.shape[1:], weight, 1e-6), shapes((4, 9), (9,)))(_operator)


@rewrite("sum and its rms norm", lambda x, y, w: (x + y, F.rms_norm(x + y, x.shape[1:], w, 1e-5)), shapes((4, 8), (4, 8), (8,)))
def sum_and_its_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape == y.shape, w.shape == x.shape[1:], x.shape[1] > 0)
    both = x + y
    up = both.float()
    return both, (up / (up.square().sum(1, keepdim=True) / x.shape[1] + 1e-5).sqrt() * w.float()).to(x.dtype)


@rewrite("group norm, groups in front", _wide(lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5)), shapes((3, 6, 5), (6,), (6,)))
@_wide
def groups_in_front(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, w.shape == b.shape == x.shape[1:2], x.shape[1] * x.shape[2] > 2, x.numel() > 0)
    grouped = x.unflatten(1, (2, -1)).transpose(0, 1).flatten(2)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    even = ((grouped - mean) * torch.rsqrt(variance + 1e-5)).unflatten(2, (-1, x.shape[2])).transpose(0, 1).flatten(1, 2)
    return torch.addcmul(b[:, None], even, w[:, None])


@rewrite("batch norm, channels last", _wide(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)), shapes((3, 4, 5), (4,), (4,)))
@_wide
def channels_last(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == b.shape == x.shape[1:2], len(x) * x.shape[2] > 1)
    rows = x.permute(0, 2, 1).reshape(-1, x.shape[1])
    away = rows - rows.mean(0)
    out = away * torch.rsqrt(away.square().mean(0) + 1e-5) * w + b
    return out.reshape(len(x), x.shape[2], x.shape[1]).permute(0, 2, 1).contiguous()


@rewrite("weights of a length", _wide(lambda v, g: g[:, None] * v / (v.square().sum(1, keepdim=True) + 1e-4).sqrt()), shapes((5, 6), (5,)))
@_wide
def of_a_length(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, g.shape == v.shape[:1])
    return v * (g * torch.rsqrt(torch.einsum("ij,ij->i", v, v) + 1e-4))[:, None]


@rewrite("scaled and shifted by a condition", lambda x, scale, shift: F.layer_norm(x, x.shape[2:]) * (1 + scale[:, None]) + shift[:, None],
         shapes((2, 4, 8), (2, 8), (2, 8)))  # fmt: skip
@_wide
def by_a_condition(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, scale.shape == shift.shape == x.shape[::2], x.shape[2] > 0)
    even = x - x.mean(2, keepdim=True)
    even = even * torch.rsqrt((even * even).mean(2, keepdim=True) + 1e-5)
    return even + even * scale[:, None] + shift[:, None]


# Activations


@rewrite("gate and product, computed again on the way back", lambda a, b: F.silu(a) * b, shapes((4, 7), (4, 7)))
def computed_again(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        one, two, up = *(each.float() for each in saved), g.float()
        share = one.sigmoid()
        return (up * two * share * (1 + one * (1 - share))).to(g.dtype), (up * one * share).to(g.dtype)

    return function(lambda a, b: ((a.float() * a.float().sigmoid() * b.float()).to(a.dtype), (a, b)), backward)(a, b)


@rewrite("bias, gelu and what was before", _wide(lambda x, bias, before: F.gelu(x + bias, approximate="tanh") + before), shapes((4, 6), (6,), (4, 6)))
@_wide
def what_was_before(x: torch.Tensor, bias: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    need(x.shape == before.shape, x.dim() == 2, bias.shape == x.shape[1:])
    y = x + bias
    return torch.addcmul(before, y, torch.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y)))


@rewrite("squares above zero, with a mask kept", lambda x: F.relu(x).square(), shapes((5, 8)))
def with_a_mask_kept(x: torch.Tensor) -> torch.Tensor:
    return function(lambda x: (F.relu(x) * F.relu(x), (x,)), lambda saved, g: 2 * g * F.relu(saved[0]))(x)


@rewrite("linear and gelu, a piece of rows at a time", _wide(lambda x, w, b: F.gelu(F.linear(x, w, b))), shapes((7, 5), (6, 5), (6,)))
@_wide
def a_piece_of_rows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1], b.shape == w.shape[:1])
    out = [torch.addmm(b, piece, w.T) for piece in x.split(3)]
    return torch.cat([y * 0.5 * torch.erfc(-y * 0.7071067811865476) for y in out]) if out else x.new_zeros(0, len(w))


@rewrite("all three projections in one product", lambda *, x, q, k, v: (x @ q, x @ k, x @ v),
         lambda dtype: dict(zip("xqkv", shapes((4, 6), (6, 5), (6, 3), (6, 3))(dtype), strict=True)))  # fmt: skip
def in_one_product(*, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(x.dim() == q.dim() == k.dim() == v.dim() == 2, len(q) == len(k) == len(v) == x.shape[1])
    return tuple(each.contiguous() for each in (x @ torch.cat([q, k, v], 1)).split([q.shape[1], k.shape[1], v.shape[1]], 1))


@rewrite("product and its low-rank change, in one", _wide(lambda x, w, a, b: x @ w + (x @ a) @ b), shapes((4, 6), (6, 5), (6, 2), (2, 5)))
@_wide
def low_rank_in_one(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == a.dim() == b.dim() == 2, x.shape[1] == len(w) == len(a), a.shape[1] == len(b), w.shape[1] == b.shape[1])
    return torch.cat([x, x @ a], 1) @ torch.cat([w, b])
