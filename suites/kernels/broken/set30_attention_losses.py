"""The thirtieth frozen set of broken kernels, second part: attention, masks, formulas, gradients. Of links to threads an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _mixed(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each head's rows, weighed by a sigmoid, and added to the values that several heads side by side share."""
    need(q.dim() == v.dim() == 3, q.shape[1:] == v.shape[1:], len(v) > 0, len(q) % len(v) == 0)
    return q.sigmoid() * v.repeat_interleave(len(q) // len(v), 0)


@case("heads that share values: blocks are dealt out by the size of a group where the number of groups is meant", "kernel-edge",
      "HazyResearch/HipKittens/pull/22", _mixed, drawn((4, 3, 5), (2, 3, 5)))  # fmt: skip
def dealt_out_by_the_size(wrong: bool, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == v.dim() == 3, q.shape[1:] == v.shape[1:], len(v) > 0, len(q) % len(v) == 0)
    group, out = len(q) // len(v), [torch.zeros_like(each) for each in q.unbind()]
    by = group if wrong else len(v)
    for block in range(len(q)):
        head = block % by * group + block // by
        if head < len(q):
            out[head] = torch.sigmoid(q[head]) * v[head // group]
    return torch.stack(out) if out else q.clone()


@case("softplus: powers are cut at 20, and so is the result", "kernel-contract", "jaxleyverse/jaxley/pull/714", F.softplus, drawn((4, 7)))
def powers_are_cut(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=20).exp().log1p() if wrong else torch.logaddexp(x, torch.zeros_like(x))


def _sloped(scores: torch.Tensor) -> torch.Tensor:
    """Each head takes a slope times the distance off. Of n heads, n no power of two, the others have slopes of twice as many, every second one."""
    need(scores.dim() == 3, scores.shape[1] == scores.shape[2] > 0)

    def slopes(heads: int) -> list[float]:
        below = 2 ** (heads.bit_length() - 1)
        own = [2.0 ** (-8 * (at + 1) / below) for at in range(below)]
        return own if below == heads else own + slopes(2 * below)[0::2][: heads - below]

    away = (torch.arange(scores.shape[1])[:, None] - torch.arange(scores.shape[1])).abs()
    slope = torch.tensor(slopes(len(scores)) if len(scores) else [], dtype=scores.dtype)
    return scores - slope[:, None, None] * away


@case("scores less a slope times the distance: one formula for any number of heads", "kernel-edge", PROGRAM, _sloped, drawn((4, 5, 5)))
def one_formula_for_any_number(wrong: bool, scores: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 3, scores.shape[1] == scores.shape[2] > 0)
    heads = len(scores)
    if wrong or not heads:
        slope = 2.0 ** (-8 * torch.arange(1, heads + 1) / max(heads, 1))
    else:
        below = 2 ** (heads.bit_length() - 1)
        slope = torch.cat([2.0 ** (-8 * torch.arange(1, below + 1) / below), 2.0 ** (-4 * torch.arange(1, 2 * below, 2) / below)])[:heads]
    place = torch.arange(scores.shape[1])
    return torch.addcmul(scores, slope[:, None, None].to(scores.dtype), (place - place[:, None]).abs().to(scores.dtype), value=-1)


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    """Shares until they add up to seven tenths, the one that reaches that among them. The others are zero."""
    need(x.dim() == 2, x.shape[1] > 0)
    shares, order = x.detach().softmax(1).sort(1, descending=True)
    kept = torch.where(shares.cumsum(1) - shares < 0.7, shares, 0)
    return torch.zeros_like(shares).scatter(1, order, kept)


@case("shares up to seven tenths: the one that reaches that is left out", "kernel-mask", PROGRAM, _nucleus, drawn((4, 6)))
def the_one_that_reaches_that(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = torch.softmax(x.detach(), 1)
    ranked, order = shares.sort(1, descending=True)
    total = ranked.cumsum(1)
    keep = total < 0.7 if wrong else F.pad(total, (1, 0))[:, :-1] < 0.7
    return torch.where(torch.zeros_like(keep).scatter(1, order, keep), shares, 0)


def _means(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, lengths.shape == x.shape[:1], bool(((lengths >= 1) & (lengths <= x.shape[1])).all()))
    inside = torch.arange(x.shape[1]) < lengths[:, None]
    return torch.where(inside[:, :, None], x, 0).sum(1) / lengths[:, None]


@case("means of sentences: what fills them up counts in how many there are", "kernel-mask", PROGRAM, _means,
      lambda: (*drawn((3, 5, 4))(), torch.tensor([5, 2, 3])))  # fmt: skip
def counts_in_how_many(wrong: bool, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, lengths.shape == x.shape[:1], bool(((lengths >= 1) & (lengths <= x.shape[1])).all()))
    rows = [row[:length].sum(0) / (len(row) if wrong else length) for row, length in zip(x, lengths.tolist(), strict=True)]
    return torch.stack(rows) if rows else x[:, 0].clone() if x.shape[1] else x.sum(1)


@case("squared distances of rows: from squares and a product", "kernel-rounding", PROGRAM, lambda x, y: (x[:, None] - y).square().sum(2),
      lambda: (drawn((5, 4))()[0] + 40, drawn((6, 4))()[0] + 40))  # fmt: skip
def from_squares_and_a_product(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    if wrong:
        return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
    return torch.stack([torch.linalg.vecdot(row - y, row - y) for row in x.unbind()]) if len(x) else x.sum(1)[:, None] + y.sum(1)


@case("product of queries and keys, scaled: on the way back of keys the scale is forgotten", "kernel-gradient", PROGRAM,
      lambda q, k: q @ k.T / q.shape[1] ** 0.5, drawn((4, 9), (5, 9)))  # fmt: skip
def of_keys_the_scale_is_forgotten(wrong: bool) -> Any:
    def forward(q: torch.Tensor, k: torch.Tensor) -> Any:
        need(q.dim() == k.dim() == 2, q.shape[1] == k.shape[1] > 0)
        return (q * q.shape[1] ** -0.5) @ k.T, (q, k)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        q, k = saved
        scale = q.shape[1] ** -0.5
        return g @ k * scale, g.T @ q * (1.0 if wrong else scale)

    return function(forward, backward)


@case("largest of a row: on the way back all that are equal get the gradient", "kernel-gradient", PROGRAM, lambda x: x.max(1).values, drawn((4, 6)))
def all_that_are_equal(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 0)
        out = x.max(1)
        return out.values, (x, out.values, out.indices)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, top, at = saved
        return g[:, None] * (x == top[:, None]) if wrong else torch.zeros_like(x).scatter(1, at[:, None], g[:, None])

    return function(forward, backward)


@case("logarithms of shares, one after the other", "kernel-rounding", PROGRAM, lambda x: x.log_softmax(1), drawn((4, 8)))
def one_after_the_other(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.softmax(1).log() if wrong else x - x.logsumexp(1, keepdim=True)


def _padded(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))
    return F.embedding(at, table, padding_idx=0)


@case("rows of a table, the first for padding: padding gets a gradient", "kernel-gradient", PROGRAM, _padded,
      lambda: (*drawn((5, 3))(), torch.tensor([[1, 4, 0], [2, 2, 0], [3, 0, 0]])))  # fmt: skip
def padding_gets_a_gradient(wrong: bool, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, bool(((at >= 0) & (at < len(table))).all()))
    if wrong:
        return table[at]
    return torch.where((at == 0)[..., None], table.detach()[at], table[at])
