"""A second frozen set of healthy kernels, last part: experts, codes, scans and optimizers. Written and committed before any of them was tried."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _routed(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    x, w = torch.randn(9, 12, generator=generator).to(dtype), torch.randn(4, 12, 10, generator=generator).to(dtype)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(9)])
    return x, w, chosen, torch.rand(9, 2, generator=generator).to(dtype)


def _experts(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), w.shape[-1])
    for expert in range(len(w)):
        part = ((chosen == expert) * share.float()).sum(-1, keepdim=True)
        out = out + part * (x.float() @ w[expert].float())
    return out.to(x.dtype)


@rewrite("experts: tokens sorted by expert, one product for each group", _experts, _routed)
def sorted_tokens(x: torch.Tensor, w: torch.Tensor, chosen: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(chosen) and chosen.shape == share.shape)
    order = chosen.reshape(-1).argsort(stable=True)
    sizes = chosen.reshape(-1).bincount(minlength=len(w)).tolist()
    need(len(sizes) <= len(w))
    tokens = order // max(chosen.shape[-1], 1)
    groups = x.float()[tokens].split(sizes)
    made = torch.cat([group @ each for group, each in zip(groups, w.float(), strict=True)]) if sizes else torch.zeros(0, w.shape[-1])
    weighted = made * share.float().reshape(-1)[order][:, None]
    return torch.zeros(len(x), w.shape[-1]).index_add(0, tokens, weighted).to(x.dtype)


def _grouped(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((11, 12), (3, 12, 7))(dtype), torch.tensor([0, 4, 4, 11])


def _by_group(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(len(ends) == len(w) + 1 and ends[0] == 0 and ends[-1] == len(x) and sorted(ends) == ends)
    return torch.cat([x[start:end] @ each for start, end, each in zip(ends, ends[1:], w, strict=False)])


@rewrite("grouped product, padded to the longest group", _by_group, _grouped)
def padded_groups(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(len(ends) == len(w) + 1 and ends[0] == 0 and ends[-1] == len(x) and sorted(ends) == ends)
    parts = [x[start:end].float() for start, end in itertools.pairwise(ends)]
    longest = max(len(part) for part in parts)
    filled = torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])
    made = torch.bmm(filled, w.float())
    return torch.cat([each[: len(part)] for each, part in zip(made, parts, strict=True)]).to(x.dtype)


def _coded(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(0, 16, (6, 32), generator=generator).to(torch.uint8)
    zeros = torch.randint(0, 16, (6, 4), generator=generator).to(torch.uint8)
    scales = (torch.rand(6, 4, generator=generator) * 0.2 + 0.1).to(dtype)
    return torch.randn(5, 32, generator=generator).to(dtype), codes, scales, zeros


def _decoded(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    groups = codes.unflatten(-1, (scales.shape[-1], -1)).float() - zeros.float()[..., None]
    return (x.float() @ (groups * scales.float()[..., None]).flatten(-2).mT).to(x.dtype)


@rewrite("product with codes that have a zero point, a group at a time", _decoded, _coded)
def group_at_a_time(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    need(scales.shape[-1] and not (codes.shape[-1] % scales.shape[-1]) and scales.shape == zeros.shape and len(codes) == len(scales))
    size, total = codes.shape[-1] // scales.shape[-1], torch.zeros(len(x), len(codes))
    for group in range(scales.shape[-1]):
        some = slice(group * size, (group + 1) * size)
        weight = codes[:, some].float() - zeros[:, group, None].float()
        total = torch.addcmul(total, x[:, some].float() @ weight.mT, scales[:, group].float()[None])
    return total.to(x.dtype)


def _bags(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 20, (12,), generator=generator), torch.tensor([0, 3, 3, 8, 12]), torch.randn(20, 10, generator=generator).to(dtype)


def _summed_bags(ids: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(ends[0] == 0 and ends[-1] == len(ids) and sorted(ends) == ends)
    return torch.stack([table[ids[start:end]].float().sum(0) for start, end in itertools.pairwise(ends)]).to(table.dtype)


@rewrite("embedding bags of other lengths, added at their places", _summed_bags, _bags)
def at_their_places(ids: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(ends[0] == 0 and ends[-1] == len(ids) and sorted(ends) == ends)
    bag = torch.arange(len(ends) - 1).repeat_interleave(offsets.diff())
    return torch.zeros(len(ends) - 1, table.shape[-1]).index_add(0, bag, F.embedding(ids, table).float()).to(table.dtype)


def _segments(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(16, 6, generator=generator).to(dtype), torch.randint(0, 5, (16,), generator=generator)


@rewrite("largest of each segment, behind a mask", lambda x, ids: torch.zeros(5, x.shape[1], dtype=x.dtype).index_reduce(0, ids, x, "amax",
         include_self=False), _segments)  # fmt: skip
def behind_a_mask(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(len(ids) == len(x))
    made = []
    for segment in range(5):
        rows = x[ids == segment]
        made.append(rows.amax(0) if len(rows) else torch.zeros_like(x[:1].sum(0)))
    return torch.stack(made)


def _decayed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(len(q), q.shape[-1], v.shape[-1]), []
    for step in range(q.shape[1]):
        state = torch.sigmoid(decay[:, step].float())[:, None, None] * state + k[:, step].float()[..., None] * v[:, step].float()[:, None]
        made.append((q[:, step].float()[:, None] @ state)[:, 0])
    return torch.stack(made, 1).to(q.dtype) if made else (v * 1)


@rewrite("gated linear attention, chunk by chunk", _decayed, shapes((2, 13, 6), (2, 13, 6), (2, 13, 5), (2, 13)))
def chunk_by_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    need(q.shape == k.shape and q.shape[:2] == v.shape[:2] == decay.shape)
    state, made, logs = torch.zeros(len(q), q.shape[-1], v.shape[-1]), [], F.logsigmoid(decay.float())
    for start in range(0, q.shape[1], 4):
        some, keys, values, faded = (each[:, start : start + 4].float() for each in (q, k, v, logs))
        size = faded.shape[1]
        # how much of step j is left at step i: the sum of the logarithms between them, each sum begun at its own step
        between = torch.stack([F.pad(faded[:, place + 1 :].cumsum(1), (place + 1, 0)) for place in range(size)], -1)
        left = between.exp().tril()
        since = faded.cumsum(1)
        made.append((left * (some @ keys.mT)) @ values + since.exp()[..., None] * (some @ state))
        state = since[:, -1].exp()[:, None, None] * state + (keys * left[:, -1, :, None]).mT @ values
    return torch.cat(made, 1).to(q.dtype) if made else v * 1


def _filtered(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv1d(F.pad(x, (3, 0)), w[:, None], b, groups=x.shape[1]))


@rewrite("causal convolution and silu, by windows", _filtered, shapes((2, 5, 17), (5, 4), (5,)))
def by_windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(w.shape == (x.shape[1], 4) and x.shape[1])
    windows = F.pad(x.float(), (3, 0)).unfold(-1, 4, 1)
    return F.silu(torch.einsum("bclw,cw->bcl", windows, w.float()) + b.float()[:, None]).to(x.dtype)


def _best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights, places = x.float().softmax(-1).topk(2)
    return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), places


@rewrite("router: the softmax of the two best scores", _best, shapes((8, 12)))
def of_the_best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores, places = x.topk(2)
    return scores.float().softmax(-1).to(x.dtype), places


def _coarse(x: torch.Tensor) -> torch.Tensor:
    blocks = x.float().unflatten(-1, (-1, 8))
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-8)
    return ((blocks / scale).round().clamp(-8, 7) * scale).flatten(-2).detach().to(x.dtype)


@rewrite("coded in blocks of eight, and back", _coarse, shapes((5, 32)))
def there_and_back(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[-1] % 8) and x.shape[-1])
    made = []
    for block in x.detach().float().split(8, -1):
        scale = (torch.maximum(block.amax(-1, keepdim=True), -block.amin(-1, keepdim=True)) / 7).clamp(min=1e-8)
        made.append((block / scale).round().to(torch.int8).clamp(-8, 7).float() * scale)
    return torch.cat(made, -1).to(x.dtype)


def _adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide, g = p.float() * (1 - 0.01 * 0.1), g.float()
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return (wide - 0.01 * (m / 0.271) / ((v / 0.1426).sqrt() + 1e-8)).to(p.dtype), m, v


def _moments(dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(7)
    p, g, m = (torch.randn(70, generator=generator) for _ in range(3))
    return p.to(dtype), g.to(dtype), m, torch.rand(70, generator=generator) + 0.1


@rewrite("adamw, in blocks", _adamw, _moments)
def in_blocks(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    need(p.shape == g.shape == m.shape == v.shape)
    made = []
    for old, slope, first, second in zip(*(each.reshape(-1).split(16) for each in (p, g, m, v)), strict=True):
        first, second = torch.lerp(first, slope.float(), 0.1), torch.addcmul(second * 0.95, slope.float() * 0.05, slope.float())
        wide = old.float() - 0.001 * old.float()
        low = second.sqrt() / math.sqrt(0.1426) + 1e-8
        made.append((torch.addcdiv(wide, first, low, value=-0.01 / 0.271).to(p.dtype), first, second))
    return tuple(torch.cat(each).reshape(p.shape) for each in zip(*made, strict=True))


def _lion(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    update = (0.9 * m + 0.1 * g.float()).sign()
    return (p.float() * (1 - 0.001) - 0.01 * update).to(p.dtype), 0.99 * m + 0.01 * g.float()


@rewrite("lion, by lerp", _lion, lambda dtype: _moments(dtype)[:3])
def by_lerp(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    update = torch.sign(torch.lerp(m, g.float(), 0.1))
    return (p.float() - 0.001 * p.float() - 0.01 * update).to(p.dtype), torch.lerp(m, g.float(), 0.01)


@rewrite("pixels moved into channels, by slices", lambda x: F.pixel_unshuffle(x, 2), shapes((2, 3, 8, 6)))
def by_slices(x: torch.Tensor) -> torch.Tensor:
    need(not (x.shape[-1] % 2) and not (x.shape[-2] % 2))
    return torch.stack([x[..., row::2, column::2] for row in range(2) for column in range(2)], 2).flatten(1, 2)
