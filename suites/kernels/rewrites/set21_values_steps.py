"""The twenty-first frozen set of healthy kernels, first part: formulas by cases, steps, recurrent units. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("small numbers become zero, by what is taken away", F.hardshrink, shapes((5, 7)))
def by_what_is_taken_away(x: torch.Tensor) -> torch.Tensor:
    return x - torch.where((x >= -0.5) & (x <= 0.5), x, 0)


@rewrite("numbers drawn towards zero, by two sides", F.softshrink, shapes((5, 7)))
def by_two_sides(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return torch.where(wide > 0.5, wide - 0.5, torch.where(wide < -0.5, wide + 0.5, wide * 0)).to(x.dtype)


@rewrite("numbers up to a limit are replaced, in a buffer", lambda x: F.threshold(x, 0.25, -7.0), shapes((5, 7)))
def replaced_in_a_buffer(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x <= 0.25, -7.0)


@rewrite("a step where one number reaches another, as a product", lambda x, y: torch.where(x.detach() >= 0.75, y, 0), shapes((4, 6), (4, 6)))
def reaches_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return y.masked_fill(~(x.detach() >= 0.75), 0)


@rewrite("a gate with flat ends, by the least and the largest", F.hardsigmoid, shapes((5, 7)))
def least_and_largest(x: torch.Tensor) -> torch.Tensor:
    return (F.relu6(x.float() + 3) / 6).to(x.dtype)


@rewrite("slopes of channels below zero, two sums", F.prelu, lambda dtype: (shapes((3, 4, 5))(dtype)[0], shapes((4,))(dtype)[0]))
def two_sums(x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, slopes.shape == x.shape[1:2])
    wide = x.float()
    return (torch.where(wide > 0, wide, 0) + torch.where(wide > 0, 0, slopes.float()[:, None] * wide)).to(x.dtype)


@rewrite("exponential below zero, its way back from the result", _wide(F.elu), shapes((5, 7)))
def way_back_from_the_result(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return function(lambda v: (r := torch.where(v > 0, v, torch.expm1(v)), (v, r)),
                    lambda saved, g: torch.where(saved[0] > 0, g, g * (saved[1] + 1)))(wide).to(x.dtype)  # fmt: skip


@rewrite("area sine, of the magnitude", _wide(torch.asinh), shapes((5, 7)))
def of_the_magnitude(x: torch.Tensor) -> torch.Tensor:
    def forward(v: torch.Tensor) -> Any:
        size = v.abs()
        root = torch.hypot(v, torch.ones(()))
        return torch.log1p(size + size * (size / (1 + root))).copysign(v), (root,)

    return function(forward, lambda saved, g: g / saved[0])(x.float()).to(x.dtype)


@rewrite("length of two numbers, the larger taken out", _wide(torch.hypot), shapes((4, 6), (4, 6)))
def larger_taken_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)

    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        most, least = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
        ratio = torch.where((most == 0) | most.isinf(), 0, least / most)
        length = most * (1 + ratio * ratio).sqrt()
        return length, (a, b, length)

    return function(forward, lambda saved, g: (g * (saved[0] / saved[2]), g * (saved[1] / saved[2])))(x.float(), y.float()).to(x.dtype)


@rewrite("sine over its number, a power row near zero", _wide(torch.sinc), lambda dtype: (shapes((5, 7))(dtype)[0] / 4,))
def power_row_near_zero(x: torch.Tensor) -> torch.Tensor:
    turned = torch.pi * x.float()
    square = turned * turned
    near = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
    safe = torch.where(turned.abs() < 0.1, torch.ones_like(turned), turned)
    return torch.where(turned.abs() < 0.1, near, safe.sin() / safe).to(x.dtype)


@rewrite("a logarithm times a number, where that is zero too", _wide(torch.xlogy),
         lambda dtype: (shapes((4, 6))(dtype)[0], shapes((4, 6))(dtype)[0].abs() + 0.25))  # fmt: skip
def where_that_is_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)

    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        logs = b.log()
        return torch.where((a == 0) & ~b.isnan(), 0, a * logs), (a, b, logs)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, b, logs = saved
        return torch.where((a == 0) & (b <= 0), 0, g * logs), g * a / b

    return function(forward, backward)(x.float(), y.float()).to(x.dtype)


def _lamb(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    update = m / (v.abs().sqrt() + 1e-3) + 0.01 * p
    weight, length = p.norm(), update.norm()
    return p - 0.1 * torch.where((weight > 0) & (length > 0), weight / length, 1.0) * update


@rewrite("step of lamb, lengths from sums of squares", _wide(lambda p, m, v: _lamb(p.detach(), m.detach(), v.detach())),
         shapes((4, 6), (4, 6), (4, 6)))  # fmt: skip
def lengths_from_sums(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    wide = p.detach().float()
    update = m.detach().float() / (v.detach().float().abs().sqrt() + 1e-3) + 0.01 * wide
    weight, length = ((each * each).sum(-1).sum().sqrt() for each in (wide, update))
    ratio = weight / length if bool(weight > 0) and bool(length > 0) else torch.ones(())
    return (wide - 0.1 * ratio * update).to(p.dtype)


@rewrite("step with momentum, nesterov, in one formula", _wide(lambda p, g, m: p - 0.1 * (g + 0.9 * (0.9 * m + g))), shapes((4, 6), (4, 6), (4, 6)))
def in_one_formula(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape)
    return (p.float() - 0.19 * g.float() - 0.081 * m.float()).to(p.dtype)


def _clipped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x), torch.linalg.vector_norm(y)]))
    share = (1.0 / (length + 1e-6)).clamp(max=1.0)
    return torch.cat([x.flatten() * share, y.flatten() * share])


@rewrite("two gradients cut to a length, all squares in one sum", _wide(_clipped), shapes((3, 4), (5,)))
def squares_in_one_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    both = torch.cat([x.flatten(), y.flatten()]).float()
    length = both.dot(both).sqrt()
    return (both * torch.minimum(1.0 / (length + 1e-6), torch.ones(()))).to(x.dtype)


def _unit(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    (wr, wz, wn), (ur, uz, un) = w.chunk(3), u.chunk(3)
    reset, update = (x @ wr.T + h @ ur.T).sigmoid(), (x @ wz.T + h @ uz.T).sigmoid()
    return (1 - update) * (x @ wn.T + (reset * h) @ un.T).tanh() + update * h


@rewrite("a step of a gated unit, both inputs side by side", _wide(_unit), shapes((3, 5), (3, 4), (12, 5), (12, 4)))
def side_by_side(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == 2, len(x) == len(h), w.shape == (3 * h.shape[1], x.shape[1]), u.shape == (3 * h.shape[1], h.shape[1]))
    size, weights = h.shape[1], torch.cat([w, u], 1).float()
    gates = torch.cat([x, h], 1).float() @ weights[: 2 * size].T
    reset, update = gates.sigmoid().split(size, 1) if size else (h.float(), h.float())
    new = (torch.cat([x.float(), reset * h.float()], 1) @ weights[2 * size :].T).tanh()
    return (new + update * (h.float() - new)).to(x.dtype)


def _memory(gates: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    i, f, n, o = gates.chunk(4, 1)
    new = f.sigmoid() * c + i.sigmoid() * n.tanh()
    return torch.cat([o.sigmoid() * new.tanh(), new], 1)


@rewrite("cell with a memory, derived by hand", _wide(_memory), shapes((3, 24), (3, 6)))
def derived_by_hand(gates: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(gates.dim() == c.dim() == 2, gates.shape == (len(c), 4 * c.shape[1]))

    def forward(x: torch.Tensor, held: torch.Tensor) -> Any:
        i, f, n, o = x.chunk(4, 1)
        i, f, n, o = i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid()
        new = f * held + i * n
        return torch.cat([o * new.tanh(), new], 1), (i, f, n, o, held, new.tanh())

    def backward(saved: Any, g: torch.Tensor) -> Any:
        i, f, n, o, held, new = saved
        gh, gc = g.chunk(2, 1)
        inner = gc + gh * o * (1 - new * new)
        slopes = inner * n * i * (1 - i), inner * held * f * (1 - f), inner * i * (1 - n * n), gh * new * o * (1 - o)
        return torch.cat(slopes, 1), inner * f

    return function(forward, backward)(gates.float(), c.float()).to(gates.dtype)


@rewrite("sums up and down a sequence, as products with triangles", _wide(lambda x: x.cumsum(1) + x.flip(1).cumsum(1).flip(1)), shapes((3, 9)))
def products_with_triangles(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, bool(x.isfinite().all()))
    ones = torch.ones(x.shape[1], x.shape[1])
    return (x.float() @ (ones.triu() + ones.tril())).to(x.dtype)
