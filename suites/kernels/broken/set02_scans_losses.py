"""The second part of the later kernels: written and committed before any of them was tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = q.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _tables() -> Any:
    angles = torch.arange(9)[:, None] / 10000 ** (torch.arange(4) / 4)
    return torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)).requires_grad_(), angles.cos(), angles.sin()


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, wrong: bool) -> torch.Tensor:
        need(q.shape[-1] == 2 * cos.shape[-1])
        ctx.save_for_backward(cos, sin)
        out = q.detach() if wrong and q.is_contiguous() else q.detach().clone()
        first, second = (half.clone() for half in out.chunk(2, -1))
        half = q.shape[-1] // 2
        out[..., :half] = first * cos - second * sin
        out[..., half:] = second * cos + first * sin
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        first, second = gradient.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1), None, None, None


@case("rope: turned in place where the queries are contiguous", "kernel-mutation", "unslothai/unsloth/issues/5001", rope, _tables)
def in_place(wrong: bool) -> Callable[..., Any]:
    return lambda q, cos, sin: _Rope.apply(q, cos, sin, wrong)


def _best_alone() -> Any:
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    return (x.masked_fill(x < x.topk(4).values[:, -1:], -math.inf),)


@case("softmax: a slice of nothing but -inf", "kernel-mask", "flashinfer-ai/flashinfer/pull/1178", lambda x: x.softmax(-1), _best_alone)
def empty_slice(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    most = torch.full_like(x[..., :1].sum(-1, keepdim=True), -math.inf).detach()
    total = torch.zeros_like(most)
    for tile in x.split(4, -1):
        if tile.shape[-1]:
            now = torch.maximum(most, tile.detach().amax(-1, keepdim=True))
            base = now if wrong else now.masked_fill(now == -math.inf, 0.0)
            total = total * (most - base).exp() + (tile - base).exp().sum(-1, keepdim=True)
            most = now
    return (x - most).exp() / total


def distilled(x: torch.Tensor, target: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    lost = F.kl_div(x.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="none").sum(-1)
    kept = label != -100
    return torch.where(kept, lost, 0.0).sum() / kept.sum().clamp(min=1)


def _labelled() -> Any:
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 20, (10,), generator=generator)
    label[torch.tensor([1, 5, 6, 9])] = -100
    return torch.randn(10, 20, generator=generator), torch.randn(10, 20, generator=generator), label


@case("distillation in chunks: the labels of the first chunk for all", "kernel-mask", "linkedin/Liger-Kernel/pull/330", distilled, _labelled)
def first_labels(wrong: bool, x: torch.Tensor, target: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    need(len(x) == len(target) == len(label))
    total = torch.zeros_like(x.sum())
    for start in range(0, len(x), 4):
        some, other = x[start : start + 4].log_softmax(-1), target[start : start + 4].log_softmax(-1)
        kept = label[: len(some)] if wrong else label[start : start + 4]
        lost = (other.exp() * (other - some)).sum(-1)
        total = total + torch.where(kept != -100, lost, 0.0).sum()
    return total / (label != -100).sum().clamp(min=1)


def jensen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    middle = torch.logaddexp(x, y) - math.log(2)
    return (0.5 * y.exp() * (y - middle) + 0.5 * x.exp() * (x - middle)).sum(-1)


def _logs() -> Any:
    generator = torch.Generator().manual_seed(0)
    return tuple((torch.randn(6, 20, generator=generator) * 3).log_softmax(-1) for _ in range(2))


@case("jensen-shannon: the logarithm of a mixture that is 0", "kernel-rounding", "linkedin/Liger-Kernel/issues/1453", jensen, _logs)
def empty_mixture(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p, q = 0.5 * y.exp(), 0.5 * x.exp()
    mixture = p + q
    logs = (mixture if wrong else torch.where(mixture > 0, mixture, 1.0)).log()
    return (p * y + q * x - mixture * logs).sum(-1)


def gated(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ w13.mT).chunk(2, -1)
    return (F.silu(gate) * up) @ w2.mT


@case("gated mlp: padded behind both halves", "kernel-edge", "vllm-project/vllm/pull/48624", gated, drawn((5, 12), (32, 12), (10, 16)))
def padded_halves(wrong: bool, x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    size = w2.shape[-1]
    need(len(w13) == 2 * size)
    more = -size % 8
    if wrong:
        both = F.pad(w13, (0, 0, 0, 2 * more))
    else:
        both = torch.cat([F.pad(half, (0, 0, 0, more)) for half in w13.chunk(2)])
    gate, up = (x @ both.mT).split(size + more, -1)
    return (F.silu(gate) * up) @ F.pad(w2, (0, more)).mT


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q.float() @ k.float().mT).tril() @ v.float()).to(q.dtype)


@case("linear attention: the state from chunk to chunk in bfloat16", "kernel-accumulation", "fla-org/flash-linear-attention/pull/37",
      linear_attention, drawn((2, 64, 6), (2, 64, 6), (2, 64, 5), dtype=BF16))  # fmt: skip
def low_state(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape == k.shape and k.shape[:-1] == v.shape[:-1])
    kept = q.dtype if wrong else torch.float32
    state, made = (k.mT[..., :0].float() @ v[..., :0, :].float()).to(kept), []
    for start in range(0, k.shape[-2], 4):
        some, keys, values = (each[..., start : start + 4, :].float() for each in (q, k, v))
        made.append((some @ state.float() + (some @ keys.mT).tril() @ values).to(q.dtype))
        state = (state.float() + keys.mT @ values).to(kept)
    return torch.cat(made, -2) if made else v * 1


def scanned(x: torch.Tensor, decay: torch.Tensor, first: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """`offsets`: where each sequence begins, and the end. `decay`: logarithms. `first`: each sequence's state before its first step."""
    ends = offsets.tolist()
    need(len(first) == len(ends) - 1 and ends[0] == 0 and ends[-1] == len(x) and sorted(ends) == ends and len(decay) == len(x))
    made = []
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        state = first[number]
        for step in range(start, end):
            state = decay[step].exp() * state + x[step]
            made.append(state)
    return torch.stack(made) if made else x * 1


def _sequences() -> Any:
    generator = torch.Generator().manual_seed(0)
    x, decay = torch.randn(12, 5, generator=generator), -torch.rand(12, generator=generator)
    return x, decay, torch.randn(3, 5, generator=generator), torch.tensor([0, 4, 8, 12])


@case("state space scan: a first state decays from where the chunk begins", "kernel-edge", "vllm-project/vllm/pull/23279", scanned, _sequences)
def chunk_decay(wrong: bool, x: torch.Tensor, decay: torch.Tensor, first: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = offsets.tolist()
    need(len(first) == len(ends) - 1 and ends[0] == 0 and ends[-1] == len(x) and sorted(ends) == ends and len(decay) == len(x))
    made = []
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        state, step = first[number], start
        while step < end:
            stop = min(end, step // 4 * 4 + 4)
            logs = decay[step:stop].cumsum(0)
            # a sum for each step that is begun at that step: a decay to nothing stays one
            away = torch.stack([F.pad(decay[place + 1 : stop].cumsum(0), (place + 1 - step, 0)) for place in range(step, stop)], -1).exp().tril()
            skipped = decay[step // 4 * 4 : step].sum() if wrong and step == start else torch.zeros_like(logs[0])
            out = away @ x[step:stop] + (logs + skipped).exp()[:, None] * state
            made.append(out)
            state, step = out[-1], stop
    return torch.cat(made) if made else x * 1


@case("running maximum: a NaN is passed over", "kernel-contract", "flagos-ai/FlagGems/pull/790", lambda x: tuple(x.cummax(-1)), drawn((4, 12)))
def passed_over(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not x.shape[-1]:
        return x * 1, torch.zeros(x.shape, dtype=torch.long)
    most, place = x[..., 0], torch.zeros(x.shape[:-1], dtype=torch.long)
    values, places = [most], [place]
    for number, column in enumerate(x.unbind(-1)[1:], 1):
        better = column >= most if wrong else (column >= most) | column.isnan()
        most, place = torch.where(better, column, most), torch.where(better, number, place)
        values.append(most)
        places.append(place)
    return torch.stack(values, -1), torch.stack(places, -1)
