"""The twenty-fifth frozen set of broken kernels, second part: attention, norms, places, formats, memory. Of links an excerpt was read."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), keep.shape == (len(q), len(k)))
    scores = (q @ k.T).masked_fill(~keep, -math.inf)
    return torch.where(keep.any(1, keepdim=True), scores.softmax(1), 0) @ v


@case("attention: a query that sees no key is NaN", "kernel-mask", "iree-org/iree/issues/24175", _masked,
      lambda: (*drawn((4, 6), (5, 6), (5, 3))(), torch.arange(5) < torch.tensor([[5], [2], [0], [4]])))  # fmt: skip
def sees_no_key(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape[1] == k.shape[1], len(k) == len(v), keep.shape == (len(q), len(k)), len(k) > 0)
    scores = torch.einsum("id,jd->ij", q, k)
    most = scores.masked_fill(~keep, -math.inf).amax(1, keepdim=True).detach()
    if not wrong:
        most = most.masked_fill(most == -math.inf, 0)
    powers = (scores - most).masked_fill(~keep, -math.inf).exp()
    total = powers.sum(1, keepdim=True)
    return (powers / (total if wrong else total.masked_fill(total == 0, 1))) @ v


def _hidden(scores: torch.Tensor, values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2, keep.shape == scores.shape, values.dim() == 2, len(values) == scores.shape[1], bool(keep.any(1).all()))
    return scores.masked_fill(~keep, -1e9).softmax(1) @ values


@case("attention: the masked scores are a copy that nobody reads", "kernel-mask", "opendilab/DI-engine/issues/333", _hidden,
      lambda: (*drawn((3, 6), (6, 4))(), torch.arange(6) < torch.tensor([[6], [3], [4]])))  # fmt: skip
def copy_that_nobody_reads(wrong: bool, scores: torch.Tensor, values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2, keep.shape == scores.shape, values.dim() == 2, len(values) == scores.shape[1], bool(keep.any(1).all()))
    masked = scores.masked_fill(~keep, -1e9)
    read = scores if wrong else masked
    need(read.shape[1] > 0)
    powers = (read - read.amax(1, keepdim=True).detach()).exp()
    return (powers / powers.sum(1, keepdim=True)) @ values


def _groups(x: torch.Tensor, group: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[0] == x.shape[1] == len(group) == len(v))
    sees = group[:, None] >= group
    return x.masked_fill(~sees, -math.inf).softmax(1) @ v


@case("attention of groups: a token sees the first of the next group", "kernel-mask", "octo-models/octo/issues/75", _groups,
      lambda: (drawn((6, 6))()[0], torch.tensor([0, 0, 1, 1, 2, 3]), drawn((6, 3))()[0]))  # fmt: skip
def first_of_the_next_group(wrong: bool, x: torch.Tensor, group: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[0] == x.shape[1] == len(group) == len(v), len(x) > 0)
    sees = group <= group[:, None]
    if wrong:
        sees = sees | torch.cat([sees.new_zeros(len(x), 1), sees[:, :-1]], 1)
    scores = x.masked_fill(~sees, -math.inf)
    return (scores - scores.logsumexp(1, keepdim=True)).exp() @ v


def _causally(x: torch.Tensor, enable: bool) -> torch.Tensor:
    need(x.dim() == 2, x.shape[0] == x.shape[1])
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool).triu(1), -1e4) if enable else x * 1


@case("scores that may be masked: on the way back they always are", "kernel-gradient", "tensorflow/swift-models/pull/218", _causally,
      lambda: (*drawn((6, 6))(), False))  # fmt: skip
def always_on_the_way_back(wrong: bool, x: torch.Tensor, enable: bool) -> torch.Tensor:
    need(x.dim() == 2, x.shape[0] == x.shape[1])
    later = torch.arange(len(x))[:, None] < torch.arange(len(x))

    def forward(x: torch.Tensor) -> Any:
        return (torch.where(later, -1e4, x) if enable else x.clone()), ()

    return function(forward, lambda saved, g: g.masked_fill(later, 0) if enable or wrong else g.clone())(x)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:], w, b, 1e-6)


@case("layer norm: variance with one less", "kernel-contract", "harvardnlp/annotated-transformer/pull/119", _layer_norm, drawn((4, 12), (12,), (12,)))
def with_one_less(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape == b.shape, x.shape[1] > 0)
    even = x - x.mean(1, keepdim=True)
    variance = even.square().sum(1, keepdim=True) / max(x.shape[1] - (1 if wrong else 0), 1)
    return torch.addcmul(b, even * torch.rsqrt(variance + 1e-6), w)


@case("layer norm: what keeps it from zero is added behind the root", "kernel-contract", "hkproj/pytorch-transformer/pull/31",
      lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b, 1e-3), drawn((3, 10), (10,), (10,)))  # fmt: skip
def behind_the_root(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1:] == w.shape == b.shape, x.shape[1] > 0)
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    return (x - mean) / (variance.sqrt() + 1e-3 if wrong else (variance + 1e-3).sqrt()) * w + b


def _rope(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 8)
    phase = torch.arange(len(x), dtype=torch.float32)[:, None] * 10000.0 ** (-torch.arange(4, dtype=torch.float32) / 4)
    one, two = x.float().chunk(2, 1)
    return torch.cat([one * phase.cos() - two * phase.sin(), two * phase.cos() + one * phase.sin()], 1).to(x.dtype)


@case("rope: places are counted in bfloat16", "kernel-rounding", "nkalyanv99/UNI-D2/pull/6", _rope, drawn((400, 8), dtype=torch.bfloat16))
def counted_in_bfloat16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 8)
    places = torch.arange(len(x)).to(torch.bfloat16 if wrong else torch.float32).float()
    turn = torch.polar(torch.ones(len(x), 4), torch.outer(places, torch.pow(10000.0, -torch.arange(4) / 4)))
    turned = torch.complex(x[:, :4].float(), x[:, 4:].float()) * turn
    return torch.cat([turned.real, turned.imag], 1).to(x.dtype)


@case("whole numbers of real ones: what is to be rounded is cut off", "kernel-rounding", "tenstorrent/tt-mlir/issues/4127",
      lambda x: torch.round(x * 8).to(torch.int32), drawn((5, 9)))  # fmt: skip
def cut_off(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(bool(x.isfinite().all()), bool((x.abs() < 2.0**24).all()))
    return (x * 8).trunc().to(torch.int32) if wrong else torch.special.round(x * 8).to(torch.int32)


def _columns(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, scale.shape == zero.shape == codes.shape[1:])
    return (codes.to(scale.dtype) - zero) * scale


@case("codes with a scale for each column: read back as if for each row", "kernel-contract", "huawei-csl/SINQ/pull/8", _columns,
      lambda: (whole(4, 4, most=16), *drawn((4,), (4,))()))  # fmt: skip
def as_if_for_each_row(wrong: bool, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, scale.shape == zero.shape == codes.shape[1:])
    if wrong:
        need(len(codes) == codes.shape[1])
        return (codes.to(scale.dtype) - zero[:, None]) * scale[:, None]
    columns = [(column.to(scale.dtype) - each) * by for column, each, by in zip(codes.T, zero, scale, strict=True)]
    return torch.stack(columns, 1) if columns else scale.new_zeros(codes.shape)


def _coded_product(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1])
    return x @ (codes.to(x.dtype) * scale[:, None]).T


@case("product with codes: rows are read as if they lay one behind the other", "kernel-stride", "microsoft/BitBLAS/pull/34", _coded_product,
      lambda: (*drawn((3, 6))(), whole(5, 6, most=16, least=-8).to(torch.int8), drawn((5,))()[0].abs()))  # fmt: skip
def rows_one_behind_the_other(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1])
    if wrong:
        codes = as_if(codes, packed(codes.shape))
    return F.linear(x, codes.to(x.dtype)) * scale


@case("largest so far in pieces: columns are read with a stride of one", "kernel-stride", "zsef123/Connected_components_PyTorch/issues/7",
      lambda x: torch.cummax(x, 1).values, drawn((6, 7)))  # fmt: skip
def stride_of_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    read = as_if(x, packed(x.shape)) if wrong else x
    out, step = read, 1
    while step < x.shape[1]:
        out = torch.cat([out[:, :step], torch.maximum(out[:, step:], out[:, :-step])], 1)
        step *= 2
    return out.clone()


@case("products added to a tensor: it is read as if stored whole", "kernel-stride", "torch/torch7/issues/671", torch.baddbmm,
      drawn((2, 3, 5), (2, 3, 4), (2, 4, 5)))  # fmt: skip
def read_as_if_stored_whole(wrong: bool, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == c.dim() == 3, a.shape[2] == b.shape[1], c.shape == (len(a), a.shape[1], b.shape[2]), len(a) == len(b))
    return (as_if(c, packed(c.shape)) if wrong else c) + torch.einsum("nik,nkj->nij", a, b)


@case("sum of squares of rows: a buffer is used again before it was read", "kernel-nondeterminism", "NVIDIA/Fuser/issues/678",
      lambda x: x.square().sum(1), drawn((6, 8)))  # fmt: skip
def used_again_before_read(wrong: bool) -> Any:
    calls = iter(range(10**9))
    draw = torch.Generator().manual_seed(5)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        total = torch.linalg.vecdot(x, x)
        next(calls)
        if wrong and len(x) > 1 and float(torch.rand((), generator=draw)) < 0.4:
            return torch.cat([total[1:2], total[1:]])
        return total

    return kernel


@case("butterflies: the second half begins before the first is stored", "kernel-nondeterminism", "vernamlab/cuFHE/pull/4",
      lambda x: torch.cat([x[:, :4] + x[:, 4:], x[:, :4] - x[:, 4:]], 1), drawn((5, 8)))  # fmt: skip
def before_the_first_is_stored(wrong: bool) -> Any:
    lock, draw = threading.Lock(), torch.Generator().manual_seed(9)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[1] == 8)
        one, two = x[:, :4], x[:, 4:]
        with lock:
            early = wrong and float(torch.rand((), generator=draw)) < 0.3
        return torch.cat([one + two, (one + two if early else one) - two], 1)

    return kernel


@case("product with a vector: of no columns memory is left as it was", "kernel-stale", "Theano/Theano/pull/5286",
      lambda a, x: a @ x, drawn((5, 6), (6,)))  # fmt: skip
def left_as_it_was(wrong: bool, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, x.shape == a.shape[1:])

    def forward(a: torch.Tensor, x: torch.Tensor) -> Any:
        out = torch.empty(len(a), dtype=a.dtype) if wrong else torch.zeros(len(a), dtype=a.dtype)
        if x.numel():
            torch.mv(a, x, out=out)
        return out, (a, x)

    return function(forward, lambda saved, g: (torch.outer(g, saved[1]), saved[0].T @ g))(a, x)
