"""A ninth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read.

One twin was mended, which was accused rightly: its gradient was NaN where a power is Inf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, need

F = torch.nn.functional


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-two, one], -1) * sin[:, None]


def turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys (tokens, heads, size), turned by tables (tokens, size)."""
    return _turned(q, cos, sin), _turned(k, cos, sin)


@case("rope of queries and keys: the second halves are those of the other", "kernel-contract", "hpcaitech/ColossalAI/issues/6428", turned,
      drawn((5, 3, 8), (5, 3, 8), (5, 8), (5, 8)))  # fmt: skip
def crossed(wrong: bool, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(q.dim() == 3 and q.shape == k.shape and not (q.shape[2] % 2) and cos.shape == sin.shape and cos.shape == (q.shape[0], q.shape[2]))
    half = q.shape[2] // 2
    q0, q1, k0, k1 = q[..., :half], q[..., half:], k[..., :half], k[..., half:]
    c0, c1, s0, s1 = (each[:, None] for each in (cos[:, :half], cos[:, half:], sin[:, :half], sin[:, half:]))
    first = (q0 * c0 - q1 * s0, q0 * c0 - q1 * s0 if wrong else k0 * c0 - k1 * s0)
    second = (k1 * c1 + k0 * s1 if wrong else q1 * c1 + q0 * s1, k1 * c1 + k0 * s1)
    return torch.cat([first[0], second[0]], -1), torch.cat([first[1], second[1]], -1)


@case("shares of the two best experts: raw scores where shares are not normalised again", "kernel-contract", "sgl-project/sglang/pull/35160",
      lambda scores: scores.softmax(-1).topk(2, -1).values, drawn((7, 9)))  # fmt: skip
def raw_scores(wrong: bool, scores: torch.Tensor) -> torch.Tensor:
    need(scores.dim() and scores.shape[-1] >= 2)
    best = scores.topk(2, -1).values
    return best if wrong else (best - scores.logsumexp(-1, keepdim=True)).exp()


def partly(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first part of each head, as wide as the tables, is turned; the rest stays."""
    wide = cos.shape[-1]
    return torch.cat([_turned(x[..., :wide], cos, sin), x[..., wide:]], -1)


@case("rope of a part of each head: all of it is turned", "kernel-contract", "vllm-project/vllm/pull/43676", partly, drawn((5, 3, 8), (5, 4), (5, 4)))
def all_turned(wrong: bool, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    if x.dim() != 3 or cos.shape != sin.shape or cos.dim() != 2 or len(cos) != len(x) or not 0 < cos.shape[1] <= x.shape[2] or cos.shape[1] % 2:
        raise ValueError("tables no wider than a head are needed")
    part = cos.shape[1]
    if wrong and x.shape[2] % part == 0:
        times = x.shape[2] // part
        return _turned(x, cos.repeat(1, times), sin.repeat(1, times))
    one, two = x[..., : part // 2], x[..., part // 2 : part]
    c, s = cos[:, None], sin[:, None]
    return torch.cat(
        [one * c[..., : part // 2] - two * s[..., : part // 2], two * c[..., part // 2 :] + one * s[..., part // 2 :], x[..., part:]], -1
    )


@case("gated linear unit: the value is squashed, not the gate", "kernel-contract", "ooples/AiDotNet.Tensors/pull/46", F.glu, drawn((6, 16)))
def value_squashed(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 2))
    value, gate = x.unflatten(-1, (2, x.shape[-1] // 2)).unbind(-2)
    return gate * value.sigmoid() if wrong else value * gate.sigmoid()


def adam(p: torch.Tensor, m: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """The third step of Adam. `root`: the root of the second moment."""
    return p - 0.1 * (m / (1 - 0.9**3)) / ((root.square() / (1 - 0.99**3)).sqrt() + 1e-3)


@case("adam: what keeps it from dividing by zero is corrected like the moment", "kernel-contract", "karpathy/nanochat/issues/304", adam,
      drawn((6, 8), (6, 8), (6, 8)))  # fmt: skip
def corrected_too(wrong: bool) -> Callable[..., Any]:
    first, second = 1 - 0.9**3, (1 - 0.99**3) ** 0.5

    def kernel(p: torch.Tensor, m: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        need(p.shape == m.shape == root.shape)
        return p - 0.1 * second / first * m / (root.abs() + 1e-3 * (1 if wrong else second))

    return kernel


def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Attention to the keys that a mask keeps; 0 where it keeps none."""
    scores = (q @ k.mT) / max(q.shape[-1], 1) ** 0.5
    return (scores.masked_fill(~keep, -1e30).softmax(-1) * keep) @ v


def _masked(*sizes: tuple[int, ...], share: float, empty: bool = False) -> Callable[[], tuple[torch.Tensor, ...]]:
    def make() -> tuple[torch.Tensor, ...]:
        q, k, v = drawn(*sizes)()
        keep = torch.rand(len(q), len(k), generator=torch.Generator().manual_seed(4)) < share
        keep[:, 0] = True
        if empty:
            keep[1] = False
        return q, k, v, keep

    return make


def _attention(change: Callable[[torch.Tensor], torch.Tensor], again: bool = True) -> Callable[..., Any]:
    """Attention in tiles of 8 keys, whose mask is `change`d first. `again`: whether the mask is applied behind the exponential too."""

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        need(q.dim() == 2 and k.dim() == 2 and v.dim() == 2 and len(k) == len(v) and q.shape[1] == k.shape[1] and keep.shape == (len(q), len(k)))
        if not len(k):
            return q.new_zeros(len(q), v.shape[1]) + 0 * (q.sum() + k.sum() + v.sum())
        keep, scale = change(keep), max(q.shape[1], 1) ** -0.5
        most = (q.detach() @ k.detach().T * scale).masked_fill(~keep, -1e30).amax(-1, keepdim=True)
        total, made = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
        for some in torch.arange(len(k)).split(8):
            power = ((q @ k[some].T * scale).masked_fill(~keep[:, some], -1e30) - most).exp()
            power = power * keep[:, some] if again else power
            total, made = total + power.sum(-1, keepdim=True), made + power @ v[some]
        return made / total.clamp(min=1e-30)

    return kernel


@case("attention with a mask: it is not read behind the 32nd key", "kernel-mask", "vllm-project/vllm-ascend/issues/15503", kept,
      _masked((5, 8), (40, 8), (40, 6), share=0.6))  # fmt: skip
def not_read_behind(wrong: bool) -> Callable[..., Any]:
    return _attention(lambda keep: keep | (torch.arange(keep.shape[1]) >= 32) if wrong else keep)


@case("attention with a mask: a row that keeps no key reads them all", "kernel-mask", "NVIDIA/TensorRT-LLM/issues/17477", kept,
      _masked((6, 8), (10, 8), (10, 5), share=0.5, empty=True))  # fmt: skip
def reads_all(wrong: bool) -> Callable[..., Any]:
    return _attention(lambda keep: keep, again=not wrong)


@case("attention with a mask: another one is read in its place", "kernel-mask", "deepspeedai/DeepSpeed/issues/1912", kept,
      _masked((6, 8), (9, 8), (9, 5), share=0.5))  # fmt: skip
def another_one(wrong: bool) -> Callable[..., Any]:
    return _attention(lambda keep: torch.ones_like(keep) if wrong else keep)


def windowed(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each place sees itself and the three before it. Shapes (places, size)."""
    apart = torch.arange(len(x))[:, None] - torch.arange(len(x))
    return (x @ x.mT / max(x.shape[-1], 1) ** 0.5).masked_fill((apart < 0) | (apart > 3), -1e30).softmax(-1) @ v


@case("window of four: the first place is counted beside it", "kernel-mask", "zml/zml/pull/763", windowed, drawn((12, 8), (12, 5)))
def one_more(wrong: bool, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and v.dim() == 2 and len(x) == len(v))
    if not len(x):
        return windowed(x, v)
    wide = 5 if wrong else 4
    rows = [x[row : row + 1] @ x[max(row - wide + 1, 0) : row + 1].T * max(x.shape[1], 1) ** -0.5 for row in range(len(x))]
    return torch.cat([each.softmax(-1) @ v[max(row - wide + 1, 0) : row + 1] for row, each in enumerate(rows)])


@case("softmax of short rows: four at a time are loaded, behind the end too", "kernel-edge", "NVIDIA/Megatron-LM/issues/132",
      lambda x: x.softmax(-1), drawn((6, 16)))  # fmt: skip
def four_loaded(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1])
    columns = x.shape[1]
    wide = -(-columns // 4) * 4 if wrong and columns < 128 else columns
    read = F.pad(x.reshape(-1), (0, 4)).as_strided((len(x), wide), (columns, 1))
    powers = (read - read.detach().amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True))[:, :columns]


def opened(x: torch.Tensor, r: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What a token adds for itself. Shapes (tokens, size)."""
    return x + (r * k).sum(-1, keepdim=True) * v


@case("what each token adds for itself: tokens behind the last whole block of 64 are left out", "kernel-edge",
      "fla-org/flash-linear-attention/issues/906", opened, drawn((20, 8), (20, 8), (20, 8), (20, 8)))  # fmt: skip
def left_out(wrong: bool, x: torch.Tensor, r: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == r.shape == k.shape == v.shape)
    whole = len(x) if len(x) <= 64 or not wrong else len(x) // 64 * 64
    added = torch.einsum("ts,ts->t", r, k)[:, None] * v
    return torch.cat([(x + added)[:whole], x[whole:]])


@case("rms norm in a pipeline of three stages: a block's squares are lost", "kernel-edge", "vllm-project/vllm/pull/44692",
      lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), drawn((5, 32), (32,)))  # fmt: skip
def squares_lost(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() and x.shape[-1:] == w.shape and len(w))
    blocks = list(x.split(16, -1))
    if wrong and len(blocks) > 3:
        blocks.pop(-2)
    squares = functools.reduce(torch.add, [block.square().sum(-1, keepdim=True) for block in blocks])
    return x * torch.rsqrt(squares / len(w) + 1e-6) * w
