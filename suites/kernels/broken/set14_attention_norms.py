"""A fourteenth frozen set of broken kernels: attention, norms, choices. Of links an excerpt was read.

A kernel was mended, whose bias had a gradient that the reference's has not. So was a twin, which was accused rightly: its exponential overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, whole

F = torch.nn.functional


def _with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    joined = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:2], 1)], -1)
    return joined.softmax(-1)[..., :-1] @ v


def _fitting(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> None:
    need(q.dim() == 3 and k.dim() == 3 and v.shape[:2] == k.shape[:2] and q.shape[::2] == k.shape[::2] and sinks.shape == q.shape[:1])
    need(q.shape[-1] > 0)


@case("attention with a sink for each head: it is looked for by the row", "kernel-contract", "modular/modular/pull/6591", _with_sinks,
      drawn((3, 5, 6), (3, 7, 6), (3, 7, 4), (3,)))  # fmt: skip
def sink_by_row(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    _fitting(q, k, v, sinks)
    heads, rows = q.shape[:2]
    places = torch.arange(heads * rows)
    chosen = sinks[places % max(heads, 1) if wrong else places // max(rows, 1)].view(heads, rows, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    most = torch.maximum(scores.amax(-1, keepdim=True), chosen) if k.shape[1] else chosen
    powers = (scores - most).exp()
    return powers @ v / (powers.sum(-1, keepdim=True) + (chosen - most).exp())


@case("attention with a sink for each head: on the way back shares are without it", "kernel-gradient", "NVIDIA/cudnn-frontend/pull/421", _with_sinks,
      drawn((3, 5, 6), (3, 7, 6), (3, 7, 4), (3,)))  # fmt: skip
def shares_without_the_sink(wrong: bool) -> Callable[..., Any]:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> Any:
        _fitting(q, k, v, sinks)
        need(k.shape[1] > 0)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        alone = scores.logsumexp(-1, keepdim=True)
        whole_sum = torch.logaddexp(alone, sinks[:, None, None].expand_as(alone))
        return (scores - whole_sum).exp() @ v, (q, k, v, sinks, alone, whole_sum)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        q, k, v, sinks, alone, whole_sum = saved
        scale = q.shape[-1] ** -0.5
        shares = (q @ k.mT * scale - (alone if wrong else whole_sum)).exp()
        through = given @ v.mT
        weighed = (shares * through).sum(-1, keepdim=True)
        scores = shares * (through - weighed) * scale
        sink = -((sinks[:, None, None] - whole_sum).exp() * weighed).sum((1, 2))
        return scores @ k, scores.mT @ q, shares.mT @ given, sink

    return function(forward, backward)


def _routed(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    chosen = (x.sigmoid() + bias).topk(2).indices
    weights = x.sigmoid().gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True)


@case("weights of two experts: the bias that chose them is taken away again", "kernel-rounding", "flashinfer-ai/flashinfer/pull/3875", _routed,
      lambda: (drawn((6, 9))()[0], 12 + drawn((9,))()[0]))  # fmt: skip
def bias_taken_away(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and bias.shape == x.shape[1:] and x.shape[1] > 1)
    raised, chosen = (x.sigmoid() + bias.detach()).topk(2)
    weights = raised - bias.detach()[chosen] if wrong else x.gather(-1, chosen).sigmoid()
    return weights / weights.sum(-1, keepdim=True)


@case("largest two with a bias: the search begins at minus one", "kernel-contract", "vllm-project/vllm/pull/31478",
      lambda x, bias: (x.sigmoid() + bias).topk(2).values, lambda: (drawn((6, 9))()[0], drawn((9,))()[0]))  # fmt: skip
def begins_at_minus_one(wrong: bool, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and bias.shape == x.shape[1:] and x.shape[1] > 1)
    left, made = x.sigmoid() + bias, []
    for _ in range(2):
        most, place = left.max(-1, keepdim=True)
        made.append(most.clamp(min=-1) if wrong else most)
        left = left.scatter(-1, place, -torch.inf)
    return torch.cat(made, -1)


@case("group norm of pictures: on the way back a channel is as long as a row", "kernel-gradient", "linkedin/Liger-Kernel/pull/1376",
      lambda x, w, b: F.group_norm(x, 2, w, b), drawn((3, 4, 3, 5), (4,), (4,)))  # fmt: skip
def as_long_as_a_row(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        need(x.dim() == 4 and w.shape == b.shape == x.shape[1:2] and len(w) % 2 == 0 and x.numel() > 0)
        parts = x.reshape(len(x), 2, -1)
        scale = (parts.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
        normed = ((parts - parts.mean(-1, keepdim=True)) * scale).view(x.shape)
        return normed * w[:, None, None] + b[:, None, None], (normed, scale, w)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        normed, scale, w = saved
        weighed = (given * w[:, None, None]).reshape(len(given), 2, -1)
        flat = normed.view(weighed.shape)
        dx = scale * (weighed - weighed.mean(-1, keepdim=True) - flat * (weighed * flat).mean(-1, keepdim=True))
        rows = slice(0, 1) if wrong else slice(None)
        return dx.view(given.shape), (given * normed)[:, :, rows].sum((0, 2, 3)), given[:, :, rows].sum((0, 2, 3))

    return function(forward, backward)


def _lion(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return p * (1 - 0.1 * 0.3) - 0.1 * (0.9 * m + 0.1 * g).sign(), 0.99 * m + 0.01 * g


@case("lion: the decay is added to the gradient", "kernel-contract", "bitsandbytes-foundation/bitsandbytes/pull/1993", _lion, drawn(*[(6, 9)] * 3))
def decay_in_the_gradient(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    g = g + 0.3 * p if wrong else g
    kept = p if wrong else p - 0.03 * p
    return kept - 0.1 * torch.sign(m + 0.1 * (g - m)), m + 0.01 * (g - m)


@case("place of the largest: NaN is passed over", "kernel-contract", "ml-explore/mlx/pull/4292", lambda x: x.argmax(-1), drawn((5, 11)))
def passed_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    most, place = torch.full((len(x),), -torch.inf), torch.zeros(len(x), dtype=torch.long)
    for step, column in enumerate(x.unbind(1)):
        larger = (column > most) | (column.isnan() & ~most.isnan() & (not wrong))
        most, place = torch.where(larger, column, most), torch.where(larger, step, place)
    return place


def _normed(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) * (x.var(0, correction=0) + 1e-5).rsqrt()


@case("batch norm: on the way back the input is read in the order of the incoming gradient", "kernel-stride", "pytorch/pytorch/pull/64100", _normed,
      drawn((6, 8)))  # fmt: skip
def order_of_the_gradient(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2 and len(x) > 0)
        mean, scale = x.mean(0), (x.var(0, correction=0) + 1e-5).rsqrt()
        return (x - mean) * scale, (x, mean, scale)

    def backward(saved: Any, given: torch.Tensor) -> torch.Tensor:
        x, mean, scale = saved
        turned = wrong and given.stride(0) < given.stride(1) and x.is_contiguous()
        normed = ((as_if(x, (1, len(x))) if turned else x) - mean) * scale
        return scale * (given - given.mean(0) - normed * (given * normed).mean(0))

    return function(forward, backward)


@case("rows that are kept: a worker ends at the first that is not", "kernel-mask", "NVIDIA/warp/issues/594",
      lambda x, keep: F.silu(x.masked_fill(keep[:, None] == 0, 0)), lambda: (drawn((12, 5))()[0], (whole(12, most=4) > 0).long()))  # fmt: skip
def ends_at_the_first(wrong: bool, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and keep.shape == x.shape[:1])
    done = keep != 0
    if wrong:  # eight workers: each takes every eighth row
        done = torch.stack([done[place % 8 : place + 1 : 8].all() for place in range(len(x))]) if len(x) else done
    return torch.where(done[:, None], x * x.sigmoid(), 0)
