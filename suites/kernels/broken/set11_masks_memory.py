"""The eleventh frozen set of broken kernels, second part: masks, sums, chance, memory, strides, optimizers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

from broken.set11_pages_gradients import _turn

F = torch.nn.functional
HALF = torch.float16


@case("whether any so far is set: numbers are added up before they become flags", "kernel-contract", "IntelPython/dpctl/issues/2017",
      lambda x: x.bool().cumsum(-1) > 0, lambda: (whole(4, 9, most=2, least=-1),))  # fmt: skip
def added_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.cumsum(-1).bool() if wrong else x.ne(0).long().cumsum(-1).bool()


def _shown(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention to what is seen. Who sees nothing gets zeros."""
    share = (q @ k.T).masked_fill(~seen, -math.inf).softmax(-1)
    return torch.where(seen.any(-1, keepdim=True), share, 0.0) @ v


def _seen() -> tuple[torch.Tensor, ...]:
    seen = torch.rand(6, 7, generator=torch.Generator().manual_seed(4)) > 0.4
    seen[2] = False
    return (*drawn((6, 4), (7, 4), (7, 5))(), seen)


@case("attention with a mask: who sees nothing gets the mean", "kernel-mask", "microsoft/onnxruntime/issues/28904", _shown, _seen)
def gets_the_mean(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == 2, v.dim() == 2, q.shape[-1] == k.shape[-1], len(k) == len(v), seen.shape == (len(q), len(k)), len(k) > 0)
    scores = torch.where(seen, q @ k.T, -1e30)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    share = powers / powers.sum(-1, keepdim=True)
    return (share if wrong else torch.where(seen.any(-1, keepdim=True), share, 0.0)) @ v


def _started(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Causal attention in which each key is hidden from a row on."""
    rows, columns = torch.arange(len(q))[:, None], torch.arange(len(k))
    hidden = (columns > rows) | ((rows >= start) & (columns < rows))
    return (q @ k.T).masked_fill(hidden, -math.inf).softmax(-1) @ v


def _starts() -> tuple[torch.Tensor, ...]:
    return (*drawn((8, 4), (8, 4), (8, 5))(), torch.tensor([3, 5, 4, 7, 8, 6, 8, 8]))


@case("attention with a row from which each key is hidden: that row sees it still", "kernel-mask", "PaddlePaddle/flash-attention/pull/48", _started,
      _starts)  # fmt: skip
def sees_it_still(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, v.dim() == 2, len(v) == len(k), start.shape == (len(k),))
    made = [v[:0]]
    for row in range(len(q)):
        keys = [place for place in range(row + 1) if place == row or int(start[place]) >= row + (not wrong)]
        made.append((q[row] @ k[keys].T).softmax(-1)[None] @ v[keys])
    return torch.cat(made)


@case("batch norm: the mean of squares less the mean's square", "kernel-rounding", "tenstorrent/tt-metal/issues/45968",
      lambda x, w, b: F.batch_norm(x, None, None, w, b, True), drawn((8, 5), (5,), (5,)))  # fmt: skip
def mean_of_squares(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1, w.shape == x.shape[1:], b.shape == w.shape)
    mean = x.mean(0)
    spread = x.square().mean(0) - mean.square() if wrong else (x - mean).square().mean(0)
    return (x - mean) * (spread + 1e-5).rsqrt() * w + b


@case("sums of rows, tile after tile: a tile is read before it is written at times", "kernel-nondeterminism", "ORNL/HeCBench/issues/253",
      lambda x: x.sum(-1), drawn((5, 24)))  # fmt: skip
def read_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total, held = torch.zeros(len(x)), None
    for tile in x.split(8, -1):
        late = wrong and held is not None and held.shape == tile.shape and random.random() < 0.2
        held = held if late else tile
        total = total + held.sum(-1)
    return total


@case("rope in place: the partner is turned already at times", "kernel-nondeterminism", "flagos-ai/FlagGems/issues/5142",
      _turn, drawn((5, 8), (5, 4)))  # fmt: skip
def turned_already(wrong: bool, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, a.dim() == 2, x.shape[-1] % 2 == 0, a.shape == (len(x), x.shape[-1] // 2))
    one, two = x.chunk(2, -1)
    turned = one * a.cos() - two * a.sin()
    partner = turned if wrong and random.random() < 0.25 else one
    return torch.cat([turned, two * a.cos() + partner * a.sin()], -1)


@case("norm and what was normed: that is given back as it came", "kernel-mutation", "pytorch/pytorch/pull/153932",
      lambda x: (F.layer_norm(x, x.shape[-1:]), x.clone()), drawn((5, 12)))  # fmt: skip
def as_it_came(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[-1] > 0)
    apart = x - x.mean(-1, keepdim=True)
    return apart * (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt(), x if wrong else x + 0


@case("queries turned: they are written over in the memory of a projection", "kernel-mutation", "NVIDIA/Megatron-LM/pull/5412",
      lambda x, a: torch.cat([x[:, :4], x[:, 4:] * a.cos()], -1), drawn((5, 8), (5, 4)))  # fmt: skip
def written_over(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, a: torch.Tensor) -> Any:
        need(x.dim() == 2, a.dim() == 2, x.shape == (len(a), 8), a.shape[1] == 4)
        before, made = x[:, 4:].clone(), x.view(x.shape) if wrong else x.clone()
        made[:, 4:] *= a.cos()
        return made.clone(), (before, a)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        before, a = saved
        return torch.cat([gradient[:, :4], gradient[:, 4:] * a.cos()], -1), -gradient[:, 4:] * before * a.sin()

    return function(forward, backward)


@case("squares of rows added up: behind the end of a tile is what memory holds", "kernel-stale", "flagos-ai/FlagGems/issues/3716",
      lambda x: x.square().sum(-1).sqrt(), drawn((4, 20)))  # fmt: skip
def what_memory_holds(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    tile = (torch.empty if wrong else torch.zeros)(len(x), -(-x.shape[-1] // 16) * 16)
    tile[:, : x.shape[-1]] = x
    return tile.square().sum(-1).sqrt()


def _labels() -> tuple[torch.Tensor, ...]:
    labels = whole(9, most=5)
    labels[3:6] = -1
    return (*drawn((9, 5))(), labels)


@case("mean cross entropy: ignored rows are counted", "kernel-mask", "ROCm/TransformerEngine/pull/409",
      lambda x, y: F.cross_entropy(x, y, ignore_index=-1, reduction="sum") / (y != -1).sum().clamp(min=1), _labels)  # fmt: skip
def are_counted(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < -1) | (y >= x.shape[1])).any()))
    rows = x.logsumexp(-1) - x.gather(1, y.clamp(min=0)[:, None]).squeeze(1)
    kept = y != -1
    return torch.where(kept, rows, 0.0).sum() / (len(y) if wrong else kept.sum()) if bool(kept.any()) else torch.where(kept, rows, 0.0).sum()


@case("product of float16: added up in float16 over all of the sum", "kernel-accumulation", "sonos/tract/issues/2588",
      lambda x, w: (x.float() @ w.float()).to(x.dtype), drawn((4, 48), (48, 3), dtype=HALF))  # fmt: skip
def over_all(wrong: bool) -> Callable[..., Any]:
    return _chained(lambda x: x.dtype if wrong else torch.float32)


@case("linear of bfloat16: added up in bfloat16 where the sum is innermost", "kernel-accumulation", "openvinotoolkit/openvino/pull/25525",
      lambda x, w: (x.float() @ w.float()).to(x.dtype), drawn((3, 40), (40, 4), dtype=torch.bfloat16))  # fmt: skip
def innermost(wrong: bool) -> Callable[..., Any]:
    return _chained(lambda x: x.dtype if wrong else torch.float32)


def _chained(format_of: Callable[..., torch.dtype]) -> Callable[..., Any]:
    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, w.dim() == 2, x.shape[1] == len(w))
        total = torch.zeros(len(x), w.shape[1], dtype=format_of(x))
        for column, row in zip(x.unbind(1), w.unbind(0), strict=True):
            total = total + (column.float()[:, None] * row.float()).to(total.dtype)
        return total.to(x.dtype)

    return kernel


@case("cross entropy of each row: its gradient is zero", "kernel-gradient", "microsoft/DirectML/issues/740",
      lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda: (*drawn((6, 5))(), whole(6, most=5)))  # fmt: skip
def gradient_of_zero(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, not bool(((y < 0) | (y >= x.shape[1])).any()))
        sums = x.logsumexp(-1)
        return sums - x.gather(1, y[:, None]).squeeze(1), (x, y, sums)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, y, sums = saved
        share = (x - sums[:, None]).exp() - F.one_hot(y, x.shape[1])
        return share * (gradient * 0 if wrong else gradient)[:, None], None

    return function(forward, backward)


def _step(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A weight after the third step of AdamW."""
    m, v = 0.9 * m + 0.1 * g, 0.99 * v.square() + 0.01 * g.square()
    return w * (1 - 0.01) - 0.1 * (m / (1 - 0.9**3)) / ((v / (1 - 0.99**3)).sqrt() + 1e-2)


@case("adamw: the decay shrinks the update too", "kernel-contract", "bitsandbytes-foundation/bitsandbytes/pull/2040", _step,
      drawn((7, 5), (7, 5), (7, 5), (7, 5)))  # fmt: skip
def update_too(wrong: bool) -> Callable[..., Any]:
    return _adamw(lambda w, part, root: (w - part / (root + 1e-2)) * (1 - 0.01) if wrong else w * (1 - 0.01) - part / (root + 1e-2))


@case("adamw: what keeps it from dividing by zero is corrected like the root", "kernel-contract", "aiqm/torchani/pull/261", _step,
      drawn((7, 5), (7, 5), (7, 5), (7, 5)))  # fmt: skip
def like_the_root(wrong: bool) -> Callable[..., Any]:
    return _adamw(lambda w, part, root: w * (1 - 0.01) - part / (root + (1e-2 / math.sqrt(1 - 0.99**3) if wrong else 1e-2)))


def _adamw(last: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def kernel(w: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        need(w.shape == g.shape, w.shape == m.shape, w.shape == v.shape)
        part = 0.1 * (0.9 * m + 0.1 * g) / (1 - 0.9**3)
        return last(w, part, ((0.99 * v.square() + 0.01 * g.square()) / (1 - 0.99**3)).sqrt())

    return kernel


@case("codes of float16: cut off and not rounded", "kernel-rounding", "microsoft/onnxruntime/pull/32452",
      lambda x: (x.float() / 0.1).round().clamp(-128, 127).to(torch.int8), drawn((5, 9), dtype=HALF))  # fmt: skip
def cut_off(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    codes = x.float() / 0.1
    return (codes.trunc() if wrong else codes.round()).clamp(-128, 127).to(torch.int8)


@case("sums so far: the carry of a block goes by blocks of another size", "kernel-edge", "intel/torch-xpu-ops/pull/4820", lambda x: x.cumsum(-1),
      drawn((3, 30)))  # fmt: skip
def another_size(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    blocks = [each.cumsum(-1) for each in x.split(32, -1)]
    ends = torch.stack([each[:, -1] if each.shape[-1] else each.sum(-1) for each in blocks], -1).cumsum(-1)
    carries = F.pad(ends, (1, 0))
    place = (torch.arange(x.shape[-1]) // (64 if wrong else 32)).clamp(max=len(blocks))
    return torch.cat(blocks, -1) + carries[:, place]


@case("rows of a table: without places the way back fails", "kernel-edge", "MooreThreads/torch_musa/pull/152", lambda x, places: x[places],
      lambda: (*drawn((7, 4))(), whole(5, most=7)))  # fmt: skip
def way_back_fails(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, places: torch.Tensor) -> Any:
        need(x.dim() == 2, places.dim() == 1, not bool(((places < 0) | (places >= len(x))).any()))
        return x.index_select(0, places), (x, places)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, places = saved
        held, order = places.sort(stable=True)
        if wrong:
            held.max()  # a kernel that is launched for the last place
        return torch.zeros_like(x).index_add(0, held, gradient[order]), None

    return function(forward, backward)


@case("convolution: images are believed to lie without gaps", "kernel-stride", "ggml-org/llama.cpp/pull/28503", F.conv2d,
      drawn((2, 3, 6, 5), (4, 3, 3, 3)))  # fmt: skip
def without_gaps(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 4, x.shape[1] == w.shape[1], x.numel() > 0, w.numel() > 0)
    need(x.shape[2] >= w.shape[2], x.shape[3] >= w.shape[3])
    windows = (as_if(x, packed(x.shape)) if wrong else x).unfold(2, w.shape[2], 1).unfold(3, w.shape[3], 1)
    return torch.einsum("bchwij,ocij->bohw", windows, w)
