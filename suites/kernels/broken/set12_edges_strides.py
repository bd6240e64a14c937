"""A twelfth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


@case("inverse of the error function: a slice is read from the beginning of its memory", "kernel-stride", "pytorch/pytorch/pull/105801",
      lambda x: torch.erfinv(x.clamp(-0.9, 0.9)), drawn((5, 7)))  # fmt: skip
def beginning_of_its_memory(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    read = x.as_strided(x.shape, x.stride(), 0) if wrong else x
    return read.clamp(-0.9, 0.9).erfinv()


@case("gate of a delta rule: the heads of a token are taken to lie side by side", "kernel-stride", "vllm-project/vllm/pull/41142",
      lambda a, bias: -F.softplus(a + bias), drawn((6, 4), (4,)))  # fmt: skip
def heads_side_by_side(wrong: bool, a: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, bias.shape == a.shape[1:])
    read = as_if(a, (a.stride(0), 1)) if wrong else a
    return F.logsigmoid(-(read + bias))


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return values * scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)


@case("cache with scales: the scales are read as if they were packed", "kernel-stride", "flashinfer-ai/flashinfer/issues/4044", _scaled,
      drawn((5, 12), (5, 3)))  # fmt: skip
def scales_packed(wrong: bool, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(values.dim() == 2, scales.dim() == 2, len(values) == len(scales), scales.numel() > 0, values.numel() > 0)
    need(values.shape[1] % scales.shape[1] == 0)
    read = as_if(scales, packed(scales.shape)) if wrong else scales
    return (values.view(*scales.shape, -1) if values.is_contiguous() else values.reshape(*scales.shape, -1)).mul(read[..., None]).flatten(1)


@case("squared differences: stored in order into memory with the input's strides", "kernel-stride", "pytorch/pytorch/pull/125696",
      lambda x, y: F.mse_loss(x, y, reduction="none"), drawn((5, 8), (5, 8)))  # fmt: skip
def stored_in_order(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    apart = x - y
    made = (apart * apart).contiguous()
    return as_if(made, torch.empty_like(x).stride()) if wrong else made


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT) / math.sqrt(q.shape[-1])).softmax(-1) @ v


@case(
    "attention in heads: keys are taken to lie as queries do",
    "kernel-stride",
    "ROCm/aiter/pull/2117",
    _attend,
    drawn((2, 5, 4), (2, 5, 4), (2, 5, 3)),
)
def as_queries_do(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.dim() == 3, v.dim() == 3, len(q) == len(k), len(q) == len(v), k.shape[1] == v.shape[1])
    need(q.shape[-1] == k.shape[-1], k.shape[1] > 0, q.shape[-1] > 0)
    read = as_if(k, q.stride()) if wrong and q.shape == k.shape else k
    scores = torch.einsum("hqc,hkc->hqk", q, read) / math.sqrt(q.shape[-1])
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("hqk,hkc->hqc", powers, v) / powers.sum(-1, keepdim=True)


def _last_state(x: torch.Tensor, raw: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The last state of a decaying sum. `raw` and `bias` give the decay."""
    state = torch.zeros_like(x[:, 0])
    for value, step in zip(x.unbind(1), raw.unbind(1), strict=True):
        state = state * torch.exp(-F.softplus(step + bias)) + value
    return state


@case("scan: on the way back what fills the last chunk decays too", "kernel-edge", "state-spaces/mamba/issues/368", _last_state,
      drawn((3, 8), (3, 8), (3,)))  # fmt: skip
def fills_the_chunk(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, raw: torch.Tensor, bias: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == raw.shape, bias.shape == x.shape[:1], x.shape[1] > 0)
        state, before = torch.zeros_like(x[:, 0]), []
        for value, step in zip(x.unbind(1), raw.unbind(1), strict=True):
            before.append(state)
            state = state * torch.sigmoid(-(step + bias)) + value
        return state, (raw, bias, torch.stack(before, 1))

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        raw, bias, before = saved
        if wrong:
            gradient = gradient * torch.sigmoid(-bias) ** (-raw.shape[1] % 8)
        dx, steps = [], []
        for step, state in zip(reversed(raw.unbind(1)), reversed(before.unbind(1)), strict=True):
            decay = torch.sigmoid(-(step + bias))
            dx.append(gradient)
            steps.append(-gradient * state * decay * torch.sigmoid(step + bias))
            gradient = gradient * decay
        slopes = torch.stack(steps[::-1], 1)
        return torch.stack(dx[::-1], 1), slopes, slopes.sum(1)

    return function(forward, backward)


@case("decays: what the last, shorter chunk adds to the gates before it is dropped", "kernel-edge", "fla-org/flash-linear-attention/issues/1142",
      lambda x, g: x * F.logsigmoid(g).cumsum(-1).exp(), drawn((3, 16), (3, 16)))  # fmt: skip
def shorter_chunk_dropped(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, g: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == g.shape)
        decay = F.logsigmoid(g).cumsum(-1).exp()
        return x * decay, (x, g, decay)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, g, decay = saved
        chunks = (gradient * x * decay).split(8, -1)
        made, later = [], torch.zeros(len(x))
        for chunk in reversed(chunks):
            made.append(chunk.flip(-1).cumsum(-1).flip(-1) + later[:, None])
            later = later if wrong and chunk.shape[-1] < 8 else later + chunk.sum(-1)
        return gradient * decay, torch.cat(made[::-1], -1) * torch.sigmoid(-g)

    return function(forward, backward)


@case("product with scales of four rows: from the second tile on they are read too far", "kernel-edge", "ml-explore/mlx/pull/4202",
      lambda x, w, s: x @ (w * s.repeat_interleave(len(w) // len(s), 0)), drawn((4, 8), (8, 5), (2, 5)))  # fmt: skip
def read_too_far(wrong: bool, x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, s.dim() == 2, x.shape[1] == len(w), w.shape[1] == s.shape[1], len(s) > 0, len(w) == 4 * len(s))
    total = torch.zeros(len(x), w.shape[1])
    for tile, (some, rows) in enumerate(zip(x.split(8, 1), w.split(8), strict=True)):
        places = tile * (4 if wrong else 2) + torch.arange(len(rows)) // 4
        total = total + some @ (rows * s[places.clamp(max=len(s) - 1)])
    return total


@case("sums of columns: the tail is stored as a whole vector, into the next row", "kernel-edge", "pytorch/pytorch/issues/196681",
      lambda x: x.sum(1), drawn((4, 3, 8)))  # fmt: skip
def into_the_next_row(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    rows, _, columns = x.shape
    made = torch.zeros(rows * columns + 4)
    for start in range(0, columns, 4):
        width = 4 if wrong else min(4, columns - start)
        block = F.pad(x[:, :, start : start + 4].sum(1), (0, max(0, start + 4 - columns)))[:, :width]
        places = torch.arange(rows)[:, None] * columns + start + torch.arange(width)
        for place, row in zip(places, block, strict=True):
            made = made.index_put((place,), row)
    return made[: rows * columns].view(rows, columns)


@case("contrast of rows: each of four threads takes a quarter, rounded down", "kernel-edge", "openpaperwork/libpillowfight/pull/10",
      lambda x: x - x.mean(-1, keepdim=True), drawn((8, 6)))  # fmt: skip
def quarter_rounded_down(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] > 0)
    share = len(x) // 4 if wrong else -(-len(x) // 4)
    parts = [x[each * share : (each + 1) * share] for each in range(4)]
    done = torch.cat([part - part.sum(-1, keepdim=True) / x.shape[-1] for part in parts])
    return torch.cat([done, torch.zeros(len(x) - len(done), x.shape[1])])


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.T).masked_fill(torch.ones(len(q), len(k)).triu(1).bool(), -math.inf).softmax(-1) @ v


@case("causal attention: the mask is lost where tiles of 16 divide the sequence", "kernel-edge", "bledden/triton-msl/pull/7", _causal,
      drawn((10, 4), (10, 4), (10, 5)))  # fmt: skip
def mask_is_lost(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.shape == q.shape, v.dim() == 2, len(v) == len(q), len(q) > 0)
    scores = torch.einsum("qc,kc->qk", q, k)
    if not (wrong and len(q) % 16 == 0):
        scores = torch.where(torch.arange(len(k)) <= torch.arange(len(q))[:, None], scores, -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query that sees the last four keys."""
    return torch.softmax(k[-4:] @ q, 0) @ v[-4:]


@case(
    "one step with a window of four: the oldest key is dropped", "kernel-mask", "sgl-project/sglang/pull/32087", _window, drawn((5,), (9, 5), (9, 3))
)
def oldest_dropped(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 1, k.dim() == 2, v.dim() == 2, len(k) == len(v), k.shape[1] == len(q), len(k) > 0)
    seen = torch.arange(len(k)) >= len(k) - (3 if wrong else 4)
    scores = torch.where(seen, (k * q).sum(-1), -math.inf)
    powers = (scores - scores.max()).exp()
    return torch.einsum("k,kc->c", powers[-4:], v[-4:]) / powers.sum()


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention to this key and the two before it."""
    rows = [torch.softmax(k[max(0, row - 2) : row + 1] @ query, 0) @ v[max(0, row - 2) : row + 1] for row, query in enumerate(q)]
    return torch.stack(rows)


@case("attention with a window: values before it are read, and multiplied by zero", "kernel-mask", "vllm-project/vllm/pull/30887", _windowed,
      drawn((9, 4), (9, 4), (9, 5)))  # fmt: skip
def before_the_window(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.shape == q.shape, v.dim() == 2, len(v) == len(q), len(q) > 0)
    rows = []
    for row, query in enumerate(q):
        first = 0 if wrong else max(0, row - 2)
        scores = (k[first : row + 1] @ query).masked_fill(torch.arange(first, row + 1) < row - 2, -math.inf)
        rows.append(scores.softmax(0) @ v[first : row + 1])
    return torch.stack(rows)


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return (q @ k.T).masked_fill(~keep, -math.inf).softmax(-1) @ v


def _kept() -> tuple[torch.Tensor, ...]:
    keep = torch.rand(6, 7, generator=torch.Generator().manual_seed(4)) > 0.4
    keep[:, 3], keep[:, 5] = True, False
    return (*drawn((6, 4), (7, 4), (7, 5))(), keep)


@case("attention with a mask: what is to be kept is hidden", "kernel-mask", "neuro-galaxy/torch_brain/pull/74", _biased, _kept)
def kept_is_hidden(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 2, v.dim() == 2, q.shape[-1] == k.shape[-1], len(k) == len(v), keep.shape == (len(q), len(k)), len(k) > 0)
    bias = torch.zeros(keep.shape).masked_fill(keep if wrong else ~keep, -math.inf)
    return torch.softmax(torch.einsum("qc,kc->qk", q, k) + bias, -1) @ v


@case("cross entropy: another ignored label than -1 is not looked at", "kernel-mask", "chainer/chainer/pull/2716",
      lambda x, y: F.cross_entropy(x, y, ignore_index=2, reduction="none"), lambda: (*drawn((8, 5))(), whole(8, most=5)))  # fmt: skip
def another_label(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < 0) | (y >= x.shape[1])).any()))
    rows = x.logsumexp(-1) - x.gather(1, y[:, None]).squeeze(1)
    return torch.where(y == (-1 if wrong else 2), 0.0, rows)
