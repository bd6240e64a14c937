"""A fifteenth frozen set of broken kernels, second part: edges, strides, memory. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


def _chosen(x: torch.Tensor, w: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    return torch.einsum("nd,ndo->no", x, w[expert])


@case("product with each token's expert: behind 16 tokens experts are those of the first ones", "kernel-edge", "sgl-project/sglang/pull/20302",
      _chosen, lambda: (*drawn((12, 5), (4, 5, 6))(), whole(12, most=4)))  # fmt: skip
def experts_of_the_first(wrong: bool, x: torch.Tensor, w: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and w.shape[1] == x.shape[1] and expert.shape == x.shape[:1])
    made = x.new_zeros(len(x), w.shape[2])
    for start in range(0, len(x), 16):
        part = x[start : start + 16]
        of = expert[: len(part)] if wrong else expert[start : start + 16]
        made[start : start + 16] = (part[:, None] @ w[of])[:, 0]
    return made


@case("sums of each expert's tokens: the last expert is left out", "kernel-contract", "sgl-project/sglang/pull/15250",
      lambda x, expert: torch.zeros(4, x.shape[1]).index_add(0, expert, x), lambda: (drawn((12, 5))()[0], whole(12, most=4)))  # fmt: skip
def last_expert(wrong: bool, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and expert.shape == x.shape[:1])
    rows = [x[expert == place].sum(0) for place in range(4)]
    return torch.stack([*rows[:3], torch.zeros_like(rows[3]) if wrong else rows[3]])


def _by_groups(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(codes.numel() % len(scales) == 0)
    return (codes.reshape(len(scales), -1) * scales[:, None]).view(codes.shape)


@case("codes times the scale of their group: a group is whole rows", "kernel-edge", "deepspeedai/DeepSpeed/pull/3433", _by_groups,
      lambda: (whole(6, 9, most=15).float(), drawn((3,))()[0]))  # fmt: skip
def whole_rows(wrong: bool, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and scales.dim() == 1 and len(scales) > 0 and codes.numel() % len(scales) == 0)
    each = codes.numel() // len(scales)
    each = -(-each // codes.shape[1]) * codes.shape[1] if wrong and codes.numel() else max(each, 1)
    group = (torch.arange(codes.numel()) // each).clamp(max=len(scales) - 1)
    return codes * scales[group].view(codes.shape)


def _two_groups(x: torch.Tensor) -> torch.Tensor:
    need(x.shape[1] % 2 == 0)
    parts = x.view(len(x), 2, -1)
    scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return ((parts / scale).round().clamp(-127, 127) * scale).view(x.shape)


@case("codes of two groups a row: the largest is looked for among the first 16", "kernel-edge", "vllm-project/vllm-xpu-kernels/pull/521", _two_groups,
      drawn((5, 24)))  # fmt: skip
def among_the_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0)
    parts = x.reshape(len(x), 2, x.shape[1] // 2)
    most = (parts[..., :16] if wrong else parts).abs().amax(-1, keepdim=True)
    scale = most.clamp(min=1e-6) / 127
    return ((parts / scale).round().clamp(-127, 127) * scale).view(x.shape)


@case("silu: offsets of what lies far behind wrap around", "kernel-edge", "fla-org/flash-linear-attention/pull/1082", F.silu, drawn((12, 16)))
def wrapped_offsets(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1)
    places = torch.arange(len(flat))
    flat = flat[places % 2**13] if wrong else flat  # two to the power of 31 in the real one
    return (flat * flat.sigmoid()).view(x.shape)


@case("layer norm: on the way back whole warps of columns are added up", "kernel-edge", "deepspeedai/DeepSpeed/pull/1587",
      lambda x, w: F.layer_norm(x, x.shape[-1:], w), drawn((6, 16), (16,)))  # fmt: skip
def whole_warps(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.shape == x.shape[1:] and x.shape[1] > 0)
        scale = (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
        normed = (x - x.mean(-1, keepdim=True)) * scale
        return normed * w, (normed, scale, w)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        normed, scale, w = saved
        weighed, width = given * w, normed.shape[1]
        added = max(width // 8, 1) * 8 if wrong else width
        mean, along = weighed[:, :added].sum(-1, keepdim=True) / width, (weighed * normed)[:, :added].sum(-1, keepdim=True) / width
        return scale * (weighed - mean - normed * along), (given * normed).sum(0)

    return function(forward, backward)


def _rows_as_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round() * scale, scale


@case("codes of each token: a slice is read as if it were packed", "kernel-stride", "vllm-project/vllm/pull/19452", _rows_as_codes, drawn((6, 9)))
def slice_as_packed(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[1] > 0)
    read = as_if(x, packed(x.shape)) if wrong else x
    scale = read.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (read / scale).round() * scale, scale


@case("lower triangle of a product: zeros begin behind a block that nobody wrote", "kernel-stale", "state-spaces/mamba/pull/537",
      lambda a, b: (a @ b.mT).tril(), drawn((12, 6), (12, 6)))  # fmt: skip
def zeros_begin_late(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == b.shape)
    made = torch.empty(len(a), len(a))
    for start in range(0, len(a), 4):
        stop = min(start + 4, len(a))
        made[start:stop, :stop] = (a[start:stop] @ b[:stop].mT).tril(start)
        made[start:stop, (-(-stop // 8) * 8 if wrong else stop) :] = 0
    return made


@case("product in four parts of the sum: a part without columns adds what memory holds", "kernel-stale", "NVIDIA/TensorRT-LLM/pull/18369",
      lambda x, w: x @ w, drawn((5, 16), (16, 6)))  # fmt: skip
def part_without_columns(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    tiles = -(-len(w) // 4)
    parts = torch.empty(4, len(x), w.shape[1])
    for part in range(4):
        mine = range(part * -(-tiles // 4), min((part + 1) * -(-tiles // 4), tiles))
        if mine or not wrong:
            parts[part] = sum((x[:, 4 * tile : 4 * tile + 4] @ w[4 * tile : 4 * tile + 4] for tile in mine), torch.zeros(len(x), w.shape[1]))
    return parts.sum(0)


def _renormed(p: torch.Tensor) -> torch.Tensor:
    shares = p.abs() / p.abs().sum(-1, keepdim=True).clamp(min=1e-6)
    kept = torch.where(shares >= 0.5 * shares.amax(-1, keepdim=True), shares, 0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-6)


@case("shares above half the largest: the caller's are scaled in place", "kernel-mutation", "sgl-project/sglang/pull/15648", _renormed, drawn((5, 9)))
def scaled_in_place(wrong: bool, p: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape[1] > 0)
    shares = p.abs() / p.abs().sum(-1, keepdim=True).clamp(min=1e-6)
    if wrong:
        with torch.no_grad():
            p.copy_(shares)
    kept = torch.where(shares >= shares.amax(-1, keepdim=True) / 2, shares, 0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-6)


@case("shares of the best four: their sum is added up in any order", "kernel-nondeterminism", "sgl-project/sglang/pull/38565",
      lambda p: p.softmax(-1) / p.softmax(-1).topk(4).values.sum(-1, keepdim=True), drawn((5, 9)))  # fmt: skip
def in_any_order(wrong: bool, p: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape[1] >= 4)
    shares, total = p.softmax(-1), 0.0
    best = shares.topk(4).values
    for place in torch.randperm(4).tolist() if wrong else range(4):
        total = total + best[:, place]
    return shares / total[:, None]  # type: ignore[index]


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


@case("rope: the kernel is for three dimensions, and the call has four", "kernel-fallback", "hao-ai-lab/FastVideo/pull/1245", _turned,
      drawn((2, 3, 5, 8), (5, 4)))  # fmt: skip
def for_three_dimensions(wrong: bool, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.shape[-1] % 2 == 0 and x.dim() >= 2 and angles.shape == (x.shape[-2], x.shape[-1] // 2))
    if wrong and x.dim() != 3:
        return _turned(x, angles)
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)
