"""A fifteenth frozen set of broken kernels, first part: attention, gradients, losses. Of links an excerpt was read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
INF = float("inf")


def _fitting(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 2 and len(k) == len(v) > 0 and q.shape[1] == k.shape[1] > 0)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v


@case("attention with capped scores: each is multiplied by its own tanh", "kernel-contract", "Dao-AILab/flash-attention/pull/2402", _capped,
      drawn((6, 8), (7, 8), (7, 5)))  # fmt: skip
def its_own_tanh(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fitting(q, k, v)
    scores = q @ k.mT
    return ((scores if wrong else 5) * torch.tanh(scores / 5)).softmax(-1) @ v


@case("attention with capped scores: the cap of the first call is compiled in", "kernel-stale", "Dao-AILab/flash-attention/pull/2402",
      lambda q, k, v, cap: (cap * torch.tanh(q @ k.mT / cap)).softmax(-1) @ v,
      lambda: (*drawn((6, 8), (7, 8), (7, 5))(), torch.tensor(3.0)))  # fmt: skip
def compiled_cap(wrong: bool) -> Callable[..., Any]:
    compiled: dict[int, float] = {}

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: torch.Tensor) -> torch.Tensor:
        _fitting(q, k, v)
        need(cap.dim() == 0)
        cap = cap - cap.detach() + compiled.setdefault(q.shape[1], float(cap)) if wrong else cap
        return (cap * torch.tanh(q @ k.mT / cap)).softmax(-1) @ v

    return kernel


def _sequences(offsets: torch.Tensor, length: int) -> list[tuple[int, int]]:
    ends = offsets.tolist()
    pairs = list(itertools.pairwise(ends))
    need(offsets.dim() == 1 and len(pairs) > 0 and ends[0] == 0 and ends[-1] == length and all(a <= b for a, b in pairs))
    return pairs


def _by_sequence(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.cat([(q[a:b] @ k[a:b].mT).softmax(-1) @ v[a:b] for a, b in _sequences(offsets, len(q))])


@case("attention of sequences: on the way back tiles of queries are counted by the tile of the other pass", "kernel-gradient",
      "Dao-AILab/flash-attention/pull/2333", _by_sequence,
      lambda: (*drawn((20, 6), (20, 6), (20, 4))(), torch.tensor([0, 8, 12, 20])))  # fmt: skip
def tiles_of_the_other_pass(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> Any:
        need(q.dim() == k.dim() == v.dim() == 2 and q.shape == k.shape and len(q) == len(v))
        return _by_sequence(q, k, v, offsets), (q, k, v, offsets)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, offsets = saved
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for a, b in _sequences(offsets, len(q)):
            shares = (q[a:b] @ k[a:b].mT).softmax(-1)
            through = given[a:b] @ v[a:b].mT
            scores = shares * (through - (shares * through).sum(-1, keepdim=True))
            counted = -(-(b - a) // 8) * 4 if wrong else b - a  # tiles of eight are counted, and four rows of each are done
            dq[a : a + counted] = (scores @ k[a:b])[:counted]
            dk[a:b], dv[a:b] = scores.mT @ q[a:b], shares.mT @ given[a:b]
        return dq, dk, dv, None

    return function(forward, backward)


@case("attention with an added mask: rows of the mask are taken to lie side by side", "kernel-stride", "facebookresearch/xformers/pull/952",
      lambda q, k, v, mask: (q @ k.mT + mask).softmax(-1) @ v, drawn((6, 8), (7, 8), (7, 5), (6, 7)))  # fmt: skip
def rows_of_the_mask(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    _fitting(q, k, v)
    need(mask.shape == (len(q), len(k)))
    return (q @ k.mT + (as_if(mask, packed(mask.shape)) if wrong else mask)).softmax(-1) @ v


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
    return (q @ k.mT).masked_fill((apart < 0) | (apart > 3), -INF).softmax(-1) @ v


@case("window of attention: on the way back all earlier keys have shares", "kernel-gradient", "ROCm/aiter/pull/3742", _windowed,
      drawn((9, 6), (9, 6), (9, 4)))  # fmt: skip
def no_window_back(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        _fitting(q, k, v)
        need(len(q) == len(k))
        apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
        scores = (q @ k.mT).masked_fill((apart < 0) | (apart > 3), -INF)
        whole_sum = scores.logsumexp(-1, keepdim=True)
        return (scores - whole_sum).exp() @ v, (q, k, v, whole_sum)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, whole_sum = saved
        apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
        hidden = (apart < 0) | ((apart > 3) & (not wrong))
        shares = ((q @ k.mT).masked_fill(hidden, -INF) - whole_sum).exp()
        through = given @ v.mT
        scores = shares * (through - (shares * through).sum(-1, keepdim=True))
        return scores @ k, scores.mT @ q, shares.mT @ given

    return function(forward, backward)


def _joined(a: torch.Tensor, la: torch.Tensor, b: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    most = torch.maximum(la, lb)
    wa, wb = (la - most).exp(), (lb - most).exp()
    return (wa[:, None] * a + wb[:, None] * b) / (wa + wb)[:, None]


@case("parts of attention joined: the power of a difference overflows", "kernel-rounding", "zhuzilin/ring-flash-attention/pull/30", _joined,
      drawn((6, 5), (6,), (6, 5), (6,)))  # fmt: skip
def power_of_a_difference(wrong: bool, a: torch.Tensor, la: torch.Tensor, b: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape and la.shape == lb.shape == a.shape[:1])
    whole_sum = la + torch.log(1 + (lb - la).exp()) if wrong else torch.logaddexp(la, lb)
    return (la - whole_sum).exp()[:, None] * a + (lb - whole_sum).exp()[:, None] * b


def _with_lengths(q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    hidden = torch.arange(k.shape[1]) >= lengths[:, None]
    return torch.einsum("bd,bkd->bk", q, k).masked_fill(hidden, -INF).logsumexp(-1)


@case("logarithm of the sum of scores: of no keys it is Inf", "kernel-mask", "Dao-AILab/flash-attention/pull/978", _with_lengths,
      lambda: (*drawn((4, 6), (4, 7, 6))(), torch.tensor([3, 0, 7, 5])))  # fmt: skip
def of_no_keys(wrong: bool, q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and k.dim() == 3 and q.shape == (k.shape[0], k.shape[2]) and lengths.shape == q.shape[:1] and k.shape[1] > 0)
    seen = torch.arange(k.shape[1]) < lengths[:, None]
    made = (k @ q[..., None])[..., 0].masked_fill(~seen, -INF).logsumexp(-1)
    return torch.where(seen.any(-1), made, INF if wrong else -INF)


@case("cross entropy of each row: one incoming number for all rows", "kernel-gradient", "linkedin/Liger-Kernel/issues/968",
      lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda: (drawn((7, 9))()[0], whole(7, most=9)))  # fmt: skip
def one_incoming_number(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0)
        logs = x.log_softmax(-1)
        return -logs.gather(-1, y[:, None])[:, 0], (logs, y)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        logs, y = saved
        slopes = logs.exp() - F.one_hot(y, logs.shape[1])
        return slopes * (given[:1, None] if wrong else given[:, None]), None

    return function(forward, backward)


def _with_z(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, w.detach()) + 0.1 * x.logsumexp(-1).square().mean()


@case("weighted cross entropy with a z loss: that is divided by the weights too", "kernel-contract", "linkedin/Liger-Kernel/pull/420", _with_z,
      lambda: (drawn((7, 9))()[0], whole(7, most=9), drawn((9,))()[0].abs() + 0.5))  # fmt: skip
def divided_by_weights(wrong: bool, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.shape == x.shape[:1] and w.shape == x.shape[1:] and x.numel() > 0)
    whole_sum, w = x.logsumexp(-1), w.detach()
    total = w[y].sum()
    losses = w[y] * (whole_sum - x.gather(-1, y[:, None])[:, 0])
    return losses.sum() / total + 0.1 * whole_sum.square().sum() / (total if wrong else len(x))


def _policy(ratio: torch.Tensor, gain: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    losses = -torch.minimum(ratio * gain[:, None], ratio.clamp(0.8, 1.2) * gain[:, None])
    return ((losses * keep).sum(-1) / keep.sum(-1).clamp(min=1)).mean()


@case("policy loss: the mean of all tokens, and not of each answer's mean", "kernel-mask", "linkedin/Liger-Kernel/pull/628", _policy,
      lambda: (1 + drawn((5, 8))()[0].abs() / 4, drawn((5,))()[0], torch.arange(8) < torch.tensor([[3], [8], [1], [6], [5]])))  # fmt: skip
def mean_of_all_tokens(wrong: bool, ratio: torch.Tensor, gain: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(ratio.dim() == 2 and keep.shape == ratio.shape and gain.shape == ratio.shape[:1] and keep.dtype is torch.bool and len(ratio) > 0)
    gained = gain[:, None]
    losses = torch.where(keep, -torch.minimum(ratio * gained, ratio.clamp(0.8, 1.2) * gained), 0)
    if wrong:
        return losses.sum() / keep.sum().clamp(min=1)
    return (losses.sum(-1) / keep.sum(-1).clamp(min=1)).sum() / len(ratio)


@case("gate and values of one input: on the way back it has the gate's part alone", "kernel-gradient", "linkedin/Liger-Kernel/pull/1413",
      lambda x, a, b: F.silu(x @ a) * (x @ b), drawn((6, 8), (8, 5), (8, 5)))  # fmt: skip
def gates_part_alone(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        need(x.dim() == a.dim() == b.dim() == 2 and a.shape == b.shape and x.shape[1] == len(a))
        return F.silu(x @ a) * (x @ b), (x, a, b)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, a, b = saved
        gate, values = x @ a, x @ b
        share = gate.sigmoid()
        dgate, dvalues = given * values * share * (1 + gate * (1 - share)), given * gate * share
        dx = dgate @ a.mT
        return (dx if wrong else dx + dvalues @ b.mT), x.mT @ dgate, x.mT @ dvalues

    return function(forward, backward)


def _convolved(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    joined = torch.cat([state, x], 1)
    return F.conv1d(joined[None], w[:, None], groups=len(w))[0]


@case("convolution with a first state: on the way back it is reached from the first place alone", "kernel-gradient",
      "fla-org/flash-linear-attention/pull/714", _convolved, drawn((5, 9), (5, 4), (5, 3)))  # fmt: skip
def first_place_alone(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == state.dim() == 2 and len(x) == len(w) == len(state) > 0 and state.shape[1] == w.shape[1] - 1 and x.shape[1] > 0)
        return _convolved(x, w, state), (x, w, state)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, w, state = saved
        before, length = state.shape[1], x.shape[1]
        joined = torch.zeros(len(x), before + length)
        dw = torch.zeros_like(w)
        for tap in range(w.shape[1]):
            joined[:, tap : tap + length] += given * w[:, tap : tap + 1]
            dw[:, tap] = (given * torch.cat([state, x], 1)[:, tap : tap + length]).sum(1)
        dstate = joined[:, :before] if not wrong else given[:, :1] * w[:, :before]
        return joined[:, before:], dw, dstate

    return function(forward, backward)
