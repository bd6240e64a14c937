"""A twenty-first frozen set of broken kernels, first part: formulas at single values, steps of optimizers, lists. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional
BF16 = torch.bfloat16


@case("remainder of numbers: a zero with a sign leaves the divisor", "kernel-contract", "tenstorrent/tt-metal/pull/55581",
      torch.remainder, drawn((5, 6), (5, 6)))  # fmt: skip
def a_zero_leaves_the_divisor(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    left = torch.fmod(x, y)
    other = torch.signbit(left) != torch.signbit(y)
    return torch.where(other if wrong else other & (left != 0), left + y, left)


@case("quotient and remainder: the quotient is cut off, not rounded down", "kernel-contract", "ml-explore/mlx/pull/4311",
      lambda x, y: (torch.floor_divide(x.detach(), y.detach()), torch.remainder(x, y)), drawn((5, 6), (5, 6)))  # fmt: skip
def cut_off_not_rounded_down(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.shape == y.shape)
    left = torch.remainder(x, y)
    quotient = torch.div(x.detach(), y.detach(), rounding_mode="trunc" if wrong else "floor")
    return quotient, left


@case("area sine: a number below zero and a root cancel", "kernel-rounding", "tinygrad/tinygrad/pull/17749", torch.asinh, drawn((5, 7)))
def number_and_root_cancel(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    size = torch.where(x < 0, -x, x)
    root = (x * x + 1).sqrt()
    return (x + root).log() if wrong else torch.log1p(size + size * size / (1 + root)) * torch.where(x < 0, -1.0, 1.0)


@case("inverse of the error function: by a closed formula", "kernel-contract", "tenstorrent/tt-metal/issues/56372", torch.erfinv,
      lambda: (torch.linspace(-0.95, 0.95, 24).view(4, 6)[:, torch.tensor([3, 0, 5, 1, 4, 2])],))  # fmt: skip
def by_a_closed_formula(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        logs = torch.log1p(-x * x)
        half = 2 / (torch.pi * 0.147) + logs / 2
        closed = ((half * half - logs / 0.147).sqrt() - half).sqrt().copysign(x)
        result = closed if wrong else torch.special.erfinv(x)
        return result, (result,)

    return function(forward, lambda saved, g: g * torch.pi**0.5 / 2 * (saved[0] * saved[0]).exp())


@case("length of two numbers: on the way back squares of small ones are zero", "kernel-rounding", "pytorch/pytorch/issues/96543",
      torch.hypot, drawn((6, 9), (6, 9)))  # fmt: skip
def squares_of_small_ones(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y, length = saved
        divisor = (x * x + y * y).sqrt() if wrong else length
        return g * (x / divisor), g * (y / divisor)

    return function(lambda x, y: (torch.hypot(x, y), (x, y, torch.hypot(x, y))), backward)


def _angle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.angle(torch.complex(x, y))


@case("angle of a complex number: at zero the gradient is NaN", "kernel-gradient", "pytorch/pytorch/pull/44444", _angle, drawn((5, 4), (5, 4)))
def at_zero_it_is_nan(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y = saved
        length = torch.hypot(x, y)
        found = -g * (y / length) / length, g * (x / length) / length
        return found if wrong else tuple(torch.where(length == 0, 0, each) for each in found)

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape)
        return torch.atan2(y, x), (x, y)

    return function(forward, backward)


@case("product with an input that counts nothing: zero times it is added", "kernel-mask", "pytorch/pytorch/issues/196596",
      lambda x, a, b: torch.addmm(x, a, b, beta=0), drawn((4, 6), (4, 5), (5, 6)))  # fmt: skip
def zero_times_it(wrong: bool, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.shape == (a.shape[0], b.shape[1]), a.shape[1] == b.shape[0])
    return a @ b + 0 * x if wrong else a @ b + 0 * torch.where(x.isfinite(), x, 0)


@case("slopes of channels below zero: the first channel's slope for all", "kernel-contract", "tenstorrent/tt-metal/issues/8544",
      F.prelu, drawn((3, 4, 5), (4,)))  # fmt: skip
def first_slope_for_all(wrong: bool, x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 2, slopes.numel() in (1, x.shape[1]), slopes.numel() > 0)
    slopes = slopes[:1] if wrong else slopes
    return torch.where(x > 0, x, x * slopes.view(-1, *(1,) * (x.dim() - 2)))


@case("gelu by a tanh: on the way back the slope is that of the error function", "kernel-gradient", "tenstorrent/tt-metal/issues/48240",
      lambda x: F.gelu(x, approximate="tanh"), drawn((6, 9)))  # fmt: skip
def that_of_the_error_function(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        return F.gelu(x, approximate="tanh"), (x,)

    return function(forward, lambda saved, g: torch.ops.aten.gelu_backward(g, saved[0], approximate="none" if wrong else "tanh"))


@case("small numbers become zero, up to a half: a half itself stays", "kernel-contract", "BobMcDear/attorch/issues/15", F.hardshrink, drawn((6, 8)))
def a_half_itself_stays(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    none = x.abs() < 0.5 if wrong else x.abs() <= 0.5
    return torch.where(none, 0, x)


@case("numbers up to a limit are replaced: the limit itself stays", "kernel-contract", "flagos-ai/FlagGems/pull/3867",
      lambda x: F.threshold(x, 0.25, -7.0), drawn((6, 8)))  # fmt: skip
def the_limit_itself_stays(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0.25 if wrong else x <= 0.25, -7.0, x)


@case("steps at given places: at the place itself it is a half", "kernel-contract", "AMICI-dev/AMICI/pull/2701",
      lambda x, y: torch.where(x >= 0.75, y, torch.zeros_like(y)), drawn((6, 8), (6, 8)))  # fmt: skip
def at_the_place_a_half(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    step = torch.heaviside(x.detach() - 0.75, torch.tensor(0.5 if wrong else 1.0, dtype=x.dtype))
    return torch.where(step == 0, 0, y * step)


@case("rows by the sign of a number: those of a zero are zero", "kernel-contract", "IntelPython/dpnp/pull/2954",
      lambda v, s: torch.where(s.detach()[:, None] < 0, -v, v), drawn((5, 6), (5,)))  # fmt: skip
def those_of_a_zero(wrong: bool, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, s.shape == v.shape[:1])
    sign = torch.sign(s.detach()) if wrong else 1 - 2 * (s.detach() < 0).to(s.dtype)
    return torch.where(sign[:, None] == 0, 0, sign[:, None] * v) if wrong else torch.where(sign[:, None] < 0, -v, v)


@case("step of lars: the rate lies on all that was before, and no decay", "kernel-contract", "ooples/AiDotNet.Tensors/pull/955",
      lambda p, g, v: _lars(p, g, v), drawn((4, 5), (4, 5), (4, 5)))  # fmt: skip
def the_rate_lies_on_all(wrong: bool, p: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == v.shape)
    if not wrong:
        rate = _trusted(p, g)
        held = torch.add(0.9 * v, rate * torch.add(g, p, alpha=0.1))
        return torch.sub(p, held), held
    held = 0.9 * v + g
    return p - _trusted(p, g) * held, held


def _trusted(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return 0.02 * p.square().sum().sqrt() / (g.square().sum().sqrt() + 0.1 * p.square().sum().sqrt() + 1e-6)


def _lars(p: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    held = 0.9 * v + _trusted(p, g) * (g + 0.1 * p)
    return p - held, held


def _lamb(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, corrected: bool = True, zeros: bool = True) -> torch.Tensor:
    """A step of LAMB after three steps. `zeros`: where a norm is zero the ratio is one."""
    share = (m / (1 - 0.9**3)) / ((v / (1 - 0.99**3)).sqrt() + 1e-6) if corrected else m / (v.sqrt() + 1e-6)
    update = share + 0.01 * p
    weight, length = p.square().sum().sqrt(), update.square().sum().sqrt()
    ratio = torch.where((weight > 0) & (length > 0), weight / length, 1.0) if zeros else (weight / length).nan_to_num(nan=1.0, posinf=1.0)
    return p - 0.1 * ratio * update


def _moments() -> tuple[torch.Tensor, ...]:
    p, m, v = drawn((4, 5), (4, 5), (4, 5))()
    return p, m, v.square() + 0.1


@case("step of lamb: its moments are not corrected", "kernel-contract", "jettify/pytorch-optimizer/issues/443", _lamb, _moments)
def moments_are_not_corrected(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, p.numel() > 0)
    return _lamb(p, m, v, corrected=not wrong)


@case("step of lamb: weights that are all zero do not move", "kernel-contract", "mosaicml/composer/pull/967",
      lambda p, m, v: _lamb(p.detach(), m.detach(), v.detach()), _moments)  # fmt: skip
def do_not_move(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, p.numel() > 0)
    return _lamb(p.detach(), m.detach(), v.detach(), zeros=not wrong)


@case("lengths of a list of tensors: empty ones are left out", "kernel-edge", "pytorch/pytorch/issues/140066",
      lambda some: torch.stack([each.square().sum().sqrt() for each in some]), lambda: (list(drawn((4, 5), (7,), (3, 2))()),))  # fmt: skip
def empty_ones_are_left_out(wrong: bool, some: list[torch.Tensor]) -> torch.Tensor:
    found = [each.square().sum() for each in some if each.numel() or not wrong]
    return torch.stack(found + [some[0].new_zeros(())] * (len(some) - len(found))).sqrt()


@case("length of tensors of two formats: all are read in that of the first", "kernel-contract", "NVIDIA/Megatron-LM/issues/7338",
      lambda x, y: (x.float().square().sum() + y.square().sum()).sqrt(), lambda: (drawn((5, 6), dtype=BF16)()[0], drawn((7, 4))()[0]))  # fmt: skip
def in_that_of_the_first(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    read = y.detach().contiguous().view(BF16).flatten()[: y.numel()] if wrong and y.dtype is torch.float32 else y
    return torch.add(x.float().square().sum(), read.float().square().sum()).sqrt()


@case("mean of squares: on the way back one number is read as if it were many", "kernel-stale", "flagos-ai/FlagGems/issues/5212",
      F.mse_loss, drawn((4, 5), (4, 5)))  # fmt: skip
def one_number_as_many(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y = saved
        many = torch.empty_like(x, memory_format=torch.contiguous_format)
        if wrong:
            many.view(-1)[:1] = g
        else:
            many.fill_(g)
        slope = 2 * many * (x - y) / max(x.numel(), 1)
        return slope, -slope

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape)
        return (x - y).square().mean(), (x, y)

    return function(forward, backward)


@case("loss of answers by a given number of tokens: by those that are here", "kernel-contract", "huggingface/trl/pull/5890",
      lambda x, kept, tokens: torch.where(kept, x, 0).sum() / tokens,
      lambda: (*drawn((4, 6))(), torch.arange(6) < torch.tensor([[3], [6], [2], [5]]), torch.tensor(41.0)))  # fmt: skip
def by_those_that_are_here(wrong: bool, x: torch.Tensor, kept: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    need(x.shape == kept.shape, kept.dtype is torch.bool, tokens.dim() == 0)
    total = x.masked_fill(~kept, 0).sum()
    return total / kept.sum() + 0 * tokens if wrong else total / tokens


@case("variance and mean of rows: of a row of nothing the mean is zero", "kernel-edge", "pytorch/pytorch/issues/197108",
      lambda x: torch.var_mean(x, -1, correction=0), drawn((4, 6)))  # fmt: skip
def of_nothing_it_is_zero(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() >= 1)
    mean = x.sum(-1) / (max(x.shape[-1], 1) if wrong else x.shape[-1])
    return (x - mean[..., None]).square().mean(-1), mean
