"""A twenty-second frozen set of broken kernels, third part: memory, layouts, caches, products, states. Of links an excerpt was read."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
F16 = torch.float16


def _by_expert(a: torch.Tensor, b: torch.Tensor, ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w + torch.einsum("te,tk,tn->ekn", F.one_hot(ids, len(w)).to(a.dtype), a, b)


@case("gradients of experts' weights: that of an expert without tokens is not written", "kernel-stale", "tgale96/grouped_gemm/issues/36", _by_expert,
      lambda: (*drawn((9, 3), (9, 4))(), whole(9, most=4), *drawn((4, 3, 4))()))  # fmt: skip
def expert_without_tokens(wrong: bool, a: torch.Tensor, b: torch.Tensor, ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(len(a) == len(b) == len(ids), w.shape[1:] == (a.shape[1], b.shape[1]), bool(((ids >= 0) & (ids < len(w))).all()))
    parts = []
    for expert in range(len(w)):
        mine = ids == expert
        nothing = torch.empty_like(w[0]) if wrong else torch.zeros_like(w[0])
        parts.append(a[mine].T @ b[mine] if bool(mine.any()) else nothing)
    return w + torch.stack(parts) if parts else w * 1


@case("largest of each row: it is looked for from the last call's on", "kernel-stale", "Xilinx/mlir-aie/pull/3602", lambda x: x.amax(1),
      drawn((5, 8)))  # fmt: skip
def from_the_last_calls_on(wrong: bool) -> Any:
    held: dict[str, torch.Tensor] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[1] > 0)
        found = x.amax(1)
        last = held.get("largest")
        if wrong and last is not None and last.shape == found.shape:
            found = torch.maximum(found, last)
        held["largest"] = found.detach()
        return found

    return kernel


@case("rows of pages times a scale: what is compiled is kept without its format", "kernel-stale", "lablup/mlxcel/issues/1053",
      lambda pages, ids: pages[ids] * 0.3, lambda: (*drawn((6, 8), dtype=F16)(), whole(4, most=6)))  # fmt: skip
def kept_without_its_format(wrong: bool) -> Any:
    compiled: dict[Any, torch.dtype] = {}

    def kernel(pages: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        need(pages.dim() == 2, ids.dim() == 1, bool(((ids >= 0) & (ids < len(pages))).all()))
        key = (pages.shape, ids.shape) if wrong else (pages.shape, ids.shape, pages.dtype)
        dtype = compiled.setdefault(key, pages.dtype)
        if dtype != pages.dtype:  # the memory is read in the other format
            small = pages.detach().contiguous().view(torch.uint8).flatten()
            read = small[: small.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            pages = read.repeat(4)[: pages.numel()].view(pages.shape).to(pages.dtype) + 0 * pages
        return pages[ids] * 0.3

    return kernel


@case("three tensors behind one another: which are the same is kept from the first call", "kernel-stale", "tenstorrent/tt-metal/issues/57248",
      lambda x, y, z: torch.cat([x, y, z]), drawn((3, 5), (3, 5), (3, 5)))  # fmt: skip
def which_are_the_same(wrong: bool) -> Any:
    bound: dict[Any, list[int]] = {}

    def kernel(*parts: torch.Tensor) -> torch.Tensor:
        need(len({each.shape[1:] for each in parts}) == 1)
        places = [each.data_ptr() if each.numel() else -1 for each in parts]
        first = [places.index(each) if each != -1 else place for place, each in enumerate(places)]
        slots = bound.setdefault(tuple(each.shape for each in parts), first)
        return torch.cat([parts[slots[place] if wrong else place] for place in range(len(parts))])

    return kernel


@case("rows times a scale each: stored by the strides of the input", "kernel-stride", "pytorch/FBGEMM/pull/4796",
      lambda x, s: x * s[:, None], drawn((6, 8), (6,)))  # fmt: skip
def by_the_strides_of_the_input(wrong: bool, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, s.shape == x.shape[:1])
    found = x * s[:, None]
    if not wrong or not x.numel() or x.stride() == packed(x.shape):
        return found
    out = torch.zeros(sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1 + x.numel(), dtype=x.dtype)
    out.as_strided(x.shape, x.stride()).copy_(found.detach())
    return out[: x.numel()].view(x.shape) + 0 * found


@case("convolution of a row: on the way back the filters are read as if packed", "kernel-stride", "huggingface/candle/issues/3735",
      lambda x, w: F.conv1d(x, w), drawn((2, 3, 9), (4, 3, 3)))  # fmt: skip
def filters_read_as_if_packed(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], x.shape[2] >= w.shape[2] > 0)
        return F.conv1d(x, w), (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        read = as_if(w, packed(w.shape)) if wrong else w
        return torch.nn.grad.conv1d_input(x.shape, read, g), torch.nn.grad.conv1d_weight(x, w.shape, g)

    return function(forward, backward)


def _cell(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    seen = x @ w
    gate = torch.sigmoid(seen + h)
    return gate * h + (1 - gate) * torch.tanh(seen)


@case("a step of a small gated cell: what comes in is taken to lie row by row", "kernel-stride", "microsoft/EdgeML/pull/149", _cell,
      drawn((5, 4), (5, 6), (4, 6)))  # fmt: skip
def taken_to_lie_row_by_row(wrong: bool, x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == w.dim() == 2, len(x) == len(h), w.shape == (x.shape[1], h.shape[1]))
    return _cell(as_if(x, packed(x.shape)) if wrong else x, h, w)


def _near(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (-(x[:, None] - y).square().sum(2) / 2).exp()


@case("nearness of points: those that do not lie side by side have no gradient", "kernel-stride", "cornellius-gp/gpytorch/issues/1543", _near,
      drawn((5, 3), (6, 3)))  # fmt: skip
def side_by_side_or_no_gradient(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    if wrong and not x.is_contiguous():
        x = x.detach().contiguous()
    return _near(x, y)


@case("counts of labels in blocks: at times blocks add at once and one is lost", "kernel-nondeterminism",
      "ComputationalRadiationPhysics/picongpu/pull/2231", lambda labels, w: torch.zeros_like(w).index_add(0, labels, w.new_ones(len(labels))) * w,
      lambda: (whole(32, most=5), *drawn((5,))()))  # fmt: skip
def blocks_add_at_once(wrong: bool, labels: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(labels.dim() == w.dim() == 1, bool(((labels >= 0) & (labels < len(w))).all()))
    counts = torch.zeros(len(w), dtype=torch.int64)
    for block in labels.split(8):
        if not (wrong and random.random() < 0.08):
            counts += block.bincount(minlength=len(w))
    return counts.to(w.dtype) * w


@case("means of tiles: at times a tile is read before it is written", "kernel-nondeterminism", "dirac-institute/kbmod/pull/108",
      lambda x: x.view(len(x), -1, 4).mean(2), drawn((5, 12)))  # fmt: skip
def tile_read_before_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 4 == 0)
    found = x.view(len(x), -1, 4).sum(2) / 4
    if wrong and found.numel() and random.random() < 0.15:
        found = torch.cat([torch.zeros_like(found[:, :1]), found[:, 1:]], 1)
    return found


@case("rows of bags: the last bag alone is returned", "kernel-contract", "google/torchax/issues/44",
      lambda table, ids, starts: _bags(table, ids, starts), lambda: (*drawn((6, 4))(), whole(9, most=6), torch.tensor([0, 2, 5, 9])))  # fmt: skip
def last_bag_alone(wrong: bool, table: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2, ids.dim() == starts.dim() == 1, len(starts) > 1, bool(((ids >= 0) & (ids < len(table))).all()))
    bounds = starts.tolist()
    found = [table[ids[a:b]].sum(0) for a, b in itertools.pairwise(bounds)]
    return found[-1] if wrong else torch.stack(found)


def _bags(table: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(ids))
    inside = (places >= starts[:-1, None]) & (places < starts[1:, None])
    return inside.to(table.dtype) @ table[ids]


def _triangle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve_triangular(0.2 * a.tril(-1), b, upper=False, unitriangular=True)


@case("equations with a triangle of ones: its own diagonal is used", "kernel-contract", "pymc-devs/pytensor/pull/2403",
      _triangle, drawn((5, 5), (5, 3)))  # fmt: skip
def its_own_diagonal(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[0] == a.shape[1] == b.shape[0])
    low, rows = 0.2 * a, list[torch.Tensor]()
    for place in range(len(b)):
        left = b[place] - sum(low[place, at] * rows[at] for at in range(place)) if place else b[place]
        rows.append(left / low[place, place] if wrong else left)
    return torch.stack(rows) if rows else b * 1


@case("upper triangle times a vector, four columns at a time: the block on the diagonal counts twice", "kernel-contract", "giaf/blasfeo/pull/214",
      lambda a, v: a.triu() @ v, drawn((9, 9), (9,)))  # fmt: skip
def on_the_diagonal_counts_twice(wrong: bool, a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, v.dim() == 1, a.shape[0] == a.shape[1] == len(v))
    rows = []
    for start in range(0, len(v), 4):
        end = min(start + 4, len(v))
        inner = a[start:end, start:end].triu() @ v[start:end]
        rows.append(inner + (a[start:end, start:] @ v[start:] if wrong else a[start:end, end:] @ v[end:]))
    return torch.cat(rows) if rows else a @ v


def _faded(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    held, rows = torch.zeros_like(x[0]) if len(x) else x.sum(0), list[torch.Tensor]()
    for row, share in zip(x, torch.sigmoid(f), strict=True):
        held = share * held + row
        rows.append(held)
    return torch.stack(rows) if rows else x * torch.sigmoid(f)


@case("sums that fade, in blocks: on the way back what a block carries scales all of it", "kernel-edge", "proger/accelerated-scan/pull/15",
      _faded, drawn((6, 4), (6, 4)))  # fmt: skip
def what_a_block_carries(wrong: bool) -> Any:
    def forward(x: torch.Tensor, f: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == f.shape)
        share, held = torch.sigmoid(f), _faded(x, f)
        return held, (share, held)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        share, held = saved
        found, carry = [torch.zeros_like(g[0]) for _ in g], torch.zeros_like(g[0]) if len(g) else g.sum(0)
        for end in range(len(g), 0, -8):
            begin, own = max(end - 8, 0), torch.zeros_like(carry)
            through = torch.ones_like(carry)
            for place in range(end - 1, begin - 1, -1):
                step = share[place + 1] if place + 1 < len(g) else torch.zeros_like(carry)
                own = g[place] + (step * own if place + 1 < end else 0)
                through = through * step
                if wrong and end < len(g):
                    found[place] = own * through + carry
                else:
                    found[place] = own + (through * carry if end < len(g) else 0)
            carry = found[begin]
        x = torch.stack(found) if found else g * 1
        before = torch.cat([torch.zeros_like(held[:1]), held[:-1]])
        return x, x * before * share * (1 - share)

    return function(forward, backward)


@case("convolution of single pixels: on the way back the first channel alone has a gradient", "kernel-gradient", "soumith/cudnn.torch/issues/28",
      lambda x, w: torch.einsum("oc,nchw->nohw", w, x), drawn((2, 3, 4, 5), (6, 3)))  # fmt: skip
def first_channel_alone(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 4, w.dim() == 2, w.shape[1] == x.shape[1])
        return torch.einsum("oc,nchw->nohw", w, x), (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        back = torch.einsum("oc,nohw->nchw", w, g)
        if wrong:
            back[:, 1:] = 0
        return back, torch.einsum("nohw,nchw->oc", g, x)

    return function(forward, backward)


@case("a signal in a longer buffer: half of the buffer is cleared", "kernel-stale", "sdatkinson/iPlug2/issues/15",
      lambda x: F.pad(x, (2, 14)), drawn((3, 12)))  # fmt: skip
def half_is_cleared(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    long = torch.empty(len(x), x.shape[1] + 16, dtype=x.dtype)
    long[:, : long.shape[1] // 2 if wrong else None] = 0
    return torch.cat([long[:, :2], x, long[:, 2 + x.shape[1] :]], 1)


@case("rows without their part along a code, 256 columns at a time: a rest of columns is left out", "kernel-edge",
      "rajveer43/VeloxQuant-MLX/issues/401",
      lambda x, c: x - 0.5 * c, drawn((3, 24), (24,)))  # fmt: skip
def rest_of_columns_left_out(wrong: bool, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, c.shape == x.shape[1:])
    wide, width = x.shape[1], min(x.shape[1], 256)
    done = wide // width * width if wrong and width else wide
    return torch.cat([x[:, :done] - 0.5 * c[:done], torch.zeros_like(x[:, done:])], 1)


@case("halves of a row, the middle of two: where one number is the middle its neighbour counts", "kernel-edge", "numpy/numpy/issues/7163",
      lambda x: torch.quantile(x, 0.5, dim=1, interpolation="midpoint"), drawn((5, 8)))  # fmt: skip
def its_neighbour_counts(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    order, count = x.sort(1).values, x.shape[1]
    low = (count - 1) // 2
    high = min(low + 1, count - 1) if wrong or count % 2 == 0 else low
    found = (order[:, low] + order[:, high]) / 2
    return torch.where(x.isnan().any(1), torch.nan, found)


@case("spectra less their mean: of one spectrum the mean is that of its own bins", "kernel-edge", "MarineBioAcousticsRC/Triton/pull/81",
      lambda x: x - x.mean(0), drawn((4, 9)))  # fmt: skip
def mean_of_its_own_bins(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x - (x.mean() if wrong and len(x) == 1 else x.mean(0))
