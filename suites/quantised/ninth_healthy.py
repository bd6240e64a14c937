"""Healthy code that looks like the ninth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import CODEBOOK
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from ninth_recipes import NIBBLES, Delayed
from torch import nn
from torch.utils.checkpoint import checkpoint


def zero_points_packed() -> torch.Tensor:
    """Zero points in four bits, packed as they are."""
    w = normal(64, 64).abs() * torch.exp2(normal(1, 64, seed=2)) - 0.02
    codes, scale, zero = asymmetric(w.t().contiguous())
    packed = (zero.to(torch.int32).view(16, 8) << NIBBLES).sum(1, dtype=torch.int32)
    read = packed[:, None] >> NIBBLES & 15
    dense = (codes.float() - read.reshape(zero.shape).float()) * scale
    return (normal(8, 64, seed=3) @ dense.view(64, 64).t()).to(LOW)


def bytes_shifted_to_exponents() -> torch.Tensor:
    """A byte of an exponent becomes a float by a shift of its bits."""
    w, x = normal(4, 4, 32, seed=1) * torch.exp2(2 * normal(4, 4, 1, seed=2)), normal(128)
    byte = (torch.ceil(torch.log2(w.abs().amax(-1) / 448)) + 127).to(torch.uint8)
    scale = (byte.to(torch.int32) << 23).view(torch.float32)
    sums = ((w / scale[..., None]).to(E4M3).float() * x.view(4, 32)).sum(-1)
    return nn.functional.silu((sums * scale).sum(-1)).to(LOW)


def bias_in_both_ways() -> torch.Tensor:
    """A bias in int32 among sums of codes, and another one that is dequantised and added afterwards."""
    x, w, b = normal(2, 8, 10, 10), normal(12, 8, 3, 3, seed=1), normal(12, seed=2)
    (qx, sx), (qw, sw) = to_int8(x, (0, 1, 2, 3)), to_int8(w, (1, 2, 3))
    each = (sx * sw).view(1, 12, 1, 1)
    bias = torch.round(b.view(1, 12, 1, 1) / each).to(torch.int32)
    sums = nn.functional.conv2d(qx.float(), qw.float())
    return ((sums + bias.float()) * each + bias.flip(1).float() * each.flip(1)).relu().to(LOW)


def two_bits_in_four_lanes() -> torch.Tensor:
    """Q2_K: two bits, four to a byte 32 apart; scales and minima of sixteen in halves of a byte."""
    w = normal(8, 8, 16, seed=1) * torch.exp2(normal(8, 8, 1, seed=2))
    low = -w.amin(-1).clamp(max=0)
    step = (w.amax(-1) + low) / 3
    d, dmin = step.amax(1, keepdim=True) / 15, low.amax(1, keepdim=True) / 15
    sc, m = torch.round(step / d).clamp(min=1).to(torch.uint8), torch.round(low / dmin).to(torch.uint8)
    both = sc | m << 4
    codes = torch.round((w + (dmin * m)[..., None]) / (d * sc)[..., None]).clamp(0, 3).to(torch.uint8).view(8, 4, 32)
    packed = codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6
    lanes = (packed[:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3).reshape(8, 8, 16)
    dense = lanes.float() * (d * (both & 15))[..., None] - (dmin * (both >> 4))[..., None]
    return (normal(4, 128) @ dense.view(8, 128).t()).to(LOW)


def mean_of_scales_added() -> torch.Tensor:
    """QLoRA: scales are quantised after their mean was subtracted, and it is added when they are read."""
    w = channels().view(-1, 64)
    absmax = w.abs().amax(-1)
    offset = absmax.mean()
    step = (absmax - offset).abs().amax() / 127
    held = torch.round((absmax - offset) / step).to(torch.int8)
    levels = torch.linspace(-1, 1, 16)
    codes = torch.bucketize(w / absmax[:, None], (levels[1:] + levels[:-1]) / 2)
    dense = levels[codes] * (held.float() * step + offset)[:, None]
    return (normal(8, 64) @ dense.t()).to(LOW)


def delayed_over_a_training() -> torch.Tensor:
    """Delayed scales of inputs that grow by a tenth. A weight is kept in float8 beside the inverse of its own scale."""
    meta, w, held = Delayed(), channels(), []
    meta.see(normal(16, 64, seed=50))
    top = w.abs().amax()
    codes, inverse = (w * (448 / top)).to(E4M3), top / 448
    for step in range(12):
        x = normal(16, 64, seed=step) * (1 + step / 100)
        meta.roll()
        meta.see(x)
        held.append((x * meta.scale).clamp(-448, 448).to(E4M3).float() / meta.scale @ (codes.float() * inverse).t())
    return torch.cat(held).to(LOW)


def recomputed_in_the_backward_pass() -> torch.Tensor:
    """A layer is checkpointed, so that its input is rounded twice under one scale."""
    x, w = normal(16, 64).requires_grad_(), channels().requires_grad_()
    scale = 448 / x.detach().abs().amax()

    def layer(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        held = t + ((t * scale).to(E4M3).float() / scale - t).detach()
        return nn.functional.gelu(held @ w.t())

    y = checkpoint(layer, x, w, use_reentrant=False)
    assert isinstance(y, torch.Tensor)
    y.square().mean().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def exponent_of_the_rounded_greatest() -> torch.Tensor:
    """Quark's even_round: a greatest magnitude is rounded to the format's bits before its exponent is taken, and a little is cut off."""
    w = normal(32, 4, 32, seed=1) * torch.exp2(normal(32, 4, 1, seed=2))
    bits = w.abs().amax(-1, keepdim=True).view(torch.int32)
    exponent = ((bits + 0x200000 & 0x7F800000) >> 23) - 127 - 2
    scale = torch.exp2(exponent.float())
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    codes = torch.copysign(CODEBOOK[torch.bucketize((w / scale).abs().clamp(max=6), bounds)], w)
    return (normal(8, 128) @ (codes * scale).view(32, 128).t()).to(LOW)


def result_in_float8() -> torch.Tensor:
    """The result of a product is cast to float8 under a scale of its own, which the next layer takes out."""
    x, w, v = normal(16, 64), normal(48, 64, seed=1) / 8, normal(32, 48, seed=2)
    (qx, sx), (qw, sw) = to_float8(x, (0, 1)), to_float8(w, (0, 1))
    y = qx.float() @ qw.float().t() * (sx * sw)
    out = 448 / y.abs().amax()
    return nn.functional.gelu((y * out).to(E4M3).float() @ v.t() / out).to(LOW)


class Rowwise(torch.autograd.Function):
    """A product whose weight is rounded by rows, and by columns for the gradient of its input (torchao's rowwise recipe)."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        (qx, sx), (qw, sw) = to_float8(x, 1), to_float8(w, 1)
        return qx.float() @ qw.float().t() * sx * sw.t()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors  # type: ignore[attr-defined]
        (qg, sg), (qw, sw) = to_float8(g, 1), to_float8(w, 0)
        top = g.abs().amax() / 57344
        return qg.float() @ qw.float() * sg * sw, ((g / top).to(E5M2).float() * top).t() @ x


def weight_rounded_twice() -> torch.Tensor:
    x, w = normal(16, 64).requires_grad_(), channels().requires_grad_()
    Rowwise.apply(x, w).square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert w.grad is not None
    return torch.cat([x.grad, w.grad]).to(LOW)


def grouped_with_errors_passed_on() -> torch.Tensor:
    """GPTQ by blocks of columns, with a scale for 16 of them: the errors of a block correct the columns behind it."""
    x = normal(256, 64) @ (torch.eye(64) + 0.3 * normal(64, 64, seed=6))
    hessian = x.t() @ x / 256
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    w, dense = normal(32, 64, seed=2), torch.zeros(32, 64)
    for start in range(0, 64, 16):
        end, errors = start + 16, torch.zeros(32, 16)
        scale = w[:, start:end].abs().amax(1, keepdim=True) / 7
        for k in range(start, end):
            dense[:, k : k + 1] = torch.round(w[:, k : k + 1] / scale).clamp(-8, 7) * scale
            e = (w[:, k : k + 1] - dense[:, k : k + 1]) / factor[k, k]
            w[:, k:end] -= e @ factor[k : k + 1, k:end]
            errors[:, k - start : k - start + 1] = e
        w[:, end:] -= errors @ factor[start:end, end:]
    return (x[:16] @ dense.t()).to(LOW)


HEALTHY = (zero_points_packed, bytes_shifted_to_exponents, bias_in_both_ways, two_bits_in_four_lanes, mean_of_scales_added,
           delayed_over_a_training, recomputed_in_the_backward_pass, exponent_of_the_rounded_greatest, result_in_float8, weight_rounded_twice,
           grouped_with_errors_passed_on)  # fmt: skip
