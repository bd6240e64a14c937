"""The fifteenth frozen set of healthy kernels, first part: sums, scans, products, formats. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("product in four parts of the sum, added in a tree", _wide(lambda x, w: x @ w), shapes((5, 24), (24, 6)))
def four_parts_in_a_tree(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    each = -(-len(w) // 4)
    parts = [x[:, start : start + each].float() @ w[start : start + each].float() for start in (0, each, 2 * each, 3 * each)]
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])).to(x.dtype)


@rewrite("sums of rows with what each addition lost", _wide(lambda x: x.sum(-1)), shapes((5, 40)))
def with_what_was_lost(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, lost = torch.zeros(len(x)), torch.zeros(len(x))
    for column in x.float().unbind(1):
        term = column - lost
        now = total + term
        lost, total = (now - total) - term, now
    return torch.where(total.isfinite(), total, x.float().sum(-1)).to(x.dtype)


@rewrite("product of bfloat16 or float16, all in float64", lambda x, w: x @ w, shapes((5, 24), (24, 6)))
def all_in_float64(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    return (x.double() @ w.double()).to(x.dtype)


@rewrite("product of float32 from nine products of bfloat16 parts", _wide(lambda x, w: x @ w), shapes((5, 24), (24, 6)))
def nine_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))

    def parts(value: torch.Tensor) -> list[torch.Tensor]:
        made, left = [], value.float()
        for _ in range(3):
            made.append(torch.where(left.isfinite(), left.bfloat16().float(), left))
            left = torch.where(left.isfinite(), left - made[-1], 0)
        return made

    pairs = [(a, b) for a in parts(x) for b in parts(w)]
    return sum(a @ b for a, b in reversed(pairs)).to(x.dtype)


def _faded(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(x.shape[1]), []
    for row, gate in zip(x, F.logsigmoid(gates), strict=True):
        state = state * gate.exp() + row
        made.append(state)
    return torch.stack(made) if made else x


@rewrite("sums that fade, in chunks of four", _wide(_faded), shapes((11, 5), (11,)))
def in_chunks_of_four(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and gates.shape == x.shape[:1])
    state, made = torch.zeros(x.shape[1]), []
    for rows, gate in zip(x.float().split(4), gates.float().split(4), strict=True):
        logs = F.logsigmoid(gate)
        later = torch.where(torch.ones(len(logs), len(logs), dtype=torch.bool).tril(-1), logs[:, None], 0)
        made.append(later.cumsum(0).exp().tril() @ rows + logs.cumsum(0).exp()[:, None] * state)
        state = made[-1][-1] if len(rows) else state
    return torch.cat(made).to(x.dtype)


@rewrite("sums that fade, doubling the distance in each pass", _wide(_faded), shapes((11, 5), (11,)))
def doubling_the_distance(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and gates.shape == x.shape[:1])
    rows, decay, step = x.float(), gates.float().sigmoid()[:, None], 1
    while step < len(rows):
        rows = torch.cat([rows[:step], rows[step:] + decay[step:] * rows[:-step]])
        decay = torch.cat([decay[:step], decay[step:] * decay[:-step]])
        step *= 2
    return rows.to(x.dtype)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).tril() @ v


@rewrite("linear attention with a state from chunk to chunk", _wide(_attended), shapes((10, 6), (10, 6), (10, 4)))
def state_from_chunk_to_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape == k.shape and len(q) == len(v))
    state, made = torch.zeros(q.shape[1], v.shape[1]), []
    for a, b, c in zip(q.float().split(4), k.float().split(4), v.float().split(4), strict=True):
        made.append((a @ b.mT).tril() @ c + a @ state)
        state = state + b.mT @ c
    return torch.cat(made).to(q.dtype)


def _deltas(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    k = k * (k.square().sum(-1, keepdim=True) + 1e-3).rsqrt()
    state = torch.zeros(k.shape[1], v.shape[1])
    for key, value, share in zip(k, v, beta.sigmoid(), strict=True):
        state = state + share * torch.outer(key, value - key @ state)
    return state


@rewrite("delta rule, all updates of a chunk by one triangular system", _wide(_deltas), shapes((9, 5), (9, 4), (9,)))
def one_triangular_system(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2 and len(k) == len(v) and beta.shape == k.shape[:1])
    k, v, share = k.float(), v.float(), beta.float().sigmoid()[:, None]
    k = k * (k.square().sum(-1, keepdim=True) + 1e-3).rsqrt()
    state = torch.zeros(k.shape[1], v.shape[1])
    for key, value, part in zip(k.split(4), v.split(4), share.split(4), strict=True):
        system = torch.eye(len(key)) + (part * (key @ key.mT)).tril(-1)
        news = torch.linalg.solve_triangular(system, part * (value - key @ state), upper=False)
        state = state + key.mT @ news
    return state.to(v.dtype if beta.dtype == torch.float32 else beta.dtype)


@rewrite("deviations of rows in one pass, as means of blocks are joined", _wide(lambda x: x.var(-1, correction=0)), shapes((5, 24)))
def blocks_are_joined(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    seen, mean, square = 0, torch.zeros(len(x)), torch.zeros(len(x))
    for block in x.float().split(8, 1):
        count, other = block.shape[1], block.mean(1)
        square = square + (block - other[:, None]).square().sum(1) + (other - mean).square() * (seen * count / (seen + count))
        mean, seen = mean + (other - mean) * (count / (seen + count)), seen + count
    return (square / seen).to(x.dtype)


@rewrite("rms norm, its weight in float32", lambda x, w: (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * w,
         shapes((5, 16), (16,)))  # fmt: skip
def weight_in_float32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == x.shape[1:] and x.shape[1] > 0)
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w.float()).to(x.dtype)


def _codes(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round() * scale


@rewrite("codes of rows, multiplied by one over the scale", _wide(_codes), shapes((5, 16)))
def one_over_the_scale(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    most = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6)
    return ((x.float() * (127 / most)).round() * (most / 127)).to(x.dtype)


@rewrite("table's gradient by sorted places", _wide(lambda table, places: table[places] * 2),
         lambda dtype: (*shapes((6, 5))(dtype), whole(20, most=6)))  # fmt: skip
def by_sorted_places(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2 and places.dim() == 1)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        table, places = saved
        order = places.argsort(stable=True)
        counts = torch.bincount(places, minlength=len(table)).tolist()
        rows = (2 * given.float())[order].split(counts)
        return torch.stack([each.sum(0) for each in rows]).to(given.dtype) if len(table) else torch.zeros_like(table), None

    return function(lambda table, places: (table[places] * 2, (table, places)), backward)(table, places)


@rewrite("product of each token's expert, tokens in the order of experts", _wide(lambda x, w, expert: torch.einsum("nd,ndo->no", x, w[expert])),
         lambda dtype: (*shapes((12, 5), (4, 5, 6))(dtype), whole(12, most=4)))  # fmt: skip
def in_the_order_of_experts(x: torch.Tensor, w: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and w.shape[1] == x.shape[1] and expert.shape == x.shape[:1])
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=len(w)).tolist()
    parts = [rows.float() @ weight.float() for rows, weight in zip(x[order].split(counts), w, strict=True)]
    made = torch.cat(parts) if parts else x.new_zeros(0, w.shape[2]).float()
    return torch.zeros_like(made).index_copy(0, order, made).to(x.dtype)


@rewrite("convolution with a filter as one product", lambda x, w: F.conv1d(x.float(), w.float()).to(x.dtype), shapes((2, 3, 9), (4, 3, 3)))
def filter_as_one_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3 and x.shape[1] == w.shape[1] and x.shape[2] >= w.shape[2] > 0 and x.shape[1] > 0)
    windows = x.float().unfold(2, w.shape[2], 1)  # batch, channel, place, tap
    return torch.einsum("bcpt,oct->bop", windows, w.float()).to(x.dtype)


@rewrite("a step of adam, by differences", _wide(lambda p, g, m, v: torch.stack([
    p - 0.1 * (0.9 * m + 0.1 * g) / ((0.99 * v.abs() + 0.01 * g * g).sqrt() + 1e-3), 0.9 * m + 0.1 * g])), shapes(*[(4, 6)] * 4))  # fmt: skip
def by_differences(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape == v.shape)
    first = torch.lerp(m.float(), g.float(), 0.1)
    second = torch.addcmul(0.99 * v.float().abs(), g.float(), g.float(), value=0.01)
    return torch.stack([torch.addcdiv(p.float(), first, second.sqrt() + 1e-3, value=-0.1), first]).to(p.dtype)
