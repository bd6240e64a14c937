"""The twenty-third frozen set of healthy kernels, first part: units, losses, differences, boxes. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _alike(formula: Callable[..., Any], dims: int | None = None) -> Callable[..., Any]:
    """The formula in float32, of inputs that have one shape and, if told, so many dimensions."""

    def candidate(*inputs: torch.Tensor) -> Any:
        need(all(each.shape == inputs[0].shape for each in inputs), dims in (None, inputs[0].dim()))
        return _wide(formula)(*inputs)

    return candidate


def _shares(*sizes: tuple[int, ...]) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    """Numbers between zero and one."""
    return lambda dtype: tuple(each.float().sigmoid().to(dtype) for each in shapes(*sizes)(dtype))


ONE, TWO = shapes((5, 7)), shapes((4, 6), (4, 6))

rewrite("hard sigmoid by two limits", _wide(F.hardsigmoid), ONE)(_wide(lambda x: torch.minimum(F.relu(x + 3), torch.tensor(6.0)) / 6))
rewrite("hard swish as a product", _wide(F.hardswish), ONE)(_wide(lambda x: x * (x / 6 + 0.5).clamp(0, 1)))
rewrite("continuous exponential unit of two halves", _wide(lambda x: F.celu(x, 0.5)), ONE)(
    _wide(lambda x: F.relu(x) + 0.5 * torch.expm1(x.clamp(max=0) / 0.5)))  # fmt: skip
rewrite("what a tanh leaves, by a sigmoid", _wide(F.tanhshrink), ONE)(_wide(lambda x: x - torch.tanh(x)))
rewrite("soft shrink by what lies outside", _wide(F.softshrink), ONE)(_wide(lambda x: x - x.clamp(-0.5, 0.5)))
rewrite("hard shrink by a mask", _wide(F.hardshrink), ONE)(_wide(lambda x: torch.where(x.abs() > 0.5, x, 0 * x)))
rewrite("gated linear unit, halves unbound", _wide(lambda x: F.glu(x, 1)), shapes((4, 8)))(
    _wide(lambda x: x.unflatten(1, (2, -1))[:, 0] * torch.sigmoid(x.unflatten(1, (2, -1))[:, 1])
          if x.shape[1] % 2 == 0 else need(False)))  # fmt: skip
rewrite("logarithm of odds by two logarithms", _wide(lambda p: torch.logit(p, 1e-3)), _shares((4, 6)))(
    _wide(lambda p: p.clamp(1e-3, 1 - 1e-3).log() - torch.log1p(-p.clamp(1e-3, 1 - 1e-3))))  # fmt: skip
rewrite("three numbers added in logarithms, two at a time", _wide(lambda x, y, z: torch.stack([x, y, z]).logsumexp(0)),
        shapes((3, 5), (3, 5), (3, 5)))(
    _alike(lambda x, y, z: torch.logaddexp(torch.logaddexp(x, y), z)))  # fmt: skip
rewrite("squared rectified unit as a product", _wide(lambda x: F.relu(x).square()), ONE)(_wide(lambda x: F.relu(x) * F.relu(x)))
rewrite("loss of counts", _wide(lambda x, t: F.poisson_nll_loss(x, t.detach(), reduction="none")), TWO)(_alike(lambda x, t: x.exp() - t.detach() * x))
rewrite("loss of a mean and a spread", _wide(lambda x, t, v: 0.5 * (v.log() + (x - t).square() / v)),
        lambda dtype: (*TWO(dtype), (shapes((4, 6))(dtype)[0].float().square() + 0.2).to(dtype)))(
    _alike(lambda x, t, v: (torch.log(v) + (x - t) * (x - t) / v) / 2))  # fmt: skip
rewrite("ranking with a margin, both orders", _wide(lambda x, y: F.relu(0.3 - (x - y))), TWO)(_alike(lambda x, y: torch.clamp(y - x + 0.3, min=0)))
rewrite("smooth absolute difference by what is cut off", _wide(lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none")), TWO)(
    _alike(lambda x, y: (x - y).clamp(-0.5, 0.5).square() + ((x - y) - (x - y).clamp(-0.5, 0.5)).abs()))  # fmt: skip
rewrite("soft margin of two classes", _wide(lambda x, t: F.softplus(-t.detach() * x)), TWO)(
    _alike(lambda x, t: torch.logaddexp(-t.detach() * x, torch.zeros_like(x))))  # fmt: skip
rewrite("loss of several labels, a mean of rows", _wide(lambda x, t: F.multilabel_soft_margin_loss(x, t.detach(), reduction="none")),
        lambda dtype: (shapes((4, 6))(dtype)[0], (shapes((4, 6))(dtype)[0] > 0.2).to(dtype)))(
    _alike(lambda x, t: (t.detach() * F.softplus(-x) + (1 - t.detach()) * F.softplus(x)).sum(1) / x.shape[1], 2))  # fmt: skip
rewrite("squares of differences of logarithms", _wide(lambda x, y: (torch.log1p(x) - torch.log1p(y)).square()), _shares((4, 6), (4, 6)))(
    _alike(lambda x, y: (torch.log1p(x) - torch.log1p(y)).pow(2)))  # fmt: skip
rewrite("differences in the middle and at both ends", _wide(lambda x: torch.gradient(x, dim=1)[0]), shapes((3, 8)))(
    _wide(lambda x: torch.cat([x[:, 1:2] - x[:, :1], (x[:, 2:] - x[:, :-2]) / 2, x[:, -1:] - x[:, -2:-1]], 1)
          if x.shape[1] > 1 else need(False)))  # fmt: skip
rewrite("area so far, by halves of pairs", _wide(lambda x: torch.cumulative_trapezoid(x, dim=1)), shapes((3, 9)))(
    _wide(lambda x: (x[:, 1:] * 0.5 + x[:, :-1] * 0.5).cumsum(1) if x.shape[1] > 1 else need(False)))  # fmt: skip
rewrite("area of rows, ends taken off", _wide(lambda x: torch.trapezoid(x, dim=1)), shapes((3, 9)))(
    _wide(lambda x: x.sum(1) - (x[:, 0] + x[:, -1]) / 2 if x.shape[1] > 0 else need(False)))  # fmt: skip
rewrite("curvature of pictures, four shifted", _wide(
    lambda x: F.conv2d(x[:, None], torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]], dtype=x.dtype), padding=1)[:, 0]), shapes((2, 5, 6)))(
    _wide(lambda x: F.pad(x[:, 1:], (0, 0, 0, 1)) + F.pad(x[:, :-1], (0, 0, 1, 0)) + F.pad(x[:, :, 1:], (0, 1)) + F.pad(x[:, :, :-1], (1, 0)) - 4 * x
          if x.dim() == 3 and x.numel() else need(False)))  # fmt: skip
rewrite("differences of neighbours in a picture, added up", _wide(lambda x: x.diff(dim=1).abs().sum((1, 2)) + x.diff(dim=2).abs().sum((1, 2))),
        shapes((2, 5, 6)))(
    _wide(lambda x: (x[:, 1:] - x[:, :-1]).abs().flatten(1).sum(1) + (x[:, :, 1:] - x[:, :, :-1]).abs().flatten(1).sum(1)
          if x.dim() == 3 and x.shape[1] and x.shape[2] else need(False)))  # fmt: skip
rewrite("cross products by rolled columns", _wide(lambda x, y: torch.linalg.cross(x, y)), shapes((6, 3), (6, 3)))(
    _alike(lambda x, y: x.roll(-1, 1) * y.roll(1, 1) - x.roll(1, 1) * y.roll(-1, 1) if x.shape[1] == 3 else need(False), 2))  # fmt: skip
rewrite("determinants of three rows, by a cross product", _wide(
    lambda x: x[:, 0, 0] * (x[:, 1, 1] * x[:, 2, 2] - x[:, 1, 2] * x[:, 2, 1]) - x[:, 0, 1] * (x[:, 1, 0] * x[:, 2, 2] - x[:, 1, 2] * x[:, 2, 0])
    + x[:, 0, 2] * (x[:, 1, 0] * x[:, 2, 1] - x[:, 1, 1] * x[:, 2, 0]) if x.shape[1:] == (3, 3) else need(False)), shapes((5, 3, 3)))(
    _wide(lambda x: (x[:, 0] * torch.linalg.cross(x[:, 1], x[:, 2])).sum(1) if x.shape[1:] == (3, 3) else need(False)))  # fmt: skip
rewrite("sums of absolute differences, column by column", _wide(lambda x, y: (x[:, None] - y).abs().sum(2)), shapes((4, 6), (5, 6)))(
    _wide(lambda x, y: torch.stack([(x - each).abs().sum(1) for each in y], 1) if len(y) and x.shape[1] == y.shape[1] else need(False)))  # fmt: skip
rewrite("boxes by their middle and size, as a product", _wide(
    lambda b: torch.cat([(b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2]], 1) if b.dim() == 2 and b.shape[1] == 4 else need(False)), shapes((6, 4)))(
    _wide(lambda b: b.new_tensor([[0.5, 0, -1, 0], [0, 0.5, 0, -1], [0.5, 0, 1, 0], [0, 0.5, 0, 1]]).T.mul(b[:, None]).sum(2)
          if b.dim() == 2 and b.shape[1] == 4 and bool(b.isfinite().all()) else need(False)))  # fmt: skip
rewrite("brightness of pixels, three products", _wide(lambda x: x @ x.new_tensor([0.299, 0.587, 0.114]) if x.shape[-1] == 3 else need(False)),
        shapes((4, 5, 3)))(
    _wide(lambda x: 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2] if x.shape[-1] == 3 else need(False)))  # fmt: skip


def _by_two_crosses(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == v.dim() == 2, q.shape[1] == 4, v.shape[1] == 3, len(q) == len(v))
    inner = 2 * torch.linalg.cross(q[:, 1:], v)
    return v + q[:, :1] * inner + torch.linalg.cross(q[:, 1:], inner)


def _by_a_matrix(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == v.dim() == 2, q.shape[1] == 4, v.shape[1] == 3, len(q) == len(v))
    w, x, y, z = q.unbind(1)
    rows = [[1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]]  # fmt: skip
    return torch.stack([sum(a * b for a, b in zip(row, v.unbind(1), strict=True)) for row in rows], 1)


rewrite("vectors turned by quaternions, by a matrix", _wide(_by_two_crosses), shapes((5, 4), (5, 3)))(_wide(_by_a_matrix))
rewrite("third polynomial of Legendre, by its recurrence", _wide(lambda x: (5 * x**3 - 3 * x) / 2), ONE)(
    _wide(lambda x: (5 * x * ((3 * x * x - 1) / 2) - 2 * x) / 3))  # fmt: skip
