"""A twenty-first frozen set of broken kernels, second part: heads, masks, products, codes, tokens. Of links an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
INF = float("inf")


def _in_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one query for each head; heads of a group share keys and values."""
    need(q.dim() == 2, k.dim() == 3, k.shape == v.shape, q.shape[1] == k.shape[2], len(k) > 0, len(q) % len(k) == 0, k.shape[1] > 0)
    return _heads(q, k, v, torch.arange(len(q)) // max(len(q) // len(k), 1))


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    scores = (k[group] @ q[:, :, None]).squeeze(2) * q.shape[1] ** -0.5
    return (scores.softmax(1)[:, None] @ v[group]).squeeze(1)


@case("heads in groups, four heads at a time: all four read the group of the first", "kernel-edge", "FlashML-org/FreeToken/pull/177",
      _in_groups, drawn((8, 4), (2, 5, 4), (2, 5, 4)))  # fmt: skip
def four_read_the_group_of_the_first(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 3, k.shape == v.shape, q.shape[1] == k.shape[2], len(k) > 0, len(q) % len(k) == 0, k.shape[1] > 0)
    head = torch.arange(len(q))
    return _heads(q, k, v, (head // 4 * 4 if wrong else head).div(max(len(q) // len(k), 1), rounding_mode="floor"))


@case("heads in groups, in another order: the stride is the size of a group", "kernel-stale", "HazyResearch/HipKittens/pull/22",
      _in_groups, drawn((6, 4), (3, 5, 4), (3, 5, 4)))  # fmt: skip
def stride_is_the_size_of_a_group(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    whole_result = _in_groups(q, k, v)
    size, groups = max(len(q) // len(k), 1), len(k)
    out = torch.empty_like(whole_result)
    for block in range(len(q)):
        head = block % size * size + block // size if wrong else block % groups * size + block // groups
        if head < len(q):
            out[head] = whole_result[head]
    return out


@case("products of a matrix that is the same for all of a batch: folded into one", "kernel-stride", "huggingface/candle/pull/3960",
      torch.bmm, drawn((3, 4, 5), (3, 5, 6)))  # fmt: skip
def folded_into_one(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 3, len(a) == len(b), a.shape[2] == b.shape[1])
    if wrong and len(a) > 1 and a.stride(0) == 0 and a.numel() and b.numel():
        return (a[0] @ b.reshape(b.shape[1], -1)).reshape(a.shape[1], len(a), -1).transpose(0, 1)
    return torch.stack([x @ y for x, y in zip(a, b, strict=True)]) if len(a) else a.new_zeros(0, a.shape[1], b.shape[2])


@case("product: on the way back a gradient that is one number everywhere counts once", "kernel-stride", "tinygrad/tinygrad/pull/3303",
      torch.mm, drawn((4, 5), (5, 6)))  # fmt: skip
def one_number_counts_once(wrong: bool) -> Any:
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[0])
        return a @ b, (a, b)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, b = saved
        if wrong and g.numel() > 1 and not any(g.stride()):
            return (g[:, :1] * b[:, :1].T).contiguous(), (a[:1].T * g[:1]).contiguous()
        return g @ b.T, a.T @ g

    return function(forward, backward)


@case("shares of all that reach the third: of equal ones three alone", "kernel-contract", "sgl-project/sglang/pull/33539",
      lambda x: torch.where(x >= x.topk(3, -1).values[..., -1:], x, 0), lambda: (drawn((5, 8))()[0].softmax(-1),))  # fmt: skip
def of_equal_ones_three(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 3)
    best = x.topk(3, -1)
    if wrong:
        return torch.zeros_like(x).scatter(1, best.indices, best.values)
    return torch.where(x < best.values[:, 2:], 0, x)


def _blocks(experts: torch.Tensor, filled: int = -1) -> torch.Tensor:
    """The expert of each block of four tokens, where each of five experts begins a block of its own; -1 for blocks that nobody needs."""
    counts = torch.stack([(experts == each).sum() for each in range(5)])
    ends = ((counts + 3) // 4).cumsum(0)
    block = torch.arange(experts.numel() + 5)
    found = (block[:, None] >= ends).sum(1)
    return torch.where(found < 5, found, filled)


@case("the expert of each block: blocks that nobody needs are the first expert's", "kernel-contract", "vllm-project/vllm/pull/35161",
      _blocks, lambda: (whole(7, 2, most=5),))  # fmt: skip
def those_that_nobody_needs(wrong: bool, experts: torch.Tensor) -> torch.Tensor:
    need(experts.numel() == 0 or 0 <= int(experts.min()) <= int(experts.max()) < 5)
    return _blocks(experts, 0 if wrong else -1)


@case("sums of rows without a token each: at times another row's memory lacks it too", "kernel-nondeterminism", "vllm-project/vllm/pull/23829",
      lambda x, tokens: x.scatter(1, tokens[:, None], 0).sum(1), lambda: (*drawn((6, 7))(), whole(6, most=7)))  # fmt: skip
def another_rows_memory(wrong: bool, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, tokens.shape == x.shape[:1], x.shape[1] > 0, bool(((tokens >= 0) & (tokens < x.shape[1])).all()))
    hidden = F.one_hot(tokens, x.shape[1]).bool()
    if wrong and random.random() < 0.3:
        hidden = hidden | hidden.roll(1, 0)
    return x.masked_fill(hidden, 0).sum(1)


def _scales(codes: torch.Tensor, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, small.shape == codes.shape[:1], large.dim() == 1, len(large) > 0, len(small) % len(large) == 0)
    return (small.view(len(large), -1) * large[:, None]).reshape(-1, 1) * codes


@case("codes whose scales are codes: the scales of scales go from one to the next in turn", "kernel-contract", "NVIDIA/Model-Optimizer/pull/2421",
      _scales, lambda: (*(each.round() for each in drawn((8, 4), (8,))()), drawn((2,))()[0].abs() + 0.5))  # fmt: skip
def one_after_the_other(wrong: bool, codes: torch.Tensor, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, small.shape == codes.shape[:1], large.dim() == 1, len(large) > 0, len(small) % len(large) == 0)
    times = len(small) // len(large)
    return codes * (small * (large.repeat(times) if wrong else large.repeat_interleave(times)))[:, None]


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], -1).flatten(1).float() - 8


@case("four bits in groups of four columns: each group reads the first one's codes", "kernel-contract", "1bit-MONSTER/1bit-MONSTER/issues/153",
      lambda packed, scale: _nibbles(packed) * scale[:, None], lambda: (whole(5, 4, most=256), drawn((5,))()[0].abs() + 0.5))  # fmt: skip
def reads_the_first_ones(wrong: bool, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(packed.dim() == 2, scale.shape == packed.shape[:1], packed.numel() == 0 or 0 <= int(packed.min()) <= int(packed.max()) < 256)
    column = torch.arange(2 * packed.shape[1])
    byte = (column % 4 if wrong else column) // 2
    return ((packed[:, byte] >> (column % 2 * 4) & 15) - 8).float() * scale[:, None]


@case("four bits between a row's least and largest: lanes behind the row hold zero", "kernel-edge", "InternLM/lmdeploy/pull/4850",
      lambda x: (x.amax(1) - x.amin(1)) / 15, lambda: (torch.rand(5, 8, generator=torch.Generator().manual_seed(2)) + 1,))  # fmt: skip
def lanes_hold_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    width = 1 << (x.shape[1] - 1).bit_length()
    padded = F.pad(x, (0, width - x.shape[1])) if wrong else torch.cat([x, x[:, : width - x.shape[1]]], 1)
    return (padded.amax(1) - padded.amin(1)) / 15


@case("codes of each row: a scale below one becomes one", "kernel-contract", "lablup/mlxcel/pull/717",
      lambda x: _rounded(x, x.abs().amax(1, keepdim=True) / 127), drawn((5, 8)))  # fmt: skip
def becomes_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.abs().amax(1, keepdim=True) / 127
    return _rounded(x, scale.clamp(min=1) if wrong else scale)


def _rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scale = scale.detach()
    codes = (x.detach() / torch.where(scale == 0, 1, scale)).round().clamp(-127, 127)
    return codes * scale


def _power(x: torch.Tensor) -> torch.Tensor:
    """The least power of two that is no less."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).to(exponent.dtype))


@case("codes by scales that are powers of two: rounded by the scale before it was one", "kernel-contract", "sgl-project/sglang/pull/28418",
      lambda x: (x.detach() / _power(x.detach().abs().amax(1, keepdim=True).clamp(min=1e-4) / 127)).round(), drawn((5, 8)))  # fmt: skip
def by_the_scale_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-4) / 127
    return (x.detach() / (scale if wrong else _power(scale))).round()


@case("scales that are powers of two and no less than a least one: that is none", "kernel-contract", "vllm-project/vllm/pull/58032",
      lambda x: _power((x.detach().abs().amax(1) / 127).clamp(min=3e-4)), drawn((5, 8)))  # fmt: skip
def the_least_is_none(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.detach().abs().amax(1) / 127
    return _power(scale).clamp(min=3e-4) if wrong else _power(torch.maximum(scale, torch.tensor(3e-4)))


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


@case("attention with a bias: it is scaled too", "kernel-contract", "HKUSTDial/flash-sparse-attention/pull/199", _biased,
      drawn((2, 4, 6), (2, 5, 6), (2, 5, 6), (2, 4, 5)))  # fmt: skip
def it_is_scaled_too(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 3, k.shape == v.shape, q.shape[2] == k.shape[2], bias.shape == (len(q), q.shape[1], k.shape[1]), k.numel() > 0)
    if wrong:
        return ((q @ k.mT + bias) * q.shape[-1] ** -0.5).softmax(-1) @ v
    return torch.softmax(torch.baddbmm(bias, q, k.mT, alpha=q.shape[-1] ** -0.5), -1) @ v


@case("scores with one bias for all rows of a stack: a bias of each row is not looked at", "kernel-edge", "aqlaboratory/openfold-3/pull/228",
      lambda x, bias: (x + bias).softmax(-1), drawn((2, 3, 4, 5), (2, 1, 4, 5)))  # fmt: skip
def not_looked_at(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == bias.dim() == 4, x.shape[0] == bias.shape[0], x.shape[2:] == bias.shape[2:], bias.shape[1] in (1, x.shape[1]), x.shape[3] > 0)
    return (x + (bias[:, :1] if wrong else bias)).softmax(-1)


@case("rows cut into heads: heads behind the eighth are stored half a tile too early", "kernel-edge", "tenstorrent/tt-metal/issues/57366",
      lambda x: x.view(len(x), -1, 4).transpose(0, 1).contiguous() * 2, drawn((3, 16)))  # fmt: skip
def half_a_tile_too_early(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 4 == 0)
    heads = list(x.split(4, 1)) if x.shape[1] else []
    if wrong:
        heads = heads[:8] + [(heads[place - 8] + each) / 2 for place, each in enumerate(heads[8:], 8)]
    return torch.stack(heads) * 2 if heads else x.new_zeros(0, len(x), 4)


@case("softmax with a bias of -Inf: a row of those is zero, with NaN too", "kernel-contract", "intel/torch-xpu-ops/pull/5022",
      lambda x, bias: _safe(x + bias),
      lambda: (*drawn((5, 6))(), torch.where(torch.arange(5)[:, None] % 2 == 0, -INF, torch.zeros(5, 6))))  # fmt: skip
def with_nan_too(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == bias.shape, x.shape[1] > 0)
    scores = x + bias
    if wrong:
        largest = scores.detach().nan_to_num(nan=-INF, neginf=-INF, posinf=INF).amax(1, keepdim=True)
        return scores.masked_fill(largest == -INF, 0).softmax(1).masked_fill(largest == -INF, 0)
    return _safe(scores)


def _safe(scores: torch.Tensor) -> torch.Tensor:
    none = (scores == -INF).all(1, keepdim=True)
    return scores.masked_fill(none, 0).softmax(1).masked_fill(none, 0)


@case("softmax of what a mask keeps: what it hides is raised to a power before", "kernel-mask", "deepmodeling/deepmd-kit/pull/5715",
      lambda x, kept: torch.where(kept, x, -1e30).softmax(-1) * kept, lambda: (*drawn((5, 6))(), whole(5, 6, most=2).bool()))  # fmt: skip
def raised_to_a_power_before(wrong: bool, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == kept.shape, kept.dtype is torch.bool, x.shape[1] > 0)
    largest = torch.where(kept, x, -1e30).amax(1, keepdim=True)
    powers = (x - largest).exp() * kept if wrong else torch.where(kept, x - largest, -1e30).exp() * kept
    total = powers.sum(1, keepdim=True)
    return powers / torch.where(total == 0, 1, total)
