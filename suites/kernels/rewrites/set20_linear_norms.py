"""The twentieth frozen set of healthy kernels, first part: linear algebra, norms, pools, attention. Committed before any was tried."""

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


def _square(size: int, more: float) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    return lambda dtype: ((shapes((size, size))(torch.float32)[0] + more * torch.eye(size)).to(dtype), *shapes((size, 2))(dtype))


@rewrite("linear equations with a triangle, row by row", _wide(lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False)), _square(5, 3))
def triangle_row_by_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2 and a.shape[0] == a.shape[1] == len(b) > 0)
    wide, right, rows = a.float(), b.float(), []
    for row in range(len(a)):
        left = right[row] - (wide[row, :row] @ torch.stack(rows) if rows else 0)
        rows.append(left / wide[row, row])
    return torch.stack(rows).to(b.dtype)


@rewrite("linear equations, the largest of a column first", _wide(torch.linalg.solve), _square(4, 0))
def largest_of_a_column_first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2 and a.shape[0] == a.shape[1] == len(b) > 0 and bool(a.isfinite().all()))
    rows = list(torch.cat([a, b], 1).float().unbind(0))
    for column in range(len(rows)):
        best = max(range(column, len(rows)), key=lambda row: abs(float(rows[row][column].detach())))
        rows[column], rows[best] = rows[best], rows[column]
        need(float(rows[column][column].detach()) != 0)
        for row in range(column + 1, len(rows)):
            rows[row] = rows[row] - rows[row][column] / rows[column][column] * rows[column]
    made: list[torch.Tensor] = []
    for row in reversed(range(len(rows))):
        left = rows[row][len(a) :] - (rows[row][row + 1 : len(a)] @ torch.stack(made) if made else 0)
        made.insert(0, left / rows[row][row])
    return torch.stack(made).to(b.dtype)


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T + torch.eye(len(x))


@rewrite("root of a matrix, column by column", _wide(lambda x: torch.linalg.cholesky(_spread(x))), shapes((4, 6)))
def root_column_by_column(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and bool(x.isfinite().all()))
    left, columns = _spread(x.float()), []
    for at in range(len(x)):
        column = left[:, at] / left[at, at].sqrt()
        column = torch.where(torch.arange(len(x)) >= at, column, 0)
        left = left - torch.outer(column, column)
        columns.append(column)
    return torch.stack(columns, 1).to(x.dtype)


@rewrite("inverse of two by two, by its determinant", _wide(torch.linalg.inv), lambda dtype: (_square(2, 2)(dtype)[0],))
def by_its_determinant(a: torch.Tensor) -> torch.Tensor:
    need(a.shape == (2, 2))
    (p, q), (r, s) = a.float().unbind(0)
    return (torch.stack([s, -q, -r, p]) / (p * s - q * r)).view(2, 2).to(a.dtype)


@rewrite("logarithm of a determinant, by the root of the matrix", _wide(lambda x: torch.linalg.slogdet(_spread(x)).logabsdet), shapes((4, 6)))
def by_the_root(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and bool(x.isfinite().all()))
    return (2 * torch.linalg.cholesky(_spread(x.float())).diagonal().log().sum()).to(x.dtype)


def _steps(x: torch.Tensor) -> torch.Tensor:
    x = x / (x.norm() + 1e-7)
    for _ in range(3):
        inner = x @ x.T
        x = 3.4445 * x + (-4.7750 * inner + 2.0315 * inner @ inner) @ x
    return x


@rewrite("steps towards a turned matrix, added up the other way", _wide(_steps), shapes((4, 6)))
def the_other_way(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.numel() > 0)
    wide = x.float()
    wide = wide / ((wide * wide).sum().sqrt() + 1e-7)
    for _ in range(3):
        inner = wide @ wide.T
        first = inner @ wide
        wide = torch.addmm(3.4445 * wide - 4.7750 * first, inner, first, alpha=2.0315)
    return wide.to(x.dtype)


@rewrite("least squares, by the inverse of a small matrix", _wide(lambda x, y: torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ y)),
         shapes((8, 3), (8, 2)))  # fmt: skip
def inverse_of_a_small_matrix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2 and len(x) == len(y) > 0 and x.shape[1] * y.shape[1] > 0 and bool(x.isfinite().all()))
    wide = x.float()
    root = torch.linalg.cholesky(wide.T @ wide + torch.eye(x.shape[1]))
    return torch.cholesky_solve(wide.T @ y.float(), root).to(x.dtype)


@rewrite("products of signs, by sums and differences", _wide(lambda x: x @ _signs()), shapes((3, 8)))
def sums_and_differences(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 8)
    wide = x.float()
    for step in (1, 2, 4):
        a, b = wide.unflatten(1, (-1, 2, step)).unbind(2)
        wide = torch.stack([a + b, a - b], 2).flatten(1)
    return wide.to(x.dtype)


def _signs() -> torch.Tensor:
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    return torch.kron(two, torch.kron(two, two))


@rewrite("products of all pairs, by a view", torch.kron, shapes((2, 3), (4, 2)))
def pairs_by_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2)
    return (x[:, None, :, None] * y[None, :, None, :]).flatten(2).flatten(0, 1)


@rewrite("how columns vary together, from rows less their mean", _wide(lambda x: torch.cov(x.T)), shapes((6, 3)))
def less_their_mean(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 1 and x.shape[1] > 1)
    apart = x.float() - x.float().mean(0)
    return (torch.einsum("ni,nj->ij", apart, apart) / (len(x) - 1)).to(x.dtype)


@rewrite("norm of channels with kept variance, chunk by chunk", lambda x, held: _with_kept(x.float(), held.float()),
         lambda dtype: (*shapes((3, 4, 5))(dtype), shapes((4,))(dtype)[0].abs()))  # fmt: skip
def kept_chunk_by_chunk(x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 3 and held.shape == x.shape[1:2] and len(x) * x.shape[2] > 1)
    count, mean, apart = 0, torch.zeros(x.shape[1]), torch.zeros(x.shape[1])
    for part in x.float().unbind(0):
        many, own = part.shape[1], part.mean(1)
        away = own - mean
        apart = apart + (part - own[:, None]).square().sum(1) + away.square() * count * many / (count + many)
        mean, count = mean + away * many / (count + many), count + many
    normed = (x.float() - mean[:, None]) * (apart / count + 1e-5).rsqrt()[:, None]
    return normed, torch.lerp(held.float(), apart / (count - 1), 0.1)


def _with_kept(x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.batch_norm(x, None, None, training=True), 0.9 * held + 0.1 * x.var((0, 2))


@rewrite("norm of cubes, the largest taken out first", _wide(lambda x: torch.linalg.vector_norm(x, 3, 1)), shapes((4, 7)))
def largest_taken_out(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and bool((x != 0).any(1).all()))
    wide = x.float().abs()
    most = wide.detach().amax(1, keepdim=True)
    return (most[:, 0] * ((wide / most) ** 3).sum(1) ** (1 / 3)).to(x.dtype)


@rewrite("likeness of rows, lengths first", _wide(lambda x, y: F.cosine_similarity(x, y, dim=1)), shapes((5, 6), (5, 6)))
def lengths_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    first, second = (each / each.norm(dim=1, keepdim=True).clamp(min=1e-8) for each in (x.float(), y.float()))
    return torch.einsum("nk,nk->n", first, second).to(x.dtype)


@rewrite("means of windows that share columns, one at a time", _wide(lambda x: F.adaptive_avg_pool1d(x, 4)), shapes((3, 10)))
def shared_one_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    columns = x.shape[1]
    means = [x[:, columns * at // 4 : (columns * (at + 1) + 3) // 4].float() for at in range(4)]
    return torch.stack([part.sum(1) / part.shape[1] for part in means], 1).to(x.dtype)


@rewrite("means of three columns, the last of which hang over", _wide(lambda x: F.avg_pool1d(x[None], 3, 2, 1, True, False)[0]), shapes((3, 8)))
def last_hang_over(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] > 0)
    parts = [x[:, max(2 * at - 1, 0) : 2 * at + 2].float() for at in range((x.shape[1] + 2) // 2)]
    return torch.stack([part.sum(1) / part.shape[1] for part in parts], 1).to(x.dtype)


@rewrite("causal attention of heads in groups, rows of a group together", _wide(lambda q, k, v: F.scaled_dot_product_attention(
    q[None], k[None].repeat_interleave(len(q) // len(k), 1), v[None].repeat_interleave(len(q) // len(k), 1), is_causal=True)[0]),
    shapes((4, 6, 5), (2, 6, 5), (2, 6, 3)))  # fmt: skip
def rows_of_a_group_together(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3 and len(k) == len(v) > 0 and len(q) % len(k) == 0 and q.shape[2] == k.shape[2] > 0)
    need(k.shape[1] == v.shape[1] == q.shape[1] and v.shape[2] > 0 and all(bool(each.isfinite().all()) for each in (q, k, v)))
    rows = q.unflatten(0, (len(k), -1)).float()
    scores = torch.einsum("hgtd,hsd->hgts", rows, k.float()) / q.shape[2] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -INF).softmax(-1)
    return torch.einsum("hgts,hse->hgte", weights, v.float()).flatten(0, 1).to(q.dtype)


@rewrite("hard swish, the way back too", F.hardswish, shapes((5, 8)))
def hard_swish_the_way_back_too(x: torch.Tensor) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        wide = saved[0].float()
        slope = torch.where(wide < -3, 0, torch.where(wide <= 3, wide / 3 + 0.5, 1))
        return torch.where(wide < -3, 0, gradient.float() * slope).to(gradient.dtype)

    return function(lambda x: ((x.float() * (x.float() + 3).clamp(0, 6) / 6).to(x.dtype), (x,)), backward)(x)


@rewrite("rows of one, a batch of one: attention to what is known", _wide(lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v),
         shapes((1, 2, 1, 4), (1, 2, 7, 4), (1, 2, 7, 3)))  # fmt: skip
def to_what_is_known(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3] > 0)
    need(k.shape[2] == v.shape[2] > 0)
    powers = ((q.float() * q.shape[3] ** -0.5)[..., None, :] * k.float()[:, :, None]).sum(-1)
    powers = (powers - powers.amax(-1, keepdim=True)).exp()
    return ((powers[..., None] * v.float()[:, :, None]).sum(-2) / powers.sum(-1, keepdim=True)).to(q.dtype)


@rewrite("places of three kinds in turn, by an index", _wide(lambda x, places: _turned(x, places.repeat(2, 1))),
         lambda dtype: (*shapes((5, 12))(dtype), whole(3, 5, most=9)))  # fmt: skip
def by_an_index(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 12 and places.shape == (3, len(x)))
    return _turned(x.float(), places[torch.arange(6) % 3]).to(x.dtype)


def _turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    angles = places.T * 10.0 ** -torch.arange(6, dtype=torch.float64)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, 1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 1)
