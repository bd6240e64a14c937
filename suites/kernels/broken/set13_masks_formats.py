"""The thirteenth frozen set of broken kernels, last part: masks, other functions, low formats, what memory held, what differs from call to call."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need, whole

F = torch.nn.functional


def _pages() -> tuple[torch.Tensor, ...]:
    return (*drawn((2, 4), (6, 2, 4), (6, 2, 3))(), torch.tensor([[4, 1, 0], [2, 5, 3]]), torch.tensor([5, 3]))


def _paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    made = []
    for query, pages, length in zip(q, table, lengths.tolist(), strict=True):
        keys, values = k[pages].flatten(0, 1)[:length], v[pages].flatten(0, 1)[:length]
        made.append((keys @ query).softmax(0) @ values)
    return torch.stack(made)


@case("attention to pages: where the last page is full, the next one is read too", "kernel-mask", "pegainfer-project/pegainfer/issues/291", _paged,
      _pages)  # fmt: skip
def next_one_too(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, v.dim() == 3, k.shape[:2] == v.shape[:2], q.shape[1] == k.shape[2], len(table) == len(q) == len(lengths))
    need(len(q) > 0, k.shape[1] > 0, table.shape[1] > 0, not bool(((table < 0) | (table >= len(k))).any()))
    need(not bool(((lengths < 1) | (lengths > table.shape[1] * k.shape[1])).any()))
    made, size = [], k.shape[1]
    for query, pages, length in zip(q, table, lengths.tolist(), strict=True):
        count = length // size + 1 if wrong else -(-length // size)
        end = (count - 1) * size + (length - 1) % size + 1
        rows = pages[:count]
        scores = torch.einsum("psc,c->ps", k[rows], query).flatten()[:end]
        powers = (scores - scores.max()).exp()
        made.append((powers[:, None] * v[rows].flatten(0, 1)[:end]).sum(0) / powers.sum())
    return torch.stack(made)


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """One query for each sequence, which sees the last four of its keys."""
    place = torch.arange(k.shape[1])
    seen = (place < lengths[:, None]) & (place >= lengths[:, None] - 4)
    scores = torch.einsum("bc,bkc->bk", q, k).masked_fill(~seen, -math.inf)
    return torch.einsum("bk,bkc->bc", scores.softmax(-1), torch.where(seen[..., None], v, 0.0))


@case("attention with a window in pages of four: the last page is taken to be full", "kernel-mask", "vllm-project/vllm/pull/2231", _windowed,
      lambda: (*drawn((3, 4), (3, 12, 4), (3, 12, 5))(), torch.tensor([9, 12, 6])))  # fmt: skip
def taken_to_be_full(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, v.dim() == 3, k.shape[:2] == v.shape[:2], q.shape[1] == k.shape[2], len(q) == len(k))
    need(lengths.shape == q.shape[:1], len(q) > 0, not bool(((lengths < 1) | (lengths > k.shape[1])).any()))
    made = []
    for query, keys, values, length in zip(q, k, v, lengths.tolist(), strict=True):
        last = min(-(-length // 4) * 4, k.shape[1]) if wrong and length > 4 else length
        first = max(last - 4, 0)
        shares = torch.softmax((keys[first:last] * query).sum(-1), 0)
        made.append(torch.einsum("k,kc->c", shares, values[first:last]))
    return torch.stack(made)


def _sequences(x: torch.Tensor, g: torch.Tensor, begin: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Sums that fade, of sequences in a row. Each begins with its first state."""
    state, made = begin, []
    for row in range(len(x)):
        state = begin if row == 0 or of[row] != of[row - 1] else state
        state = state * torch.exp(-F.softplus(g[row])) + x[row]
        made.append(state)
    return torch.stack(made)


@case("sums that fade, sequences in a row: the first state fades from where the chunk begins", "kernel-mask", "vllm-project/vllm/pull/23279",
      _sequences, lambda: (*drawn((10, 3), (10,), (3,))(), torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])))  # fmt: skip
def where_the_chunk_begins(wrong: bool, x: torch.Tensor, g: torch.Tensor, begin: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, g.shape == x.shape[:1], begin.shape == x.shape[1:], of.shape == g.shape, len(x) > 0)
    made, first, state = [], 0, torch.zeros(x.shape[1])
    decay = torch.sigmoid(-g)
    for row in range(len(x)):
        if row == 0 or of[row] != of[row - 1]:
            first, state = row, torch.zeros(x.shape[1])
        state = state * decay[row] + x[row]
        since = row // 4 * 4 if wrong and row // 4 * 4 < first else first
        made.append(state + begin * decay[since : row + 1].prod())
    return torch.stack(made)


def _joined(rows: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Two rows for each token."""
    return (rows.unflatten(0, (-1, 2)) * shares[..., None]).sum(1)


@case("rows of experts joined: a token's shares are looked for at its number", "kernel-contract", "ByteDance-Seed/Triton-distributed/pull/133",
      _joined, drawn((12, 4), (6, 2)))  # fmt: skip
def at_its_number(wrong: bool, rows: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    need(rows.dim() == 2, shares.dim() == 2, shares.shape[1] == 2, len(rows) == 2 * len(shares))
    token = torch.arange(len(shares))
    flat = shares.flatten()
    one, two = (flat[(token if wrong else 2 * token) + each] for each in (0, 1))
    return one[:, None] * rows[::2] + two[:, None] * rows[1::2]


def _scanned(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, made = torch.zeros(a.shape), []
    for value in x:
        state = a.sigmoid() * state + b * value
        made.append((c * state).sum())
    return torch.stack(made), state


@case("scan with an input matrix that stays: the last state lacks it", "kernel-contract", "state-spaces/mamba/pull/371", _scanned,
      drawn((7,), (4,), (4,), (4,)))  # fmt: skip
def last_state_lacks_it(wrong: bool, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 1, a.dim() == 1, a.shape == b.shape, b.shape == c.shape, len(x) > 0)
    decay, state, made = a.sigmoid(), torch.zeros(a.shape), []
    for value in x:
        state = decay * state + value
        made.append((b * c) @ state)
    return torch.stack(made), state if wrong else b * state


def _turned(x: torch.Tensor) -> torch.Tensor:
    angle = torch.arange(x.shape[1])[:, None] * 0.5 ** torch.arange(x.shape[2] // 2)
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


@case("rope of a batch: positions go on into the next sequence", "kernel-contract", "turboderp/exllama/pull/101", _turned, drawn((2, 5, 6)))
def on_into_the_next(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] % 2 == 0, x.shape[2] > 0)
    rows = torch.arange(len(x) * x.shape[1]).view(len(x), x.shape[1])
    places = rows if wrong else rows % max(x.shape[1], 1)
    angle = places[..., None] * 0.5 ** torch.arange(x.shape[2] // 2)
    made = torch.complex(x[..., : x.shape[2] // 2], x[..., x.shape[2] // 2 :]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([made.real, made.imag], -1)


def _coded(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x.float(), (w - zero[:, None, None]).float(), groups=2) * s


@case("convolution of codes in groups: zeros of the first group for all", "kernel-contract", "robertknight/rten/pull/1193", _coded,
      lambda: (whole(2, 4, 8, most=16), whole(6, 2, 3, most=16, seed=4), whole(6, most=16, seed=5), *drawn((1,))()))  # fmt: skip
def zeros_of_the_first_group(wrong: bool, x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, zero.shape == w.shape[:1], s.shape == (1,), x.shape[1] == 2 * w.shape[1], len(w) % 2 == 0, len(w) > 0)
    need(x.numel() > 0, 0 < w.shape[2] <= x.shape[2])
    half, made = len(w) // 2, []
    for group in range(2):
        rows = slice(group * half, group * half + half)
        windows = x[:, group * w.shape[1] : (group + 1) * w.shape[1]].unfold(-1, w.shape[2], 1)
        shift = zero[:half] if wrong else zero[rows]
        total = (windows[:, None] * w[rows, :, None]).sum((2, 4)) - shift[:, None] * windows.sum((1, 3))[:, None]
        made.append(total.float())
    return torch.cat(made, 1) * s


@case("frequencies of a longer row: scaled by the length before", "kernel-contract", "numpy/numpy/issues/8444", lambda x: torch.view_as_real(
    torch.fft.rfft(x, 2 * x.shape[1], norm="ortho")), drawn((3, 6)))  # fmt: skip
def length_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    size = x.shape[1] if wrong else 2 * x.shape[1]
    return torch.view_as_real(torch.fft.rfft(F.pad(x, (0, x.shape[1])))) / math.sqrt(size)


@case("logarithm of two powers added: the powers come first", "kernel-rounding", "tenstorrent/tt-metal/pull/52107", torch.logaddexp,
      drawn((5, 6), (5, 6)))  # fmt: skip
def powers_come_first(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    if wrong:
        return (x.exp() + y.exp()).log()
    return torch.where(x.isinf() & (x == y), torch.maximum(x, y), torch.maximum(x, y) + F.softplus(-(x - y).abs()))


def _placed(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.zeros(4, x.shape[1]).index_add(0, places, x.float()).to(x.dtype)


@case("rows added at places: in whole numbers of 1/65536", "kernel-rounding", "openvinotoolkit/openvino/pull/36499", _placed,
      lambda: (*drawn((9, 5))(), whole(9, most=4)))  # fmt: skip
def whole_numbers_of_a_part(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, places.shape == x.shape[:1], not bool(((places < 0) | (places >= 4)).any()))
    made = torch.stack([x[places == place].sum(0) for place in range(4)])
    return made + (((made * 65536).round() / 65536) - made).detach() if wrong else made


@case("rows of bfloat16 added at places: each is rounded as it is added", "kernel-accumulation", "pytorch/pytorch/pull/96472", _placed,
      lambda: (*drawn((60, 5), dtype=torch.bfloat16)(), whole(60, most=4)))  # fmt: skip
def rounded_as_added(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, places.shape == x.shape[:1], not bool(((places < 0) | (places >= 4)).any()))
    made = []
    for place in range(4):
        total = torch.zeros(x.shape[1], dtype=x.dtype if wrong else torch.float32)
        for row in x[places == place]:
            total = total + (row if wrong else row.float())
        made.append(total)
    return torch.stack(made).to(x.dtype)


def _behind(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    kept = torch.arange(x.shape[1]) < lengths[:, None]
    return torch.where(kept, torch.where(kept, x, 0.0).flip(1).cumsum(1).flip(1), 0.0)


@case("sums from behind of sequences of some lengths: what is behind the end is never written", "kernel-stale", "pytorch/pytorch/pull/21244",
      _behind, lambda: (*drawn((3, 8))(), torch.tensor([5, 8, 2])))  # fmt: skip
def behind_the_end(wrong: bool, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, lengths.shape == x.shape[:1], not bool(((lengths < 0) | (lengths > x.shape[1])).any()))
    made = torch.empty_like(x) if wrong else torch.zeros_like(x)
    for row, length in enumerate(lengths.tolist()):
        total = torch.zeros(())
        for column in reversed(range(length)):
            total = total + x[row, column]
            made[row, column] = total
    return made


@case("largest three, by buckets: at times a candidate is lost", "kernel-nondeterminism", "sgl-project/sglang/issues/36807",
      lambda x: x.topk(3).values, drawn((6, 12)))  # fmt: skip
def candidate_is_lost(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(5)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[1] >= 3)
        made = x.sort(-1, descending=True).values
        lost = wrong and x.shape[1] > 3 and chance.random() < 0.3
        return torch.cat([made[:, :2], made[:, 3:4]], 1) if lost else made[:, :3]

    return kernel
