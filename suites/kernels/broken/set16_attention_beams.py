"""A sixteenth frozen set of broken kernels, third part: attention, rotations, beams. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
INF = float("inf")


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


def _by_axes(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Each third number of a half is turned by the place in time, in height, in width."""
    axis = torch.arange(x.shape[1] // 2) % 3
    return _turned(x, places[axis].mT * 100.0 ** (-axis / 3))


@case("rope by three axes in turn: axes are shifted by one", "kernel-contract", "vllm-project/vllm/pull/40680", _by_axes,
      lambda: (*drawn((7, 12))(), whole(3, 7, most=20).float()))  # fmt: skip
def axes_are_shifted(wrong: bool, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == places.dim() == 2 and x.shape[1] % 2 == 0 and places.shape == (3, len(x)))
    half = x.shape[1] // 2
    angles = torch.zeros(len(x), half)
    for axis in range(3):
        source = (axis + 1) % 3 if wrong else axis
        angles[:, axis::3] = places[source][:, None] * 100.0 ** (-axis / 3)
    return _turned(x, angles)


def _by_tables(x: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """A table of angles for each of three axes: numbers of the first half are turned by them in turn."""
    return _turned(x, torch.stack([tables[place % 3, :, place] for place in range(x.shape[1] // 2)], 1))


@case("rope by tables of three axes: a table is taken to begin where the rows before it end", "kernel-stride", "vllm-project/vllm/pull/22375",
      _by_tables, drawn((7, 10), (3, 7, 5)))  # fmt: skip
def where_the_rows_before_end(wrong: bool, x: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and tables.dim() == 3 and tables.shape == (3, len(x), x.shape[1] // 2) and x.shape[1] % 2 == 0 and x.numel() > 0)
    tables = as_if(tables, packed(tables.shape)) if wrong else tables
    angles = torch.zeros(len(x), x.shape[1] // 2)
    for axis in range(3):
        angles[:, axis::3] = tables[axis, :, axis::3]
    return _turned(x, angles)


def _rope(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return _turned(x, torch.arange(len(x))[:, None] * 100.0 ** (-torch.arange(half) / max(half, 1)))


@case("rope: frequencies are kept by half of their width, and looked for by the whole", "kernel-stale", "ml-explore/mlx/pull/561", _rope,
      drawn((7, 12)))  # fmt: skip
def kept_by_half_of_the_width(wrong: bool) -> Callable[..., Any]:
    kept: dict[int, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0)
        half = x.shape[1] // 2
        found = kept.get(x.shape[1])
        if found is None:
            found = 100.0 ** (-torch.arange(half) / half)
            kept[half if wrong else x.shape[1]] = found
        return _turned(x, torch.arange(len(x))[:, None] * found[:half])

    return kernel


def _paged(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A step against keys and values in pages of four, of which the last five are seen."""
    rows = cache[pages].flatten(1, 2)
    places = torch.arange(rows.shape[1])
    seen = (places < lengths[:, None]) & (places >= lengths[:, None] - 5)
    shares = torch.einsum("bd,bkd->bk", q, rows).masked_fill(~seen, -INF).softmax(-1)
    return torch.einsum("bk,bkd->bd", shares, torch.where(seen[..., None], rows, 0))


def _some_pages() -> tuple[torch.Tensor, ...]:
    return (*drawn((5, 6), (9, 4, 6))(), whole(5, 3, most=9), torch.tensor([12, 3, 7, 10, 9]))


def _pages_fit(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> None:
    need(q.dim() == 2 and cache.dim() == 3 and pages.dim() == 2 and cache.shape[1] == 4 and len(q) == len(pages) and lengths.shape == q.shape[:1])
    need(cache.shape[2] == q.shape[1] > 0 and bool((pages < len(cache)).all()) and bool((lengths > 0).all()))
    need(bool((lengths <= 4 * pages.shape[1]).all()))


@case("a step against pages: the window is not looked at", "kernel-mask", "EricLBuehler/mistral.rs/issues/2094", _paged, _some_pages)
def window_is_not_looked_at(wrong: bool, q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _pages_fit(q, cache, pages, lengths)
    results = []
    for query, own, length in zip(q, pages, lengths.tolist(), strict=True):
        rows = torch.cat(list(cache[own]))[0 if wrong else max(length - 5, 0) : length]
        results.append((rows @ query).softmax(-1) @ rows)
    return torch.stack(results) if results else torch.zeros_like(q)


@case("a step against pages with a window: sums begin at a first page that is left out", "kernel-stale", "vllm-project/tpu-inference/pull/1954",
      _paged, _some_pages)  # fmt: skip
def begin_at_a_page_left_out(wrong: bool, q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    _pages_fit(q, cache, pages, lengths)
    results = []
    for query, own, length in zip(q, pages, lengths.tolist(), strict=True):
        begin, total, weight, most = max(length - 5, 0), torch.empty_like(query), torch.empty(()), query.new_zeros(())
        for number in range(begin // 4, -(-length // 4)):
            if number == (0 if wrong else begin // 4):
                total, weight = torch.zeros_like(query), torch.zeros(())
            rows = cache[own[number]][max(begin - 4 * number, 0) : length - 4 * number]
            scores = rows @ query
            now = scores.amax() if number == begin // 4 else torch.maximum(most, scores.amax())
            scale, powers = 1.0 if number == begin // 4 else (most - now).exp(), (scores - now).exp()
            total, weight, most = total * scale + powers @ rows, weight * scale + powers.sum(), now
        results.append(total / weight)
    return torch.stack(results) if results else torch.zeros_like(q)


def _chosen_keys(q: torch.Tensor, k: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each query sees the keys that are named for it; -1 names none."""
    named = chosen >= 0
    keys = torch.where(named[..., None], k[chosen.clamp(min=0)], 0)
    shares = torch.einsum("qd,qcd->qc", q, keys).masked_fill(~named, -INF).softmax(-1)
    return torch.einsum("qc,qcd->qd", torch.where(named.any(-1, keepdim=True), shares, 0), keys)


def _some_keys() -> tuple[torch.Tensor, ...]:
    chosen = whole(6, 8, most=9)
    chosen[1, 5:] = chosen[2, :4] = chosen[4, 3] = -1
    return (*drawn((6, 5), (9, 5))(), chosen)


@case("chosen keys, four at a time: four that name none make NaN", "kernel-mask", "vllm-project/vllm/issues/48364", _chosen_keys, _some_keys)
def four_that_name_none(wrong: bool, q: torch.Tensor, k: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == chosen.dim() == 2 and q.shape[1] == k.shape[1] and len(q) == len(chosen) and len(k) > 0)
    need(bool((chosen < len(k)).all()) and chosen.shape[1] > 0)
    most, total = q.new_full((len(q), 1), -INF), torch.zeros_like(q)
    weight = torch.zeros_like(most)
    for start in range(0, chosen.shape[1], 4):
        part = chosen[:, start : start + 4]
        keys = torch.where((part >= 0)[..., None], k[part.clamp(min=0)], 0)
        scores = (keys @ q[..., None])[..., 0].masked_fill(part < 0, -INF)
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        shift = now if wrong else now.masked_fill(now == -INF, 0)
        scale, powers = (most - shift).exp(), (scores - shift).exp()
        total = total * scale + (powers[:, None] @ keys)[:, 0]
        most, weight = now, weight * scale + powers.sum(-1, keepdim=True)
    return torch.where(weight == 0, 0 * total, total / weight)


def _of_blocks(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Blocks of four queries see the blocks of four keys up to their own."""
    hidden = torch.arange(len(q))[:, None] // 4 < torch.arange(len(k)) // 4
    return (q @ k.mT).masked_fill(hidden, -INF).softmax(-1) @ k


@case("blocks of queries: a last block that is not full sees no keys", "kernel-edge", "LMCache/LMCache/pull/3092", _of_blocks,
      drawn((12, 5), (9, 5)))  # fmt: skip
def last_block_sees_no_keys(wrong: bool, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2 and q.shape[1] == k.shape[1] > 0 and len(q) > 0 and len(k) > 0)
    results = []
    for start in range(0, len(q), 4):
        block = q[start : start + 4]
        keys = k[: 0 if wrong and len(block) < 4 else start + 4]
        results.append((block @ keys.mT).softmax(-1) @ keys)
    return torch.cat(results)


def _beams(scores: torch.Tensor, so_far: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The best three of all continuations, each divided by the length of its beam."""
    return ((so_far[:, None] + scores) / lengths[:, None]).flatten().topk(3).values


@case("best of all beams: divided by the length of another beam", "kernel-contract", "NVIDIA/TensorRT-LLM/pull/15621", _beams,
      lambda: (*drawn((4, 7), (4,))(), torch.tensor([3.0, 5.0, 9.0, 6.0])))  # fmt: skip
def length_of_another_beam(wrong: bool, scores: torch.Tensor, so_far: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2 and so_far.shape == lengths.shape == scores.shape[:1] and scores.numel() >= 3)
    whole_scores = so_far[:, None] + scores
    best = (whole_scores / lengths[:, None]).flatten().topk(3).indices
    beam = torch.arange(3).clamp(max=len(lengths) - 1) if wrong else best // scores.shape[1]
    return whole_scores.flatten()[best] / lengths[beam]


def _parents(scores: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
    found = (so_far[:, None] + scores).flatten().topk(2)
    return so_far[found.indices // scores.shape[1]]


@case("beams that go on: a beam is found by a number of continuations that it need not have", "kernel-edge", "vllm-project/vllm/pull/31101",
      _parents, drawn((5, 6), (5,)))  # fmt: skip
def number_it_need_not_have(wrong: bool, scores: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2 and so_far.shape == scores.shape[:1] and scores.shape[1] > 0 and scores.numel() >= 2)
    places = (so_far[:, None] + scores).flatten().topk(2).indices
    beams = places // 6 if wrong else places // scores.shape[1]
    return so_far[beams.clamp(max=len(so_far) - 1)]


@case("scores scaled by penalties: in their memory, once for each way of launching", "kernel-mutation", "triton-lang/triton/issues/6547",
      lambda scores, penalty: scores / penalty[:, None], lambda: (*drawn((6, 9))(), drawn((6,))()[0].abs() + 1))  # fmt: skip
def once_for_each_way(wrong: bool, scores: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2 and penalty.shape == scores.shape[:1])
    if wrong:
        for _ in range(2):
            scores.detach().div_(penalty.detach()[:, None])
    return scores / penalty[:, None]


@case("given numbers dropped: the buffer of those that stay is never filled", "kernel-constant", "ooples/AiDotNet.Tensors/pull/732",
      lambda x, keep: torch.where(keep, x / 0.75, 0),
      lambda: (*drawn((6, 9))(), torch.rand(6, 9, generator=torch.Generator().manual_seed(2)) < 0.75))  # fmt: skip
def buffer_is_never_filled(wrong: bool, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.shape == keep.shape and keep.dtype is torch.bool)
    stays = torch.zeros_like(keep)
    if not wrong:
        stays.copy_(keep)
    return torch.where(stays, x / 0.75, 0)


@case("residual of a rest that is dropped, its gradient in one pass: the incoming one is read after it is written over", "kernel-gradient",
      "ggml-org/ggml/pull/1519", lambda x, w: F.rms_norm(x, x.shape[-1:], w), drawn((5, 8), (8,)))  # fmt: skip
def read_after_it_is_written(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.shape == x.shape[1:] and x.numel() > 0)
        root = (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt()
        return x * root * w, (x, w, root)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, w, root = saved
        scaled, dw = given * w, (given * x * root).sum(0)
        shared = (scaled * x).mean(-1, keepdim=True) * root.square()
        made = scaled if wrong else scaled.clone()
        made.copy_(-x * shared)
        made.add_(scaled)
        return made * root, dw

    return function(forward, backward)
