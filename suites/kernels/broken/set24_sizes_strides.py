"""A twenty-fourth frozen set of broken kernels, second part: sizes, strides, races, pictures. Of links an excerpt was read."""

from __future__ import annotations

import random

import torch
from cases import as_if, case, drawn, need, packed, whole

F = torch.nn.functional


def _behind(x: torch.Tensor, width: int) -> torch.Tensor:
    """Rows as they are read `width` at a time: behind the end of a row lies the next one, and behind the last one nothing."""
    flat = F.pad(x.reshape(-1), (0, width))
    at = torch.arange(len(x))[:, None] * x.shape[1] + torch.arange(-(-x.shape[1] // width) * width)
    return flat[at]


@case("product in tiles of eight: the last tile of a row goes on into the next row", "kernel-edge", "Cjkkkk/CUDA_gemm/issues/6", torch.mm,
      drawn((5, 16), (16, 6)))  # fmt: skip
def goes_on_into_the_next_row(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[0])
    if wrong and a.shape[1] and len(a):
        a = _behind(a, 8)
        b = torch.cat([b, b[-1:].expand(a.shape[1] - len(b), -1)])
    total = a.new_zeros(len(a), b.shape[1])
    for place in range(0, a.shape[1], 8):
        total = total + a[:, place : place + 8] @ b[place : place + 8]
    return total


@case("logarithms of shares, eight at a time: empty lanes are zeros, and count", "kernel-edge", "OpenNMT/CTranslate2/issues/351",
      lambda x: x.log_softmax(1), drawn((3, 8)))  # fmt: skip
def empty_lanes_count(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    top = x.detach().amax(1, keepdim=True)
    lanes = F.pad(x, (0, -x.shape[1] % 8 if wrong else 0))
    return x - top - (lanes - top).exp().sum(1, keepdim=True).log()


@case("mean square of rows, sixteen at a time: the tail of a vector is not masked", "kernel-edge", "google/gemma.cpp/issues/23",
      lambda x, w: F.rms_norm(x, x.shape[1:], w, eps=1e-6), drawn((4, 16), (16,)))  # fmt: skip
def tail_is_not_masked(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)
    read = _behind(x, 16) if wrong and len(x) else x
    return x * torch.rsqrt(read.square().sum(1, keepdim=True) / x.shape[1] + 1e-6) * w


@case("least of rows, eight at a time: behind the first eight nothing is looked at", "kernel-edge", "tphakala/simd/issues/45",
      lambda x: (x.amin(1), x.amax(1)), drawn((4, 6)))  # fmt: skip
def behind_the_first_eight(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    seen = x[:, :8] if wrong else x
    return seen.amin(1), -torch.amin(-seen, 1)


@case("mean of halves: so many numbers are Inf in their format", "kernel-edge", "chelsea0x3b/dfdx/pull/763",
      lambda x: x.float().mean().to(x.dtype), drawn((48,), dtype=torch.float16))  # fmt: skip
def so_many_are_inf(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    count = torch.tensor(len(x), dtype=torch.float32)
    return (x.float().sum() / (count.half() if wrong else count)).to(x.dtype)


def _splined(x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    need(x.dim() == basis.dim() == index.dim() == 2, weight.dim() == 3, basis.shape == index.shape, len(x) == len(basis))
    need(x.shape[1] == weight.shape[1], bool(((index >= 0) & (index < len(weight))).all()))
    return (torch.einsum("ei,esio->eso", x, weight[index]) * basis[:, :, None]).sum(1)


@case("weights by a spline: its shares are read as if packed", "kernel-stride", "pyg-team/pyg-lib/pull/572", _splined,
      lambda: (*drawn((6, 3), (4, 3, 5))(), drawn((6, 2))()[0].softmax(1), whole(6, 2, most=4)))  # fmt: skip
def shares_as_if_packed(wrong: bool, x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    need(x.dim() == basis.dim() == index.dim() == 2, weight.dim() == 3, basis.shape == index.shape, len(x) == len(basis))
    need(x.shape[1] == weight.shape[1], bool(((index >= 0) & (index < len(weight))).all()))
    read = as_if(basis, packed(basis.shape)) if wrong else basis
    each = [torch.bmm((x * read[:, part, None])[:, None], weight[index[:, part]])[:, 0] for part in range(basis.shape[1])]
    return sum(each[1:], each[0]) if each else x.new_zeros(len(x), weight.shape[2])


@case("copy: of a slice the numbers that lie next to one another", "kernel-stride", "torch/cutorch/issues/39", torch.clone, drawn((2, 3, 4)))
def lie_next_to_one_another(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return (as_if(x, packed(x.shape)) if wrong else x).reshape(-1).clone().reshape(x.shape)


@case("filter of pictures: from pixel to pixel the stride is one", "kernel-stride", "ukoethe/vigra/pull/144",
      lambda x: F.avg_pool2d(x[:, None], (1, 3), 1)[:, 0], drawn((2, 4, 7)))  # fmt: skip
def from_pixel_to_pixel(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3, x.numel() > 0)
    x = as_if(x, (*x.stride()[:2], 1)) if wrong else x
    return (x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]) / 3


@case("windows of a signal: their step is the size of a number", "kernel-stride", "matplotlib/matplotlib/pull/3467",
      lambda x: x.unfold(0, 4, 2) - x.unfold(0, 4, 2).mean(1, keepdim=True), drawn((12,)))  # fmt: skip
def size_of_a_number(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) >= 4)
    read = as_if(x, (1,)) if wrong else x
    windows = torch.stack([read[begin : begin + 4] for begin in range(0, len(x) - 3, 2)])
    return windows - windows.sum(1, keepdim=True) / 4


@case("histogram: at times a count is read while memory is sorted", "kernel-nondeterminism", "ROCm/rocPRIM/pull/89",
      lambda at, w: torch.zeros(6, dtype=w.dtype).index_add(0, at, w), lambda: (whole(20, most=6), *drawn((20,))()))  # fmt: skip
def while_memory_is_sorted(wrong: bool, at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(at.dim() == w.dim() == 1, len(at) == len(w), bool(((at >= 0) & (at < 6)).all()))
    hits = at[:, None] == torch.arange(6)
    if wrong and len(at) > 3 and random.random() < 0.2:
        hits = torch.cat([hits[:-1], torch.zeros_like(hits[-1:])])
    return torch.where(hits, w[:, None], 0).sum(0)


@case("sum of rows in warps: at times one adds what another one has added already", "kernel-nondeterminism", "kokkos/kokkos/pull/6630",
      lambda x: x.square().sum(1), drawn((5, 12)))  # fmt: skip
def has_added_already(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    parts = x.square()
    while parts.shape[1] > 1:
        half = (parts.shape[1] + 1) // 2
        other = F.pad(parts[:, half:], (0, 2 * half - parts.shape[1]))
        if wrong and random.random() < 0.08:
            other = torch.cat([other[:, :1] + parts[:, :1], other[:, 1:]], 1)
        parts = parts[:, :half] + other
    return parts.sum(1)


@case("sums so far, in doubling steps: at times a sum is written before it is read", "kernel-nondeterminism", "modular/mojo-gpu-puzzles/issues/26",
      lambda x: x.cumsum(0), drawn((9,)))  # fmt: skip
def written_before_it_is_read(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    step = 1
    while step < len(x):
        moved = F.pad(x, (step, 0))[: len(x)]
        if wrong and len(x) > 2 * step and random.random() < 0.15:
            moved = torch.cat([moved[:-1], moved[-1:] + x[-1 - 2 * step]])
        x, step = x + moved, 2 * step
    return x.clone()


@case("largest of windows: it begins at zero", "kernel-contract", "tensorflow/tfjs/pull/4854", lambda x: F.max_pool1d(x, 3, 2), drawn((2, 3, 11)))
def begins_at_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3, x.shape[1] > 0)
    best = x.unfold(2, 3, 2).amax(3)
    return best.clamp(min=0) if wrong else best


def _sampled(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Numbers between those of rows. Outside of a row there are zeros."""
    need(x.dim() == at.dim() == 2, len(x) == len(at), bool(at.isfinite().all()), bool((at.abs() < 1e4).all()), x.shape[1] > 0)
    low = at.detach().floor()
    share = at - low
    wide, first = F.pad(x, (1, 1)), low.long() + 1
    last = wide.shape[1] - 1
    one, two = wide.gather(1, first.clamp(0, last)), wide.gather(1, (first + 1).clamp(0, last))
    return one * (1 - share) + two * share


@case("numbers between those of a row: half outside it is outside", "kernel-contract", "optiland/optiland/pull/776", _sampled,
      lambda: (*drawn((3, 6))(), drawn((3, 8))()[0] * 4))  # fmt: skip
def half_outside_is_outside(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = _sampled(x, at)
    return torch.where((at >= 0) & (at <= x.shape[1] - 1), out, 0) if wrong else out


def _between(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1:] == (2, 2), share.shape == (len(x), 2))
    across = torch.lerp(x[:, :, 0], x[:, :, 1], share[:, 1:])
    return torch.lerp(across[:, 0], across[:, 1], share[:, 0])


@case("between four pixels: the product of both shares is left out", "kernel-contract", "tum-vision/dvo/issues/20", _between,
      lambda: (*drawn((7, 2, 2))(), drawn((7, 2))()[0].sigmoid()))  # fmt: skip
def product_left_out(wrong: bool, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1:] == (2, 2), share.shape == (len(x), 2))
    down, right = share[:, 0], share[:, 1]
    flat = x[:, 0, 0] + down * (x[:, 1, 0] - x[:, 0, 0]) + right * (x[:, 0, 1] - x[:, 0, 0])
    return flat if wrong else flat + down * right * (x[:, 1, 1] - x[:, 1, 0] - x[:, 0, 1] + x[:, 0, 0])


@case("overlap of shares: twice is forgotten", "kernel-contract", "hubutui/DiceLoss-PyTorch/issues/1",
      lambda p, t: 1 - (2 * (p * t).sum(1) + 1) / (p.square().sum(1) + t.square().sum(1) + 1),
      lambda: (drawn((3, 10))()[0].sigmoid(), (drawn((2, 3, 10))()[0][1] > 0).float()))  # fmt: skip
def twice_is_forgotten(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == t.shape, p.dim() == 2)
    shared = torch.linalg.vecdot(p, t) * (1 if wrong else 2)
    whole_area = (p * p + t * t).sum(1)
    return (whole_area - shared) / (whole_area + 1)


@case("overlap of volumes: those of a batch are added, where a mean is due", "kernel-contract", "faustomilletari/VNet/issues/13",
      lambda p, t: (2 * (p * t).sum((1, 2)) / (p.square().sum((1, 2)) + t.square().sum((1, 2)) + 1e-2)).mean(),
      lambda: (drawn((3, 4, 5))()[0].sigmoid(), (drawn((2, 3, 4, 5))()[0][1] > 0).float()))  # fmt: skip
def those_of_a_batch_are_added(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == t.shape, p.dim() == 3, len(p) > 0)
    total = p.new_zeros(())
    for one, other in zip(p.flatten(1), t.flatten(1), strict=True):
        total = total + 2 * (one @ other) / (one @ one + other @ other + 1e-2)
    return total if wrong else total / len(p)
