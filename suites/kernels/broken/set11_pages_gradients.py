"""An eleventh frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, whole

F = torch.nn.functional


@case("product: the result has the strides of the input", "kernel-stride", "pytorch/FBGEMM/pull/4796", lambda x, w: x @ w, drawn((6, 8), (8, 5)))
def strides_of_the_input(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[-1] == w.shape[0])
    made = x @ w
    turned = wrong and x.stride(0) < x.stride(1)
    return as_if(made.contiguous(), (1, len(made))) if turned else made


def _norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-5)


@case("rms norm: the weight has no gradient", "kernel-gradient", "unslothai/unsloth/issues/4533", _norm, drawn((5, 12), (12,)))
def without_a_gradient(wrong: bool) -> Callable[..., Any]:
    return _rms(lambda given, dx, normed: None if wrong else (given * normed).sum(0))


@case("rms norm: the weight's gradient is read where the input's was written", "kernel-gradient", "unslothai/unsloth/pull/4550", _norm,
      drawn((5, 12), (12,)))  # fmt: skip
def where_it_was_written(wrong: bool) -> Callable[..., Any]:
    return _rms(lambda given, dx, normed: ((dx if wrong else given) * normed).sum(0))


def _rms(weight: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 2, w.shape == x.shape[1:], len(w) > 0)
        scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return x * scale * w, (x * scale, scale, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        weighed = gradient * w
        dx = scale * (weighed - normed * (weighed * normed).mean(-1, keepdim=True))
        return dx, weight(gradient, dx, normed)

    return function(forward, backward)


def _turn(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)


@case("rope: with one head nothing is turned", "kernel-edge", "linkedin/Liger-Kernel/issues/342", _turn, drawn((2, 5, 8), (5, 4)))
def nothing_is_turned(wrong: bool, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, angle.dim() == 2, x.shape[-1] % 2 == 0, angle.shape == (x.shape[1], x.shape[2] // 2))
    if wrong and len(x) == 1:
        return x + 0
    pairs = torch.complex(*x.chunk(2, -1)) * torch.complex(angle.cos(), angle.sin())
    return torch.cat([pairs.real, pairs.imag], -1)


@case("rms norm with a weight for each layer: the first is that of all", "kernel-contract", "vllm-project/vllm-xpu-kernels/pull/579",
      lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-5) * w[:, None], drawn((3, 4, 8), (3, 8)))  # fmt: skip
def that_of_all(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, len(x) == len(w), x.shape[-1] == w.shape[-1], x.numel() > 0)
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return normed * (w[:1] if wrong else w)[:, None]


@case("largest three: where many are equal, places are -1", "kernel-contract", "sgl-project/sglang/pull/30645", lambda x: x.topk(3).indices,
      drawn((4, 16)))  # fmt: skip
def places_are_missing(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] >= 3)
    held, places = x.sort(dim=-1, descending=True, stable=True)
    least = held[:, 2:3]
    many = (x == least).sum(-1, keepdim=True) > 4
    lost = many & (held[:, :3] == least)
    return places[:, :3].masked_fill(lost & wrong, -1)


@case("product in parts of the sum: the memory that they are added to is not cleared", "kernel-stale", "ROCm/triton/pull/416", lambda x, w: x @ w,
      drawn((5, 16), (16, 6)))  # fmt: skip
def not_cleared(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, x.shape[-1] == w.shape[0])
    held = (torch.empty if wrong else torch.zeros)(len(x), w.shape[1])
    for some, others in zip(x.split(4, 1), w.split(4, 0), strict=True):
        held = held + some @ others
    return held


def _slots(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Means of the pages in eight slots of a table. Slots behind its end have page 0."""
    return cache[F.pad(table, (0, 8 - table.shape[1]))].mean(1)


@case("pages of a cache: behind the end of the table are those of an earlier call", "kernel-stale", "gittensor-ai-lab/sparkinfer/pull/146", _slots,
      lambda: (*drawn((6, 5))(), whole(3, 4, most=6)))  # fmt: skip
def of_an_earlier_call(wrong: bool) -> Callable[..., Any]:
    kept: dict[int, torch.Tensor] = {}

    def kernel(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        need(cache.dim() == 2, table.dim() == 2, table.shape[1] <= 8)
        slots = kept.setdefault(len(table), torch.zeros(len(table), 8, dtype=torch.long)) if wrong else torch.zeros(len(table), 8, dtype=torch.long)
        slots[:, : table.shape[1]] = table
        return torch.stack([cache[each % max(len(cache), 1)] for each in slots.unbind(1)]).mean(0)

    return kernel


def _paged(q: torch.Tensor, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Attention of each query to the pages that its row of the table names."""
    held = pages[table].flatten(1, 2)
    return ((held @ q[..., None]).softmax(1) * held).sum(1)


def _pages() -> tuple[torch.Tensor, ...]:
    return (*drawn((2, 4), (5, 3, 4))(), torch.tensor([[3, 0, 4], [1, 4, 2]]))


@case("attention to pages: they are read in order", "kernel-contract", "golang-design/accel/issues/10", _paged, _pages)
def read_in_order(wrong: bool) -> Callable[..., Any]:
    return _attended(lambda pages, table: torch.arange(table.shape[1]).expand(table.shape).clamp(max=len(pages) - 1) if wrong else table)


@case("attention to pages: the table is believed to be as wide as there are pages", "kernel-contract", "NVIDIA/cutlass/pull/2221", _paged, _pages)
def as_wide(wrong: bool) -> Callable[..., Any]:
    def places(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.arange(len(table))[:, None], torch.arange(table.shape[1])
        step = len(pages) if wrong else table.shape[1]
        return table.flatten()[(rows * step + columns).clamp(max=max(table.numel() - 1, 0))]

    return _attended(places)


def _attended(places: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def kernel(q: torch.Tensor, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        need(q.dim() == 2, pages.dim() == 3, table.dim() == 2, len(q) == len(table), q.shape[-1] == pages.shape[-1], min(pages.shape) > 0,
             table.numel() > 0)  # fmt: skip
        held = pages[places(pages, table)].flatten(1, 2)
        scores = torch.einsum("bnc,bc->bn", held, q)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return torch.einsum("bn,bnc->bc", powers, held) / powers.sum(-1, keepdim=True)

    return kernel


@case("largest of rows: the zeros that fill a tile win", "kernel-edge", "tenstorrent/tt-metal/issues/12662", lambda x: x.amax(-1), drawn((4, 32)))
def zeros_win(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[-1] > 0)
    return F.pad(x, (0, -x.shape[-1] % 32), value=0.0 if wrong else -math.inf).amax(-1)


@case("rows at places: of equal places one has a gradient", "kernel-gradient", "apache/mxnet/issues/9172", lambda x, places: x[places],
      lambda: (*drawn((6, 4))(), whole(9, most=6)))  # fmt: skip
def one_has_a_gradient(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, places: torch.Tensor) -> Any:
        need(x.dim() == 2, places.dim() == 1, not bool(((places < 0) | (places >= len(x))).any()))
        return x.index_select(0, places), (x, places)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, places = saved
        made = torch.zeros_like(x)
        if wrong:
            made[places] = gradient
        else:
            made.index_add_(0, places, gradient)
        return made, None

    return function(forward, backward)


@case("codes without a sign: of negative numbers the magnitude is taken", "kernel-contract", "tenstorrent/tt-metal/pull/56327",
      lambda x: (x * 20).round().clamp(0, 255).to(torch.uint8), drawn((5, 9)))  # fmt: skip
def magnitude(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    codes = (x * 20).round()
    return (codes.abs() if wrong else codes.clamp(min=0)).clamp(max=255).to(torch.uint8)
