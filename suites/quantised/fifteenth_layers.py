"""The other part of the fifteenth batch: training with learned steps, in int8, with optimizers of eight bits, in three values and on nf4. Frozen
before precheck was run on it.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from casts_by_hand import to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn
from twelfth_layers import product, uneven
from twelfth_recipes import wide


def passed(t: torch.Tensor) -> torch.Tensor:
    """Rounded, with the gradient of what was rounded."""
    return t + (t.round() - t).detach()


def softplus_of_the_step_forgotten(bug: bool) -> torch.Tensor:
    """A learned step is kept as what softplus makes it of. Codes are multiplied by the parameter itself."""
    x, w = normal(16, 64), normal(32, 64, seed=1)
    raw = nn.Parameter(torch.log(torch.expm1(w.abs().amax(1, keepdim=True) / 7)))
    step = nn.functional.softplus(raw)
    codes = passed(w / step).clamp(-7, 7)
    dense = codes * (raw if bug else step)  # culprit: softplus
    return nn.functional.gelu(x @ dense.t()).to(LOW)  # culprit: softplus


class Observer:
    """The range of the numbers that it has seen, of which a scale and a zero point are made."""

    def __init__(self, bug: bool) -> None:
        self.bug, self.zero = bug, torch.zeros(())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        scale = (high - low) / 255
        zero = torch.round(-low / scale)
        used, self.zero = (self.zero if self.bug else zero), zero
        codes = (torch.round(x / scale) + used).clamp(0, 255)  # culprit: batch-before
        return (codes - used) * scale  # culprit: batch-before


def zero_point_of_the_batch_before(bug: bool) -> torch.Tensor:
    """Quantisation-aware training: the zero point is set after the batch that it was made for."""
    observer, w = Observer(bug), normal(32, 64, seed=1) / 8
    given = [torch.relu(normal(16, 64)), normal(16, 64, seed=3), normal(16, 64, seed=4) - 1]
    return torch.cat([observer(x) @ w.t() for x in given]).to(LOW)


def weights_not_centred(bug: bool) -> torch.Tensor:
    """DoReFa: tanh of the weights becomes a number from 0 to 1, is rounded to four bits, and is not made one from -1 to 1 again."""
    x, w = normal(16, 64), normal(32, 64, seed=1) / 4
    t = w.tanh()
    unit = t / (2 * t.abs().amax()) + 0.5
    codes = passed(unit * 15) / 15
    dense = 2 * codes - (0.0 if bug else 1.0)  # culprit: not-centred
    return (x @ dense.t()).to(LOW)  # culprit: not-centred


def axis_of_the_transpose(bug: bool) -> torch.Tensor:
    """Fake quantisation of torch's own: scales of the rows of a square weight are taken for those of its columns."""
    x, w = normal(16, 64), normal(64, 64, seed=1) * torch.exp2(1.5 * normal(64, 1, seed=2))
    scale = w.abs().amax(1) / 127
    made = torch.fake_quantize_per_channel_affine(w, scale, torch.zeros(64, dtype=torch.int32), int(bug), -128, 127)  # culprit: of-the-transpose
    return (x @ made.t()).to(LOW)


def folded_norm_corrected_the_wrong_way(bug: bool) -> torch.Tensor:
    """A BatchNorm is folded into a weight by its running deviation, and the batch's own is put right by the inverse of the ratio."""
    x, w = normal(64, 32) * torch.exp2(normal(32, seed=6)), normal(24, 32, seed=1) / 4
    running, own = torch.exp2(normal(24, seed=8)), (x @ w.t()).std(0, correction=0)
    codes, scale = to_int8(w / running[:, None], 1)
    y = x @ (codes.float() * scale).t()
    return (y * (own / running if bug else running / own)).to(LOW)  # culprit: the-wrong-way


class Learned(torch.autograd.Function):
    """LSQ: rounding under a step that is learned."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, step: torch.Tensor, bug: bool) -> torch.Tensor:
        codes = (w / step).round().clamp(-7, 7)
        ctx.save_for_backward(w, step, codes)
        ctx.bug = bug
        return codes * step

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        w, step, codes = ctx.saved_tensors
        inside = (w / step).abs() <= 7
        left = codes if ctx.bug else codes - torch.where(inside, w / step, 0.0)  # culprit: second-term
        return g * inside, (g * left).sum(1, keepdim=True), None  # culprit: second-term


def step_gradient_without_its_second_term(bug: bool) -> torch.Tensor:
    """LSQ: the gradient of a step is that of the codes alone, without what was rounded."""
    w = uneven(32, 64)
    step = (w.abs().amax(1, keepdim=True) / 7).requires_grad_()
    made = Learned.apply(w, step, bug)  # type: ignore[no-untyped-call]
    (made @ normal(64, 16, seed=3) * normal(32, 16, seed=4)).sum().backward()
    assert step.grad is not None
    return step.grad.to(LOW)


class SwitchBack(torch.autograd.Function):
    """A product in int8 whose input is kept as codes for the gradient of the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        (qx, sx), (qw, sw) = to_int8(x, 1), to_int8(w, (0, 1))
        ctx.save_for_backward(qx, sx, w)
        ctx.bug = bug
        return qx.float() @ qw.float().t() * sx * sw

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        qx, sx, w = ctx.saved_tensors
        kept = qx.float() * (sx.amax() if ctx.bug else sx)  # culprit: one-scale
        return g @ w, g.t() @ kept, None  # culprit: one-scale


def one_scale_for_kept_tokens(bug: bool) -> torch.Tensor:
    """SwitchBack: the gradient of the weight multiplies the codes of all tokens by the greatest of their scales."""
    w = (normal(48, 64, seed=1) / 8).requires_grad_()
    (SwitchBack.apply(uneven(32, 64), w, bug) * normal(32, 48, seed=3)).sum().backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    return w.grad.to(LOW)


def update_in_the_unit_of_data(bug: bool) -> torch.Tensor:
    """Weights are codes of eight bits, to which updates are added by chance. The update is not divided by the scale."""
    w, g = normal(32, 64, seed=1) / 8, normal(32, 64, seed=5)
    scale = w.abs().amax(1, keepdim=True) / 64
    codes, update = torch.round(w / scale).to(torch.int8), 0.06 * g if bug else 0.06 * g / scale
    noise = torch.rand(32, 64, generator=torch.Generator().manual_seed(2))
    codes = torch.floor(codes.float() - update + noise).clamp(-128, 127)  # culprit: unit-of-data
    return (normal(16, 64, seed=7) @ (codes * scale).t()).to(LOW)  # culprit: unit-of-data


SIGNED = torch.cat([-torch.logspace(0, -4, 127), torch.zeros(1), torch.logspace(-4, 0, 128)])
"""A table of 256 numbers, close together near zero, as optimizers of eight bits use it."""


def to_state(m: torch.Tensor, size: int, top: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in the table, and the greatest magnitude of each block."""
    blocks = m.reshape(-1, size)
    top = blocks.abs().amax(1, keepdim=True) if top is None else top
    return torch.bucketize(blocks / top, (SIGNED[1:] + SIGNED[:-1]) / 2).to(torch.uint8), top


def blocks_of_another_size(bug: bool) -> torch.Tensor:
    """Adam in eight bits: a moment is stored in blocks of 64, and read in blocks of 32, with as many of the magnitudes as there are."""
    m, g = uneven(32, 64), normal(32, 64, seed=5)
    codes, top = to_state(m, 64)
    tops = top.repeat(2, 1) if bug else top.repeat_interleave(2, 0)
    before = (SIGNED[codes.long()].view(-1, 32) * tops).view(32, 64)  # culprit: another-size
    return (0.9 * before + 0.1 * g).to(LOW)  # culprit: another-size


def magnitude_before_the_update(bug: bool) -> torch.Tensor:
    """Adam in eight bits: a moment is stored under its greatest magnitude before the step. Blocks are small at first."""
    kept, tops, made = torch.full((32, 64), 127, dtype=torch.uint8), torch.full((32, 1), 0.05), []
    for step in range(4):
        m = 0.9 * SIGNED[kept.long()] * tops + 0.1 * 2.0**step * normal(32, 64, seed=step)  # culprit: before-the-update
        kept, stored = to_state(m, 64, tops if bug else None)  # culprit: before-the-update
        tops = m.abs().amax(1, keepdim=True) if bug else stored
        made.append(m)
    return torch.stack(made).to(LOW)


def expanded_by_another_power(bug: bool) -> torch.Tensor:
    """COAT: a moment is raised to a power that fills float8 before it is cast. It is read with the inverse of the power of the step before."""
    m, g = normal(32, 64, seed=4).abs() * 1e-3 + 2e-4, normal(32, 64, seed=5) * 1e-4
    power, old = 3.0, 2.0
    scale = m.pow(power).amax() / 448
    codes = (m.pow(power) / scale).to(E4M3)
    before = (codes.float() * scale).pow(1 / (old if bug else power))  # culprit: another-power
    return (0.9 * before + 0.1 * g).to(LOW)  # culprit: another-power


def three_values(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BitNet: -1, 0 or 1, and the mean magnitude."""
    mean = w.abs().mean().clamp(min=1e-5)
    return torch.round(w / mean).clamp(-1, 1), mean


def divided_by_the_mean(bug: bool) -> torch.Tensor:
    """BitNet: the product is divided by the mean magnitude of the weight, which is kept as what codes are multiplied by."""
    x, w = normal(16, 64), normal(32, 64, seed=1) / 8
    (qx, sx), (codes, mean) = to_int8(x, 1), three_values(w)
    y = qx.float() @ codes.t() * sx
    y = y / mean if bug else y * mean  # culprit: by-the-mean
    return nn.functional.silu(y).to(LOW)  # culprit: by-the-mean


def mean_of_the_fused_weight(bug: bool) -> torch.Tensor:
    """BitNet: queries, keys and values have means of their own. They are fused after rounding, and the kernel takes the mean of all."""
    x, parts = normal(16, 64), [size * normal(16, 64, seed=seed) / 8 for seed, size in ((1, 0.5), (2, 1.0), (3, 4.0))]
    (qx, sx), made = to_int8(x, 1), [three_values(each) for each in parts]
    y = qx.float() @ torch.cat([codes for codes, _ in made]).t() * sx
    means = torch.stack([mean for _, mean in made])
    y = y * (means.mean() if bug else means.repeat_interleave(16))  # culprit: fused-weight
    q, k, v = y.split(16, 1)
    return (torch.softmax(q @ k.t() / 4, -1) @ v).to(LOW)  # culprit: fused-weight


class Frozen(torch.autograd.Function):
    """A product with a frozen square weight in eight bits of a table, in blocks of 64."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        codes, top = to_state(w, 64)
        ctx.save_for_backward(codes, top)
        ctx.bug = bug
        return x @ (SIGNED[codes.long()] * top).view(64, 64).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        codes, top = ctx.saved_tensors
        table = SIGNED[codes.long()]
        dense = table.t().contiguous() * top if ctx.bug else (table * top).t()  # culprit: transposed-codes
        return g @ dense.t(), None, None  # culprit: transposed-codes


def transposed_codes_under_rows(bug: bool) -> torch.Tensor:
    """QLoRA: the backward pass of a frozen weight transposes codes, and then multiplies rows of blocks by their magnitudes."""
    x = normal(16, 64).requires_grad_()
    (Frozen.apply(x, channels(), bug) * normal(16, 64, seed=3)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.to(LOW)


BUGS = (softplus_of_the_step_forgotten, zero_point_of_the_batch_before, weights_not_centred, axis_of_the_transpose,
        folded_norm_corrected_the_wrong_way, step_gradient_without_its_second_term, one_scale_for_kept_tokens, update_in_the_unit_of_data,
        blocks_of_another_size, magnitude_before_the_update, expanded_by_another_power, divided_by_the_mean, mean_of_the_fused_weight,
        transposed_codes_under_rows)  # fmt: skip
HEALTHY = ()  # look-alikes of both parts are in `fifteenth_healthy`


def observed() -> torch.Tensor:
    w = wide(normal(32, 64, seed=1) / 8)
    return torch.cat([torch.relu(normal(16, 64)), normal(16, 64, seed=3), normal(16, 64, seed=4) - 1]).double() @ w.t()


def normalised() -> torch.Tensor:
    y = product(normal(64, 32) * torch.exp2(normal(32, seed=6)), normal(24, 32, seed=1) / 4)
    return y / y.std(0, correction=0)


def rounded_gradient() -> torch.Tensor:
    w = wide(uneven(32, 64))
    step = w.abs().amax(1, keepdim=True) / 7
    g = wide(normal(32, 16, seed=4)) @ wide(normal(64, 16, seed=3)).t()
    return (g * ((w / step).round() - w / step)).sum(1, keepdim=True)


def moments() -> torch.Tensor:
    m, made = torch.zeros(32, 64, dtype=torch.float64), []
    for step in range(4):
        m = 0.9 * m + 0.1 * 2.0**step * wide(normal(32, 64, seed=step))
        made.append(m)
    return torch.stack(made)


def squashed() -> torch.Tensor:
    return torch.tanh(normal(32, 64, seed=1) / 4)


def three_valued(w: torch.Tensor) -> torch.Tensor:
    return torch.round(wide(w) / wide(w).abs().mean()).clamp(-1, 1) * wide(w).abs().mean()


def fused() -> torch.Tensor:
    q, k, v = (wide(normal(16, 64)) @ three_valued(size * normal(16, 64, seed=seed) / 8).t() for seed, size in ((1, 0.5), (2, 1.0), (3, 4.0)))
    return torch.softmax(q @ k.t() / 4, -1) @ v


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "softplus_of_the_step_forgotten": lambda: nn.functional.gelu(product(normal(16, 64), normal(32, 64, seed=1))),
    "zero_point_of_the_batch_before": observed,
    "weights_not_centred": lambda: product(normal(16, 64), squashed() / squashed().abs().amax()),
    "axis_of_the_transpose": lambda: product(normal(16, 64), normal(64, 64, seed=1) * torch.exp2(1.5 * normal(64, 1, seed=2))),
    "folded_norm_corrected_the_wrong_way": normalised,
    "step_gradient_without_its_second_term": rounded_gradient,
    "one_scale_for_kept_tokens": lambda: wide(normal(32, 48, seed=3)).t() @ wide(uneven(32, 64)),
    "update_in_the_unit_of_data": lambda: product(normal(16, 64, seed=7), normal(32, 64, seed=1) / 8 - 0.06 * normal(32, 64, seed=5)),
    "blocks_of_another_size": lambda: 0.9 * wide(uneven(32, 64)) + 0.1 * wide(normal(32, 64, seed=5)),
    "magnitude_before_the_update": moments,
    "expanded_by_another_power": lambda: 0.9 * wide(normal(32, 64, seed=4).abs() * 1e-3 + 2e-4) + 0.1 * wide(normal(32, 64, seed=5) * 1e-4),
    "divided_by_the_mean": lambda: nn.functional.silu(wide(normal(16, 64)) @ three_valued(normal(32, 64, seed=1) / 8).t()),
    "mean_of_the_fused_weight": fused,
    "transposed_codes_under_rows": lambda: wide(normal(16, 64, seed=3)) @ wide(channels()),
}
