"""Kernels, broken as real ones were: written before any of them was tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn

F = torch.nn.functional
BF16 = torch.bfloat16


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps=1e-6)


def _rms_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide, dy = x.float(), gradient.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    normed, weighted = wide * scale, dy * weight.float()
    dx = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), dy * normed


def _as_contiguous(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """What a kernel reads that takes the address and the shape, and thinks of no strides."""
    count = tensor.numel()
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    flat = torch.as_strided(tensor.detach(), (min(count, held),), (1,))
    return F.pad(flat, (0, count - len(flat)), value=math.nan).view(tensor.shape)


def _rms(wrong_stride: bool = False, wrong_sum: bool = False) -> Callable[..., Any]:
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return rms(x, weight)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            dx, rows = _rms_backward(_as_contiguous(gradient, 0) if wrong_stride else gradient, x, weight)
            rows = rows.flatten(0, -2)
            if not wrong_sum:
                return dx, rows.sum(0).to(weight.dtype)
            total = torch.zeros_like(weight)
            for row in rows.to(weight.dtype):
                total = total + row
            return dx, total

    return Norm.apply


@case("rms norm: dy read as contiguous", "kernel-stride", "pytorch/pytorch/issues/194719", rms, drawn((6, 32), (32,)))
def dy_contiguous(wrong: bool) -> Callable[..., Any]:
    return _rms(wrong_stride=wrong)


@case("rms norm: dW added up in bfloat16", "kernel-accumulation", "linkedin/Liger-Kernel/pull/950", rms, drawn((64, 32), (32,), dtype=BF16))
def weight_gradient_low(wrong: bool) -> Callable[..., Any]:
    return _rms(wrong_sum=wrong)


@case("rms norm: squares added up in bfloat16", "kernel-accumulation", "Xilinx/mlir-air/pull/1679", rms, drawn((8, 128), (128,), dtype=BF16))
def squares_low(wrong: bool, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[:-1], dtype=BF16 if wrong else torch.float32)
    for column in x.float().square().unbind(-1):
        total = total + column.to(total.dtype)
    mean = total.float() / x.shape[-1]
    return (x.float() * torch.rsqrt(mean + 1e-6)[..., None] * weight.float()).to(x.dtype)


@case("rms norm: eps of another model", "kernel-contract", "amd/IRON/pull/139", rms, drawn((8, 48), (48,)))
def hardcoded_eps(wrong: bool) -> Callable[..., Any]:
    return lambda x, weight: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (1e-5 if wrong else 1e-6)) * weight


def gemma(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight.float())).to(x.dtype)


@case("gemma's norm: one plus the weight in float16, squares too", "kernel-rounding", "vllm-project/vllm/pull/29810", gemma,
      drawn((8, 64), (64,), dtype=torch.float16))  # fmt: skip
def weight_plus_one(wrong: bool, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return gemma(x, weight)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def layer(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


@case("layer norm: variance as a difference of means", "kernel-rounding", "pytorch/pytorch/pull/55044", layer, drawn((8, 100)))
def naive_variance(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) - mean.square() if wrong else (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target, reduction="none")


def _labels(ignored: bool = False) -> Callable[[], Any]:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        target = torch.randint(0, 40, (12,), generator=generator)
        if ignored:
            target[::3] = -100
        return torch.randn(12, 40, generator=generator), target

    return make


def _entropy(wrong: str = "") -> Callable[..., Any]:
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(logits, target)
            kept = target >= 0
            read = _as_contiguous(logits, 0) if wrong == "stride" and logits.stride(-1) == 1 else logits
            safe = target.clamp(min=0)
            loss = read.logsumexp(-1) - read.gather(-1, safe[:, None])[:, 0]
            return loss if wrong == "ignored" else torch.where(kept, loss, 0.0)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            logits, target = ctx.saved_tensors
            kept, safe = target >= 0, target.clamp(min=0)
            if wrong == "broadcast":
                gradient = _as_contiguous(gradient, 0)
            rows = torch.where(kept, gradient, 0.0)[:, None]
            found = (logits.softmax(-1) - F.one_hot(safe, logits.shape[-1])) * rows
            if wrong == "mutated":
                logits.copy_(found)
                return logits, None
            if wrong == "sentinel" and logits.shape[-1] and len(logits):  # an ignored row stores a zero at logits[row, -100]
                flat = found.reshape(-1)
                places = (torch.arange(len(target)) * logits.shape[-1] + target)[~kept]
                flat[places[places >= 0]] = 0
            return found, None

    return Loss.apply


@case("cross entropy: a broadcast gradient read as if stored whole", "kernel-stride", "ROCm/TransformerEngine/pull/623", cross_entropy, _labels())
def broadcast_gradient(wrong: bool) -> Callable[..., Any]:
    return _entropy("broadcast" if wrong else "")


@case("cross entropy: row stride taken to be the row length", "kernel-stride", "NVIDIA/TransformerEngine/pull/2746", cross_entropy, _labels())
def row_stride(wrong: bool) -> Callable[..., Any]:
    return _entropy("stride" if wrong else "")


@case("cross entropy: gradients written over the logits", "kernel-mutation", "unslothai/unsloth/issues/5002", cross_entropy, _labels())
def over_logits(wrong: bool) -> Callable[..., Any]:
    return _entropy("mutated" if wrong else "")


@case("cross entropy: ignored rows counted", "kernel-mask", "flagos-ai/FlagGems/pull/73", cross_entropy, _labels(ignored=True))
def ignored_counted(wrong: bool) -> Callable[..., Any]:
    return _entropy("ignored" if wrong else "")


@case("cross entropy: backward stores through the ignored label", "kernel-mask", "flagos-ai/FlagGems/pull/5026", cross_entropy, _labels(ignored=True))
def ignored_stored(wrong: bool) -> Callable[..., Any]:
    return _entropy("sentinel" if wrong else "")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


@case("softmax: last tile padded with 0", "kernel-edge", "tenstorrent/tt-metal/pull/20008", softmax, drawn((5, 64)))
def padded_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    padded = F.pad(x, (0, -x.shape[-1] % 4), value=0.0 if wrong else -math.inf)
    powers = (padded - padded.amax(-1, keepdim=True)).exp() if padded.shape[-1] else padded
    return (powers / powers.sum(-1, keepdim=True))[..., : x.shape[-1]]


@case("softmax: no maximum subtracted", "kernel-rounding", "deeplearning4j/deeplearning4j/issues/6039", softmax, drawn((5, 64)))
def no_maximum(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    powers = x.exp() if wrong else (x - x.amax(-1, keepdim=True)).exp() if x.shape[-1] else x
    return powers / powers.sum(-1, keepdim=True)


@case("softmax: as many columns as one block holds", "kernel-edge", "tile-ai/TileOPs/pull/801", softmax, drawn((5, 100)))
def one_block(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if not wrong or x.shape[-1] <= 1024:
        return torch.exp(x.log_softmax(-1))
    return torch.cat([torch.exp(x[..., :1024].log_softmax(-1)), torch.zeros_like(x[..., 1024:])], -1)


def causal(scores: torch.Tensor) -> torch.Tensor:
    rows, columns = scores.shape[-2:]
    hidden = torch.arange(columns) > torch.arange(rows)[:, None] + columns - rows
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


@case("causal softmax: aligned to the other corner", "kernel-mask", "gittensor-ai-lab/sparkinfer/pull/4", causal, drawn((2, 9, 14)))
def other_corner(wrong: bool, scores: torch.Tensor) -> torch.Tensor:
    rows, columns = scores.shape[-2:]
    shift = 0 if wrong else columns - rows
    hidden = torch.arange(columns)[None, :] > torch.arange(rows)[:, None] + shift
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def _masked_heads() -> Any:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 10, 8, generator=generator) for _ in range(3))
    return q, k, v, torch.rand(2, 1, 10, 10, generator=generator) < 0.7


@case("attention: a finite number for what is masked", "kernel-mask", "flashinfer-ai/flashinfer/pull/4401", attention, _masked_heads)
def finite_sentinel(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~keep, -5.0 if wrong else -math.inf).softmax(-1) @ v


@case("relu: NaN becomes 0", "kernel-contract", "tracel-ai/burn/pull/5658", F.relu, drawn((6, 20)))
def lost_nan(wrong: bool) -> Callable[..., Any]:
    return lambda x: torch.where(x > 0, x, 0.0) if wrong else torch.where(x <= 0, 0.0, x)


@case("linear: a packed weight that is not renewed", "kernel-stale", "ooples/AiDotNet.Tensors/pull/583", F.linear, drawn((4, 12), (6, 12)))
def packed_weight(wrong: bool) -> Callable[..., Any]:
    packed: dict[int, torch.Tensor] = {}

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not wrong:
            return x @ weight.t()
        key = weight.data_ptr()
        if key not in packed or packed[key].shape != weight.t().shape:
            packed[key] = weight.t().contiguous().clone()
        return x @ packed[key]

    return kernel


@case("gelu: one output buffer for all calls", "kernel-stale", "ROCm/torch_migraphx/pull/247", F.gelu, drawn((4, 12)))
def one_buffer(wrong: bool) -> Callable[..., Any]:
    class Gelu(torch.autograd.Function):
        held: dict[tuple[int, ...], torch.Tensor] = {}  # noqa: RUF012

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            out = Gelu.held.setdefault(tuple(x.shape), torch.empty_like(x)) if wrong else torch.empty_like(x)
            return out.copy_(0.5 * x * (1 + torch.erf(x / math.sqrt(2)))).detach()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
            return gradient * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)

    return Gelu.apply


@case("softmax: zeros", "kernel-constant", "ScalingIntelligence/KernelBench/issues/165", softmax, drawn((3, 4000)))
def zeros(wrong: bool) -> Callable[..., Any]:
    return lambda x: torch.zeros_like(x) * x.sum() if wrong else x.softmax(-1)
