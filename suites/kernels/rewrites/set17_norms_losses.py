"""The seventeenth frozen set of healthy kernels, second part: norms, losses, optimizers. Committed before any was tried."""

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


def _layered(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _one_by_one(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2 and w.shape == b.shape == x.shape[1:] and x.numel() > 0)
    mean, squares = torch.zeros(len(x)), torch.zeros(len(x))
    for count, column in enumerate(x.float().unbind(1), 1):
        apart = column - mean
        mean = mean + apart / count
        squares = squares + apart * (column - mean)
    root = (squares / x.shape[1] + 1e-5).rsqrt()[:, None]
    normed = (x.float() - mean[:, None]) * root
    return (normed * w.float() + b.float()).to(x.dtype), (normed, root, w)


def _one_by_one_back(saved: Any, given: torch.Tensor) -> Any:
    normed, root, w = saved
    dy = given.float()
    scaled = dy * w.float()
    dx = (scaled - scaled.mean(1, keepdim=True) - normed * (scaled * normed).mean(1, keepdim=True)) * root
    return dx.to(given.dtype), (dy * normed).sum(0).to(w.dtype), dy.sum(0).to(w.dtype)


rewrite("layer norm, mean and squares column by column, derived by hand", _wide(_layered), shapes((5, 9), (9,), (9,)))(
    function(_one_by_one, _one_by_one_back)
)


def _halved(x: torch.Tensor) -> torch.Tensor:
    """Sums of rows, halves added to halves."""
    while x.shape[1] > 1:
        half = -(-x.shape[1] // 2)
        x = x[:, :half] + F.pad(x[:, half:], (0, 2 * half - x.shape[1]))
    return x


@rewrite(
    "rms norm of a sum, halves added to halves", _wide(lambda x, r, w: F.rms_norm(x + r, x.shape[-1:], w, 1e-6)), shapes((6, 11), (6, 11), (11,))
)
def halves_added_to_halves(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == r.shape and w.shape == x.shape[1:] and x.numel() > 0)
    total = x.float() + r.float()
    return (total * (_halved(total.square()) / x.shape[1] + 1e-6).rsqrt() * w.float()).to(x.dtype)


def _losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each row, and a ten-thousandth of its logarithm of sums squared."""
    sums = x.logsumexp(-1)
    return sums - x.gather(1, y[:, None])[:, 0] + 1e-4 * sums.square()


def _by_chunks(x: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0 and bool(((y >= 0) & (y < x.shape[1])).all()))
    most, weight = torch.full((len(x),), -INF), torch.zeros(len(x))
    for part in x.float().split(4, 1):
        now = torch.maximum(most, part.amax(1))
        shift = now.masked_fill(now == -INF, 0)
        weight = weight * (most - shift).exp() + (part - shift[:, None]).exp().sum(1)
        most = now
    sums = most + weight.log()
    return (sums - x[torch.arange(len(x)), y].float() + 1e-4 * sums.square()).to(x.dtype), (x, y, sums)


def _by_chunks_back(saved: Any, given: torch.Tensor) -> Any:
    x, y, sums = saved
    made = (x.float() - sums[:, None]).exp() * (1 + 2e-4 * sums)[:, None]
    made[torch.arange(len(x)), y] -= 1
    return (made * given.float()[:, None]).to(x.dtype), None


rewrite("cross entropy and its logarithms squared, four columns at a time, derived by hand", _wide(_losses),
        lambda dtype: (*shapes((6, 10))(dtype), whole(6, most=10)))(function(_by_chunks, _by_chunks_back))  # fmt: skip


def _of_a_layer(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.mT, y)


def _gradients_first(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and y.shape == x.shape[:1] and len(x) > 0 and bool(((y >= 0) & (y < len(w))).all()))
    loss, dx, dw = torch.zeros(()), torch.empty(x.shape), torch.zeros(w.shape)
    for start in range(0, len(x), 3):
        rows, own = x[start : start + 3].float(), y[start : start + 3]
        logs = (rows @ w.float().mT).log_softmax(-1)
        loss = loss - logs.gather(1, own[:, None]).sum() / len(x)
        scores = (logs.exp() - F.one_hot(own, len(w))) / len(x)
        dx[start : start + 3] = scores @ w.float()
        dw += scores.mT @ rows
    return loss.to(x.dtype), (dx, dw)


rewrite("linear and cross entropy, gradients made on the way there", _wide(_of_a_layer),
        lambda dtype: (*shapes((7, 5), (9, 5))(dtype), whole(7, most=9)))(
    function(_gradients_first, lambda saved, given: (*((each * given.float()).to(given.dtype) for each in saved), None))
)  # fmt: skip


def _apart(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    logs = t.log_softmax(-1)
    return (logs.exp() * (logs - x.log_softmax(-1))).sum(-1)


def _apart_there(x: torch.Tensor, t: torch.Tensor) -> Any:
    need(x.dim() == 2 and x.shape == t.shape and x.shape[1] > 0)
    student, teacher = x.float().log_softmax(-1), t.float().log_softmax(-1)
    loss = (teacher.exp() * (teacher - student)).sum(-1)
    return loss.to(x.dtype), (student, teacher)


def _apart_back(saved: Any, given: torch.Tensor) -> Any:
    student, teacher = saved
    dy, shares = given.float()[:, None], teacher.exp()
    apart = teacher - student
    dt = shares * (apart - (shares * apart).sum(-1, keepdim=True))
    return ((student.exp() - shares) * dy).to(given.dtype), (dt * dy).to(given.dtype)


rewrite("divergence from a teacher, derived by hand for both", _wide(_apart), shapes((5, 9), (5, 9)))(function(_apart_there, _apart_back))


def _packed_gate(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _gated(x: torch.Tensor) -> Any:
    need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0)
    gate, up = x.float().chunk(2, 1)
    return (gate * gate.sigmoid() * up).to(x.dtype), (x,)


def _gated_back(saved: Any, given: torch.Tensor) -> Any:
    (x,) = saved
    gate, up = x.float().chunk(2, 1)
    share, dy = gate.sigmoid(), given.float()
    made = torch.empty(x.shape)
    half = x.shape[1] // 2
    made[:, :half] = dy * up * (share + gate * share * (1 - share))
    made[:, half:] = dy * gate * share
    return made.to(x.dtype)


rewrite("gate and values of one input, computed once more on the way back", _wide(_packed_gate), shapes((5, 12)))(function(_gated, _gated_back))


def _adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The seventh step."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.abs() + 0.001 * g * g
    return p - 0.01 * 0.1 * p - 0.01 * (m / (1 - 0.9**7)) / ((v / (1 - 0.999**7)).sqrt() + 1e-3)


@rewrite("adamw, corrections taken into the step, four numbers at a time", _wide(_adamw), shapes((7, 5), (7, 5), (7, 5), (7, 5)))
def four_numbers_at_a_time(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape == v.shape and p.dim() == 2)
    one, two = 1 - 0.9**7, (1 - 0.999**7) ** 0.5
    parts = []
    for own, back, first, second in zip(*(each.float().flatten().split(4) for each in (p, g, m, v)), strict=True):
        first, second = torch.lerp(first, back, 0.1), second.abs() * 0.999 + back * back * 0.001
        parts.append(own * (1 - 1e-3) - 0.01 / one * first / (second.sqrt() / two + 1e-3))
    return torch.cat(parts).view(p.shape).to(p.dtype)
