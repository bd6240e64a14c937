"""The thirteenth frozen set of healthy kernels, fourth part: losses."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum over ways from the first place to the last, each step one row on, and a column on or not."""
    state = F.pad(x.float()[0, :1], (0, x.shape[1] - 1), value=-1e4)
    for row in x.float()[1:]:
        state = torch.logaddexp(state, F.pad(state[:-1], (1, 0), value=-1e4)) + row
    return state.logsumexp(0).to(x.dtype)


@rewrite("alignment of rows and columns, along the columns", _aligned, shapes((8, 5)))
def along_the_columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    ends, before = [], None
    for column in x.float().unbind(1):
        states, state = [], torch.tensor(-1e4)
        for row, value in enumerate(column):
            begin = value if before is None and row == 0 else None
            if begin is None:
                come = before[row - 1] if before is not None and row else torch.tensor(-1e4)
                begin = torch.logaddexp(state, come) + value if row else torch.tensor(-1e4)
            state = begin
            states.append(state)
        before = states
        ends.append(state)
    return torch.stack(ends).logsumexp(0).to(x.dtype)


def _chained(scores: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    state = scores.float()[0]
    for row in scores.float()[1:]:
        state = torch.logsumexp(state[:, None] + moves.float(), 0) + row
    return state.logsumexp(0).to(scores.dtype)


@rewrite("sum over all chains of labels, steps joined in pairs", _chained, shapes((7, 4), (4, 4)))
def joined_in_pairs(scores: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2, moves.shape == (scores.shape[1],) * 2, scores.numel() > 0)
    steps = list(moves.float() + scores.float()[1:, None])
    while len(steps) > 1:
        joined = [torch.logsumexp(one[:, :, None] + two, 1) for one, two in zip(steps[::2], steps[1::2], strict=False)]
        steps = joined + steps[len(joined) * 2 :]
    first = scores.float()[0]
    whole_sum = torch.logsumexp(first[:, None] + steps[0], 0) if steps else first
    return whole_sum.logsumexp(0).to(scores.dtype)


def _views(x: torch.Tensor) -> torch.Tensor:
    rows = F.normalize(x.float(), dim=-1, eps=1e-3)
    alike = (rows @ rows.T / 0.5).masked_fill(torch.eye(len(x)).bool(), -math.inf)
    partner = torch.arange(len(x)).roll(len(x) // 2)
    return F.cross_entropy(alike, partner).to(x.dtype)


@rewrite("two views of each picture, itself taken out of the row", _views, shapes((8, 5)))
def itself_taken_out(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1, x.shape[1] > 0)
    rows = x.float() / x.float().norm(dim=-1, keepdim=True).clamp(min=1e-3)
    total, half = torch.zeros(()), len(x) // 2
    for place, row in enumerate(rows):
        others = torch.cat([rows[:place], rows[place + 1 :]])
        partner = rows[(place - half) % len(x)]
        total = total + torch.logsumexp(2 * (others @ row), 0) - 2 * (row * partner).sum()
    return (total / len(x)).to(x.dtype)


def _supervised(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scores = x.float() @ x.float().T
    logs = scores.log_softmax(-1)
    same = labels[:, None] == labels
    return (-(torch.where(same, logs, 0.0).sum(1) / same.sum(1)).mean()).to(x.dtype)


@rewrite("contrast by labels, a row and its kind at a time", _supervised, lambda dtype: (*shapes((9, 4))(dtype), whole(9, most=3)))
def a_row_and_its_kind(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, labels.shape == x.shape[:1], len(x) > 0)
    rows = []
    for row, label in zip(x.float(), labels, strict=True):
        scores = x.float() @ row
        rows.append(scores.logsumexp(0) - scores[labels == label].mean())
    return torch.stack(rows).mean().to(x.dtype)


def _taught(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x.float().log_softmax(-1), t.float().log_softmax(-1), log_target=True, reduction="none").sum(-1).to(x.dtype)


@rewrite("divergence from a teacher, three columns at a time", _taught, shapes((4, 10), (4, 10)))
def three_columns(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    one, two = (torch.stack([part.logsumexp(-1) for part in each.float().split(3, 1)]).logsumexp(0)[:, None] for each in (x, t))
    total = torch.zeros(len(x))
    for ours, theirs in zip(x.float().split(3, 1), t.float().split(3, 1), strict=True):
        share = theirs - two
        total = total + (share.exp() * (share - (ours - one))).sum(-1)
    return total.to(x.dtype)


def _reverse_forward(x: torch.Tensor, t: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == t.shape, x.shape[1] > 0)
    one, two = x.float().log_softmax(-1), t.float().log_softmax(-1)
    apart = (one.exp() * (one - two)).sum(-1, keepdim=True)
    return apart.squeeze(-1).to(x.dtype), (one, two, apart)


def _reverse_backward(saved: Any, gradient: torch.Tensor) -> Any:
    one, two, apart = saved
    given, dtype = gradient.float()[:, None], gradient.dtype
    return (given * one.exp() * (one - two - apart)).to(dtype), (given * (two.exp() - one.exp())).to(dtype)


rewrite("divergence of a student from its teacher, both ways back by hand", lambda x, t: (
    x.float().softmax(-1) * (x.float().log_softmax(-1) - t.float().log_softmax(-1))).sum(-1).to(x.dtype),
        shapes((4, 7), (4, 7)))(function(_reverse_forward, _reverse_backward))  # fmt: skip


@rewrite("cross entropy of smoothed labels, shares of each class written out", lambda x, y: F.cross_entropy(
    x.float(), y, label_smoothing=0.1, reduction="none").to(x.dtype), lambda dtype: (*shapes((6, 5))(dtype), whole(6, most=5)))  # fmt: skip
def shares_written_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < 0) | (y >= x.shape[1])).any()))
    even = 0.1 / x.shape[1]
    shares = torch.where(torch.arange(x.shape[1]) == y[:, None], 0.9 + even, even)
    return -(shares * (x.float() - x.float().logsumexp(-1, keepdim=True))).sum(-1).to(x.dtype)


def _poly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logs = -F.cross_entropy(x.float(), y, reduction="none")
    return (1 - logs.exp() - logs).to(x.dtype)


def _poly_forward(x: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < 0) | (y >= x.shape[1])).any()))
    logs = x.float().log_softmax(-1)
    chosen = logs.gather(1, y[:, None]).squeeze(1)
    return (-torch.expm1(chosen) - chosen).to(x.dtype), (logs, chosen, y)


def _poly_backward(saved: Any, gradient: torch.Tensor) -> Any:
    logs, chosen, y = saved
    given = -gradient.float() * (1 + chosen.exp())
    return (given[:, None] * (F.one_hot(y, logs.shape[1]) - logs.exp())).to(gradient.dtype), None


rewrite("cross entropy and one less the share, derived by hand", _poly, lambda dtype: (*shapes((6, 5))(dtype), whole(6, most=5)))(
    function(_poly_forward, _poly_backward)
)


@rewrite("a smooth distance, by the length of two numbers", lambda x, y: ((x.float() - y.float()).square() + 0.25).sqrt().mean(-1).to(x.dtype),
         shapes((5, 8), (5, 8)))  # fmt: skip
def length_of_two_numbers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    return (torch.hypot(x.float() - y.float(), torch.tensor(0.5)).sum(-1) / x.shape[1]).to(x.dtype)


@rewrite("how far a policy is from another, by expm1", lambda x, r: ((r.float() - x.float()).exp() - (r.float() - x.float()) - 1).to(x.dtype),
         shapes((5, 6), (5, 6)))  # fmt: skip
def policy_by_expm1(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    need(x.shape == r.shape)
    apart = r.float() - x.float()
    return (torch.expm1(apart) - apart).to(x.dtype)


@rewrite("work to move one histogram to another, differences first", lambda x, y: (
    x.float().softmax(-1).cumsum(-1) - y.float().softmax(-1).cumsum(-1)).abs().sum(-1).to(x.dtype), shapes((4, 7), (4, 7)))  # fmt: skip
def differences_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    return (x.float().softmax(-1) - y.float().softmax(-1)).cumsum(-1).abs().sum(-1).to(x.dtype)


@rewrite("hinges of all pairs of a row, a column at a time", lambda x: F.relu(
    0.5 + x.float()[:, None] - x.float()[:, :, None]).mean((1, 2)).to(x.dtype), shapes((4, 6)))  # fmt: skip
def hinges_a_column(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    total = torch.zeros(len(x))
    for column in x.float().unbind(1):
        total = total + (0.5 + column[:, None] - x.float()).clamp(min=0).sum(1)
    return (total / x.shape[1] ** 2).to(x.dtype)


@rewrite("likelihood of an order, from its end", lambda x: (x.float() - x.float().flip(-1).logcumsumexp(-1).flip(-1)).sum(-1).to(x.dtype),
         shapes((4, 7)))  # fmt: skip
def from_its_end(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    columns = x.float().unbind(1)
    left, total = columns[-1], torch.zeros(len(x))
    for column in reversed(columns[:-1]):
        left = torch.logaddexp(left, column)
        total = total + (column - left)
    return total.to(x.dtype)


@rewrite("levels in order, whether each is passed", lambda x, y: F.binary_cross_entropy_with_logits(
    x.float(), (torch.arange(x.shape[1]) < y[:, None]).float(), reduction="none").sum(-1).to(x.dtype),
    lambda dtype: (*shapes((6, 4))(dtype), whole(6, most=5)))  # fmt: skip
def whether_passed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1])
    signed = torch.where(torch.arange(x.shape[1]) < y[:, None], -x.float(), x.float())
    return torch.logaddexp(signed, torch.zeros(())).sum(-1).to(x.dtype)


@rewrite("load of experts, one expert at a time", lambda x, chosen: (
    x.shape[1] * (F.one_hot(chosen, x.shape[1]).float().mean(0) * x.float().softmax(-1).mean(0)).sum()).to(x.dtype),
    lambda dtype: (*shapes((9, 4))(dtype), whole(9, most=4)))  # fmt: skip
def one_expert_at_a_time(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, chosen.shape == x.shape[:1], x.numel() > 0, not bool(((chosen < 0) | (chosen >= x.shape[1])).any()))
    shares, total = (x.float() - x.float().logsumexp(-1, keepdim=True)).exp(), torch.zeros(())
    for expert in range(x.shape[1]):
        total = total + (chosen == expert).sum() / len(x) * (shares[:, expert].sum() / len(x))
    return (total * x.shape[1]).to(x.dtype)
