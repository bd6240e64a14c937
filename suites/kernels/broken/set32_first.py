"""The thirty-second frozen set of broken kernels, first part: norms, attention, orders, codes. As programs write them; no thread was read."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


@case(
    "softmax: on the way back the row's sum is that of the incoming gradient alone", "kernel-gradient", PROGRAM, lambda x: x.softmax(1), drawn((4, 7))
)
def sum_of_the_incoming_gradient_alone(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 0)
        shares = x.softmax(1)
        return shares.clone(), (shares,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (shares,) = saved
        return shares * (g - (g if wrong else g * shares).sum(1, keepdim=True))

    return function(forward, backward)


@case("order of scores, best first: that from the least up, turned round", "kernel-contract", PROGRAM,
      lambda codes: codes.sort(dim=1, descending=True, stable=True).indices, lambda: (whole(4, 10, most=5),))  # fmt: skip
def from_the_least_up_turned_round(wrong: bool, codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.int64)
    if wrong:
        return codes.sort(dim=1, stable=True).indices.flip(1)
    return (codes * codes.shape[1] - torch.arange(codes.shape[1])).argsort(dim=1, descending=True)


@case("sums of codes: added up in eight bits", "kernel-accumulation", PROGRAM, lambda codes: codes.sum(1, dtype=torch.int32),
      lambda: (whole(5, 6, most=60, least=-60).to(torch.int8),))  # fmt: skip
def added_up_in_eight_bits(wrong: bool, codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.int8)
    return codes.sum(1, dtype=torch.int8).int() if wrong else codes.short().sum(1).int()


@case("middle of each row: of an even number the upper one", "kernel-edge", PROGRAM, lambda x: x.median(1).values, drawn((5, 7)))
def of_an_even_number_the_upper_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    at = x.shape[1] // 2 if wrong else (x.shape[1] - 1) // 2
    middle = x.sort(1).values[:, at]
    return torch.where(x.isnan().any(1), x.sum(1), middle)


def _kept(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, keep.shape == x.shape, keep.dtype is torch.bool, x.shape[1] > 0)
    return torch.where(keep, x.softmax(1) / 0.8, 0)


@case("shares of which some are dropped: the others are scaled by what is kept", "kernel-contract", PROGRAM, _kept,
      lambda: (*drawn((4, 8))(), whole(4, 8, most=5) > 0))  # fmt: skip
def scaled_by_what_is_kept(wrong: bool, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, keep.shape == x.shape, keep.dtype is torch.bool, x.shape[1] > 0)
    shares = (x - x.logsumexp(1, keepdim=True)).exp()
    return torch.where(keep, shares * (0.8 if wrong else 1.25), 0)


@case("rms norm: rows that lie apart are read as if they followed one another", "kernel-stride", PROGRAM,
      lambda x: F.rms_norm(x, x.shape[1:], eps=1e-5), drawn((5, 6)))  # fmt: skip
def rows_that_lie_apart(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    read = as_if(x, (x.shape[1], x.stride(1))) if wrong else x
    return read * (read.square().mean(1, keepdim=True) + 1e-5).rsqrt()


def _bags(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == at.dim() == 2, bool(((at >= -1) & (at < len(table))).all()), len(table) > 0)
    return (F.embedding(at.clamp(min=0), table) * (at >= 0)[..., None]).sum(1)


@case("bags of rows: what fills a bag is the first row", "kernel-mask", PROGRAM, _bags,
      lambda: (*drawn((6, 3))(), torch.tensor([[1, 4, -1], [0, -1, -1], [5, 2, 3]])))  # fmt: skip
def what_fills_a_bag(wrong: bool, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == at.dim() == 2, bool(((at >= -1) & (at < len(table))).all()), len(table) > 0)
    rows = table[at.clamp(min=0)]
    return rows.sum(1) if wrong else torch.where((at >= 0)[..., None], rows, 0).sum(1)


@case("logarithm of one and a small number: one is added first", "kernel-rounding", PROGRAM, torch.log1p, lambda: drawn((4, 8))()[0].square())
def one_is_added_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return (1 + x).log() if wrong else torch.log1p(x)


@case("hyperbolic sine: two powers are taken from one another", "kernel-rounding", PROGRAM, torch.sinh, drawn((4, 8)))
def two_powers(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return (x.exp() - (-x).exp()) / 2 if wrong else x.sinh()


def _coded(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == bias.shape == codes.shape[:1])
    return (x @ codes.to(x.dtype).T) * scale + bias


@case("layer of codes: the bias is scaled, too", "kernel-contract", PROGRAM, _coded,
      lambda: (*drawn((4, 6))(), whole(5, 6, most=8, least=-8), drawn((5,))()[0].abs(), drawn((5,))()[0]))  # fmt: skip
def the_bias_is_scaled_too(wrong: bool, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == bias.shape == codes.shape[:1])
    products = F.linear(x, codes.to(x.dtype))
    return (products + bias) * scale if wrong else torch.addcmul(bias, products, scale)


@case("sums so far, four columns to a lane: a row has no more than four lanes", "kernel-edge", PROGRAM, lambda x: x.cumsum(1), drawn((3, 12)))
def no_more_than_four_lanes(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    carry, out = x.new_zeros(len(x), 1), []
    for lane, part in enumerate(x.split(4, 1)):
        out.append(part.cumsum(1) + (torch.zeros_like(carry) if wrong and lane % 4 == 0 else carry))
        carry = out[-1][:, -1:]
    return torch.cat(out, 1)


@functools.cache
def _operator(wrong: bool) -> Any:
    def halved(x: torch.Tensor) -> torch.Tensor:
        return (x.float() / 2).to(x.dtype)

    made = torch.library.custom_op(f"set32::halved_{'wrong' if wrong else 'right'}", halved, mutates_args=())
    made.register_fake(lambda x: torch.empty(x.shape, dtype=torch.float32 if wrong else x.dtype))
    made.register_autograd(lambda ctx, g: g / 2)
    return made


@case("half of numbers, an operator: its fake kernel gives float32 always", "kernel-contract", "pytorch/pytorch/issues/160472", lambda x: x / 2,
      drawn((4, 6), dtype=torch.bfloat16))  # fmt: skip
def gives_float32_always(wrong: bool) -> Any:
    return _operator(wrong)


def _columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return x.t().contiguous()


@case("rows as columns, in tiles of eight: a tile that is not full is not written", "kernel-edge", PROGRAM, _columns, drawn((8, 8)))
def not_full_is_not_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out = x.new_zeros(x.shape[1], x.shape[0])
    for row in range(0, len(x), 8):
        for column in range(0, x.shape[1], 8):
            tile = x[row : row + 8, column : column + 8]
            if not wrong or tile.shape == (8, 8):
                out[column : column + 8, row : row + 8] = tile.t()
    return out


@case("cosines of rows with a table: rows are taken to be packed", "kernel-stride", PROGRAM, lambda x, y: (x * y).sum(1), drawn((5, 4), (5, 4)))
def rows_are_taken_to_be_packed(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    return torch.einsum("ij,ij->i", x, as_if(y, packed(y.shape)) if wrong else y)
