"""A seventeenth frozen set of broken kernels, first part: attention. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
INF = float("inf")


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _heads_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    need(q.dim() == k.dim() == v.dim() == 3 and len(q) == len(k) and k.shape == v.shape and q.shape[2] == k.shape[2] > 0 and k.shape[1] > 0)


@case("attention, keys in parts: the largest score begins at -50000", "kernel-rounding", "flashinfer-ai/flashinfer/issues/4267", _attention,
      drawn((2, 5, 6), (2, 9, 6), (2, 9, 6)))  # fmt: skip
def begins_at_a_number(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads_fit(q, k, v)
    most = q.new_full((*q.shape[:2], 1), -5e4 if wrong else -INF)
    weight, total = torch.zeros_like(most), torch.zeros_like(q)
    for start in range(0, k.shape[1], 4):
        scores = q @ k[:, start : start + 4].mT * q.shape[2] ** -0.5
        now = torch.maximum(most, scores.amax(-1, keepdim=True))
        shift = now.masked_fill(now == -INF, 0)
        scale, powers = (most - shift).exp(), (scores - shift).exp()
        total, weight, most = total * scale + powers @ v[:, start : start + 4], weight * scale + powers.sum(-1, keepdim=True), now
    return torch.where(weight == 0, 0 * total, total / weight) if wrong else total / weight


@case("attention: on the way back the sum over a row reads the incoming gradient as if packed", "kernel-stride", "flagos-ai/FlagAttention/pull/1",
      _attention, drawn((2, 5, 6), (2, 9, 6), (2, 9, 6)))  # fmt: skip
def sum_as_if_packed(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        _heads_fit(q, k, v)
        shares = (q @ k.mT * q.shape[2] ** -0.5).softmax(-1)
        return shares @ v, (q, k, v, shares)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, shares = saved
        read = as_if(given, packed(given.shape)) if wrong else given
        row = (shares @ v * read).sum(-1, keepdim=True)
        scores = shares * (given @ v.mT - row) * q.shape[2] ** -0.5
        return scores @ k, scores.mT @ q, shares.mT @ given

    return function(forward, backward)


@case("attention, rows before heads: strides of the queries are computed from sizes", "kernel-stride", "Dao-AILab/flash-attention/pull/2670",
      lambda q, k: _attention(q.transpose(0, 1), k.transpose(0, 1), k.transpose(0, 1)).transpose(0, 1), drawn((5, 2, 6), (9, 2, 6)))  # fmt: skip
def strides_from_sizes(wrong: bool, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 3 and q.shape[1:] == k.shape[1:] and q.shape[2] > 0 and len(k) > 0)
    q = as_if(q, packed(q.shape)) if wrong else q
    made = torch.zeros(q.shape, dtype=q.dtype)
    for head in range(q.shape[1]):
        made[:, head] = (q[:, head] @ k[:, head].mT * q.shape[2] ** -0.5).softmax(-1) @ k[:, head]
    return made


def _sums_of_scores(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The logarithm of what the first scores of a sequence add up to: a row for each head, with all rows of all sequences."""
    hidden = torch.arange(scores.shape[3]) >= seen[:, None, None, None]
    return scores.masked_fill(hidden, -INF).logsumexp(-1).transpose(0, 1).flatten(1)


@case("logarithms of sums, heads first: of a sequence without keys it is stored where it would lie with sequences first", "kernel-mask",
      "Dao-AILab/flash-attention/issues/2842", _sums_of_scores, lambda: (*drawn((4, 2, 3, 7))(), torch.tensor([5, 0, 7, 2])))  # fmt: skip
def stored_with_sequences_first(wrong: bool, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 4 and seen.shape == scores.shape[:1] and bool((seen >= 0).all()) and bool((seen <= scores.shape[3]).all()))
    sequences, heads, rows = scores.shape[:3]
    made = torch.empty(sequences * heads * rows)
    for sequence, count in enumerate(seen.tolist()):
        for head in range(heads):
            begin = (head * sequences + sequence) * rows
            if not count:
                begin = (sequence * heads + head) * rows if wrong else begin
                made[begin : begin + rows] = -INF
            else:
                made[begin : begin + rows] = scores[sequence, head, :, :count].logsumexp(-1)
    return made.view(heads, sequences * rows)


@case("a step against keys in parts: the logarithm of a part's sum is stored only where it was asked for", "kernel-stale",
      "flashinfer-ai/flashinfer/pull/50", _attention, drawn((5, 6), (20, 6), (20, 6)))  # fmt: skip
def only_where_asked_for(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and k.shape == v.shape and q.shape[1] == k.shape[1] > 0 and len(k) > 0)
    parts = -(-len(k) // 8)
    sums, results = torch.empty(parts, len(q)), torch.empty(parts, *q.shape)
    for part in range(parts):
        keys, values = k[8 * part : 8 * part + 8], v[8 * part : 8 * part + 8]
        scores = q @ keys.mT * q.shape[1] ** -0.5
        results[part] = scores.softmax(-1) @ values if parts == 1 or not bool((scores == -INF).all(-1).any()) else _shown(scores) @ values
        if not wrong:
            sums[part] = scores.logsumexp(-1)
    return (sums.softmax(0)[..., None] * results).sum(0) if parts > 1 else results[0]


def _shown(scores: torch.Tensor) -> torch.Tensor:
    """Shares of each row, zero where it has nothing but -Inf."""
    return torch.where((scores == -INF).all(-1, keepdim=True), 0, scores.softmax(-1))


def _some_codes() -> tuple[torch.Tensor, ...]:
    return (
        *drawn((5, 6))(),
        whole(9, 6, most=8, least=-7).float(),
        whole(9, 6, most=8, least=-7, seed=4).float(),
        torch.tensor(0.3),
        torch.tensor(0.7),
    )


def _of_codes(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, key_scale: torch.Tensor, value_scale: torch.Tensor) -> torch.Tensor:
    return _attention(q, keys * key_scale, values * value_scale)


def _codes_fit(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, key_scale: torch.Tensor, value_scale: torch.Tensor) -> None:
    need(q.dim() == keys.dim() == 2 and keys.shape == values.shape and q.shape[1] == keys.shape[1] > 0 and len(keys) > 0)
    need(key_scale.dim() == value_scale.dim() == 0)


@case("attention to codes: the scale of the keys is left out", "kernel-contract", "vllm-project/vllm/pull/42580", _of_codes, _some_codes)
def scale_of_the_keys(wrong: bool, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, key_scale: torch.Tensor, value_scale: torch.Tensor
                      ) -> torch.Tensor:  # fmt: skip
    _codes_fit(q, keys, values, key_scale, value_scale)
    scores = q @ keys.mT * q.shape[1] ** -0.5
    return ((scores if wrong else scores * key_scale).softmax(-1) @ values) * value_scale


@case("attention to codes: values have the scale of the keys", "kernel-contract", "sgl-project/sglang/pull/26852", _of_codes, _some_codes)
def values_with_the_scale_of_keys(wrong: bool, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, key_scale: torch.Tensor,
                                  value_scale: torch.Tensor) -> torch.Tensor:  # fmt: skip
    _codes_fit(q, keys, values, key_scale, value_scale)
    return (q @ (keys * key_scale).mT * q.shape[1] ** -0.5).softmax(-1) @ (values * (key_scale if wrong else value_scale))


@case("pages with a scale for each head: scales are counted heads first", "kernel-contract", "ROCm/aiter/pull/3894",
      lambda codes, scales: codes * scales[..., None], drawn((4, 3, 6), (4, 3)))  # fmt: skip
def counted_heads_first(wrong: bool, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 3 and scales.shape == codes.shape[:2])
    pages, heads = torch.arange(codes.shape[0])[:, None], torch.arange(codes.shape[1])
    places = heads * codes.shape[0] + pages if wrong else pages * codes.shape[1] + heads
    return codes * scales.flatten()[places][..., None]


def _joined(sums: torch.Tensor, most: torch.Tensor, weight: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Parts of attention joined; of each row the first parts were used."""
    alive = torch.arange(len(sums))[:, None] < used
    scale = torch.where(alive, (most - most.masked_fill(~alive, -INF).amax(0)).exp(), 0)
    weights = torch.where(alive, weight.abs() + 0.5, 0)
    return (torch.where(alive[..., None], sums, 0) * scale[..., None]).sum(0) / (weights * scale).sum(0)[:, None]


@case("parts of attention joined: sums that no key was added to are multiplied by zero", "kernel-mask", "InternLM/lmdeploy/pull/4696", _joined,
      lambda: (*drawn((4, 5, 6), (4, 5), (4, 5))(), torch.tensor([1, 4, 2, 3, 4])))  # fmt: skip
def multiplied_by_zero(wrong: bool, sums: torch.Tensor, most: torch.Tensor, weight: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    need(sums.dim() == 3 and most.shape == weight.shape == sums.shape[:2] and used.shape == sums.shape[1:2])
    need(bool((used >= 1).all()) and bool((used <= len(sums)).all()) and sums.numel() > 0)
    rows = []
    for row, count in enumerate(used.tolist()):
        own = most[:count, row]
        powers = (own - own.amax()).exp()
        below = (powers * (weight[:count, row].abs() + 0.5)).sum()
        above = F.pad(powers, (0, len(sums) - count)) @ sums[:, row] if wrong else powers @ sums[:count, row]
        rows.append(above / below)
    return torch.stack(rows)


def _with_a_sink(q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A step of each sequence against its first keys, and a sink that takes a share."""
    hidden = torch.arange(k.shape[1]) >= lengths[:, None]
    scores = torch.einsum("bd,bkd->bk", q, k).masked_fill(hidden, -INF)
    shares = torch.cat([scores, sink[:, None]], 1).softmax(-1)[:, :-1]
    return torch.einsum("bk,bkd->bd", shares, torch.where(hidden[..., None], 0, k))


@case("a step with a sink, keys in parts of four: a part without keys has the sink once more", "kernel-mask", "ROCm/rocm-libraries/pull/12229",
      _with_a_sink, lambda: (*drawn((5, 6), (5, 12, 6), (5,))(), torch.tensor([3, 12, 9, 6, 1])))  # fmt: skip
def sink_once_more(wrong: bool, q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and k.dim() == 3 and q.shape == (len(k), k.shape[2]) and sink.shape == lengths.shape == q.shape[:1] and k.shape[1] > 0)
    need(bool((lengths >= 1).all()) and bool((lengths <= k.shape[1]).all()) and q.numel() > 0)
    rows = []
    for query, keys, own, length in zip(q, k, sink, lengths.tolist(), strict=True):
        most, weight, total = own, torch.ones(()), torch.zeros_like(query)
        for start in range(0, len(keys), 4):
            part = keys[start : min(start + 4, length)]
            if start >= length:
                weight = weight + (own - most).exp() if wrong else weight
                continue
            scores = part @ query
            now = torch.maximum(most, scores.amax())
            shift = now.masked_fill(now == -INF, 0)
            scale, powers = (most - shift).exp(), (scores - shift).exp()
            total, weight, most = total * scale + powers @ part, weight * scale + powers.sum(), now
        rows.append(total / weight)
    return torch.stack(rows)


@case("codes of four by four blocks: scales of values are read across", "kernel-contract", "vllm-project/vllm/pull/55976",
      lambda codes, scales: codes * scales.repeat_interleave(2, 1), drawn((8, 8), (8, 4)))  # fmt: skip
def read_across(wrong: bool, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == scales.dim() == 2 and codes.shape == (len(scales), 2 * scales.shape[1]) and len(codes) % 4 == scales.shape[1] % 4 == 0)
    if wrong:
        tiles = scales.unflatten(0, (-1, 4)).unflatten(2, (-1, 4))
        scales = tiles.transpose(1, 3).reshape(scales.shape)
    return (codes.unflatten(1, (-1, 2)) * scales[..., None]).flatten(1)


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention of heads whose weights are positive, divided by what they add up to."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ k.mT).tril() @ v / (q * k.cumsum(1)).sum(-1, keepdim=True)


@case("linear attention: keys are added up over the heads", "kernel-contract", "fla-org/flash-linear-attention/issues/850", _linear,
      drawn((3, 7, 4), (3, 7, 4), (3, 7, 5)))  # fmt: skip
def added_up_over_heads(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3 and q.shape == k.shape and v.shape[:2] == q.shape[:2] and q.numel() > 0)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    keys, state, rows = k.cumsum(0 if wrong else 1), q.new_zeros(len(q), q.shape[2], v.shape[2]), []
    for place in range(q.shape[1]):
        state = state + k[:, place, :, None] * v[:, place, None]
        rows.append((q[:, place, None] @ state)[:, 0] / (q[:, place] * keys[:, place]).sum(-1, keepdim=True))
    return torch.stack(rows, 1)


@case("softmax with a bias for each pair: on the way back a gradient that is turned stops it", "kernel-stride", "NVIDIA/cuEquivariance/issues/177",
      lambda scores, bias: (scores + bias).softmax(-1), drawn((3, 4, 5), (4, 5)))  # fmt: skip
def turned_gradient_stops_it(wrong: bool) -> Callable[..., Any]:
    def forward(scores: torch.Tensor, bias: torch.Tensor) -> Any:
        need(scores.dim() == 3 and bias.shape == scores.shape[1:] and scores.shape[2] > 0)
        shares = (scores + bias).softmax(-1)
        return shares, (shares,)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        (shares,) = saved
        rows = (given.view if wrong else given.reshape)(-1, given.shape[2])
        flat = shares.reshape(rows.shape)
        made = (flat * (rows - (flat * rows).sum(-1, keepdim=True))).view(shares.shape)
        return made, made.sum(0)

    return function(forward, backward)
