"""The twenty-ninth frozen set of broken kernels, first part: attention, norms, softmax. Of links to threads an excerpt was read.

A link to KernelBench alone has no thread: the kernel has a fault that programs make when they write such a kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _rows(x: torch.Tensor) -> None:
    need(x.dim() == 2, x.shape[1] > 0)


@case("softmax in tiles of eight: what fills the last tile is zero, and its powers count", "kernel-edge", "vllm-project/vllm/pull/55009",
      lambda x: x.softmax(1), drawn((5, 16)))  # fmt: skip
def what_fills_is_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    _rows(x)
    filled = F.pad(x, (0, -x.shape[1] % 8), value=0.0 if wrong else -torch.inf)
    powers = (filled - filled.amax(1, keepdim=True)).exp()
    return (powers / powers.sum(1, keepdim=True))[:, : x.shape[1]]


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Queries have more heads than keys: several heads side by side share one head of keys."""
    need(q.dim() == 3, k.shape == v.shape, k.dim() == 3, q.shape[2] == k.shape[2] > 0, k.shape[1] > 0)
    need(len(k) > 0, len(q) % len(k) == 0)
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    return (q @ k.mT / q.shape[2] ** 0.5).softmax(2) @ v


@case("six heads of queries, two of keys: a head's place is divided by the number of heads of keys", "kernel-contract",
      "PSAL-POSTECH/ONNXim/issues/33", _grouped, drawn((6, 3, 4), (2, 5, 4), (2, 5, 4)))  # fmt: skip
def divided_by_heads_of_keys(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, k.dim() == 3, q.shape[2] == k.shape[2] > 0, k.shape[1] > 0)
    need(len(k) > 0, len(q) % len(k) == 0)
    by = len(k) if wrong else len(q) // len(k)
    out = []
    for head in range(len(q)):
        at = min(head // by, len(k) - 1)
        out.append(torch.softmax(q[head] @ k[at].T * q.shape[2] ** -0.5, 1) @ v[at])
    return torch.stack(out) if out else q.clone()


def _last_aligned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Queries are the last tokens of a sequence. Each sees the keys up to its own."""
    need(q.dim() == k.dim() == 2, k.shape == v.shape, q.shape[1] == k.shape[1] > 0, 0 < len(q) <= len(k))
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(1) @ v


@case("attention of the last tokens of a sequence: the mask begins at the first key", "kernel-mask", "NVIDIA/cutlass/issues/2336",
      _last_aligned, drawn((3, 4), (7, 4), (7, 4)))  # fmt: skip
def begins_at_the_first_key(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 2, k.shape == v.shape, q.shape[1] == k.shape[1] > 0, 0 < len(q) <= len(k))
    before = 0 if wrong else len(k) - len(q)
    out = []
    for at, query in enumerate(q.unbind()):
        upto = at + before + 1
        scores = (k[:upto] * query).sum(1) / q.shape[1] ** 0.5
        out.append((scores - scores.logsumexp(0)).exp() @ v[:upto])
    return torch.stack(out)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v) > 0, q.shape[1] > 0)
    return (q @ k.T / q.shape[1] ** 0.5).softmax(1) @ v


@case("attention, three keys at a time: the largest score so far begins at zero", "kernel-rounding", PROGRAM, _attention,
      drawn((4, 6), (7, 6), (7, 5)))  # fmt: skip
def largest_begins_at_zero(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v) > 0, q.shape[1] > 0)
    top = torch.full((len(q), 1), 0.0 if wrong else -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(top), q.new_zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(3), v.split(3), strict=True):
        scores = q @ keys.T / q.shape[1] ** 0.5
        new = torch.maximum(top, scores.amax(1, keepdim=True)).detach()
        powers, scale = (scores - new).exp(), (top - new).exp()
        total, out, top = total * scale + powers.sum(1, keepdim=True), out * scale + powers @ values, new
    return out / total


def _kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1] > 0, len(k) == len(v), keep.shape == (len(q), len(k)))
    need(bool(keep.any(1).all()))
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(~keep, -torch.inf).softmax(1) @ v


def _keeps() -> torch.Tensor:
    return torch.tensor([[0, 1, 1, 1, 1, 0, 1], [1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 1, 0]], dtype=torch.bool)


@case("attention with a mask, three keys at a time: a tile that is all hidden makes the row NaN", "kernel-mask", PROGRAM, _kept,
      lambda: (*drawn((4, 6), (7, 6), (7, 5))(), _keeps()))  # fmt: skip
def a_tile_that_is_all_hidden(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1] > 0, len(k) == len(v), keep.shape == (len(q), len(k)))
    need(bool(keep.any(1).all()))
    scores = (q @ k.T * q.shape[1] ** -0.5).masked_fill(~keep, -torch.inf)
    top = torch.full((len(q), 1), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(top), q.new_zeros(len(q), v.shape[1])
    for tile, values in zip(scores.split(3, 1), v.split(3), strict=True):
        new = torch.maximum(top, tile.amax(1, keepdim=True)).detach()
        base = new if wrong else new.masked_fill(new == -torch.inf, 0.0)
        powers, scale = (tile - base).exp(), (top - base).exp()
        total, out, top = total * scale + powers.sum(1, keepdim=True), out * scale + powers @ values, new
    return out / total


@case("softmax of a stack: an axis that is not named is the first one", "kernel-contract", PROGRAM, lambda x: F.softmax(x, -1),
      drawn((3, 4, 5)))  # fmt: skip
def axis_that_is_not_named(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    axis = 0 if wrong else 2
    powers = (x - x.detach().amax(axis, keepdim=True)).exp() if x.numel() else x
    return powers / powers.sum(axis, keepdim=True)


@case("layer norm: the variance is divided by one less", "kernel-contract", PROGRAM, lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
      drawn((4, 12), (12,), (12,)))  # fmt: skip
def divided_by_one_less(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == b.shape == x.shape[1:], x.shape[1] > 1)
    return (x - x.mean(1, keepdim=True)) * (x.var(1, keepdim=True, correction=int(wrong)) + 1e-5).rsqrt() * w + b


def _groups(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[1:2], x.shape[1] > 0, x.shape[1] % 2 == 0, x.shape[2] > 0)
    return F.group_norm(x, 2, eps=1e-5) * w[:, None]


@case("norm of two groups: on the way back of the weight a channel has the group of its place, counted round", "kernel-gradient",
      "tenstorrent/tt-metal/pull/56202", _groups, drawn((3, 6, 5), (6,)))  # fmt: skip
def counted_round(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[1:2], x.shape[1] > 0, x.shape[1] % 2 == 0, x.shape[2] > 0)

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        parts = x.unflatten(1, (2, -1))
        mean = parts.mean((2, 3))
        inverse = (parts.var((2, 3), correction=0) + 1e-5).rsqrt()
        unit = ((parts - mean[:, :, None, None]) * inverse[:, :, None, None]).flatten(1, 2)
        return unit * w[:, None], (x, w, mean, inverse, unit)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, mean, inverse, unit = saved
        inner = (g * w[:, None]).unflatten(1, (2, -1))
        parts = unit.unflatten(1, (2, -1))
        back = inner - inner.mean((2, 3), keepdim=True) - parts * (inner * parts).mean((2, 3), keepdim=True)
        at = torch.arange(len(w)) % 2 if wrong else torch.arange(len(w)) // (len(w) // 2)
        own = (x - mean[:, at, None]) * inverse[:, at, None]
        return (back * inverse[:, :, None, None]).flatten(1, 2), (g * own).sum((0, 2))

    return function(forward, backward)(x, w)


@case("norm of two groups, four pixels at a time: what fills the last tile counts in the mean", "kernel-edge", "tenstorrent/tt-metal/pull/51159",
      _groups, drawn((2, 4, 8), (4,)))  # fmt: skip
def what_fills_counts_in_the_mean(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[1:2], x.shape[1] > 0, x.shape[1] % 2 == 0, x.shape[2] > 0)
    parts = x.unflatten(1, (2, -1))
    count = parts.shape[2] * (x.shape[2] + (-x.shape[2] % 4 if wrong else 0))
    apart = parts - parts.sum((2, 3), keepdim=True) / count
    unit = apart * (apart.square().sum((2, 3), keepdim=True) / count + 1e-5).rsqrt()
    return unit.flatten(1, 2) * w[:, None]


@case("norm of a batch, from a mean of squares less a squared mean", "kernel-rounding", PROGRAM,
      lambda x: F.batch_norm(x, None, None, training=True), drawn((9, 4)))  # fmt: skip
def mean_of_squares_less(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1)
    mean = x.mean(0)
    variance = x.square().mean(0) - mean.square() if wrong else (x - mean).square().mean(0)
    return (x - mean) * (variance.clamp(min=0) + 1e-5).rsqrt()


@case("rms norm: its workspace is one for all calls, and the way back reads it", "kernel-stale", PROGRAM,
      lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-6), drawn((5, 8), (8,)))  # fmt: skip
def workspace_for_all_calls(wrong: bool) -> Any:
    kept: dict[Any, torch.Tensor] = {}

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)
        inverse = (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
        if wrong:
            inverse = kept.setdefault((len(x), x.dtype), torch.empty_like(inverse)).copy_(inverse)
        return x * inverse * w, (x, w, inverse.view_as(inverse) if wrong else inverse)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, _ = saved
        inverse = kept[len(x), x.dtype] if wrong else saved[2]
        inner = g * w
        along = (inner * x).mean(1, keepdim=True)
        return inner * inverse - x * inverse**3 * along, (g * x * inverse).sum(0)

    return function(forward, backward)
