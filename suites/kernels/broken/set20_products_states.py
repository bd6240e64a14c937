"""A twentieth frozen set of broken kernels, first part: products, codes, attention, states. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
INF = float("inf")


def _adapted(x: torch.Tensor, own: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """A product of two for each row, by the adapter that it names. It is zero where none is named."""
    rows = torch.einsum("nk,nkr,nrm->nm", x, down[own.clamp(min=0)], up[own.clamp(min=0)])
    return torch.where(own[:, None] >= 0, rows, 0)


@case("rows with an adapter each: one without any has the last one's", "kernel-mask", "vllm-project/vllm/pull/48421", _adapted,
      lambda: (*drawn((6, 5))(), torch.tensor([0, -1, 2, 1, -1, 0]), *drawn((3, 5, 2), (3, 2, 4))()))  # fmt: skip
def without_any_has_the_last(wrong: bool, x: torch.Tensor, own: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and own.shape == x.shape[:1] and down.dim() == up.dim() == 3 and len(down) == len(up) > 0,
         x.shape[1] == down.shape[1] and down.shape[2] == up.shape[1], bool(((own >= -1) & (own < len(down))).all()))  # fmt: skip
    parts = []
    for row, place in zip(x, own.tolist(), strict=True):
        parts.append(row @ down[place] @ up[place] if wrong or place >= 0 else torch.zeros(up.shape[2]))
    return torch.stack(parts) if parts else _adapted(x, own, down, up)


@case("codes of four bits with a zero each: a zero of 0 wraps to 16", "kernel-contract", "ModelCloud/GPTQModel/pull/2351",
      lambda codes, zeros, scales: (codes - zeros) * scales, lambda: (whole(6, 8, most=16), whole(8, most=16), *drawn((8,))()))  # fmt: skip
def zero_wraps(wrong: bool, codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and zeros.shape == scales.shape == codes.shape[1:])
    held = (zeros - 1) & 15 if wrong else zeros - 1
    return (codes - (held + 1)) * scales


def _power(x: torch.Tensor) -> torch.Tensor:
    """The least power of two that is not below a row's largest magnitude over 448, and 2^-20 for a row of zeros."""
    share, exponent = torch.frexp((x.abs().amax(-1) / 448).clamp(min=2.0**-20))
    return torch.ldexp(torch.ones_like(share), exponent - (share == 0.5).int()).where(x.isfinite().all(-1), x.abs().amax(-1))


@case("scales of rows that are powers of two: what is no power is cut off", "kernel-contract", "inclusionAI/humming/pull/39", _power, drawn((5, 8)))
def cut_off_to_a_power(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and x.dtype is torch.float32)
    bits = (x.detach().abs().amax(-1) / 448).clamp(min=2.0**-20).view(torch.int32)
    made = ((bits if wrong else bits + 0x007FFFFF) & 0x7F800000).view(torch.float32)
    return torch.where(x.isfinite().all(-1), made, x.abs().amax(-1))


@case("two codes of four bits to a byte, sixteen at a time: a byte is not cleared", "kernel-edge", "bitsandbytes-foundation/bitsandbytes/pull/1721",
      lambda codes: codes[:, ::2] + 16 * codes[:, 1::2], lambda: (whole(4, 12, most=16),))  # fmt: skip
def byte_is_not_cleared(wrong: bool, codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and codes.shape[1] % 2 == 0)
    held, passes = torch.zeros(len(codes), 8, dtype=codes.dtype), []
    for part in codes.split(16, 1):
        held = held[:, : part.shape[1] // 2] if wrong else torch.zeros_like(part[:, ::2])
        held = held | part[:, ::2] | (part[:, 1::2] << 4)
        passes.append(held)
    return torch.cat(passes, 1)


def _signs() -> torch.Tensor:
    """A matrix of twelve signs whose rows are at right angles, by squares modulo eleven."""
    squares = {number * number % 11 for number in range(1, 11)}
    made = torch.ones(12, 12)
    for row in range(11):
        for column in range(11):
            made[row + 1, column + 1] = -1 if row == column or (column - row) % 11 not in squares else 1
    return made


def _turned(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 12)
    return x @ _signs().to(x.dtype)


@case("twelve numbers times signs: four of the signs are the other way round", "kernel-contract", "Dao-AILab/fast-hadamard-transform/issues/9",
      _turned, drawn((4, 12)))  # fmt: skip
def four_other_signs(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] == 12)
    signs = _signs()
    if wrong:
        signs[8:, 4] *= -1
    return torch.stack([(x * column).sum(1) for column in signs.unbind(1)], 1)


@case("product of low rank: ranks behind the sixteenth are left out", "kernel-edge", "predibase/lorax/pull/70",
      lambda x, down, up: x @ down @ up, drawn((4, 6), (6, 8), (8, 5)))  # fmt: skip
def ranks_left_out(wrong: bool, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    need(x.dim() == down.dim() == up.dim() == 2 and x.shape[1] == len(down) and down.shape[1] == len(up))
    ranks = 16 if wrong else len(up)
    return (x @ down[:, :ranks]) @ up[:ranks]


@case("a matrix times a row, lanes of four numbers: an odd lane at the end is not added", "kernel-edge", "ROCm/vllm/pull/28",
      torch.mv, drawn((5, 16), (16,)))  # fmt: skip
def odd_lane(wrong: bool, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 2 and x.shape == w.shape[1:])
    lanes = [(part * row).sum(1) for part, row in zip(w.split(4, 1), x.split(4), strict=True)]
    if wrong and len(lanes) % 2 and len(lanes) > 1:
        lanes.pop()
    return torch.stack(lanes).sum(0)


def _within_chunks(k: torch.Tensor) -> torch.Tensor:
    """Products of the rows of each chunk of eight, below the diagonal, chunk beside chunk."""
    rows = [F.pad((part @ part.T).tril(-1), (0, 8 - len(part))) for part in k.split(8)]
    return torch.cat(rows) if rows else k[:0, :1].expand(0, 8) * 1


@case("products of the rows of a chunk: blocks above the diagonal are not written", "kernel-stale", "fla-org/flash-linear-attention/pull/1070",
      _within_chunks, drawn((16, 5)))  # fmt: skip
def blocks_above_the_diagonal(wrong: bool) -> Any:
    def forward(k: torch.Tensor) -> Any:
        need(k.dim() == 2)
        made = (torch.empty if wrong else torch.zeros)(len(k), 8, dtype=k.dtype)
        for begin in range(0, len(k), 4):
            inside, first = begin % 8, begin - begin % 8
            block = k[begin : begin + 4] @ k[first : begin + 4].T
            width = block.shape[1]
            made[begin : begin + 4, :width] = block.tril(inside - 1)
            if len(k) - begin < 4 or width < inside + 4:
                made[begin : begin + 4, width : inside + 4] = 0
        return made, (k,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        (k,) = saved
        parts = []
        for part, slope in zip(k.split(8), gradient.split(8), strict=True):
            lower = slope[:, : len(part)].tril(-1)
            parts.append((lower + lower.T) @ part)
        return torch.cat(parts)

    return function(forward, backward)


def _shared_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    share = len(q) // max(len(k), 1)
    scores = q @ k.repeat_interleave(share, 0).mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v.repeat_interleave(share, 0)


def _fitting_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 3 and k.shape[:2] == v.shape[:2] and q.shape[2] == k.shape[2] > 0,
         len(k) > 0 and len(q) % len(k) == 0 and k.shape[1] > 0)  # fmt: skip


@case("heads in groups, one row each: they are turned to rows and are not turned back", "kernel-edge", "pytorch/pytorch/pull/186434",
      _shared_heads, drawn((4, 3, 5), (2, 6, 5), (2, 6, 5)))  # fmt: skip
def not_turned_back(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fitting_heads(q, k, v)
    rows = q.unflatten(0, (len(k), -1)).flatten(1, 2)
    made = ((rows @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).unflatten(1, (-1, q.shape[1]))
    return made.transpose(0, 1).reshape(len(q), 1, -1) if wrong and q.shape[1] == 1 else made.flatten(0, 1)


@case("causal, heads in groups: a row's limit is its number divided by the heads of a group", "kernel-mask", "Dao-AILab/flash-attention/pull/2528",
      lambda q, k, v: (_shared_scores(q, k).masked_fill(torch.ones(q.shape[1], k.shape[1]).triu(1).bool(), -INF)).softmax(-1)
      @ v.repeat_interleave(len(q) // len(v), 0), drawn((4, 6, 5), (2, 6, 5), (2, 6, 5)))  # fmt: skip
def limit_is_divided(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _fitting_heads(q, k, v)
    share = len(q) // len(k)
    limits = torch.arange(q.shape[1]) // (share if wrong else 1)
    hidden = torch.arange(k.shape[1]) > limits[:, None]
    weights = _shared_scores(q, k).masked_fill(hidden, -INF).softmax(-1)
    return torch.stack([torch.stack([row[: int(limit) + 1] @ v[head // share][: int(limit) + 1] for row, limit in zip(rows, limits, strict=True)])
                        for head, rows in enumerate(weights)]) if q.shape[1] else q @ k.mT @ v  # fmt: skip


def _shared_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(len(k) > 0 and len(q) % len(k) == 0 and q.shape[1] > 0)
    return q @ k.repeat_interleave(len(q) // len(k), 0).mT / q.shape[-1] ** 0.5


@case("values' gradient, eight rows at a time: what fills a head's last block lies over the next head", "kernel-edge", "flagos-ai/FlagGems/pull/898",
      torch.matmul, drawn((3, 8, 8), (3, 8, 4)))  # fmt: skip
def lies_over_the_next_head(wrong: bool) -> Any:
    def forward(p: torch.Tensor, v: torch.Tensor) -> Any:
        need(p.dim() == v.dim() == 3 and len(p) == len(v) and p.shape[2] == v.shape[1])
        return p @ v, (p, v)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        p, v = saved
        heads, rows, columns = v.shape
        parts = p.mT @ gradient
        held = torch.zeros(heads * rows + 8, columns, dtype=v.dtype)
        for head in reversed(range(heads)):
            whole_rows = F.pad(parts[head], (0, 0, 0, -rows % 8)) if wrong else parts[head]
            held[head * rows : head * rows + len(whole_rows)] = whole_rows
        return gradient @ v.mT, held[: heads * rows].view(v.shape)

    return function(forward, backward)


def _stored(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == new.dim() == 3 and cache.shape[::2] == new.shape[::2] and cache.shape[1] >= new.shape[1])
    return torch.cat([new, cache[:, new.shape[1] :]], 1)


@case("rows stored in a cache of heads: heads are taken to be as far apart as in what is stored", "kernel-contract",
      "tenstorrent/tt-metal/issues/54742", _stored, drawn((3, 8, 4), (3, 2, 4)))  # fmt: skip
def as_far_apart_as_stored(wrong: bool, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == new.dim() == 3 and cache.shape[::2] == new.shape[::2] and cache.shape[1] >= new.shape[1])
    places = torch.arange(new.shape[1]) + (new if wrong else cache).shape[1] * torch.arange(len(cache))[:, None]
    return cache.flatten(0, 1).index_copy(0, places.flatten(), new.flatten(0, 1)).view(cache.shape)


def _by_three(x: torch.Tensor, places: torch.Tensor, blocks: bool = False) -> torch.Tensor:
    """Halves turned by angles whose places are of one of three kinds: kind by kind in turn, or in blocks."""
    need(x.dim() == 2 and x.shape[1] == 12 and places.shape == (3, len(x)))
    kind = torch.arange(6) // 2 if blocks else torch.arange(6) % 3
    angles = places[kind].T.to(x.dtype) * 10.0 ** -torch.arange(6, dtype=x.dtype)
    first, second = x.chunk(2, 1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], 1)


@case("rope with three kinds of places, taken in turn: they are taken in blocks", "kernel-contract", "alibaba/MNN/pull/4133",
      lambda x, places: _by_three(x, places), lambda: (*drawn((5, 12))(), whole(3, 5, most=9)))  # fmt: skip
def taken_in_blocks(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return _by_three(x, places, wrong)


def _tree() -> tuple[torch.Tensor, ...]:
    above = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 6])
    seen = torch.eye(12, dtype=torch.bool)
    for row in range(1, 12):
        seen[row] |= seen[above[row]]
    return (*drawn((12, 5), (12, 5), (12, 4))(), seen)


@case("attention in a tree, keys four at a time: whole blocks below the diagonal are not masked", "kernel-mask", "PaddlePaddle/FastDeploy/pull/3514",
      lambda q, k, v, seen: (q @ k.T / q.shape[1] ** 0.5).masked_fill(~seen, -INF).softmax(-1) @ v, _tree)  # fmt: skip
def blocks_below_the_diagonal(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    need(q.dim() == v.dim() == 2 and q.shape == k.shape and len(k) == len(v) > 0 and q.shape[1] > 0 and seen.shape == (len(q), len(k)))
    block = torch.arange(len(k)) // 4
    seen = seen | (block[:, None] > block) if wrong else seen
    need(bool(seen.any(1).all()))
    rows = [torch.softmax(q[row] @ k[keys].T / q.shape[1] ** 0.5, 0) @ v[keys] for row, keys in enumerate(seen)]
    return torch.stack(rows)


def _inverse(a: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape[0] == a.shape[1])
    eye = torch.eye(len(a), dtype=a.dtype)
    return torch.linalg.solve_triangular(eye + a.tril(-1), eye, upper=False, unitriangular=True)


@case("inverse of a triangle of ones: its powers leave the range of float16", "kernel-rounding", "huawei-csl/megagdn-pto/pull/74", _inverse,
      lambda: (0.5 * drawn((8, 8))()[0],))  # fmt: skip
def powers_leave_the_range(wrong: bool, a: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape[0] == a.shape[1])
    rows = [torch.eye(len(a), dtype=a.dtype)[:1]] if len(a) else []
    power, made, reached = -a.tril(-1), torch.eye(len(a), dtype=a.dtype), 1
    while reached < len(a) and wrong:
        made = made + power @ made
        power, reached = (power @ power).half().to(a.dtype), 2 * reached
    for row in range(1, len(a)):
        rows.append(torch.eye(len(a), dtype=a.dtype)[row : row + 1] - a[row : row + 1, :row] @ torch.cat(rows))
    return made if wrong or not rows else torch.cat(rows) + 0 * a.tril(-1)


def _corrected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A delta rule: each key's value takes the place of what the state has for it."""
    need(q.dim() == 2 and q.shape == k.shape == v.shape and state.shape == (q.shape[1], q.shape[1]))
    rows = [(q[:0] @ state)[:, None]]
    for query, key, value in zip(q, k, v, strict=True):
        state = state + 0.1 * key[:, None] * (value - key @ state)
        rows.append((query @ state)[None, None])
    return torch.cat([row.reshape(-1, q.shape[1]) for row in rows])


@case("delta rule from a first state: that is read across", "kernel-contract", "fla-org/flash-linear-attention/issues/351", _corrected,
      drawn((6, 4), (6, 4), (6, 4), (4, 4)))  # fmt: skip
def read_across(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return _corrected(q, k, v, state.T if wrong else state)
