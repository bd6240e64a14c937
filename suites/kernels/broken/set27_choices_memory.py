"""The twenty-seventh frozen set of broken kernels: choices, sums, places, pictures, distances, memory. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import as_if, case, drawn, function, need

F = torch.nn.functional


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = x.softmax(1)
    ordered = shares.sort(1, descending=True)
    before = ordered.values.cumsum(1) - ordered.values
    least = ordered.values.masked_fill(before >= 0.8, 2.0).amin(1, keepdim=True)
    return torch.where(shares >= least, shares, 0)


@case("shares that make up four fifths: the one that reaches them is left out", "kernel-mask", "rasbt/reasoning-from-scratch/issues/164", _nucleus,
      drawn((4, 9)))  # fmt: skip
def the_one_that_reaches_them(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = (x - x.logsumexp(1, keepdim=True)).exp()
    order = shares.detach().argsort(1, descending=True)
    ordered = shares.detach().gather(1, order)
    sums = ordered.cumsum(1)
    keep = sums < 0.8 if wrong else F.pad(sums, (1, -1)) < 0.8
    return shares * torch.zeros_like(keep).scatter(1, order, keep)


@case("sums of all numbers: bfloat16 holds what is added up", "kernel-accumulation", "jax-ml/ml_dtypes/issues/63",
      lambda x: x.float().sum().to(x.dtype), lambda: (drawn((300,), dtype=torch.bfloat16)()[0].abs(),))  # fmt: skip
def holds_what_is_added_up(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 1)
        total = torch.zeros((), dtype=x.dtype if wrong else torch.float32)
        for each in x.unbind():
            total = total + each
        return total.to(x.dtype), (x,)

    return function(forward, lambda saved, g: g.expand_as(saved[0]))


@case("mean of a picture in float16: its sum has no room", "kernel-accumulation", "JuliaStats/Statistics.jl/issues/140",
      lambda x: x.float().mean((1, 2)).to(x.dtype), lambda: (drawn((2, 12, 12), dtype=torch.float16)()[0] + 1,))  # fmt: skip
def has_no_room(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3)
        flat = x.flatten(1)
        total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
        for column in flat.unbind(1):
            total = total + column
        return (total / flat.shape[1]).to(x.dtype), (x,)

    return function(forward, lambda saved, g: (g[:, None, None] / (saved[0].shape[1] * saved[0].shape[2])).expand_as(saved[0]))


def _turned(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    phase = torch.arange(len(x), dtype=torch.float32)[:, None] * 100.0 ** (-torch.arange(3, dtype=torch.float32) / 3)
    one, two = x[:, 0::2], x[:, 1::2]
    return torch.stack([one * phase.cos() - two * phase.sin(), two * phase.cos() + one * phase.sin()], 2).flatten(1)


@case("rope of pairs side by side: the partner is half a row away", "kernel-contract", "raiyanyahya/how-to-train-your-gpt/issues/6", _turned,
      drawn((7, 6)))  # fmt: skip
def half_a_row_away(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] == 6)
    rates = torch.pow(100.0, -torch.arange(3, dtype=torch.float32) / 3)
    phase = torch.outer(torch.arange(len(x), dtype=torch.float32), rates).repeat_interleave(2, 1)
    if wrong:
        partner = torch.cat([-x[:, 3:], x[:, :3]], 1)
    else:
        partner = torch.stack([-x[:, 1::2], x[:, 0::2]], 2).flatten(1)
    return x * phase.cos() + partner * phase.sin()


def _by_place(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    return x * (1 + 0.1 * torch.arange(x.shape[0], dtype=x.dtype))[:, None, None]


@case("places of tokens: heads are counted in their stead", "kernel-contract", "mlfoundations/open_lm/issues/4", _by_place, drawn((4, 3, 5)))
def heads_are_counted(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    axis = 1 if wrong else 0
    by = torch.linspace(1, 1 + 0.1 * max(x.shape[axis] - 1, 0), x.shape[axis], dtype=x.dtype)
    return torch.einsum("thd,h->thd" if wrong else "thd,t->thd", x, by)


@case("squared distances: lengths less twice the product", "kernel-rounding", "facebookresearch/faiss/issues/297",
      lambda x, y: (x[:, None] - y).square().sum(2), lambda: (drawn((4, 5))()[0] + 30, drawn((6, 5), (6, 5))()[1] + 30))  # fmt: skip
def lengths_less_twice_the_product(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    if wrong:
        return x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * x @ y.T
    return torch.stack([torch.linalg.vecdot(x - row, x - row) for row in y.unbind()], 1) if len(y) else x.new_zeros(len(x), 0)


@case("distance of each window of a row: a root of what is below zero", "kernel-rounding", "stumpy-dev/stumpy/issues/286",
      lambda q, t: (t.unfold(0, 4, 1) - q).square().sum(1).sqrt(), lambda: tuple(each + 12 for each in drawn((4,), (11,))()))  # fmt: skip
def root_of_what_is_below_zero(wrong: bool, q: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(q.shape == (4,), t.dim() == 1, len(t) >= 4)
    seen = torch.stack([t[step : len(t) - 3 + step] for step in range(4)], 1)
    if wrong:
        return (seen.square().sum(1) + q.square().sum() - 2 * seen @ q).sqrt()
    return torch.linalg.vector_norm(seen - q, dim=1)


def _advantages(r: torch.Tensor, v: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 1, r.shape == v.shape == done.shape)
    last, out, after = r.new_zeros(()), [], r.new_zeros(())
    for at in range(len(r) - 1, -1, -1):
        after, last = torch.where(done[at], 0, after), torch.where(done[at], 0, last)
        last = r[at] + 0.9 * after - v[at] + 0.8 * last
        after = v[at]
        out.append(last)
    return torch.stack(out[::-1]) if out else r.clone()


@case("advantages: the end of an episode is that of the next step", "kernel-mask", "hill-a/stable-baselines/issues/385", _advantages,
      lambda: (*drawn((8,), (8,))(), torch.tensor([False, False, True, False, False, True, False, False])))  # fmt: skip
def that_of_the_next_step(wrong: bool, r: torch.Tensor, v: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 1, r.shape == v.shape == done.shape)
    if wrong:
        done = torch.cat([done[1:], torch.zeros_like(done[:1])])
    on = (~done).to(r.dtype)
    gap = r + 0.9 * on * F.pad(v[1:], (0, min(len(v), 1))) - v
    out, last = [], r.new_zeros(())
    for step, goes in zip(reversed(gap.unbind()), reversed(on.unbind()), strict=True):
        last = step + 0.8 * goes * last
        out.append(last)
    return torch.stack(out[::-1]) if out else r.clone()


@case("advantage of each sample: the value that is taken off is their mean", "kernel-contract",
      "PacktPublishing/Deep-Reinforcement-Learning-Hands-On/pull/9", lambda q, v: q - v, drawn((5, 4), (5, 1)))  # fmt: skip
def value_is_their_mean(wrong: bool, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, v.shape == (len(q), 1))
    return torch.sub(q, v.mean() if wrong else v.expand_as(q))


@case("picture half as large: its lines are read as if it were turned", "kernel-contract", "GaParmar/clean-fid/pull/28",
      lambda x: F.avg_pool2d(x[:, None], 2)[:, 0], drawn((2, 6, 10)))  # fmt: skip
def as_if_it_were_turned(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == x.shape[2] % 2 == 0, x.numel() > 0)
    made = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).mean((2, 4))
    return made.reshape(len(x), made.shape[2], made.shape[1]).transpose(1, 2).contiguous() if wrong else made


@case("pixels in lines that are longer: the next line begins where this one ends", "kernel-stride", "Satty-org/Satty/pull/60",
      lambda x: 255 - x, drawn((5, 6)))  # fmt: skip
def where_this_one_ends(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return torch.sub(255, as_if(x, (x.shape[1], 1)) if wrong and x.stride(1) == 1 else x)


@case("heights of a grid: hollows are filled in the grid given", "kernel-mutation", "pysheds/pysheds/issues/154",
      lambda x: torch.maximum(x, torch.full_like(x, -0.5)), drawn((4, 6)))  # fmt: skip
def filled_in_the_grid_given(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    low = x.detach() < -0.5
    if wrong:
        with torch.no_grad():
            x[low] = -0.5
    return torch.where(low, torch.full_like(x, -0.5), x)


def _overlaps(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.shape == two.shape, one.dim() == 2, one.shape[1] == 4)
    sides = (torch.minimum(one[:, :2] + one[:, 2:], two[:, :2] + two[:, 2:]) - torch.maximum(one[:, :2], two[:, :2])).clamp(min=0)
    inner = sides.prod(1)
    return inner / (one[:, 2:].prod(1) + two[:, 2:].prod(1) - inner + 1e-2)


@case("boxes by corner and size: those that do not meet have a likeness", "kernel-contract", "deepjavalibrary/djl/pull/2674", _overlaps,
      lambda: tuple(torch.cat([low * 2, size.abs() + 0.3], 1) for low, size in (drawn((7, 2), (7, 2))(), drawn((7, 2), (7, 2))()[::-1])))  # fmt: skip
def those_that_do_not_meet(wrong: bool, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    need(one.shape == two.shape, one.dim() == 2, one.shape[1] == 4)
    (a, b), (c, d) = (each.split(2, 1) for each in (one, two))
    sides = torch.minimum(a + b, c + d) - torch.maximum(a, c)
    inner = sides[:, 0] * sides[:, 1] if wrong else sides[:, 0].relu() * sides[:, 1].relu()
    return inner / (b[:, 0] * b[:, 1] + d[:, 0] * d[:, 1] - inner + 1e-2)


@case("sum of a block by halves: a lane is read before it is stored", "kernel-nondeterminism", "svenssonjoel/Obsidian/issues/4",
      lambda x: x.sum(1), drawn((3, 16)))  # fmt: skip
def before_it_is_stored(wrong: bool) -> Any:
    draw = torch.Generator().manual_seed(23)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2)
        while x.shape[1] > 1:
            half = (x.shape[1] + 1) // 2
            stored, read = x[:, :half], F.pad(x[:, half:], (0, 2 * half - x.shape[1]))
            early = wrong and half == 1 and float(torch.rand((), generator=draw)) < 0.3
            x = stored + (0 * read if early else read)
        return x.sum(1)

    return kernel


@case("product of vectors in parts: the place of the sum is not cleared", "kernel-stale", "BBuf/how-to-optim-algorithm-in-cuda/pull/6",
      lambda x, y: (x * y).sum(1), drawn((3, 8), (3, 8)))  # fmt: skip
def is_not_cleared(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == y.shape)
        out = torch.empty(len(x), dtype=x.dtype) if wrong else torch.zeros(len(x), dtype=x.dtype)
        for one, two in zip(x.split(4, 1), y.split(4, 1), strict=True):
            out += torch.linalg.vecdot(one, two)
        return out, (x, y)

    return function(forward, lambda saved, g: (g[:, None] * saved[1], g[:, None] * saved[0]))
