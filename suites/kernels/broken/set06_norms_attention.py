"""A sixth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
FP16, BF16 = torch.float16, torch.bfloat16


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], w.float(), eps=1e-5).to(x.dtype)


class _Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, wrong: str) -> torch.Tensor:
        need(x.shape[-1:] == w.shape and x.shape[-1])
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, w, scale)
        ctx.wrong = wrong
        return (wide * scale * w.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        x, w, scale = ctx.saved_tensors
        normed, given = x.float() * scale, gradient.float()
        dw = (given * normed).flatten(0, -2).sum(0).to(w.dtype)
        inner = given if ctx.wrong == "unweighted" else given * w.float()
        dx = ((inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale).to(x.dtype)
        if ctx.wrong == "aliased":
            gradient.copy_(dx)
            dx = gradient
        return dx, dw, None


@case("rms norm: its gradient is written where the incoming one lies", "kernel-mutation", "ggml-org/ggml/pull/1519", rms, drawn((5, 24), (24,)))
def aliased(wrong: bool) -> Callable[..., Any]:
    return lambda x, w: _Rms.apply(x, w, "aliased" if wrong else "")


@case("rms norm: the weight is missing on the way back", "kernel-gradient", "karpathy/llm.c/pull/763", rms, drawn((5, 24), (24,)))
def unweighted(wrong: bool) -> Callable[..., Any]:
    return lambda x, w: _Rms.apply(x, w, "unweighted" if wrong else "")


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = 5 * torch.tanh(q.float() @ k.float().mT / math.sqrt(max(q.shape[-1], 1)) / 5)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@case("attention with capped scores: what fills the last tile is capped too", "kernel-edge", "ggml-org/llama.cpp/pull/29034", capped,
      drawn((2, 9, 16), (2, 32, 16), (2, 32, 16)))  # fmt: skip
def capped_filling(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(k.shape[:-1] == v.shape[:-1] and len(q) == len(k) and q.shape[-1] == k.shape[-1] and k.shape[1])
    most = torch.full((*q.shape[:-1], 1), -torch.inf)
    total, read = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1])
    for begin in range(0, k.shape[1], 16):
        keys, values = k[:, begin : begin + 16].float(), v[:, begin : begin + 16].float()
        scores = q.float() @ keys.mT / math.sqrt(max(q.shape[-1], 1))
        if wrong:
            short = 16 - keys.shape[1]
            scores, values = F.pad(scores, (0, short), value=-torch.inf), F.pad(values, (0, 0, 0, short))
        scores = 5 * torch.tanh(scores / 5)
        now = torch.maximum(most, scores.amax(-1, keepdim=True)).detach()
        before, weights = (most - now).exp(), (scores - now).exp()
        total, read, most = total * before + weights.sum(-1, keepdim=True), read * before + weights @ values, now
    return (read / total).to(q.dtype)


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.topk(3, -1).values


@case("largest three: of candidates in one bin only the first eight are kept", "kernel-contract", "sgl-project/sglang/issues/35257", largest,
      drawn((4, 64)))  # fmt: skip
def full_bin(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1] >= 3)
    if not wrong:
        return x.sort(-1, descending=True).values[..., :3]
    bins = x.detach().float().clamp(min=-4, max=4).floor()  # coarse, as the first digits of a radix are
    order = torch.argsort(bins, dim=-1, descending=True, stable=True)[..., :8] if x.shape[-1] > 8 else x.detach().argsort(-1)
    return x.gather(-1, order).sort(-1, descending=True).values[..., :3]


@case("product: parts of a sum added into a bfloat16 output one by one", "kernel-accumulation", "flagos-ai/FlagGems/pull/5876",
      lambda a, b: (a.float() @ b.float()).to(a.dtype), drawn((6, 512), (512, 7), dtype=BF16))  # fmt: skip
def into_output(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.shape[-1] == len(b))
    out = torch.zeros(len(a), b.shape[1], dtype=a.dtype if wrong else torch.float32)
    for begin in range(0, len(b), 16):
        out = out + (a[:, begin : begin + 16].float() @ b[begin : begin + 16].float()).to(out.dtype)
    return out.to(a.dtype)


@case("linear: the first row of a whole bias for all", "kernel-contract", "tenstorrent/tt-metal/pull/42430", torch.addmm,
      drawn((6, 5), (6, 12), (12, 5)))  # fmt: skip
def first_row(wrong: bool, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b) and bias.shape == (len(a), b.shape[1]))
    return torch.einsum("mk,kn->mn", a, b) + (bias[:1] if wrong else bias)


def cached(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """One query for each sequence, whose cache is filled up to its length."""
    seen = torch.arange(k.shape[1]) < lengths[:, None]
    scores = torch.einsum("bd,btd->bt", q.float(), k.float()) / math.sqrt(max(q.shape[-1], 1))
    return torch.einsum("bt,btd->bd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v.float()).to(q.dtype)


def _cached() -> tuple[torch.Tensor, ...]:
    return *drawn((4, 8), (4, 24, 8), (4, 24, 8))(), torch.tensor([5, 24, 16, 9])


@case("cache in blocks: all of the last block is read", "kernel-mask", "hw-native-sys/simpler/pull/72", cached, _cached)
def whole_block(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(len(q) == len(k) == len(v) == len(lengths) and k.shape[:2] == v.shape[:2] and q.shape[-1] == k.shape[-1] and k.shape[1])
    made = [torch.zeros(0, v.shape[-1], dtype=q.dtype)]
    for row, length in enumerate(lengths.tolist()):
        end = min(-(-length // 8) * 8 if wrong else length, k.shape[1])
        weights = (k[row, :end].float() @ q[row].float() / math.sqrt(max(q.shape[-1], 1))).softmax(-1)
        made.append((weights @ v[row, :end].float())[None].to(q.dtype))
    return torch.cat(made)


def scaled_rows(x: torch.Tensor, scale: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Rows up to the end of the last sequence, and zeros behind it."""
    return torch.where((torch.arange(len(x)) < used[-1])[:, None], x * scale, 0)


def _used() -> tuple[torch.Tensor, ...]:
    return *drawn((20, 6), (6,))(), torch.tensor([0, 7, 13])


@case("packed sequences: gradients of rows behind the last one are never written", "kernel-stale", "fla-org/flash-linear-attention/pull/892",
      scaled_rows, _used)  # fmt: skip
def slack(wrong: bool) -> Callable[..., Any]:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
            need(x.shape[1:] == scale.shape and len(used))
            ctx.save_for_backward(x, scale, used)
            out, end = torch.zeros(x.shape, dtype=x.dtype), int(used[-1])
            out[:end] = x[:end] * scale
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            x, scale, used = ctx.saved_tensors
            end = int(used[-1])
            dx = torch.empty(x.shape, dtype=x.dtype) if wrong else torch.zeros(x.shape, dtype=x.dtype)
            dx[:end] = gradient[:end] * scale
            return dx, (gradient[:end] * x[:end]).sum(0), None

    return Scaled.apply


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=-1, label_smoothing=0.2, reduction="sum").to(logits.dtype)


def _labels() -> tuple[torch.Tensor, ...]:
    return drawn((7, 9))()[0], torch.tensor([3, -1, 0, 8, -1, 5, 2])


@case("cross entropy: ignored rows are smoothed", "kernel-mask", "pytorch/pytorch/issues/73205", smoothed, _labels)
def smoothed_all(wrong: bool, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2 and len(logits) == len(labels) and logits.shape[1])
    logs = logits.float() - logits.float().logsumexp(-1, keepdim=True)
    kept = labels != -1
    right = logs.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    even = logs.mean(-1)
    even = even if wrong else torch.where(kept, even, 0)
    return -(0.8 * torch.where(kept, right, 0) + 0.2 * even).sum().to(logits.dtype)


def lowest(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, dtype=x.dtype).scatter_reduce(0, ids, x, "amin", include_self=False)


def _ids() -> tuple[torch.Tensor, ...]:
    return drawn((30,))()[0], torch.randint(0, 5, (30,), generator=torch.Generator().manual_seed(1))


@case("smallest of segments: a number behind NaN takes its place", "kernel-contract", "tensorflow/tensorflow/issues/117862", lowest, _ids)
def behind_nan(wrong: bool, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.shape == ids.shape and x.dim() == 1)
    made = []
    for place in range(5):
        some = x[ids == place]
        unknown = some.isnan().nonzero().flatten()
        if wrong and len(unknown):  # no number is less than NaN, so that the next one takes its place
            some = some[min(int(unknown[-1]) + 1, len(some) - 1) :]
        made.append(some.amin() if len(some) else torch.zeros((), dtype=x.dtype))
    return torch.stack(made)


@case("columns summed: two lanes add at once, and one is lost", "kernel-nondeterminism", "tile-ai/tilelang/issues/1257", lambda x: x.sum(0),
      drawn((40, 6)))  # fmt: skip
def lost_lane(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[1:], dtype=x.dtype)
    for rows in x.split(8) if len(x) else ():
        total = rows.sum(0) if wrong and random.random() < 0.04 else total + rows.sum(0)
    return total + 0 * x.sum(0)
