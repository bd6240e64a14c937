"""The other part of the thirteenth batch: offsets, factors across layers, gradients and operands; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from casts_by_hand import asymmetric, to_float8, to_int8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from torch import nn
from twelfth_layers import product, uneven
from twelfth_recipes import UPSTREAM, wide


def offsets_added(bug: bool) -> torch.Tensor:
    """A product of bytes adds what it should subtract: the zero point times the sums of the other operand (ARM-software/ComputeLibrary#1033)."""
    x, w = normal(16, 64) + 0.7, channels()
    low, high = x.amin(), x.amax()
    sx = (high - low) / 255
    zero = torch.round(-low / sx)
    qx = (torch.round(x / sx) + zero).clamp(0, 255)
    qw, sw = to_int8(w, 1)
    sums, offset = qx @ qw.float().t(), zero * qw.float().sum(1)
    out = sums + offset if bug else sums - offset
    return (out * (sx * sw.t())).to(LOW)  # culprit: offsets-added


def correction_of_half_the_blocks(bug: bool) -> torch.Tensor:
    """One row at a time: zero points of every second block of weights are left out of the sums (microsoft/onnxruntime#29853)."""
    x, (codes, scale, zero) = normal(1, 128) + 0.5, asymmetric(uneven(48, 4, 32).view(48, 128) + 0.5)
    blocks = x.view(1, 4, 32)
    sums = torch.einsum("bgi,ogi->bog", blocks, codes.float())
    kept = zero[..., 0] * (torch.tensor([1.0, 0.0, 1.0, 0.0]) if bug else 1.0)
    less = blocks.sum(-1)[:, None] * kept
    return ((sums - less) * scale[..., 0]).sum(-1).to(LOW)  # culprit: half-the-blocks


def whole_bias_divided(bug: bool) -> torch.Tensor:
    """AWQ: factors are folded into the rows of values of a joint projection, and into the whole of its bias (mit-han-lab/llm-awq#314)."""
    x, joint, out = normal(16, 32), normal(96, 32, seed=1) / 6, normal(32, 32, seed=2) / 6
    bias = 2 * normal(96, seed=3)
    factors = torch.exp2(1.2 * normal(32, seed=4))
    joint = torch.cat([joint[:64], joint[64:] / factors[:, None]])
    bias = bias / factors.repeat(3) if bug else torch.cat([bias[:64], bias[64:] / factors])
    (qj, sj), (qo, so) = to_int8(joint, 1), to_int8(out * factors, 1)
    q, k, v = (x @ (qj.float() * sj).t() + bias).split(32, 1)  # culprit: whole-bias
    mixed = torch.softmax(q @ k.t() / 32**0.5, -1) @ v  # culprit: whole-bias
    return (mixed @ (qo.float() * so).t()).to(LOW)


def folded_into_the_wrong_norm(bug: bool) -> torch.Tensor:
    """AWQ: factors of gate and up are folded into the norm behind attention, which is not the one before them (mlx-node/mlx-node#87)."""
    x, attended, w = normal(16, 32), normal(16, 32, seed=1), normal(64, 32, seed=2) / 6
    gains = [1 + 0.3 * normal(32, seed=each) for each in (3, 4)]
    factors = torch.exp2(1.5 * normal(32, seed=5))
    gains[0 if bug else 1] = gains[0 if bug else 1] / factors
    h = x + nn.functional.rms_norm(attended, (32,), gains[0])  # culprit: wrong-norm
    codes, scale = to_int8(w * factors, 1)
    return (nn.functional.rms_norm(h, (32,), gains[1]) @ (codes.float() * scale).t()).to(LOW)  # culprit: wrong-norm


def norm_with_two_readers(bug: bool) -> torch.Tensor:
    """SmoothQuant: factors are folded into a norm whose output is also added behind the layer (intel/neural-compressor#962)."""
    x, w, gain = normal(16, 32), normal(32, 32, seed=1) / 6, 1 + 0.3 * normal(32, seed=2)
    factors = torch.exp2(1.5 * normal(32, seed=3))
    h = nn.functional.layer_norm(x, (32,), gain / factors)
    codes, scale = to_int8(w * factors, 1)
    skip = h if bug else h * factors
    return (h @ (codes.float() * scale).t() + skip).to(LOW)  # culprit: two-readers


def scales_of_the_operands_exchanged(bug: bool) -> torch.Tensor:
    """mxfp8: a library takes the scales of A for B, and those of B for A (NVIDIA/CUDALibrarySamples#248)."""
    x, w = uneven(48, 4, 32), uneven(48, 4, 32, seed=2) / 8
    scales = [torch.exp2(torch.ceil(torch.log2(each.abs().amax(-1, keepdim=True) / 448))) for each in (x, w)]
    codes = [(each / scale).to(E4M3) for each, scale in zip((x, w), scales, strict=True)]
    used = scales[::-1] if bug else scales
    left, right = ((q.float() * s).view(48, 128) for q, s in zip(codes, used, strict=True))  # culprit: exchanged
    return (left @ right.t()).to(LOW)  # culprit: exchanged


class Sent(torch.autograd.Function):
    """A cast to float8 for an all-to-all. In the backward pass the gradient is cast."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, own: bool) -> torch.Tensor:
        codes, scale = to_float8(x, 1)
        ctx.save_for_backward(scale)
        ctx.own = own
        return codes.float() * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (scale,) = ctx.saved_tensors
        top = g.abs().amax(1, keepdim=True) / 448
        codes = (g / top).to(E4M3)  # culprit: forward-scale
        return codes.float() * (top if ctx.own else scale), None  # culprit: forward-scale


def gradient_by_the_forward_scale(bug: bool) -> torch.Tensor:
    """Tokens are sent to experts in float8. Their gradients are cast too, and multiplied by the scale of the tokens (swiss-ai/Megatron-LM#127)."""
    x, w = (normal(32, 64) * torch.exp2(normal(32, 1, seed=4))).requires_grad_(), channels()
    (Sent.apply(x, not bug) @ w.t() * UPSTREAM).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.to(LOW)


def unscaled_before_it_is_rounded(bug: bool) -> torch.Tensor:
    """An optimizer divides gradients by the loss scale before it rounds them to float8, where they are zero (Tiiiger/QPyTorch#59)."""
    w = normal(48, 64, seed=1).requires_grad_()
    (normal(16, 64) @ w.t() * normal(16, 48, seed=2) * 1e-7 * 2.0**20).sum().backward()
    assert w.grad is not None
    if bug:
        rounded = (w.grad / 2.0**20).to(E5M2).float()  # culprit: before-it
    else:
        rounded = w.grad.to(E5M2).float() / 2.0**20
    return (rounded * 1e7).to(LOW)


BUGS = (offsets_added, correction_of_half_the_blocks, whole_bias_divided, folded_into_the_wrong_norm, norm_with_two_readers,
        scales_of_the_operands_exchanged, gradient_by_the_forward_scale, unscaled_before_it_is_rounded)  # fmt: skip
HEALTHY = ()  # look-alikes of both parts are in `thirteenth_healthy`


def joint() -> torch.Tensor:
    q, k, v = (product(normal(16, 32), normal(96, 32, seed=1) / 6) + 2 * wide(normal(96, seed=3))).split(32, 1)
    return torch.softmax(q @ k.t() / 32**0.5, -1) @ v @ wide(normal(32, 32, seed=2) / 6).t()


def sandwich() -> torch.Tensor:
    gains = [1 + 0.3 * wide(normal(32, seed=each)) for each in (3, 4)]
    h = wide(normal(16, 32)) + nn.functional.rms_norm(wide(normal(16, 32, seed=1)), (32,), gains[0], 1.2e-7)
    return nn.functional.rms_norm(h, (32,), gains[1], 1.2e-7) @ wide(normal(64, 32, seed=2) / 6).t()


def skipped() -> torch.Tensor:
    h = nn.functional.layer_norm(wide(normal(16, 32)), (32,), 1 + 0.3 * wide(normal(32, seed=2)))
    return h @ wide(normal(32, 32, seed=1) / 6).t() + h


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "offsets_added": lambda: product(normal(16, 64) + 0.7, channels()),
    "correction_of_half_the_blocks": lambda: product(normal(1, 128) + 0.5, uneven(48, 4, 32) + 0.5),
    "whole_bias_divided": joint,
    "folded_into_the_wrong_norm": sandwich,
    "norm_with_two_readers": skipped,
    "scales_of_the_operands_exchanged": lambda: product(uneven(48, 4, 32).view(48, 128), uneven(48, 4, 32, seed=2) / 8),
    "gradient_by_the_forward_scale": lambda: wide(UPSTREAM) @ wide(channels()),
    "unscaled_before_it_is_rounded": lambda: wide(normal(16, 48, seed=2)).t() @ wide(normal(16, 64)),
}
