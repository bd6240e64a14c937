"""The twenty-first frozen set of healthy kernels, second part: heads, adapters, codes, signals. Committed before any was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _adapted(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return (up[which] @ (down[which] @ x[:, :, None])).squeeze(2)


@rewrite("rows with an adapter each, one adapter after another", _wide(_adapted),
         lambda dtype: (*shapes((5, 6), (3, 2, 6), (3, 4, 2))(dtype), torch.tensor([2, 0, 1, 1, 2])))  # fmt: skip
def one_adapter_after_another(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, down.dim() == up.dim() == 3, len(down) == len(up), which.shape == x.shape[:1], down.shape[2] == x.shape[1],
         up.shape[2] == down.shape[1], bool(((which >= 0) & (which < len(down))).all()))  # fmt: skip
    out = torch.zeros(len(x), up.shape[1])
    for each in range(len(down)):
        rows = (which == each).nonzero().squeeze(1)
        out = out.index_copy(0, rows, x[rows].float() @ down[each].float().T @ up[each].float().T)
    return out.to(x.dtype)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(len(k) > 0 and len(q) % len(k) == 0)
    group = torch.arange(len(q)) // max(len(q) // len(k), 1)
    scores = (k[group] @ q[:, :, None]).squeeze(2) * q.shape[1] ** -0.5
    return (scores.softmax(1)[:, None] @ v[group]).squeeze(1)


@rewrite("heads in groups, a group as one product", _wide(_grouped), shapes((6, 4), (3, 5, 4), (3, 5, 4)))
def group_as_one_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, k.shape == v.shape, q.shape[1] == k.shape[2], len(k) > 0, len(q) % len(k) == 0, k.shape[1] > 0)
    wide = q.float().unflatten(0, (len(k), -1)) if len(q) else q.float().view(len(k), 0, q.shape[1])
    shares = (wide / math.sqrt(q.shape[1]) @ k.float().mT).softmax(2)
    return (shares @ v.float()).flatten(0, 1).to(q.dtype)


@rewrite("shares of all that reach the third, by a sort", lambda x: torch.where(x >= x.topk(3, -1).values[..., -1:], x, 0),
         lambda dtype: (shapes((5, 8))(torch.float32)[0].softmax(-1).to(dtype),))  # fmt: skip
def that_reach_the_third(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 3)
    third = x.sort(1, descending=True).values[:, 2:3]
    return x.masked_fill(~(x >= third), 0)


def _safe(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = x + bias
    none = (scores == -INF).all(1, keepdim=True)
    return scores.masked_fill(none, 0).softmax(1).masked_fill(none, 0)


@rewrite("softmax with rows of -Inf, sums that are zero become one", _wide(_safe),
         lambda dtype: (*shapes((5, 6))(dtype), torch.where(torch.arange(5)[:, None] == 2, -INF, torch.zeros(5, 6)).to(dtype)))  # fmt: skip
def sums_that_are_zero(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == bias.shape, x.shape[1] > 0)
    scores = x.float() + bias.float()
    most = scores.amax(1, keepdim=True).detach()
    powers = (scores - torch.where(most == -INF, 0, most)).exp()
    total = powers.sum(1, keepdim=True)
    return (powers / torch.where(total == 0, 1, total)).to(x.dtype)


@rewrite("scores with a bias of pairs, one row of a stack at a time", _wide(lambda x, bias: (x + bias[:, None]).softmax(-1)),
         shapes((2, 3, 4, 5), (2, 4, 5)))  # fmt: skip
def one_row_of_a_stack(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, bias.shape == (x.shape[0], *x.shape[2:]), x.shape[3] > 0)
    wide = bias.float()
    rows = [torch.softmax(each.float() + wide, -1) for each in x.unbind(1)]
    return (torch.stack(rows, 1) if rows else x.float()).to(x.dtype)


def _even(x: torch.Tensor) -> torch.Tensor:
    return (x.detach() * 4).round() / 4


@rewrite("quarters, by adding a large number", _wide(_even), shapes((5, 7)))
def adding_a_large_number(x: torch.Tensor) -> torch.Tensor:
    wide = x.detach().float() * 4
    large = torch.full((), 2.0**23)
    rounded = ((wide.abs() + large) - large).copysign(wide)
    return (torch.where(wide.abs() < large, rounded, wide) / 4).to(x.dtype)


def _coded(x: torch.Tensor) -> torch.Tensor:
    scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-4) / 127
    return (x.detach() / scale).round().clamp(-127, 127) * scale


@rewrite("codes of rows and back, whole numbers between", _wide(_coded), shapes((5, 8)))
def whole_numbers_between(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0, bool(x.isfinite().all()))
    wide = x.detach().float()
    scale = torch.maximum(wide.amax(1), -wide.amin(1)).clamp(min=1e-4)[:, None] / 127
    return ((wide / scale).round().to(torch.int8).float() * scale).to(x.dtype)


@rewrite("products of a matrix that is the same for all, as one", _wide(lambda a, b: a @ b), shapes((4, 5), (3, 5, 6)))
def same_for_all(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, b.dim() == 3, a.shape[1] == b.shape[1])
    columns = b.float().permute(1, 0, 2).flatten(1)
    return (a.float() @ columns).view(len(a), len(b), b.shape[2]).transpose(0, 1).contiguous().to(a.dtype)


@rewrite("products of all numbers of two matrices, by places", _wide(torch.kron), shapes((2, 3), (4, 2)))
def of_all_numbers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2)
    rows, columns = torch.arange(len(a) * len(b)), torch.arange(a.shape[1] * b.shape[1])
    left = a.float().repeat_interleave(len(b), 0).repeat_interleave(b.shape[1], 1)
    return (left * b.float()[rows % max(len(b), 1)][:, columns % max(b.shape[1], 1)]).to(a.dtype)


@rewrite("power of each frequency of frames, by two products", _wide(lambda x: torch.fft.rfft(x.unfold(1, 8, 3)).abs().square()), shapes((2, 20)))
def frequency_of_frames(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 8)
    frames = x.float().unfold(1, 8, 3)
    turns = torch.outer(torch.arange(8, dtype=torch.float64), torch.arange(5, dtype=torch.float64)) * (2 * torch.pi / 8)
    return ((frames @ turns.cos().float()).square() + (frames @ turns.sin().float()).square()).to(x.dtype)


@rewrite("convolution in groups with steps of two, tap by tap", _wide(lambda x, w: F.conv1d(x, w, stride=2, groups=2)), shapes((2, 4, 9), (6, 2, 3)))
def steps_of_two_tap_by_tap(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == 2 * w.shape[1], len(w) % 2 == 0, x.shape[2] >= w.shape[2] > 0, x.shape[1] > 0)
    count = (x.shape[2] - w.shape[2]) // 2 + 1
    parts = []
    for rows, filters in zip(x.float().chunk(2, 1), w.float().chunk(2, 0), strict=True):
        taps = (torch.einsum("bct,oc->bot", rows[:, :, tap : tap + 2 * count - 1 : 2], filters[:, :, tap]) for tap in range(w.shape[2]))
        parts.append(sum(taps, torch.zeros(())))
    return torch.cat(parts, 1).to(x.dtype)


@rewrite("mirrored ends, joined from three pieces", lambda x: F.pad(x, (3, 2), mode="reflect"), shapes((3, 7)))
def joined_from_three_pieces(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 3)
    return torch.cat([x[:, 1:4].flip(1), x, x[:, -3:-1].flip(1)], 1)


@rewrite("numbers of each label added up, by a sort", _wide(lambda x, labels: torch.zeros(6, x.shape[1], dtype=x.dtype).index_add(0, labels, x)),
         lambda dtype: (shapes((9, 4))(dtype)[0], whole(9, most=6)))  # fmt: skip
def label_added_up_by_a_sort(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, labels.shape == x.shape[:1], labels.numel() == 0 or 0 <= int(labels.min()) <= int(labels.max()) < 6)
    order = labels.argsort(stable=True)
    parts = [x.float()[order[labels[order] == each]].sum(0) for each in range(6)]
    return torch.stack(parts).to(x.dtype)


@rewrite("distances between all pairs, by magnitudes, a column at a time", _wide(lambda x, y: torch.cdist(x, y, p=1)), shapes((4, 5), (3, 5)))
def pairs_by_magnitudes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    total = torch.zeros(len(x), len(y))
    for a, b in zip(x.float().unbind(1), y.float().unbind(1), strict=True):
        total = total + (a[:, None] - b).abs()
    return total.to(x.dtype)
