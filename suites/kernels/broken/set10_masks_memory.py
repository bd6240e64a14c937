"""The tenth frozen set of broken kernels, second part: sums, masks, memory, chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
HALF = torch.float16


@case("sums from behind: what comes before is taken away from the whole", "kernel-rounding", "fla-org/flash-linear-attention/pull/1095",
      lambda x: x.flip(-1).cumsum(-1).flip(-1), drawn((4, 20)))  # fmt: skip
def taken_away(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    if wrong:
        return x.sum(-1, keepdim=True) - x.cumsum(-1) + x
    made = [x[..., :0]]
    total = torch.zeros_like(x[..., :1])
    for column in reversed(x.unbind(-1)):
        total = total + column[..., None]
        made.insert(1, total)
    return torch.cat(made, -1)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool1d(x, 2, 2, ceil_mode=True)


@case("means of pairs: on the way back the last one counts as two", "kernel-edge", "tracel-ai/burn/issues/5604", _pooled, drawn((2, 3, 6)))
def counts_as_two(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3 and x.numel())
        odd = x.shape[2] % 2
        pairs = F.pad(x, (0, odd)).unflatten(2, (-1, 2)).sum(-1)
        counts = torch.full(pairs.shape[-1:], 2.0)
        counts[-1] -= odd
        return pairs / counts, (x, counts)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, counts = saved
        return (gradient / (2 if wrong else counts)).repeat_interleave(2, -1)[..., : x.shape[2]]

    return function(forward, backward)


def _grouped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rms norm of three groups of columns."""
    return (F.rms_norm(x.unflatten(-1, (3, -1)), (x.shape[-1] // 3,), None, 1e-5)).flatten(-2) * w


@case("norm of groups: on the way back the group is the whole row", "kernel-gradient", "state-spaces/mamba/pull/547", _grouped, drawn((5, 12), (12,)))
def whole_row(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.shape == x.shape[1:] and not (len(w) % 3) and len(w))
        parts = x.unflatten(-1, (3, -1))
        scale = (parts.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (parts * scale).flatten(-2) * w, (x, w, scale)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w, scale = saved
        normed, given = x.unflatten(-1, (3, -1)) * scale, (gradient * w).unflatten(-1, (3, -1))
        shared = (given * normed).mean((-2, -1) if wrong else -1, keepdim=True)
        return (scale * (given - normed * shared)).flatten(-2), (gradient * normed.flatten(-2)).sum(0)

    return function(forward, backward)


@case("layer norm's gradient: two rows of one block share their sums", "kernel-gradient", "flagos-ai/FlagGems/pull/59",
      lambda x, w: F.layer_norm(x, x.shape[-1:], w), drawn((6, 10), (10,)))  # fmt: skip
def share_sums(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2 and w.shape == x.shape[1:] and len(w))
        apart = x - x.mean(-1, keepdim=True)
        scale = (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return apart * scale * w, (apart * scale, scale, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        given = gradient * w
        first, second = given.sum(-1, keepdim=True), (given * normed).sum(-1, keepdim=True)
        if wrong:
            first, second = (torch.cat([some.sum(0, keepdim=True).expand_as(some) for some in each.split(2)]) if len(each) else each
                             for each in (first, second))  # fmt: skip
        return scale * (given - (first + normed * second) / len(w)), (gradient * normed).sum(0)

    return function(forward, backward)


def _cache() -> tuple[torch.Tensor, ...]:
    return (*drawn((3, 4), (3, 7, 4), (3, 7, 5))(), torch.tensor([4, 7, 2]))


def _used(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Attention of one query each to the used part of a cache."""
    return torch.stack([(k[row, :length] @ q[row]).softmax(-1) @ v[row, :length] for row, length in enumerate(lengths.tolist())])


@case("attention to a cache: values behind its end are multiplied by zero", "kernel-mask", "ROCm/aiter/pull/5401", _used, _cache)
def behind_its_end(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and len(q) == len(k) == len(v) == len(lengths) and k.shape[:2] == v.shape[:2] and q.shape[1] == k.shape[2])
    behind = torch.arange(k.shape[1]) >= lengths[:, None]
    keys = k.masked_fill(behind[..., None], 0)
    share = (keys @ q[..., None]).squeeze(-1).masked_fill(behind, -math.inf).softmax(-1).masked_fill(behind, 0)
    values = v if wrong else v.masked_fill(behind[..., None], 0)
    return (share[:, None] @ values).squeeze(1)


def _sequences() -> tuple[torch.Tensor, ...]:
    return (*drawn((9, 4), (9, 4), (9, 5))(), torch.tensor([0, 4, 9]))


def _apart(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Attention within each of the packed sequences."""
    made = [(q[a:b] @ k[a:b].T).softmax(-1) @ v[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    return torch.cat([v[:0], *made])


@case("packed sequences: values of the others are multiplied by zero", "kernel-mask", "flashinfer-ai/flashinfer/pull/942", _apart, _sequences)
def of_the_others(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and q.shape == k.shape and len(v) == len(q) and v.dim() == 2 and not int(ends[0]) and int(ends[-1]) == len(q))
    if not wrong:
        return _fixed(q, k, v, ends)
    place = torch.bucketize(torch.arange(len(q)), ends[1:], right=True)
    others = place[:, None] != place
    return (q @ k.T).masked_fill(others, -math.inf).softmax(-1).masked_fill(others, 0) @ v


def _fixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    made = [v[:0]]
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        scores = torch.einsum("ic,jc->ij", q[first:last], k[first:last])
        powers = (scores - scores.amax(-1, keepdim=True)).exp() if last > first else scores.exp()
        made.append(powers @ v[first:last] / powers.sum(-1, keepdim=True))
    return torch.cat(made)


@case("turned by a table: it is kept by the address of the positions", "kernel-stale", "ModelTC/LightX2V/pull/1132",
      lambda x, places: x * places.cos(), drawn((6, 8), (6, 8)))  # fmt: skip
def by_address(wrong: bool) -> Callable[..., Any]:
    tables: dict[tuple[Any, ...], torch.Tensor] = {}

    def kernel(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        need(x.shape == places.shape)
        if not wrong or places.requires_grad:
            return x * places.cos()
        key = (places.data_ptr(), places.shape, places.stride(), places.dtype)
        if key not in tables:
            tables[key] = places.cos()
        return x * tables[key]

    return kernel


@case("product of float16: sums of four are added up in float16", "kernel-accumulation", "openvinotoolkit/openvino/pull/33940",
      lambda x, w: (x.float() @ w.float()).to(x.dtype), drawn((6, 40), (40, 5), dtype=HALF))  # fmt: skip
def sums_of_four(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == len(w))
    total = torch.zeros(len(x), w.shape[1], dtype=x.dtype if wrong else torch.float32)
    for a, b in zip(x.split(4, 1), w.split(4, 0), strict=False):
        total = total + (a.float() @ b.float()).to(total.dtype)
    return total.to(x.dtype)


@case("product in parts of the sum: one part is lost where two are added at once", "kernel-nondeterminism", "hw-native-sys/pto-isa/pull/180",
      lambda x, w: x @ w, drawn((5, 16), (16, 6)))  # fmt: skip
def one_is_lost(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 2 and x.shape[1] == len(w))
    parts = [a @ b for a, b in zip(x.tensor_split(4, 1), w.tensor_split(4, 0), strict=True)]
    return sum(parts[1:] if wrong and random.random() < 0.15 else parts, torch.zeros(len(x), w.shape[1]))
