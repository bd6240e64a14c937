"""A seventeenth frozen set of broken kernels, third part: norms, losses, optimizers, formats. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
HALF = torch.float16


@case("layer norm: what keeps it from dividing by zero is added to the number of columns", "kernel-contract", "xlite-dev/LeetCUDA/pull/317",
      lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-3), drawn((5, 8)))  # fmt: skip
def added_to_the_columns(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    apart = x - x.mean(-1, keepdim=True)
    squares = apart.square().sum(-1, keepdim=True)
    return apart * (squares / (x.shape[1] + 1e-3) if wrong else squares / x.shape[1] + 1e-3).rsqrt()


def _two_groups(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 2)


@case("group norm: a sequence begins where a group of the one before ends", "kernel-contract", "tenstorrent/tt-metal/pull/57223", _two_groups,
      drawn((3, 4, 7)))  # fmt: skip
def where_a_group_ends(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] % 2 == 0 and x.numel() > 0)
    span, flat, made = x[0].numel() // 2, x.reshape(-1), []
    for sequence in range(len(x)):
        begin = sequence * span if wrong else 2 * sequence * span
        groups = flat[begin : begin + 2 * span].view(2, span)
        apart = groups - groups.mean(1, keepdim=True)
        made.append(apart * (apart.square().mean(1, keepdim=True) + 1e-5).rsqrt())
    return torch.stack(made).view(x.shape)


def _policy(new: torch.Tensor, old: torch.Tensor, gain: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    change = (new - old).exp()
    return -(torch.minimum(change * gain, change.clamp(0.8, 1.2) * gain) * ratio)


@case("policy loss: the ratio of the two engines is left out", "kernel-contract", "linkedin/Liger-Kernel/pull/1088", _policy,
      drawn((4, 7), (4, 7), (4, 7), (4, 7)))  # fmt: skip
def ratio_is_left_out(wrong: bool, new: torch.Tensor, old: torch.Tensor, gain: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    need(new.shape == old.shape == gain.shape == ratio.shape)
    change = (new - old).exp()
    one, other = change * gain, change.clamp(0.8, 1.2) * gain
    loss = torch.where(other < one, other, one)
    return -loss if wrong else -loss * ratio


@case("linear and smoothed cross entropy in one: it is not smoothed", "kernel-contract", "linkedin/Liger-Kernel/issues/243",
      lambda x, w, y: F.cross_entropy(x @ w.mT, y, label_smoothing=0.1, reduction="none"),
      lambda: (*drawn((6, 5), (9, 5))(), whole(6, most=9)))  # fmt: skip
def not_smoothed(wrong: bool, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and y.shape == x.shape[:1] and bool(((y >= 0) & (y < len(w))).all()))
    logs = (x @ w.mT).log_softmax(-1)
    own = logs.gather(1, y[:, None])[:, 0]
    return -own if wrong else -0.9 * own - 0.1 * logs.mean(-1)


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A step of Adam; each row has made some steps."""
    steps = steps[:, None].to(p.dtype)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.abs() + 0.001 * g * g
    return p - 0.01 * m / (1 - 0.9**steps) / ((v / (1 - 0.999**steps)).sqrt() + 1e-8), m, v


@case("adam: steps are counted in bfloat16, which ends at 256", "kernel-rounding", "pytorch/ao/pull/4915", _adam,
      lambda: (*drawn((6, 5), (6, 5), (6, 5), (6, 5))(), whole(6, most=1000, least=1)))  # fmt: skip
def steps_in_bfloat16(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, steps: torch.Tensor) -> Any:
    need(p.dim() == 2 and p.shape == g.shape == m.shape == v.shape and steps.shape == p.shape[:1] and bool((steps > 0).all()))
    count = steps.clamp(max=256).double() if wrong else steps.double()  # 256 and one are 256 in bfloat16
    one, two = (1 - 0.9**count).float()[:, None], (1 - 0.999**count).float()[:, None]
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.abs() + 0.001 * g * g
    return p - 0.01 * (m / one) / ((v / two).sqrt() + 1e-8), m, v


@case("logarithms of shares of columns: rows of the second half are not looked at for the largest", "kernel-rounding", "pytorch/pytorch/pull/156379",
      lambda x: x.log_softmax(0), drawn((7, 8)))  # fmt: skip
def second_half_for_the_largest(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0)
    most, half = x.amax(0), x.shape[1] // 2
    if wrong:
        most = torch.cat([most[:half], x[0, half:]])
    return x - most - (x - most).exp().sum(0).log()


@case("gated gelu: one plus a tanh far below zero", "kernel-rounding", "tenstorrent/tt-metal/pull/56604",
      lambda x: x * (1.5957691216 * (x + 0.044715 * x**3)).sigmoid(), drawn((6, 20)))  # fmt: skip
def one_plus_a_tanh(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    return x / 2 * inner.tanh() + x / 2 if wrong else x * (2 * inner).sigmoid()


def _fours(x: torch.Tensor) -> torch.Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (size / step).round() * step * x.sign()


def _rows_of_four_bits(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 6
    return _fours(x / scale) * scale


@case("four bits: rows from 1024 numbers on are coded by the other table", "kernel-edge", "bitsandbytes-foundation/bitsandbytes/issues/565",
      _rows_of_four_bits, drawn((4, 12)))  # fmt: skip
def by_the_other_table(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 6
    other = wrong and x.shape[1] >= 1024
    return ((x / scale).round() if other else _fours(x / scale)) * scale


@case("product with a scale for each column: behind eight rows none is found", "kernel-edge", "vllm-project/vllm/pull/37329",
      lambda x, w, s: x @ (w * s), drawn((4, 8), (8, 5), (5,)))  # fmt: skip
def none_is_found(wrong: bool, x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w) and s.shape == w.shape[1:])
    total = torch.zeros(len(x), w.shape[1])
    for start in range(0, len(w), 8):
        part = x[:, start : start + 8] @ w[start : start + 8]
        total = total + (part if wrong and start else part * s)
    return total


def _bytes(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round() + 128


@case("codes without a sign: their middle is 127", "kernel-contract", "microsoft/onnxruntime/issues/25823", _bytes, drawn((5, 9)))
def middle_is_127(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round() + (127 if wrong else 128)


def _by_exponents(x: torch.Tensor) -> torch.Tensor:
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True).clamp(min=1e-6)).exponent
    scale = torch.ldexp(torch.ones_like(x[:, :1]), exponent - 3)
    return _fours(x / scale) * scale


@case("four bits with powers of two: the exponent is that of the largest in bfloat16", "kernel-rounding", "pytorch/ao/pull/4725", _by_exponents,
      drawn((6, 12)))  # fmt: skip
def exponent_in_bfloat16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    exponent = torch.frexp(most.bfloat16().float() if wrong else most).exponent
    scale = torch.ldexp(torch.ones_like(most), exponent - 3)
    return _fours(x / scale) * scale


def _scales(x: torch.Tensor) -> torch.Tensor:
    """Scales of blocks of four, in eight bits, as shares of the largest; one where all are zero."""
    most = x.abs().unflatten(1, (-1, 4)).amax(-1) / 6
    shares = torch.where(most == 0, 1.0, most) / (most.amax() / 448).clamp(min=1e-12)
    return shares.clamp(max=448).to(torch.float8_e4m3fn).to(x.dtype)


def _with_an_empty_block() -> tuple[torch.Tensor, ...]:
    (x,) = drawn((5, 12))()
    x[1, 4:8] = x[3, :4] = 0
    return (x,)


@case("scales of blocks in eight bits: that of a block of zeros is beyond their range", "kernel-rounding", "NVIDIA/Model-Optimizer/pull/1397",
      lambda x: _scales(x.detach()), _with_an_empty_block)  # fmt: skip
def beyond_their_range(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 4 == 0 and x.numel() > 0)
    most = x.detach().abs().unflatten(1, (-1, 4)).amax(-1) / 6
    shares = torch.where(most == 0, 1.0, most) / (most.amax() / 448).clamp(min=1e-12)
    if wrong:
        return torch.where(shares > 464, float("nan"), shares.clamp(max=448).to(torch.float8_e4m3fn).float())
    return torch.where(shares > 448, 448, shares).to(torch.float8_e4m3fn).float()


def _to_eight_bits(x: torch.Tensor) -> torch.Tensor:
    """The nearest number with three bits behind the first, and no step below that of 2^-6."""
    step = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent.clamp(min=-5) - 4)
    return (x / step).round() * step


@case("numbers in eight bits: small ones are rounded twice", "kernel-rounding", "openvinotoolkit/openvino/pull/30057",
      lambda x: _to_eight_bits(x.clamp(-448, 448)), lambda: (drawn((6, 12))()[0] / 64,))  # fmt: skip
def small_ones_twice(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    limited = x.clamp(-448, 448)
    if wrong:
        step = torch.ldexp(torch.ones_like(limited), torch.frexp(limited).exponent.clamp(min=-30) - 4)
        limited = (limited / step).round() * step
    step = torch.ldexp(torch.ones_like(limited), torch.frexp(limited).exponent.clamp(min=-5) - 4)
    return (limited / step).round() * step


@case("shares of the largest in blocks of four: a slice is read in the order of its memory", "kernel-stride",
      "bitsandbytes-foundation/bitsandbytes/pull/1996",
      lambda x: (x.unflatten(1, (-1, 4)) / x.unflatten(1, (-1, 4)).abs().amax(-1, keepdim=True).clamp(min=1e-6)).flatten(1),
      drawn((5, 8)))  # fmt: skip
def in_the_order_of_memory(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 4 == 0 and x.shape[1] > 0)
    blocks = (as_if(x, packed(x.shape)) if wrong else x).reshape(-1, 4)
    return (blocks / blocks.abs().amax(1, keepdim=True).clamp(min=1e-6)).view(x.shape)


def _shifted(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return x + shift[:, None, None]


@case("shift of each channel in float16: its gradient is added up in float16, over pictures and over pixels", "kernel-accumulation",
      "pytorch/pytorch/issues/195701", _shifted, drawn((3, 8, 24), (3,), dtype=HALF))  # fmt: skip
def over_pictures_and_pixels(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, shift: torch.Tensor) -> Any:
        need(x.dim() == 3 and shift.shape == x.shape[:1])
        return x + shift[:, None, None], ()

    def backward(_: Any, given: torch.Tensor) -> Any:
        total = torch.zeros(len(given), dtype=given.dtype if wrong else torch.float32)
        for picture in given.unbind(1):
            for pixel in picture.unbind(1):
                total = total + pixel.to(total.dtype)
        return given, total.to(given.dtype)

    return function(forward, backward)


def _by_statistics(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return ((x.to(mean.dtype) - mean) * (variance.abs() + 1e-5).rsqrt()).to(x.dtype)


@case("norm by kept statistics: those are float32, and are rounded to the float16 of the numbers", "kernel-rounding", "apple/coreai-torch/pull/54",
      _by_statistics, lambda: (drawn((6, 5), dtype=HALF)()[0], *drawn((5,), (5,))()))  # fmt: skip
def rounded_to_those_of_the_numbers(wrong: bool, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and mean.shape == variance.shape == x.shape[1:])
    if wrong:
        mean, variance = mean.to(x.dtype).float(), variance.to(x.dtype).float()
    factor = 1 / (variance.abs() + 1e-5).sqrt()
    return ((x.float() - mean) * factor).to(x.dtype)
