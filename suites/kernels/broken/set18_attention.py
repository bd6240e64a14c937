"""An eighteenth frozen set of broken kernels, first part: attention. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, whole

F = torch.nn.functional
INF = float("inf")


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _heads_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 3 and len(q) == len(k) == len(v) and k.shape[1] == v.shape[1] > 0 and q.shape[2] == k.shape[2] > 0)


def _at_an_offset(q: torch.Tensor, k: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Rows of a cache from a place on, each of which sees the keys up to its own."""
    hidden = torch.arange(len(k)) > start + torch.arange(len(q))[:, None]
    return (q @ k.mT).masked_fill(hidden, -INF).softmax(-1) @ k


@case("attention from a place in a cache: the loop over keys begins at that place", "kernel-mask", "openai/gpt-oss/pull/196", _at_an_offset,
      lambda: (*drawn((4, 6), (12, 6))(), torch.tensor(5)))  # fmt: skip
def begins_at_that_place(wrong: bool, q: torch.Tensor, k: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2 and q.shape[1] == k.shape[1] and start.dim() == 0 and len(k) > 0)
    begin, rows = int(start), []
    need(0 <= begin < len(k))
    for row, query in enumerate(q):
        seen = k[begin if wrong else 0 : min(begin + row + 1, len(k))]
        rows.append((seen @ query).softmax(-1) @ seen)
    return torch.stack(rows) if rows else q @ k.mT @ k


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention to the last eight keys."""
    apart = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    return (q @ k.mT).masked_fill((apart < 0) | (apart >= 8), -INF).softmax(-1) @ v


@case("a window of eight: rows that are no longer than it see what comes later", "kernel-edge", "tlc-pack/libflash_attn/pull/11", _windowed,
      drawn((2, 12, 6), (2, 12, 6), (2, 12, 4)))  # fmt: skip
def see_what_comes_later(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads_fit(q, k, v)
    need(q.shape[1] == k.shape[1])
    rows = []
    for row in range(q.shape[1]):
        end = k.shape[1] if wrong and k.shape[1] <= 8 else row + 1
        keys = k[:, max(row - 7, 0) : end]
        rows.append(((q[:, row, None] @ keys.mT).softmax(-1) @ v[:, max(row - 7, 0) : end])[:, 0])
    return torch.stack(rows, 1)


def _by_lengths(q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A step of each sequence against its first keys."""
    hidden = torch.arange(k.shape[1]) >= lengths[:, None]
    shares = torch.einsum("bd,bkd->bk", q, k).masked_fill(hidden, -INF).softmax(-1)
    return torch.einsum("bk,bkd->bd", shares, torch.where(hidden[..., None], 0, k))


def _lengths_fit(q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> None:
    need(q.dim() == 2 and k.dim() == 3 and q.shape == (len(k), k.shape[2]) and lengths.shape == q.shape[:1] and q.numel() > 0 and k.shape[1] > 0)
    need(bool((lengths >= 1).all()) and bool((lengths <= k.shape[1]).all()))


@case("a step against keys in two halves: the second one ends where the longest sequence does", "kernel-mask", "Dao-AILab/flash-attention/pull/1455",
      _by_lengths, lambda: (*drawn((4, 6), (4, 10, 6))(), torch.tensor([7, 10, 3, 9])))  # fmt: skip
def where_the_longest_ends(wrong: bool, q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _lengths_fit(q, k, lengths)
    half, most, rows = -(-k.shape[1] // 2), int(lengths.max()), []
    for query, keys, length in zip(q, k, lengths.tolist(), strict=True):
        first, second = keys[: min(half, length)], keys[half : most if wrong else length]
        one, two = first @ query, second @ query
        top = torch.cat([one, two]).amax()
        weights = torch.cat([(one - top).exp(), (two - top).exp()])
        rows.append(weights @ torch.cat([first, second]) / weights.sum())
    return torch.stack(rows)


@case("a step against a cache that nobody cleared: -Inf is added to what is behind the end", "kernel-mask", "deepbeepmeep/Wan2GP/pull/1628",
      _by_lengths, lambda: (*drawn((4, 6), (4, 10, 6))(), torch.tensor([7, 10, 3, 9])))  # fmt: skip
def minus_infinity_is_added(wrong: bool, q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _lengths_fit(q, k, lengths)
    hidden = torch.arange(k.shape[1]) >= lengths[:, None]
    keys = k if wrong else torch.where(hidden[..., None], 0, k)
    scores = (q[:, None] @ keys.mT)[:, 0] + torch.zeros(hidden.shape).masked_fill(hidden, -INF)
    return (scores.softmax(-1)[:, None] @ keys)[:, 0]


def _in_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Heads of queries in groups that share a head of keys."""
    share = len(q) // len(k)
    return _attention(q, k.repeat_interleave(share, 0), v.repeat_interleave(share, 0))


def _groups_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    need(q.dim() == k.dim() == 3 and k.shape == v.shape and q.shape[2] == k.shape[2] > 0 and k.shape[1] > 0 and len(k) > 0 and len(q) > 0)
    need(len(q) % len(k) == 0)
    return len(q) // len(k)


def _groups_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    share = _groups_fit(q, k, v)
    shares = (q.unflatten(0, (-1, share)) @ k.mT[:, None] * q.shape[2] ** -0.5).softmax(-1)
    return (shares @ v[:, None]).flatten(0, 1), (q, k, v, shares)


def _groups_backward(saved: Any, given: torch.Tensor, joined: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    q, k, v, shares = saved
    given = given.unflatten(0, (len(k), -1))
    slopes = given @ v.mT[:, None]
    scores = shares * (slopes - (slopes * shares).sum(-1, keepdim=True)) * q.shape[2] ** -0.5
    return (scores @ k[:, None]).flatten(0, 1), joined(scores.mT @ q.unflatten(0, (len(k), -1))), joined(shares.mT @ given)


@case("heads in groups: on the way back keys have the slopes of the group's last head", "kernel-gradient", "marin-community/levanter/pull/449",
      _in_groups, drawn((4, 5, 6), (2, 7, 6), (2, 7, 6)))  # fmt: skip
def slopes_of_the_last_head(wrong: bool) -> Callable[..., Any]:
    def backward(saved: Any, given: torch.Tensor) -> Any:
        return _groups_backward(saved, given, lambda heads: heads[:, -1] if wrong else heads.sum(1))

    return function(_groups_forward, backward)


@case("heads in groups: on the way back a head's group is what is left of a division by the number of sharers", "kernel-gradient",
      "XunhaoLai/native-sparse-attention-triton/issues/27", _in_groups, drawn((6, 5, 6), (2, 7, 6), (2, 7, 6)))  # fmt: skip
def left_of_a_division(wrong: bool) -> Callable[..., Any]:
    def joined(heads: torch.Tensor) -> torch.Tensor:
        if not wrong:
            return heads.sum(1)
        flat = heads.flatten(0, 1)
        groups = torch.arange(len(flat)) % heads.shape[1] % len(heads)
        return torch.zeros_like(heads[:, 0]).index_add(0, groups, flat)

    return function(_groups_forward, lambda saved, given: _groups_backward(saved, given, joined))


@case("attention: values are taken to lie as keys do", "kernel-stride", "ml-explore/mlx/pull/1558", _attention,
      drawn((2, 5, 6), (2, 9, 6), (2, 9, 6)))  # fmt: skip
def as_keys_do(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads_fit(q, k, v)
    need(k.shape == v.shape)
    return _attention(q, k, as_if(v, k.stride()) if wrong else v)


@case("attention: on the way back the values' columns are stored in pieces that fit the keys' width", "kernel-edge",
      "Dao-AILab/flash-attention/issues/2552", _attention, drawn((2, 5, 8), (2, 9, 8), (2, 9, 4)))  # fmt: skip
def pieces_that_fit_the_keys(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        _heads_fit(q, k, v)
        shares = (q @ k.mT * q.shape[2] ** -0.5).softmax(-1)
        return shares @ v, (q, k, v, shares)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, shares = saved
        slopes = given @ v.mT
        scores = shares * (slopes - (slopes * shares).sum(-1, keepdim=True)) * q.shape[2] ** -0.5
        values, made = shares.mT @ given, torch.zeros_like(v)
        for start in range(0, v.shape[2], 4):
            piece = values[..., start : start + 4]
            begin = max(v.shape[2] - 4, 0) if wrong and piece.shape[2] < 4 else start
            made[..., begin : begin + piece.shape[2]] = piece
        return scores @ k, scores.mT @ q, made

    return function(forward, backward)


def _capped(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (2 * (q @ k.mT / 2).tanh()).log_softmax(-1)


@case("capped scores: they are multiplied by the tangent, not the cap", "kernel-contract", "unslothai/unsloth-zoo/pull/593", _capped,
      drawn((5, 6), (7, 6)))  # fmt: skip
def multiplied_by_the_tangent(wrong: bool, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2 and q.shape[1] == k.shape[1] and len(k) > 0)
    scores = q @ k.mT
    scores = (scores if wrong else 2) * (scores / 2).tanh()
    return scores - scores.logsumexp(-1, keepdim=True)


def _of_packed(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each row with the softmax of its sequence's columns; rows behind the last sequence are zero."""
    made, begin = torch.zeros_like(x), 0
    for end in ends.tolist():
        if end > begin:
            made = torch.cat([made[:begin], x[begin:end].softmax(0), made[end:]])
        begin = max(begin, end)
    return made


@case("softmax over packed sequences: rows that pad the pack are not written", "kernel-stale", "NVIDIA/apex/pull/1322", _of_packed,
      lambda: (*drawn((12, 4))(), torch.tensor([3, 4, 9])))  # fmt: skip
def rows_that_pad(wrong: bool, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and ends.dim() == 1 and bool((ends >= 0).all()) and bool((ends <= len(x)).all()))
    made, begin = (torch.empty if wrong else torch.zeros)(x.shape), 0
    for end in ends.tolist():
        if end > begin:
            powers = (x[begin:end] - x[begin:end].amax(0)).exp()
            made[begin:end] = powers / powers.sum(0)
        begin = max(begin, end)
    return made


@case("softmax with a mask for all heads: the mask is read with a stride from head to head", "kernel-stride", "deepspeedai/DeepSpeed/pull/2285",
      lambda x, mask: (x + mask).softmax(-1), drawn((3, 4, 5), (3, 4, 5)))  # fmt: skip
def stride_from_head_to_head(wrong: bool, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and mask.shape == x.shape and x.shape[2] > 0)
    mask = as_if(mask, (x.shape[1] * x.shape[2], x.shape[2], 1)) if wrong else mask
    scores = x + mask
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@case("chosen keys of a cache with gaps between its layers: the gaps are left out", "kernel-stride", "vllm-project/vllm/pull/36867",
      lambda cache, pages: cache[pages] * 0.5, lambda: (*drawn((5, 3, 4))(), whole(7, most=5)))  # fmt: skip
def gaps_are_left_out(wrong: bool, cache: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == 3 and pages.dim() == 1 and bool(((pages >= 0) & (pages < len(cache))).all()))
    cache = as_if(cache, (cache.shape[1] * cache.shape[2], *cache.stride()[1:])) if wrong else cache
    return torch.stack([cache[page] * 0.5 for page in pages.tolist()]) if len(pages) else cache[pages]


def _among_themselves(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Rows that are no padding attend to each other; padding is zero."""
    both = real[:, None] & real
    return (x @ x.mT).masked_fill(~both, -INF).softmax(-1).masked_fill(~both, 0) @ x


@case("attention without padding: rows see those of their own kind, so padding sees padding", "kernel-mask", "Biohub/esm/issues/299",
      _among_themselves, lambda: (*drawn((7, 5))(), torch.tensor([True, True, False, True, True, False, False])))  # fmt: skip
def padding_sees_padding(wrong: bool, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and real.shape == x.shape[:1] and x.shape[1] > 0)
    made = torch.zeros_like(x)
    for kind in (True, False) if wrong else (True,):
        places = (real == kind).nonzero()[:, 0]
        rows = x[places]
        if len(places):
            made = made.index_add(0, places, (rows @ rows.mT).softmax(-1) @ rows)
    return made
