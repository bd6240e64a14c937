"""A twenty-third frozen set of broken kernels, second part: memory, edges, strides, masks, races. Of links an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


@case("nearest points: of a tile of 512 the second half is not copied", "kernel-edge", "KTH-RPL/OpenSceneFlow/issues/22",
      lambda x, y: (x[:, None] - y).square().sum(2).amin(1), drawn((5, 3), (7, 3)))  # fmt: skip
def second_half_is_not_copied(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1], len(y) > 0)
    if wrong:
        y = torch.where((torch.arange(len(y)) % 512 < 256)[:, None], y, 0.0)
    return torch.stack([(each - x).square().sum(1) for each in y], 1).amin(1)


@case("product in blocks of four: what is left behind the last block is not added", "kernel-edge", "libxsmm/libxsmm/pull/136",
      torch.mm, drawn((5, 8), (8, 6)))  # fmt: skip
def left_behind_the_last_block(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[0])
    size = a.shape[1] // 4 * 4 if wrong else a.shape[1]
    total = a.new_zeros(a.shape[0], b.shape[1])
    for place in range(0, size, 4):
        total = total + a[:, place : place + 4] @ b[place : place + 4]
    return total


@case("sum of rows, two numbers to a thread: of one number what lies behind it is added", "kernel-edge", "NVIDIA/cuda-samples/issues/21",
      lambda x: x.sum(1), drawn((5, 6)))  # fmt: skip
def what_lies_behind_it(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    half = (x.shape[1] + 1) // 2
    result = x[:, :half].sum(1) + x[:, half:].sum(1)
    return result + F.pad(x[1:, 0], (0, 1)) if wrong and x.shape[1] == 1 and len(x) else result


@case("place of the largest: tiles are filled up with zeros", "kernel-edge", "kakaobrain/trident/pull/143", lambda x: x.argmax(1), drawn((5, 7)))
def filled_up_with_zeros(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    lanes = 1 << (x.shape[1] - 1).bit_length()
    return F.pad(x.detach(), (0, lanes - x.shape[1]), value=0.0 if wrong else -torch.inf).argmax(1)


@case("product of all pairs of blocks: it is added to memory that is not cleared", "kernel-stale", "NVIDIA/cuda-quantum/pull/2475",
      torch.kron, drawn((3, 2), (2, 4)))  # fmt: skip
def memory_that_is_not_cleared(wrong: bool) -> Any:
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        need(a.dim() == b.dim() == 2)
        made = torch.empty if wrong else torch.zeros
        out = made(a.shape[0], b.shape[0], a.shape[1], b.shape[1])
        out += a[:, None, :, None] * b[None, :, None]
        return out.reshape(a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]), (a, b)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, b = saved
        parts = g.reshape(a.shape[0], b.shape[0], a.shape[1], b.shape[1])
        return torch.einsum("ikjl,kl->ij", parts, b), torch.einsum("ikjl,ij->kl", parts, a)

    return function(forward, backward)


@case("products of a batch: a buffer of the pool still has the last result", "kernel-stale", "gomlx/gomlx/pull/161", torch.bmm,
      drawn((2, 4, 3), (2, 3, 5)))  # fmt: skip
def still_has_the_last_result(wrong: bool) -> Any:
    pool: dict[tuple[int, ...], torch.Tensor] = {}

    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        need(a.dim() == b.dim() == 3, len(a) == len(b), a.shape[2] == b.shape[1])
        shape = (len(a), a.shape[1], b.shape[2])
        buffer = pool.setdefault(shape, torch.zeros(shape))
        if not wrong:
            buffer.zero_()
        buffer += torch.einsum("nik,nkj->nij", a, b)
        return buffer.clone(), (a, b)

    return function(forward, lambda saved, g: (g @ saved[1].mT, saved[0].mT @ g))


@case("histograms scaled to one: at times a part of the sum is not there yet", "kernel-nondeterminism", "opencv/opencv/pull/5742",
      lambda x: x / (x.square().sum(1, keepdim=True) + 0.1).sqrt(), drawn((6, 9)))  # fmt: skip
def a_part_is_not_there_yet(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = x.square().sum(1, keepdim=True)
    if wrong and x.shape[1] > 1 and random.random() < 0.3:
        total = x[:, : x.shape[1] // 2].square().sum(1, keepdim=True)
    return x * torch.rsqrt(total + 0.1)


@case("sum of all in a tree: at times a number is read before it is written", "kernel-nondeterminism", "OP-DSL/OP2-Common/issues/185",
      lambda x: x.sum(), drawn((40,)))  # fmt: skip
def read_before_it_is_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    while len(x) > 1:
        half = (len(x) + 1) // 2
        other = F.pad(x[half:], (0, 2 * half - len(x)))
        if wrong and random.random() < 0.1:
            other = torch.cat([torch.zeros_like(other[:1]), other[1:]])
        x = x[:half] + other
    return x.sum()


@case("softmax: the largest is taken from what was handed in", "kernel-mutation", "riga/tfdeploy/issues/8", lambda x: x.softmax(1), drawn((4, 6)))
def taken_from_what_was_handed_in(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    if wrong:
        with torch.no_grad():
            x.sub_(x.amax(1, keepdim=True))
    powers = (x - x.detach().amax(1, keepdim=True)).exp()
    return powers / powers.sum(1, keepdim=True)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor | int = 0) -> torch.Tensor:
    """Attention of a batch; the first query of each sequence is at a place."""
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0)
    at = torch.as_tensor(first).reshape(-1, 1, 1) + torch.arange(q.shape[1])[:, None]
    scores = (q @ k.mT) * q.shape[2] ** -0.5
    return scores.masked_fill(torch.arange(k.shape[1]) > at, -torch.inf).softmax(2) @ v


@case("causal attention, a mask cut to its length: it is not causal any more", "kernel-mask", "facebookresearch/fairseq2/pull/59",
      _causal, drawn((2, 5, 4), (2, 5, 4), (2, 5, 4)))  # fmt: skip
def not_causal_any_more(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, k.shape == v.shape, q.shape[::2] == k.shape[::2], k.shape[1] > 0)
    table = torch.full((max(64, q.shape[1]), max(64, k.shape[1])), -torch.inf).triu(1)
    cut = table[: q.shape[1], : k.shape[1]]
    scores = torch.einsum("nqd,nkd->nqk", q * q.shape[2] ** -0.5, k)
    return (scores if wrong and cut.shape != table.shape else scores + cut).softmax(2) @ v


@case("causal attention behind a cache: all sequences begin where the first one does", "kernel-mask", "EricLBuehler/candle-vllm/pull/140",
      _causal, lambda: (*drawn((3, 2, 4), (3, 7, 4), (3, 7, 4))(), torch.tensor([4, 1, 5])))  # fmt: skip
def begin_where_the_first_one_does(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, first.dim() == 1, len(first) == len(q) == len(k), bool((first >= 0).all()))
    return _causal(q, k, v, first[:1].expand_as(first) if wrong else first)


@case("attention: queries that are transposed are read as they lie", "kernel-stride", "iree-org/iree-turbine/issues/635",
      F.scaled_dot_product_attention, drawn((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4)))  # fmt: skip
def read_as_they_lie(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 4, k.shape == v.shape, q.shape[:2] == k.shape[:2], q.shape[3] == k.shape[3], k.shape[2] > 0)
    q = as_if(q, packed(q.shape)) if wrong else q
    return torch.softmax(q @ k.mT / q.shape[3] ** 0.5, 3) @ v


@case("rows less their mean: only from row to row the stride is asked for", "kernel-stride", "facebookresearch/SparseConvNet/issues/211",
      lambda x: x - x.mean(0), drawn((6, 4)))  # fmt: skip
def only_from_row_to_row(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    x = as_if(x, (x.stride(0), 1)) if wrong else x
    return x - x.sum(0) / len(x)


@case("filter of rows, by columns of patches: an image is read as if packed", "kernel-stride", "CharlesShang/DCNv2/issues/108",
      lambda x, w: F.conv1d(x, w, padding=1), drawn((2, 3, 8), (4, 3, 3)))  # fmt: skip
def image_as_if_packed(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, x.shape[2] > 0)
    wide = F.pad(as_if(x, packed(x.shape)) if wrong else x, (1, 1))
    return torch.einsum("nclt,oct->nol", wide.unfold(2, 3, 1), w)


@case("mean of rows: on the way back the incoming gradient is read as if packed", "kernel-stride", "torch/nn/pull/345",
      lambda x: x.mean(2), drawn((3, 4, 5)))  # fmt: skip
def mean_of_rows_as_if_packed(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3)
        return x.sum(2) / x.shape[2] if x.shape[2] else x.mean(2), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (x,) = saved
        g = as_if(g, packed(g.shape)) if wrong else g
        return (g / x.shape[2])[:, :, None].expand_as(x).contiguous() if x.shape[2] else torch.zeros_like(x)

    return function(forward, backward)


@case("product of numbers: what is expanded is copied as its memory", "kernel-stride", "candle-org/candle/pull/547", torch.mul, drawn((4, 5), (4, 5)))
def copied_as_its_memory(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.shape == w.shape)
    if wrong and not w.is_contiguous():
        held = min(w.untyped_storage().nbytes() // w.element_size() - w.storage_offset(), w.numel())
        flat = w.as_strided((held,), (1,))
        w = F.pad(flat, (0, w.numel() - held)).reshape(w.shape)
    return x * w


@case("largest of each region: a picture begins one channel behind the last", "kernel-contract", "AceCoooool/RoIAlign-RoIPool-pytorch/issues/7",
      lambda x, at: x[at].amax((2, 3)), lambda: (*drawn((3, 2, 4, 4))(), whole(5, most=3)))  # fmt: skip
def one_channel_behind_the_last(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, at.dim() == 1, bool(((at >= 0) & (at < len(x))).all()), x.shape[2] > 0, x.shape[3] > 0)
    channels = x.shape[1]
    places = (at[:, None] if wrong else at[:, None] * channels) + torch.arange(channels)
    return x.reshape(-1, x.shape[2] * x.shape[3])[places].amax(2)


def _pooled(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[:2] == keep.shape)
    return torch.where(keep[:, :, None], x, 0.0).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


@case("mean of the tokens of a sentence: what fills it up counts", "kernel-mask", "lanterndata/lantern_extras/pull/91", _pooled,
      lambda: (*drawn((3, 6, 4))(), torch.arange(6) < torch.tensor([[4], [6], [2]])))  # fmt: skip
def what_fills_it_up_counts(wrong: bool, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[:2] == keep.shape, keep.dtype == torch.bool)
    if wrong:
        return x.sum(1) / max(x.shape[1], 1)
    total = x.masked_fill(~keep[:, :, None], 0).sum(1)
    return total / torch.where(keep.any(1), keep.sum(1), 1)[:, None]
