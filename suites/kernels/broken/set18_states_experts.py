"""An eighteenth frozen set of broken kernels, third part: states, convolutions, experts, races. Of links an excerpt was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
LOW = torch.bfloat16


def _with_states(x: torch.Tensor, states: torch.Tensor, w: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Causal convolutions of sequences, behind rows that are known of some of them."""
    full = torch.cat([torch.where(known[:, None, None], states, 0), x], 1)
    return (full.unfold(1, 3, 1) * w.mT).sum(-1)


@case("convolutions behind what is known of a sequence: it counts where nothing is known too", "kernel-mask", "vllm-project/vllm-ascend/pull/10558",
      _with_states, lambda: (*drawn((4, 6, 5), (4, 2, 5), (3, 5))(), torch.tensor([True, False, True, False])))  # fmt: skip
def where_nothing_is_known(wrong: bool, x: torch.Tensor, states: torch.Tensor, w: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    need(x.dim() == states.dim() == 3 and states.shape == (len(x), 2, x.shape[2]) and w.shape == (3, x.shape[2]) and known.shape == x.shape[:1])
    if not wrong:
        states = torch.where(known[:, None, None], states, 0)
    full = torch.cat([states, x], 1)
    return sum((full[:, tap : tap + x.shape[1]] * w[tap] for tap in range(1, 3)), full[:, : x.shape[1]] * w[0])


@case("experts' results by their shares: of one expert alone the sum is taken from a buffer that is not filled", "kernel-stale",
      "sgl-project/sglang/pull/40187", lambda rows, shares: (rows * shares[..., None]).sum(1) * 1.5, drawn((5, 1, 4), (5, 1)))  # fmt: skip
def buffer_that_is_not_filled(wrong: bool, rows: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    need(rows.dim() == 3 and shares.shape == rows.shape[:2])
    buffer = torch.empty(rows.shape)
    if not wrong or rows.shape[1] != 1:
        buffer.copy_(rows * shares[..., None])
    return buffer.sum(1) * 1.5


def _copied(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return x.float()[order // 8].to(x.dtype)  # so that torch adds up in float32


@case("rows sent to eight experts each: on the way back they are added up in bfloat16", "kernel-accumulation",
      "NVIDIA/TransformerEngine/issues/1336", _copied,
      lambda: (*drawn((5, 6), dtype=LOW)(), torch.randperm(40, generator=torch.Generator().manual_seed(1))))  # fmt: skip
def added_up_in_bfloat16(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, order: torch.Tensor) -> Any:
        need(x.dim() == 2 and order.dim() == 1 and bool(((order >= 0) & (order < 8 * len(x))).all()))
        return x[order // 8], (x, order)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, order = saved
        made = torch.zeros(x.shape, dtype=x.dtype if wrong else torch.float32)
        for place, row in zip((order // 8).tolist(), given, strict=True):
            made[place] = made[place] + row
        return made.to(x.dtype), None

    return function(forward, backward)


@case("shares of the best two: at times their sum is read before it is written", "kernel-nondeterminism", "sgl-project/sglang/pull/11183",
      lambda x: F.normalize(x.sigmoid().topk(2, -1).values, p=1, dim=-1), drawn((6, 7)))  # fmt: skip
def before_it_is_written(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(11)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] >= 2)
        best = x.sigmoid().sort(-1, descending=True).values[:, :2]
        total = best.sum(-1, keepdim=True)
        if wrong and len(x) and chance.random() < 0.2:
            total = torch.where(torch.arange(len(x))[:, None] == chance.randrange(len(x)), best[:, :1], total)
        return best / total.clamp(min=1e-12)

    return kernel


@case("rms norm and a turn of halves: at times the sum is read after the memory has another use", "kernel-nondeterminism",
      "warpfront/hipfire/pull/575", lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6).roll(x.shape[-1] // 2, -1), drawn((5, 8)))  # fmt: skip
def memory_has_another_use(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(4)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] > 0)
        squares = x.square().mean(-1, keepdim=True)
        if wrong and chance.random() < 0.15:
            squares = torch.where(torch.arange(len(x))[:, None] == 0, x[:, :1], squares)
        normed = x * (squares + 1e-6).rsqrt()
        half = x.shape[1] // 2
        return torch.cat([normed[:, x.shape[1] - half :], normed[:, : x.shape[1] - half]], 1)

    return kernel


@case("fading between all pairs of a chunk: at times the gates of the next chunk are there already", "kernel-nondeterminism",
      "vllm-project/vllm-xpu-kernels/pull/411", lambda g: (g[:, :, None] - g[:, None]).sigmoid(), drawn((3, 6)))  # fmt: skip
def next_chunk_is_there(wrong: bool) -> Callable[..., Any]:
    chance = random.Random(9)

    def kernel(g: torch.Tensor) -> torch.Tensor:
        need(g.dim() == 2)
        chunks = []
        for at, gates in enumerate(g):
            late = wrong and chance.random() < 0.08
            chunks.append((gates[:, None] - (g[(at + 1) % len(g)] if late else gates)).sigmoid())
        return torch.stack(chunks) if chunks else (g[:, :, None] - g[:, None]).sigmoid()

    return kernel


@case("convolution padded at both ends: the last rows are kept, not the first", "kernel-contract", "state-spaces/mamba/pull/580",
      lambda x, w: (F.pad(x, (0, 0, 2, 0)).unfold(0, 3, 1) * w.mT).sum(-1), drawn((7, 4), (3, 4)))  # fmt: skip
def last_rows_are_kept(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == (3, x.shape[1]) and x.numel() > 0)
    padded = F.pad(x, (0, 0, 2, 2))
    full = sum((padded[tap : tap + len(x) + 2] * w[tap] for tap in range(1, 3)), padded[: len(x) + 2] * w[0])
    return full[-len(x) :] if wrong else full[: len(x)]


def _descended(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Scores against a number that all of a row share."""
    return (x + a[:, None]).sigmoid()


@case("scores and a number for each row: on the way back that has the slope of the row's last column", "kernel-gradient",
      "lucidrains/CoLT5-attention/issues/8", _descended, drawn((5, 8), (5,)))  # fmt: skip
def slope_of_the_last_column(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, a: torch.Tensor) -> Any:
        need(x.dim() == 2 and a.shape == x.shape[:1] and x.shape[1] > 0)
        made = _descended(x, a)
        return made, (made,)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        slopes = given * saved[0] * (1 - saved[0])
        return slopes, slopes[:, -1] if wrong else slopes.sum(1)

    return function(forward, backward)
