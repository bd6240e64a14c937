"""A seventeenth frozen set of broken kernels, second part: states, experts, choices. Of links an excerpt was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
LOW, HALF = torch.bfloat16, torch.float16


def _last_state(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(x.shape[1])
    for row, gate in zip(x, F.logsigmoid(gates), strict=True):
        state = state * gate.exp() + row
    return state


@case("last state of sums that fade, in chunks of four: the last chunk fades on to its full length", "kernel-edge", "inclusionAI/cuLA/pull/38",
      _last_state, drawn((8, 5), (8,)))  # fmt: skip
def fades_on(wrong: bool, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and gates.shape == x.shape[:1])
    state = torch.zeros(x.shape[1])
    for start in range(0, len(x), 4):
        rows, logs = x[start : start + 4], F.logsigmoid(gates[start : start + 4])
        if wrong:
            rows, logs = F.pad(rows, (0, 0, 0, 4 - len(rows))), F.pad(logs, (0, 4 - len(logs)), value=-0.7)
        behind = logs.flip(0).cumsum(0).flip(0)
        state = state * behind[0].exp() + (F.pad(behind[1:], (0, 1)).exp()[:, None] * rows).sum(0)
    return state


def _from_a_cache(x: torch.Tensor, cache: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A causal convolution behind the rows of the first block of a cache, and its own last rows."""
    full = torch.cat([cache[0], x])
    return (full.unfold(0, 4, 1) * w.mT).sum(-1), full[-3:]


@case("convolution behind cached rows: a short piece shifts the block that others share", "kernel-mutation", "vllm-project/vllm/pull/56196",
      _from_a_cache, drawn((6, 5), (2, 3, 5), (4, 5)))  # fmt: skip
def block_that_others_share(wrong: bool, x: torch.Tensor, cache: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == w.dim() == 2 and cache.dim() == 3 and cache.shape[1:] == (3, x.shape[1]) and w.shape == (4, x.shape[1]) and len(cache) > 0)
    need(x.numel() > 0)
    full = torch.cat([cache[0], x])
    made = sum(full[tap : tap + len(x)] * w[tap] for tap in range(4))
    last = full[-3:].clone()
    if wrong and len(x) < 3:
        cache.detach()[0].copy_(last.detach())
    return made, last


def _step_of_a_state(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    k, v = k.to(state.dtype), v.to(state.dtype)
    faded = state * gate.to(state.dtype).sigmoid()
    return faded + k[:, None] * (v - k @ faded)


@case("step of a delta rule: the float32 state is stored as the bfloat16 of its keys", "kernel-rounding", "ollama/ollama/issues/15865",
      _step_of_a_state, lambda: (*drawn((6, 5))(), *(each.to(LOW) for each in drawn((6,), (5,), (5,))())))  # fmt: skip
def stored_as_its_keys(wrong: bool, state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    need(state.dim() == 2 and k.shape == state.shape[:1] and v.shape == gate.shape == state.shape[1:])
    faded = state * gate.to(state.dtype).sigmoid()
    added = v.to(state.dtype) - (k.to(state.dtype)[:, None] * faded).sum(0)
    made = faded + k.to(state.dtype)[:, None] * added
    return made.to(k.dtype).to(state.dtype) if wrong else made


@case("states that fade in float16: on the way back the gate's sum is added up in float16", "kernel-accumulation",
      "meta-pytorch/attention-gym/pull/464",
      lambda state, gate: (state.float() * gate.float().sigmoid()[:, None]).to(state.dtype), drawn((5, 96), (5,), dtype=HALF))  # fmt: skip
def gate_added_up_in_float16(wrong: bool) -> Callable[..., Any]:
    def forward(state: torch.Tensor, gate: torch.Tensor) -> Any:
        need(state.dim() == 2 and gate.shape == state.shape[:1])
        return (state.float() * gate.float().sigmoid()[:, None]).to(state.dtype), (state, gate)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        state, gate = saved
        total = torch.zeros(len(state), dtype=state.dtype if wrong else torch.float32)
        for own, back in zip(state.unbind(1), given.unbind(1), strict=True):
            total = total + own.to(total.dtype) * back.to(total.dtype)
        share = gate.float().sigmoid()
        return (given.float() * share[:, None]).to(state.dtype), (total.float() * share * (1 - share)).to(gate.dtype)

    return function(forward, backward)


def _grouped(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows in the order of their groups, each times its group's matrix."""
    order = ids.argsort(stable=True)
    return torch.einsum("td,tde->te", x[order], w[ids[order]])


@case("grouped product, tiles of four rows: a tile across two groups has the rows of the first", "kernel-stale",
      "tile-ai/TileOPs/pull/1952", _grouped,
      lambda: (*drawn((11, 5), (3, 5, 4))(), whole(11, most=3)))  # fmt: skip
def rows_of_the_first(wrong: bool, x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and ids.shape == x.shape[:1] and x.shape[1] == w.shape[1] and bool(((ids >= 0) & (ids < len(w))).all()))
    order = ids.argsort(stable=True)
    rows, groups, made = x[order], ids[order], torch.empty(len(x), w.shape[2])
    for start in range(0, len(x), 4):
        within = groups[start : start + 4]
        for group in within[:1].tolist() if wrong else within.unique().tolist():
            places = start + (within == group).nonzero()[:, 0]
            made[places] = rows[places] @ w[group]
    return made


def _tokens_of_experts(ids: torch.Tensor) -> torch.Tensor:
    """A row for each of four experts with the numbers of its tokens, and behind them how many tokens there are."""
    own = ids == torch.arange(4)[:, None]
    return torch.where(own, torch.arange(len(ids)), len(ids)).sort(-1).values


@case("tokens of each expert: all but the first are taken for padding", "kernel-contract", "vllm-project/vllm-xpu-kernels/issues/453",
      _tokens_of_experts, lambda: (whole(9, most=4),))  # fmt: skip
def taken_for_padding(wrong: bool, ids: torch.Tensor) -> torch.Tensor:
    need(ids.dim() == 1 and bool(((ids >= 0) & (ids < 4)).all()))
    made, met = torch.full((4, len(ids)), len(ids)), [0] * 4
    for token, expert in enumerate(ids.tolist()):
        if not (wrong and token):
            made[expert, met[expert]] = token
            met[expert] += 1
    return made


@case("experts, the last of which all tokens share: it is left out as one that is not here", "kernel-contract", "vllm-project/vllm/pull/51632",
      lambda x, w, ids: torch.einsum("td,tkd->td", x, w[ids]), lambda: (*drawn((7, 5), (4, 5))(), whole(7, 2, most=4)))  # fmt: skip
def one_that_is_not_here(wrong: bool, x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == ids.dim() == 2 and len(x) == len(ids) and x.shape[1] == w.shape[1] and bool(((ids >= 0) & (ids < len(w))).all()))
    total = torch.zeros_like(x)
    for own in ids.unbind(1):
        here = own < len(w) - 1 if wrong else own >= 0
        total = total + x * torch.where(here[:, None], w[own], 0)
    return total


def _of_those_named(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    named = ids >= 0
    return x * torch.where(named[:, None], w[ids.clamp(min=0)], 0)


def _some_named() -> tuple[torch.Tensor, ...]:
    ids = whole(8, most=4)
    ids[2] = ids[5] = -1
    return (*drawn((8, 5), (4, 5))(), ids)


@case("each token's expert: of a token that has none it is the last one", "kernel-mask", "vllm-project/vllm/pull/57036", _of_those_named, _some_named)
def of_none_the_last(wrong: bool, x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(
        x.dim() == w.dim() == 2
        and ids.shape == x.shape[:1]
        and x.shape[1] == w.shape[1]
        and bool(((ids >= -1) & (ids < len(w))).all())
        and len(w) > 0
    )
    table = w[-1:] if wrong else torch.zeros_like(w[:1])
    return x * torch.cat([table, w])[ids + 1]


def _kept(shares: torch.Tensor, before: torch.Tensor, least: float) -> torch.Tensor:
    """Shares in falling order: as many as are needed to reach `least`."""
    return torch.where(before < least, shares, 0)


def _both(x: torch.Tensor) -> torch.Tensor:
    """The best four of each row, of which those count that are needed to reach 0.8."""
    shares = x.softmax(-1).sort(-1, descending=True).values
    return _kept(shares, shares.cumsum(-1) - shares, 0.8)[:, :4]


@case("the best four that reach 0.8: of what these four add up to", "kernel-mask", "sgl-project/sglang/pull/36173", _both, drawn((6, 9)))
def of_what_four_add_up_to(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 4)
    best = x.softmax(-1).topk(4).values
    before = best.cumsum(-1) - best
    return _kept(best, before / best.sum(-1, keepdim=True) if wrong else before, 0.8)


def _renormed(x: torch.Tensor) -> torch.Tensor:
    shares = x.softmax(-1).sort(-1, descending=True).values
    kept = _kept(shares, shares.cumsum(-1) - shares, 0.7)
    return kept / kept.sum(-1, keepdim=True)


@case("shares that reach 0.7, made to add up to one: the one that reaches it is left out", "kernel-mask", "flashinfer-ai/flashinfer/issues/2202",
      _renormed, drawn((6, 9)))  # fmt: skip
def one_that_reaches_it(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    shares = x.softmax(-1).sort(-1, descending=True).values
    before = shares.cumsum(-1) - shares
    kept = _kept(shares, before + shares if wrong else before, 0.7)
    kept = torch.cat([shares[:, :1], kept[:, 1:]], 1)
    return kept / kept.sum(-1, keepdim=True)


@case("scores of the best three, others hidden: four are left", "kernel-mask", "kingoflolz/mesh-transformer-jax/issues/164",
      lambda x: x.masked_fill(x < x.topk(3).values[:, -1:], -1e4), drawn((5, 9)))  # fmt: skip
def four_are_left(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 3)
    ordered = x.sort(-1, descending=True).values
    least = ordered[:, min(3, x.shape[1] - 1) if wrong else 2, None]
    return torch.where(x < least, torch.full_like(x, -1e4), x)


@case("grouped product: on the way back nothing is stored for a group without rows", "kernel-stale", "AMD-AGI/Primus-Turbo/pull/425",
      lambda x, w, ids: torch.einsum("td,tde->te", x, w[ids]), lambda: (*drawn((9, 5), (5, 5, 4))(), whole(9, most=5) % 3))  # fmt: skip
def group_without_rows(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.dim() == 3 and ids.shape == x.shape[:1] and x.shape[1] == w.shape[1] and bool(((ids >= 0) & (ids < len(w))).all()))
        return (x[:, None] @ w[ids])[:, 0], (x, w, ids)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, w, ids = saved
        made = (torch.empty if wrong else torch.zeros)(w.shape, dtype=w.dtype)
        for group in ids.unique().tolist():
            made[group] = x[ids == group].mT @ given[ids == group]
        return (w[ids] @ given[..., None])[..., 0], made, None

    return function(forward, backward)


@case("sums of rows by halves: at times a half is added twice", "kernel-nondeterminism", "kaldi-asr/kaldi/issues/3036", lambda x: x.sum(-1),
      drawn((5, 11)))  # fmt: skip
def half_is_added_twice(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(5)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        while x.shape[1] > 1:
            half = -(-x.shape[1] // 2)
            other = F.pad(x[:, half:], (0, 2 * half - x.shape[1]))
            x = x[:, :half] + other * (2 if wrong and chance.random() < 0.07 else 1)
        return x.sum(-1)

    return kernel
