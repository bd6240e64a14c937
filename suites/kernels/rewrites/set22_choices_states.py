"""The twenty-second frozen set of healthy kernels, second part: choices, tables, attention, states. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _with(made: Callable[[torch.dtype], tuple[Any, ...]], *more: torch.Tensor) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: (*made(dtype), *more)


@rewrite("middle of each row, by two sorted numbers", lambda x: torch.quantile(x.float(), 0.5, dim=1, interpolation="lower").to(x.dtype),
      shapes((4, 9)))  # fmt: skip
def by_sorted_numbers(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    found = x.sort(1).values[:, (x.shape[1] - 1) // 2]
    return torch.where(x.isnan().any(1), torch.nan, found).to(x.dtype)


@rewrite("scores of used tokens made smaller, in a loop", lambda x, used: _penalised(x, used), _with(shapes((4, 9)), whole(4, 3, most=9)))
def in_a_loop(x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    need(x.dim() == used.dim() == 2, len(x) == len(used), bool(((used >= 0) & (used < x.shape[1])).all()))
    hit = (used[:, :, None] == torch.arange(x.shape[1])).any(1)
    return torch.where(hit & (x > 0), x / 2, torch.where(hit, x * 2, x))


def _penalised(x: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    hit = torch.zeros_like(x, dtype=torch.bool).scatter(1, used, True)
    return x * torch.where(hit, torch.where(x > 0, 0.5, 2.0), 1.0).to(x.dtype)


@rewrite("three largest of each row and their sum, one after another", _wide(lambda x: x.topk(3, 1).values.sum(1)), shapes((4, 8)))
def one_after_another(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    left, total = x.float(), torch.zeros(len(x))
    for _ in range(3):
        place = left.detach().argmax(1, keepdim=True)
        total = total + left.gather(1, place)[:, 0]
        left = left.scatter(1, place, -torch.inf)
    return total.to(x.dtype)


@rewrite("sums of rows by label, sorted first", _wide(lambda x, ids: torch.zeros(5, x.shape[1]).index_add(0, ids, x)),
      _with(shapes((9, 4)), whole(9, most=5)))  # fmt: skip
def sorted_first(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, ids.shape == x.shape[:1], bool(((ids >= 0) & (ids < 5)).all()))
    order = ids.argsort(stable=True)
    counts = ids.bincount(minlength=5).tolist()
    return torch.stack([each.sum(0) for each in x.float()[order].split(counts)]).to(x.dtype)


@rewrite("means of rows by label, by a matrix", _wide(lambda x, ids: torch.zeros(5, x.shape[1]).index_reduce(0, ids, x, "mean", include_self=False)),
         _with(shapes((9, 4)), whole(9, most=5)))  # fmt: skip
def means_by_a_matrix(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, ids.shape == x.shape[:1], bool(((ids >= 0) & (ids < 5)).all()))
    counts = ids.bincount(minlength=5).clamp(min=1)
    return torch.stack([x.float()[ids == label].sum(0) / counts[label] for label in range(5)]).to(x.dtype)


@rewrite("rows of a table with a scale each, as a product", lambda table, s, ids: table[ids] * s[ids, None],
      _with(shapes((6, 4), (6,)), whole(7, most=6)))  # fmt: skip
def as_a_product(table: torch.Tensor, s: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, s.shape == table.shape[:1], bool(((ids >= 0) & (ids < len(table))).all()))
    return torch.index_select(table, 0, ids) * torch.index_select(s, 0, ids).unsqueeze(1)


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    far = torch.arange(len(q))[:, None] - torch.arange(len(k))
    scores = (q.float() @ k.float().T / max(q.shape[1], 1) ** 0.5).masked_fill((far < 0) | (far >= 3), -torch.inf)
    return scores.softmax(1).to(q.dtype).float() @ v.float()


@rewrite("attention in a window, row by row", lambda q, k, v: _window(q, k, v).to(q.dtype), shapes((7, 4), (7, 4), (7, 4)))
def row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, len(v) == len(k), v.dim() == 2)
    rows = []
    for place in range(len(q)):
        low = max(place - 2, 0)
        scores = k[low : place + 1].float() @ q[place].float() * max(q.shape[1], 1) ** -0.5
        rows.append(scores.softmax(0) @ v[low : place + 1].float())
    return (torch.stack(rows) if rows else q.float() @ k.float().T @ v.float()).to(q.dtype)


@rewrite("attention of one row, largest score so far", lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
      shapes((3, 4), (9, 4), (9, 5)))  # fmt: skip
def largest_so_far(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.shape[1] == q.shape[1] > 0, len(k) == len(v) > 0)
    most, total, held = torch.full((len(q), 1), -torch.inf), torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for keys, values in zip(k.float().split(4), v.float().split(4), strict=True):
        scores = q.float() @ keys.T * q.shape[1] ** -0.5
        new = torch.maximum(most, scores.detach().amax(1, keepdim=True))
        powers, fade = (scores - new).exp(), (most - new).exp()
        total, held, most = total * fade + powers.sum(1, keepdim=True), held * fade + powers @ values, new
    return (held / total).to(q.dtype)


@rewrite("nodes weighed by their scores, graph by graph", lambda x, s, graph: _per_graph(x, s, graph),
         _with(shapes((8, 3), (8,)), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])))  # fmt: skip
def graph_by_graph(x: torch.Tensor, s: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, s.shape == graph.shape == x.shape[:1], bool(((graph >= 0) & (graph < 3)).all()))
    return torch.stack([s.float()[graph == each].softmax(0) @ x.float()[graph == each] for each in range(3)]).to(x.dtype)


def _per_graph(x: torch.Tensor, s: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    mine = graph == torch.arange(3)[:, None]
    weights = torch.where(mine, s.float(), -torch.inf).softmax(1)
    return (torch.where(mine, weights, 0) @ x.float()).to(x.dtype)


@rewrite("sums that fade, two halves joined", _wide(lambda x: _faded(x)), shapes((8, 4)))
def two_halves_joined(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    half = (len(x) + 1) // 2
    first = _faded(x[:half].float())
    second = _faded(x[half:].float())
    fades = 0.8 ** torch.arange(1, len(second) + 1).float()
    return torch.cat([first, second + fades[:, None] * first[-1]]).to(x.dtype)


def _faded(x: torch.Tensor) -> torch.Tensor:
    held, rows = torch.zeros_like(x[0]) if len(x) else x.sum(0), list[torch.Tensor]()
    for row in x:
        held = 0.8 * held + row
        rows.append(held)
    return torch.stack(rows) if rows else x * 1


@rewrite("a triangle of ones taken away, by its inverse",
      _wide(lambda a, b: torch.linalg.solve_triangular(0.2 * a.tril(-1), b, upper=False, unitriangular=True)),
         shapes((5, 5), (5, 3)))  # fmt: skip
def by_substitution(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[0] == a.shape[1] == b.shape[0])
    low, rows = 0.2 * a.float(), list[torch.Tensor]()
    for place, row in enumerate(b.float()):
        rows.append(row - low[place, :place] @ torch.stack(rows) if rows else row)
    return (torch.stack(rows) if rows else b.float()).to(a.dtype)


@rewrite("upper triangle times a vector, column by column", lambda a, v: (a.float().triu() @ v.float()).to(a.dtype), shapes((6, 6), (6,)))
def column_by_column(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, v.dim() == 1, a.shape[0] == a.shape[1] == len(v))
    total = torch.zeros(len(v))
    for place in range(len(v)):
        total = total + F.pad(a[: place + 1, place].float() * v[place].float(), (0, len(v) - place - 1))
    return total.to(a.dtype)


@rewrite("distances of rows, one row at a time", _wide(lambda x, y: (x[:, None] - y).square().sum(2)), shapes((4, 6), (5, 6)))
def one_row_at_a_time(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1], len(x) > 0)
    return torch.stack([(y.float() - row).pow(2).sum(1) for row in x.float()]).to(x.dtype)


@rewrite("a step of momentum, in one buffer", lambda p, g, m: _step(p.float(), g.float(), m.float(), p.dtype), shapes((4, 5), (4, 5), (4, 5)))
def in_one_buffer(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    held = torch.lerp(g.float(), m.float(), 0.9)
    return torch.add(p.float() * 0.99, held, alpha=-0.1).to(p.dtype), held.to(p.dtype)


def _step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    held = 0.9 * m + 0.1 * g
    return (p - 0.01 * p - 0.1 * held).to(dtype), held.to(dtype)


@rewrite("overlap of shares with flags, counted", _wide(lambda p, t: (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)),
         lambda dtype: (shapes((4, 9))(dtype)[0].sigmoid(), (shapes((4, 9))(torch.float32)[0] > 0).to(dtype)))  # fmt: skip
def overlap_counted(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    both = torch.einsum("ni,ni->n", p.float(), t.float())
    return ((both + 0.5) / ((torch.einsum("ni->n", p.float() + t.float()) + 1) / 2)).to(p.dtype)


@rewrite("likeness of rows, each of length one first", _wide(lambda x, y: F.cosine_similarity(x, y, dim=1)), shapes((5, 8), (5, 8)))
def each_of_length_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    return (F.normalize(x.float(), dim=1, eps=1e-8) * F.normalize(y.float(), dim=1, eps=1e-8)).sum(1).to(x.dtype)
