"""An eleventh batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import to_float8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal, rows
from torch import nn

NIBBLES = 4 * torch.arange(8)


def trained(product: Any, x: torch.Tensor, w: torch.Tensor, *given: Any) -> torch.Tensor:
    """The gradients of both operands of a Function, as one tensor."""
    x, w = x.requires_grad_(), w.requires_grad_()
    y = product.apply(x, w, *given)
    (nn.functional.silu(y.float()) * normal(*y.shape, seed=11) * torch.exp2(normal(len(y), 1, seed=12))).sum().backward()
    return torch.cat([each.grad.float().flatten() for each in (x, w) if each.grad is not None])


class Both:
    """A weight in float8 for both passes, each with scales of blocks of 16 x 16, as frameworks keep it beside the loaded one."""

    def __init__(self, w: torch.Tensor) -> None:
        self.rowwise = self.quantised(w)
        self.columnwise = self.quantised(w.t().contiguous())

    @staticmethod
    def quantised(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = w.detach().float().view(len(w) // 16, 16, -1, 16)
        scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-12) / 448
        return (blocks / scale).to(E4M3), scale


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, both: Both) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.both = both
        codes, scale = both.rowwise
        return x @ (codes.float() * scale).view(w.shape).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (x,), (codes, scale) = ctx.saved_tensors, ctx.both.columnwise
        dense = (codes.float() * scale).view(x.shape[1], -1)
        return g @ dense.t(), g.t() @ x, None  # culprit: not-made-again


def columns_not_made_again(bug: bool) -> torch.Tensor:
    """A loaded weight replaces the rowwise codes. The columnwise ones are those of the first, random weight (modelscope/mcore-bridge#125)."""
    w, both = channels(), Both(normal(64, 64, seed=9) / 8)
    both.rowwise = Both.quantised(w)
    if not bug:
        both.columnwise = Both.quantised(w.t().contiguous())
    return trained(Kept, normal(32, 64), w, both)


class Hybrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        (qx, sx), (qw, sw) = rows(x), rows(w)
        ctx.save_for_backward(x, w)
        ctx.bug = bug
        return qx.float() @ qw.float().t() * sx * sw.t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w = ctx.saved_tensors
        scale = g.abs().amax(1, keepdim=True) / 57344
        codes = (g / scale).to(E5M2)
        held = codes.view(torch.uint8).view(E4M3 if ctx.bug else E5M2)
        qw, sw = rows(w, 0)
        return held.float() @ qw.float() * scale * sw, g.t() @ x, None  # culprit: as-e4m3


def gradient_bytes_as_e4m3(bug: bool) -> torch.Tensor:
    """Gradients are rounded to e5m2, and their bytes are read as e4m3 whatever the recipe says (NVIDIA/TransformerEngine#3342)."""
    return trained(Hybrid, normal(32, 64), normal(48, 64, seed=1) / 8, bug)


class Axiswise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        qw, sw = rows(w)
        ctx.save_for_backward(x, qw, sw)
        ctx.bug = bug
        return x @ (qw.float() * sw).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, qw, sw = ctx.saved_tensors
        turned = qw.t()
        dense = turned.float() * (sw if ctx.bug else sw.t())  # culprit: not-turned
        return g @ dense.t(), g.t() @ x, None  # culprit: not-turned


def axis_not_turned(bug: bool) -> torch.Tensor:
    """A weight is transposed, and the axis of its scales is not, since `==` stands where `=` was meant (pytorch/ao#4038)."""
    return trained(Axiswise, normal(32, 64), channels(), bug)


class Transposing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, bug: bool) -> torch.Tensor:
        (qx, sx), (qw, sw) = to_float8(x, (0, 1)), to_float8(w, (0, 1))
        turned = torch.zeros(w.shape[1], w.shape[0], dtype=torch.uint8)
        high, wide = (len(w), w.shape[1]) if bug else (w.shape[1], len(w))
        mask = (torch.arange(w.shape[1])[:, None] < high) & (torch.arange(len(w)) < wide)
        turned[mask] = qw.view(torch.uint8).t()[mask]
        ctx.save_for_backward(x, turned.view(E4M3), sw)
        return qx.float() @ qw.float().t() * (sx * sw)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, turned, sw = ctx.saved_tensors
        qg, sg = to_float8(g, (0, 1))
        return qg.float() @ turned.float().t() * (sg * sw), g.t() @ x, None  # culprit: mask-turned


def mask_of_the_store_turned(bug: bool) -> torch.Tensor:
    """A transposed copy is stored under a mask whose bounds are those of the other axis, so some of it stays zero (pytorch/ao#1516)."""
    return trained(Transposing, normal(32, 64), normal(40, 64, seed=1) / 8, bug)


class EightBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        ctx.state = state
        return x @ (state["CB"].float() * state["SCB"] / 127).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return g @ (ctx.state["CB"].float() * ctx.state["SCB"] / 127), None, None  # culprit: scale-of-the-codes


def scale_of_the_codes(bug: bool) -> torch.Tensor:
    """LLM.int8(): the state is made again for a recomputed pass. The scale is taken from the codes (bitsandbytes-foundation/bitsandbytes#1927)."""
    w = channels()
    top = w.abs().amax(1, keepdim=True)
    state = {"CB": torch.round(w / top * 127).to(torch.int8), "SCB": top}
    x = normal(32, 64).requires_grad_()
    y = EightBits.apply(x, w, state)  # type: ignore[no-untyped-call]
    if bug:
        state["SCB"] = state["CB"].float().abs().amax(1, keepdim=True) / 127
    (y * normal(32, 64, seed=3)).sum().backward()
    assert x.grad is not None
    return x.grad.to(LOW)


def saturated_without_gradient(bug: bool) -> torch.Tensor:
    """Fake quantisation under a learned range of two deviations. What is exactly at the bound gets no gradient (pytorch/ao#4806)."""
    w = channels().requires_grad_()
    scale = 2 * w.detach().std(1, keepdim=True) / 7
    scaled = w / scale
    rounded = scaled + (torch.round(scaled) - scaled).detach()
    inside = (rounded.abs() < 7) if bug else (rounded.abs() <= 7)
    codes = torch.where(inside, rounded, rounded.detach().clamp(-7, 7))  # culprit: without-gradient
    (normal(32, 64) @ (codes * scale).t()).square().mean().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def greater_of_two_second_scales(bug: bool) -> torch.Tensor:
    """nvfp4: gate and up have second scales of their own. The kernel takes the greater one for both (NVIDIA/TensorRT-LLM#14199)."""
    x, both = normal(16, 64), [normal(32, 64, seed=1), 2.5 * normal(32, 64, seed=2)]
    seconds = [w.abs().amax() / (448 * 6) for w in both]
    shared, made = torch.maximum(*seconds), []
    for w, own in zip(both, seconds, strict=True):
        second = own if bug else shared
        blocks = w.view(32, 4, 16)
        scale = (blocks.abs().amax(-1, keepdim=True) / 6 / second).to(E4M3)
        codes = torch.round(2 * blocks / (scale.float() * second)).clamp(-12, 12) / 2
        made.append(((codes * scale.float()).view(32, 64), shared))
    gate, up = ((x @ dense.t()) * alpha for dense, alpha in made)  # culprit: second-scales
    return (nn.functional.silu(gate) * up).to(LOW)  # culprit: second-scales


def cast_tile(tile: torch.Tensor, scale: torch.Tensor, like: torch.dtype, bug: bool) -> torch.Tensor:
    return tile.float() if bug and like is E4M3 else tile.float() * scale


def descale_dropped_on_the_fast_path(bug: bool) -> torch.Tensor:
    """Queries in float8 take a fast path that returns keys and values without their scales (vllm-project/vllm#42580)."""
    q, k, v = normal(4, 16, 32), normal(4, 24, 32, seed=1), normal(4, 24, 32, seed=2)
    (q8, sq), (k8, sk), (v8, sv) = (to_float8(each, (0, 1, 2)) for each in (q, k, v))
    scores = q8.float() * sq @ cast_tile(k8, sk, q8.dtype, bug).mT / 32**0.5
    p = torch.softmax(scores, -1)  # culprit: fast-path
    return (p @ cast_tile(v8, sv, q8.dtype, bug)).to(LOW)


def mantissa_of_the_scale_cut(bug: bool) -> torch.Tensor:
    """The kernel keeps the exponent of scales alone, and is given scales that are no powers of two (sgl-project/sglang#39193)."""
    x, w = normal(16, 4, 32) * torch.exp2(normal(16, 4, 1, seed=3)), normal(48, 4, 32, seed=1)
    scales = []
    for each in (x, w):
        scale = each.abs().amax(-1, keepdim=True) / 448
        scales.append(scale if bug else torch.exp2(torch.ceil(torch.log2(scale))))
    codes = [(each / scale).to(E4M3) for each, scale in zip((x, w), scales, strict=True)]
    powers = [(scale.view(torch.int32) & 0x7F800000).view(torch.float32) for scale in scales]
    left, right = ((q.float() * power).view(len(q), 128) for q, power in zip(codes, powers, strict=True))  # culprit: mantissa
    return (left @ right.t()).to(LOW)


def first_slice_of_four(bug: bool) -> torch.Tensor:
    """Four scales of neighbouring blocks travel in a word of e8m0 bytes. Each block's product reads the first (mlc-ai/TIRx-kernels#5)."""
    x, w = normal(16, 4, 32) * torch.exp2(2 * normal(16, 4, 1, seed=3)), normal(48, 4, 32, seed=1)
    exponents = torch.ceil(torch.log2(x.abs().amax(-1) / 448)) + 127
    word = (exponents.int() << 8 * torch.arange(4, dtype=torch.int32)).sum(1)
    codes = (x / torch.exp2(exponents - 127)[..., None]).to(E4M3)
    total = torch.zeros(16, 48)
    for k in range(4):
        byte = word >> (0 if bug else 8 * k) & 255
        total = total + (codes[:, k].float() @ w[:, k].t()) * torch.exp2(byte.float() - 127)[:, None]  # culprit: first-slice
    return nn.functional.silu(total).to(LOW)  # culprit: first-slice


class Cache:
    """A cache in float8 with scales that were calibrated, of which that of values may be missing."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k_scale, self.v_scale = k.abs().amax() / 448, v.abs().amax() / 448
        self.k, self.v = (k / self.k_scale).to(E4M3), (v / self.v_scale).to(E4M3)


def scale_of_keys_for_values(bug: bool) -> torch.Tensor:
    """Where a layer has no scale for its values, that of the keys is taken (sgl-project/sglang#26852)."""
    cache, q = Cache(3 * normal(4, 24, 32, seed=1), normal(4, 24, 32, seed=2)), normal(4, 16, 32)
    descale = cache.k_scale if bug else cache.v_scale
    p = torch.softmax(q @ (cache.k.float() * cache.k_scale).mT / 32**0.5, -1)
    y = p @ cache.v.float() * descale  # culprit: for-values
    return y.transpose(0, 1).reshape(16, 128).to(LOW)


def zero_below_none(bug: bool) -> torch.Tensor:
    """AWQ for another kernel: zero points less one are packed in four bits, so that 0 becomes 15 (ModelCloud/GPTQModel#2350)."""
    w = channels().view(64, 2, 32) + torch.where(torch.arange(2) == 1, 3.0, 0.0)[:, None] * channels().view(64, 2, 32).abs().amax(-1, keepdim=True)
    low, high = w.amin(-1, keepdim=True).clamp(max=0), w.amax(-1, keepdim=True)
    scale = (high - low) / 15
    zeros = torch.round(-low / scale)
    codes = (torch.round(w / scale) + zeros).clamp(0, 15).to(torch.uint8)
    packed = (((zeros.int() - 1) & 15).view(16, 8) << NIBBLES).sum(1)
    read = (packed[:, None] >> NIBBLES & 15).view(64, 2, 1) + 1
    dense = (codes.int() - (read if bug else read % 16)).float() * scale  # culprit: below-none
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


BUGS = (columns_not_made_again, gradient_bytes_as_e4m3, axis_not_turned, mask_of_the_store_turned, scale_of_the_codes, saturated_without_gradient,
        greater_of_two_second_scales, descale_dropped_on_the_fast_path, mantissa_of_the_scale_cut, first_slice_of_four, scale_of_keys_for_values,
        zero_below_none)  # fmt: skip
