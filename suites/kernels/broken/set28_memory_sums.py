"""The twenty-eighth frozen set of broken kernels, second part: strides, sizes, caches, memory, races. Of links an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import as_if, case, drawn, function, need

F = torch.nn.functional


def _filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 1, 0 < len(w) <= len(x))
    return F.conv1d(x[None, None], w.flip(0)[None, None])[0, 0]


@case("signal and filter, number by number: the signal is read as if packed", "kernel-stride", "cupy/cupy/issues/10303", _filtered,
      drawn((14,), (4,)))  # fmt: skip
def signal_read_as_if_packed(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 1, 0 < len(w) <= len(x))
    read = as_if(x, (1,)) if wrong else x
    out = torch.zeros(len(x) - len(w) + 1, dtype=x.dtype)
    for tap, weight in enumerate(w.unbind()):
        begin = len(w) - 1 - tap
        out = out + weight * read[begin : begin + len(out)]
    return out


@case("values of a mesh, each less one: those stored column by column are taken row by row", "kernel-stride", "OP2/PyOP2/issues/224",
      lambda x: x - 1 / (1 + x.square()), drawn((5, 3)))  # fmt: skip
def taken_row_by_row(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    if wrong and not x.is_contiguous() and x.T.is_contiguous():
        x = x.T.reshape(x.shape)
    return (x * (1 + x.square()) - 1) / (1 + x.square())


def _blocks(x: torch.Tensor, by: int) -> torch.Tensor:
    return x[:, : x.shape[1] // by * by].unflatten(1, (-1, by))


@case("product of a matrix and a row in vectors of eight: the rest begins at the number of vectors", "kernel-edge", "halide/Halide/pull/656",
      lambda a, x: a @ x, drawn((5, 19), (19,)))  # fmt: skip
def rest_begins_at_the_number_of_vectors(wrong: bool, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, x.shape == a.shape[1:])
    count = len(x) // 8
    body = (_blocks(a, 8) * _blocks(x[None], 8)).sum((1, 2))
    begin, rest = (count if wrong else 8 * count), len(x) - 8 * count
    tail = (a[:, begin : begin + rest] * x[begin : begin + rest]).sum(1)
    return body + tail


@case("product in tiles of four: tiles that are not full are not computed", "kernel-edge", "CNugteren/myGEMM/issues/2", lambda a, b: a @ b,
      drawn((8, 6), (6, 8)))  # fmt: skip
def tiles_that_are_not_full(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    out = []
    for rows in a.split(4):
        line = []
        for columns in b.split(4, 1):
            tile = torch.einsum("ik,kj->ij", rows, columns)
            line.append(torch.zeros_like(tile) if wrong and (len(rows) < 4 or columns.shape[1] < 4) else tile)
        out.append(torch.cat(line, 1) if line else rows[:, :0].clone())
    return torch.cat(out) if out else a.new_zeros(len(a), b.shape[1])


@case("least so far, in blocks of sixteen: a block begins anew", "kernel-edge", "chapel-lang/chapel/issues/13337",
      lambda x: x.cummin(0).values, drawn((13, 3)))  # fmt: skip
def a_block_begins_anew(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out: list[torch.Tensor] = []
    for block in x.split(16):
        if out and not wrong:
            block = torch.cat([out[-1][-1:], block])
            out.append(block.cummin(0).values[1:])
        else:
            out.append(block.cummin(0).values)
    return torch.cat(out)


def _sentence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[2:] * 2)
    state, out = torch.zeros_like(x[:, 0]) if x.shape[1] else None, []
    for step in x.unbind(1):
        state = torch.tanh(step + state @ w)
        out.append(state)
    return torch.stack(out, 1) if out else x.clone()


class Carried(torch.nn.Module):
    """States of a recurrence. The wrong one begins where the last call ended, if that had as many sentences."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.state = wrong, None

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 3, w.shape == x.shape[2:] * 2)
        state = x.new_zeros(len(x), x.shape[2])
        if self.wrong and self.state is not None and self.state.shape == state.shape and self.state.dtype == state.dtype:
            state = self.state
        out = torch.empty_like(x).unbind(1)
        found = []
        for at in range(len(out)):
            state = torch.tanh(torch.addmm(x[:, at], state, w))
            found.append(state)
        self.state = state.detach()
        return torch.stack(found, 1) if found else x.clone()


@case("states of sentences: they begin where those of the last call ended", "kernel-stale", "nyu-mll/jiant/pull/345", _sentence,
      drawn((2, 4, 3), (3, 3)))  # fmt: skip
def where_the_last_call_ended(wrong: bool) -> Any:
    return Carried(wrong)


@case("product of two matrices: the result's memory is that of the call before", "kernel-stale", "QuantumKitHub/TensorOperations.jl/issues/83",
      lambda a, b: a @ b, drawn((4, 5), (5, 3)))  # fmt: skip
def memory_of_the_call_before(wrong: bool) -> Any:
    kept: dict[Any, torch.Tensor] = {}

    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
        key = (len(a), b.shape[1], a.dtype)
        out = kept.setdefault(key, a.new_empty(len(a), b.shape[1])) if wrong else a.new_empty(len(a), b.shape[1])
        out.copy_(torch.stack([row @ b for row in a.unbind()]) if len(a) else out)
        return out, (a, b)

    return function(forward, lambda saved, g: (g @ saved[1].T, saved[0].T @ g))


@case("products of all rows with each other: what was found is kept by the diagonal", "kernel-stale", "Unbabel/COMET/issues/124",
      lambda x: x @ x.T, drawn((4, 5)))  # fmt: skip
def kept_by_the_diagonal(wrong: bool) -> Any:
    kept: dict[Any, torch.Tensor] = {}

    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        key = (x.shape, x.dtype, repr(x.diagonal().tolist()) if wrong else object())
        return kept.setdefault(key, torch.einsum("ik,jk->ij", x, x)).clone(), (x,)

    return function(forward, lambda saved, g: (g + g.T) @ saved[0])


@case("places of points as shares of a width: the caller's are divided", "kernel-mutation", "ml-struct-bio/cryodrgn/pull/226",
      lambda at, width: at / width.abs().clamp(min=0.1), drawn((5, 2), (2,)))  # fmt: skip
def the_callers_are_divided(wrong: bool) -> Any:
    def forward(at: torch.Tensor, width: torch.Tensor) -> Any:
        need(at.dim() == 2, width.shape == at.shape[1:])
        by = width.abs().clamp(min=0.1)
        out = at.div_(by).clone() if wrong else at * (1 / by)
        return out, (out, width, by)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        out, width, by = saved
        inner = torch.where(width.abs() >= 0.1, width.sign(), 0)
        return g / by, -(g * out).sum(0) / by * inner

    return function(forward, backward)


def _shares(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.square() / x.square().amax(1, keepdim=True).clamp(min=1e-6)


@case("spectrum as shares of its largest line: the spectrum itself is scaled", "kernel-mutation", "smith-chem-wisc/mzLib/issues/676",
      _shares, drawn((4, 7)))  # fmt: skip
def the_spectrum_itself_is_scaled(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 0)
        kept = x.clone()
        out = _shares(kept)
        if wrong:
            x.copy_(out)
        return out, (kept,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = saved[0].detach().requires_grad_()
            return torch.autograd.grad(_shares(x), x, g)[0]

    return function(forward, backward)


@case("sum of rows by folding: at times one is read before it is added", "kernel-nondeterminism", "AccelerateHS/accelerate-cuda/pull/5",
      lambda x: (x * x.abs()).sum(0), drawn((9, 4)))  # fmt: skip
def read_before_it_is_added(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    parts = list((x * x.abs()).unbind())
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        late = wrong and random.random() < 0.06
        parts = [one if late and not at else one + two for at, (one, two) in enumerate(zip(parts, parts[half:], strict=False))] + parts[
            len(parts) - half : half
        ]
    return parts[0] if parts else x.sum(0)


def _spread(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return F.layer_norm(x, x.shape[1:])


@case("layer norm, one buffer for both sums: at times the second is begun before the first is read", "kernel-nondeterminism",
      "infinigence/ApxInf/pull/80", _spread, drawn((5, 10)))  # fmt: skip
def begun_before_the_first_is_read(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    mean = x.sum(1, keepdim=True) / x.shape[1]
    late = mean
    if wrong and len(x) and random.random() < 0.12:
        late = torch.cat([(x[:1] - mean[:1]).square().mean(1, keepdim=True), mean[1:]])
    variance = (x - mean).square().sum(1, keepdim=True) / x.shape[1]
    return (x - late) * (variance + 1e-5).rsqrt()


def _legendre(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, w.shape == (3,))
    return w[0] + w[1] * x + w[2] * (1.5 * x * x - 0.5)


@case("polynomials of Legendre in threads: at times one has the other one's table", "kernel-nondeterminism", "HomerReid/scuff-em/pull/137",
      _legendre, drawn((8,), (3,)))  # fmt: skip
def has_the_other_ones_table(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, w.shape == (3,))
    table = torch.stack([torch.ones_like(x), x, (3 * x * x - 1) / 2])
    if wrong and len(x) > 1 and random.random() < 0.1:
        table = torch.cat([table[:, :-1], table[:, :1]], 1)
    return w @ table


@case("sums so far, blocks at once: at times a block does not wait for the one before", "kernel-nondeterminism",
      "JuliaGPU/AcceleratedKernels.jl/issues/41", lambda x: x.cumsum(0), drawn((18,)))  # fmt: skip
def does_not_wait_for_the_one_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    carry, out = x.new_zeros(()), []
    for block in x.split(6):
        sums = block.cumsum(0)
        out.append(sums if wrong and random.random() < 0.06 else sums + carry)
        carry = carry + sums[-1] if len(block) else carry
    return torch.cat(out)
