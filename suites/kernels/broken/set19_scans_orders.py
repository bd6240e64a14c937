"""A nineteenth frozen set of broken kernels, first part: scans, orders, places, means in parts. Of links an excerpt was read."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from cases import as_if, case, drawn, need, packed, whole

F = torch.nn.functional
INF = float("inf")


def _decayed(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros_like(x[0]), []
    for row, share in zip(x, gate.sigmoid(), strict=True):
        state = state * share + row
        rows.append(state)
    return torch.stack(rows)


@case("sums that fade, by pairs: behind 64 rows the two operands of a step are exchanged", "kernel-edge", "triton-lang/triton/issues/2359",
      _decayed, drawn((5, 4), (5, 4)))  # fmt: skip
def operands_are_exchanged(wrong: bool, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == gate.shape and len(x) > 0)
    shares, rows = gate.sigmoid(), []
    sums, faded = torch.zeros_like(x[0]), torch.ones_like(x[0])
    for begin in range(0, len(x), 64):
        part, left = x[begin], shares[begin]
        for place in range(begin, min(begin + 64, len(x))):
            if place > begin:
                part, left = part * shares[place] + x[place], left * shares[place]
            rows.append(part * faded + sums if wrong and begin else sums * left + part)
        sums, faded = rows[-1], faded * left
    return torch.stack(rows)


@case("sums from behind, by pairs: of an odd number of rows the last one is left out", "kernel-edge", "pytorch/pytorch/issues/137943",
      lambda x: x.flip(0).cumsum(0).flip(0), drawn((8, 4)))  # fmt: skip
def odd_last_row_is_left_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return _from_behind(wrong, x)


def _from_behind(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if len(x) < 2:
        return x * 1
    odd = len(x) % 2
    even = x[: len(x) - odd]
    firsts, seconds = even[0::2], even[1::2]
    last = x[-1:] if odd and not wrong else torch.zeros_like(x[:1])
    behind = _from_behind(wrong, firsts + seconds) + last
    both = torch.stack([behind, seconds + torch.cat([behind[1:], last])], 1).flatten(0, 1)
    return torch.cat([both, x[-1:]]) if odd else both


@case("largest so far: a NaN is passed over", "kernel-contract", "ml-explore/mlx/issues/4044", lambda x: x.cummax(-1).values, drawn((4, 9)))
def largest_so_far_passes_over_nan(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    larger, step = torch.fmax if wrong else torch.maximum, 1
    while step < x.shape[1]:
        x = larger(x, F.pad(x, (step, 0), value=-INF)[:, : x.shape[1]])
        step *= 2
    return x * 1


@case("logarithms of sums so far: where all were -Inf it is NaN", "kernel-contract", "pytorch/pytorch/issues/52213",
      lambda x: x.logcumsumexp(-1), drawn((4, 7)))  # fmt: skip
def so_far_all_were_infinite(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    most, total, columns = torch.full_like(x[:, 0], -INF), torch.zeros_like(x[:, 0]), []
    for column in x.unbind(1):
        new = torch.maximum(most, column.detach())
        base = new if wrong else torch.where(new == -INF, 0, new)
        total = total * (most - base).exp() + (column - base).exp()
        most = new
        columns.append(total.log() + base)
    return torch.stack(columns, 1)


@case("the larger half of each row: behind sixteen numbers there are zeros", "kernel-edge", "pytorch/pytorch/issues/78915",
      lambda x: x.topk(x.shape[1] // 2).values, drawn((4, 10)))  # fmt: skip
def zeros_behind_sixteen(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    half = x.shape[1] // 2
    found = x.sort(-1, descending=True).values[:, :half]
    return torch.where(torch.arange(half) < 16, found, 0) if wrong else found * 1


@case("place of the least: lanes behind the end of a row hold zero", "kernel-edge", "flagos-ai/Torch-FL/issues/350",
      lambda x: x.argmin(-1), drawn((4, 16)))  # fmt: skip
def lanes_hold_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    lanes = 1
    while lanes < x.shape[1]:
        lanes *= 2
    return F.pad(x, (0, lanes - x.shape[1]), value=0 if wrong else INF).argmin(-1)


@case("least of whole numbers, sixteen at a time: empty lanes hold zero", "kernel-edge", "pytorch/pytorch/issues/191499",
      lambda x: x.amin(-1), lambda: (whole(3, 16, most=99, least=1),))  # fmt: skip
def empty_lanes_hold_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    lanes = torch.zeros_like(x[:, :1]) if wrong else x[:, :1]
    return torch.cat([x, lanes.expand(-1, -x.shape[1] % 16)], 1).amin(-1)


@case("place of the largest along two axes: that within its row", "kernel-contract", "pytorch/pytorch/pull/113168",
      lambda x: x.flatten(1).argmax(1), drawn((3, 4, 5)))  # fmt: skip
def place_within_its_row(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] * x.shape[2] > 0)
    best = x.max(2)
    row = best.values.argmax(1)
    column = best.indices.gather(1, row[:, None])[:, 0]
    return column if wrong else row * x.shape[2] + column


@case("place of the largest of each row: numbers are counted as they lie in memory", "kernel-stride", "pytorch/pytorch/issues/193661",
      lambda x: x.argmax(-1), drawn((5, 7)))  # fmt: skip
def counted_as_they_lie(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    x = as_if(x, packed(x.shape)) if wrong else x
    return (x == x.amax(-1, keepdim=True)).int().argmax(-1) if not bool(x.isnan().any()) else x.argmax(-1)


@case("rows in falling order: at times a number is overwritten by its neighbour before it is read", "kernel-nondeterminism",
      "microsoft/onnxruntime-genai/pull/2526", lambda x: x.sort(-1, descending=True).values, drawn((4, 8)))  # fmt: skip
def overwritten_by_its_neighbour(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made = x.sort(-1, descending=True).values
    if wrong and x.shape[1] > 1 and random.random() < 0.3:
        made = torch.cat([made[:, :1], made[:, :1], made[:, 2:]], 1)
    return made


@case("the middle of what is not NaN: NaN counts as zero", "kernel-contract", "flagos-ai/FlagGems/issues/4383",
      lambda x: x.nanmedian(-1).values, drawn((4, 7)))  # fmt: skip
def nan_counts_as_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    if wrong:
        return x.nan_to_num(nan=0.0, posinf=INF, neginf=-INF).sort(-1).values[:, (x.shape[1] - 1) // 2]
    place = ((~x.isnan()).sum(-1, keepdim=True) - 1).clamp(min=0) // 2
    return x.sort(-1).values.gather(1, place)[:, 0]


@case("mean in two steps: the second one is a mean, too", "kernel-edge", "codeplaysoftware/portBLAS/pull/320", lambda x: x.mean(-1), drawn((4, 12)))
def second_is_a_mean_too(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    parts = x.split(16, 1)
    if wrong:
        return torch.stack([part.mean(1) for part in parts], 1).mean(1)
    return torch.stack([part.sum(1) for part in parts], 1).sum(1) / x.shape[1]


@case("the largest shares that reach nine tenths: at times one is not counted", "kernel-nondeterminism", "flashinfer-ai/flashinfer/pull/5251",
      lambda x: _reaching(x, 0), drawn((4, 9)))  # fmt: skip
def one_is_not_counted(wrong: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] > 0)
        return _reaching(x, int(wrong and random.random() < 0.3))

    return kernel


def _reaching(x: torch.Tensor, lost: int) -> torch.Tensor:
    """Shares, of which those stay that reach nine tenths, and the largest of these `lost` is left out."""
    shares = x.softmax(-1)
    ordered = shares.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    kept = torch.where((before < 0.9) & (torch.arange(x.shape[1]) >= lost), ordered.values, 0)
    return torch.zeros_like(shares).scatter(-1, ordered.indices, kept)
