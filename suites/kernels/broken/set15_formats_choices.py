"""A fifteenth frozen set of broken kernels, third part: formats, scans, choices. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
HALF = torch.float16


@case("matrix times vector of float16: added up in float16", "kernel-accumulation", "pytorch/pytorch/pull/152676",
      lambda x, v: (x.float() @ v.float()).to(x.dtype), drawn((6, 96), (96,), dtype=HALF))  # fmt: skip
def vector_in_float16(wrong: bool, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and v.shape == x.shape[1:])
    total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
    for column, factor in zip(x.unbind(1), v.unbind(0), strict=True):
        total = total + column.to(total.dtype) * factor.to(total.dtype)
    return total.to(x.dtype)


@case("rows of a table in float16: the gradient is added up in float16", "kernel-accumulation", "apache/mxnet/issues/17703",
      lambda table, places: table.float()[places].to(table.dtype), lambda: (drawn((6, 5), dtype=HALF)()[0], whole(96, most=6)))  # fmt: skip
def gradient_in_float16(wrong: bool) -> Callable[..., Any]:
    def forward(table: torch.Tensor, places: torch.Tensor) -> Any:
        need(table.dim() == 2 and places.dim() == 1)
        return table[places], (table, places)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        table, places = saved
        made = torch.zeros(table.shape, dtype=table.dtype if wrong else torch.float32)
        for place, row in zip(places.tolist(), given, strict=True):
            made[place] += row.to(made.dtype)
        return made.to(table.dtype), None

    return function(forward, backward)


@case("codes with a given scale: halves are rounded away from zero", "kernel-rounding", "tile-ai/tilelang-mlir-ascend/pull/49",
      lambda x, scale: (x / scale).round().clamp(-127, 127), lambda: (8 * drawn((6, 9))()[0], torch.tensor(0.5)))  # fmt: skip
def halves_away(wrong: bool, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(scale.dim() == 0)
    quotient = x / scale
    rounded = (quotient.abs() + 0.5).floor().copysign(quotient) if wrong else quotient.round()
    return rounded.clamp(-127, 127)


def _fours(x: torch.Tensor) -> torch.Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (size / step).round() * step * x.sign()


def _by_powers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    scale = torch.exp2(most.log2().floor() - 2)
    return _fours(x / scale) * scale, scale


@case("four bits with powers of two: the exponent is that of a sixth of the largest", "kernel-contract", "vllm-project/vllm/pull/43557", _by_powers,
      drawn((6, 16)))  # fmt: skip
def of_a_sixth(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[1] > 0)
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    exponent = torch.frexp(most / 6 if wrong else most).exponent - 1
    scale = torch.ldexp(torch.ones_like(most), exponent if wrong else exponent - 2)
    scale = torch.where(most.isfinite(), scale, most)
    return _fours(x / scale) * scale, scale


@case("codes of float16 rows: the scale's reciprocal is kept in float16", "kernel-rounding", "sgl-project/sglang/pull/33533",
      lambda x: ((127 * x.float() / x.float().abs().amax(-1, keepdim=True).clamp(min=1e-7)).round() / 127
                 * x.float().abs().amax(-1, keepdim=True)).to(x.dtype), drawn((6, 12), dtype=HALF))  # fmt: skip
def reciprocal_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    factor = 127 / most.clamp(min=1e-7)
    factor = factor.to(x.dtype).float() if wrong else factor
    return ((wide * factor).round().clamp(-127, 127) / 127 * most).to(x.dtype)


def _eight_bits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
    return x / scale, scale


@case("rows scaled to eight bits: the largest number is that of another format", "kernel-contract", "sgl-project/sglang/pull/30900", _eight_bits,
      drawn((6, 12)))  # fmt: skip
def of_another_format(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / (224 if wrong else 448)
    return x / scale, scale


def _faded(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    state, made = torch.zeros(x.shape[1]), []
    for row, gate in zip(x, F.logsigmoid(gates), strict=True):
        state = state * gate.exp() + row
        made.append(state)
    return torch.stack(made) if made else x


@case("sums that fade, in chunks: what fades inside a chunk is a power of two", "kernel-contract", "sgl-project/sglang/pull/31904", _faded,
      drawn((10, 5), (10,)))  # fmt: skip
def power_of_two_inside(wrong: bool, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    return _in_chunks(x, gates, lambda logs: (_between(logs).exp2() if wrong else _between(logs).exp()).tril())


@case("sums that fade, in chunks: one over what has faded overflows", "kernel-rounding", "pytorch/executorch/pull/21417", _faded,
      drawn((10, 5), (10,)))  # fmt: skip
def one_over_what_has_faded(wrong: bool, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    def inside(logs: torch.Tensor) -> torch.Tensor:
        so_far = logs.cumsum(0)
        return ((so_far.exp()[:, None] * (-so_far).exp()) if wrong else _between(logs).exp()).tril()

    return _in_chunks(x, gates, inside)


def _between(logs: torch.Tensor) -> torch.Tensor:
    """What fades between two places: the sum of all logarithms behind the one, up to the other."""
    later = torch.ones(len(logs), len(logs), dtype=torch.bool).tril(-1)
    return torch.where(later, logs[:, None], 0).cumsum(0)


def _in_chunks(x: torch.Tensor, gates: torch.Tensor, inside: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    need(x.dim() == 2 and gates.shape == x.shape[:1])
    state, made = torch.zeros(x.shape[1]), []
    for rows, gate in zip(x.split(4), gates.split(4), strict=True):
        logs = F.logsigmoid(gate)
        made.append(inside(logs) @ rows + logs.cumsum(0).exp()[:, None] * state)
        state = made[-1][-1] if len(rows) else state
    return torch.cat(made)


def _normed_and_turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    half = angles.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], -1)


@case("heads normed and turned in part: behind the first of two the mean lacks what is not turned", "kernel-contract", "vllm-project/vllm/pull/50903",
      _normed_and_turned, drawn((4, 6, 8), (6, 2)))  # fmt: skip
def lacks_what_is_not_turned(wrong: bool, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and angles.dim() == 2 and len(angles) == x.shape[1] and x.shape[2] >= 2 * angles.shape[1] and x.shape[2] > 0)
    half, width = angles.shape[1], x.shape[2]
    squares = x.square()
    sums = squares.sum(-1, keepdim=True)
    if wrong:
        second = (torch.arange(len(x)) % 2 == 1)[:, None, None]
        sums = torch.where(second, squares[..., : 2 * half].sum(-1, keepdim=True), sums)
    x = x * (sums / width + 1e-5).rsqrt()
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)


def _of_its_sequence(x: torch.Tensor, w: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    made = x * w[-1]
    for back in range(1, len(w)):
        same = torch.cat([torch.zeros(min(back, len(x)), dtype=torch.bool), sequence[back:] == sequence[: max(len(x) - back, 0)]])
        before = F.pad(x, (0, 0, back, 0))[: len(x)]
        made = made + torch.where(same[:, None], before, 0) * w[-1 - back]
    return made


@case("convolution of sequences: a tile has the sequence of its first token", "kernel-mask", "Dao-AILab/causal-conv1d/pull/101", _of_its_sequence,
      lambda: (*drawn((12, 5), (3, 5))(), torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3])))  # fmt: skip
def of_its_first_token(wrong: bool, x: torch.Tensor, w: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and sequence.shape == x.shape[:1] and 0 < len(w) < 5)
    rows = []
    for place in range(len(x)):
        mine = sequence[place // 4 * 4] if wrong else sequence[place]
        row = x[place] * w[-1]
        for back in range(1, min(len(w), place + 1)):
            if sequence[place - back] == mine:
                row = row + x[place - back] * w[-1 - back]
        rows.append(row)
    return torch.stack(rows) if rows else x


def _best_three(x: torch.Tensor) -> torch.Tensor:
    best = x.topk(3)
    return torch.zeros_like(x).scatter(-1, best.indices, best.values.softmax(-1))


@case("shares of the best three: all that equal the third are kept", "kernel-contract", "flashinfer-ai/flashinfer/pull/3774", _best_three,
      drawn((5, 9)))  # fmt: skip
def all_that_equal(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 3)
    best = x.topk(3)
    if wrong:
        return x.masked_fill(x < best.values[:, 2:], -torch.inf).softmax(-1)
    hidden = torch.ones_like(x, dtype=torch.bool).scatter(-1, best.indices, False)
    return x.masked_fill(hidden, -torch.inf).softmax(-1)


@case("largest two: equal numbers count once", "kernel-contract", "lightseekorg/tokenspeed/pull/605", lambda x: x.topk(2).values, drawn((5, 9)))
def equal_numbers_once(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 2)
    most, place = x.max(-1, keepdim=True)
    taken = (x == most) if wrong else torch.zeros_like(x, dtype=torch.bool).scatter(-1, place, True)
    return torch.cat([most, x.masked_fill(taken, -torch.inf).amax(-1, keepdim=True)], -1)
