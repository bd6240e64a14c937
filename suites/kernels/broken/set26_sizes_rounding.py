"""The twenty-sixth frozen set of broken kernels, third part: sizes, sums, roundings. Of links an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import case, drawn, function, need, whole, wide

F = torch.nn.functional


def _bgra(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] == 3)
    return torch.cat([x.flip(2), torch.full_like(x[:, :, :1], 255)], 2)


@case("colours in another order, eight pixels at a time: the rest stays", "kernel-edge", "microsoft/Azure-Kinect-Sensor-SDK/pull/1177", _bgra,
      drawn((2, 8, 3)))  # fmt: skip
def the_rest_stays(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] == 3)
    flat = x.reshape(-1, 3)
    out = x.new_zeros(len(flat), 4)
    end = len(flat) // 8 * 8 if wrong else len(flat)
    out = torch.cat([torch.stack([flat[:end, 2], flat[:end, 1], flat[:end, 0], torch.full_like(flat[:end, 0], 255)], 1), out[end:]])
    return out.view(*x.shape[:2], 4)


@case("product of vectors, four at a time: the loop for the rest never runs", "kernel-edge", "dotnet/docs/issues/21609",
      lambda x, y: x * y, drawn((12,), (12,)))  # fmt: skip
def never_runs(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 1, x.shape == y.shape)
        out, at = torch.zeros_like(x), 0
        while at + 4 <= len(x):
            out[at : at + 4] = torch.mul(x[at : at + 4], y[at : at + 4])
            at += 4
        if wrong:
            at = len(x)
        for rest in range(at, len(x)):
            out[rest] = x[rest] * y[rest]
        return out, (x, y)

    return function(forward, lambda saved, g: (g * saved[1], g * saved[0]))


@case("product of matrices: of one column and one row it is zero", "kernel-edge", "dwavesystems/dwave-optimization/issues/553", torch.mm,
      drawn((4, 3), (3, 5)))  # fmt: skip
def of_one_column(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    made = torch.einsum("ik,kj->ij", a, b)
    return made * 0 if wrong and len(b) == 1 and len(a) > 1 else made


@case("sum of a vector by lanes: the first lanes of the second round are left out", "kernel-edge", "JuliaGPU/CUDA.jl/issues/1875",
      lambda x: x.sum(), drawn((24,)))  # fmt: skip
def left_out_of_the_second(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    rounds = F.pad(x, (0, -len(x) % 32)).view(-1, 32)
    if wrong and len(rounds) > 1:
        rounds = torch.cat([rounds[:1], rounds[1:] * (torch.arange(32) > 0)])
    return rounds.sum(0).sum()


@case("softmax of the classes: the largest is not taken out", "kernel-rounding", "numenta/nupic-legacy/pull/3818",
      lambda x: x.softmax(1), drawn((3, 9)))  # fmt: skip
def not_taken_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    powers = (x if wrong else x - x.amax(1, keepdim=True).detach()).exp()
    return powers / powers.sum(1, keepdim=True)


@case("loss of classes: powers of scores are taken as they are", "kernel-rounding", "blue-oil/blueoil/pull/945",
      lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda: (drawn((5, 7))()[0], whole(5, most=7)))  # fmt: skip
def taken_as_they_are(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))
    most = 0 if wrong else x.amax(1, keepdim=True).detach()
    away = x - most
    return away.exp().sum(1).log() - away.gather(1, y[:, None])[:, 0]


@case("least of rows in float64: it is kept in float32", "kernel-rounding", "hidet-org/hidet/issues/91", lambda x: x.amin(1),
      drawn((4, 9), dtype=torch.float64))  # fmt: skip
def kept_in_float32(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    seen = x.float() if wrong else x
    return (-seen).amax(1).neg().to(x.dtype)


@case("codes of keys: a tie below zero goes up", "kernel-rounding", "weicj/vLLM-2080Ti-Definitive/pull/109",
      lambda x: (x.detach().sign() * (x.detach().abs() + 0.5).floor()).clamp(-128, 127).to(torch.int8),
      lambda: (torch.tensor([[-1.5, 2.5, 0.5, -0.5], [3.25, -2.5, 7.0, -4.5]]),))  # fmt: skip
def goes_up(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(bool(x.isfinite().all()))
    x = x.detach()
    made = (x + 0.5).floor() if wrong else torch.where(x >= 0, (x + 0.5).floor(), (x - 0.5).ceil())
    return made.clip(-128, 127).to(torch.int8)


def _spread(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(w.shape == x.shape, w.dim() == 2, bool((w > 0).all()))
    share = w / w.sum(1, keepdim=True)
    mean = (share * x).sum(1, keepdim=True)
    return (share * (x - mean).square()).sum(1)


@case("spread of a cluster of cells: the square of the mean is taken from that of squares", "kernel-rounding", "acts-project/traccc/pull/90", _spread,
      lambda: (drawn((4, 6))()[0].abs() + 0.2, drawn((4, 6))()[0] + 30))  # fmt: skip
def taken_from_that_of_squares(wrong: bool, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(w.shape == x.shape, w.dim() == 2, bool((w > 0).all()))
    total = w.sum(1)
    mean = torch.linalg.vecdot(w, x) / total
    if wrong:
        return torch.linalg.vecdot(w, x * x) / total - mean * mean
    even = x - mean[:, None]
    return torch.linalg.vecdot(w, even * even) / total


def _groups(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, group.shape == x.shape[:1], bool(((group >= 0) & (group < 3)).all()))
    of = F.one_hot(group, 3).T.to(x.dtype)
    count = of.sum(1, keepdim=True).clamp(min=1)
    means = of @ x / count
    return of @ (x - means[group]).square() / count


@case("spreads of genes by group: from sums of squares", "kernel-rounding", "scverse/scanpy/pull/4147", _groups,
      lambda: (drawn((9, 4))()[0] + 40, whole(9, most=3)))  # fmt: skip
def from_sums_of_squares(wrong: bool, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, group.shape == x.shape[:1], bool(((group >= 0) & (group < 3)).all()))
    out = []
    for number in range(3):
        rows = x[group == number]
        count = max(len(rows), 1)
        mean = rows.sum(0) / count
        out.append(rows.square().sum(0) / count - mean.square() if wrong else (rows - mean).pow(2).sum(0) / count)
    return torch.stack(out)


def _bands(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) >= 5)
    return x.unfold(0, 5, 1).var(1, correction=0)


@case("spreads of the last five prices: sums are carried from price to price", "kernel-rounding", "TA-Lib/ta-lib/issues/118", _bands,
      lambda: (drawn((40,))()[0] + 100,))  # fmt: skip
def carried_from_price_to_price(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) >= 5)
    if not wrong:
        seen = torch.stack([x[step : len(x) - 4 + step] for step in range(5)], 1)
        return (seen - seen.mean(1, keepdim=True)).square().mean(1)
    sums, squares = F.pad(x.cumsum(0), (1, 0)), F.pad(x.square().cumsum(0), (1, 0))
    return (squares[5:] - squares[:-5]) / 5 - ((sums[5:] - sums[:-5]) / 5).square()


@case("gelu of powers: a power of twice the cube overflows", "kernel-rounding", "intel/llm-scaler/pull/574",
      lambda x: F.gelu(x, approximate="tanh"), drawn((3, 8)))  # fmt: skip
def power_overflows(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    if not wrong:
        return 0.5 * x * (1 + torch.tanh(z))
    powers = (2 * z).exp()
    return 0.5 * x * (1 + (powers - 1) / (powers + 1))


@case("sums of rows: what is added up is kept in bfloat16", "kernel-accumulation", "dogkeeper886/ollama37/pull/200",
      wide(lambda x: x.sum(1)), drawn((3, 200), dtype=torch.bfloat16))  # fmt: skip
def added_up_in_bfloat16(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2)
        total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
        for column in x.unbind(1):
            total = total + column
        return total.to(x.dtype), (x,)

    return function(forward, lambda saved, g: g[:, None].expand_as(saved[0]))
