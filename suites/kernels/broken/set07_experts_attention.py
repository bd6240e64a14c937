"""A seventh frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read.

One twin was mended, which was accused rightly: a gate of zero, of which the logarithm is -Inf, gave NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional
BF16 = torch.bfloat16


@case("experts that give back what they get: the grid counts whole blocks", "kernel-edge", "vllm-project/vllm/pull/49087",
      lambda x, scales: x * scales.sum(-1, keepdim=True), drawn((5, 64), (5, 3)))  # fmt: skip
def whole_blocks(wrong: bool, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and scales.dim() == 2 and len(x) == len(scales))
    end = x.shape[1] // 16 * 16 if wrong else x.shape[1]
    made = x[:, :end] * scales.sum(-1, keepdim=True)
    return F.pad(made, (0, x.shape[1] - end)) if wrong else made


def blocks_scaled(a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A product, what is summed scaled in blocks of eight."""
    need(a.shape[1] <= 8 * len(scales))
    return (a * scales.repeat_interleave(8)[: a.shape[1]]) @ b


@case("product of scaled blocks: the last block's scale is left out", "kernel-edge", "pytorch/FBGEMM/issues/6159", blocks_scaled,
      drawn((6, 64), (64, 5), (8,)))  # fmt: skip
def last_scale(wrong: bool, a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b) and a.shape[1] <= 8 * len(scales))
    total, part = torch.zeros(len(a), b.shape[1]), torch.zeros(len(a), b.shape[1])
    steps = -(-a.shape[1] // 4)
    for step in range(steps):
        part = part + a[:, 4 * step : 4 * step + 4] @ b[4 * step : 4 * step + 4]
        left = a.shape[1] - 4 * step
        if (step + 1) % 2 == 0 or (left < 4 if wrong else left <= 4):
            total, part = total + part * scales[step // 2], torch.zeros_like(part)
    return total + part


@case("product in two parts of the sum: the other part's block is added one row on", "kernel-edge", "NVIDIA/cutlass/pull/1224", torch.matmul,
      drawn((8, 48), (48, 6)))  # fmt: skip
def one_row_on(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2 and a.shape[1] == len(b))
    if a.shape[1] <= 64:
        return a @ b
    half = a.shape[1] // 2
    other = a[:, half:] @ b[half:]
    return a[:, :half] @ b[:half] + (other.roll(1, 0) if wrong else other)


def chunked_state(v: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A decaying sum and its last state. Shapes (length, width), (length,)."""
    state, made = torch.zeros(v.shape[1]), [torch.zeros(0, v.shape[1])]
    for now, gate in zip(v, F.logsigmoid(gates), strict=True):
        state = gate.exp() * state + now
        made.append(state[None])
    return torch.cat(made), state


@case("decaying sum: a gate's share of the last state is stored behind a short chunk", "kernel-edge", "fla-org/flash-linear-attention/pull/1143",
      chunked_state, drawn((16, 5), (16,)))  # fmt: skip
def behind_chunk(wrong: bool, v: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(v.dim() == 2 and gates.dim() == 1 and len(v) == len(gates))
    state, made = torch.zeros(v.shape[1]), [torch.zeros(0, v.shape[1])]
    for some, logs in zip(v.split(8), F.logsigmoid(gates).clamp(min=-1e4).split(8), strict=True) if len(v) else ():
        sums = logs.cumsum(0)
        apart = sums[:, None] - sums
        seen = torch.ones(len(some), len(some)).tril().bool()
        weights = torch.where(seen, torch.where(seen, apart, 0).exp(), 0)
        made.append(torch.where(seen[..., None], weights[..., None] * some, 0).sum(1) + sums.exp()[:, None] * state)
        last = sums[-1].detach() if wrong and len(some) < 8 else sums[-1]
        state = last.exp() * state + ((last - sums).exp()[:, None] * some).sum(0)
    return torch.cat(made), state


def top_left(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    later = torch.arange(len(k)) > torch.arange(len(q))[:, None]
    return ((q @ k.mT / math.sqrt(max(q.shape[1], 1))).masked_fill(later, -math.inf)).softmax(-1) @ v


@case("causal attention: a short block of queries sees as far as a whole one", "kernel-edge", "pytorch/pytorch/pull/192138", top_left,
      drawn((16, 6), (24, 6), (24, 6)))  # fmt: skip
def short_block(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(len(k) == len(v) and q.shape[1] == k.shape[1] and len(k))
    made = [torch.zeros(0, v.shape[1])]
    for begin in range(0, len(q), 8):
        rows = q[begin : begin + 8]
        later = torch.arange(len(k)) > begin + torch.arange(len(rows))[:, None]
        if wrong and len(rows) < 8:  # the mask is left out here, and the bound of the keys is that of eight queries
            later = (torch.arange(len(k)) >= begin + 8).expand_as(later)
        made.append(((rows @ k.mT / math.sqrt(max(q.shape[1], 1))).masked_fill(later, -math.inf)).softmax(-1) @ v)
    return torch.cat(made)


def token_losses(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.mT, labels, reduction="none")


def _labelled() -> tuple[torch.Tensor, ...]:
    return *drawn((6, 8), (11, 8))(), torch.tensor([3, 10, 0, 7, 5, 2])


@case(
    "linear and cross entropy of each token: one incoming gradient for all",
    "kernel-gradient",
    "linkedin/Liger-Kernel/pull/1298",
    token_losses,
    _labelled,
)
def one_gradient(wrong: bool) -> Callable[..., Any]:
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            need(x.dim() == 2 and x.shape[1] == w.shape[1] and len(labels) == len(x) and len(w))
            logits = x @ w.mT
            given = logits.softmax(-1)
            given[torch.arange(len(x)), labels] -= 1
            ctx.save_for_backward(x, w, given)
            return logits.logsumexp(-1) - logits[torch.arange(len(x)), labels]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            x, w, given = ctx.saved_tensors
            scaled = given * (gradient[:1] if wrong else gradient)[:, None]
            return (given * gradient[:, None]) @ w, scaled.mT @ x, None

    return Fused.apply


def biased(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT + bias).softmax(-1)


@case("scores with one bias for all heads: its gradient is the last head's", "kernel-gradient", "HKUSTDial/flash-sparse-attention/pull/193", biased,
      drawn((3, 7, 6), (3, 9, 6), (7, 9)))  # fmt: skip
def last_head(wrong: bool) -> Callable[..., Any]:
    class Scores(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            need(q.dim() == 3 and len(q) == len(k) and q.shape[2] == k.shape[2] and bias.shape == (q.shape[1], k.shape[1]))
            shares = (q @ k.mT + bias).softmax(-1)
            ctx.save_for_backward(q, k, shares)
            return shares

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
            q, k, shares = ctx.saved_tensors
            given = shares * (gradient - (gradient * shares).sum(-1, keepdim=True))
            return given @ k, given.mT @ q, (given[-1] if wrong and len(given) else given.sum(0))

    return Scores.apply


def zero_rows(x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Shares of what is not hidden; zeros where all is."""
    return torch.where(hidden.all(-1, keepdim=True), 0, x.masked_fill(hidden, -1e4).softmax(-1))


def _hidden() -> tuple[torch.Tensor, ...]:
    hidden = torch.rand(6, 12, generator=torch.Generator().manual_seed(2)) < 0.4
    hidden[2] = True
    hidden[0] = False
    return drawn((6, 12))()[0], hidden


@case("scaled softmax: even shares where all is hidden", "kernel-mask", "NVIDIA/apex/pull/1444", zero_rows, _hidden)
def even_shares(wrong: bool, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    need(x.shape == hidden.shape and x.shape[-1])
    scores = torch.where(hidden, -1e4, x)
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    shares = powers / powers.sum(-1, keepdim=True)
    return shares if wrong else shares * ~hidden.all(-1, keepdim=True)


def of_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Sequences behind one another in rows of one width; of each as many keys are seen as it has."""
    seen = torch.arange(k.shape[1]) < lengths[:, None, None]
    return (q @ k.mT / math.sqrt(max(q.shape[-1], 1))).masked_fill(~seen, -math.inf).softmax(-1) @ v


def _lengths() -> tuple[torch.Tensor, ...]:
    return *drawn((3, 5, 6), (3, 14, 6), (3, 14, 6))(), torch.tensor([9, 14, 3])


@case("attention in parts: the largest length ends each part of the keys", "kernel-mask", "Dao-AILab/flash-attention/pull/1192", of_lengths, _lengths)
def largest_length(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(len(q) == len(k) == len(v) == len(lengths) and k.shape[:2] == v.shape[:2] and q.shape[-1] == k.shape[-1] and k.shape[1])
    made = [torch.zeros(0, q.shape[1], v.shape[-1])]
    for row, length in enumerate(lengths.tolist()):
        end = int(lengths.max()) if wrong else length
        scores = q[row] @ k[row, :end].mT / math.sqrt(max(q.shape[-1], 1))
        logs = [part.logsumexp(-1, keepdim=True) for part in scores.split(8, -1)]
        whole = torch.cat(logs, -1).logsumexp(-1, keepdim=True)
        made.append(((scores - whole).exp() @ v[row, :end])[None])
    return torch.cat(made)


@case("shares of the best two: added up while others still write", "kernel-nondeterminism", "flagos-ai/FlagGems/pull/5125",
      lambda x: (lambda best: best / best.sum(-1, keepdim=True))(x.softmax(-1).topk(2, -1).values), drawn((32, 8)))  # fmt: skip
def still_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1] >= 2)
    best = x.softmax(-1).sort(-1, descending=True).values[..., :2]
    total = best.sum(-1, keepdim=True)
    if wrong and random.random() < 0.25 and x.dim() == 2 and len(x) > 4:
        total = torch.cat([total[:-1], best[-1:, :1]])  # the second was not there yet
    return best / total
