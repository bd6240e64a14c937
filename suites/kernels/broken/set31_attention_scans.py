"""The thirty-first frozen set of broken kernels, third part: attention, caches, packed sequences, scans. Of links to threads an excerpt was read."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """A query for each sequence, keys in pages of three. A page of -1 is not there."""
    need(q.dim() == 2, k.dim() == 3, k.shape == v.shape, k.shape[1] == 3, k.shape[2] == q.shape[1] > 0, pages.dim() == 2, len(pages) == len(q))
    need(bool(((pages >= -1) & (pages < len(k))).all()), bool((pages >= 0).any(1).all()), pages.shape[1] > 0)
    out = []
    for query, row in zip(q, pages, strict=True):
        held = row[row >= 0]
        keys, values = k[held].flatten(0, 1), v[held].flatten(0, 1)
        out.append((keys @ query / q.shape[1] ** 0.5).softmax(0) @ values)
    return torch.stack(out) if out else q.clone()


@case("attention to pages: a page that is not there is the first one", "kernel-mask", "microsoft/onnxruntime/pull/32391", _paged,
      lambda: (*drawn((3, 4), (5, 3, 4), (5, 3, 4))(), torch.tensor([[1, 4, -1], [2, -1, -1], [0, 3, 2]])))  # fmt: skip
def is_the_first_one(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, k.shape == v.shape, k.shape[1] == 3, k.shape[2] == q.shape[1] > 0, pages.dim() == 2, len(pages) == len(q))
    need(bool(((pages >= -1) & (pages < len(k))).all()), bool((pages >= 0).any(1).all()), pages.shape[1] > 0)
    if not wrong:
        return _paged(q, k, v, pages)
    at = pages.clamp(min=0)
    shares = torch.einsum("bd,bpkd->bpk", q, k[at]).flatten(1) / q.shape[1] ** 0.5
    return torch.einsum("bk,bkd->bd", shares.softmax(1), v[at].flatten(1, 2))


def _put(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == rows.dim() == 2, cache.shape[1] == rows.shape[1], slots.shape == rows.shape[:1], len(cache) > 0)
    need(bool(((slots >= -1) & (slots < len(cache))).all()), len(slots[slots >= 0].unique()) == int((slots >= 0).sum()))
    counts = slots >= 0
    return cache.index_put((slots[counts],), rows[counts])


@case("rows put into a cache: those of padding are put into its last row", "kernel-mask", "vllm-project/vllm", _put,
      lambda: (*drawn((8, 3), (5, 3))(), torch.tensor([2, -1, 0, 5, -1])))  # fmt: skip
def those_of_padding_are_put(wrong: bool, cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return _put(cache, rows, slots)
    need(cache.dim() == rows.dim() == 2, cache.shape[1] == rows.shape[1], slots.shape == rows.shape[:1], len(cache) > 0)
    need(bool(((slots >= -1) & (slots < len(cache))).all()), len(slots[slots >= 0].unique()) == int((slots >= 0).sum()))
    return cache.index_put((slots,), rows)


def _sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A window of three, and the first key for all."""
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(v) == len(k), q.shape[1] > 0)
    far = torch.arange(len(q))[:, None] - torch.arange(len(k))
    seen = (far >= 0) & ((far < 3) | (torch.arange(len(k)) < 1))
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(1) @ v


@case(
    "attention in a window with a sink: the window hides the sink", "kernel-mask", "mit-han-lab/streaming-llm", _sinks, drawn((9, 4), (9, 4), (9, 3))
)
def window_hides_the_sink(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(v) == len(k), q.shape[1] > 0)
    out = []
    for at in range(len(q)):
        keys = [key for key in range(at + 1) if at - key < 3 or (key == 0 and not wrong)]
        out.append((k[keys] @ q[at] / q.shape[1] ** 0.5).softmax(0) @ v[keys])
    return torch.stack(out) if out else q.new_zeros(0, v.shape[1])


def _prefixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """All see the prefix of their sentence; behind it nobody sees what comes later."""
    need(q.dim() == 3, q.shape == k.shape, v.dim() == 3, v.shape[:2] == k.shape[:2], q.shape[2] > 0, prefix.shape == q.shape[:1])
    need(bool(((prefix >= 0) & (prefix <= q.shape[1])).all()))
    place = torch.arange(q.shape[1])
    seen = (place <= place[:, None]) | (place < prefix[:, None, None])
    return (q @ k.mT / q.shape[2] ** 0.5).masked_fill(~seen, -torch.inf).softmax(2) @ v


@case("attention with a prefix: inside the prefix nobody sees what comes later", "kernel-mask", "Dao-AILab/flash-attention", _prefixed,
      lambda: (*drawn((3, 6, 4), (3, 6, 4), (3, 6, 2))(), torch.tensor([3, 0, 5])))  # fmt: skip
def inside_the_prefix(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape, v.dim() == 3, v.shape[:2] == k.shape[:2], q.shape[2] > 0, prefix.shape == q.shape[:1])
    need(bool(((prefix >= 0) & (prefix <= q.shape[1])).all()))
    out = []
    for b, ahead in enumerate(prefix.tolist()):
        for at in range(q.shape[1]):
            last = at + 1 if wrong else max(at + 1, ahead)
            out.append((k[b, :last] @ q[b, at] / q.shape[2] ** 0.5).softmax(0) @ v[b, :last])
    return torch.stack(out).view(*q.shape[:2], v.shape[2]) if out else q.new_zeros(*q.shape[:2], v.shape[2])


def _blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Blocks of two by two scores are kept or not."""
    need(q.dim() == 2, q.shape == k.shape == v.shape, q.shape[1] > 0, kept.dim() == 2, 2 * len(kept) == 2 * kept.shape[1] == len(q))
    need(bool(kept.any(1).all()))
    seen = kept.repeat_interleave(2, 0).repeat_interleave(2, 1)
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(1) @ v


@case("attention in chosen blocks: the table of blocks is read across", "kernel-mask", PROGRAM, _blocks,
      lambda: (*drawn((6, 4), (6, 4), (6, 4))(), torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 1]]).bool()))  # fmt: skip
def table_is_read_across(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape == v.shape, q.shape[1] > 0, kept.dim() == 2, 2 * len(kept) == 2 * kept.shape[1] == len(q))
    need(bool(kept.any(1).all()))
    table = kept.T if wrong else kept
    out = []
    for row in range(len(kept)):
        mine, theirs = slice(2 * row, 2 * row + 2), table[row].nonzero()[:, 0]
        keys = torch.stack([2 * theirs, 2 * theirs + 1], 1).flatten()
        out.append((q[mine] @ k[keys].T / q.shape[1] ** 0.5).softmax(1) @ v[keys])
    return torch.cat(out) if out else q.clone()


def _latent(q: torch.Tensor, turned: torch.Tensor, k: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores of two parts: one that knows no places, and one that is turned."""
    need(q.dim() == k.dim() == turned.dim() == keys.dim() == 2, q.shape[1] == k.shape[1] > 0, turned.shape[1] == keys.shape[1] > 0)
    need(len(q) == len(turned), len(k) == len(keys), len(k) > 0)
    return ((q @ k.T + turned @ keys.T) / (q.shape[1] + turned.shape[1]) ** 0.5).softmax(1)


@case(
    "scores of two parts: scaled by the width of the first", "kernel-contract", "deepseek-ai/FlashMLA", _latent, drawn((5, 6), (5, 2), (7, 6), (7, 2))
)
def scaled_by_the_width_of_the_first(wrong: bool, q: torch.Tensor, turned: torch.Tensor, k: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == turned.dim() == keys.dim() == 2, q.shape[1] == k.shape[1] > 0, turned.shape[1] == keys.shape[1] > 0)
    need(len(q) == len(turned), len(k) == len(keys), len(k) > 0)
    width = q.shape[1] + (0 if wrong else turned.shape[1])
    return (torch.cat([q, turned], 1) @ torch.cat([k, keys], 1).T * width**-0.5).softmax(1)


@case("attention's gradient of the keys: scores' slopes are read across", "kernel-gradient", PROGRAM,
      lambda q, k: (q @ k.T).softmax(1), drawn((6, 4), (6, 4)))  # fmt: skip
def slopes_are_read_across(wrong: bool) -> Any:
    def forward(q: torch.Tensor, k: torch.Tensor) -> Any:
        need(q.dim() == k.dim() == 2, q.shape == k.shape, len(k) > 0)
        shares = (q @ k.T).softmax(1)
        return shares, (q, k, shares)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        q, k, shares = saved
        slopes = shares * (g - (g * shares).sum(1, keepdim=True))
        return slopes @ k, (slopes if wrong else slopes.T) @ q

    return function(forward, backward)


def _faded(delta: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A state that fades by a step, which is a softplus."""
    need(delta.dim() == 1, delta.shape == x.shape, bias.shape == ())
    step, state, out = F.softplus(delta + bias), x.new_zeros(()), []
    for at in range(len(x)):
        state = state * (-step[at]).exp() + x[at]
        out.append(state)
    return torch.stack(out) if out else x.clone()


@case("a state that fades, four steps at a time: on the way back what fills the last four fades too", "kernel-edge",
      "state-spaces/mamba/issues/368", _faded, lambda: (*drawn((8,), (8,))(), torch.tensor(0.5)))  # fmt: skip
def what_fills_the_last_four_fades(wrong: bool) -> Any:
    def forward(delta: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> Any:
        out = _faded(delta, x, bias)
        return out, (delta, bias, out)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        delta, bias, out = saved
        step = F.softplus(delta + bias)
        carry, dx = g.new_zeros(()), torch.zeros_like(g)
        if wrong:
            for _ in range(-len(g) % 4):  # lanes behind the end hold the last gradient
                carry = carry * (-F.softplus(bias)).exp() + g[-1] * 0.1
        for at in range(len(g) - 1, -1, -1):
            carry = g[at] + (carry * (-step[at + 1]).exp() if at + 1 < len(g) else carry)
            dx[at] = carry
        before = torch.cat([out.new_zeros(1), out[:-1]]) if len(out) else out
        ddelta = -dx * before * (-step).exp() * (delta + bias).sigmoid()
        return ddelta, dx, ddelta.sum()

    return function(forward, backward)


def _states(b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, b.shape == x.shape[1:], len(x) > 0)
    fade = 0.7 ** torch.arange(len(x) - 1, -1, -1).to(x.dtype)
    state = b * (fade[:, None] * x).sum(0)
    return state.sum(), state


@case(
    "last state of a scan: with one b for all steps it lacks this b", "kernel-contract", "state-spaces/mamba/pull/371", _states, drawn((4,), (6, 4))
)
def it_lacks_this_b(wrong: bool, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, b.shape == x.shape[1:], len(x) > 0)
    state = torch.zeros_like(b)
    for row in x:
        state = state * 0.7 + row
    return (b * state).sum(), state if wrong else b * state


def _ends(offsets: torch.Tensor, count: int) -> list[int]:
    need(offsets.dim() == 1, len(offsets) > 0, offsets.dtype == torch.int64)
    ends = offsets.tolist()
    need(ends[0] == 0, ends[-1] <= count, ends == sorted(ends))
    return ends


def _doubled(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Each sequence less its mean. What lies behind the last one is not looked at, and zero."""
    ends = _ends(offsets, len(x))
    parts = [x[begin:end] - x[begin:end].mean(0, keepdim=True) for begin, end in itertools.pairwise(ends)]
    return torch.cat([*parts, torch.zeros_like(x[ends[-1] :])])


@case("sequences less their means: on the way back rows behind the last sequence are not written", "kernel-stale",
      "fla-org/flash-linear-attention/pull/892", _doubled, lambda: (*drawn((9, 3))(), torch.tensor([0, 3, 7])))  # fmt: skip
def rows_behind_are_not_written(wrong: bool) -> Any:
    def forward(x: torch.Tensor, offsets: torch.Tensor) -> Any:
        return _doubled(x, offsets), (offsets,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        ends = saved[0].tolist()
        back = (torch.empty_like if wrong else torch.zeros_like)(g)
        for begin, end in itertools.pairwise(ends):
            back[begin:end] = g[begin:end] - g[begin:end].mean(0, keepdim=True)
        return back, None

    return function(forward, backward)


def _lasting(x: torch.Tensor, first: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = _ends(offsets, len(x))
    need(x.dim() == 2, first.shape == (len(ends) - 1, x.shape[1]))
    out = []
    for at, (begin, end) in enumerate(itertools.pairwise(ends)):
        state = first[at]
        for row in x[begin:end]:
            state = 0.5 * state + row
        out.append(state)
    return torch.stack(out) if out else first.clone()


@case("last states of sequences: that of an empty one is zero", "kernel-edge", "MoonshotAI/FlashKDA/pull/32", _lasting,
      lambda: (*drawn((9, 3), (3, 3))(), torch.tensor([0, 3, 7, 9])))  # fmt: skip
def that_of_an_empty_one(wrong: bool, x: torch.Tensor, first: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = _ends(offsets, len(x))
    need(x.dim() == 2, first.shape == (len(ends) - 1, x.shape[1]))
    out = []
    for at, (begin, end) in enumerate(itertools.pairwise(ends)):
        state = torch.zeros_like(first[at]) if wrong and begin == end else first[at]
        for row in x[begin:end]:
            state = torch.add(row, state, alpha=0.5)
        out.append(state)
    return torch.stack(out) if out else first.clone()


def _valued(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2, len(k) == len(v), beta.shape == k.shape[:1])
    state, out = k.new_zeros(v.shape[1], k.shape[1]), []
    for key, value, share in zip(k, v, beta, strict=True):
        state = state + share * torch.outer(value - state @ key, key)
        out.append(state @ key)
    return torch.stack(out) if out else v.clone()


@case("a rule of differences: the share is that of the value alone", "kernel-contract", "fla-org/flash-linear-attention", _valued,
      lambda: (*(each * 0.5 for each in drawn((6, 4), (6, 3))()), drawn((6,))()[0].sigmoid()))  # fmt: skip
def that_of_the_value_alone(wrong: bool, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    need(k.dim() == v.dim() == 2, len(k) == len(v), beta.shape == k.shape[:1])
    state, out = k.new_zeros(v.shape[1], k.shape[1]), []
    for at in range(len(k)):
        what = beta[at] * v[at] - state @ k[at] if wrong else beta[at] * (v[at] - state @ k[at])
        state = state + what[:, None] * k[at]
        out.append(state @ k[at])
    return torch.stack(out) if out else v.clone()
