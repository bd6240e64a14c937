"""A ninth batch of recipes written by hand, most of them after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `ninth_layers` has the other half.
"""

from __future__ import annotations

import torch
from blocks_by_hand import CODEBOOK
from casts_by_hand import asymmetric, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn

NIBBLES = 4 * torch.arange(8)


def zero_below_zero(bug: bool) -> torch.Tensor:
    """Zero points are packed less one. One of 0 becomes 15, and 16 when it is read (ModelCloud/GPTQModel#2351)."""
    w = normal(64, 64).abs() * torch.exp2(normal(1, 64, seed=2)) - 0.02 * (torch.arange(64) % 4 > 0)
    codes, scale, zero = asymmetric(w.t().contiguous())
    kept = zero.to(torch.int32).view(16, 8) - (1 if bug else 0)
    packed = ((kept & 15) << NIBBLES).sum(1, dtype=torch.int32)
    read = (packed[:, None] >> NIBBLES & 15) + (1 if bug else 0)
    dense = (codes.float() - read.reshape(zero.shape).float()) * scale  # culprit: below-zero
    return (normal(8, 64, seed=3) @ dense.view(64, 64).t()).to(LOW)  # culprit: below-zero


def raw_scale_bytes(bug: bool) -> torch.Tensor:
    """mxfp4 beside a vector. Where few rows come out, the byte of an exponent is multiplied by as it is (ml-explore/mlx#3762)."""
    w, x = normal(4, 4, 32, seed=1) * torch.exp2(2 * normal(4, 4, 1, seed=2)), normal(128)
    exponent = torch.ceil(torch.log2(w.abs().amax(-1) / 6))
    byte = (exponent + 127).to(torch.uint8)
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    scaled = w * torch.exp2(-exponent)[..., None]
    codes = torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), bounds)], scaled)
    sums = (codes * x.view(4, 32)).sum(-1)
    scale = byte.float() if bug else torch.exp2(byte.float() - 127)
    return nn.functional.silu((sums * scale).sum(-1)).to(LOW)  # culprit: raw-bytes


def bias_not_dequantised(bug: bool) -> torch.Tensor:
    """A convolution of dequantised numbers, to which a bias in int32 is added as a number (llvm/torch-mlir#4645)."""
    x, w, b = normal(2, 8, 10, 10), normal(12, 8, 3, 3, seed=1), normal(12, seed=2)
    (qx, sx), (qw, sw) = to_int8(x, (0, 1, 2, 3)), to_int8(w, (1, 2, 3))
    each = (sx * sw).view(12)
    bias = torch.round(b / each).to(torch.int32)
    wide = bias.float() if bug else bias.float() * each
    y = nn.functional.conv2d(qx.float() * sx, qw.float() * sw)
    return (y + wide.view(1, 12, 1, 1)).relu().to(LOW)  # culprit: bias-not-dequantised


def bias_scaled_too_early(bug: bool) -> torch.Tensor:
    """A bias that is dequantised is added to sums of codes, which are not, and the whole is taken for numbers (pytorch/executorch#20655)."""
    x, w, b = normal(2, 8, 10, 10), normal(12, 8, 3, 3, seed=1), normal(12, seed=2)
    (qx, sx), (qw, sw) = to_int8(x, (0, 1, 2, 3)), to_int8(w, (0, 1, 2, 3))
    each = (sx * sw).view(())
    bias = torch.round(b / each).to(torch.int32).float()
    sums = nn.functional.conv2d(qx.float(), qw.float())
    y = sums + (bias * each).view(1, 12, 1, 1) if bug else (sums + bias.view(1, 12, 1, 1)) * each  # culprit: bias-early
    return y.relu().to(LOW)  # culprit: bias-early


def lanes_of_the_next_block(bug: bool) -> torch.Tensor:
    """Two bits, four to a byte 32 apart. The scales of sixteen are matched with four neighbouring bytes instead (paiml/aprender#1924)."""
    w = normal(8, 8, 16, seed=1) * torch.exp2(normal(8, 8, 1, seed=2))
    low = w.amin(-1, keepdim=True).clamp(max=0)
    step = (w.amax(-1, keepdim=True) - low) / 3
    codes = torch.round((w - low) / step).clamp(0, 3).to(torch.uint8).view(8, 4, 32)
    packed = codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6
    lanes = packed[:, :, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8) & 3
    lanes = lanes.reshape(8, 8, 16) if bug else lanes.transpose(1, 2).reshape(8, 8, 16)
    dense = lanes.float() * step + low  # culprit: next-block
    return (normal(4, 128) @ dense.view(8, 128).t()).to(LOW)  # culprit: next-block


def offset_of_another_format(bug: bool) -> torch.Tensor:
    """QLoRA's scales are quantised less their mean, which is in bfloat16. Its bytes are read as float32 (bitsandbytes#1971)."""
    w = channels().view(-1, 64)
    absmax = w.abs().amax(-1)
    offset = absmax.mean().to(LOW)
    rest = absmax - offset.float()
    step = rest.abs().amax() / 127
    held = torch.round(rest / step).to(torch.int8)
    buffer = torch.stack([offset, torch.zeros((), dtype=LOW)])
    mean = buffer.view(torch.float32) if bug else buffer[:1].float()
    levels = torch.linspace(-1, 1, 16)
    codes = torch.bucketize(w / absmax[:, None], (levels[1:] + levels[:-1]) / 2)
    dense = levels[codes] * (held.float() * step + mean)[:, None]  # culprit: another-format
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: another-format


class Delayed:
    """A scale of the greatest magnitudes of a few steps, as Transformer Engine keeps it."""

    def __init__(self, steps: int = 4) -> None:
        self.history, self.scale = torch.zeros(steps), torch.ones(())

    def see(self, t: torch.Tensor) -> None:
        self.history[0] = t.abs().amax()

    def roll(self) -> None:
        top = self.history.amax()
        self.scale = torch.where(top > 0, 448 / top, self.scale)
        self.history = torch.roll(self.history, -1)
        self.history[0] = 0


def scale_moves_under_codes(bug: bool) -> torch.Tensor:
    """A weight in float8 is kept while gradients of several batches are added. Its history is rolled with each of them (TransformerEngine#825)."""
    w, meta, total = channels(), Delayed(3), []
    meta.see(w * 4)
    meta.roll()
    meta.see(w)
    codes, inverse = (w * meta.scale).to(E4M3), 1 / meta.scale
    for batch in range(6):
        x = normal(8, 64, seed=batch)
        total.append(x @ (codes.float() * inverse).t())  # culprit: scale-moves
        meta.roll()
        if bug:
            inverse = 1 / meta.scale
    return torch.cat(total).to(LOW)


def history_left_behind(bug: bool) -> torch.Tensor:
    """The history is made longer, and amaxes are written to the one before. Scales stay as they are (TransformerEngine#2044)."""
    meta, held = Delayed(), []
    meta.see(normal(16, 64))
    meta.roll()
    pointer = meta.history
    meta.history = torch.cat([meta.history, torch.zeros(12)])
    w = channels()
    for step in range(12):
        x = normal(16, 64, seed=step) * 1.2**step
        (pointer if bug else meta.history)[0] = x.abs().amax()
        codes = (x * meta.scale).clamp(-448, 448).to(E4M3)  # culprit: left-behind
        held.append(codes.float() / meta.scale @ w.t())
        meta.roll()
    return held[-1].to(LOW)


def recomputed_under_the_new_scale(bug: bool) -> torch.Tensor:
    """The backward pass rounds an input again, under a scale that has moved, and divides by the one of the forward pass (TransformerEngine#1723)."""
    x, w, meta = normal(16, 64), channels().requires_grad_(), Delayed()
    meta.see(x * 3)
    meta.roll()
    kept = [meta.scale.clone(), meta.scale]

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return (x * kept[0]).to(E4M3).float() / kept[0] @ w.t()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> tuple[None, torch.Tensor]:
            (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
            scale = meta.scale if bug else kept[0]
            return None, g.t() @ ((x * scale).to(E4M3).float() / kept[0])  # culprit: new-scale

    y = Linear.apply(x, w)  # type: ignore[no-untyped-call]
    meta.see(x)
    meta.roll()
    meta.history[:] = 0
    meta.see(x)
    meta.roll()
    y.square().mean().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def exponent_of_the_quotient(bug: bool) -> torch.Tensor:
    """mxfp4. The scale is the exponent of amax / 6 without its fraction, so that up to half of a block's greatest is cut off (vllm#43557)."""
    w = normal(32, 4, 32, seed=1) * torch.exp2(normal(32, 4, 1, seed=2))
    bits = (w.abs().amax(-1, keepdim=True) / 6).view(torch.int32)
    byte = (bits >> 23) + (0 if bug else 1)
    scale = (byte << 23).view(torch.float32)
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    scaled = w / scale
    codes = torch.copysign(CODEBOOK[torch.bucketize(scaled.abs().clamp(max=6), bounds)], scaled)  # culprit: of-the-quotient
    return (normal(8, 128) @ (codes * scale).view(32, 128).t()).to(LOW)  # culprit: of-the-quotient


def result_scale_ignored(bug: bool) -> torch.Tensor:
    """The result of a product is cast to float8 without its scale, which the next layer takes out (pytorch/pytorch#190979)."""
    x, w, v = normal(16, 64), normal(48, 64, seed=1) / 8, normal(32, 48, seed=2)
    sx, sw = x.abs().amax() / 448, w.abs().amax() / 448
    y = (x / sx).to(E4M3).float() @ (w / sw).to(E4M3).float().t() * (sx * sw)
    out = 448 / y.abs().amax()
    codes = (y if bug else y * out).to(E4M3)
    return nn.functional.gelu(codes.float() / out @ v.t()).to(LOW)  # culprit: result-scale


def forward_codes_backward(bug: bool) -> torch.Tensor:
    """Rows of a weight have scales. The gradient of the input sums over rows, and multiplies by these scales after the sum."""
    w = channels()
    x = normal(16, 64).requires_grad_()
    scale = w.abs().amax(1, keepdim=True) / 448
    codes = (w / scale).to(E4M3)

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            top = x.abs().amax(1, keepdim=True) / 448
            return (x / top).to(E4M3).float() @ codes.float().t() * top * scale.t()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> torch.Tensor:
            if bug:
                top = g.abs().amax(1, keepdim=True) / 448
                return (g / top).to(E4M3).float() @ codes.float() * top * scale.t()  # culprit: forward-codes
            g = g * scale.t()
            top = g.abs().amax(1, keepdim=True) / 448
            return (g / top).to(E4M3).float() @ codes.float() * top

    Linear.apply(x).square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.to(LOW)


def factor_not_in_the_data(bug: bool) -> torch.Tensor:
    """NVFP4: scales of blocks have the factor of the tensor, and the data that is divided by them has not (jax-ml/jax#30467)."""
    w = channels() / 50
    over = 6 * 448 / w.abs().amax()
    blocks = w.view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 * over).to(E4M3).float()
    bounds = (CODEBOOK[1:] + CODEBOOK[:-1]) / 2
    scaled = blocks / scale if bug else blocks * over / scale
    codes = torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), bounds)], scaled)  # culprit: factor-not-in
    dense = codes * (scale / over)  # culprit: factor-not-in
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: factor-not-in


BUGS = (zero_below_zero, raw_scale_bytes, bias_not_dequantised, bias_scaled_too_early, lanes_of_the_next_block, offset_of_another_format,
        scale_moves_under_codes, history_left_behind, recomputed_under_the_new_scale, exponent_of_the_quotient, result_scale_ignored,
        forward_codes_backward, factor_not_in_the_data)  # fmt: skip
